"""Nodes that a rollback leaves behind, each with the reason and the command that ends it.

A rollback moves the nodes in its scope. Others may still have the denied state, or stay out of
service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Direction, Step, StepPhase, gave_up
from goldnode.fleet.rollout.state import BACK_PHASES, RolloutState
from goldnode.node.ground.text import and_more

STAY = "goldnode rollout run DOCUMENT --stay"
_SHOWN = 8  # names of nodes in one sentence


@dataclass(frozen=True)
class RemainingNode:
    """A node that is not as a rollback wants it. The reason begins with a verb."""

    node: str
    reason: str
    remedy: str


def remaining(settings: RolloutSettings, state: RolloutState) -> list[RemainingNode]:
    """Return the nodes that have the denied state or stay out of service, and that the rollback does not move now.

    Outside of a rollback these are the nodes with a denied target.
    """
    nodes: list[RemainingNode] = []
    for name in sorted(state.nodes):
        if name not in state.active:
            nodes += _of(settings, state, name)
    return nodes


def sentence(found: list[RemainingNode]) -> str:
    """Return the nodes with their reasons in one sentence."""
    names: dict[str, list[str]] = {}
    for item in found:
        names.setdefault(item.reason, []).append(item.node)
    return "; ".join(f"{few(nodes)} {reason}" for reason, nodes in names.items())


def behind(state: RolloutState) -> str:
    """Return how many nodes a rollout has not moved, or has moved and lost, by reason; empty if it has moved all."""
    counts = Counter(_behind(step) for step in state.steps.values())
    parts = [f"{counts[text]} {text}" for text in _BEHIND if counts[text]]
    number = sum(counts[text] for text in _BEHIND)
    nodes = f"{number} {'node is' if number == 1 else 'nodes are'} left"
    return f"{nodes} ({', '.join(parts)})" if parts else ""


_BUSY, _DEFERRED, _FAILED, _OVERDUE = _BEHIND = (
    "busy at each grant",
    "out of service or busy",
    "failed",
    "overdue",
)


def _behind(step: Step) -> str:
    """Return why a step has not moved its node into service; empty if it has, or had nothing to do."""
    if gave_up(step):
        return _BUSY
    texts = {
        StepPhase.DEFERRED: _DEFERRED,
        StepPhase.FAILED: _FAILED,
        StepPhase.OVERDUE: _OVERDUE,
    }
    return texts.get(step.phase, "")


def few(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = and_more(len(names) - _SHOWN)
    return f"{' '.join(names[:_SHOWN])}{more}"


def _of(settings: RolloutSettings, state: RolloutState, name: str) -> Iterator[RemainingNode]:
    """Yield the one reason why a node remains, if there is one."""
    step, record = state.steps.get(name), state.record
    back = record.phase in BACK_PHASES
    if back and step is not None and state.goes_back(step):
        held = [hold.reason or hold.owner for hold in state.ledger.others(name, record.name)]
        if held:
            yield RemainingNode(name, f"goes back when it is in service again ({held[0]})", STAY)
        elif state.has_ended():
            yield RemainingNode(name, "goes back while a controller runs", STAY)
    elif back and step is not None and step.phase in (StepPhase.FAILED, StepPhase.OVERDUE):
        blame = f"{step.blame.value}: " if step.blame is not None else ""
        reason = f"stays out of service ({blame}{step.cause or step.phase.value}): repair it, then release it"
        yield RemainingNode(name, reason, f"goldnode rollout release {name} --reason REASON")
    elif record.target in state.denied and _has_target(state, name, step):
        yield _in_denied_state(settings, state, name, step)
    elif not back and step is not None and gave_up(step):
        command = f"goldnode disks update -i INVENTORY {name}"
        if settings.target.startswith("sha256:"):
            command = f"ansible-playbook -i INVENTORY site.yml --limit {name}"
        reason = f"has the earlier state: it {step.cause}. Update it when it is free"
        yield RemainingNode(name, reason, command)


def _has_target(state: RolloutState, name: str, step: Step | None) -> bool:
    digest = state.nodes[name].digest
    moved = (
        step is not None and step.direction is Direction.FORWARD and step.phase is StepPhase.DONE
    )
    return digest == state.record.target or (digest is None and moved)


def _in_denied_state(
    settings: RolloutSettings, state: RolloutState, name: str, step: Step | None
) -> RemainingNode:
    record = state.record
    if step is not None and step.direction is Direction.FORWARD and step.phase is StepPhase.DONE:
        scope = "nothing moves it back"
        if record.back:
            scope = f"the rollback ({record.back.value}) leaves it there"
        order = f"goldnode rollout rollback {record.name} --what all --reason REASON"
        return RemainingNode(name, f"has the denied state: {scope}", order)
    lock = settings.target.startswith("sha256:")
    command = f"ansible-playbook -i INVENTORY rollback.yml --limit {name}"
    why = "and not by a step of this rollout"
    if step is not None and gave_up(step):
        why = f"and {step.cause} to go back"
    return RemainingNode(
        name,
        f"has the denied state, {why}",
        command if lock else f"goldnode disks update --back -i INVENTORY {name}",
    )
