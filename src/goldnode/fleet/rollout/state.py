"""The state of a rollout in memory: rows, and indexes that let `plan` cost what changed and not what exists.

`apply` is the reducer: the state after an action follows from the state before it and from the
action alone, so the log replays to the state. `plan` only reads. A controller loads the rows of a
store, and applies each action that it has written there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.ledger import Ledger
from goldnode.fleet.rollout.model import (
    ACTIVE,
    ENDED,
    HELD_BACK,
    Action,
    Answer,
    BackScope,
    Blame,
    CalendarReading,
    Direction,
    FleetNode,
    FreezeRecord,
    Hold,
    HoldKind,
    NodeObservation,
    OtherRollout,
    RequirementResult,
    RolloutApproval,
    RolloutPhase,
    RolloutRecord,
    SchedulerObservation,
    Step,
    StepPhase,
    Tally,
    gave_up,
    with_values,
)
from goldnode.fleet.rollout.queue import QUEUE, QueueShare
from goldnode.fleet.rollout.waves import rank, unit_of
from goldnode.fleet.shared.identity import rollout_run
from goldnode.node.ground.drained import mark

FORWARD_PHASES = (RolloutPhase.RUNNING, RolloutPhase.COMPLETED)
BACK_PHASES = (RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK)
ENDED_PHASES = (RolloutPhase.COMPLETED, RolloutPhase.ROLLED_BACK, RolloutPhase.SUPERSEDED)
OUTSIDE = "outside"  # owner of a hold for a drain that a person or another system made
HEALTH = "health"  # owner of a hold for a node whose own check fails while it serves
FIRST_WAVES = 2  # in which one cause repeated stops
QueueKey = tuple[int, float, int, str]


@dataclass
class Observations:
    """The newest observation of each kind. An older one that arrives late is dropped."""

    nodes: dict[str, NodeObservation] = field(default_factory=dict)
    scheduler: dict[str, SchedulerObservation] = field(default_factory=dict)
    requirements: dict[tuple[str, int], RequirementResult] = field(default_factory=dict)
    calendars: dict[str, CalendarReading] = field(default_factory=dict)

    def record(
        self, item: NodeObservation | SchedulerObservation | RequirementResult | CalendarReading
    ) -> bool:
        """Store an observation; return whether it is newer than the one before."""
        table: dict[Any, Any] = self.requirements
        key: object
        if isinstance(item, RequirementResult):
            key = (item.requirement, item.wave)
        elif isinstance(item, CalendarReading):
            key, table = item.calendar, self.calendars
        else:
            key = item.node
            table = self.nodes if isinstance(item, NodeObservation) else self.scheduler
        before = table.get(key)
        if before is not None and item.at < before.at:
            return False
        table[key] = item
        return True


class RolloutState:
    """Rows of one rollout and its class, with indexes."""

    def __init__(
        self, record: RolloutRecord, nodes: Iterable[FleetNode], *, whole_cohorts: bool = False
    ) -> None:
        self.record = record
        self.whole_cohorts = whole_cohorts
        self.run = rollout_run(record.name)
        self.nodes = {node.name: node for node in nodes}
        self.steps: dict[str, Step] = {}
        self.ledger = Ledger(self.nodes)
        self.freezes: dict[str, FreezeRecord] = {}
        self.approvals: list[RolloutApproval] = []
        self.denied: dict[str, str] = {}
        self.alarms: dict[tuple[str, str], str] = {}
        self.wave_of: dict[str, int] = {}
        self.asked: dict[tuple[str, int], float] = {}  # last evaluation of a requirement
        self.others: tuple[OtherRollout, ...] = ()
        self.share = QueueShare()  # what the queue has for this rollout, read at each decision
        self.document = ""  # digest of the submitted text; empty: not known
        self._index()

    # Indexes

    def _index(self) -> None:
        """Compute all indexes from the rows."""
        self.unit = {name: unit_of(node, self.whole_cohorts) for name, node in self.nodes.items()}
        self.members: dict[str, list[str]] = {}
        for name, unit in self.unit.items():
            self.members.setdefault(unit, []).append(name)
        self.rank = {unit: rank(self.record.name, unit) for unit in self.members}
        self.wave_size: Counter[int] = Counter(self.wave_of.values())
        # Nodes that no wave has taken yet.
        self.left = dict.fromkeys(name for name in self.nodes if name not in self.wave_of)
        self.active: dict[str, Step] = {}
        self._deadlines: list[
            tuple[float, str]
        ] = []  # of active steps, and of some that have ended
        self.ended: Counter[int] = Counter()  # wave -> nodes whose step forward has ended
        self.passed: Counter[int] = Counter()  # wave -> nodes that serve with the new state
        # Wave -> nodes that are out of service for another reason, busy, or in another state.
        self.absent: Counter[int] = Counter()
        # Wave -> nodes that failed by it, or did not return from it.
        self.broken: Counter[int] = Counter()
        self.serving = 0  # nodes that are done, and the sum of the times since when
        self.serving_since = 0.0
        self.moved = 0  # nodes that had a grant, and the sum of the times of their grants
        self.moved_at = 0.0
        for step in self.steps.values():
            self._contribute(step, 1)
        self.attention: dict[str, None] = {}
        # Active nodes with an observation since their step last changed: all, where that is not known.
        self.fresh: dict[str, None] = dict.fromkeys(self.active)
        self._index_queue()

    def _index_queue(self) -> None:
        self.queue: list[QueueKey] = []
        self.queued: dict[str, QueueKey] = {}
        self.strays: dict[str, None] = {}
        # Without a wave and a step a node does not wait.
        chosen = {self.unit[name] for names in (self.wave_of, self.steps) for name in names}
        for unit in self.members:
            key = self._key(unit) if unit in chosen else None
            if key is not None:
                self.queued[unit] = key
        self.queue = sorted(self.queued.values())

    def _requeue(self, unit: str) -> None:
        key, before = self._key(unit), self.queued.get(unit)
        if key == before:
            return
        if before is not None:
            del self.queue[bisect_left(self.queue, before)]
            del self.queued[unit]
        if key is not None:
            insort(self.queue, key)
            self.queued[unit] = key

    def _key(self, unit: str) -> QueueKey | None:
        """Return the place of a unit in the queue: returning nodes first, lemons last, soon-free ones before others."""
        waiting, free_at, place = False, 0.0, 1
        for name in self.members[unit]:
            if not self.waits(name):
                self.strays.pop(name, None)
                continue
            node, step = self.nodes[name], self.steps.get(name)
            deferred = step is not None and step.phase is StepPhase.DEFERRED
            if self.record.phase in FORWARD_PHASES and self._is_stray(node):
                elsewhere = node.digest not in (None, self.record.origin, self.record.target)
                # It got there without this rollout.
                arrived = (
                    node.digest == self.record.target and step is not None and step.prior is None
                )
                if not deferred or elsewhere or arrived:
                    self.strays[name] = None
                else:  # deferred already: nothing to decide
                    self.strays.pop(name, None)
                continue
            self.strays.pop(name, None)
            waiting = True
            free_at = max(free_at, node.free_at)
            if deferred:
                place = min(place, 0)
            elif node.lemon is True:
                place = max(place, 2)
        return (place, free_at, self.rank[unit], unit) if waiting else None

    def _is_stray(self, node: FleetNode) -> bool:
        """Return whether a waiting node cannot be granted now: out, unknown, or in another state.

        A released node may be in the target: its step is repeated, so that a verdict counts.
        """
        step = self.steps.get(node.name)
        again = step is not None and step.prior is not None and node.digest == self.record.target
        return (
            node.name in self.ledger.by_node
            or node.in_service is None
            or (node.digest != self.record.origin and not again)
        )

    def kept(self, name: str) -> bool:
        """Return whether a node has left its wave because it is held back as known good."""
        step = self.steps.get(name)
        return step is not None and step.phase is StepPhase.DEFERRED and step.cause == HELD_BACK

    def waits(self, name: str) -> bool:
        """Return whether a node waits for a grant in the present phase."""
        step, phase = self.steps.get(name), self.record.phase
        if phase in FORWARD_PHASES:
            if self.wave_of.get(name, self.record.wave + 1) > self.record.wave:
                return False
            if step is not None and (
                step.direction is Direction.BACK
                or step.phase not in (StepPhase.PASSED, StepPhase.DEFERRED)
            ):
                return False
            # A deferred node that is out waits for its owner.
            return step is None or step.phase is StepPhase.PASSED or name not in self.ledger.by_node
        return (
            phase in BACK_PHASES
            and step is not None
            and self.goes_back(step)
            and not self.ledger.others(name, self.record.name)
        )

    def goes_back(self, step: Step) -> bool:
        """Return whether the rollback moves the node of an ended step.

        Every rollback takes the nodes that the change broke, in all waves: nothing else would
        return them.
        """
        if step.direction is Direction.BACK:
            return step.phase in (StepPhase.PASSED, StepPhase.DEFERRED)
        if step.phase is StepPhase.FAILED:
            return step.blame is Blame.SOFTWARE
        # It was released for another try, which does not come.
        if step.phase in (StepPhase.DEFERRED, StepPhase.PASSED) or gave_up(step):
            return self.has_moved(step)
        return step.phase is StepPhase.DONE and self.in_back_scope(step)

    def has_moved(self, step: Step) -> bool:
        """Return whether a node is not in the state that it had before its first step."""
        return step.prior is not None and self.nodes[step.node].digest != step.prior.digest

    def in_back_scope(self, step: Step) -> bool:
        """Return whether a step is within the scope of the rollback."""
        scope = self.record.back
        if scope is None or scope is BackScope.ALL:
            return scope is not None
        if scope is BackScope.WAVE and step.wave == self.record.wave:
            return True
        # A cohort that moves whole goes back whole: otherwise two of its nodes would serve in two states.
        steps = (self.steps.get(name) for name in self.members[self.unit[step.node]])
        return any(
            one is not None
            and (
                one.direction is Direction.BACK
                or (one.phase is StepPhase.FAILED and one.blame is Blame.SOFTWARE)
            )
            for one in steps
        )

    def has_ended(self) -> bool:
        """Return whether the rollout is in its last phase. Single nodes may still move."""
        return self.record.phase in ENDED_PHASES

    def _contribute(self, step: Step, by: int) -> None:
        """Add a step to the indexes (1), or take it out (-1)."""
        if step.phase in ACTIVE:
            if by > 0:
                self.active[step.node] = step
                heappush(self._deadlines, (step.deadline, step.node))
            else:
                del self.active[step.node]
        if step.attempt:
            self.moved += by
            self.moved_at += by * step.granted_at
        if step.direction is Direction.BACK:
            # A step back replaces the step forward, which had ended.
            self.ended[step.wave] += by
            return
        if step.late or step.phase in ENDED:
            self.ended[step.wave] += by
        if step.phase is StepPhase.DONE:
            self.passed[step.wave] += by
            self.serving += by
            self.serving_since += by * step.changed_at
        elif step.phase in (StepPhase.DEFERRED, StepPhase.LEFT):
            self.absent[step.wave] += by
        elif step.phase is StepPhase.OVERDUE or (
            step.phase is StepPhase.FAILED and step.blame is Blame.SOFTWARE
        ):
            self.broken[step.wave] += by

    def soonest_deadline(self) -> float | None:
        """Return the first deadline of the active steps."""
        while self._deadlines:
            deadline, node = self._deadlines[0]
            step = self.active.get(node)
            if step is not None and step.deadline == deadline:
                return deadline
            heappop(self._deadlines)
        return None

    def _set_step(self, step: Step) -> None:
        before = self.steps.get(step.node)
        if before is not None:
            self._contribute(before, -1)
        self.steps[step.node] = step
        self._contribute(step, 1)

    # Observations

    def note(self, item: NodeObservation | SchedulerObservation) -> None:
        """Take the present state of a node from its newest observation."""
        node = self.nodes.get(item.node)
        if node is None:
            return
        held = self.ledger.by_node.get(item.node, {})
        before = node
        if isinstance(item, SchedulerObservation):
            if item.in_service != node.in_service or item.free_at != node.free_at:
                node = _observed(node, node.digest, node.boot_id, item.in_service, item.free_at)
            foreign = not item.in_service and not self.is_own(item.reason)
            notable = (foreign and not held) or (item.in_service and OUTSIDE in held)
        else:
            if item.digest != node.digest or item.boot_id != node.boot_id:
                node = _observed(node, item.digest, item.boot_id, node.in_service, node.free_at)
            notable = (item.verdict is Answer.FAILS and not held) or (
                item.verdict is Answer.PASSES and HEALTH in held
            )
        if item.node in self.active:
            self.fresh[item.node] = None
        elif notable:
            self.attention[item.node] = None
        if node is not before:
            self.nodes[item.node] = node
            # An active node has no place in the queue, and neither has one without a wave and a step.
            if item.node not in self.active and (
                item.node in self.wave_of or item.node in self.steps
            ):
                self._requeue(self.unit[item.node])

    def stays_out(self, name: str) -> bool:
        """Return whether a part of the queue that shared a grant has left its node unfit: it does not return."""
        return QUEUE in self.ledger.by_node.get(name, {})

    def is_own(self, reason: str) -> bool:
        """Return whether the reason text of a scheduler is the mark of this rollout."""
        return _run_of(reason) == self.run

    # The reducer

    def record_observation(
        self,
        observations: Observations,
        item: NodeObservation | SchedulerObservation | RequirementResult,
    ) -> None:
        """Record an observation, and take what it changes into the state."""
        if observations.record(item) and not isinstance(item, RequirementResult):
            self.note(item)

    def apply(self, action: Action, at: float) -> None:
        """Change the state by one action, taken at the time `at`."""
        _REDUCERS[type(action)](self, action, at)
        node = getattr(action, "node", None)
        if node is not None:
            self.attention.pop(node, None)
            self.fresh.pop(node, None)
            if type(action) is not model.Proceed:  # the node was active, and still is
                self._requeue(self.unit[node])

    def _start(self, action: model.Start, at: float) -> None:
        self._assign(0, action.nodes)
        self.record = with_values(
            self.record,
            phase=RolloutPhase.RUNNING,
            wave=0,
            started_at=at,
            wave_since=at,
            finished_at=at,
            why="",
        )
        self._index_queue()

    def _assign(self, wave: int, names: Iterable[str]) -> None:
        for name in names:
            self.wave_of[name] = wave
            self.wave_size[wave] += 1
            self.left.pop(name, None)

    def _grant(self, action: model.Grant, at: float) -> None:
        name, before = self.record.name, self.steps.get(action.node)
        self._set_step(
            Step(
                node=action.node,
                wave=self.wave_of[action.node],
                direction=action.direction,
                phase=StepPhase.GRANTED,
                epoch=self.record.epoch,
                attempt=action.attempt,
                granted_at=at,
                changed_at=at,
                deadline=action.deadline,
                prior=action.prior,
                late=before is not None and before.late,
            )
        )
        self.ledger.put(
            Hold(action.node, name, HoldKind.PLANNED, at, f"{action.direction.value} step")
        )

    def _proceed(self, action: model.Proceed, at: float) -> None:
        step = self.steps[action.node]
        self._set_step(
            with_values(
                step,
                phase=action.phase,
                changed_at=at,
                deadline=action.deadline,
                cause=action.cause,
            )
        )

    def _finish(self, action: model.Finish, at: float) -> None:
        before = self.steps.get(action.node)
        step = before or Step(
            node=action.node,
            wave=self.wave_of.get(action.node, action.wave),
            direction=Direction.FORWARD,
            phase=action.phase,
            epoch=self.record.epoch,
            attempt=0,
            granted_at=0.0,
            changed_at=at,
            deadline=0.0,
        )
        step = with_values(
            step,
            phase=action.phase,
            changed_at=at,
            cause=action.cause,
            blame=action.blame,
            late=step.late or action.phase is StepPhase.DEFERRED,
        )
        self._set_step(step)
        if action.failed:
            reason = action.cause or "failed"
            self.ledger.put(Hold(action.node, self.record.name, HoldKind.FAILED, at, reason))
        else:
            self.ledger.drop(action.node, self.record.name, at)
        self._tally(before, step, at)

    def _turn(self, action: model.Turn, at: float) -> None:
        before = self.steps[action.node]
        if action.blame is not None:
            self._tally(
                before,
                with_values(before, phase=StepPhase.FAILED, cause=action.cause, blame=action.blame),
                at,
            )
        self._set_step(
            with_values(
                before,
                direction=Direction.BACK,
                phase=StepPhase.APPLYING,
                attempt=action.attempt,
                changed_at=at,
                deadline=action.deadline,
                cause=action.cause,
                blame=action.blame,
            )
        )
        self.ledger.put(Hold(action.node, self.record.name, HoldKind.PLANNED, at, "back step"))

    def _overdue(self, action: model.Overdue, at: float) -> None:
        before = self.steps[action.node]
        step = with_values(
            before, phase=StepPhase.OVERDUE, changed_at=at, cause=action.reason, blame=Blame.ABSENT
        )
        self._set_step(step)
        self.ledger.put(Hold(action.node, self.record.name, HoldKind.FAILED, at, action.reason))
        self._tally(before, step, at)

    def _tally(self, before: Step | None, step: Step, at: float) -> None:
        """Count the end of a step forward."""
        if step.direction is Direction.BACK or step.phase not in (
            StepPhase.DONE,
            StepPhase.FAILED,
            StepPhase.OVERDUE,
        ):
            return
        tally = self.record.tally
        done, software, absent, hardware = tally.done, tally.software, tally.absent, tally.hardware
        causes = dict(tally.causes)
        if before is not None and before.phase is StepPhase.DONE:
            done -= 1  # it failed after it had returned
        if step.phase is StepPhase.DONE:
            done += 1
        elif step.blame is Blame.HARDWARE:
            hardware += 1
        elif step.blame is Blame.ABSENT:
            absent += 1
        else:
            software += 1
            if step.wave < FIRST_WAVES:
                cause = step.cause or "software"
                causes[cause] = causes.get(cause, 0) + 1
        in_time = step.wave == self.record.wave and not step.late
        self.record = with_values(
            self.record,
            finished_at=at if in_time else self.record.finished_at,
            tally=with_values(
                tally,
                done=done,
                software=software,
                absent=absent,
                hardware=hardware,
                causes=tuple(sorted(causes.items())),
            ),
        )

    def _take_hold(self, action: model.TakeHold, at: float) -> None:
        self.ledger.put(Hold(action.node, action.owner, action.kind, at, action.reason))
        if action.kind is HoldKind.FAILED:
            tally = self.record.tally
            step = self.steps.get(action.node)
            changed = (
                step is not None
                and step.direction is Direction.FORWARD
                and step.phase is StepPhase.DONE
            )
            self.record = with_values(
                self.record,
                tally=with_values(
                    tally,
                    changed_events=tally.changed_events + changed,
                    control_events=tally.control_events + (not changed),
                ),
            )

    def _drop_hold(self, action: model.DropHold, at: float) -> None:
        self.ledger.drop(action.node, action.owner, at)

    def _evaluate(self, action: model.Evaluate, at: float) -> None:
        self.asked[(action.requirement, action.wave)] = at

    def _promote(self, action: model.Promote, at: float) -> None:
        self._assign(action.wave, action.nodes)
        self.record = with_values(
            self.record, wave=action.wave, wave_since=at, finished_at=at, why=""
        )
        self._index_queue()

    def _extend(self, action: model.Extend, at: float) -> None:
        self._assign(action.wave, action.nodes)
        self._index_queue()

    def _change_phase(self, action: model.ChangePhase, at: float) -> None:
        self.record = with_values(
            self.record, phase=action.phase, why=action.why, back=action.back or self.record.back
        )
        if action.phase is RolloutPhase.ROLLING_BACK:
            self.alarms.pop(("remains", "rollback"), None)  # its end finds what remains by then
        self._index_queue()

    def _deny(self, action: model.Deny, at: float) -> None:
        self.denied[action.digest] = action.reason

    def _lift(self, action: model.LiftDenial, at: float) -> None:
        self.denied.pop(action.digest, None)

    def _alarm(self, action: model.Alarm, at: float) -> None:
        self.alarms[(action.code, action.subject)] = action.text

    def _freeze(self, action: model.Freeze, at: float) -> None:
        self.freezes[action.id] = FreezeRecord(
            action.id,
            scope=action.scope,
            subject=action.subject,
            reason=action.reason,
            who=action.who,
            at=at,
        )

    def _thaw(self, action: model.Thaw, at: float) -> None:
        self.freezes.pop(action.id, None)
        self.record = with_values(self.record, tally=Tally(), accepted_at=at)

    def _approve(self, action: model.Approve, at: float) -> None:
        self.approvals.append(
            RolloutApproval(action.wave, action.role, action.who, at, action.document)
        )

    def _release(self, action: model.Release, at: float) -> None:
        """Drop the failed hold of a node; it converges before it serves again."""
        step = self.steps.get(action.node)
        if step is None or step.phase not in (StepPhase.OVERDUE, StepPhase.FAILED):
            return
        self.ledger.drop(action.node, self.record.name, at)
        back = self.record.phase in BACK_PHASES
        self._set_step(
            with_values(
                step,
                phase=StepPhase.DEFERRED,
                direction=Direction.BACK if back else step.direction,
                changed_at=at,
                cause=f"released by {action.who}: {action.reason}",
                blame=None,
                late=True,
            )
        )
        self.alarms.pop(("overdue", action.node), None)

    # JSON

    def to_json(self) -> dict[str, Any]:
        """Return the rows as JSON."""
        return {
            "schema": model.SCHEMA,
            "record": model.to_json(self.record),
            "whole_cohorts": self.whole_cohorts,
            "nodes": [model.to_json(node) for node in self.nodes.values()],
            "waves": dict(self.wave_of),
            "steps": [model.to_json(step) for step in self.steps.values()],
            "holds": [model.to_json(hold) for hold in self.ledger.all()],
            "ended": [model.to_json(item) for item in self.ledger.ended],
            "freezes": [model.to_json(item) for item in self.freezes.values()],
            "approvals": [model.to_json(item) for item in self.approvals],
            "denied": dict(self.denied),
            "alarms": [[code, subject, text] for (code, subject), text in self.alarms.items()],
            "asked": [[name, wave, at] for (name, wave), at in self.asked.items()],
            "others": [model.to_json(item) for item in self.others],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RolloutState:
        """Return the state of its JSON form. Raises ValueError for another version."""
        if data.get("schema") != model.SCHEMA:
            raise ValueError(f"schema {data.get('schema')!r}, expected {model.SCHEMA}")
        state = cls(
            model.from_json(RolloutRecord, data["record"]),
            [model.from_json(FleetNode, one) for one in data["nodes"]],
            whole_cohorts=data["whole_cohorts"],
        )
        state.wave_of = dict(data["waves"])
        state.steps = {one["node"]: model.from_json(Step, one) for one in data["steps"]}
        state.ledger = Ledger(state.nodes, [model.from_json(Hold, one) for one in data["holds"]])
        for one in data.get("ended", ()):
            state.ledger.add(model.from_json(model.Outage, one))
        state.freezes = {one["id"]: model.from_json(FreezeRecord, one) for one in data["freezes"]}
        state.approvals = [model.from_json(RolloutApproval, one) for one in data["approvals"]]
        state.denied = dict(data["denied"])
        state.alarms = {(code, subject): text for code, subject, text in data["alarms"]}
        state.asked = {(name, wave): at for name, wave, at in data["asked"]}
        state.others = tuple(model.from_json(OtherRollout, one) for one in data["others"])
        state._index()
        return state


@lru_cache(maxsize=1024)  # the nodes of a rollout have few different reasons
def _run_of(reason: str) -> str | None:
    """Return the run whose mark the reason text of a scheduler is."""
    held = mark(reason)
    return None if held is None else held.run


def _observed(
    node: FleetNode,
    digest: str | None,
    boot_id: str | None,
    in_service: bool | None,
    free_at: float,
) -> FleetNode:
    """Return a node with new observed values. `dataclasses.replace` takes three times as long."""
    return FleetNode(
        node.name,
        rack=node.rack,
        leaf=node.leaf,
        cohort=node.cohort,
        tags=node.tags,
        lemon=node.lemon,
        digest=digest,
        boot_id=boot_id,
        in_service=in_service,
        free_at=free_at,
    )


_REDUCERS: Mapping[type[Any], Callable[[RolloutState, Any, float], None]] = {
    model.Start: RolloutState._start,
    model.Grant: RolloutState._grant,
    model.Proceed: RolloutState._proceed,
    model.Finish: RolloutState._finish,
    model.Turn: RolloutState._turn,
    model.Overdue: RolloutState._overdue,
    model.TakeHold: RolloutState._take_hold,
    model.DropHold: RolloutState._drop_hold,
    model.Evaluate: RolloutState._evaluate,
    model.Promote: RolloutState._promote,
    model.Extend: RolloutState._extend,
    model.ChangePhase: RolloutState._change_phase,
    model.Deny: RolloutState._deny,
    model.LiftDenial: RolloutState._lift,
    model.Alarm: RolloutState._alarm,
    model.Freeze: RolloutState._freeze,
    model.Thaw: RolloutState._thaw,
    model.Approve: RolloutState._approve,
    model.Release: RolloutState._release,
}
