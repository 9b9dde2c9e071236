"""rollback.yml on a systemd node with stand-ins: forward to a newer kernel and driver, and back, package by
package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import Run, Site, inventory, site_yml, succeeded
from tests.e2e.test_removal import administration, difference, tree

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
# goldnode's own notes of what was done, and when.
NOTES = ("/var/lib/goldnode/", "/run/", "/etc/apt/", "/var/lib/dkms/")


def back(hosts: Path, *arguments: str, site: Site) -> Run:
    """Run rollback.yml; a container node can at best reach exit code 3."""
    return site_yml(
        hosts, "-e", '{"goldnode_accepted": [0, 3]}', *arguments, site=site, playbook="rollback.yml"
    )


def closure(node: LabNode) -> str:
    """A digest of every package with version, architecture and state."""
    return hashlib.sha256("\n".join(administration(node)["packages"]).encode()).hexdigest()


def stored(node: LabNode) -> list[dict[str, Any]]:
    """The rows of the documents that the node keeps."""
    found: list[dict[str, Any]] = json.loads(node.read("/var/lib/goldnode/classes/index.json"))[
        "rows"
    ]
    return found


@dataclasses.dataclass
class Moved:
    """A node that went from the older stack to the newer, and what it was before."""

    node: LabNode
    site: Site
    older: Path
    newer: Path
    runs: Path
    closure: str = ""
    managed: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """What the last run left about the node."""
        newest = max(self.runs.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        found: dict[str, Any] = json.loads(newest.read_text())["hosts"][self.node.name]
        return found


@pytest.fixture(scope="module")
def moved(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Moved:
    """The tests of this module follow the node in their order."""
    place = tmp_path_factory.mktemp("moved")
    node, site = make("moved", "e2e_main", "e2e_main", "debian12_r535")
    site = dataclasses.replace(site, runs=place / "runs")
    return Moved(
        node,
        site,
        inventory(place / "older", {"e2e_main": [node]}),
        inventory(place / "newer", {"e2e_r535": [node]}),
        place / "runs",
    )


def test_a_node_that_has_had_one_stack_has_nothing_to_return_to(moved: Moved) -> None:
    bare = back(moved.older, site=moved.site)
    assert bare.rc != 0
    assert "The node has no class document" in bare.output
    succeeded(site_yml(moved.older, site=moved.site))
    moved.closure, moved.managed, moved.files = (
        closure(moved.node),
        administration(moved.node),
        tree(moved.node),
    )
    run = back(moved.older, site=moved.site)
    assert run.rc != 0
    assert "[nothing-earlier]" in run.output
    assert tree(moved.node).keys() == moved.files.keys()
    assert [(row["by"], row["whole"], row["good"]) for row in stored(moved.node)] == [
        ("apply", True, True)
    ]


def test_rollback_to_a_withdrawn_package_is_refused_before_any_change(
    world: World, moved: Moved
) -> None:
    succeeded(site_yml(moved.newer, site=moved.site))
    assert closure(moved.node) != moved.closure
    before = tree(moved.node)
    world.publish(withdraw=["nvidia-kernel-dkms_535.261*"])
    run = back(moved.newer, site=moved.site)
    world.publish()
    assert run.rc != 0
    for text in (
        "[not-obtainable]",
        "nvidia-kernel-dkms=535.261.03-1+standin1",
        "goldnode mirror",
        "1 refused",
    ):
        assert text in run.output, run.output[-3000:]
    assert difference(before, tree(moved.node)) == []


def test_check_mode_shows_the_way_back_and_touches_nothing(moved: Moved) -> None:
    before = tree(moved.node)
    run = succeeded(back(moved.newer, "--check", "--diff", site=moved.site))
    for text in (
        "downgrade nvidia-kernel-dkms 535.309.01-0+deb12u1+standin1 -> 535.261.03-1+standin1",
        "remove    linux-image-6.1.0-902-amd64 6.1.902-1+standin1 (came with the stack that is left)",
        "would be taken back: moved",
        "THE NEXT RUN OF site.yml TAKES THEM FORWARD AGAIN",
    ):
        assert text in run.output, run.output[-4000:]
    assert difference(before, tree(moved.node)) == []


def test_a_gpu_in_use_is_refused_where_no_one_may_drain(moved: Moved) -> None:
    moved.node.shell(
        "mknod /dev/nvidia0 c 1 3; systemd-run --unit=train sh -c 'exec sleep 3600 < /dev/nvidia0'"
    )
    before = tree(moved.node)
    run = back(moved.newer, site=moved.site)
    assert run.rc != 0
    assert "sleep, unit train.service" in run.output
    assert "1 held" in run.output
    assert difference(before, tree(moved.node)) == []


def test_the_node_is_what_it_was_before_in_one_transaction(moved: Moved, tmp_path: Path) -> None:
    """The drain ends the job. Without a reboot, which the driver needs, the node stays out of service."""
    node = moved.node
    script = f"""#!{sys.executable}
