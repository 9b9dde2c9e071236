"""The ladder on real parts: slurmctld, slurmd, Redfish's emulator, and a QEMU machine. The GPU is simulated.

A hung driver climbs from the reset of the GPU to the power cycle. The node is one process of
QEMU: its boot id is that of the process, and its drain is real.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import slurm
from tests.unit.fleet.control.test_bmc import Emulator, emulator, settings, sushy_tools
from tests.unit.fleet.rollout.ladder_world import verdict

from goldnode.core.site import SiteLadder
from goldnode.documents.verdict import Verdict
from goldnode.fleet.control.bmc import PowerTimes
from goldnode.fleet.control.ladder import LadderController
from goldnode.fleet.control.ladder_nodes import LadderDrains, LadderNodes
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.rollout.ladder import (
    CasePhase,
    LadderBounds,
    LadderMode,
    LadderPolicy,
)
from goldnode.fleet.store import nodes, repairs
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode

__all__ = ["emulator", "sushy_tools"]  # fixtures

CLASS = "h100"  # that of the verdicts
pytestmark = [pytest.mark.real, pytest.mark.long]


@dataclass
class Machine:
    """A node that is a QEMU machine, with a simulated GPU: it duck-types SshNode."""

    emulator: Emulator
    bin: Path
    cured_by_power: bool
    hung_since: int | None = None  # machine on which the driver hangs
    name: str = "n1"

    @property
    def hung(self) -> bool:
        """Return whether the simulated driver hangs: until another machine runs, or always."""
        return not self.cured_by_power or self.emulator.machine == self.hung_since

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the ladder on the node, as far as it has one."""
        machine = self.emulator.machine
        if machine is None:
            return subprocess.CompletedProcess(command, 255, b"", b"ssh: no route to host")
        if command[-1] == "/proc/sys/kernel/random/boot_id":
            return subprocess.CompletedProcess(command, 0, f"boot-{machine}".encode(), b"")
        if command[:2] == ("systemctl", "reboot"):
            return subprocess.CompletedProcess(command, 0, b"", b"")  # it hangs in the driver
        if command[0] == "sh" and "nvidia-smi --gpu-reset" in command[-1]:
            script = command[-1].replace("/run/goldnode", str(self.bin))
            return subprocess.run(
                ["sh", "-c", script],
                capture_output=True,
                check=False,
                env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"},
            )
        if command[0] == "sh" and "modprobe" in command[-1]:
            return subprocess.CompletedProcess(command, 14, b"Module nvidia is in use", b"")
        return subprocess.CompletedProcess(command, 0, b"simulated\n", b"")


class SimulatedVerdicts(LadderNodes):
    """The reader of the product, with verdicts of a simulated GPU."""

    machine: Machine

    def _verdict(self, name: str, case: object) -> tuple[float, Verdict | None]:
        began, number = self.clock(), self.machine.emulator.machine
        if number is None:
            return began, None
        findings = ["gpu.recovery_action"] if self.machine.hung else []
        return began, Verdict.model_validate(verdict(findings, number))


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.SlurmCluster]:
    why = slurm.missing()
    if why:
        pytest.skip(why)
    with slurm.cluster(2) as running:
        yield running


def controller(
    cluster: slurm.SlurmCluster, machine: Machine, migrated: Path, tmp_path: Path
) -> LadderController:
    path = tmp_path / "fleet.db"
    shutil.copy(migrated, path)
    store = StoreDatabase(str(path))
    limits = {CLASS: FleetLimits("1", "1", "2")}
    store.run(
        lambda connection: nodes.put(
            connection,
            [StoredNode("n1", CLASS), StoredNode("n2", CLASS)],
            limits,
            "test",
            time.time(),
        )
    )
    own = DrainSettings("slurm", "n1")
    bmc = settings(tmp_path).model_copy(update={"address": machine.emulator.address})
    site = SiteLadder(mode="run").model_copy(update={"bmc": bmc})
    seen = SimulatedVerdicts(
        lambda name: machine,  # type: ignore[arg-type,return-value]
        SiteSchedulers({"n1": own}),
        LadderDrains("", {"n1": own}),
        {"n1": {"class": CLASS}},
        tmp_path / "repairs",
        can=frozenset(("gpu-reset", "module-reload", "reboot", "power-cycle")),
    )
    seen.machine = machine
    seen.tools = RungTools(
        site,
        lambda name: machine,  # type: ignore[arg-type,return-value]
        guard=seen.guard,
        resolve=lambda name: tmp_path / name,
        class_=lambda name: CLASS,
        times=PowerTimes(poll=0.5, again=20.0, settle=3.0, limit=120.0),
        boot_limit=20.0,
    )
    policy = LadderPolicy(LadderMode.RUN, bounds=LadderBounds(check=30.0))
    return LadderController(store, {"n1": policy}, seen, seen)


def stub(tmp_path: Path) -> Path:
    """Return a directory with an nvidia-smi whose driver hangs, and a systemctl without services."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (
        (
            "nvidia-smi",
            "echo 'GPU Reset couldn'\"'\"'t run because the driver hangs (simulated)'; exit 15",
        ),
        ("systemctl", "exit 3"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)
    return folder


def ticked(own: LadderController, until: object, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not until():  # type: ignore[operator]
        assert time.monotonic() < end, (own.state.cases, own.state.rungs)
        own.tick()
        time.sleep(0.3)


def test_hung_driver_climbs_from_reset_to_power_cycle(
    cluster: slurm.SlurmCluster,
    emulator: Emulator,
    migrated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.conf)
    cluster.reset()
    machine = Machine(emulator, stub(tmp_path), True)
    own = controller(cluster, machine, migrated, tmp_path)
    assert own.hands.tools is not None  # type: ignore[attr-defined]
    bmc = own.hands.tools._bmc("n1")  # type: ignore[attr-defined]
    bmc.switch(True)
    while emulator.machine is None:
        bmc.is_on()
        time.sleep(0.5)
    machine.hung_since = emulator.machine
    job = cluster.job("n1", 5, "1")
    ticked(own, lambda: own.state.cases.get("n1") and own.state.cases["n1"].leave)
    # The job ends by itself: no rung has begun meanwhile.
    while job in cluster.call("squeue", "--noheader", "--format=%A"):
        assert own.state.rungs == []
        own.tick()
        time.sleep(0.3)
    ticked(own, lambda: own.state.ended)
    assert own.state.ended[0].phase is CasePhase.CURED
    assert own.state.ended[0].rung == "power-cycle"
    assert cluster.settled("n1")[0] == "IDLE"
    rows = [(row.rung, row.outcome.partition(":")[0].partition(";")[0]) for row in own.state.rungs]
    assert rows == [
        ("gpu-reset", "failed"),
        ("module-reload", "failed"),
        ("reboot", "failed"),
        ("power-cycle", "power cycled"),
    ]
    # The reset was carried out, and refused by the driver: its script is no mere syntax error.
    assert "the driver hangs (simulated)" in own.state.rungs[0].outcome
    assert len(list((tmp_path / "repairs/n1").glob("*/evidence.json"))) >= 4
    with own.store.read() as connection:
        assert repairs.held(connection) == set()
    assert sys.exc_info() == (None, None, None)
