"""Rules that every trace of a rollout obeys, simulated or real. They do not use the decisions of `plan`.

The simulator, the tests and a store feed each action and the state that follows it to a
`TraceAudit`. A trace of a real rollout that it refuses shows that the simulator and production
differ.
"""

from __future__ import annotations

import math

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import (
    ACTIVE,
    Action,
    Answer,
    ChangePhase,
    Direction,
    Finish,
    FreezeScope,
    Grant,
    Proceed,
    Promote,
    RolloutPhase,
    Step,
    StepPhase,
)
from goldnode.fleet.rollout.state import Observations, RolloutState
from goldnode.node.ground.optional import optional

# Phase of a step -> the phases that may follow it. None is a node without a step.
_NEXT: dict[StepPhase | None, frozenset[StepPhase]] = {
    None: frozenset({StepPhase.GRANTED, StepPhase.DEFERRED, StepPhase.LEFT}),
    StepPhase.GRANTED: frozenset({StepPhase.APPLYING, StepPhase.RETURNING, StepPhase.OVERDUE}),
    StepPhase.APPLYING: frozenset(
        {
            StepPhase.APPLYING,
            StepPhase.RETURNING,
            StepPhase.DONE,
            StepPhase.FAILED,
            StepPhase.OVERDUE,
        }
    ),  # applying again: turned back
    StepPhase.RETURNING: frozenset(
        {StepPhase.DONE, StepPhase.PASSED, StepPhase.OVERDUE, StepPhase.LEFT}
    ),  # left: busy at each grant
    StepPhase.PASSED: frozenset({StepPhase.GRANTED, StepPhase.DEFERRED, StepPhase.LEFT}),
    StepPhase.DEFERRED: frozenset({StepPhase.GRANTED, StepPhase.DEFERRED, StepPhase.LEFT}),
    StepPhase.DONE: frozenset({StepPhase.GRANTED, StepPhase.FAILED}),  # granted: back
    StepPhase.FAILED: frozenset({StepPhase.GRANTED, StepPhase.DEFERRED}),  # deferred: released
    StepPhase.OVERDUE: frozenset({StepPhase.DEFERRED}),
    StepPhase.LEFT: frozenset(),
}


