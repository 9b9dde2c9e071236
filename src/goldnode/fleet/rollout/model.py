"""Types of a rollout: nodes, steps, holds, observations, actions. Frozen, and plain JSON outside.

`plan` reads them and returns actions. A store writes each action and the rows it changes in one
transaction; `state.RolloutState.apply` does the same in memory. Times are seconds since the epoch,
UTC.

The tables of a store follow from these types: `rollout` (RolloutRecord), `node` (FleetNode), `step`
(Step), `hold` (Hold), `observation` (NodeObservation, SchedulerObservation, RequirementResult),
`freeze` (FreezeRecord), `approval` (RolloutApproval), `denied`, and the log of actions (LogEntry).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

SCHEMA = "goldnode.rollout-state/1"  # of the JSON forms below
Item = TypeVar("Item")


class RolloutPhase(StrEnum):
    """Phase of a rollout. A freeze is not a phase: a frozen rollout continues where it stopped."""

    QUEUED = "queued"  # another rollout of the class is active
    RUNNING = "running"
    ROLLING_BACK = "rolling-back"
    COMPLETED = "completed"  # deferred nodes still converge when they return
    ROLLED_BACK = "rolled-back"
    SUPERSEDED = "superseded"  # by a rollout of the security lane


class Direction(StrEnum):
    """Direction of a step: to the target of the rollout, or back to the node's own earlier state."""

    FORWARD = "forward"
    BACK = "back"


class StepPhase(StrEnum):
    """Phase of the step of one node. A node without a step waits."""

    GRANTED = "granted"  # may be out of service; it is drained
    APPLYING = "applying"  # drained: apply, boot, and wait for the verdict of the new boot
    RETURNING = "returning"  # judged; the return to service is under way
    DONE = "done"
    FAILED = "failed"
    OVERDUE = "overdue"  # did not report in time; only a person releases it
    DEFERRED = "deferred"  # out of service for another reason; converges before it serves again
    PASSED = "passed"  # was busy for too long; back in the queue
    LEFT = "left"  # neither in the state `from` nor in the target: reported, not touched


ACTIVE = frozenset({StepPhase.GRANTED, StepPhase.APPLYING, StepPhase.RETURNING})
# A wave is complete when all of its nodes are in one of these.
ENDED = frozenset(
    {StepPhase.DONE, StepPhase.FAILED, StepPhase.OVERDUE, StepPhase.DEFERRED, StepPhase.LEFT}
)


class HoldKind(StrEnum):
    """Buffer from which a node that is out of service is paid."""

    PLANNED = "planned"  # by a rollout, for one step
    FAILED = "failed"  # it failed, or is overdue
    PERSON = "person"  # drained by a person or another system


class Blame(StrEnum):
    """Cause of a failed step, as far as it counts: against the change, the node, or neither."""

    SOFTWARE = "software"  # a finding of the new state, a panic, a fall-back
    HARDWARE = "hardware"
    ABSENT = "absent"  # it did not return: counted against the base rate, but no cause by itself


class Answer(StrEnum):
    """Answer of a requirement or a verdict. No data is unknown, and unknown never promotes."""

    PASSES = "pass"
    FAILS = "fail"
    UNKNOWN = "unknown"


class FreezeScope(StrEnum):
    """Nodes to which a freeze applies."""

    ALL = "all"
    CLASS = "class"
    RACK = "rack"
    ROLLOUT = "rollout"


class BackScope(StrEnum):
    """Nodes that a rollback moves."""

    FAILED = "failed"
    WAVE = "wave"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node of the class, from the inventory. `digest` and `boot_id` are the last observed ones."""

    name: str
    rack: str | None = None
    leaf: str | None = None
    cohort: str | None = None
    tags: tuple[str, ...] = ()
    lemon: bool | None = None  # None: unknown, scores do not exist
    digest: str | None = None
    boot_id: str | None = None
    in_service: bool | None = None
    free_at: float = 0.0  # end of the last job; 0 is idle


@dataclass(frozen=True, slots=True)
class Prior:
    """State of a node before its step. It is written before the drain, and decides what the return restores."""

    in_service: bool
    digest: str | None
    boot_id: str | None
    reason: str = ""  # reason text of the scheduler, restored word by word
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Work on one node. The key is rollout and node; `attempt` counts the grants."""

    node: str
    wave: int
    direction: Direction
    phase: StepPhase
    epoch: int
    attempt: int
    granted_at: float
    changed_at: float  # an older observation does not count
    deadline: float
    prior: Prior | None = None
    cause: str | None = None
    blame: Blame | None = None
    late: bool = False  # it was deferred before: no wave waits for it


HELD_BACK = "is held back as known good"  # cause of a step that waits for the wave of these nodes
GAVE_UP = "was busy at each of"  # and the number of its grants: the beginning of a cause


