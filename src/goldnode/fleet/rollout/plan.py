"""The decision of a rollout: `plan(settings, state, observations, now)` returns actions.

It is pure: no clock, no random number, no file, no network. A controller, the lock service and the
simulator call the same function. It acts on the present state and never on events, so a controller
that takes over continues from what it observes.

The caller applies the actions and plans again, until there are none: so the failure rule has seen
each node that finished before the next node is granted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from goldnode.fleet.rollout import steps
from goldnode.fleet.rollout.budget import BUDGET, use
from goldnode.fleet.rollout.calendars import holds
from goldnode.fleet.rollout.document import BootSettings, RolloutSettings
from goldnode.fleet.rollout.lines import moment
from goldnode.fleet.rollout.model import (
    HELD_BACK,
    Action,
    Alarm,
    Answer,
    Blame,
    ChangePhase,
    Deny,
    Direction,
    Evaluate,
    Extend,
    Finish,
    Freeze,
    FreezeScope,
    Grant,
    HoldKind,
    Prior,
    Promote,
    RolloutApproval,
    RolloutPhase,
    RolloutPlan,
    Start,
    StepPhase,
    Wait,
)
from goldnode.fleet.rollout.remains import behind, remaining, sentence
from goldnode.fleet.rollout.state import BACK_PHASES, FORWARD_PHASES, Observations, RolloutState
from goldnode.fleet.rollout.statistics import at_least, more_frequent, one_cause_failures
from goldnode.fleet.rollout.waves import choose, further
from goldnode.fleet.rollout.windows import opening
from goldnode.fleet.shared.person import same_person

ASK_AGAIN = 300.0  # seconds between two evaluations of a requirement without a final answer
SAME_CAUSE, BASE_RATE = (
    "boot: the same cause again",
    "boot: more failures than the base rate explains",
)
NONE_PASSED = "boot: no node has passed, and no further one can answer"
HARDWARE_RATE = "boot: more hardware findings than the hardware rate explains"
CONTROL_ARM = "boot: more hardware findings than in the control arm"
BUSY_LONG = "is busy for longer than drain.wait"
LATE = "nodes that are busy for long; it waits for them for drain.late"
REPLACED = "another document was submitted: run the controller again with it"
SELF = "goldnode"  # who froze, where no person did
CALENDARS = "person who maintains the calendars"
OVERRIDE = "calendar"  # code of the alarm that records an override


def plan(
    settings: RolloutSettings,
    state: RolloutState,
    observations: Observations,
    now: float,
    machine: float | None = None,
) -> RolloutPlan:
    """Return what to do now. Apply the actions in their order, then plan again.

    :param now: the time as the state has it. It never goes back.
    :param machine: the time for windows, where the clock of the machine is behind `now` (`SteadyClock`).
    """
    return _Planner(settings, state, observations, now, now if machine is None else machine).run()


def approvals(
    settings: RolloutSettings, state: RolloutState, wave: str
) -> dict[str, RolloutApproval]:
    """Return the approvals of a wave that count, by role: of this text of the document, and not by its author."""
    return {
        item.role: item
        for item in state.approvals
        if item.wave == wave
        and item.document == settings.digest
        and not same_person(item.who, settings.author)
    }


def needed(
    settings: RolloutSettings, boot: BootSettings, state: RolloutState, now: float
) -> tuple[int, int]:
    """Return how many nodes of the present wave must pass, and of how many.

    Of all its nodes, as long as further ones can replace those that cannot answer: nodes that are
    out of service for another reason, busy or in another state. Where no further node is left, as
    in a last wave, of those that could answer. An earlier wave has passed by then: nodes that could
    not move prove nothing against a change, and converge when they return.
    """
    wave = state.record.wave
    size = state.wave_size[wave]
    full = boot.needed(size)
    answering = size - state.absent[wave]
    if state.passed[wave] >= full or answering == size or (answering == 0 and wave == 0):
        return full, size
    if further(settings, state.nodes.values(), state.wave_of, 1, now):
        return full, size
    return (boot.needed(answering) if answering else 0), answering


def passing(settings: RolloutSettings, boot: BootSettings, state: RolloutState, now: float) -> str:
    """Return how many nodes of the present wave have passed, and how many must."""
    wave = state.record.wave
    must, size = needed(settings, boot, state, now)
    others = state.wave_size[wave] - size
    text = f"{state.passed[wave]} of {size} nodes"
    if others:
        text += f" that could answer ({others} could not)"
    return f"{text} have passed, {must} {'is' if must == 1 else 'are'} needed"


def no_approval(role: str) -> str:
    """Return the beginning of the reason with which a wave waits for an approval."""
    return f"approval by {role} is missing"


class _Planner:
    """One decision. Reads the state, collects actions and waits."""

    def __init__(
        self,
        settings: RolloutSettings,
        state: RolloutState,
        observations: Observations,
        now: float,
        machine: float,
    ) -> None:
        self.settings = settings
        self.state = state
        self.record = state.record
        self.observations = observations
        self.now = now
        self.machine = machine
        self.actions: list[Action] = []
        self.waits: list[Wait] = []
        self.wakes: list[float] = []

    def run(self) -> RolloutPlan:
        """Decide stage by stage; the first stage with actions ends the decision."""
        further = (self._replaced,) if self._is_replaced() else (self._phase, self._grants)
        for stage in (self._nodes, *further):
            stage()
            if self.actions:
                break
        later = [time for time in self.wakes if time > self.now]
        return RolloutPlan(tuple(self.actions), tuple(self.waits), min(later, default=None))

    def _wait(self, subject: str, reason: str, owner: str, until: float | None = None) -> None:
        self.waits.append(Wait(subject, reason, owner, until))
        if until is not None:
            self.wakes.append(until)

    # Nodes: what the observations say about steps, holds and strays

    def _nodes(self) -> None:
        decided = steps.decide(self.settings, self.state, self.observations, self.now)
        self.actions += decided.actions
        self.wakes += decided.wakes

    # A document that was submitted after the one of this controller

    def _is_replaced(self) -> bool:
        """Return whether the store has another text than the one that is decided by."""
        return bool(self.state.document and self.settings.digest) and (
            self.state.document != self.settings.digest
        )

    def _replaced(self) -> None:
        """Wait: nodes in flight finish, and nothing else is decided by a document that was replaced."""
        self._wait("rollout", REPLACED, SELF)

    # The rollout: begin, stop, promote, end

    def _phase(self) -> None:
        phase = self.record.phase
        if self.settings.target != self.record.target:
            self._stop_changed_target()
        elif phase is RolloutPhase.QUEUED:
            self._begin()
        elif phase is RolloutPhase.RUNNING:
            self._running()
        elif phase is RolloutPhase.ROLLING_BACK and not self.state.active and not self.state.queue:
            self.actions.append(ChangePhase(RolloutPhase.ROLLED_BACK, self.record.why))
            left = remaining(self.settings, self.state)
            if left:
                text = f"{sentence(left)}. `goldnode rollout status {self.record.name}` has the commands"
                self.actions.append(Alarm("remains", "rollback", text))

    def _stop_changed_target(self) -> None:
        reason = (
            f"the document names another target than the rollout began with: {self.settings.target}"
        )
        self._freeze("target", reason)
        self._wait("rollout", reason, "author of the document")

    def _freeze(self, key: str, reason: str) -> bool:
        """Freeze this rollout for a reason; return whether it was not frozen for it yet."""
        name = f"{self.record.name}:{key}"
        if name in self.state.freezes:
            return False
        self.actions += [
            Freeze(name, FreezeScope.ROLLOUT, self.record.name, reason, SELF),
            Alarm("frozen", key, reason),
        ]
        return True

    def _begin(self) -> None:
        blocker = next((other for other in self.state.others if self._precedes(other)), None)
        if blocker is not None:
            self._wait(
                "rollout", f"rollout {blocker.name} of the class has not ended", blocker.name
            )
        elif self.settings.target in self.state.denied:
            reason = f"{self.settings.target} is denied: {self.state.denied[self.settings.target]}"
            self._wait("rollout", reason, "person who lifts it")
        elif not self._missing_approval(0) and not self._frozen():
            out = self.state.ledger.by_node
            self.actions.append(
                Start(choose(self.settings, 0, self.state.nodes.values(), now=self.now, out=out))
            )

    def _precedes(self, other: object) -> bool:
        """Return whether another rollout goes before this one. The security lane waits for nodes in flight only."""
        name, security, submitted, busy = (
            getattr(other, key) for key in ("name", "security", "submitted_at", "busy")
        )
        if self.settings.security and not security:
            return bool(busy)
        if security and not self.settings.security:
            return True
        return (submitted, name) < (self.record.submitted_at, self.record.name)

    def _missing_approval(self, wave: int) -> bool:
        """Wait for the approvals of a wave."""
        name = self.settings.waves[wave].name if wave < len(self.settings.waves) else ""
        given = approvals(self.settings, self.state, name)
        missing = [role for role in self.settings.approve.get(name, ()) if role not in given]
        for role in missing:
            self._wait(
                f"wave {name}", f"{no_approval(role)}{self._other_document(name, role)}", role
            )
        return bool(missing)

    def _other_document(self, wave: str, role: str) -> str:
        """Return who has approved another text of the document, and what helps; empty if there is no such approval."""
        before = [item for item in self.state.approvals if (item.wave, item.role) == (wave, role)]
        if not before or before[-1].document == self.settings.digest:
            return ""
        what = "an earlier document"
        if not before[-1].document:
            what = "a document that its goldnode did not record"
        again = f"goldnode rollout approve {self.record.name} {wave} --role {role} --reason REASON"
        return f": {before[-1].who} has approved {what}. Read this one, then `{again}`"

    def _frozen(self) -> bool:
        """Wait for each freeze of the whole rollout."""
        subjects = {
            FreezeScope.ALL: "",
            FreezeScope.CLASS: self.settings.class_,
            FreezeScope.ROLLOUT: self.record.name,
        }
        freezes = [
            item
            for item in self.state.freezes.values()
            if item.scope is not FreezeScope.RACK and item.subject == subjects[item.scope]
        ]
        for item in freezes:
            self._wait("rollout", f"frozen by {item.who}: {item.reason}", item.who)
        return bool(freezes)

    def _running(self) -> None:
        if not self.settings.security and any(other.security for other in self.state.others):
            why = "a rollout of the security lane supersedes it"
            self.actions.append(ChangePhase(RolloutPhase.SUPERSEDED, why))
            return
        failure = self._failure()
        if failure is not None:
            self._stop(*failure)
            self._frozen()
            return
        wave, state = self.record.wave, self.state
        self._hold_back(wave)
        if self.actions:
            return
        if state.ended[wave] < state.wave_size[wave] or self._frozen():
            return
        if wave + 1 >= len(self.settings.waves) and self._last_wave_moves():
            return
        if state.wave_size[wave] == 0 or self._requirements_pass(wave):
            self._promote(wave)

    def _hold_back(self, wave: int) -> None:
        """Replace nodes that were held back and have failed, once the waves have taken all others.

        Before that, a wave chooses without them when it begins. Now a node that still waits takes the
        place: its wave goes on without it.
        """
        following = self.settings.waves[wave + 1 : wave + 2]
        if not following or not following[0].reserve:
            return
        state = self.state
        deferred = state.queue[: bisect_left(state.queue, (1,))]
        before = [name for *_, unit in deferred for name in state.members[unit] if state.kept(name)]
        kept = [name for name in (*state.left, *before) if self._is_good(name)]
        missing = self.settings.known_good - len(kept)
        for _, _, _, unit in reversed(state.queue if missing > 0 else []):
            members = state.members[unit]
            if missing <= 0:
                break
            if all(
                state.waits(name) and not state.kept(name) and self._is_good(name)
                for name in members
            ):
                self.actions += [
                    Finish(name, StepPhase.DEFERRED, state.wave_of[name], HELD_BACK)
                    for name in members
                ]
                missing -= len(members)

    def _is_good(self, name: str) -> bool:
        """Return whether a node serves in the state that the rollout moves away from."""
        node = self.state.nodes[name]
        return (
            node.in_service is True
            and node.digest == self.settings.origin
            and name not in self.state.ledger.by_node
        )

    def _last_wave_moves(self) -> bool:
        """Return whether nodes still move in the last wave, or it waits for those that are busy for long."""
        if self.state.active:
            return True
        end = _late(self.settings, self.state)
        if all(place == 0 and self.now >= end for place, *_ in self.state.queue):
            return False
        self._wait(f"wave {self.settings.waves[self.record.wave].name}", LATE, SELF, end)
        return True

    def _promote(self, wave: int) -> None:
        if wave + 1 >= len(self.settings.waves):
            left = behind(self.state)
            why = f"every wave has passed its requirements{f'; {left}' if left else ''}"
            self.actions.append(ChangePhase(RolloutPhase.COMPLETED, why))
        elif not self._missing_approval(wave + 1):
            nodes = choose(
                self.settings,
                wave + 1,
                self.state.nodes.values(),
                self.state.wave_of,
                self.now,
                out=self.state.ledger.by_node,
            )
            self.actions.append(Promote(wave + 1, nodes))

    def _stop(self, rule: str, reason: str) -> None:
        """React to a failed requirement: freeze, or deny the target and roll back."""
        if self.settings.rollback is None:
            if self._freeze("failed", reason):
                self.actions.append(Alarm("stopped", rule, reason))
            return
        self.actions += [
            Deny(self.record.target, reason),
            ChangePhase(RolloutPhase.ROLLING_BACK, reason, self.settings.rollback),
            Alarm("stopped", rule, reason),
        ]

    def _failure(self) -> tuple[str, str] | None:
        """Return the rule that the change fails, and why, the cause first. None if it has not failed."""
        boot, tally = self.settings.boot, self.record.tally
        if boot is not None:
            failures = tally.software + tally.absent
            judged = tally.done + failures
            one_cause = one_cause_failures(judged, boot.base_rate, boot.same_cause)
            for cause, count in tally.causes:
                if count >= one_cause:
                    return SAME_CAUSE, f"{cause}: on {count} nodes of the first two waves"
            if failures >= 2 and at_least(failures, judged, boot.base_rate) < 1 - boot.confidence:
                return (
                    BASE_RATE,
                    f"{self._first_cause()}: {failures} of {judged} nodes failed, more than a base rate of "
                    f"{boot.base_rate:.2%} explains",
                )
            judged += tally.hardware
            if tally.hardware >= 2 and (
                at_least(tally.hardware, judged, boot.hardware_rate) < 1 - boot.confidence
            ):
                return (
                    HARDWARE_RATE,
                    f"hardware findings after the boot: on {tally.hardware} of {judged} nodes, more than a rate "
                    f"of {boot.hardware_rate:.2%} explains",
                )
            if more_frequent(*self._arms(), boot.confidence):
                return (
                    CONTROL_ARM,
                    f"hardware findings in service: {tally.changed_events} on changed nodes, "
                    f"{tally.control_events} on unchanged ones, relative to their time in service",
                )
        return self._failed_outside()

    def _first_cause(self) -> str:
        """Return the most frequent cause of failed steps. That a node did not return is one only without another."""
        steps = [
            step
            for step in self.state.steps.values()
            if step.phase in (StepPhase.FAILED, StepPhase.OVERDUE)
            and step.direction is Direction.FORWARD
        ]
        software = [step for step in steps if step.blame is Blame.SOFTWARE]
        causes = Counter(step.cause or "unknown" for step in software or steps)
        return causes.most_common(1)[0][0] if causes else "unknown"

    def _arms(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return (events, node-seconds) of the changed nodes and of the unchanged ones, since the start."""
        state, tally, start = self.state, self.record.tally, self.record.started_at
        changed = max(0.0, state.serving * self.now - state.serving_since)
        waiting = len(state.nodes) - state.moved
        control = max(0.0, waiting * (self.now - start) + state.moved_at - state.moved * start)
        return (tally.changed_events, changed), (tally.control_events, control)

    def _failed_outside(self) -> tuple[str, str] | None:
        since = max(self.record.wave_since, self.record.accepted_at)
        for item in self.settings.outside:
            result = self.observations.requirements.get((item.name, self.record.wave))
            if result is not None and result.answer is Answer.FAILS and result.at >= since:
                return f"requirement {item.name}", f"{item.name}: {result.reason or 'failed'}"
        return None

    # Requirements: pass, fail or unknown. Only a pass of each promotes.

    def _requirements_pass(self, wave: int) -> bool:
        final = (
            max(self.record.finished_at, self.record.wave_since) + self.settings.waves[wave].soak
        )
        name = self.settings.waves[wave].name
        if self.now < final:
            self._wait(f"wave {name}", "soak", SELF, final)
            return False
        unknown = self._unknown(wave, final)
        for requirement, reason in unknown:
            self._wait(
                f"wave {name}", f"requirement {requirement} is unknown: {reason}", requirement
            )
        if unknown and not self.actions:
            end = max(final, self.record.accepted_at) + self.settings.unknown_after
            self.wakes.append(end)
            if self.now >= end:
                words = "; ".join(f"{requirement}: {reason}" for requirement, reason in unknown)
                text = f"no answer since the soak of wave {name} ended: {words}"
                if not self._none_passed(text):
                    self._freeze(f"unknown-{name}", text)
        return not unknown

    def _unknown(self, wave: int, final: float) -> list[tuple[str, str]]:
        """Return the requirements without a pass, each with its reason. Ask for those that a caller answers."""
        unknown = []
        boot = self.settings.boot
        if boot is None:
            unknown.append(("boot", "the document has no such requirement"))
        else:
            missing = needed(self.settings, boot, self.state, self.now)[0] - self.state.passed[wave]
            if missing > 0:
                text = passing(self.settings, boot, self.state, self.now)
                unknown.append(("boot", f"{text}{self._broken(wave)}"))
                self._extend(wave, missing)
        for item in self.settings.outside:
            result = self.observations.requirements.get((item.name, wave))
            if result is not None and result.at >= final and result.answer is Answer.PASSES:
                continue
            unknown.append(
                (item.name, (result.reason or "no data") if result is not None else "no answer yet")
            )
            again = self.state.asked.get((item.name, wave), -math.inf)
            if again < final or self.now >= again + ASK_AGAIN:
                self.actions.append(Evaluate(item.name, wave))
            else:
                self.wakes.append(again + ASK_AGAIN)
        return unknown

    def _broken(self, wave: int) -> str:
        """Return how many nodes of a wave failed by the change, with the first cause; empty if none did."""
        count = self.state.broken[wave]
        if not count:
            return ""
        return f"; {count} {'has' if count == 1 else 'have'} failed ({self._first_cause()})"

    def _extend(self, wave: int, count: int) -> None:
        """Add nodes to a wave that proves too little: some of its nodes were out of service, or failed."""
        if self._may_move_forward():
            state = self.state
            more = further(self.settings, state.nodes.values(), state.wave_of, count, self.now)
            if more:
                self.actions.append(Extend(wave, more))

    # Grants

    def _grants(self) -> None:
        phase = self.record.phase
        if not self.state.queue or phase not in (*FORWARD_PHASES, *BACK_PHASES) or self._frozen():
            return
        if phase in FORWARD_PHASES and not self._may_move_forward():
            return
        grants = _Grants(self.settings, self.state, self.observations, self.now)
        self.actions += grants.choose()
        for reason in grants.blocked:
            until = grants.until if reason.startswith(BUDGET) else None
            self._wait("grants", reason, SELF, until)
        if not self.actions:
            for item in self.state.freezes.values():
                if item.scope is FreezeScope.RACK:
                    self._wait(
                        f"rack {item.subject}", f"frozen by {item.who}: {item.reason}", item.who
                    )
            if not self.waits:
                self._wait("grants", "no node that waits fits into the limits now", SELF)
            if grants.again is None and not self.state.active:
                self._stands_still(grants)
        if grants.again is not None:
            self.wakes.append(grants.again)

    def _stands_still(self, grants: _Grants) -> None:
        """End a rollout that waits for room and has nothing in flight, or name what it waits for.

        Its own failures leave no room: nothing but a person changes that. Failures are fewer than
        the rules need for a stop, and the nodes that would decide cannot move. Room that others
        take comes back: for that a person gets an alarm.
        """
        record = self.record
        if record.phase is not RolloutPhase.RUNNING or FreezeScope.RACK in {
            item.scope for item in self.state.freezes.values()
        }:
            return
        end = (
            max(record.finished_at, record.wave_since, record.accepted_at)
            + self.settings.unknown_after
        )
        self.wakes.append(end)
        if self.now < end:
            return
        name = self.settings.waves[record.wave].name
        why = "; ".join(wait.reason for wait in self.waits)
        text = f"wave {name} cannot go on: {why}{self._broken(record.wave)}"
        if not grants.blocked_by_failures():
            if ("waits", name) not in self.state.alarms:
                self.actions.append(Alarm("waits", name, text))
        elif not self._none_passed(text):
            self._freeze(f"unknown-{name}", text)

    def _none_passed(self, why: str) -> bool:
        """Roll back where no further node can answer, and none that answered has passed; return whether that is so.

        The failures are fewer than the rules need. A person could only do the same, later.
        """
        tally = self.record.tally
        if not tally.software or tally.done or self.settings.rollback is None:
            return False
        self._stop(NONE_PASSED, f"{self._first_cause()}: no node has passed; {why}")
        return True

    def _may_move_forward(self) -> bool:
        if self.record.phase is RolloutPhase.COMPLETED and self.state.others:
            self._wait("grants", "a newer rollout of the class decides about late nodes", SELF)
            return False
        if self.record.target in self.state.denied:
            self._wait("grants", f"{self.record.target} is denied", "person who lifts it")
            return False
        if self.state.share.quiet:
            self._wait("grants", self.state.share.quiet, "the mirror")
            return False
        span = opening(self.settings.windows, self.machine)
        if span is None:
            self._wait("grants", "no window ever opens", "author of the document")
            return False
        if span[0] > self.machine:
            self._wait("grants", "outside of the windows", SELF, span[0])
            return False
        return not self._frozen_by_calendar()

    def _frozen_by_calendar(self) -> bool:
        """Wait for each freeze calendar that holds now. An override is recorded once for each freeze."""
        frozen = False
        for hold in holds(self.settings, self.observations.calendars, self.machine):
            reason = self.settings.overridden.get(hold.calendar)
            if reason is None:
                frozen = True
                owner = SELF if hold.until is not None else CALENDARS
                self._wait("grants", hold.reason, owner, hold.until)
                continue
            end = "" if hold.until is None else f" until {moment(hold.until)}"
            key = (OVERRIDE, f"{hold.calendar}{end}")
            if key not in self.state.alarms:
                text = f"the document overrides calendar {hold.calendar} ({reason}): {hold.reason}{end}"
                self.actions.append(Alarm(*key, text))
        return frozen