class TraceAudit:
    """The violations of a trace so far. Call `before` and `after` around each action."""

    def __init__(self, settings: RolloutSettings) -> None:
        self.settings = settings
        self.violations: list[str] = []
        self._step: Step | None = None
        self._was_out = False

    def _refuse(self, at: float, action: Action, why: str) -> None:
        self.violations.append(f"at {at:.0f}: {action}: {why}")

    def before(self, state: RolloutState, action: Action) -> None:
        """Remember the node of an action as it is before it."""
        node = getattr(action, "node", None)
        self._step = optional(state.steps.get, node)
        self._was_out = node in state.ledger.by_node

    def after(
        self, state: RolloutState, observations: Observations, action: Action, at: float
    ) -> None:
        """Check one action and the state that follows it."""
        node = getattr(action, "node", None)
        now = optional(state.steps.get, node)
        if now is not None and now is not self._step:
            allowed = _NEXT[None if self._step is None else self._step.phase]
            if now.phase not in allowed:
                self._refuse(at, action, f"the step was {self._step and self._step.phase}")
        if isinstance(action, Grant):
            self._grant(state, action, at)
        elif isinstance(action, Promote) or (
            isinstance(action, ChangePhase) and action.phase is RolloutPhase.COMPLETED
        ):
            self._promote(state, observations, action, at)
        elif isinstance(action, Proceed | Finish):
            self._return(state, observations, action, at)
        if node is not None and self.settings.limits.whole_cohorts:
            self._cohort(state, action, at)

    def _grant(self, state: RolloutState, action: Grant, at: float) -> None:
        limits, size, ledger = self.settings.limits, len(state.nodes), state.ledger
        step, node = state.steps[action.node], state.nodes[action.node]
        forward = action.direction is Direction.FORWARD
        earlier = 0 if self._step is None else self._step.attempt
        wrong = {
            "a step of this node is active": self._step is not None and self._step.phase in ACTIVE,
            "its attempt was granted before": action.attempt != earlier + 1,
            "its epoch is not the present one": step.epoch != state.record.epoch,
            "more than limits.planned": ledger.planned > limits.planned.nodes(size),
            "more than limits.total": not self._was_out and ledger.out > limits.total.nodes(size),
            "the failed buffer is spent": not self._was_out
            and ledger.failed > limits.failed.nodes(size),
            "another owner holds the node": bool(ledger.others(action.node, state.record.name)),
            "its wave has not begun": step.wave > state.record.wave,
            "the target is denied": forward and state.record.target in state.denied,
            "the node is in another state": forward
            and node.digest != state.record.origin
            and not (node.digest == state.record.target and earlier),
            "it is frozen": self._frozen(state, node.rack),
            "more than limits.per.rack": limits.rack is not None
            and node.rack is not None
            and ledger.planned_racks[node.rack] > limits.rack,
            "more than limits.per.leaf": limits.leaf is not None
            and node.leaf is not None
            and ledger.planned_leaves[node.leaf] > limits.leaf,
            "the rollout is not active": state.record.phase
            in (RolloutPhase.QUEUED, RolloutPhase.SUPERSEDED),
        }
        for why in (text for text, violated in wrong.items() if violated):
            self._refuse(at, action, why)

    def _frozen(self, state: RolloutState, rack: str | None = None) -> bool:
        subjects = {
            FreezeScope.ALL: "",
            FreezeScope.CLASS: self.settings.class_,
            FreezeScope.ROLLOUT: state.record.name,
            FreezeScope.RACK: rack,
        }
        return any(item.subject == subjects[item.scope] for item in state.freezes.values())

    def _promote(
        self,
        state: RolloutState,
        observations: Observations,
        action: Promote | ChangePhase,
        at: float,
    ) -> None:
        wave, boot = state.record.wave, self.settings.boot
        if isinstance(action, Promote):
            wave = action.wave - 1
        if self._frozen(state):
            self._refuse(at, action, "it is frozen")
        if state.wave_size[wave] == 0:
            return
        good = [
            step
            for step in state.steps.values()
            if step.wave == wave
            and step.direction is Direction.FORWARD
            and step.phase is StepPhase.DONE
        ]
        if boot is None or len(good) < self._least(state, boot.judged, wave):
            self._refuse(at, action, "too few nodes have passed")
        for item in self.settings.outside:
            result = observations.requirements.get((item.name, wave))
            if result is None or result.answer is not Answer.PASSES:
                self._refuse(at, action, f"requirement {item.name} has not passed")

    def _least(self, state: RolloutState, judged: float, wave: int) -> int:
        """Return how many nodes of a wave must have passed: of those that moved, if no other node could."""
        size = state.wave_size[wave]
        absent = sum(
            step.wave == wave
            and step.direction is Direction.FORWARD
            and step.phase in (StepPhase.DEFERRED, StepPhase.LEFT)
            for step in state.steps.values()
        )
        replaced = any(
            node.in_service and node.digest == state.record.origin and name not in state.wave_of
            for name, node in state.nodes.items()
        )
        if not replaced and (wave > 0 or absent < size):
            size -= absent
        return max(int(size > 0), math.ceil(judged * size - 1e-9))

    def _return(
        self, state: RolloutState, observations: Observations, action: Proceed | Finish, at: float
    ) -> None:
        step = self._step
        if step is None or step.direction is Direction.BACK:
            return
        returns = action.phase is StepPhase.RETURNING and action.cause is None
        done = action.phase is StepPhase.DONE
        if returns and state.record.target in state.denied:
            self._refuse(at, action, "it returns with a denied state")
        attempts = self.settings.drain_attempts
        if (
            action.phase is StepPhase.LEFT
            and step.phase is StepPhase.RETURNING
            and (step.attempt < attempts and not self.settings.limits.whole_cohorts)
        ):
            self._refuse(at, action, "it was given up before its last attempt")
        report = observations.nodes.get(action.node)
        prior = step.prior
        if (returns or (done and step.phase is StepPhase.APPLYING)) and (
            report is None
            or prior is None
            or report.answer_of(state.record.target, prior.boot_id) is not Answer.PASSES
        ):
            self._refuse(at, action, "no verdict of a new boot with the target passes")
        seen = observations.scheduler.get(action.node)
        restored = (seen is not None and seen.in_service) or bool(
            state.ledger.others(action.node, state.record.name)
        )
        if done and prior is not None and prior.in_service and not restored:
            self._refuse(at, action, "it was in service before, and is not now")

    def _cohort(self, state: RolloutState, action: Action, at: float) -> None:
        """Check that the nodes of a cohort in service are in one state, without those that a person returned late."""
        served = set()
        for name in state.members[state.unit[getattr(action, "node", "")]]:
            step = state.steps.get(name)
            if name in state.ledger.by_node or (step is not None and step.late):
                continue
            if step is not None and step.phase is StepPhase.LEFT:
                continue
            moved = (
                step is not None
                and step.direction is Direction.FORWARD
                and step.phase is StepPhase.DONE
            )
            served.add(moved)
        if len(served) > 1:
            self._refuse(at, action, "its cohort serves in two states")
