"""`goldnode plan` on nodes: it predicts what site.yml does, names hosts that do not answer, and changes
nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded
from tests.e2e.test_removal import difference, tree

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]


CANARY = "c4n4ry-s3cret"
# A login of apt's, and one that an earlier class or a person has left in a file that a plan compares.
PLANT = f"""set -e
umask 077
echo 'machine mirror.invalid login ci password {CANARY}' >/etc/apt/auth.conf.d/canary.conf
sed -i 's#^URIs: http://#&ci:{CANARY}@#' /etc/apt/sources.list.d/goldnode-*.sources
"""
FILES = "/etc/goldnode /run /var/lib/goldnode /var/log /tmp"


def test_a_fleet_of_two_classes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, site = make("bare", "e2e_r535", "debian12_r535", "debian12_cpu")
    held, _ = make("held", "e2e_cpu", "debian12_cpu")
    hosts = inventory(tmp_path / "hosts", {"e2e_r535": [bare], "e2e_cpu": [held]})
    document = yaml.safe_load((hosts / "hosts.yml").read_text())
    with socket.socket() as closed:  # bound, so that nobody else takes it, and listening to nobody
        closed.bind(("127.0.0.1", 0))
        gone = {"ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}
        document["all"]["children"]["e2e_r535"]["hosts"]["gone"] = gone
        (hosts / "hosts.yml").write_text(yaml.safe_dump(document))
        before = tree(bare)
        reported = goldnode("plan", "-i", str(hosts), site=site)
        assert reported.returncode == 2, "a host could not be asked"
        for text in (
            "3 hosts of 2 classes: 1 unreachable, 2 to change. Nothing was changed.",
            "class e2e_r535 (stack debian12_r535, lock ",
            "unreachable: gone: ssh: connect to host 127.0.0.1",
            "packages: ",
            "kernel   install   linux-image-6.1.0-902-amd64     6.1.902-1+standin1",
            "new /etc/modprobe.d/goldnode-blacklist.conf: ",
            "kernel 6.1.0-902-amd64 is installed and has to be booted",
            "not verified here: which kernel boots next",
        ):
            assert text in reported.stdout, reported.stdout
        assert difference(before, tree(bare)) == []
        assert bare.run("test", "-e", "/run/goldnode", check=False).rc != 0, (
            "the program was left behind"
        )

    # A job on the GPU; and a class that one of its nodes is already of.
    succeeded(site_yml(hosts, "--limit", "held", site=site))
    bare.shell(
        "mknod /dev/nvidia0 c 1 3; systemd-run --unit=train sh -c 'exec sleep 3600 < /dev/nvidia0'"
    )
    reported = goldnode(
        "plan", "-i", str(hosts), "--limit", "bare:held", "--format", "json", site=site
    )
    found = json.loads(reported.stdout)
    assert reported.returncode == 2, "a refusal is no success"
    assert found["schema"] == "goldnode.plans/1"
    assert {name: host["state"] for name, host in found["hosts"].items()} == {
        "bare": "refused",
        "held": "reboot pending",
    }
    (job,) = found["hosts"]["bare"]["holders"]
    assert (job["command"], job["unit"]) == ("sleep", "train.service")
    (group,) = found["classes"]["e2e_r535"]["groups"]
    moves = {
        row["package"]: (row["from"], row["to"], row["part"])
        for row in group["sections"]["packages"]
        if "package" in row
    }
    assert moves["nvidia-kernel-dkms"] == (None, "535.309.01-0+deb12u1+standin1", "driver")
    alone = goldnode("plan", "-i", str(hosts), "--limit", "held", site=site)
    assert (alone.returncode, "1 reboot pending" in alone.stdout) == (0, True)
    assert (
        goldnode("plan", "-i", str(hosts), "--limit", "held", "--exit-code", site=site).returncode
        == 1
    )
    unmatched = goldnode("plan", "-i", str(hosts), "--limit", "nobody", site=site)
    assert unmatched.returncode == 2
    assert "error: " in unmatched.stderr
    monkeypatch.setenv("KBUILD_SIGN_PIN", CANARY)
    _secrets_stay(held, replace(site, runs=tmp_path / "runs"), hosts)


def _secrets_stay(node: LabNode, site: Site, hosts: Path) -> None:
    """A secret on a node and in the environment of a run is in no output, no record and no other file."""
    node.shell(PLANT)
    limit = ("-i", str(hosts), "--limit", node.name)
    for words in (("plan", *limit), ("plan", *limit, "--format", "json")):
        done = goldnode(*words, site=site)
        assert CANARY not in done.stdout + done.stderr
    node.run("/usr/lib/goldnode/goldnode-node", "check", check=False)
    node.run("systemctl", "start", "goldnode-watch.service")
    for options in (("--check", "--diff"), ("--diff",)):
        run = site_yml(hosts, *options, "--limit", node.name, "-vv", site=site)
        assert "URIs: " in run.output
        assert CANARY not in run.output
    assert isinstance(site.runs, Path)
    records = [path for path in site.runs.rglob("*") if path.is_file()]
    assert records
    assert not [path for path in records if CANARY in path.read_text(errors="replace")]
    assert _with_canary(node) == ""
    # The search sees a secret in each place: one is planted there, and another in the journal.
    node.shell(
        f"for place in {FILES}; do echo {CANARY} >$place/planted-canary; done; logger {CANARY}; journalctl --sync"
    )
    seen = _with_canary(node)
    assert all(f"{place}/planted-canary" in seen for place in FILES.split())
    assert f": {CANARY}" in seen
    node.shell(f"for place in {FILES}; do rm $place/planted-canary; done")


def _with_canary(node: LabNode) -> str:
    """Return the files and the lines of the journal that have the secret. A place that is missing is an error."""
    # || true: grep ends with 1 where nothing has it, which is wanted; the assertion is on what it lists.
    search = f"grep -rl {CANARY} {FILES} 2>/dev/null || true; journalctl --no-pager | grep {CANARY} || true"
    return node.shell(f"set -e; ls -d {FILES} >/dev/null; {search}").output
