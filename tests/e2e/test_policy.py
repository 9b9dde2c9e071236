"""GPU policy on a node with simulated boards: set by site.yml, drift detected and fixed, reapplied by the
node's unit, refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded
from tests.simulators.hardware import Scenario
from tests.simulators.hardware import node as simulator

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
PROGRAM = "/usr/lib/goldnode/goldnode-node"
SLOW = "/etc/systemd/system/slow.service"
SLOW_TEXT = """[Unit]
Before=goldnode-policy.service

[Service]
Type=oneshot
ExecStart=/bin/sleep 20

[Install]
WantedBy=multi-user.target
"""
ITEMS = {
    "persistence_mode",
    "clocks.graphics_mhz",
    "clocks.memory_mhz",
    "power_limit_watts",
    "ecc",
    "compute_mode",
    "mig",
}


def policy_findings(node: LabNode) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code of the check, and its findings on policy, by item."""
    done = node.run(PROGRAM, "check", "--format", "json", "--no-write", check=False)
    verdict = json.loads(done.output)
    assert verdict["simulated"] is True
    own = {
        row["id"].partition(".")[2]: row
        for row in verdict["findings"]
        if row["id"].startswith("policy.")
    }
    return done.rc, own


@pytest.fixture(scope="module")
def world_of_one(
    make: Make, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LabNode, Site, Path]:
    """A node with four simulated boards; the tests of this module follow it through its life in their order."""
    node, site = make("policy", "e2e_policy", "debian12_r535")
    exported = goldnode("class", "export", "e2e_policy", site=site)
    assert exported.returncode == 0, exported.stderr
    simulator.install(node, Scenario.of(json.loads(exported.stdout)))
    return node, site, inventory(tmp_path_factory.mktemp("inventory"), {"e2e_policy": [node]})


