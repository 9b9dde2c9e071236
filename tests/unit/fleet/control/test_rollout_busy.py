"""Busy nodes and drains of others, as `plan` and the controller see them: nobody waits, and nobody's drain is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import ControlledRollout, World, controlled
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.documents import NEW
from tests.unit.fleet.rollout.schedules import Fleet, approve_all

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.rollout import faults
from goldnode.fleet.rollout.model import (
    Action,
    Finish,
    RolloutPhase,
    SchedulerObservation,
    StepPhase,
)
from goldnode.fleet.rollout.plan import BUSY_LONG
from goldnode.fleet.rollout.simulate import SimulatedRun, Simulation, made_up
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.rollout.steps import TAKEN
from goldnode.node.ground import drained

DAY = 86400.0
WAIT = ("timeout: 1h", "timeout: 1h\ndrain: {wait: 4h}")
FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))


def granted(directory: Path, *changes: tuple[str, str]) -> tuple[Fleet, str]:
    """Return a fleet and one of its nodes with a grant."""
    fleet = Fleet(documents.settings(directory, *changes))
    approve_all(fleet)
    fleet.settle()
    return fleet, next(iter(fleet.state.active))


def see(fleet: Fleet, node: str, in_service: bool, free_at: float = 0.0, reason: str = "") -> None:
    """Let the scheduler show a state, and plan."""
    item = SchedulerObservation(node, fleet.now, in_service, free_at, reason)
    fleet.state.record_observation(fleet.observations, item)
    fleet.settle()


def own(fleet: Fleet) -> str:
    return drained.reason(fleet.state.run, "c", "2026-11-02T08:00:00Z", "rollout r1")


def test_node_is_changed_when_it_was_seen_idle_and_not_when_its_job_should_have_ended(
    tmp_path: Path,
) -> None:
    fleet, name = granted(tmp_path)
    fleet.advance(10)
    see(fleet, name, False, fleet.now + 100, own(fleet))
    fleet.advance(200)  # the job's time is over: it may still run
    fleet.settle()
    assert fleet.state.steps[name].phase is StepPhase.GRANTED
    see(fleet, name, False, 0.0, own(fleet))
    assert fleet.state.steps[name].phase is StepPhase.APPLYING


def test_person_who_drains_between_grant_and_drain_keeps_the_node(tmp_path: Path) -> None:
    fleet, name = granted(tmp_path)
    fleet.advance(10)
    see(fleet, name, False, 0.0, "bad fan; ask ann")
    step = fleet.state.steps[name]
    assert (step.phase, step.cause) == (StepPhase.RETURNING, TAKEN)
    fleet.advance(10)
    see(fleet, name, False, 0.0, "bad fan; ask ann")
    assert name not in fleet.state.active
    assert fleet.state.ledger.of(name, "outside") is not None
    assert fleet.digest[name] != NEW
    fleet.advance(10)
    see(fleet, name, True)  # she returns it: the rollout takes it now
    assert fleet.state.steps[name].phase is StepPhase.GRANTED


def test_note_of_a_node_in_service_is_in_the_store_before_its_drain(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path))
    for name in fleet.names:
        item = SchedulerObservation(name, 0.0, True, 0.0, f"note of {name}")
        fleet.state.record_observation(fleet.observations, item)
    fleet.settle()
    assert fleet.state.active
    for name, step in fleet.state.active.items():
        assert step.prior is not None
        assert step.prior.reason == f"note of {name}"


@dataclass
class WorldScheduler:
    """A scheduler that shows the world; `away`: it does not answer."""

    world: World
    away: bool = False

    def asks(self, name: str) -> bool:
        return True

    def read(self, names: Iterable[str]) -> list[SchedulerObservation]:
        if self.away:
            raise GoldnodeError(
                "scontrol show node failed: Unable to contact slurm controller", remedy="wait"
            )
        return [self.world.seen(name) for name in names]


def with_scheduler(found: ControlledRollout) -> tuple[RolloutController, WorldScheduler]:
    """Return a controller that reads the scheduler at each tick."""
    store = found.store()
    controller = found.controller(store)
    scheduler = WorldScheduler(found.world)
    parts = ControllerParts(controller.parts.worker, scheduler)
    times = ControllerSettings("c/1", scheduler=0.0, quiet=0.0, clock=lambda: found.world.now)
    return RolloutController(store, found.settings, parts, times), scheduler


def test_drain_that_a_stopped_controller_made_too_late_is_ended(
    tmp_path: Path, migrated: Path
) -> None:
    shutil.copy(migrated, tmp_path / "fleet.db")
    found = controlled(tmp_path, str(tmp_path / "fleet.db"), 12, *FAST)
    controller, _ = with_scheduler(found)
    late = None
    for _ in range(600):
        report = controller.tick()
        found.world.now += 60
        if report.ended and all(node.in_service for node in found.world.nodes.values()):
            break
        if late is None and found.world.served:
            late = next(
                iter(found.world.served)
            )  # returned; now the stopped controller drains it again
            node = found.world.nodes[late]
            node.in_service = False
            node.reason = drained.reason(
                found.world.run, "old", "2026-11-02T08:00:00Z", "rollout r1"
            )
    controller.close()
    assert late is not None
    assert all(node.in_service and not node.reason for node in found.world.nodes.values())
    assert {node.digest for node in found.world.nodes.values()} == {NEW}
    _, end = found.history()
    assert (end["phase"], end["out"]) == (RolloutPhase.COMPLETED, 0)


def test_rollout_does_not_begin_while_its_scheduler_is_away(tmp_path: Path, migrated: Path) -> None:
    shutil.copy(migrated, tmp_path / "fleet.db")
    found = controlled(tmp_path, str(tmp_path / "fleet.db"), 12, *FAST)
    controller, scheduler = with_scheduler(found)
    scheduler.away = True
    for _ in range(10):
        report = controller.tick()
        found.world.now += 60
    assert report.phase is RolloutPhase.QUEUED
    assert any("Unable to contact slurm controller" in wait.reason for wait in report.waits)
    controller.close()


# A thousand simulated nodes


class OneBusy(Simulation):
    """A simulation in which one node has a job of 24 hours."""

    busy = ""

    def _scheduler(self, node: str, time: float, in_service: bool, free_at: float = 0.0) -> None:
        late = node == self.busy and in_service and time < DAY
        super()._scheduler(node, time, in_service, DAY if late else free_at)


def simulated(
    directory: Path, busy: str, seed: int, late: str = "24h"
) -> tuple[SimulatedRun, dict[str, float], str | None]:
    """Return a run of 1,000 nodes, when each node was done, and why the busy node waited."""
    limits = ("planned: 4, failed: 8, total: 10", "planned: 60, failed: 80, total: 140")
    wait = (WAIT[0], WAIT[1].replace("4h", f"4h, late: {late}"))
    settings = documents.settings(directory, wait, limits, *FAST)
    done: dict[str, float] = {}
    cause: list[str | None] = []

    def watch(state: RolloutState, action: Action, now: float) -> None:
        if isinstance(action, Finish) and action.phase is StepPhase.DONE:
            done[action.node] = now
        elif isinstance(action, Finish) and action.node == busy:
            cause.append(action.cause)

    run = OneBusy(settings, made_up(1000, settings.origin), faults.parse(()), seed, watch)
    run.busy = busy
    return run.run(), done, cause[0] if cause else None


@pytest.mark.parametrize("seed", [1, 2])
def test_busy_node_of_a_thousand_does_not_delay_the_others(tmp_path: Path, seed: int) -> None:
    without, before, _ = simulated(tmp_path, "", seed)
    busy = next(iter(before))  # of the first wave
    found, done, cause = simulated(tmp_path, busy, seed)
    assert (without.end, found.end) == ("completed", "completed")
    assert without.idle_median <= 120
    assert found.idle_median <= 120
    if cause is not None:
        assert cause == BUSY_LONG
    assert done[busy] >= DAY
    share = sorted(done.values())[990] / sorted(before.values())[990]
    assert share < 1.1, "99 % are done as early as without it"


@pytest.mark.parametrize("seed", [1, 2])
def test_rollout_is_completed_without_nodes_that_stay_busy(tmp_path: Path, seed: int) -> None:
    _, before, _ = simulated(tmp_path, "", seed)
    busy = next(iter(before))
    found, done, cause = simulated(tmp_path, busy, seed, "2h")
    assert (found.end, cause, found.done) == ("completed", BUSY_LONG, 1000)
    assert found.hours_completed is not None
    assert 3600 * found.hours_completed < DAY <= done[busy], "it moves when its job is over"
    assert sum(time <= 3600 * found.hours_completed for time in done.values()) >= 900
    waits, _, _ = simulated(tmp_path, busy, seed, "3d")
    assert waits.hours_completed is not None
    assert 3600 * waits.hours_completed >= DAY
