"""Whole rollouts on real nodes: systemd in containers, ssh, Ansible, apt, dkms, and a store.

Six nodes of a class with a GPU driver, in three waves. The archive has stand-in packages and the GPUs do not exist;
kernels cannot boot in a container, so the boot is a restart of it, and `goldnode_accepted` takes exit code 3.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import CATALOG, World
from tests.e2e.support import BIN, Site, command, environment, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.fleet.rollout.document import loads
from goldnode.fleet.store import log, rollout_trace, rollouts
from goldnode.fleet.store.database import StoreDatabase
from goldnode.lock.model import load_lock
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

STACK, CLASS = "debian12_r535", "e2e_r535"
NEWER = (*apt_archive.DEFAULT, "newer")
BROKEN = (*NEWER, "broken")  # and what the nodes have, for the way back
DOCUMENT = """\
schema: goldnode.rollout/1
rollout: {name}
class: {class_}
from: {{stack: {stack}, lock: "{origin}"}}
to: {{stack: {stack}, lock: "{target}"}}
pools:
  canary: {{nodes: 2, spread: rack}}
waves:
- {{name: canary, pool: canary, soak: 5s}}
- {{name: first, nodes: 2, soak: 5s}}
- {{name: all, percent: 100%}}
limits: {{planned: 2, failed: 3, total: 4, per: {{rack: 1}}}}
require:
- boot: {{base_rate: 0.2%}}
drain: {{wait: 30m}}
timeout: 30m
"""
# A site's own drain: a file for each node that is out, and a line for each call.
DRAIN = """#!/bin/sh
echo "drain $1 $2" >>{log}
[ ! -e {out}/$1 ] || {{ echo "reason: $(cat {out}/$1)"; exit 3; }}
echo "$2" >{out}/$1
"""
RESUME = """#!/bin/sh
echo "resume $1" >>{log}
rm -f {out}/$1
"""


@dataclass
class Fleet:
    """Six nodes, the site with the present lock, and where the store is."""

    world: World
    nodes: list[LabNode]
    site: Site
    directory: Path
    hosts: Path

    @property
    def lock(self) -> str:
        """Digest of the lock of the site."""
        assert self.site.locks is not None
        return load_lock(self.site.locks / f"{STACK}.lock.yml").digest

    @property
    def drained(self) -> list[str]:
        """The nodes that are out of service."""
        return sorted(path.name for path in (self.directory / "out").iterdir())

    def locked(self, name: str, groups: tuple[str, ...]) -> Fleet:
        """Publish an archive with these groups, lock it in a directory of its own, and return the fleet with that lock."""
        self.world.publish(groups)
        locks = self.directory / f"locks-{name}"
        locks.mkdir()
        site = replace(self.site, locks=locks)
        self.world.lock(site, self.nodes[0], STACK)
        return replace(self, site=site)

    def document(self, name: str, origin: str, target: str) -> Path:
        path = self.directory / f"{name}.yml"
        text = DOCUMENT.format(name=name, class_=CLASS, stack=STACK, origin=origin, target=target)
        path.write_text(text, encoding="utf-8")
        return path

    def start(self, document: Path) -> subprocess.Popen[str]:
        """Start a controller, in a directory of its own as a user has one."""
        words = [
            "rollout",
            "run",
            str(document),
            "-i",
            str(self.hosts),
            "--jobs",
            "4",
            "--tick",
            "0.5",
        ]
        return subprocess.Popen(
            [str(BIN / "goldnode"), *words],
            cwd=self.directory,
            env=environment(self.site),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, document: Path) -> tuple[int, str]:
        process = self.start(document)
        output, _ = process.communicate(timeout=2400)
        return process.returncode, output

    def violations(self, document: Path) -> list[str]:
        """What the rules of the simulator refuse in the trace of this rollout."""
        store = StoreDatabase(str(self.directory / ".goldnode/fleet.db"))
        with store.read() as connection:
            found = rollout_trace.violations(
                connection, loads(document.read_text(encoding="utf-8")).settings
            )
        store.close()
        return found

    def touched(self, name: str) -> set[str]:
        """The nodes that a rollout was granted."""
        store = StoreDatabase(str(self.directory / ".goldnode/fleet.db"))
        with store.read() as connection:
            lines = log.entries(connection, rollout=name)
        store.close()
        return {line["subject"] for line in lines if line["action"] == "Grant"}

    def locks(self) -> set[str]:
        """The locks that the nodes state."""
        return {
            str(yaml.safe_load(node.read("/etc/goldnode/class.json"))["lock"]["digest"])
            for node in self.nodes
        }


@pytest.fixture(scope="module")
def fleet(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    nodes = [world.node(f"r{number}", CLASS) for number in range(1, 7)]
    site = world.site("rollout")
    world.lock(site, nodes[0], STACK)
    hosts = inventory(directory / "inventory", {CLASS: nodes})
    (directory / "out").mkdir()
    programs = {}
    for name, text in (("drain", DRAIN), ("resume", RESUME)):
        programs[name] = directory / name
        programs[name].write_text(
            text.format(log=directory / "calls.log", out=directory / "out"), encoding="utf-8"
        )
        programs[name].chmod(0o755)
    content = yaml.safe_load((hosts / "hosts.yml").read_text())
    content["all"]["vars"] |= {
        "goldnode_accepted": [0, 3],
        "goldnode_drain": "command",
        "goldnode_drain_command": [str(programs["drain"])],
        "goldnode_resume_command": [str(programs["resume"])],
    }
    for number, node in enumerate(nodes):
        content["all"]["children"][CLASS]["hosts"][node.name]["goldnode_rack"] = f"rack{number % 3}"
    (hosts / "hosts.yml").write_text(yaml.safe_dump(content))
    found = Fleet(world, nodes, site, directory, hosts)
    succeeded(
        site_yml(hosts, "-e", "goldnode_reboot=true", "-e", "goldnode_reboot_batch=100%", site=site)
    )
    (directory / "calls.log").unlink()
    yield found
    for node in nodes:
        node.destroy()


def test_good_change_reaches_all_nodes_although_its_controller_is_killed(fleet: Fleet) -> None:
    after = fleet.locked("newer", NEWER)
    document = after.document("good", fleet.lock, after.lock)
    first = after.start(document)
    lines = []
    assert first.stdout is not None
    for line in first.stdout:
        lines.append(line)
        if "the change begins" in line:
            break
    time.sleep(20)  # in the middle of the application
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    code, output = after.run(document)
    assert code == 0, "".join(lines) + output
    assert after.locks() == {after.lock}
    assert after.drained == []
    assert after.violations(document) == []
    calls = (fleet.directory / "calls.log").read_text().splitlines()
    assert len([call for call in calls if call.startswith("resume")]) == 6
    for node in fleet.nodes:
        assert "6.1.0-903-amd64" in node.run("sh", "-c", "ls /lib/modules").output


def test_kernel_whose_module_does_not_build_is_stopped_in_the_canary_wave_and_rolled_back(
    fleet: Fleet,
) -> None:
    before = replace(fleet, site=replace(fleet.site, locks=fleet.directory / "locks-newer"))
    after = fleet.locked("broken", BROKEN)
    document = after.document("bad-kernel", before.lock, after.lock)
    code, output = after.run(document)
    assert code == 1, output
    assert "rolled back" in output
    assert "is denied: node_class: packages.repair dpkg: apt cannot finish" in output, output
    assert "on 2 nodes of the first two waves" in output
    assert "too few arguments to function 'pci_resize_resource'" in output
    assert len(after.touched("bad-kernel")) == 2
    assert after.locks() == {before.lock}
    assert after.drained == []
    assert after.violations(document) == []
    store = StoreDatabase(str(fleet.directory / ".goldnode/fleet.db"))
    with store.read() as connection:
        loaded = rollouts.load(connection, loads(document.read_text(encoding="utf-8")).settings)
    store.close()
    assert after.lock in loaded.state.denied


def test_state_that_fails_its_boot_check_is_stopped_in_the_canary_wave_and_rolled_back(
    fleet: Fleet,
) -> None:
    before = replace(fleet, site=replace(fleet.site, locks=fleet.directory / "locks-newer"))
    # The class of this version of the site expects a service that no package of its lock has.
    catalog = fleet.directory / "catalog"
    shutil.copytree(CATALOG, catalog)
    path = catalog / f"classes/{CLASS}.yml"
    path.write_text(
        path.read_text() + "baseline: {services: [exporter.service]}\n", encoding="utf-8"
    )
    after = replace(fleet, site=replace(fleet.site, catalog=catalog))
    document = after.document("bad-check", before.lock, after.lock)
    code, output = after.run(document)
    assert code == 1, output
    assert "is denied: service.active: on 2 nodes of the first two waves" in output, output
    assert len(after.touched("bad-check")) == 2
    assert after.locks() == {before.lock}
    assert after.drained == []
    assert after.violations(document) == []
    # The denied state is refused by site.yml too, before it contacts a node.
    done = subprocess.run(
        command(after.hosts),
        env=environment(after.site)
        | {"GOLDNODE_FLEET_STORE": str(fleet.directory / ".goldnode/fleet.db")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "[denied]" in done.stdout, done.stdout[-3000:]
