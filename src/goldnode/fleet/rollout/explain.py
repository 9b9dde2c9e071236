"""Explanation of one node in a rollout: where it is, why it does not move, and the command that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from goldnode.fleet.rollout.lines import moment
from goldnode.fleet.rollout.model import (
    ACTIVE,
    HELD_BACK,
    Direction,
    FreezeScope,
    Hold,
    RolloutPhase,
    Step,
    StepPhase,
    gave_up,
)
from goldnode.fleet.rollout.remains import remaining
from goldnode.fleet.rollout.state import BACK_PHASES
from goldnode.fleet.rollout.steps import judge
from goldnode.fleet.rollout.view import RolloutFacts, held_back, state_of, waits
from goldnode.node.ground.text import phrase

_MOVES = "it converges when it is back in service"


@dataclass(frozen=True)
class NodeReason:
    """One sentence about a node, and the command that changes it, if there is one."""

    text: str
    remedy: str | None = None


@dataclass(frozen=True)
class NodeExplanation:
    """A node in a rollout. `state` is the word that `status` has for it."""

    node: str
    rollout: str
    state: str
    wave: str | None
    step: Step | None
    reasons: tuple[NodeReason, ...]


def explain(
    facts: RolloutFacts, name: str, now: float, tests: Callable[[str, str], str] | None = None
) -> NodeExplanation:
    """Return where a node of the class is in the rollout, and why. Raises KeyError for another node.

    :param tests: returns the tests that are outstanding before the return of a node, by results since a time (UTC).
    """
    state, settings = facts.state, facts.settings
    node, step = state.nodes[name], state.steps.get(name)
    number = step.wave if step is not None else state.wave_of.get(name)
    reasons = [*_step(facts, step, now)] if step is not None else []
    returning = step is not None and step.phase is StepPhase.RETURNING and step.cause is None
    if step is not None and returning and tests is not None:
        outstanding = tests(name, moment(step.changed_at))
        reasons += [NodeReason(outstanding)] if outstanding else []
    if _could_move(facts, name, step):
        reasons += _why_not(facts, name, now)
    reasons += [
        NodeReason(f"it {item.reason}", item.remedy)
        for item in remaining(settings, state)
        if item.node == name
    ]
    if name in held_back(settings, state):
        reasons.append(NodeReason(f"it {HELD_BACK} until all waves have passed"))
    if step is None and number is None:
        reasons.append(NodeReason("no wave has it yet: a wave takes its nodes when it begins"))
        if node.digest not in (None, settings.origin):
            reasons.append(
                NodeReason(f"it is not in the state that the rollout moves from: {node.digest}")
            )
    return NodeExplanation(
        node=name,
        rollout=state.record.name,
        state=state_of(state, name),
        wave=settings.waves[number].name if number is not None else None,
        step=step,
        reasons=tuple(reasons),
    )


def _could_move(facts: RolloutFacts, name: str, step: Step | None) -> bool:
    """Return whether the node waits for leave."""
    state = facts.state
    if step is None:
        return name in state.wave_of and state.record.phase is RolloutPhase.RUNNING
    return step.phase in (StepPhase.PASSED, StepPhase.DEFERRED) or (
        state.record.phase in BACK_PHASES and state.goes_back(step)
    )


def _step(facts: RolloutFacts, step: Step, now: float) -> Iterator[NodeReason]:
    state, observations = facts.state, facts.observations
    since = moment(step.changed_at)
    back = " to go back" if step.direction is Direction.BACK else ""
    cause = phrase(": {}", step.cause)
    release = f"goldnode rollout release {step.node} --reason REASON"
    if step.phase is StepPhase.GRANTED:
        seen = observations.scheduler.get(step.node)
        yield NodeReason(
            f"it has leave{back} since {since}, attempt {step.attempt}, and is drained"
        )
        if seen is not None and seen.free_at > now:
            yield NodeReason(f"its last job ends at {moment(seen.free_at)}")
    elif step.phase is StepPhase.APPLYING:
        judgement = judge(step, observations.nodes.get(step.node), state.record.target)
        what = "the earlier state" if step.direction is Direction.BACK else "the new state"
        yield NodeReason(f"{what} is applied since {since}: its verdict from a new boot is missing")
        if judgement.lies:
            yield NodeReason(
                "it reports the wanted state from the boot before the step: not counted"
            )
    elif step.phase is StepPhase.RETURNING:
        yield NodeReason(f"it was judged, and returns to service since {since}{cause}")
    elif step.phase is StepPhase.OVERDUE:
        yield NodeReason(
            f"it is overdue since {since}{cause}. Examine it, then release it", release
        )
    elif step.phase is StepPhase.FAILED:
        blame = f" (counted as {step.blame.value})" if step.blame is not None else ""
        text = f"it failed at {since}{cause}{blame}"
        if state.record.phase in BACK_PHASES and state.goes_back(step):
            yield NodeReason(f"{text}, and goes back to its earlier state")
        else:
            yield NodeReason(f"{text}. Repair it, then release it", release)
    elif gave_up(step):
        yield NodeReason(f"the rollout went on without it at {since}{cause}")
    elif step.phase is StepPhase.LEFT:
        yield NodeReason(
            f"it is left alone{cause or ': it is not in the state that the rollout moves from'}"
        )
    elif step.phase is StepPhase.DEFERRED:
        yield NodeReason(f"its wave does not wait for it since {since}{cause}; {_MOVES}")
    elif step.phase is StepPhase.PASSED:
        yield NodeReason(f"it was passed over at {since}{cause}; it waits for leave again")
    else:
        where = "in its earlier state" if step.direction is Direction.BACK else "in the new state"
        yield NodeReason(f"it is {where} since {since}")
    if step.phase in ACTIVE:
        after = (
            "its leave ends and it returns" if step.phase is StepPhase.GRANTED else "it is overdue"
        )
        passed = "has passed" if step.deadline < now else "is"
        yield NodeReason(f"the deadline {passed} {moment(step.deadline)}: then {after}")


def _why_not(facts: RolloutFacts, name: str, now: float) -> Iterator[NodeReason]:
    """Yield why a node that waits has no leave: the node itself first, then its groups, then the rollout."""
    state, settings = facts.state, facts.settings
    node = state.nodes[name]
    holds = state.ledger.by_node.get(name, {})
    for hold in holds.values():
        yield _held(hold)
    if not holds and node.in_service is None:
        yield NodeReason("its scheduler has not reported it")
    if node.digest is None:
        yield NodeReason("it has not reported its state")
    elif node.digest != settings.origin and state.record.phase not in BACK_PHASES:
        yield NodeReason(f"it is not in the state that the rollout moves from: {node.digest}")
    if node.free_at > now + settings.drain_wait:
        longest = f"{settings.drain_wait / 3600:g} h"
        yield NodeReason(
            f"it is busy until {moment(node.free_at)}, longer than drain.wait ({longest})"
        )
    for item in state.freezes.values():
        if item.scope is FreezeScope.RACK and item.subject == node.rack:
            remedy = f"goldnode rollout unfreeze --rack {item.subject} --reason REASON"
            yield NodeReason(f"rack {item.subject} is frozen by {item.who}: {item.reason}", remedy)
    for scope, limit, counts in (
        ("rack", settings.limits.rack, state.ledger.planned_racks),
        ("leaf", settings.limits.leaf, state.ledger.planned_leaves),
    ):
        group = getattr(node, scope)
        if group is not None and limit is not None and counts[group] >= limit:
            yield NodeReason(
                f"{scope} {group} has {counts[group]} planned nodes out, the limit is {limit}"
            )
    members = state.members[state.unit[name]]
    if len(members) > 1:
        yield NodeReason(
            f"it moves with its cohort {node.cohort}: {len(members)} nodes, all or none"
        )
    for wait in waits(facts, now):
        if wait.subject in ("rollout", "grants"):
            yield NodeReason(f"{wait.subject}: {wait.reason}")


def _held(hold: Hold) -> NodeReason:
    text = f"it is out of service ({hold.kind.value}, {hold.owner}) since {moment(hold.since)}: {hold.reason}"
    return NodeReason(text, f"goldnode rollout release {hold.node} --reason REASON")
