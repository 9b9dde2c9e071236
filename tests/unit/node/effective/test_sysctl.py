"""Order and masks of sysctl.d against `systemd-analyze cat-config`, and which assignment wins."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective import sysctl
from goldnode.node.ground.host import Host

ANALYZE = shutil.which("systemd-analyze")
KEY = "kernel.numa_balancing"


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_files_are_read_in_the_order_of_systemd(tmp_path: Path, start: int) -> None:
    bases = ("10-a.conf", "90-goldnode.conf", "99-sysctl.conf", "99.conf", "B.conf", "zz.conf")
    odd = ("README", ".hidden.conf", "x.conf.dpkg-new", "y.conf~")
    for seed in range(start, start + 20):
        choice = random.Random(seed)  # noqa: S311 - cases, not keys
        root = tmp_path / str(seed)
        root.mkdir()
        for directory in sysctl.DIRECTORIES[:-1]:
            for base in choice.sample((*bases, *odd), choice.randint(0, 5)):
                name = f"{directory}/sysctl.d/{base}"
                if choice.random() < 0.15:
                    make(root, links={name: "/dev/null"})
                else:
                    make(root, {name: choice.choice(["", f"{KEY} = {choice.randint(0, 1)}\n"])})
        shown = subprocess.run(
            [str(ANALYZE), "cat-config", f"--root={root}", "sysctl.d"],
            capture_output=True,
            check=False,
            text=True,
        )
        if shown.returncode:
            pytest.skip(shown.stderr)
        order = re.findall(rf"^# {re.escape(str(root))}(/\S+)$", shown.stdout, re.M)
        # systemd 262 lists no file without text. It hides those of its name all the same.
        host = Host(str(root))
        own = [file for file in sysctl.files(host) if host.text(file)]
        assert own == [file for file in order if host.text(file)], seed


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"/etc/sysctl.d/95-a.conf": f"{KEY}=1\n"}, "/etc/sysctl.d/95-a.conf:1=1"),
        (
            {"/etc/sysctl.d/95-a.conf": "#x\n-kernel/numa_balancing = 1 \n"},
            "/etc/sysctl.d/95-a.conf:2=1",
        ),
        # A later file sets it back.
        (
            {"/etc/sysctl.d/95-a.conf": f"{KEY}=1\n", "/usr/lib/sysctl.d/99-b.conf": f"{KEY}=0\n"},
            "/usr/lib/sysctl.d/99-b.conf:1=0",
        ),
        # A pattern leaves alone what a file names.
        (
            {
                "/etc/sysctl.d/90-a.conf": f"{KEY}=0\n",
                "/etc/sysctl.d/95-a.conf": "kernel.numa_*=1\n",
            },
            "/etc/sysctl.d/90-a.conf:1=0",
        ),
        ({"/etc/sysctl.conf": f"{KEY}=1\n"}, None),
        ({"/etc/sysctl.d/95-a.conf": f"; {KEY}=1\n# {KEY}=1\n{KEY}\n"}, None),
        # A name after a hyphen alone takes back what is before it.
        ({"/etc/sysctl.d/95-a.conf": f"{KEY}=1\n-{KEY}\n"}, "/etc/sysctl.d/95-a.conf:2="),
        # Behind a slash, a dot belongs to the name.
        ({"/etc/sysctl.d/95-a.conf": "net/ipv4/conf/eth0.5/forwarding=1\n"}, None),
    ],
)
def test_the_last_assignment_wins(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    make(tmp_path, files)
    row = sysctl.winners(Host(str(tmp_path)), [KEY]).get(KEY)
    assert (f"{row.file}:{row.line}={row.value}" if row else None) == expected


# Keys of a network namespace, with values that the kernel takes.
KEYS = ("net.ipv4.ip_default_ttl", "net.ipv4.tcp_syn_retries", "net.ipv4.tcp_keepalive_probes")
FORMS = (
    "{}={}", "{} = {}", " {}\t=\t{} ", "-{} = {}", "- {} = {}", "# {} = {}", "; {} = {}", " # {}={}", "{}", "-{}", "{} = {} # seven",
    "{} = {}\r", "{} =", "{} == {}", "{}.x = {}", "{}* = {}", "{} : {}", "={}", "{} = '{}'", "{}\\\n = {}",
)  # fmt: skip
APPLY = """
for d in etc run usr/local/lib usr/lib; do
    mkdir -p /$d/sysctl.d && mount --bind "$1/$d/sysctl.d" /$d/sysctl.d || exit 9
done
/lib/systemd/systemd-sysctl 2>/dev/null
"""
READ = "cd /proc/sys/net/ipv4 && cat ip_default_ttl tcp_syn_retries tcp_keepalive_probes"
# A value that the kernel does not take leaves the parameter as it was.
WRITE = f'for key in {" ".join(key.replace(".", "/") for key in KEYS)}; do [ -z "$1" ] || printf %s "$1" >/proc/sys/$key; shift; done 2>/dev/null; {READ}'


def assigned(choice: random.Random) -> str:
    """Return lines as people write them, most of which assign one of KEYS."""
    lines = []
    for _ in range(choice.randint(0, 4)):
        key = choice.choice(KEYS)
        key = choice.choice([key, key, key.replace(".", "/"), key.replace(".", "/", 1)])
        form = FORMS[choice.randrange(3)] if choice.random() < 0.6 else choice.choice(FORMS)
        lines.append(form.format(key, choice.randint(2, 99)))
    return "\n".join(lines) + choice.choice(["\n", ""])


def in_namespace(script: str, *words: str) -> str:
    """Run a shell in network and mount namespaces of its own. Skips where that cannot be done."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, "sh", *words],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(done.stderr)
    return done.stdout


@pytest.mark.skipif(
    os.getuid() != 0 or not Path("/lib/systemd/systemd-sysctl").exists(),
    reason="needs root and systemd",
)
def test_winning_values_are_those_that_systemd_sets(tmp_path: Path) -> None:
    """60 configurations, each in a network and mount namespace of its own."""
    wrong = []
    for seed in range(60):
        choice = random.Random(seed)  # noqa: S311 - cases, not keys
        root = tmp_path / str(seed)
        for directory in sysctl.DIRECTORIES[:-1]:
            (root / f"{directory[1:]}/sysctl.d").mkdir(parents=True)
            for base in choice.sample(("10-a.conf", "95-b.conf", "99-c.conf", "zz.conf"), 2):
                make(root, {f"{directory}/sysctl.d/{base}": assigned(choice)})
        make(root, {"/etc/sysctl.d/90-goldnode.conf": "".join(f"{key} = 7\n" for key in KEYS)})
        found = sysctl.winners(Host(str(root)), KEYS)
        expected = in_namespace(APPLY + READ, str(root))
        computed = in_namespace(WRITE, *(found[key].value for key in KEYS))
        if computed != expected:
            wrong.append((seed, computed, expected, [str(found[key]) for key in KEYS]))
    assert wrong == []