def test_a_class_that_the_boards_cannot_follow_is_refused_before_anything_is_set(
    world_of_one: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    """The bare node has no program to ask with, so the first run brings it; from then on nothing of such a class is begun."""
    node, site, hosts = world_of_one
    succeeded(site_yml(hosts, site=site))
    before, calls = simulator.state(node), simulator.calls(node)
    run = site_yml(inventory(tmp_path / "wrong", {"e2e_policy_wrong": [node]}), site=site)
    assert run.rc != 0
    assert run.changed["policy"] == 0
    assert "takes 100 to 400 W, not 10 W" in run.output
    assert "has no graphics clock of 1304 MHz" in run.output
    assert "nearest right value is 1305 MHz" in run.output
    assert (simulator.state(node), simulator.calls(node)) == (before, calls)


def test_everything_is_set_and_read_back(world_of_one: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = world_of_one
    _, found = policy_findings(node)
    assert set(found) == ITEMS
    assert {row["outcome"] for row in found.values()} == {"match"}, found
    state = simulator.state(node)
    assert {state[f"gpu{n}.power_limit"] for n in range(4)} == {"350000"}
    assert node.run(PROGRAM, "policy", "assert", check=False).rc == 0
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed["policy"], again.executions) == (0, 1)
    assert (
        node.run("systemctl", "is-enabled", "goldnode-policy.service").output.strip() == "enabled"
    )


DRIFTS = {
    "persistence_mode": ("gpu1.persistence_mode=0", 1),
    "clocks.graphics_mhz": ("gpu2.application_clock.0=1095", 1),
    "power_limit_watts": ("gpu3.power_limit=250000", 1),
    "compute_mode": ("gpu0.compute_mode=0", 1),
    "mig": ("gpu1.mig_current=1 gpu1.mig_pending=1", 2),
}


@pytest.mark.parametrize("item", DRIFTS)
def test_drift_is_found_and_the_next_run_repairs_it(
    world_of_one: tuple[LabNode, Site, Path], item: str
) -> None:
    node, site, hosts = world_of_one
    change, severity = DRIFTS[item]
    simulator.drift(node, change.split())
    code, found = policy_findings(node)
    assert found[item]["outcome"] == "mismatch", found
    assert {name for name, row in found.items() if row["outcome"] != "match"} == {item}
    # What a container cannot show makes 3 of what would be 1; a finding that drains stays 2.
    assert code == {1: 3, 2: 2}[severity]
    assert node.run(PROGRAM, "policy", "assert", check=False).rc == 1
    run = succeeded(site_yml(hosts, site=site))
    assert run.changed["policy"] == 1, "one role has something to do"
    assert {row["outcome"] for row in policy_findings(node)[1].values()} == {"match"}


def test_ecc_asks_for_a_reboot_and_gets_it(world_of_one: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = world_of_one
    simulator.drift(node, ["gpu2.ecc_current=0", "gpu2.ecc_pending=0"])
    code, found = policy_findings(node)
    assert (code, found["ecc"]["got"]) == (2, "GPU 2: off")
    assert "ECC becomes active at the next boot" in succeeded(site_yml(hosts, site=site)).output
    assert policy_findings(node)[1]["ecc"]["got"] == "GPU 2: off, on from the next boot"
    # A boot answers ssh long before its last unit has ended: nothing is judged until goldnode's own have.
    node.run("sh", "-c", f"printf '{SLOW_TEXT}' > {SLOW} && systemctl enable slow.service")
    succeeded(
        site_yml(
            hosts, "-e", "goldnode_reboot=true", "-e", '{"goldnode_accepted": [0, 3]}', site=site
        )
    )
    found = policy_findings(node)[1]
    node.run("sh", "-c", f"systemctl disable slow.service && rm {SLOW}")
    assert {row["outcome"] for row in found.values()} == {"match"}, found


def test_the_unit_sets_it_again_after_a_boot_and_after_a_reload_of_the_driver(
    world_of_one: tuple[LabNode, Site, Path],
) -> None:
    node, _, _ = world_of_one
    node.restart()
    # --wait: the node counts as up before its last units have ended.
    node.run("systemctl", "is-system-running", "--wait", check=False)
    assert (
        node.run(
            "systemctl", "show", "-p", "Result", "--value", "goldnode-policy.service"
        ).output.strip()
        == "success"
    )
    assert any(
        "nvmlDeviceSetPowerManagementLimit 350000 rc=0" in call for call in simulator.calls(node)
    )
    assert node.run(PROGRAM, "policy", "assert", check=False).rc == 0
    node.run("rm", "-r", simulator.VOLATILE)
    assert node.run(PROGRAM, "policy", "assert", check=False).rc == 1
    node.run("systemctl", "restart", "goldnode-policy.service")
    assert node.run(PROGRAM, "policy", "assert", check=False).rc == 0


def test_policy_unit_fails_when_a_gpu_is_lost(world_of_one: tuple[LabNode, Site, Path]) -> None:
    node, _, _ = world_of_one
    simulator.inject(node, ["gpu1.all=error:lost"])
    try:
        assert node.run("systemctl", "restart", "goldnode-policy.service", check=False).rc != 0
        shown = node.run(PROGRAM, "policy", "apply", check=False)
        assert shown.rc == 3
        assert "GPU 1: GPU is lost (return code 15)" in shown.output
        assert policy_findings(node)[0] == 2  # a GPU that is lost drains the node
    finally:
        simulator.clear(node)
    node.run("systemctl", "restart", "goldnode-policy.service")


def test_the_nodes_policy_can_be_exported(world_of_one: tuple[LabNode, Site, Path]) -> None:
    node, _, _ = world_of_one
    simulator.drift(node, ["gpu3.power_limit=300000"])
    found = json.loads(node.run(PROGRAM, "policy", "export", "--format", "json").output)["policy"]
    assert found["clocks"] == {"graphics_mhz": 1305, "memory_mhz": 1215}
    assert [row["power_limit_watts"] for row in found["overrides"]] == [300]


def test_another_class_locked_clocks_and_a_mig_layout_that_a_boot_takes_away(
    world_of_one: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, _ = world_of_one
    hosts = inventory(tmp_path / "locked", {"e2e_policy_locked": [node]})
    succeeded(site_yml(hosts, site=site))
    state = simulator.state(node)
    assert {state[f"gpu{n}.locked_graphics.1"] for n in range(4)} == {"1200"}
    _, found = policy_findings(node)
    assert found["clocks.graphics_mhz"]["outcome"] == "not_exposed"
    assert found["clocks.graphics_mhz"]["got"].startswith("GPU 0, 1, 2, 3: set at ")
    assert found["mig"]["outcome"] == "match"
    node.restart()
    node.run("systemctl", "is-system-running", "--wait", check=False)
    _, found = policy_findings(node)
    assert (found["mig"]["outcome"], found["clocks.graphics_mhz"]["outcome"]) == (
        "match",
        "not_exposed",
    )
    node.run("rm", "-r", simulator.VOLATILE)
    _, found = policy_findings(node)
    assert found["clocks.graphics_mhz"]["got"].endswith("not set since the driver was loaded")
    assert found["mig"]["outcome"] == "mismatch"
    assert succeeded(site_yml(hosts, site=site)).changed["policy"] == 1
    assert succeeded(site_yml(hosts, site=site)).changed["policy"] == 0
