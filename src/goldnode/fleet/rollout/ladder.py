"""The remediation ladder: which rung of a repair is next, decided from evidence. Pure.

A repair is one case of one node. It starts with an inspection, climbs the rungs of its finding
(facts/ladder.yml) and ends cured, void or with a ticket. `decide` returns transitions;
`LadderState.apply` applies them, in memory and for the store. Times are seconds since the epoch, UTC.

Rules: no rung without evidence that was stored since the case or the rung before it; none against a
person's drain, hold or job; none above a bound; and none for a fault that many nodes show at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil

INSPECT, TICKET = "inspect", "ticket"
HOUR, DAY = 3600.0, 86400.0


class LadderMode(StrEnum):
    """Mode of the ladder at a site."""

    OFF = "off"
    PLAN = "plan"  # records which rung it would begin with, and changes nothing
    RUN = "run"


class CasePhase(StrEnum):
    """Phase of a case."""

    INSPECT = "inspect"  # evidence is collected; nothing is changed
    WAIT = "wait"  # the evidence is stored; bounds and leave are waited for
    DRAIN = "drain"  # it has leave; it is drained until no work is left
    ACT = "act"  # the intent is recorded, and the rung is carried out
    CHECK = "check"  # a later check and the tests before its return decide
    RETURN = "return"  # it returns to service
    TICKET = "ticket"  # a person repairs it; it stays out of service
    CURED = "cured"
    VOID = "void"  # ended without a cure: a person took over, the fault was gone, or it was busy


ENDED = frozenset({CasePhase.CURED, CasePhase.VOID})
HELD = frozenset({CasePhase.DRAIN, CasePhase.ACT, CasePhase.CHECK})  # out of service for the ladder


class Holder(StrEnum):
    """Holder of a node that is out of service in its scheduler."""

    NONE = "none"
    LADDER = "ladder"
    GATE = "gate"  # the health check on the node drained it for a finding
    TURN = "turn"  # another part of a turn in the queue, or a rollout: a repair may share its drain
    OTHER = "other"  # a person, or another system


@dataclass(frozen=True, slots=True)
class LadderBounds:
    """Bounds of the ladder: counts, and limits of time in seconds."""

    attempts: int = 1  # of one rung in one case
    per_node: int = 6  # rungs of one node within `node_window`
    node_window: float = 7 * DAY
    per_hour: int = 10  # rungs of the fleet
    together: int = 4  # nodes that the ladder has out of service
    common: int = 3  # nodes of one finding, rack or leaf within `common_window`: one cause
    common_share: float = 0.0005  # of the nodes, where that is more
    common_window: float = 600.0
    recurrence: float = 30 * DAY  # a finding that comes back within it climbs
    recurrences: int = 3  # cases of one finding within it end with a ticket
    evidence: float = 900.0
    drain: float = DAY
    act: float = 2700.0
    check: float = 1800.0
    tests: float = DAY
    again: float = HOUR  # before a case that ended void is opened again


@dataclass(frozen=True, slots=True)
class LadderPolicy:
    """The ladder of one class: its mode, and the rungs that the class forbids."""

    mode: LadderMode = LadderMode.OFF
    forbidden: frozenset[str] = frozenset()
    bounds: LadderBounds = LadderBounds()


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """State of one node, as it was read. `at` is the time of its check.

    `findings`: findings that drain, each with a way; None if it does not answer or could not check.
    `boot_id`: of that check. `can`: rungs that can be carried out on this node. `outstanding`: tests
    before its return that have not passed. `offender`: why nothing but a person returns it; empty if something may.
    `drained_by`: id of the run whose mark its scheduler shows.
    """

    node: str
    at: float
    boot_id: str | None = None
    findings: Mapping[str, tuple[str, ...]] | None = None  # finding -> its rungs
    holder: Holder = Holder.NONE
    reason: str = ""
    in_service: bool | None = None
    busy: bool | None = None  # None: not known
    outstanding: str = ""
    offender: str = ""
    drained_by: str = ""
    can: frozenset[str] = frozenset()
    rack: str | None = None
    leaf: str | None = None
    cohort: str | None = None


@dataclass(frozen=True, slots=True)
class RepairCase:
    """An open repair."""

    node: str
    finding: str
    climb: tuple[str, ...]
    opened_at: float
    phase: CasePhase
    rung: str  # the rung that is next, or under way
    changed_at: float
    deadline: float
    boot_id: str | None = None  # before the rung
    evidence: str = ""  # digest of what was stored for this rung
    leave: bool = False
    tries: int = 0
    why: str = ""
    planned: bool = False
    cured: bool = False
    cohort: str | None = None
    worker: str = ""  # process that carries out the rung
    run: str = ""  # name of the run that drains the node: of its turn in the queue


@dataclass(frozen=True, slots=True)
class RungRecord:
    """A rung that was begun. `outcome` is empty while it is not known."""

    node: str
    finding: str
    rung: str
    at: float
    boot_id: str | None
    evidence: str
    outcome: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class EndedCase:
    """A case that has ended: `rung` is the last one that was begun."""

    node: str
    finding: str
    rung: str
    at: float
    phase: CasePhase


@dataclass(frozen=True, slots=True)
class MoveCase:
    """A transition of one case: to a phase, at a rung. The store writes it with its line of the log."""

    node: str
    phase: CasePhase
    rung: str
    why: str = ""
    deadline: float = 0.0
    boot_id: str | None = None
    evidence: str = ""
    leave: bool | None = None
    outcome: str = ""  # of the rung that has ended
    cured: bool = False
    worker: str = ""  # process that carries out the rung


@dataclass(frozen=True, slots=True)
class OpenCase:
    """A new case."""

    case: RepairCase


@dataclass(frozen=True, slots=True)
class StopLadder:
    """Stop of the ladder for one common cause, until a person lifts it."""

    subject: str  # `finding NAME`, `rack NAME` or `leaf NAME`
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiftStop:
    """End of a stop, by a person."""

    subject: str


@dataclass(frozen=True, slots=True)
class StoreEvidence:
    """Evidence of a rung was stored: its digest."""

    node: str
    evidence: str


@dataclass(frozen=True, slots=True)
class ChangeLeave:
    """The part of a case in the turn of its node began, or has ended.

    `run`: the run that drains the node from now on; empty where other parts of the turn return it, None for no change.
    """

    node: str
    leave: bool
    run: str | None = None


LadderAction = OpenCase | MoveCase | StopLadder | LiftStop | StoreEvidence | ChangeLeave


@dataclass
class LadderState:
    """State of the ladder: open cases, rungs and ended cases of the past, and stops in force."""

    cases: dict[str, RepairCase] = field(default_factory=dict)
    rungs: list[RungRecord] = field(default_factory=list)
    ended: list[EndedCase] = field(default_factory=list)
    stops: set[str] = field(default_factory=set)

    def apply(self, action: LadderAction, now: float) -> None:
        """Apply one action. Raises KeyError for a change of a node without a case."""
        if isinstance(action, StopLadder):
            self.stops.add(action.subject)
        elif isinstance(action, LiftStop):
            self.stops.discard(action.subject)
        elif isinstance(action, StoreEvidence):
            self.cases[action.node] = replace(self.cases[action.node], evidence=action.evidence)
        elif isinstance(action, ChangeLeave):
            case = self.cases[action.node]
            run = case.run if action.run is None else action.run
            self.cases[action.node] = replace(case, leave=action.leave, run=run)
        elif isinstance(action, OpenCase):
            self.cases[action.case.node] = action.case
        else:
            self._move(action, now)

    def _move(self, move: MoveCase, now: float) -> None:
        case = self.cases[move.node]
        if move.phase is CasePhase.ACT:
            self.rungs.append(
                RungRecord(
                    move.node,
                    finding=case.finding,
                    rung=move.rung,
                    at=now,
                    boot_id=move.boot_id,
                    evidence=case.evidence,
                )
            )
        if move.outcome:
            for place, row in enumerate(self.rungs):
                if row.node == move.node and not row.outcome:
                    self.rungs[place] = replace(row, outcome=move.outcome, ended_at=now)
        if move.phase in ENDED:
            del self.cases[move.node]
            self.ended.append(EndedCase(move.node, case.finding, self._last(case), now, move.phase))
            return
        self.cases[move.node] = moved(case, move, now)

    def _last(self, case: RepairCase) -> str:
        begun = [
            row.rung for row in self.rungs if row.node == case.node and row.at >= case.opened_at
        ]
        return begun[-1] if begun else INSPECT


def moved(case: RepairCase, move: MoveCase, now: float) -> RepairCase:
    """Return a case after a transition that does not end it."""
    tries = case.tries + 1 if move.phase is CasePhase.ACT else case.tries
    inspects = move.phase is CasePhase.INSPECT
    return replace(
        case,
        phase=move.phase,
        rung=move.rung,
        changed_at=now,
        deadline=move.deadline,
        boot_id=move.boot_id or case.boot_id,
        # A new rung needs evidence of its own.
        evidence="" if inspects else move.evidence or case.evidence,
        leave=case.leave if move.leave is None else move.leave,
        tries=0 if move.rung != case.rung else tries,
        why=move.why,
        cured=move.cured or case.cured,
        worker=move.worker,
    )


def decide(
    policies: Mapping[str, LadderPolicy],
    state: LadderState,
    seen: Mapping[str, NodeSeen],
    now: float,
) -> list[LadderAction]:
    """Return the transitions that are due, in their order.

    :param policies: policy of each node; a node without one is left alone.
    :param seen: nodes with a finding or a case. One that is missing could not be read.
    """
    return list(_Decision(policies, state, seen, now).actions())


class _Decision:
    def __init__(
        self,
        policies: Mapping[str, LadderPolicy],
        state: LadderState,
        seen: Mapping[str, NodeSeen],
        now: float,
    ) -> None:
        self.policies, self.state, self.seen, self.now = policies, state, seen, now
        self.stops = set(state.stops)
        self.out = sum(_takes(case) for case in state.cases.values())
        self.begun = [row.at for row in state.rungs if row.at > now - HOUR]
        # A rung under way, or judged, in a cohort: its nodes train together.
        self.cohorts = Counter(
            case.cohort for case in state.cases.values() if case.cohort and _takes(case)
        )

    def actions(self) -> Iterator[LadderAction]:
        opened = list(self._opened())
        yield from self._stopped(opened)
        for case in opened:
            yield OpenCase(case)
        for name in sorted(self.state.cases):
            case, policy = self.state.cases[name], self.policies.get(name)
            if policy is None or policy.mode is LadderMode.OFF:
                policy = LadderPolicy(
                    LadderMode.OFF, bounds=policy.bounds if policy else LadderBounds()
                )
            yield from self._advance(case, policy, self.seen.get(name))

    # -- new cases

    def _opened(self) -> Iterator[RepairCase]:
        for name, seen in sorted(self.seen.items()):
            policy = self.policies.get(name)
            if policy is None or policy.mode is LadderMode.OFF or name in self.state.cases:
                continue
            # Findings in the middle of a change are those of the change.
            if not seen.findings or seen.holder in (Holder.OTHER, Holder.TURN):
                continue
            # Of several findings, the one whose repair affects most covers the others.
            finding, climb = max(
                seen.findings.items(), key=lambda item: (_weight(item[1]), item[0])
            )
            if self._rests(name, finding, policy.bounds):
                continue
            climb = tuple(rung for rung in climb if rung not in policy.forbidden)
            rung, why = self._first(name, finding, climb, policy.bounds)
            yield RepairCase(
                name,
                finding,
                climb,
                opened_at=self.now,
                phase=CasePhase.INSPECT,
                rung=rung,
                changed_at=self.now,
                deadline=self.now + policy.bounds.evidence,
                boot_id=seen.boot_id,
                why=why,
                planned=policy.mode is LadderMode.PLAN,
                cohort=seen.cohort,
            )

    def _rests(self, name: str, finding: str, bounds: LadderBounds) -> bool:
        """Return whether a case of this finding ended void a moment ago."""
        return any(
            row.node == name
            and row.finding == finding
            and row.phase is CasePhase.VOID
            and row.at > self.now - bounds.again
            for row in self.state.ended
        )

    def _first(
        self, name: str, finding: str, climb: tuple[str, ...], bounds: LadderBounds
    ) -> tuple[str, str]:
        """Return the rung to begin with: above the one that cured the same finding within the window."""
        before = [
            row
            for row in self.state.ended
            if row.node == name
            and row.finding == finding
            and row.phase is CasePhase.CURED
            and row.rung != INSPECT
            and row.at > self.now - bounds.recurrence
        ]
        if len(before) + 1 >= bounds.recurrences:
            return TICKET, f"case {len(before) + 1} of {finding} within {_days(bounds.recurrence)}"
        if before:
            rung = _above(climb, before[-1].rung)
            return rung, f"{finding} came back after {before[-1].rung}"
        return (climb[0] if climb else TICKET), finding

    def _stopped(self, opened: list[RepairCase]) -> Iterator[StopLadder]:
        """Yield a stop for each cause that several nodes share."""
        fresh: dict[str, set[str]] = defaultdict(set)
        bounds = next(
            (self.policies[case.node].bounds for case in opened if case.node in self.policies), None
        )
        if bounds is None:
            return
        since = self.now - bounds.common_window
        recent = [case for case in self.state.cases.values() if case.opened_at > since]
        for case in (*recent, *opened):
            for subject in self._subjects(case):
                fresh[subject].add(case.node)
        for row in self.state.ended:
            if row.at > since:
                fresh[f"finding {row.finding}"].add(row.node)
        for subject, names in sorted(fresh.items()):
            least = max(bounds.common, ceil(bounds.common_share * len(self.policies)))
            if len(names) >= least and subject not in self.stops:
                self.stops.add(subject)
                yield StopLadder(subject, tuple(sorted(names)))

    def _subjects(self, case: RepairCase) -> list[str]:
        seen = self.seen.get(case.node)
        subjects = [f"finding {case.finding}"]
        if seen is not None:
            subjects += [f"rack {seen.rack}"] if seen.rack else []
            subjects += [f"leaf {seen.leaf}"] if seen.leaf else []
        return subjects

    # -- open cases

    def _advance(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        if case.planned:
            yield from self._planned(case, policy, seen)
        elif case.phase is CasePhase.TICKET:
            yield from self._ticket(case, seen)
        elif case.phase is CasePhase.RETURN:
            yield from self._returned(case, seen)
        # A rung that has begun ends before anything else: what it took down has to come up again.
        elif case.phase is CasePhase.ACT:
            if self.now > case.deadline:
                late = self._to(case, CasePhase.CHECK, case.why, policy.bounds.check)
                yield replace(late, outcome="no outcome in time")
        elif seen is not None and seen.holder is Holder.LADDER and not case.leave:
            # A person has released its hold: nothing stays drained without one.
            yield self._to(case, CasePhase.RETURN, "a person released it")
        elif seen is not None and _taken_by_other(case, seen):
            yield self._end(case, CasePhase.VOID, f"another holds it: {seen.reason}")
        elif self._was_returned(case, seen) and case.phase is not CasePhase.CHECK:
            yield self._end(case, CasePhase.VOID, _RETURNED)
        elif policy.mode is not LadderMode.RUN:
            yield self._back(case, "the ladder is off")
        else:
            step = {
                CasePhase.INSPECT: self._inspected,
                CasePhase.WAIT: self._waited,
                CasePhase.DRAIN: self._drained,
                CasePhase.CHECK: self._checked,
            }[case.phase]
            yield from step(case, policy, seen)

    def _planned(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        if policy.mode is not LadderMode.PLAN:
            yield self._end(case, CasePhase.VOID, "the mode was changed")
        elif seen is not None and seen.findings is not None and case.finding not in seen.findings:
            yield self._end(case, CasePhase.VOID, "the finding is gone")

    def _inspected(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        """Wait for evidence of this rung. Control stores it, and sets `evidence`."""
        if case.evidence:
            if self._gone(case, seen):
                yield self._healthy(case, seen)
            elif case.rung == TICKET:
                yield self._to_ticket(case, case.why)
            else:
                boot = seen.boot_id if seen is not None else None
                yield replace(self._to(case, CasePhase.WAIT, case.why), boot_id=boot)
        elif self.now > case.deadline:
            yield self._to_ticket(case, "its evidence could not be stored")

    def _waited(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        if self._gone(case, seen):
            yield self._healthy(case, seen)
            return
        if seen is not None and case.rung not in seen.can:
            yield from self._climbs(case, policy, seen, f"{case.rung} cannot be carried out here")
            return
        if self._worn(case, policy.bounds):
            yield self._to_ticket(case, self._worn(case, policy.bounds))
            return
        if self.hindered(case, policy, seen):
            if case.leave and self.now > case.changed_at + policy.bounds.drain:
                yield self._to_ticket(case, self.hindered(case, policy, seen))
            return
        if not case.leave:
            self.out += 1
            if case.cohort:
                self.cohorts[case.cohort] += 1
        yield self._to(case, CasePhase.DRAIN, case.why, policy.bounds.drain)

    def hindered(self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None) -> str:
        """Return why a rung does not begin now; empty if it may."""
        bounds = policy.bounds
        if seen is None:
            return "the node was not read"
        for subject in self._subjects(case):
            if subject in self.stops:
                return f"the ladder is stopped for {subject}: several nodes have it at once"
        if len(self.begun) >= bounds.per_hour:
            return f"{len(self.begun)} rungs of the fleet within an hour"
        if case.leave:
            return ""
        if self.out >= bounds.together:
            return f"the ladder has {self.out} nodes out of service"
        if case.cohort and self.cohorts[case.cohort]:
            return f"another node of cohort {case.cohort} is being repaired"
        return ""

    def _worn(self, case: RepairCase, bounds: LadderBounds) -> str:
        """Return why a node gets no further rung; empty if it may get one."""
        since = self.now - bounds.node_window
        own = sum(row.node == case.node and row.at > since for row in self.state.rungs)
        if own < bounds.per_node:
            return ""
        return f"{own} rungs within {_days(bounds.node_window)}"

    def _drained(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        """Begin the rung on a node that is out of service and empty."""
        if self._gone(case, seen):
            yield self._healthy(case, seen)
            return
        if not case.leave:
            if self.now > case.deadline:
                yield self._back(case, "it got no leave in time")
            return
        wait = self.hindered(case, policy, seen)
        if seen is None or seen.in_service is True or seen.busy is not False:
            wait = wait or "work is left on it"
        if wait:
            if self.now > case.deadline:
                yield self._back(case, wait)
        elif seen is not None and case.boot_id and seen.boot_id not in (None, case.boot_id):
            # Evidence of another boot is void: the fault may have gone with that boot.
            yield self._to(case, CasePhase.INSPECT, "it has booted since", policy.bounds.evidence)
        else:
            self.begun.append(self.now)
            yield replace(
                self._to(case, CasePhase.ACT, case.why, policy.bounds.act),
                boot_id=(seen.boot_id if seen is not None else None) or case.boot_id,
            )

    def _checked(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None
    ) -> Iterator[MoveCase]:
        """Judge the rung by a check that came after it."""
        bounds = policy.bounds
        fresh = seen is not None and seen.findings is not None and seen.at > case.changed_at
        if fresh and case.rung in BOOTS and seen is not None and seen.boot_id == case.boot_id:
            fresh = False
        if not fresh or seen is None or seen.findings is None:
            if self.now > case.deadline:
                yield from self._climbs(case, policy, seen, f"no check since {case.rung}")
        elif seen.findings:
            left = ", ".join(sorted(seen.findings))
            yield from self._climbs(case, policy, seen, f"{left} after {case.rung}")
        elif seen.offender:
            yield self._to_ticket(case, seen.offender)
        elif not seen.outstanding:
            yield self._back(case, f"cured by {case.rung}", cured=True)
        elif self.now > case.changed_at + bounds.tests:
            yield self._to_ticket(case, f"tests before its return: {seen.outstanding}")

    def _was_returned(self, case: RepairCase, seen: NodeSeen | None) -> bool:
        """Return whether another than the ladder has returned the node to service."""
        taken = case.leave and case.phase is not CasePhase.DRAIN
        return taken and seen is not None and seen.in_service is True

    def _climbs(
        self, case: RepairCase, policy: LadderPolicy, seen: NodeSeen | None, why: str
    ) -> Iterator[MoveCase]:
        if self._was_returned(case, seen):
            yield self._end(case, CasePhase.VOID, _RETURNED)
            return
        again = 0 < case.tries < policy.bounds.attempts
        rung = case.rung if again else _above(case.climb, case.rung)
        yield replace(self._to(case, CasePhase.INSPECT, why, policy.bounds.evidence), rung=rung)

    def _returned(self, case: RepairCase, seen: NodeSeen | None) -> Iterator[MoveCase]:
        """End a case when its node is no longer held by the ladder."""
        if seen is not None and seen.holder is not Holder.LADDER and not case.leave:
            yield self._end(case, CasePhase.CURED if case.cured else CasePhase.VOID, case.why)

    def _ticket(self, case: RepairCase, seen: NodeSeen | None) -> Iterator[MoveCase]:
        """End a case that a person has released, and return what the ladder had drained."""
        if case.leave or seen is None:
            return
        if seen.holder is Holder.LADDER:
            yield self._to(case, CasePhase.RETURN, "a person released it")
        elif self._gone(case, seen):
            yield self._end(case, CasePhase.VOID, "a person repaired it")

    # -- transitions

    def _gone(self, case: RepairCase, seen: NodeSeen | None) -> bool:
        return (
            seen is not None
            and seen.findings is not None
            and seen.at > case.changed_at
            and not seen.findings
        )

    def _healthy(self, case: RepairCase, seen: NodeSeen | None) -> MoveCase:
        """Return a node whose finding is gone: by a rung of this case, or by itself.

        A repeat offender that is out of service stays out until a person returns it.
        """
        if seen is not None and seen.offender and case.leave:
            return self._to_ticket(case, seen.offender)
        acted = [
            row.rung
            for row in self.state.rungs
            if row.node == case.node and row.at >= case.opened_at
        ]
        why = f"cured by {acted[-1]}" if acted else "the finding was gone before a rung"
        return self._back(case, why, cured=bool(acted))

    def _to(self, case: RepairCase, phase: CasePhase, why: str, limit: float = 0.0) -> MoveCase:
        return MoveCase(case.node, phase, case.rung, why, self.now + limit)

    def _to_ticket(self, case: RepairCase, why: str) -> MoveCase:
        return MoveCase(case.node, CasePhase.TICKET, TICKET, why)

    def _back(self, case: RepairCase, why: str, cured: bool = False) -> MoveCase:
        if not case.leave and not cured:
            return self._end(case, CasePhase.VOID, why)
        return replace(self._to(case, CasePhase.RETURN, why), cured=cured)

    def _end(self, case: RepairCase, phase: CasePhase, why: str) -> MoveCase:
        return MoveCase(case.node, phase, case.rung, why)


_RETURNED = "it was returned to service during the repair"
BOOTS = frozenset({"reboot", "power-cycle", "slot-write", "reinstall"})
_ORDER = (
    INSPECT,
    "service-restart",
    "gpu-reset",
    "module-reload",
    "reboot",
    "power-cycle",
    "slot-write",
    "reinstall",
    TICKET,
)


def _taken_by_other(case: RepairCase, seen: NodeSeen) -> bool:
    """Return whether another holds the node, so that the case ends. It waits for its own part of a turn of others."""
    return seen.holder is Holder.OTHER or (case.leave and seen.holder is Holder.TURN)


def _weight(climb: tuple[str, ...]) -> int:
    return _ORDER.index(climb[0]) if climb else len(_ORDER)


def _takes(case: RepairCase) -> bool:
    """Return whether a case has its node out of service in the ladder's own count."""
    return (
        not case.planned
        and (case.leave or case.phase in HELD)
        and case.phase is not CasePhase.TICKET
    )


def _above(climb: tuple[str, ...], rung: str) -> str:
    """Return the rung of a way above another; `ticket` above the last."""
    place = _ORDER.index(rung)
    return next((item for item in climb if _ORDER.index(item) > place), TICKET)


def _days(seconds: float) -> str:
    return f"{seconds / DAY:g} days"