def gave_up(step: Step) -> bool:
    """Return whether the rollout went on without a node, because it was busy at each of its grants."""
    return step.phase is StepPhase.LEFT and (step.cause or "").startswith(GAVE_UP)


_Item = TypeVar("_Item")


@lru_cache
def _fields_of(kind: Any) -> tuple[dict[str, int], Callable[[Any], tuple[Any, ...]]]:
    """Return the place of each field of a dataclass, and a function that returns the values of all."""
    names = [item.name for item in dataclasses.fields(kind)]
    return {name: place for place, name in enumerate(names)}, attrgetter(*names)


def with_values(item: _Item, **values: Any) -> _Item:
    """Return a dataclass of several fields with other values. `dataclasses.replace` takes half as long again."""
    kind: Any = type(item)
    places, all_of = _fields_of(kind)
    fields = list(all_of(item))
    for name, value in values.items():
        fields[places[name]] = value
    changed: _Item = kind(*fields)
    return changed


@dataclass(frozen=True, slots=True)
class Hold:
    """One reason why a node is out of service. The key is node and owner."""

    node: str
    owner: str  # a rollout, a person, the health check
    kind: HoldKind
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Time for which a node was out of service, once it has ended."""

    begin: float
    end: float
    kind: HoldKind


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """The newest report of a node. `at` is the time at which the store received it, by the clock of the store."""

    node: str
    at: float
    boot_id: str | None = None
    digest: str | None = None
    verdict: Answer | None = None  # of the boot `boot_id`
    software: tuple[str, ...] = ()  # codes of findings
    hardware: tuple[str, ...] = ()
    fell_back_from: str | None = None  # digest that this node tried and gave up
    not_applied: str | None = None  # why the wanted state could not be applied: no boot followed

    def answer_of(self, digest: str | None, earlier_boot: str | None) -> Answer:
        """Return the verdict on a state. It is unknown unless this report is of that state and of another boot."""
        if self.digest != digest or self.boot_id in (None, earlier_boot):
            return Answer.UNKNOWN
        return self.verdict or Answer.UNKNOWN


@dataclass(frozen=True, slots=True)
class SchedulerObservation:
    """The newest state of a node in its scheduler."""

    node: str
    at: float
    in_service: bool
    free_at: float = 0.0  # end of the last job; 0 is idle, and not later than `at` is idle too
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequirementResult:
    """Answer of one requirement for one wave."""

    requirement: str  # its name in the document
    wave: int
    answer: Answer
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FreezeSpan:
    """One freeze of a calendar: its first second, and the first one after it."""

    begin: float
    end: float
    summary: str


@dataclass(frozen=True, slots=True)
class CalendarReading:
    """Freezes of one calendar file as far as they are expanded, or why it could not be read."""

    calendar: str  # its name in the site file
    at: float
    until: float  # no freeze after it is known
    spans: tuple[FreezeSpan, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class FreezeRecord:
    """A freeze in force: no new grant, no promotion. Nodes in flight finish and return."""

    id: str
    scope: FreezeScope
    subject: str  # class, rack or rollout; empty for all
    reason: str
    who: str
    at: float


@dataclass(frozen=True, slots=True)
class RolloutApproval:
    """Approval of a wave by an authenticated person in a role."""

    wave: str
    role: str
    who: str
    at: float
    document: str = (
        ""  # digest of the document that was approved; empty: by an earlier goldnode, not known
    )


@dataclass(frozen=True, slots=True)
class OtherRollout:
    """Another rollout of the same class that has not ended."""

    name: str
    security: bool
    submitted_at: float
    busy: bool  # it has nodes out of service


@dataclass(frozen=True, slots=True)
class Tally:
    """Steps forward that ended since a person last accepted the failures, and what the two arms saw since then."""

    done: int = 0
    software: int = 0
    absent: int = 0
    hardware: int = 0
    causes: tuple[tuple[str, int], ...] = ()  # of software failures in the first two waves
    changed_events: int = 0  # hardware findings on nodes in service with the new state
    control_events: int = 0  # and with the earlier state


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The row of a rollout."""

    name: str
    class_: str
    origin: str  # lock or disk build that nodes move away from
    target: str  # and that they move to
    phase: RolloutPhase = RolloutPhase.QUEUED
    epoch: int = 0
    wave: int = 0
    why: str = ""
    back: BackScope | None = None
    submitted_at: float = 0.0
    started_at: float = 0.0
    wave_since: float = 0.0
    finished_at: float = 0.0  # end of the last step of the wave
    accepted_at: float = 0.0  # when a person last accepted the failures so far
    tally: Tally = Tally()


