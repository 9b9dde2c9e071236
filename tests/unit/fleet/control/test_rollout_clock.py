"""The clock of a machine is set back or forward in the middle of a rollout: it goes on, and grants nothing twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.control.controlled import (
    START,
    TICK,
    SimulatedWorker,
    World,
    controlled,
    violations,
)
from tests.unit.fleet.control.test_paused_controllers import json_attempt
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control.clock import SteadyClock, machine_time
from goldnode.fleet.control.controller import (
    ControllerParts,
    ControllerReport,
    ControllerSettings,
    RolloutController,
)
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.rollout.model import Answer, NodeObservation, RolloutPhase, SchedulerObservation
from goldnode.fleet.store import log
from goldnode.fleet.store.database import StoreDatabase

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))


@dataclass
class WrongClock:
    """A machine clock, and one that is never set."""

    at: float = START
    elapsed: float = 0.0

    def pass_(self, seconds: float) -> None:
        self.at += seconds
        self.elapsed += seconds

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.at, lambda: self.elapsed)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e6, 1e6)), max_size=30))
def test_time_never_goes_back_and_meets_the_machine_again(steps: list[tuple[float, float]]) -> None:
    machine = WrongClock()
    clock = machine.steady()
    last = clock()
    for seconds, jump in steps:
        machine.pass_(seconds)
        machine.at += jump
        now = clock()
        assert now >= last
        assert now >= machine.at
        assert clock.behind() == pytest.approx(now - machine.at)
        last = now
    machine.pass_(2 * clock.behind() + 1)
    assert clock() == pytest.approx(machine.at)
    assert machine_time(clock) == machine.at


def test_time_goes_on_from_that_of_the_store() -> None:
    machine = WrongClock()
    clock = machine.steady()
    clock.follow(START - 5)
    assert clock() == START
    clock.follow(START + 100)
    assert clock() == START + 100
    machine.pass_(10)
    assert clock() == START + 105


def test_job_that_ends_soon_keeps_a_node_busy_where_the_machine_is_behind(tmp_path: Path) -> None:
    machine = WrongClock()
    clock = machine.steady()
    clock.follow(START + 3600)
    answers = {
        "scontrol": "NodeName=n1 State=ALLOCATED+DRAIN Reason=x [root@2026-01-01T00:00:00]\n",
        "squeue": f"n1|{START + 600:.0f}\n",
    }
    from goldnode.fleet.drain.choice import drain_settings

    nodes = {"n1": drain_settings("n1", {"goldnode_drain": "slurm"})}
    reader = SiteSchedulers(nodes, ask=lambda words: answers[words[0]], clock=clock)
    [seen] = reader.read(["n1"])
    assert seen.at == START + 3600
    assert seen.free_at >= seen.at + 600
    ends = set()
    for _ in range(20):
        machine.pass_(20)
        [seen] = reader.read(["n1"])
        assert seen.free_at > seen.at
        ends.add(seen.free_at)
    assert len(ends) <= 2, "an unchanged node is no news at each reading"


@dataclass
class SetWorld(World):
    """A world whose machines have the time of `machine`; `now` is what passes for everybody."""

    offset: float = 0.0
    clock: SteadyClock = field(default_factory=SteadyClock)

    def restart(self) -> SteadyClock:
        self.clock = SteadyClock(lambda: self.now + self.offset, lambda: self.now)
        return self.clock

    def seen(self, name: str) -> SchedulerObservation:
        node = self.nodes[name]
        return SchedulerObservation(name, self.clock(), node.in_service, 0.0, node.reason)

    def reported(self, name: str, verdict: Answer, **more: Any) -> NodeObservation:
        node = self.nodes[name]
        return NodeObservation(name, self.clock(), node.boot_id, node.digest, verdict, **more)


def run(
    store: StoreDatabase, found_settings: Any, world: SetWorld, jumps: dict[int, float]
) -> ControllerReport:
    """Run to the end, or for 400 ticks. `jumps`: tick -> offset of the clock. A controller takes over every 23 ticks."""
    report, controller = ControllerReport(False), None
    for tick in range(400):
        world.offset = jumps.get(tick, world.offset)
        if tick % 23 == 0:
            if controller is not None:
                controller.close()
            own = ControllerSettings(f"c/{tick}", quiet=0.0, clock=world.restart())
            controller = RolloutController(
                store, found_settings, ControllerParts(SimulatedWorker(world)), own
            )
        assert controller is not None
        report = controller.tick()
        world.now += TICK / 2
        if report.ended:
            break
    assert controller is not None
    controller.close()
    return report


DAY = 86400.0


@pytest.mark.parametrize(
    "jumps",
    [
        {10: -DAY * 30},
        {10: DAY * 30, 60: 0.0},
        {5: -3600.0, 15: 3600.0, 30: -DAY},
        {24: -DAY, 47: DAY, 48: -DAY},
    ],
    ids=["back", "forward-and-back", "to-and-fro", "at-each-controller"],
)
def test_rollout_ends_whatever_the_clocks_do(
    tmp_path: Path, migrated: Path, jumps: dict[int, float]
) -> None:
    where = str(tmp_path / "fleet.db")
    (tmp_path / "fleet.db").write_bytes(migrated.read_bytes())
    found = controlled(tmp_path, where, 12, *FAST)
    world = SetWorld(found.world.names, found.world.run)
    store = found.store()
    report = run(store, found.settings, world, jumps)
    assert report.phase is RolloutPhase.COMPLETED, report
    with store.read() as connection:
        rows = log.entries(connection, rollout="r1")
    store.close()
    grants = [
        (row["subject"], json_attempt(row["content"])) for row in rows if row["action"] == "Grant"
    ]
    assert sorted(grants) == [(name, 1) for name in sorted(world.names)], "each node once"
    epochs = [row["epoch"] for row in rows if row["action"] == "TakeOver"]
    assert epochs == list(range(1, len(epochs) + 1))
    assert violations(found) == []
    assert {node.digest for node in world.nodes.values()} == {documents.NEW}
    for line in rows:
        json.loads(line["content"])
