"""The view of a rollout for persons: pure functions from the state of a rollout to a document.

The reasons to wait are those of `plan`, which the controller calls with the same state. Only the
answers of requirements come from the log, where the controller writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from goldnode.documents.rollout_status import (
    RolloutStatusAlarm,
    RolloutStatusApproval,
    RolloutStatusBudget,
    RolloutStatusBuffer,
    RolloutStatusController,
    RolloutStatusDocument,
    RolloutStatusFreeze,
    RolloutStatusNode,
    RolloutStatusRemains,
    RolloutStatusRequirement,
    RolloutStatusWait,
    RolloutStatusWave,
)
from goldnode.fleet.rollout.budget import HOUR, use
from goldnode.fleet.rollout.document import RolloutSettings, WaveSettings
from goldnode.fleet.rollout.lines import moment
from goldnode.fleet.rollout.model import (
    ACTIVE,
    Answer,
    Direction,
    FreezeRecord,
    FreezeScope,
    RolloutPhase,
    Step,
    StepPhase,
    Wait,
    gave_up,
)
from goldnode.fleet.rollout.plan import (
    REPLACED,
    SELF,
    approvals,
    needed,
    no_approval,
    passing,
    plan,
)
from goldnode.fleet.rollout.remains import STAY, remaining
from goldnode.fleet.rollout.state import BACK_PHASES, Observations, RolloutState
from goldnode.fleet.rollout.waves import reserve

QUIET = 60.0  # seconds without a sign of life, after which another controller may take over
RUN = "goldnode rollout run DOCUMENT"
WAITING, LATER = "waiting", "not in a wave yet"
GIVEN_UP = "given-up"
_UNREMARKABLE = (StepPhase.DONE, StepPhase.LEFT)


@dataclass(frozen=True)
class RolloutBuffer:
    """A limit of a failure domain, and what is used of it. A limit that is None does not apply."""

    scope: str
    name: str
    kind: str
    used: int
    limit: int | None


@dataclass(frozen=True)
class RolloutFacts:
    """All that a view is made of. Times are seconds since the epoch, UTC."""

    settings: RolloutSettings
    state: RolloutState
    observations: Observations
    author: str
    holder: str | None = None
    beat_at: float | None = None
    ended_at: float | None = None
    buffers: tuple[RolloutBuffer, ...] = ()
    simulated: bool | None = None


def view(facts: RolloutFacts, now: float) -> RolloutStatusDocument:
    """Return the state of a rollout as a document."""
    state, settings, record = facts.state, facts.settings, facts.state.record
    return RolloutStatusDocument(
        schema="goldnode.rollout-status/1",
        at=moment(now),
        rollout=record.name,
        **{"class": settings.class_, "from": settings.origin},
        simulated=facts.simulated,
        to=record.target,
        phase=record.phase.value,
        why=record.why,
        author=facts.author,
        submitted=moment(record.submitted_at),
        started=_moment(record.started_at),
        ended=_moment(facts.ended_at),
        controller=_controller(facts, now),
        waves=[_wave(facts, number) for number in range(len(settings.waves))],
        buffers=[
            RolloutStatusBuffer.model_construct(**{name: getattr(item, name) for name in _BUFFER})
            for item in facts.buffers
        ],
        requirements=list(_requirements(facts, now)),
        states=_sorted(Counter(state_of(state, name) for name in state.nodes)),
        nodes=[_node(facts, step) for step in _notable(state)],
        waits=[_wait(facts, wait) for wait in waits(facts, now)],
        held_back=list(held_back(settings, state)),
        budget=_budget(facts, now),
        remains=[
            RolloutStatusRemains(node=item.node, reason=item.reason, remedy=item.remedy)
            for item in remaining(settings, state)
        ],
        freezes=[
            RolloutStatusFreeze(
                scope=item.scope.value,
                subject=item.subject,
                who=item.who,
                reason=item.reason,
                at=moment(item.at),
            )
            for item in freezes(facts)
        ],
        denied=dict(state.denied),
        alarms=[
            RolloutStatusAlarm(code=code, subject=subject, text=text)
            for (code, subject), text in state.alarms.items()
        ],
    )


_BUFFER = ("scope", "name", "kind", "used", "limit")


def state_of(state: RolloutState, name: str) -> str:
    """Return the state of a node in one word, or the phase of its step. A step back begins with back-."""
    step = state.steps.get(name)
    if step is None:
        return WAITING if name in state.wave_of else LATER
    word = GIVEN_UP if gave_up(step) else step.phase.value
    return f"back-{word}" if step.direction is Direction.BACK else word


def _budget(facts: RolloutFacts, now: float) -> RolloutStatusBudget | None:
    budget = use(facts.settings, facts.state, now)
    if budget is None:
        return None
    return RolloutStatusBudget(
        node_hours=budget.total / HOUR,
        period_days=budget.period / 86400,
        used=budget.used / HOUR,
        reserved=budget.reserved / HOUR,
        text=budget.text(),
        room=budget.room,
        again=_moment(budget.again) if not budget.room else None,
    )


def held_back(settings: RolloutSettings, state: RolloutState) -> tuple[str, ...]:
    """Return the nodes that are held back as known good; none once their wave has begun."""
    wave = settings.waves[state.record.wave : state.record.wave + 1]
    if not settings.known_good or not wave or wave[0].reserve or state.has_ended():
        return ()
    kept = [name for name in state.steps if state.kept(name)]
    taken = {**state.wave_of, **dict.fromkeys(state.ledger.by_node)}
    return tuple(sorted({*kept, *reserve(settings, state.nodes.values(), taken)}))


def freezes(facts: RolloutFacts) -> list[FreezeRecord]:
    """Return the freezes that hold this rollout, racks with nodes of its class included."""
    racks = {node.rack for node in facts.state.nodes.values()}
    subjects: Mapping[FreezeScope, set[str | None]] = {
        FreezeScope.ALL: {""},
        FreezeScope.CLASS: {facts.settings.class_},
        FreezeScope.ROLLOUT: {facts.state.record.name},
        FreezeScope.RACK: racks,
    }
    return [item for item in facts.state.freezes.values() if item.subject in subjects[item.scope]]


def waits(facts: RolloutFacts, now: float) -> list[Wait]:
    """Return why the rollout does not proceed: no controller, nodes of the wave, and the reasons of `plan`."""
    open_waits: list[Wait] = []
    record, controller = facts.state.record, _controller(facts, now)
    if controller.state in ("quiet", "none"):
        open_waits.append(Wait("rollout", _no_controller(controller), "person"))
    decided = plan(facts.settings, facts.state, facts.observations, now)
    open_waits += decided.waits
    if record.phase is RolloutPhase.RUNNING:
        missing = facts.state.wave_size[record.wave] - facts.state.ended[record.wave]
        if missing > 0:
            name = facts.settings.waves[record.wave].name
            open_waits.append(Wait(f"wave {name}", f"{_have(missing)} not ended the step", SELF))
    elif record.phase is RolloutPhase.ROLLING_BACK:
        left = sum(1 for step in facts.state.steps.values() if facts.state.goes_back(step))
        left += len(facts.state.active)
        if left:
            open_waits.append(
                Wait("rollback", f"{_have(left)} not returned to the earlier state", SELF)
            )
    if decided.actions and controller.state == "working" and not open_waits:
        open_waits.append(Wait("rollout", _next(facts), SELF))
    return open_waits


def _next(facts: RolloutFacts) -> str:
    """Return why a controller that works has not acted yet. What it cannot read is in its own output only."""
    known = any(node.in_service for node in facts.state.nodes.values())
    if facts.state.record.phase is RolloutPhase.QUEUED and not known:
        return "no node of the class is known to be in service: the output of the controller has the reason"
    return "the controller acts at its next tick; if this stays, its output has the reason"


def _have(number: int) -> str:
    return "1 node has" if number == 1 else f"{number} nodes have"


def _no_controller(controller: RolloutStatusController) -> str:
    if controller.state == "none":
        return f"no controller runs it, since {controller.since}"
    return f"its controller {controller.holder} has been quiet since {controller.since}"


def _controller(facts: RolloutFacts, now: float) -> RolloutStatusController:
    record, state = facts.state.record, facts.state
    remedy: str | None = RUN
    since = facts.beat_at
    kind: Literal["working", "quiet", "none", "ended"]
    if facts.holder is None or facts.beat_at is None:
        kind, since = "none", facts.beat_at or record.submitted_at
    # abs: a clock that is ahead proves no life, as in take_over.
    elif abs(now - facts.beat_at) > QUIET:
        kind = "quiet"
    else:
        kind, remedy = "working", None
    if kind != "working" and state.has_ended() and not state.active:
        # Nodes of a rollout that has ended move only while a controller runs.
        kind, remedy = (
            "ended",
            STAY if any(map(_moves_later(state), state.steps.values())) else None,
        )
    return RolloutStatusController(
        state=kind, holder=facts.holder, epoch=record.epoch, since=_moment(since), remedy=remedy
    )


def _moves_later(state: RolloutState) -> Callable[[Step], bool]:
    """Return the condition for steps that move after the end of the rollout, when their nodes are free."""
    back = state.record.phase in BACK_PHASES
    return lambda step: step.phase is StepPhase.DEFERRED or (back and state.goes_back(step))


def _wave(facts: RolloutFacts, number: int) -> RolloutStatusWave:
    state, record, wave = facts.state, facts.state.record, facts.settings.waves[number]
    names = [name for name, own in state.wave_of.items() if own == number]
    now: Literal["passed", "present", "stopped", "later"]
    if record.phase is RolloutPhase.QUEUED or number > record.wave:
        now = "later"
    elif number < record.wave or record.phase is RolloutPhase.COMPLETED:
        now = "passed"
    else:
        now = "stopped" if record.phase in (*BACK_PHASES, RolloutPhase.SUPERSEDED) else "present"
    soak = None
    if now == "present" and state.ended[number] >= state.wave_size[number]:
        soak = moment(max(record.finished_at, record.wave_since) + wave.soak)
    return RolloutStatusWave(
        name=wave.name,
        number=number + 1,
        state=now,
        size=_size(facts.settings, wave),
        nodes=len(names),
        states=_sorted(Counter(state_of(state, name) for name in names)),
        soak_until=soak,
        approvals=list(_approvals(facts, wave.name)),
    )


def _size(settings: RolloutSettings, wave: WaveSettings) -> str:
    if wave.reserve:
        return f"{settings.known_good} held back"
    if wave.pool is not None:
        pool = settings.pools[wave.pool]
        count = pool.nodes if pool.nodes is not None else len(pool.hosts or ())
        return f"{count}, pool {wave.pool}"
    return str(wave.nodes) if wave.nodes is not None else f"to {wave.share or 0.0:.0%}"


def _approvals(facts: RolloutFacts, wave: str) -> Iterator[RolloutStatusApproval]:
    given = approvals(facts.settings, facts.state, wave)
    for role in facts.settings.approve.get(wave, ()):
        item = given.get(role)
        yield RolloutStatusApproval(
            role=role, who=item.who if item else None, at=moment(item.at) if item else None
        )


def _requirements(facts: RolloutFacts, now: float) -> Iterator[RolloutStatusRequirement]:
    """Yield the boot requirement as it stands now, and the last answers of the others for the present wave."""
    settings, state, record = facts.settings, facts.state, facts.state.record
    if settings.boot is not None:
        tally = record.tally
        failures = tally.software + tally.absent
        reason = passing(settings, settings.boot, state, now)
        if failures or tally.hardware:
            reason += (
                f"; failed so far: {tally.software} by software, {tally.absent} did not return, "
            )
            reason += f"{tally.hardware} by hardware, of {tally.done + failures + tally.hardware}"
        must = needed(settings, settings.boot, state, now)[0]
        enough = state.wave_size[record.wave] and state.passed[record.wave] >= must
        answer = Answer.PASSES if enough else Answer.UNKNOWN
        stopped = _stopped_by_boot(state)
        if stopped is not None:
            answer, reason = Answer.FAILS, stopped
        yield RolloutStatusRequirement(name="boot", answer=answer.value, reason=reason, at=None)
    for item in settings.outside:
        result = facts.observations.requirements.get((item.name, record.wave))
        answer, reason = Answer.UNKNOWN, "not evaluated for this wave yet"
        if result:
            answer, reason = result.answer, result.reason or "no reason given"
        yield RolloutStatusRequirement(
            name=item.name,
            answer=answer.value,
            reason=reason,
            at=moment(result.at) if result else None,
        )


def _stopped_by_boot(state: RolloutState) -> str | None:
    """Return why the boot requirement has stopped the rollout. A person, or another requirement, may have done it."""
    frozen = f"{state.record.name}:failed" in state.freezes
    if state.record.phase not in BACK_PHASES and not frozen:
        return None
    stop = (
        text
        for (code, rule), text in state.alarms.items()
        if code == "stopped" and rule.startswith("boot:")
    )
    return next(stop, None)


def _notable(state: RolloutState) -> list[Step]:
    """Return the steps that a person may have to look at: those under way first, then failed ones."""
    order = {phase: place for place, phase in enumerate(_ORDER)}
    steps = [
        step
        for step in state.steps.values()
        if step.phase not in _UNREMARKABLE or step.direction is Direction.BACK or gave_up(step)
    ]
    return sorted(steps, key=lambda step: (order[step.phase], step.node))


_ORDER = (
    StepPhase.OVERDUE,
    StepPhase.FAILED,
    StepPhase.GRANTED,
    StepPhase.APPLYING,
    StepPhase.RETURNING,
    StepPhase.PASSED,
    StepPhase.DEFERRED,
    StepPhase.LEFT,
    StepPhase.DONE,
)


def _node(facts: RolloutFacts, step: Step) -> RolloutStatusNode:
    return RolloutStatusNode(
        node=step.node,
        state=state_of(facts.state, step.node),
        wave=facts.settings.waves[step.wave].name,
        since=_moment(step.changed_at),
        deadline=_moment(step.deadline) if step.phase in ACTIVE else None,
        cause=step.cause,
        blame=step.blame.value if step.blame is not None else None,
    )


def _wait(facts: RolloutFacts, wait: Wait) -> RolloutStatusWait:
    return RolloutStatusWait(
        subject=wait.subject,
        reason=wait.reason,
        owner=wait.owner,
        until=_moment(wait.until),
        remedy=_remedy(facts, wait),
    )


def _remedy(facts: RolloutFacts, wait: Wait) -> str | None:
    """Return the command with which a person ends a wait."""
    name, denied = facts.state.record.name, facts.state.denied
    if wait.reason.startswith(no_approval(wait.owner)):
        wave = wait.subject.removeprefix("wave ")
        return f"goldnode rollout approve {name} {wave} --role {wait.owner} --reason REASON"
    for item in facts.state.freezes.values():
        if wait.reason == f"frozen by {item.who}: {item.reason}":
            return f"goldnode rollout unfreeze {scope_option(item)} --reason REASON"
    if facts.state.record.target in denied and "is denied" in wait.reason:
        class_ = facts.settings.class_
        return f"goldnode rollout lift {facts.state.record.target} --class {class_} --reason REASON"
    if wait.reason == REPLACED:
        return "goldnode rollout run DOCUMENT"
    if wait.reason.startswith("the failed buffer is spent"):
        return "goldnode rollout release NODE --reason REASON"
    return RUN if wait.owner == "person" and wait.subject == "rollout" else None


def scope_option(item: FreezeRecord) -> str:
    """Return the option of `unfreeze` for a freeze."""
    return "--all" if item.scope is FreezeScope.ALL else f"--{item.scope.value} {item.subject}"


def _moment(seconds: float | None) -> str | None:
    return moment(seconds) if seconds else None


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
