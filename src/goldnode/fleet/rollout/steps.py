"""Meaning of observations for nodes: which step proceeds or ends, who is to blame, and who else is out of service."""

from __future__ import annotations

from dataclasses import dataclass, field

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import (
    GAVE_UP,
    Action,
    Alarm,
    Answer,
    Blame,
    Direction,
    DropHold,
    Finish,
    HoldKind,
    NodeObservation,
    Overdue,
    Proceed,
    Step,
    StepPhase,
    TakeHold,
    Turn,
)
from goldnode.fleet.rollout.state import BACK_PHASES, HEALTH, OUTSIDE, Observations, RolloutState

STOPPED = "the change was stopped before it was applied"
BUSY = "still busy when the time for the drain was over"
TAKEN = "another drained it before the change"


@dataclass
class StepDecisions:
    """Actions, and the times at which a deadline passes."""

    actions: list[Action] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Judgement:
    """Judgement of a step by the reports of its node. `answer` is unknown until a report of the new boot counts."""

    answer: Answer
    cause: str | None = None
    blame: Blame | None = None
    lies: bool = False  # it reports the wanted state from the boot before the step


UNDECIDED = Judgement(Answer.UNKNOWN)


def decide(
    settings: RolloutSettings, state: RolloutState, observations: Observations, now: float
) -> StepDecisions:
    """Return the actions on nodes that the newest observations and the passed deadlines cause."""
    decider = _Decider(settings, state, observations, now)
    decider.decide_steps()
    decider.decide_outside()
    decider.decide_strays()
    return decider.found


def judge(step: Step, report: NodeObservation | None, target: str) -> Judgement:
    """Judge an applying step by the newest report of its node.

    Only a report counts that is newer than the step's last change, of another boot than the one
    before the step, and of the wanted state; or one that the wanted state could not be applied.
    """
    prior = step.prior
    if report is None or prior is None or report.at <= step.changed_at:
        return UNDECIDED
    forward = step.direction is Direction.FORWARD
    wanted = target if forward else prior.digest
    if report.not_applied:
        of_node = report.hardware and not report.software
        return Judgement(
            Answer.FAILS, report.not_applied, Blame.HARDWARE if of_node else Blame.SOFTWARE
        )
    if report.boot_id is None or report.boot_id == prior.boot_id:
        return Judgement(
            Answer.UNKNOWN, lies=report.digest == wanted and report.verdict is Answer.PASSES
        )
    if forward and report.fell_back_from == target:
        cause = next(iter(report.software), "fell back to the earlier state")
        return Judgement(Answer.FAILS, cause, Blame.SOFTWARE)
    if report.digest != wanted or report.verdict in (None, Answer.UNKNOWN):
        return UNDECIDED
    if report.verdict is Answer.PASSES:
        return Judgement(Answer.PASSES)
    if report.software or not report.hardware:
        cause = next(iter(report.software), "verdict without a finding")
        return Judgement(Answer.FAILS, cause, Blame.SOFTWARE)
    return Judgement(Answer.FAILS, report.hardware[0], Blame.HARDWARE)