# Actions. `plan` returns those of the first part; persons cause those of the second. Each is one line of the log.


@dataclass(frozen=True, slots=True)
class Start:
    """Begin with the nodes of the first wave."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """Let a node be out of service for one step. A store checks limits and epoch again in this transaction."""

    node: str
    direction: Direction
    attempt: int
    deadline: float
    prior: Prior


@dataclass(frozen=True, slots=True)
class Proceed:
    """Move an active step to its next phase. With `cause` it returns without having been applied."""

    node: str
    phase: StepPhase  # APPLYING or RETURNING
    deadline: float
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """End a step. With `failed` the node stays out, paid by the failed buffer; otherwise its hold ends."""

    node: str
    phase: StepPhase
    wave: int
    cause: str | None = None
    blame: Blame | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn a drained node back to its own earlier state, without a return to service in between."""

    node: str
    attempt: int
    deadline: float
    cause: str | None = None
    blame: Blame | None = None


@dataclass(frozen=True, slots=True)
class Overdue:
    """A deadline has passed: the hold moves from the planned to the failed buffer."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class TakeHold:
    """Record that a node is out of service for a reason outside of this rollout."""

    node: str
    owner: str
    kind: HoldKind
    reason: str


@dataclass(frozen=True, slots=True)
class DropHold:
    """Record that a reason outside of this rollout has ended."""

    node: str
    owner: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Ask for the answer of a requirement. The caller evaluates it and records a RequirementResult."""

    requirement: str
    wave: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Begin the next wave with its nodes, which are chosen now: those that are free soon go first."""

    wave: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extend:
    """Add nodes to the present wave: too few of its nodes have passed."""

    wave: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangePhase:
    """Change the phase of the rollout."""

    phase: RolloutPhase
    why: str
    back: BackScope | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """Put a digest on the deny list of the class, until a person lifts it."""

    digest: str
    reason: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """Notify a person. The key is code and subject: an alarm in force is not repeated."""

    code: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop grants and promotions."""

    id: str
    scope: FreezeScope
    subject: str
    reason: str
    who: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """Lift a freeze. Failures so far are accepted: the failure rule counts from here."""

    id: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Approve:
    """Approve a wave of one document."""

    wave: str
    role: str
    who: str
    document: str = ""  # its digest; a line of an earlier goldnode has none


@dataclass(frozen=True, slots=True)
class Release:
    """Release a failed or overdue node. It converges before it serves again."""

    node: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class LiftDenial:
    """Take a digest off the deny list."""

    digest: str
    who: str
    reason: str


Action: TypeAlias = (
    Start
    | Grant
    | Proceed
    | Finish
    | Turn
    | Overdue
    | TakeHold
    | DropHold
    | Evaluate
    | Promote
    | Extend
    | ChangePhase
    | Deny
    | Alarm
    | Freeze
    | Thaw
    | Approve
    | Release
    | LiftDenial
)
ACTIONS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Action)}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log. The state follows from the log alone."""

    seq: int
    at: float
    epoch: int
    action: Action


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason why the rollout does not proceed now, with its owner, and its end where that is known."""

    subject: str
    reason: str
    owner: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The actions to take now, the reasons to wait, and the time at which waiting alone changes something.

    After actions, the caller plans again: later decisions use their results.
    """

    actions: tuple[Action, ...]
    waits: tuple[Wait, ...] = ()
    wake_at: float | None = None


_HINTS: dict[type[Any], dict[str, Any]] = {}


def action_to_json(action: Action) -> dict[str, Any]:
    """Return an action as JSON, with its name as `action`."""
    return {"action": type(action).__name__, **dataclasses.asdict(action)}


def action_from_json(data: Mapping[str, Any]) -> Action:
    """Return the action of its JSON form. Raises ValueError for an unknown one."""
    kind = ACTIONS.get(str(data.get("action")))
    if kind is None:
        raise ValueError(f"unknown action {data.get('action')!r}")
    action: Action = from_json(
        kind, {name: value for name, value in data.items() if name != "action"}
    )
    return action


def to_json(item: Any) -> dict[str, Any]:
    """Return a frozen type of this module as JSON."""
    return dataclasses.asdict(item)


def from_json(kind: type[Item], data: Mapping[str, Any]) -> Item:
    """Return an instance of a frozen type of this module from its JSON form. Raises ValueError or TypeError."""
    if kind not in _HINTS:  # it takes longer than everything else here
        _HINTS[kind] = typing.get_type_hints(kind)
    hints = _HINTS[kind]
    unknown = set(data) - set(hints)
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _value(
            next(one for one in typing.get_args(hint) if one is not types.NoneType), value
        )
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, one) for one in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_json(hint, value)
    return float(value) if hint is float else value