import sys, docker
open("{tmp_path}/log", "a").write(" ".join(sys.argv[1:]) + "\\n")
docker.from_env().containers.get("{node.container.id}").exec_run("systemctl stop train")
"""
    (tmp_path / "drain").write_text(script)
    (tmp_path / "drain").chmod(0o755)
    words = {
        "goldnode_drain": "command",
        "goldnode_drain_command": [f"{tmp_path}/drain"],
        "goldnode_resume_command": [f"{tmp_path}/drain", "resume"],
    }
    log = node.read("/var/log/apt/history.log").count("Start-Date")
    run = succeeded(
        back(
            moved.newer,
            "-e",
            "goldnode_drain_for_waiting=true",
            "-e",
            json.dumps(words),
            site=moved.site,
        )
    )
    node.shell("rm /dev/nvidia0")
    why = r"moved goldnode run \S+ of \S+ at \S+: rollback to an earlier class document\n"
    assert re.fullmatch(why, (tmp_path / "log").read_text())
    assert "It was taken out of service by this run and is still out." in re.sub(
        r"\s+", " ", run.output
    )
    assert node.read("/var/log/apt/history.log").count("Start-Date") == log + 1, "one transaction"
    assert closure(node) == moved.closure
    assert administration(node) == moved.managed
    left = [row for row in difference(moved.files, tree(node)) if not row.startswith(NOTES)]
    assert left == []
    assert json.loads(node.read("/etc/goldnode/class.json"))["class"] == "e2e_main"
    assert (
        node.run(
            "modinfo", "-k", "6.1.0-901-amd64", "-F", "version", "nvidia-current"
        ).output.strip()
        == "535.261.03"
    )
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    assert (verdict["class"], verdict["exit_code"]) == ("e2e_main", 3)
    assert [row["id"] for row in verdict["findings"] if row["outcome"] == "mismatch"] == [
        "boot.pending"
    ]
    # Told, recorded by the controller, and recorded on the node.
    assert "taken back: moved" in run.output
    assert "THE NEXT RUN OF site.yml TAKES THEM FORWARD AGAIN" in run.output
    reported = moved.record()["rollback"]
    assert (reported["to"]["class"], reported["left"]["class"], reported["again"]) == (
        "e2e_main",
        "e2e_r535",
        False,
    )
    assert [(row["class"], row["by"], row["good"]) for row in stored(node)] == [
        ("e2e_r535", "apply", True),
        ("e2e_main", "rollback", True),
    ]
    history = node.shell("cat $(ls /var/lib/goldnode/history/* | tail -1)").output
    assert '"by": "rollback"' in history


def test_a_second_rollback_stays_where_it_is_and_reports_it(moved: Moved) -> None:
    before = tree(moved.node)
    run = succeeded(back(moved.newer, site=moved.site))
    assert run.changed["moved"] == 0
    assert "taken back already: moved" in run.output
    assert difference(before, tree(moved.node)) == []
    unknown = back(moved.newer, "-e", "goldnode_to=0000", site=moved.site)
    assert unknown.rc != 0
    assert "0000 is not kept on this node" in unknown.output


def test_site_yml_goes_forward_again_and_a_lock_can_be_named(moved: Moved) -> None:
    node = moved.node
    succeeded(site_yml(moved.newer, site=moved.site))
    assert [row["class"] for row in stored(node)] == ["e2e_main", "e2e_r535"]
    lock = stored(node)[0]["lock_digest"].partition(":")[2]
    run = succeeded(back(moved.newer, "-e", f"goldnode_to={lock[:10]}", site=moved.site))
    assert run.changed["moved"] > 0
    assert closure(node) == moved.closure
    # The catalog may say what it likes: with the class of before in force, there is nothing left to do.
    assert succeeded(site_yml(moved.older, site=moved.site)).changed["moved"] == 0


def test_removal_takes_the_stored_documents_too(moved: Moved) -> None:
    """The way back has left the node out of service, for want of a boot: its record stays until a run returns the node, and goes with that."""
    hooks = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["true"],
        "goldnode_resume_command": ["true"],
    }
    succeeded(
        site_yml(
            moved.older, "-e", "goldnode_state=absent", "-e", json.dumps(hooks), site=moved.site
        )
    )
    assert moved.node.run("test", "-e", "/var/lib/goldnode", check=False).rc != 0
