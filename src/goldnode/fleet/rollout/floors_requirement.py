"""The requirement `floors`: canary results of the nodes that a rollout has changed, before and after.

A result is from before if it is older than the leave of its node, and from after if it is of a
later boot. The control arm are nodes of later waves that were measured between the begin of the
rollout and their own leave. They stay control when they have moved, so that the last wave has a
control arm too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from goldnode.core import extras
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.rollout import RolloutFloors, fraction
from goldnode.fleet.rollout.model import Answer, Direction, Step, StepPhase
from goldnode.fleet.rollout.state import RolloutState
from goldnode.node.ground.text import and_more

if TYPE_CHECKING:
    from goldnode.floors.change import ChangeArms

OLDEST = 30 * 86400.0  # seconds before the rollout, from which on results count as from before
_SHOWN = 2  # verdicts in a reason


@dataclass(frozen=True)
class RolloutMoves:
    """Nodes of a class, and those that a rollout has moved. The nodes of the first wave are never control."""

    begin: float | None  # first leave; None: no node had one
    changed: Mapping[str, Step]
    granted: Mapping[str, float]  # last leave of every node that had one
    nodes: frozenset[str]  # of the class
    first: frozenset[str]  # of the first wave


def moves(state: RolloutState) -> RolloutMoves:
    """Return the nodes that a rollout has moved."""
    granted = {name: step.granted_at for name, step in state.steps.items() if step.attempt}
    changed = {
        name: step
        for name, step in state.steps.items()
        if step.direction is Direction.FORWARD and step.phase is StepPhase.DONE
    }
    first = frozenset(name for name, wave in state.wave_of.items() if wave == 0)
    return RolloutMoves(
        min(granted.values(), default=None), changed, granted, frozenset(state.nodes), first
    )


def judge(
    requirement: RolloutFloors, documents: Sequence[CanaryDocument], moved: RolloutMoves
) -> tuple[Answer, str]:
    """Return the answer of the requirement, and why. Raises GoldnodeError if it cannot be judged."""
    extras.require("floors")
    # An extra, and needed for this requirement alone.
    from goldnode.floors import change
    from goldnode.floors.verdicts import SpeedAnswer

    if moved.begin is None or not moved.changed:
        return Answer.UNKNOWN, "no node has changed yet"
    question = change.ChangeQuestion(
        tuple(change.metric_of(name) for name in requirement.metrics), fraction(requirement.margin)
    )
    report = change.judge(_arms(requirement, documents, moved), question)
    answer = {
        SpeedAnswer.PASSES: Answer.PASSES,
        SpeedAnswer.FAILS: Answer.FAILS,
        SpeedAnswer.INCONCLUSIVE: Answer.UNKNOWN,
    }[report.answer]
    deciding = [one for one in report.verdicts if one.answer is report.answer]
    texts = [f"{one.metric}: {one.reason}" for one in deciding[:_SHOWN]]
    more = and_more(len(deciding) - _SHOWN, "; and {} more metrics")
    label = "simulated results of " if any(one.simulated for one in documents) else ""
    return answer, f"{label}{deciding[0].subject}: {'; '.join(texts)}{more}"


def _arms(
    requirement: RolloutFloors, documents: Sequence[CanaryDocument], moved: RolloutMoves
) -> ChangeArms:
    # Loads numpy, which only the extra `floors` installs.
    from goldnode.floors.change import ChangeArms

    begin = moved.begin or 0.0
    timed = [
        (one, at)
        for one in documents
        if one.node in moved.nodes and (at := seconds_of(one.started)) >= begin - OLDEST
    ]
    meanwhile = [
        one
        for one, at in timed
        if one.node not in moved.first and begin <= at < moved.granted.get(one.node, math.inf)
    ]
    control = frozenset(one.node for one in meanwhile) if requirement.control else frozenset()
    changed = frozenset(moved.changed.keys() - control)
    before = [
        one
        for one, at in timed
        if at < (moved.changed[one.node].granted_at if one.node in changed else begin)
    ]
    after = [
        one
        for one, at in timed
        if one.node in changed and is_after(one, moved.changed[one.node], at)
    ]
    # Of the control arm, "after" is the same time without the change.
    after += [one for one in meanwhile if one.node in control]
    return ChangeArms(before, after, changed, control if requirement.control else None)


def is_after(document: CanaryDocument, step: Step, at: float) -> bool:
    """Return whether a result is from after the change. Between its leave and its boot, a node runs the earlier state."""
    if at >= step.changed_at:  # the node was judged in its new boot
        return True
    earlier = step.prior.boot_id if step.prior is not None else None
    # The node's identity of a boot is the kernel's id, which results have, and the start of its first process.
    return (
        earlier is not None
        and at >= step.granted_at
        and document.boot_id != earlier.partition("/")[0]
    )


def seconds_of(moment: str) -> float:
    """Return a time of a document in seconds since the epoch."""
    return datetime.fromisoformat(moment).timestamp()
