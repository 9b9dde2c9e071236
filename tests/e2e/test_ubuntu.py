"""Ubuntu 24.04 stack from the stand-in archive, on a Debian 13 posing as Ubuntu: tests names, relations and
flow only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.lock.model import load_lock
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

RELEASE, DRIVER = "6.8.0-902-generic", "580.178.04"
KERNEL = {f"linux-{kind}-{RELEASE}" for kind in ("image", "headers", "modules", "modules-extra")}
Converged = tuple[LabNode, Site, Path, str]


@pytest.fixture(scope="module")
def converged(
    make: Callable[..., tuple[LabNode, Site]], tmp_path_factory: pytest.TempPathFactory
) -> Converged:
    """A node of the class after its first run: node, site, inventory, what the run printed."""
    node, site = make("ubuntu", "e2e_ubuntu", "ubuntu2404_r580", os_name="ubuntu2404-standin")
    assert "SIMULATED by goldnode" in node.read("/etc/os-release"), (
        "a stand-in must say that it is one"
    )
    hosts = inventory(tmp_path_factory.mktemp("inventory"), {"e2e_ubuntu": [node]})
    return node, site, hosts, succeeded(site_yml(hosts, site=site)).output


def installed(node: LabNode) -> dict[str, str]:
    """Installed packages and their versions."""
    rows = node.shell(
        "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'"
    ).output.splitlines()
    return {
        name: version
        for state, name, version in (row.split(" ") for row in rows)
        if state == "installed"
    }


def test_the_lock_names_every_package_and_where_it_is(converged: Converged) -> None:
    _, site, _, _ = converged
    assert site.locks is not None
    lock = load_lock(site.locks / "ubuntu2404_r580.lock.yml")
    assert (lock.kernel_release, lock.driver_version) == (RELEASE, DRIVER)
    rows = {package.name: package for package in lock.packages}
    assert {rows[name].part for name in KERNEL} == {"kernel"}
    assert rows[f"linux-image-{RELEASE}"].archive == "ubuntu-updates", (
        "archives of one address are told apart"
    )
    assert rows["docker.io"].archive == "ubuntu"
    assert rows["nvidia-dkms-580-open"].archive == "nvidia-cuda"
    assert (rows["nvidia-fabricmanager"].version, rows["nvidia-fabricmanager"].when) == (
        f"{DRIVER}-1+standin1",
        "nvswitch",
    )


def test_the_node_has_kernel_driver_pins_and_fabric_manager(converged: Converged) -> None:
    node, _, _, _ = converged
    have = installed(node)
    assert set(have) >= KERNEL
    assert node.run("modinfo", "-k", RELEASE, "-F", "version", "nvidia").output.strip() == DRIVER
    assert "GPL" in node.run("modinfo", "-k", RELEASE, "-F", "license", "nvidia").output
    assert have["nvidia-fabricmanager"].startswith(DRIVER), (
        "the platform has NVSwitch, so its fabric manager is the driver's"
    )
    assert "nvidia-driver-pinning-580" in have
    assert node.run("dpkg", "--audit").output == ""
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    wrong = [finding["id"] for finding in verdict["findings"] if finding["outcome"] == "mismatch"]
    assert (wrong, verdict["exit_code"], verdict["simulated"]) == (["boot.pending"], 3, True)


def test_a_second_run_changes_nothing(converged: Converged) -> None:
    _, site, hosts, _ = converged
    run = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (run.changed["ubuntu"], run.executions) == (0, 1)


def test_the_archive_moves_on_and_the_stack_does_not(world: World, converged: Converged) -> None:
    node, _, _, _ = converged
    archive = world.publish({*apt_archive.DEFAULT, apt_archive.NEWER})
    node.put(
        {
            "/etc/apt/sources.list.d/ubuntu.sources": archive.sources(
                world.server.url, "noble", nvidia=True
            ).encode(),
            f"/etc/apt/keyrings/{apt_archive.KEY}": archive.key.read_bytes(),
            "/etc/apt/apt.conf.d/99test": b'Unattended-Upgrade::Origins-Pattern { "origin=*"; };\n',
        }
    )
    node.shell(
        "rm -f /etc/apt/sources.list.d/goldnode-*; apt-get update; apt-get install -y libstandin-base=1.0-1+standin1"
    )
    document = json.loads(node.read("/etc/goldnode/class.json"))
    stack = {package["name"] for package in document["packages"]} | set(document["fence"])
    held = set(node.run("apt-mark", "showhold").output.split())
    assert {package["name"] for package in document["packages"]} <= held

    def apt_moves() -> set[str]:
        return set(
            re.findall(r"^Inst (\S+)", node.shell("apt-get -s dist-upgrade").output, re.MULTILINE)
        )

    def unattended_moves() -> set[str]:
        found = re.search(
            r"Packages that will be upgraded: (.*)",
            node.shell("unattended-upgrade --dry-run -v 2>&1").output,
        )
        return set(found[1].split()) if found else set()

    for moves in (apt_moves, unattended_moves):
        assert "libstandin-base" in moves(), f"{moves.__name__}: base packages take their updates"
        assert not moves() & stack, moves.__name__
    refused = node.run("apt-get", "-s", "install", "linux-generic", check=False)
    assert refused.rc != 0, "the metapackage would bring the newer kernel"
    node.shell("rm /etc/apt/preferences.d/goldnode-stack")
    offered = node.shell("apt-get -s install linux-generic").output
    assert "linux-image-6.8.0-903-generic" in offered, (
        "let go, and still nothing moves: the test proves nothing"
    )


def test_classes_and_check_report_where_a_stack_was_exercised(converged: Converged) -> None:
    node, site, _, _ = converged
    row = next(
        line
        for line in goldnode("classes", site=site).stdout.splitlines()
        if line.startswith("e2e_ubuntu")
    )
    assert "local-archive" in row
    assert "simulated hardware" in row
    assert (
        "local-archive"
        in node.run("/usr/lib/goldnode/goldnode-node", "check", "--no-write", check=False).output
    )


def test_removal_takes_everything_away(converged: Converged) -> None:
    node, site, hosts, _ = converged
    node.shell("rm -f /etc/apt/sources.list.d/ubuntu.sources")
    succeeded(site_yml(hosts, "-e", "goldnode_state=absent", site=site))
    left = [name for name in installed(node) if "nvidia" in name or name in KERNEL]
    assert left == []
    assert node.run("test", "-e", f"/lib/modules/{RELEASE}", check=False).rc != 0
