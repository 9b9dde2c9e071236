"""The queue of disruptive work: which node goes out of service next, for whom, and who waits for what.

Repairs, rollouts, site.yml, rollback.yml, disk updates, return tests and refreshes of a mirror ask for nodes. `decide(view, now)` is
pure, as `plan` of a rollout is: the store calls it in the transaction that writes its actions, and
the simulator calls it too. The caller applies the actions and decides again, until there are none.

A node is taken down once for all that waits for it: the requests that wait when it is granted, and
those that come before its return begins, are parts of one turn. Parts run one after the other, in
the order of `QueuedWork`. The last one returns the node.

A run that works on several nodes at once (a batch of site.yml) asks for all of them together. Such requests are
granted whole or not at all, so no two runs wait for each other. Where a node has parts of two of them, both have
the same order on each node they share, because that of `QueuedWork` is the order on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

QUEUE = "queue"  # owner of the hold of a turn
# `under` of a part whose node was out of service before, with a failed hold: its turn takes no room.
ALREADY_OUT = "out"
# Seconds after which a request is ordered by its age alone, as one of the security lane is.
PATIENCE = 24 * 3600.0
# Seconds for which a request waits for the rollout that wants the same node, once there is room for it.
COURTESY = 60.0
LEASE = 120.0  # seconds without a sign of life after which a waiting asker counts as dead
LIMIT = 2 * 3600.0  # seconds for one part of a turn, if its asker names no other time
RETURN_WITHIN = 3600.0  # seconds for the return check and the return


class QueuedWork(StrEnum):
    """Kinds of work, in the order in which they are done under one grant.

    A repair comes first: a change on broken hardware proves nothing. Changes follow, the widest
    last. Tests come last, since they judge all of it.
    """

    REPAIR = "repair"
    ROLLBACK = "rollback"  # rollback.yml
    APPLY = "apply"  # site.yml
    DISK_UPDATE = "disk-update"
    ROLLOUT = "rollout"
    RETURN_TEST = "return-test"
    MIRROR = "mirror"  # needs no node: no driver may be installed while it is refreshed


WORK_ORDER = {work: place for place, work in enumerate(QueuedWork)}


class WorkNeed(StrEnum):
    """Needs of a request. Without `DRAIN` the node must be out of service already."""

    DRAIN = "drain"
    REBOOT = "reboot"
    POWER = "power"
    DRIVER = "driver"  # the driver is changed: packages are installed


class RequestState(StrEnum):
    """State of a request. It is waiting, granted with others, running, and has ended."""

    WAITING = "waiting"
    GRANTED = "granted"  # the node is its own; its part has not begun
    RUNNING = "running"
    RETURNING = "returning"  # the last part of a turn: it checks the node and returns it
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its asker died before it began


HOLDING = frozenset({RequestState.GRANTED, RequestState.RUNNING, RequestState.RETURNING})
OPEN = HOLDING | {RequestState.WAITING}


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """One request. Times are seconds since the epoch.

    A request of a rollout has no node: it asks for `places`, and the rollout chooses the nodes.
    """

    id: int
    work: QueuedWork
    class_: str  # empty for a mirror of all classes
    reason: str
    who: str
    holder: str  # the process that asks: MACHINE/RUN
    since: float
    beat_at: float
    node: str | None = None
    needs: tuple[WorkNeed, ...] = (WorkNeed.DRAIN,)
    lease: float = LEASE
    limit: float = LIMIT
    security: bool = False
    rollout: str | None = None
    places: int = 1
    state: RequestState = RequestState.WAITING
    turn: int | None = None
    under: str | None = None  # whose hold its turn has: QUEUE, ALREADY_OUT, or a rollout
    offered_at: float | None = None
    deadline: float | None = None  # of the running part
    together: str | None = None  # name of the requests that are granted whole: one for each node


@dataclass(frozen=True, slots=True)
class QueueHold:
    """One reason why a node is out of service."""

    owner: str
    kind: str  # planned, failed or person
    reason: str
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class QueueNode:
    """A node that is asked for.

    :param domains: (scope, name) of its class and of its other failure domains.
    :param wanted_by: the rollout that would take it now: a wave that is open has it, and its controller lives.
    :param step: phase of its step in the rollout that holds it.
    :param ended: kinds of work that its present turn has done already. One more of them is another turn: so each turn ends.
    """

    name: str
    domains: tuple[tuple[str, str], ...]
    holds: tuple[QueueHold, ...] = ()
    wanted_by: str | None = None
    step: str | None = None
    ended: frozenset[QueuedWork] = frozenset()


@dataclass(frozen=True, slots=True)
class DomainRoom:
    """Counters and limits of one failure domain. A limit that is None does not apply."""

    planned: int = 0
    failed: int = 0
    total: int = 0
    planned_limit: int | None = None
    failed_limit: int | None = None
    total_limit: int | None = None


@dataclass(frozen=True, slots=True)
class QueueFreeze:
    """A freeze in force."""

    scope: str
    subject: str
    reason: str
    who: str


@dataclass(frozen=True, slots=True)
class QueueView:
    """All that a decision depends on: open requests, their nodes, room, freezes, and what changes drivers now.

    :param changing: class -> nodes that a rollout holds for its change.
    :param dead: holders that are known to have ended.
    """

    requests: Sequence[QueueRequest]
    nodes: Mapping[str, QueueNode]
    room: Mapping[tuple[str, str], DomainRoom]
    freezes: Sequence[QueueFreeze] = ()
    changing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ExpireRequest:
    """End a request whose asker died before its part began."""

    request: int
    why: str


@dataclass(frozen=True, slots=True)
class LoseWork:
    """End a part whose asker died, or that passed its deadline: the state of the node is unknown, so it stays out."""

    request: int
    why: str


@dataclass(frozen=True, slots=True)
class RequeueRequest:
    """Let a part wait again: the rollout that shared its node has given it up."""

    request: int
    why: str


@dataclass(frozen=True, slots=True)
class OfferRequest:
    """Wait for the rollout that wants the same node, for `COURTESY` seconds."""

    request: int
    rollout: str


@dataclass(frozen=True, slots=True)
class GrantTurn:
    """Take a node out of service for requests. With `under` ALREADY_OUT it is out, and no hold is written."""

    node: str
    requests: tuple[int, ...]
    turn: int
    under: str
    deadline: float


@dataclass(frozen=True, slots=True)
class JoinTurn:
    """Add requests to the turn that a node has."""

    node: str
    requests: tuple[int, ...]
    turn: int
    under: str


@dataclass(frozen=True, slots=True)
class GrantTogether:
    """Take all nodes of requests that were asked together, each in a turn of its own, or in the turn that it has."""

    requests: tuple[int, ...]
    parts: tuple[GrantTurn | JoinTurn, ...]


@dataclass(frozen=True, slots=True)
class GrantQuiet:
    """Let a mirror be refreshed: no driver is being changed."""

    request: int


QueueAction: TypeAlias = (
    ExpireRequest
    | LoseWork
    | RequeueRequest
    | OfferRequest
    | GrantTurn
    | JoinTurn
    | GrantTogether
    | GrantQuiet
)


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Reason why a request waits: its place in the order, and who or what it waits for.

    :param for_room: nothing but room in a failure domain is missing.
    :param for_person: no turn that ends grants it: a person has to act.
    """

    request: int
    place: int
    reason: str
    owner: str
    until: float | None = None
    for_room: bool = False
    for_person: bool = False


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The actions to take now, and why each other request waits, in the order in which they are served."""

    actions: tuple[QueueAction, ...]
    waits: tuple[QueueWait, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueShare:
    """What the queue has for a rollout: parts that share its grants, and requests that are served before its next one.

    :param before: nodes of its grants on which a part is done before the change.
    :param after: nodes of its grants on which a part is done before the return.
    :param offered: nodes that another request waits for too: the rollout takes them first.
    :param ahead: failure domains of each node that is granted before the rollout's next one.
    :param quiet: why no driver may be changed now; empty if one may.
    """

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    ahead: tuple[tuple[tuple[str, str], ...], ...] = ()
    quiet: str = ""


def share(view: QueueView, decision: QueueDecision, rollout: str, class_: str) -> QueueShare:
    """Return what a decision that has come to rest means for a rollout."""
    before: set[str] = set()
    after: set[str] = set()
    quiet = ""
    for request in view.requests:
        held = request.node is not None and request.state in HOLDING and request.under == rollout
        if held and request.node is not None:
            early = WORK_ORDER[request.work] < WORK_ORDER[QueuedWork.ROLLOUT]
            (before if early else after).add(request.node)
        if request.work is QueuedWork.MIRROR and request.class_ in ("", class_):
            quiet = f"the mirror is refreshed for {request.who}: {request.reason}"
    known = {request.id: request for request in view.requests}
    offered: set[str] = set()
    ahead: dict[str, tuple[tuple[str, str], ...]] = {}
    for wait in decision.waits:
        request = known[wait.request]
        if request.rollout == rollout:
            break
        node = view.nodes.get(request.node or "")
        if node is None or node.domains[0][1] != class_:
            continue
        if wait.owner == f"rollout {rollout}":
            offered.add(node.name)
        elif wait.for_room:
            ahead[node.name] = node.domains
    return QueueShare(
        frozenset(before), frozenset(after), frozenset(offered), tuple(ahead.values()), quiet
    )


def decide(view: QueueView, now: float) -> QueueDecision:
    """Return what to do now, and why the rest waits. Apply the actions in their order, then decide again."""
    return _Decider(view, now).run()


def order(request: QueueRequest, node: QueueNode | None, now: float) -> tuple[int, float, int]:
    """Return the place of a request in the order: rule, age, number.

    1. The repair of a node that is out already: it takes no room, and gives a node back.
    2. The security lane, and requests that have waited for `PATIENCE`: so nobody is overtaken for ever.
    3. The age.
    """
    rank = 2
    if request.work is QueuedWork.REPAIR and node is not None and _out(node):
        rank = 0
    elif request.security or now - request.since >= PATIENCE:
        rank = 1
    return rank, request.since, request.id


ORDER_RULES = (
    "repair of a node that is out of service already",
    "security lane, or waiting for a day",
    "age",
)


def next_part(parts: Iterable[QueueRequest], node: QueueNode | None) -> int | None:
    """Return the part of a turn that may begin now; None while one runs, or while a rollout has the node for its change."""
    held = [part for part in parts if part.state in HOLDING]
    if not held or any(part.state is not RequestState.GRANTED for part in held):
        return None
    first = min(held, key=lambda part: (WORK_ORDER[part.work], part.id))
    shared = first.under not in (QUEUE, ALREADY_OUT)
    if shared and node is not None:
        before = WORK_ORDER[first.work] < WORK_ORDER[QueuedWork.ROLLOUT]
        if node.step not in (("granted", "returning") if before else ("returning",)):
            return None
    return first.id


def may_begin(view: QueueView, request: QueueRequest) -> bool:
    """Return whether the part of a request may begin now: with those that were asked together, all of them."""
    if request.node is None:
        return request.state is RequestState.GRANTED
    own = [request]
    if request.together is not None:
        own = [one for one in view.requests if one.together == request.together]
    for one in own:
        parts = [part for part in view.requests if part.node == one.node]
        if next_part(parts, view.nodes.get(one.node or "")) != one.id:
            return False
    return True


def _out(node: QueueNode) -> bool:
    """Return whether only failures hold a node out of service: a repair takes no room, and overrides nobody."""
    return bool(node.holds) and all(hold.kind == "failed" for hold in node.holds)


def _drained_by_person(node: QueueNode) -> bool:
    return any(hold.kind == "person" for hold in node.holds)


class _Decider:
    def __init__(self, view: QueueView, now: float) -> None:
        self.view, self.now = view, now
        self.actions: list[QueueAction] = []
        self.waits: list[QueueWait] = []
        self.by_node: dict[str, list[QueueRequest]] = {}
        for request in view.requests:
            if request.node is not None:
                self.by_node.setdefault(request.node, []).append(request)
        self.taken: dict[tuple[str, str], int] = {}  # places granted or reserved by this decision
        self.granted: set[str] = set()  # nodes that this decision has granted
        self.reserved: dict[str, QueueRequest] = {}  # node -> old request that it is left free for
        self.changing = {name: list(nodes) for name, nodes in view.changing.items()}
        for request in view.requests:
            if request.state in HOLDING and WorkNeed.DRIVER in request.needs and request.node:
                self.changing.setdefault(request.class_, []).append(request.node)
        # Refreshes of mirrors that driver changes wait for: under way, or earlier in the order.
        self.quiet = [
            request
            for request in view.requests
            if request.work is QueuedWork.MIRROR and request.state in HOLDING
        ]

    def run(self) -> QueueDecision:
        """Decide stage by stage; the first stage with actions ends the decision."""
        for stage in (self._ends, self._joins, self._serve):
            stage()
            if self.actions:
                break
        return QueueDecision(tuple(self.actions), tuple(self.waits))

    # Askers that died, parts that take too long

    def _ends(self) -> None:
        for request in self.view.requests:
            dead = request.holder in self.view.dead
            if request.state in (RequestState.RUNNING, RequestState.RETURNING):
                late = request.deadline is not None and self.now > request.deadline
                if dead or late:
                    self.actions.append(LoseWork(request.id, self._lost(request, dead)))
            elif dead or self.now > request.beat_at + request.lease:
                self.actions.append(ExpireRequest(request.id, self._silent(request, dead)))
            elif self._given_up(request):
                why = f"rollout {request.under} has given up {request.node}"
                self.actions.append(RequeueRequest(request.id, why))

    def _lost(self, request: QueueRequest, dead: bool) -> str:
        if dead:
            return f"{request.holder} ended before its {request.work} did: the state of {request.node} is unknown"
        return f"the {request.work} by {request.who} has not ended within {request.limit / 3600:g} hours"

    def _silent(self, request: QueueRequest, dead: bool) -> str:
        if dead:
            return f"{request.holder} has ended"
        return f"{request.holder} has given no sign of life for {request.lease:g} s"

    def _given_up(self, request: QueueRequest) -> bool:
        if request.state is not RequestState.GRANTED or request.under in (None, QUEUE, ALREADY_OUT):
            return False
        node = self.view.nodes.get(request.node or "")
        return node is None or not any(
            hold.owner == request.under and hold.kind == "planned" for hold in node.holds
        )

    # Requests for a node that has a turn

    def _joins(self) -> None:
        for name, requests in self.by_node.items():
            node = self.view.nodes.get(name)
            if node is None or _drained_by_person(node):
                continue
            waiting = [
                one
                for one in requests
                if one.state is RequestState.WAITING
                and one.work not in node.ended
                and one.together is None
            ]
            held = [one for one in requests if one.state in HOLDING]
            if not waiting:
                continue
            planned = next((hold for hold in node.holds if hold.kind == "planned"), None)
            shared = planned is not None and planned.owner != QUEUE and node.step == "granted"
            if held and held[0].under in (QUEUE, ALREADY_OUT):
                fits = held[0].under == QUEUE or _out(node)
                if fits and all(one.state is not RequestState.RETURNING for one in held):
                    self._join(node, waiting, held[0].turn or held[0].id, held[0].under)
            elif planned is not None and shared:
                first = held[0].turn if held else None
                turn = first or min(one.id for one in waiting)
                self._join(node, waiting, turn, planned.owner)

    def _join(
        self, node: QueueNode, waiting: Sequence[QueueRequest], turn: int, under: str
    ) -> None:
        if self._frozen(node) is None and self._not_quiet(node, waiting, self.quiet) is None:
            ids = tuple(one.id for one in waiting)
            self.actions.append(JoinTurn(node.name, ids, turn, under))

    # The others, in order

    def _serve(self) -> None:
        waiting = [one for one in self.view.requests if one.state is RequestState.WAITING]
        waiting.sort(key=lambda one: order(one, self.view.nodes.get(one.node or ""), self.now))
        refusals: dict[str, QueueWait | None] = {}  # node, or the name of requests together
        for place, request in enumerate(waiting, 1):
            if request.node is None:
                self._serve_class(request, place)
                continue
            key = request.node
            if request.together is not None:
                key = f"together {request.together}"
            if key not in refusals:
                refusals[key] = self._serve_one(request, request.node, place)
            wait = refusals[key]
            if wait is not None:
                self.waits.append(replace(wait, request=request.id, place=place))

    def _serve_one(self, request: QueueRequest, name: str, place: int) -> QueueWait | None:
        """Grant a request, or all that was asked together with it. Return why it waits; None if it was granted."""
        if request.together is not None:
            return self._serve_together(request, place)
        if name in self.granted:
            reason = f"{name} is granted to an earlier request"
            return QueueWait(request.id, place, reason, "its turn")
        return self._reserved(name, request.id, place) or self._serve_node(request, place)

    def _reserved(self, node: str, number: int, place: int) -> QueueWait | None:
        old = self.reserved.get(node)
        if old is None:
            return None
        reason = f"{node} is left free for request {old.id}, which has waited for a day"
        return QueueWait(number, place, reason, old.who)

    def _serve_together(self, request: QueueRequest, place: int) -> QueueWait | None:
        """Grant all nodes that were asked together, or none, and return why."""
        members = [one for one in self.view.requests if one.together == request.together]
        taken, refusals = dict(self.taken), list[QueueWait]()
        parts: list[GrantTurn | JoinTurn] = []
        for one in members:
            part = self._part_of(one, place, taken)
            if isinstance(part, QueueWait):
                refusals.append(part)
            else:
                parts.append(part)
        if not refusals:
            self.taken = taken
            self.granted |= {part.node for part in parts}
            self.actions.append(GrantTogether(tuple(one.id for one in members), tuple(parts)))
            if WorkNeed.DRIVER in request.needs:
                for part in parts:
                    class_ = self.view.nodes[part.node].domains[0][1]
                    self.changing.setdefault(class_, []).append(part.node)
            return None
        by_person = [one for one in refusals if one.for_person]
        old = self.now - request.since >= PATIENCE
        if old and not by_person:
            # What it waits for ends by itself. So that no later request takes a node or a place before:
            self.taken = taken
            self.reserved |= {str(one.node): request for one in members}
        first = (by_person or refusals)[0]
        for_room = all(one.for_room for one in refusals)
        reason = first.reason
        if len(members) > 1:
            reason = f"{len(members)} nodes are granted together: {reason}"
        return replace(first, reason=reason, for_room=for_room)

    def _part_of(
        self, request: QueueRequest, place: int, taken: dict[tuple[str, str], int]
    ) -> GrantTurn | JoinTurn | QueueWait:
        """Return the grant of one node of several, or why it cannot be; `taken` gets its places in any case."""
        name = request.node or ""
        node = self.view.nodes.get(name)

        def waits(reason: str, owner: str, until: float | None = None, **why: bool) -> QueueWait:
            return QueueWait(request.id, place, reason, owner, until=until, **why)

        if node is None:
            return waits(f"the store has no node {name}", "person who adds it", for_person=True)
        too_many = self._too_many(request, node)
        if too_many:
            return waits(too_many, "person who asks for fewer at once", for_person=True)
        group = [
            one
            for one in self.by_node[name]
            if one.state is RequestState.WAITING and (one.together is None or one.id == request.id)
        ]
        held = [one for one in self.by_node[name] if one.state in HOLDING]
        joins = self._joinable(node, held, request)
        out = bool(node.holds)
        room, under = "", ALREADY_OUT
        if not out:
            room, under = self._room_for(node, taken), QUEUE
            for domain in node.domains:
                taken[domain] = taken.get(domain, 0) + 1
        if (frozen := self._frozen(node)) is not None:
            return waits(*frozen, for_person=True)
        if name in self.granted:
            return waits(f"{name} is granted to an earlier request", "its turn")
        if (wait := self._reserved(name, request.id, place)) is not None:
            return wait
        if not joins and (other := self._held(node, group)) is not None:
            reason, owner, until = other
            return waits(reason, owner, until=until, for_person=_drained_by_person(node))
        quiet = self._not_quiet(node, [request], self.quiet)
        if quiet is not None:
            return waits(*quiet)
        if room:
            return waits(room, "nodes that are out of service", for_room=True)
        ids = tuple(one.id for one in group)
        if joins:
            return JoinTurn(name, (request.id,), held[0].turn or held[0].id, str(held[0].under))
        deadline = self.now + sum(one.limit for one in group) + RETURN_WITHIN
        return GrantTurn(name, ids, min(ids), under, deadline)

    def _joinable(
        self, node: QueueNode, held: Sequence[QueueRequest], request: QueueRequest
    ) -> bool:
        """Return whether a node has a turn of the queue that one more part may join."""
        if not held or _drained_by_person(node) or request.work in node.ended:
            return False
        if any(one.state is RequestState.RETURNING for one in held):
            return False
        return held[0].under == QUEUE or (held[0].under == ALREADY_OUT and _out(node))

    def _too_many(self, request: QueueRequest, node: QueueNode) -> str:
        """Return why requests together can never be granted; empty if they can."""
        nodes = [
            self.view.nodes[one.node]
            for one in self.view.requests
            if one.together == request.together and one.node and one.node in self.view.nodes
        ]
        for domain in node.domains:
            room = self.view.room.get(domain, DomainRoom())
            wanted = sum(domain in one.domains and not one.holds for one in nodes)
            limits = [one for one in (room.planned_limit, room.total_limit) if one is not None]
            if limits and wanted > min(limits):
                return (
                    f"{domain[0]} {domain[1]} has a limit of {min(limits)}, and {wanted} of its "
                    "nodes are asked at once"
                )
        return ""

    def _room_for(self, node: QueueNode, taken: Mapping[tuple[str, str], int]) -> str:
        for domain in node.domains:
            room = self.view.room.get(domain, DomainRoom())
            if _free(room, taken.get(domain, 0)) < 1:
                return f"{domain[0]} {domain[1]}: {_full(room, taken.get(domain, 0))}"
        return ""

    def _serve_class(self, request: QueueRequest, place: int) -> None:
        if request.work is QueuedWork.MIRROR:
            names = [
                name
                for class_, nodes in self.changing.items()
                if request.class_ in ("", class_)
                for name in nodes
            ]
            if names:
                reason = f"drivers are being changed on {_names(names)}"
                self.waits.append(QueueWait(request.id, place, reason, "these nodes"))
            else:
                self.actions.append(GrantQuiet(request.id))
            self.quiet.append(request)
            return
        # A rollout takes its places itself, at its next decision. They stay free for it.
        domain = ("class", request.class_)
        room = self.view.room.get(domain, DomainRoom())
        free = _free(room, self.taken.get(domain, 0))
        self.taken[domain] = self.taken.get(domain, 0) + min(request.places, free)
        reason = "its controller takes the places at its next decision"
        owner = f"rollout {request.rollout}"
        if free < request.places:
            reason = f"class {request.class_}: {_full(room, self.taken[domain])}"
            owner = "nodes that are out of service"
        self.waits.append(QueueWait(request.id, place, reason, owner, for_room=True))

    def _serve_node(self, request: QueueRequest, place: int) -> QueueWait | None:
        """Grant the node of a request, or return why it waits."""
        name = request.node or ""
        node = self.view.nodes.get(name)

        def waits(reason: str, owner: str, until: float | None = None, **why: bool) -> QueueWait:
            return QueueWait(request.id, place, reason, owner, until=until, **why)

        if node is None:
            return waits(f"the store has no node {name}", "person who adds it", for_person=True)
        group = [
            one
            for one in self.by_node[name]
            if one.state is RequestState.WAITING and one.together is None
        ]
        if (frozen := self._frozen(node)) is not None:
            return waits(*frozen, for_person=True)
        held = self._held(node, group)
        tests = [one for one in group if WorkNeed.DRAIN not in one.needs]
        if held is not None and 0 < len(tests) < len(group) and self._held(node, tests) is None:
            group, held = tests, None  # who has drained the node can test it
        if held is not None:
            return waits(*held, for_person=_drained_by_person(node))
        quiet = self._not_quiet(node, group, self.quiet)
        if quiet is not None:
            return waits(*quiet)
        out = bool(node.holds)
        if not out:
            refused = self._no_room(node, request)
            if refused is not None:
                return waits(refused, "nodes that are out of service", for_room=True)
            if not any(WorkNeed.DRAIN in one.needs for one in group):
                return waits(
                    f"{name} is in service, and the work is for a node that is out",
                    "person",
                    for_person=True,
                )
            self._take(node)
            offered = self._offered(node, group)
            if offered is not None:
                return waits(offered, f"rollout {node.wanted_by}")
        if any(WorkNeed.DRIVER in one.needs for one in group):
            self.changing.setdefault(node.domains[0][1], []).append(name)
        ids = tuple(one.id for one in group)
        deadline = self.now + sum(one.limit for one in group) + RETURN_WITHIN
        under = ALREADY_OUT if out else QUEUE
        self.actions.append(GrantTurn(name, ids, min(ids), under, deadline))
        self.granted.add(name)
        return None

    def _frozen(self, node: QueueNode) -> tuple[str, str] | None:
        for freeze in self.view.freezes:
            if freeze.scope == "all" or (freeze.scope, freeze.subject) in node.domains:
                what = f"{freeze.scope} {freeze.subject}".strip()
                return f"{what} is frozen by {freeze.who}: {freeze.reason}", freeze.who
        return None

    def _held(
        self, node: QueueNode, group: Sequence[QueueRequest]
    ) -> tuple[str, str, float | None] | None:
        """Return who holds the node, if its work has to wait for that. Tests alone disturb nobody's drain."""
        tests_only = all(WorkNeed.DRAIN not in one.needs for one in group)
        for hold in node.holds:
            if hold.kind == "person" and not tests_only:
                return f"{hold.owner} has drained {node.name}: {hold.reason}", hold.owner, None
        for hold in node.holds:
            if hold.kind == "planned" and not (tests_only and node.step == "returning"):
                return f"{hold.owner} has {node.name}: {hold.reason}", hold.owner, hold.deadline
        active = [one for one in self.by_node[node.name] if one.state in HOLDING]
        if active:
            last = active[-1]
            return (
                f"the {last.work} of {last.who} ends on {node.name}, and returns it",
                last.who,
                last.deadline,
            )
        return None

    def _not_quiet(
        self, node: QueueNode, group: Sequence[QueueRequest], quiet: Sequence[QueueRequest]
    ) -> tuple[str, str] | None:
        if not any(WorkNeed.DRIVER in one.needs for one in group):
            return None
        for request in quiet:
            if request.class_ in ("", node.domains[0][1]):
                return f"the mirror is refreshed: {request.reason}", request.who
        return None

    def _no_room(self, node: QueueNode, request: QueueRequest) -> str | None:
        own = self.view.room.get(node.domains[0])
        if own is None or own.planned_limit is None:
            return (
                f"class {node.domains[0][1]} has no limits: submit a rollout, or give it some with "
                "`goldnode fleet nodes FILE`"
            )
        for domain in node.domains:
            room, taken = self.view.room.get(domain, DomainRoom()), self.taken.get(domain, 0)
            if _free(room, taken) < 1:
                if self.now - request.since >= PATIENCE:
                    self._take(
                        node
                    )  # so that later ones do not take one place of it after the other
                return f"{domain[0]} {domain[1]}: {_full(room, taken)}"
        return None

    def _take(self, node: QueueNode) -> None:
        for domain in node.domains:
            self.taken[domain] = self.taken.get(domain, 0) + 1

    def _offered(self, node: QueueNode, group: Sequence[QueueRequest]) -> str | None:
        """Offer the node to the rollout that wants it too; None once that has not taken it in time."""
        if node.wanted_by is None:
            return None
        since = [one.offered_at for one in group if one.offered_at is not None]
        if since and self.now - min(since) >= COURTESY:
            return None
        if not since:
            self.actions.append(OfferRequest(group[0].id, node.wanted_by))
        return f"rollout {node.wanted_by} takes {node.name} too, in the same turn"


def _free(room: DomainRoom, taken: int) -> int:
    """Return how many nodes of a domain may still go, after `taken` further ones."""
    if room.failed_limit is not None and room.failed > room.failed_limit:
        return 0
    rests = [
        limit - count - taken
        for limit, count in ((room.planned_limit, room.planned), (room.total_limit, room.total))
        if limit is not None
    ]
    return max(0, min(rests, default=1))


def _full(room: DomainRoom, taken: int) -> str:
    if room.failed_limit is not None and room.failed > room.failed_limit:
        return f"{room.failed} nodes have failed, the limit is {room.failed_limit}"
    for word, limit, count in (
        ("planned", room.planned_limit, room.planned),
        ("out of service", room.total_limit, room.total),
    ):
        if limit is not None and count + taken >= limit:
            kept = f", and earlier requests have {taken} more" if taken else ""
            return f"{count} of {limit} nodes are {word}{kept}"
    return "no place is free"


def _names(names: Sequence[str]) -> str:
    shown = sorted(set(names))
    return f"{', '.join(shown[:5])}{f' and {len(shown) - 5} more' if len(shown) > 5 else ''}"
