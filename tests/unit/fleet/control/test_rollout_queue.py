"""A rollout and other work that wants its nodes: one drain for both, in the order of the queue, and the truth about each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import ControlledRollout, controlled

from goldnode.fleet.control.controller import ControllerReport, RolloutController
from goldnode.fleet.rollout.ladder import (
    CasePhase,
    Holder,
    LadderAction,
    MoveCase,
    OpenCase,
    RepairCase,
)
from goldnode.fleet.rollout.model import RolloutPhase, StepPhase
from goldnode.fleet.rollout.queue import QueuedWork, RequestState, WorkNeed
from goldnode.fleet.store import grants, log, queue, repairs, rollouts
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError
from goldnode.fleet.store.grants import LeaveRequest
from goldnode.fleet.store.queue import NodeAsk, QueueClaim, QueueStanding, WorkOutcome

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))


@dataclass
class Shared:
    """A controlled rollout, and one asker beside it."""

    rollout: ControlledRollout
    store: StoreDatabase
    controller: RolloutController

    def tick(self) -> ControllerReport:
        report = self.controller.tick()
        self.rollout.world.now += 60
        return report

    def until(self, met: Callable[[], bool], ticks: int = 400) -> None:
        for _ in range(ticks):
            if met():
                return
            self.tick()
        raise AssertionError("it did not come to that")

    def ask(self, node: str | None, work: QueuedWork = QueuedWork.REPAIR) -> QueueClaim:
        needs = {QueuedWork.RETURN_TEST: (), QueuedWork.MIRROR: ()}.get(work, (WorkNeed.DRAIN,))
        given = NodeAsk(work, "Xid 79", "ann", "m/1", node, needs=needs, lease=10**6, limit=10**6)
        return self.store.run(lambda c: queue.ask(c, given, self.rollout.world.now))

    def poll(self, claim: QueueClaim) -> QueueStanding:
        return self.store.run(lambda c: queue.poll(c, claim, self.rollout.world.now))

    def begin(self, claim: QueueClaim) -> QueueStanding:
        return self.store.run(lambda c: queue.begin(c, claim, self.rollout.world.now))

    def finish(self, claim: QueueClaim, outcome: WorkOutcome) -> queue.PartEnding:
        return self.store.run(lambda c: queue.finish(c, claim, outcome, self.rollout.world.now))

    def back(self, claim: QueueClaim) -> None:
        self.store.run(lambda c: queue.returned(c, claim, True, "", self.rollout.world.now))

    def phase(self, node: str) -> StepPhase | None:
        with self.store.read() as connection:
            state = rollouts.load(connection, self.rollout.settings).state
        step = state.steps.get(node)
        return step.phase if step is not None else None

    def lines(self, action: str, node: str) -> int:
        with self.store.read() as connection:
            rows = log.entries(connection, subject=node)
        return sum(row["action"] == action for row in rows)


@pytest.fixture
def shared(tmp_path: Path, migrated: Path) -> Iterator[Shared]:
    shutil.copy(migrated, tmp_path / "fleet.db")
    rollout = controlled(tmp_path, str(tmp_path / "fleet.db"), 12, *FAST)
    store = rollout.store()
    controller = rollout.controller(store)
    yield Shared(rollout, store, controller)
    controller.close()
    store.close()


def begun(shared: Shared) -> str:
    """Run until the rollout has a wave, and return a node that waits in it."""
    shared.until(lambda: any(shared.phase(name) for name in shared.rollout.world.names))
    return next(name for name in shared.rollout.world.names if shared.phase(name) is not None)


def joined(shared: Shared) -> tuple[str, QueueClaim]:
    """Return a node that the rollout has just been granted, and a repair that asked before its drain was over."""
    worker = shared.controller.parts.worker
    work = worker.work
    worker.work = lambda tasks: None  # type: ignore[method-assign]
    node = begun(shared)
    claim = shared.ask(node)
    shared.poll(claim)
    worker.work = work  # type: ignore[method-assign]
    return node, claim


def test_repair_joins_the_drain_of_a_rollout_and_is_done_first(shared: Shared) -> None:
    node, claim = joined(shared)
    assert shared.poll(claim).run == shared.rollout.settings.name
    shared.begin(claim)
    for _ in range(200):  # longer than the rollout waits for a busy node
        shared.tick()
    assert shared.phase(node) is StepPhase.GRANTED
    assert not shared.rollout.world.nodes[node].in_service
    ending = shared.finish(claim, WorkOutcome(True, "reset"))
    assert not ending.returns, "the rollout returns it"
    shared.until(lambda: shared.phase(node) is StepPhase.DONE)
    assert shared.rollout.world.nodes[node].in_service
    assert shared.lines("Grant", node) == 1
    assert shared.lines("GrantTurn", node) == 0


def test_repair_that_waits_for_a_node_of_the_wave_waits_for_the_rollout(shared: Shared) -> None:
    waiting: list[str] = []

    def waits() -> bool:
        with shared.store.read() as connection:
            state = rollouts.load(connection, shared.rollout.settings).state
        names = [name for name in state.wave_of if state.waits(name) and name not in state.active]
        waiting[:] = names[-1:]
        return bool(waiting)

    shared.until(waits)
    (node,) = waiting
    claim = shared.ask(node)
    shared.until(lambda: shared.poll(claim).may_begin)
    assert shared.poll(claim).run == shared.rollout.settings.name
    assert (shared.lines("Grant", node), shared.lines("GrantTurn", node)) == (1, 0)


def test_repair_of_the_ladder_shares_the_drain_of_a_rollout(shared: Shared) -> None:
    worker = shared.controller.parts.worker
    work = worker.work
    worker.work = lambda tasks: None  # type: ignore[method-assign]
    node, store = begun(shared), shared.store
    record = repairs.LadderRecord()

    def read() -> None:
        with store.read() as connection:
            record.read(connection)

    def written(*actions: LadderAction) -> None:
        store.run(lambda c: repairs.write(c, record, actions, shared.rollout.world.now))
        read()

    now = shared.rollout.world.now
    written(
        OpenCase(
            RepairCase(
                node,
                finding="gpu.lost",
                climb=("reboot",),
                opened_at=now,
                phase=CasePhase.DRAIN,
                rung="reboot",
                changed_at=now,
                deadline=now,
            )
        )
    )
    case = record.state.cases[node]
    times = (now, 1e6)
    assert store.run(lambda c: repairs.take(c, record, case, Holder.NONE, times)) == ""
    read()
    assert record.state.cases[node].run == shared.rollout.settings.name
    worker.work = work  # type: ignore[method-assign]
    for _ in range(10):
        shared.tick()
    assert shared.phase(node) is StepPhase.GRANTED, "the change waits for the repair"
    written(MoveCase(node, CasePhase.RETURN, "reboot", "cured by reboot", cured=True))
    after = record.state.cases[node]
    assert (after.leave, after.run) == (False, ""), "the rollout returns the node"
    shared.until(lambda: shared.phase(node) is StepPhase.DONE)
    assert shared.rollout.world.nodes[node].in_service
    assert (shared.lines("Grant", node), shared.lines("GrantTurn", node)) == (1, 0)


def test_node_that_the_repair_left_unfit_does_not_return(shared: Shared) -> None:
    node, claim = joined(shared)
    shared.begin(claim)
    shared.finish(claim, WorkOutcome(False, "the BMC does not answer", fit=False))
    shared.until(lambda: shared.phase(node) is StepPhase.DONE)
    for _ in range(20):
        shared.tick()
    assert not shared.rollout.world.nodes[node].in_service
    with shared.store.read() as connection:
        state = rollouts.load(connection, shared.rollout.settings).state
    assert "the BMC does not answer" in state.ledger.by_node[node]["queue"].reason
    shared.until(lambda: shared.tick().phase is RolloutPhase.COMPLETED)


def test_tests_of_the_queue_run_before_the_return(shared: Shared) -> None:
    worker, node = shared.controller.parts.worker, begun(shared)
    work = worker.work
    kept = [task for task in StepPhase if task is not StepPhase.RETURNING]
    worker.work = lambda tasks: work([task for task in tasks if task.phase in kept])  # type: ignore[method-assign]
    shared.until(lambda: shared.phase(node) is StepPhase.RETURNING)
    claim = shared.ask(node, QueuedWork.RETURN_TEST)
    standing = shared.poll(claim)
    worker.work = work  # type: ignore[method-assign]
    assert standing.may_begin
    shared.begin(claim)
    assert shared.finish(claim, WorkOutcome(True)).returns is False
    shared.until(lambda: shared.phase(node) is StepPhase.DONE)


def test_requests_that_came_first_get_their_places(shared: Shared) -> None:
    """Limits of the document: the rollout would take each place that becomes free."""
    begun(shared)
    claims = [shared.ask(name) for name in shared.rollout.world.names[-6:]]
    served = 0
    for _ in range(400):
        for claim in list(claims):
            standing = shared.poll(claim)
            state = standing.request.state
            if standing.may_begin:
                shared.begin(claim)
            elif state is RequestState.RUNNING:
                if shared.finish(claim, WorkOutcome(True)).returns:
                    shared.back(claim)
                served += 1
                claims.remove(claim)
        if not claims:
            break
        shared.tick()
    assert served == 6
    shared.until(lambda: shared.tick().phase is RolloutPhase.COMPLETED)


def test_no_grant_while_the_mirror_is_refreshed(shared: Shared) -> None:
    claim = shared.ask(None, QueuedWork.MIRROR)
    assert shared.poll(claim).may_begin
    shared.begin(claim)
    for _ in range(5):
        report = shared.tick()
    assert any("the mirror is refreshed" in wait.reason for wait in report.waits)
    shared.finish(claim, WorkOutcome(True))
    shared.until(lambda: shared.tick().phase is RolloutPhase.COMPLETED)


def test_lock_service_grants_no_node_in_a_turn(shared: Shared) -> None:
    claim = shared.ask("n05")
    shared.poll(claim)
    asked = LeaveRequest("n05", shared.rollout.settings.class_, shared.rollout.world.now)
    with pytest.raises(GrantRefusedError):
        shared.store.run(lambda c: grants.grant(c, asked))