def _late(settings: RolloutSettings, state: RolloutState) -> float:
    """Return the time after which the last wave takes no node that it has passed over: the rollout ends without it.

    Infinite in an earlier wave, and once the rollout is completed.
    """
    record = state.record
    if record.phase is not RolloutPhase.RUNNING or record.wave + 1 < len(settings.waves):
        return math.inf
    return record.wave_since + settings.drain_late


class _Grants:
    """The choice of the nodes that may go out now, within all limits."""

    def __init__(
        self, settings: RolloutSettings, state: RolloutState, observations: Observations, now: float
    ) -> None:
        self.settings, self.state, self.observations, self.now = settings, state, observations, now
        size, limits, ledger = len(state.nodes), settings.limits, state.ledger
        self.direction = (
            Direction.FORWARD if state.record.phase in FORWARD_PHASES else Direction.BACK
        )
        self.planned = limits.planned.nodes(size)
        self.room = self.planned - ledger.planned
        self.more_out = limits.total.nodes(size) - ledger.out
        self.blocked: list[str] = []
        self.until: float | None = None  # when the error budget allows a node again
        if ledger.failed > limits.failed.nodes(size):
            self.more_out = 0
            self.blocked.append(f"the failed buffer is spent: {ledger.failed} nodes")
        elif self.more_out <= 0:
            nodes = "1 node is" if ledger.out == 1 else f"{ledger.out} nodes are"
            self.blocked.append(f"{nodes} out of service, for all reasons")
        self.again: float | None = None
        self._spend(now)
        self.racks: Counter[str] = Counter()
        self.leaves: Counter[str] = Counter()
        self.taken: set[str] = set()  # units of nodes that the queue has offered
        self._leave_room()
        self.frozen_racks = {
            item.subject for item in state.freezes.values() if item.scope is FreezeScope.RACK
        }
        self.late = now >= _late(settings, state)
        wave = settings.waves[state.record.wave : state.record.wave + 1]
        self.takes_kept = not wave or wave[0].reserve or not settings.known_good

    def _spend(self, now: float) -> None:
        """Limit the room to the error budget. A rollback is not held up by it, as it is not by windows."""
        budget = use(self.settings, self.state, now)
        if budget is None or self.direction is Direction.BACK:
            return
        if budget.room == 0:
            self.blocked.append(budget.text())
            self.until = budget.again
            if not self.state.active:
                self.again = budget.again
        self.room = min(self.room, budget.room)

    def _leave_room(self) -> None:
        """Leave the places of requests of the queue that are served before the next node of the rollout."""
        ahead = self.state.share.ahead
        for domains in ahead:
            names = dict(domains)
            self.racks[names.get("rack", "")] += 1
            self.leaves[names.get("leaf", "")] += 1
        self.more_out -= len(ahead)
        free, self.room = self.room, self.room - len(ahead)
        if free > 0 >= self.room:
            requests = "1 request" if len(ahead) == 1 else f"{len(ahead)} requests"
            self.blocked.append(f"{requests} of the queue first (`goldnode fleet queue`)")

    def blocked_by_failures(self) -> bool:
        """Return whether there would be room without the nodes that failed in this rollout."""
        name, ledger, limits, size = (
            self.state.record.name,
            self.state.ledger,
            self.settings.limits,
            len(self.state.nodes),
        )
        own = sum(
            hold.kind is HoldKind.FAILED and len(ledger.by_node[hold.node]) == 1
            for hold in ledger.all()
            if hold.owner == name
        )
        others_failed, others_out = ledger.failed - own, ledger.out - own
        return (
            bool(own)
            and others_failed <= limits.failed.nodes(size)
            and others_out < limits.total.nodes(size)
        )

    def choose(self) -> list[Action]:
        """Return grants in the order of the queue."""
        actions: list[Action] = []
        queue, index = self.state.queue, 0
        for name in sorted(self.state.share.offered & self.state.unit.keys()):
            self._offered(self.state.unit[name], actions)
        # Deferred units come first, by the time when they are free.
        undeferred = bisect_left(queue, (1,))
        if self.late:
            index = undeferred
        while self.room > 0 and index < len(queue):
            place, free_at, _, unit = queue[index]
            index += 1
            if (
                self.direction is Direction.FORWARD
                and free_at > self.now + self.settings.drain_wait
            ):
                self._busy(place, free_at, unit, actions)
                if place == 0:
                    index = undeferred
                continue
            members = self.state.members[unit]
            if unit in self.taken:
                continue
            if any(name in self.state.active for name in members):
                continue  # the rest of a cohort that moves whole: all of it goes together, afterwards
            if not self.takes_kept and any(self.state.kept(name) for name in members):
                continue
            names = [name for name in members if self._ready(name)]
            if not names or not self._fits_groups(names):
                continue
            out = sum(name not in self.state.ledger.by_node for name in names)
            if len(names) > self.room or out > self.more_out:
                if len(names) <= self.planned and out <= self.more_out:
                    break  # room gathers for a cohort that moves whole; smaller units do not overtake it
                continue
            actions += [self._grant(name) for name in names]
            self._count(names, out)
        return actions

    def _offered(self, unit: str, actions: list[Action]) -> None:
        """Grant a unit with a node that another request waits for too, so that both share its drain."""
        members = self.state.members[unit]
        names = [name for name in members if self._ready(name)]
        free = all(
            self.state.nodes[name].free_at <= self.now + self.settings.drain_wait for name in names
        )
        active = unit in self.taken or any(
            name in self.state.active or (self.state.kept(name) and not self.takes_kept)
            for name in members
        )
        out = sum(name not in self.state.ledger.by_node for name in names)
        fits = len(names) <= self.room and out <= self.more_out
        if names and free and fits and not active and self._fits_groups(names):
            actions += [self._grant(name) for name in names]
            self._count(names, out)
            self.taken.add(unit)

    def _busy(self, place: int, free_at: float, unit: str, found: list[Action]) -> None:
        """Pass over a unit that is busy for longer than the drain may take: its wave does not wait for it."""
        soon = free_at - self.settings.drain_wait
        self.again = soon if self.again is None else min(soon, self.again)
        if place == 0:
            return  # passed over before, like all deferred units that are free later
        for name in self.state.members[unit]:
            if self.state.waits(name):
                found.append(Finish(name, StepPhase.DEFERRED, self.state.wave_of[name], BUSY_LONG))

    def _ready(self, name: str) -> bool:
        node, step = self.state.nodes[name], self.state.steps.get(name)
        return (
            self.state.waits(name)
            and name not in self.state.strays
            and (node.in_service is True or (step is not None and step.prior is not None))
        )

    def _fits_groups(self, names: Iterable[str]) -> bool:
        """Return whether racks and leaves have room, and no rack is frozen."""
        limits, ledger = self.settings.limits, self.state.ledger
        racks: dict[str, int] = {}
        leaves: dict[str, int] = {}
        for name in names:
            node = self.state.nodes[name]
            if (rack := node.rack) is not None:
                racks[rack] = racks.get(rack, self.racks[rack]) + 1
                if rack in self.frozen_racks or (
                    limits.rack is not None
                    and ledger.planned_racks[rack] + racks[rack] > limits.rack
                ):
                    return False
            if (leaf := node.leaf) is not None:
                leaves[leaf] = leaves.get(leaf, self.leaves[leaf]) + 1
                if (
                    limits.leaf is not None
                    and ledger.planned_leaves[leaf] + leaves[leaf] > limits.leaf
                ):
                    return False
        return True

    def _count(self, names: Iterable[str], out: int) -> None:
        for name in names:
            self.room -= 1
            node = self.state.nodes[name]
            if node.rack is not None:
                self.racks[node.rack] += 1
            if node.leaf is not None:
                self.leaves[node.leaf] += 1
        self.more_out -= out

    def _grant(self, name: str) -> Action:
        node, step = self.state.nodes[name], self.state.steps.get(name)
        earlier = step.prior if step is not None else None
        # A node that this rollout holds out of service was in service before.
        in_service = bool(node.in_service) or (earlier is not None and earlier.in_service)
        # A node's own earlier state stays.
        digest = node.digest if earlier is None else earlier.digest
        seen = self.observations.scheduler.get(name)
        note = seen.reason if seen is not None and seen.in_service else ""
        reason = note if earlier is None or node.in_service else earlier.reason
        return Grant(
            node=name,
            direction=self.direction,
            attempt=(step.attempt if step is not None else 0) + 1,
            deadline=self.now + self.settings.drain_wait,
            prior=Prior(
                in_service=in_service,
                digest=digest,
                boot_id=node.boot_id,
                reason=reason,
                at=self.now,
            ),
        )