class _Decider:
    def __init__(
        self, settings: RolloutSettings, state: RolloutState, observations: Observations, now: float
    ) -> None:
        self.settings, self.state, self.observations, self.now = settings, state, observations, now
        self.found = StepDecisions()

    def _act(self, *actions: Action) -> None:
        self.found.actions += actions

    # Active steps, unit by unit: a cohort that moves whole drains together and returns together

    def decide_steps(self) -> None:
        """Decide about each unit whose nodes have a new observation, and about all where time or a stop decides."""
        state = self.state
        soonest = state.soonest_deadline()
        if soonest is None:
            return
        self.found.wakes.append(soonest + 1.0)  # a step is overdue after its deadline, not at it
        everything = (
            self.now > soonest
            or state.record.phase in BACK_PHASES
            or state.record.target in state.denied
        )
        names = state.active if everything else state.fresh
        if not state.whole_cohorts:
            for name in names:
                self._unit([state.active[name]])
            return
        for unit in dict.fromkeys(state.unit[name] for name in names):
            self._unit([state.active[name] for name in state.members[unit] if name in state.active])

    def _unit(self, steps: list[Step]) -> None:
        granted = [step for step in steps if step.phase is StepPhase.GRANTED]
        if granted:
            self._granted(granted)
        applying = [step for step in steps if step.phase is StepPhase.APPLYING]
        if applying:
            self._applying(applying, waits_for_others=bool(granted))
        for step in steps:
            if step.phase is StepPhase.RETURNING:
                self._returning(step)

    def _granted(self, steps: list[Step]) -> None:
        """Apply where all nodes of the unit are drained.

        Give up where the change was stopped, where a node stays busy, and where a person was faster
        with a drain.
        """
        early = None
        if self._stopped(steps[0]):
            # A node that was released for another try has the denied state already: it does not serve with it.
            if any(self.state.has_moved(step) for step in steps) and self.now <= steps[0].deadline:
                if all(self._drained(step) for step in steps):
                    for step in steps:
                        self._turn(step, STOPPED)
                return
            early = STOPPED
        elif any(self._drained_by_owner(step) for step in steps):
            early = TAKEN
        elif all(self._drained(step) for step in steps):
            if any(step.node in self.state.share.before for step in steps):
                return  # a repair that shares the drain is done first
            for step in steps:
                self._act(Proceed(step.node, StepPhase.APPLYING, self.now + self.settings.timeout))
            return
        elif self.now > steps[0].deadline:
            early = self._busy(steps)
        if early is None:
            return
        for step in steps:
            self._act(
                Proceed(step.node, StepPhase.RETURNING, self.now + self.settings.timeout, early)
            )

    def _busy(self, steps: list[Step]) -> str:
        """Return the cause with which a unit returns that was not drained in time: for now, or for good.

        Without a bound, one node whose work never ends would hold its wave for ever.
        """
        attempts = max(step.attempt for step in steps)
        if attempts < self.settings.drain_attempts:
            return BUSY
        cause = f"{GAVE_UP} {attempts} {'grant' if attempts == 1 else 'grants'}"
        for step in steps:
            self._alarm("busy", step.node, f"{step.node} {cause}: the rollout goes on without it")
        return cause

    def _stopped(self, step: Step) -> bool:
        return step.direction is Direction.FORWARD and (
            self.state.record.phase in BACK_PHASES or self.state.record.target in self.state.denied
        )

    def _drained(self, step: Step) -> bool:
        seen = self.observations.scheduler.get(step.node)
        return (
            seen is not None
            and seen.at > step.changed_at
            and not seen.in_service
            and seen.free_at
            <= seen.at  # idle when it was asked; a time at which work should end proves nothing
        )

    def _applying(self, steps: list[Step], waits_for_others: bool) -> None:
        """End steps that failed or are overdue. Return the good ones once no other node of the unit is undecided."""
        good, undecided = [], waits_for_others
        for step in steps:
            judgement = judge(
                step, self.observations.nodes.get(step.node), self.state.record.target
            )
            if judgement.answer is Answer.PASSES:
                good.append(step)
            elif judgement.answer is Answer.FAILS:
                self._failed(step, judgement)
            elif self.now > step.deadline:
                self._overdue(step, "did not report in time after the change was applied")
            else:
                undecided = True
                if judgement.lies:
                    text = f"{step.node} reports the wanted state from the boot before the step: not counted"
                    self._alarm("boot-id", step.node, text)
        for step in good:
            if self._stopped(step):
                self._turn(step, STOPPED)
            elif not undecided:
                self._return(step)

    def _failed(self, step: Step, found: Judgement) -> None:
        if found.blame is Blame.SOFTWARE and self._stopped(step):
            self._turn(step, found.cause, found.blame)
            return
        self._act(
            Finish(step.node, StepPhase.FAILED, step.wave, found.cause, found.blame, failed=True)
        )

    def _turn(self, step: Step, cause: str | None, blame: Blame | None = None) -> None:
        deadline = self.now + self.settings.timeout
        self._act(Turn(step.node, step.attempt + 1, deadline, cause, blame))

    def _overdue(self, step: Step, reason: str) -> None:
        self._act(Overdue(step.node, reason), Alarm("overdue", step.node, f"{step.node} {reason}"))

    def _return(self, step: Step) -> None:
        """Return a node to service, unless it was out before.

        A node that its owner has drained since is left to that drain, and its record of ours is
        removed.
        """
        stays_out = self.state.stays_out(step.node)
        if step.prior is not None and step.prior.in_service and not stays_out:
            self._act(Proceed(step.node, StepPhase.RETURNING, self.now + self.settings.timeout))
        else:
            self._act(Finish(step.node, StepPhase.DONE, step.wave))

    def _drained_by_owner(self, step: Step) -> bool:
        """Return whether a person has drained the node since its grant: the reason is not the mark of the rollout."""
        seen = self.observations.scheduler.get(step.node)
        return (
            seen is not None
            and seen.at > step.granted_at
            and not seen.in_service
            and bool(seen.reason)
            and not self.state.is_own(seen.reason)
        )

    def _returning(self, step: Step) -> None:
        seen = self.observations.scheduler.get(step.node)
        newer = seen is not None and seen.at > step.changed_at
        back = seen is not None and newer and seen.in_service
        stays_out = self.state.stays_out(step.node)
        if not back and not stays_out and not (newer and self._drained_by_owner(step)):
            if step.node in self.state.share.after:  # tests of the queue judge it before it serves
                if self.now > step.deadline:
                    again = self.now + self.settings.timeout
                    self._act(Proceed(step.node, StepPhase.RETURNING, again, step.cause))
            elif self.now > step.deadline:
                self._overdue(step, "was not returned to service in time")
            return
        if not back and not stays_out and seen is not None:
            self._act(TakeHold(step.node, OUTSIDE, HoldKind.PERSON, seen.reason))
        phase = StepPhase.PASSED if step.cause in (STOPPED, BUSY, TAKEN) else StepPhase.DONE
        if (step.cause or "").startswith(GAVE_UP):
            phase = StepPhase.LEFT
        self._act(Finish(step.node, phase, step.wave, step.cause))

    def _alarm(self, code: str, subject: str, text: str) -> None:
        if (code, subject) not in self.state.alarms:
            self._act(Alarm(code, subject, text))

    # Nodes outside of a step

    def decide_outside(self) -> None:
        """Record which nodes others took out of service, and which nodes fail while they serve."""
        for name in self.state.attention:
            holds = self.state.ledger.by_node.get(name, {})
            seen = self.observations.scheduler.get(name)
            report = self.observations.nodes.get(name)
            if seen is not None:
                if not seen.in_service and not holds and not self.state.is_own(seen.reason):
                    self._act(TakeHold(name, OUTSIDE, HoldKind.PERSON, seen.reason))
                    continue
                if seen.in_service and OUTSIDE in holds:
                    self._act(DropHold(name, OUTSIDE))
            if report is not None and report.verdict is Answer.FAILS and not holds:
                self._fails_in_service(report)
            elif report is not None and report.verdict is Answer.PASSES and HEALTH in holds:
                self._act(DropHold(name, HEALTH))

    def _fails_in_service(self, report: NodeObservation) -> None:
        """Count a software finding of the new state against the change, anything else against the node."""
        step = self.state.steps.get(report.node)
        changed = (
            step is not None
            and step.phase is StepPhase.DONE
            and step.direction is Direction.FORWARD
            and report.digest == self.state.record.target
            and report.at > step.changed_at
        )
        if changed and step is not None and report.software:
            self._act(
                Finish(
                    report.node,
                    StepPhase.FAILED,
                    step.wave,
                    report.software[0],
                    Blame.SOFTWARE,
                    failed=True,
                )
            )
            return
        reason = next(iter((*report.hardware, *report.software)), "its own check fails")
        self._act(TakeHold(report.node, HEALTH, HoldKind.FAILED, reason))

    def decide_strays(self) -> None:
        """End the steps of waiting nodes that cannot move now, or are not in the state `from`."""
        for name in self.state.strays:
            node, holds = self.state.nodes[name], self.state.ledger.by_node.get(name)
            wave = self.state.wave_of[name]
            if holds:
                reason = next(iter(holds.values())).reason
                self._act(Finish(name, StepPhase.DEFERRED, wave, reason))
            elif node.digest is None or node.in_service is None:
                self._act(Finish(name, StepPhase.DEFERRED, wave, "has not reported its state"))
            else:
                there = node.digest == self.settings.target
                where = "in the target already" if there else f"at {node.digest}"
                self._act(Finish(name, StepPhase.LEFT, wave, f"is {where}"))
