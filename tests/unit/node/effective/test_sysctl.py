"""Order and masks of sysctl.d against `systemd-analyze cat-config`, and which assignment wins."""

from __future__ import annotations

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
        assert sysctl.files(Host(str(root))) == order, seed


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
        ({"/etc/sysctl.d/95-a.conf": f"; {KEY}=1\n# {KEY}=1\n-{KEY}\n"}, None),
    ],
)
def test_the_last_assignment_wins(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    make(tmp_path, files)
    row = sysctl.winners(Host(str(tmp_path)), [KEY]).get(KEY)
    assert (f"{row.file}:{row.line}={row.value}" if row else None) == expected
