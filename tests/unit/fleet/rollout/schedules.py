"""Schedules of faults for `plan`: a small fleet, a store that checks epochs, controllers that crash, nodes that lie.

A schedule is a list of numbers, so that hypothesis can shrink it. Each number chooses an operation and its subject.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from tests.unit.fleet.rollout.documents import NEW, OLD

from goldnode.fleet.rollout.audit import TraceAudit
from goldnode.fleet.rollout.document import RolloutSettings, ShareLimit
from goldnode.fleet.rollout.model import (
    Action,
    Answer,
    Approve,
    BackScope,
    ChangePhase,
    Deny,
    Direction,
    FleetNode,
    Freeze,
    FreezeScope,
    LogEntry,
    NodeObservation,
    Release,
    RequirementResult,
    RolloutPhase,
    RolloutRecord,
    SchedulerObservation,
    StepPhase,
    Thaw,
)
from goldnode.fleet.rollout.plan import plan
from goldnode.fleet.rollout.state import Observations, RolloutState
from goldnode.node.ground import drained

ENDED = (RolloutPhase.COMPLETED, RolloutPhase.ROLLED_BACK, RolloutPhase.SUPERSEDED)


def fleet(size: int, cohorts: bool) -> list[FleetNode]:
    """Return nodes: four to a rack, eight to a leaf, every third pair in a cohort of two."""
    return [
        FleetNode(
            f"n{number:02}",
            rack=f"r{number // 4}",
            leaf=f"l{number // 8}",
            cohort=f"c{number // 2}" if cohorts and number // 2 % 3 == 0 else None,
            digest=OLD,
            boot_id=f"n{number:02}/0",
            in_service=True,
        )
        for number in range(size)
    ]


class Fleet:
    """Nodes, their scheduler, the store, and the controllers in front of it."""

    def __init__(self, settings: RolloutSettings, size: int = 24, cohorts: bool = False) -> None:
        self.settings, self.now = settings, 0.0
        nodes = fleet(size, cohorts)
        self.state = RolloutState(
            RolloutRecord(settings.name, settings.class_, OLD, settings.target, epoch=1),
            nodes,
            whole_cohorts=settings.limits.whole_cohorts,
        )
        self.initial = json.dumps(self.state.to_json())
        self.observations = Observations()
        self.log: list[LogEntry] = []
        self.audit = TraceAudit(settings)
        self.digest = {node.name: OLD for node in nodes}
        self.boots = {node.name: 0 for node in nodes}
        self.person: dict[str, str] = {}  # node -> reason of a person's drain
        self.broken_by: frozenset[str] = (
            frozenset()
        )  # nodes that the change breaks, each with a finding of its own
        self.slow_until: dict[str, float] = {}  # rack -> end of a partition
        self.stale: tuple[int, tuple[Action, ...]] | None = None
        self.obeyed_stale = 0
        self.names = [node.name for node in nodes]

    # Controllers

    def commit(self, epoch: int, action: Action) -> bool:
        """Write one action, as a store does: only under the present epoch."""
        if epoch != self.state.record.epoch:
            return False
        self.audit.before(self.state, action)
        self.state.apply(action, self.now)
        self.log.append(LogEntry(len(self.log), self.now, epoch, action))
        self.audit.settings = self.settings
        self.audit.after(self.state, self.observations, action, self.now)
        return True

    def settle(self, stop_after: int | None = None) -> None:
        """Plan and commit until there is nothing to do, or until the controller dies after some writes."""
        written = 0
        for _ in range(200):
            found = plan(self.settings, self.state, self.observations, self.now)
            again = plan(self.settings, self.state, self.observations, self.now)
            assert found == again, "plan() changed something"
            assert all(wait.owner and wait.reason for wait in found.waits), found.waits
            for action in found.actions:
                if stop_after is not None and written >= stop_after:
                    return
                assert self.commit(self.state.record.epoch, action)
                written += 1
            if not found.actions:
                # Each wait has an end or an owner: with nothing in flight, something is waited for.
                if self.state.record.phase not in ENDED and not self.state.active:
                    assert found.waits or found.wake_at is not None, self.state.record
                return
        raise AssertionError(f"plan() does not come to rest: {found.actions}")

    def crash(self) -> None:
        """Lose the memory of the controller; the next one takes over with another epoch."""
        self.stale = (
            self.state.record.epoch,
            plan(self.settings, self.state, self.observations, self.now).actions,
        )
        self.state = RolloutState.from_json(json.loads(json.dumps(self.state.to_json())))
        self.state.record = replace(self.state.record, epoch=self.state.record.epoch + 1)
        for report in self.observations.nodes.values():
            self.state.note(report)
        for seen in self.observations.scheduler.values():
            self.state.note(seen)

    def stale_controller(self) -> None:
        """Let the controller of an earlier epoch write what it had decided."""
        if self.stale is not None:
            epoch, actions = self.stale
            self.obeyed_stale += sum(self.commit(epoch, action) for action in actions)

    # Reports

    def scheduler(self, node: str, in_service: bool, free_at: float = 0.0) -> None:
        """Report the scheduler's state of a node. A person's drain wins."""
        reason = self.person.get(node, "")
        if reason:
            in_service = False
        elif not in_service:
            reason = drained.reason(self.state.run, "controller", "2026-11-02T08:00:00Z", "rollout")
        item = SchedulerObservation(node, self.now, in_service, free_at, reason)
        self.state.record_observation(self.observations, item)

    def report(
        self,
        node: str,
        verdict: Answer,
        software: Sequence[str] = (),
        hardware: Sequence[str] = (),
        late: float = 0.0,
    ) -> None:
        """Report the verdict of the present boot of a node."""
        boot = f"{node}/{self.boots[node]}"
        item = NodeObservation(
            node,
            at=self.now - late,
            boot_id=boot,
            digest=self.digest[node],
            verdict=verdict,
            software=tuple(software),
            hardware=tuple(hardware),
        )
        self.state.record_observation(self.observations, item)

    def survey(self) -> None:
        """Read all nodes outside of a step, as a controller does once an hour. The clock has caught up by then."""
        self.now = (
            max(self.now, *(item.at for item in self.observations.nodes.values()), 0.0) + 3600.0
        )
        for name in self.names:
            if name not in self.state.active:
                self.report(name, Answer.UNKNOWN)

    def work(self, node: str, outcome: int = 0) -> None:
        """Let a node do what its step asks for. `outcome` 0 is good."""
        step = self.state.active.get(node)
        rack = self.state.nodes[node].rack or ""
        if step is None or self.now < self.slow_until.get(rack, 0.0):
            return
        if step.phase is StepPhase.GRANTED:
            self.scheduler(node, False)
        elif step.phase is StepPhase.RETURNING:
            self.scheduler(node, True)
        elif step.direction is Direction.BACK:
            self.boots[node] += 1
            self.digest[node] = (step.prior and step.prior.digest) or OLD
            self.report(node, Answer.PASSES)
        else:
            self._boot(node, 1 if outcome == 0 and node in self.broken_by else outcome)

    def _boot(self, node: str, outcome: int) -> None:
        """Boot the new state: good, software, hardware, falls back, lies, silent, undecided, or reports late."""
        if outcome == 5:
            return
        if outcome == 4:
            boot = f"{node}/{self.boots[node]}"
            item = NodeObservation(node, self.now, boot, NEW, Answer.PASSES)
            self.state.record_observation(self.observations, item)
            return
        self.boots[node] += 1
        boot = f"{node}/{self.boots[node]}"
        if outcome == 3:
            item = NodeObservation(node, self.now, boot, OLD, Answer.PASSES, fell_back_from=NEW)
            self.state.record_observation(self.observations, item)
            return
        self.digest[node] = NEW
        verdict = {0: Answer.PASSES, 6: Answer.UNKNOWN, 7: Answer.PASSES}.get(outcome, Answer.FAILS)
        software = [f"finding-{node}"] if outcome == 1 else []
        hardware = ["ecc"] if outcome == 2 else []
        self.report(node, verdict, software, hardware, late=5000.0 if outcome == 7 else 0.0)

    # Operations

    def operate(self, number: int) -> None:
        """Carry out one operation of a schedule."""
        kind, subject = number % 32, number // 32
        node = self.names[subject % len(self.names)]
        if kind < 10:
            self.advance((10.0, 60.0, 600.0, 3600.0, 20000.0)[subject % 5])
        elif kind < 16:
            for name in list(self.state.active):
                self.work(name)
        elif kind < 20:
            names = list(self.state.active)
            if names:
                self.work(names[subject % len(names)], outcome=subject // 64 % 8)
        else:
            self._disturb(kind, subject, node)
        self.settle()
        assert not self.audit.violations, self.audit.violations

    def _disturb(self, kind: int, subject: int, node: str) -> None:
        state = self.state
        if kind == 20:
            self.settle_after_crash(subject % 4)
        elif kind == 21:
            self.stale_controller()
        elif kind == 22:
            self.person[node] = "maintenance of a fan"
            self.scheduler(node, False)
        elif kind == 23:
            if self.person.pop(node, None) is not None and node not in state.active:
                self.scheduler(node, True)
        elif kind == 24:
            scope = tuple(FreezeScope)[subject % 4]
            names = {FreezeScope.ALL: "", FreezeScope.CLASS: "l4", FreezeScope.RACK: "r0"}
            self.commit(
                state.record.epoch,
                Freeze("p", scope, names.get(scope, state.record.name), "incident", "ann"),
            )
        elif kind == 25:
            for name in list(state.freezes):
                self.commit(state.record.epoch, Thaw(name, "ann", "seen"))
        elif kind == 26:
            self.slow_until[f"r{subject % 6}"] = self.now + 7200
        elif kind == 27:
            self.now += (100000.0, -5000.0)[subject % 2]
        elif kind == 28:
            limits = replace(self.settings.limits, planned=ShareLimit(count=2 + subject % 4))
            self.settings = replace(self.settings, limits=limits)
        elif kind == 29:
            answer = tuple(Answer)[subject % 3]
            item = RequirementResult("command", state.record.wave, answer, self.now, "asked")
            self.observations.record(item)
        elif kind == 30:
            for name, step in list(state.steps.items()):
                if step.phase in (StepPhase.OVERDUE, StepPhase.FAILED):
                    self.commit(state.record.epoch, Release(name, "ann", "seen"))
        elif node not in state.active:
            self.report(node, Answer.FAILS, hardware=["ecc"])

    def settle_after_crash(self, writes: int) -> None:
        """Kill the controller after some writes of its next decision."""
        self.advance(60.0)
        self.settle(stop_after=writes)
        self.crash()

    def advance(self, seconds: float) -> None:
        """Let time pass, and let each asked requirement pass."""
        self.now += seconds

    def answer(self, answer: Answer = Answer.PASSES) -> None:
        """Answer the requirements of the present wave."""
        for item in self.settings.outside:
            self.observations.record(
                RequirementResult(item.name, self.state.record.wave, answer, self.now, "asked")
            )

    def order_back(self, scope: BackScope) -> None:
        """Roll back by the order of a person, as the store writes it."""
        epoch = self.state.record.epoch
        self.commit(epoch, Deny(self.settings.target, "ordered"))
        self.commit(epoch, ChangePhase(RolloutPhase.ROLLING_BACK, "ordered", scope))

    def finish(self, limit: int = 3000, *, release: bool = True) -> None:
        """End all faults and let the rollout go on: persons lift freezes, release nodes and resume theirs."""
        self.slow_until.clear()
        for name in list(self.person):
            del self.person[name]
            if name not in self.state.active:
                self.scheduler(name, True)
        for turn in range(limit):
            epoch = self.state.record.epoch
            for name in list(self.state.freezes):
                self.commit(epoch, Thaw(name, "ann", "seen"))
            for name, step in list(self.state.steps.items()):
                if release and step.phase in (StepPhase.OVERDUE, StepPhase.FAILED):
                    self.commit(epoch, Release(name, "ann", "seen"))
            for name in self.names:
                held = self.state.ledger.by_node.get(name, {})
                if name not in self.state.active and ("health" in held or "outside" in held):
                    self.report(name, Answer.PASSES)
                    self.scheduler(name, True)
            self.advance(700.0)
            for name in list(self.state.active):
                self.work(name)
            self.answer()
            self.settle()
            assert not self.audit.violations, self.audit.violations
            if self.state.record.phase in ENDED and not self.state.active and not self.state.queue:
                return
            if not release and self.stands_still():
                return
            assert turn < limit - 1, (
                f"does not end: {self.state.record}, {list(self.state.steps.values())[:5]}"
            )

    def stands_still(self) -> bool:
        """Return whether nothing moves until a person releases a node: its hold spends a limit."""
        spent = self.state.ledger.failed >= self.settings.limits.failed.nodes(len(self.names))
        return spent and not self.state.active

    # Comparisons

    def rows(self) -> dict[str, object]:
        """Return the rows that follow from the log, without what observations alone change."""
        data = self.state.to_json()
        for name in ("nodes", "others"):
            del data[name]
        data["record"].pop("epoch")
        data["holds"] = sorted(data["holds"], key=lambda hold: (hold["node"], hold["owner"]))
        data["steps"] = sorted(data["steps"], key=lambda step: str(step["node"]))
        return data

    def replayed(self) -> dict[str, object]:
        """Return the same rows after a replay of the log."""
        other = object.__new__(Fleet)
        other.state = RolloutState.from_json(json.loads(self.initial))
        for entry in self.log:
            other.state.record = replace(other.state.record, epoch=entry.epoch)
            other.state.apply(entry.action, entry.at)
        return other.rows()

    def indexes(self) -> tuple[object, ...]:
        """Return the indexes of the state."""
        state = self.state
        return (
            state.queue,
            +state.ended,
            +state.passed,
            +state.broken,
            +state.wave_size,
            sorted(state.active),
            state.serving,
            state.moved,
            +state.ledger.kinds,
            +state.ledger.planned_racks,
            +state.ledger.planned_leaves,
            sorted(state.strays),
        )

    def rebuilt(self) -> tuple[object, ...]:
        """Return the indexes computed from the rows alone."""
        other = object.__new__(Fleet)
        other.state = RolloutState.from_json(json.loads(json.dumps(self.state.to_json())))
        return other.indexes()


def approve_all(fleet_: Fleet) -> None:
    """Approve each wave in each role."""
    for wave, roles in fleet_.settings.approve.items():
        for role in roles:
            fleet_.commit(
                fleet_.state.record.epoch, Approve(wave, role, "bob", fleet_.settings.digest)
            )
