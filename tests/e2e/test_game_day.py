"""Game days on a node with systemd: each fault is seen and taken back, and the node ends it by itself.

Two faults need a machine of their own: a container shows the kernel's log and the network of its host.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import documents
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded
from tests.simulators import apt_archive
from tests.simulators.hardware import Scenario
from tests.simulators.hardware import node as simulator

from goldnode.fleet.nodes import game_day
from goldnode.fleet.nodes.game_day_faults import BY_NAME, FAULTS, GameDayFault, SurveyedNode
from goldnode.fleet.nodes.reach import SshNode
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

CLASS = "e2e_game_day"
NOT_IN_A_CONTAINER = {"log-line", "link-mtu"}
Gaming = tuple[LabNode, Site, Path]


@pytest.fixture(scope="module")
def gaming(
    make: Callable[..., tuple[LabNode, Site]], tmp_path_factory: pytest.TempPathFactory
) -> Gaming:
    """A converged node with simulated boards, whose gate blocks."""
    groups = {*apt_archive.DEFAULT, apt_archive.MODULES}
    node, site = make("game", CLASS, "e2e_drift", groups=groups)
    exported = goldnode("class", "export", CLASS, site=site)
    assert exported.returncode == 0, exported.stderr
    simulator.install(node, Scenario.of(json.loads(exported.stdout)))
    hosts = inventory(tmp_path_factory.mktemp("inventory"), {CLASS: [node]})
    succeeded(site_yml(hosts, site=site))
    return node, site, hosts


def machine(node: LabNode) -> SshNode:
    """The node as a game day reaches it."""
    return SshNode(node.name, tuple(node.ssh()))


def made(node: LabNode, fault: GameDayFault, seconds: int) -> None:
    """Arm the end of a fault and make it, as a controller does that is killed then."""
    target = machine(node)
    found = game_day.survey(target)
    for script in (
        game_day.arm_script(fault, found, "r", seconds),
        game_day.make_script(fault, found, "r", now=False),
    ):
        done = target.run("sh", "-s", stdin=script.encode())
        assert done.returncode == 0, done.stderr


def differing(node: LabNode) -> list[str]:
    """What a fresh check of the node finds, without what a container cannot show."""
    node.run("systemctl", "start", "goldnode-watch.service")
    return [row.id for row in game_day.names_of(game_day.survey(machine(node)).verdict)]


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name not in NOT_IN_A_CONTAINER], ids=lambda fault: fault.name
)  # fmt: skip
def test_fault_is_seen_and_taken_back(gaming: Gaming, fault: GameDayFault) -> None:
    node, site, hosts = gaming
    before = differing(node)
    words = ("game-day", CLASS, "-i", str(hosts), "--node", node.name, "--fault", fault.name, "--now", "--within", "90")  # fmt: skip
    shown = goldnode(*words, site=site)
    assert "nothing was done; add --apply" in shown.stdout, shown.stderr
    assert differing(node) == before
    done = goldnode(*words, "--apply", "--format", "json", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    document = documents.valid(done.stdout)
    assert (document["state"], document["simulated"], document["left"]) == ("ended", True, [])
    outcomes = {row["witness"]: row["outcome"] for row in document["sightings"]}
    assert outcomes["check"] == "seen"
    assert outcomes["gate"] == ("seen" if fault.name == "module-denied" else "not_asked")
    assert differing(node) == before
    assert node.run("test", "-e", game_day.PLACE, check=False).rc == 1


@pytest.mark.parametrize("name", sorted(NOT_IN_A_CONTAINER))
def test_fault_that_a_container_cannot_show_is_refused(gaming: Gaming, name: str) -> None:
    node, site, hosts = gaming
    done = goldnode("game-day", CLASS, "-i", str(hosts), "--node", node.name, "--fault", name, site=site)  # fmt: skip
    assert done.returncode == 2
    assert f"fault {name} cannot be made: a container shows" in done.stderr


def test_mtu_is_lowered_and_set_back() -> None:
    # In a network namespace of its own: a lab node may not change its interface.
    fault = BY_NAME["link-mtu"]
    declared = {"baseline": {"network": {"eth0": {"mtu": 9000}}}}
    found = SurveyedNode(declared, {}, {}, 1.0, mtu={"eth0": 9000})
    assert fault.obstacle(found) is None
    made, undone = fault.make(found), fault.undo(found)
    shown = "ip -o link show eth0 | sed 's/.* mtu //; s/ .*//'"
    begin = "ip link add eth0 type veth peer name other; ip link set eth0 mtu 9000"
    script = "\n".join((begin, made, shown, undone, shown, undone, shown))
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["8900", "9000", "9000"], "")


@pytest.mark.parametrize("name", ["hold", "module-denied", "disk-full", "unit-drop-in"])
def test_node_ends_it_by_itself_when_the_controller_is_gone(gaming: Gaming, name: str) -> None:
    node, site, hosts = gaming
    before = differing(node)
    made(node, BY_NAME[name], 15)
    assert differing(node) != before
    second = goldnode("game-day", CLASS, "-i", str(hosts), "--node", node.name, "--fault", "sysctl", site=site)  # fmt: skip
    assert second.returncode == 2
    assert "a game day runs on it" in second.stderr
    end = time.monotonic() + 180
    while node.run("test", "-e", game_day.PLACE, check=False).rc == 0:
        assert time.monotonic() < end, node.run(
            "journalctl", "-u", "game-day-end", "-n", "30"
        ).output
        time.sleep(1)
    assert differing(node) == before


@pytest.mark.parametrize("name", ["hold", "second-program", "unit-drop-in", "gpu-policy"])
def test_boot_ends_it(gaming: Gaming, name: str) -> None:
    node, _, _ = gaming
    # A boot also ends what waits for one.
    before = set(differing(node)) - {"boot.pending"}
    made(node, BY_NAME[name], 3600)
    assert set(differing(node)) - before - {"boot.pending"}
    node.restart()
    node.run("systemctl", "is-system-running", "--wait", check=False)
    assert node.run("test", "-e", game_day.PLACE, check=False).rc == 1
    assert before.issuperset(differing(node))


def test_a_fault_is_not_made_once_its_end_is_disarmed(gaming: Gaming) -> None:
    node, _, _ = gaming
    target = machine(node)
    found = game_day.survey(target)
    fault = BY_NAME["hold"]
    armed = target.run("sh", "-s", stdin=game_day.arm_script(fault, found, "r", 3600).encode())
    assert armed.returncode == 0, armed.stderr
    node.run("systemctl", "stop", "game-day-end.timer")
    done = target.run("sh", "-s", stdin=game_day.make_script(fault, found, "r", now=False).encode())
    assert done.returncode == game_day.NOT_ARMED
    assert game_day.survey(target).held == found.held
    assert game_day.end(target) is None
    assert node.run("test", "-e", game_day.PLACE, check=False).rc == 1
