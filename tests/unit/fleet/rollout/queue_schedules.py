"""Schedules for the queue: a small fleet in memory, askers that die, persons, freezes and a rollout that has nodes.

The actions of `decide` are applied here as the store applies them. A schedule is a list of numbers, so that hypothesis can shrink it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from goldnode.fleet.rollout.queue import (
    ALREADY_OUT,
    HOLDING,
    OPEN,
    PATIENCE,
    QUEUE,
    RETURN_WITHIN,
    DomainRoom,
    ExpireRequest,
    GrantQuiet,
    GrantTogether,
    GrantTurn,
    JoinTurn,
    LoseWork,
    OfferRequest,
    QueueAction,
    QueuedWork,
    QueueFreeze,
    QueueHold,
    QueueNode,
    QueueRequest,
    QueueView,
    QueueWait,
    RequestState,
    RequeueRequest,
    WorkNeed,
    decide,
    may_begin,
)

CLASS, NODES, RACKS = "h100", 6, 3
PLANNED, FAILED, TOTAL, PER_RACK = 2, 3, 4, 1
DRAINS = (WorkNeed.DRAIN,)
WORKS = {
    QueuedWork.REPAIR: (WorkNeed.DRAIN, WorkNeed.REBOOT),
    QueuedWork.ROLLBACK: (WorkNeed.DRAIN, WorkNeed.DRIVER),
    QueuedWork.APPLY: (WorkNeed.DRAIN, WorkNeed.DRIVER),
    QueuedWork.DISK_UPDATE: (WorkNeed.DRAIN, WorkNeed.REBOOT),
    QueuedWork.RETURN_TEST: (),
}
HOUR = 3600.0
Limits = Mapping[str, tuple[int | None, int | None, int | None]]
LIMITS: Limits = {"class": (PLANNED, FAILED, TOTAL), "rack": (PER_RACK, None, None)}
SMALL = {
    f"n{number}": (("class", CLASS), ("rack", f"r{number % RACKS}")) for number in range(NODES)
}


class QueueWorld:
    """Nodes, holds and requests, with the invariants checked after each action."""

    def __init__(
        self, domains: Mapping[str, tuple[tuple[str, str], ...]] = SMALL, limits: Limits = LIMITS
    ) -> None:
        self.now = 1000.0
        self.limits = limits
        self.number = 0  # of the last request
        self.nodes = {name: QueueNode(name, own) for name, own in domains.items()}
        self.held: set[str] = set()  # nodes with a hold
        self.requests: dict[int, QueueRequest] = {}
        self.freezes: tuple[QueueFreeze, ...] = ()
        self.dead: set[str] = set()
        self.unfit: set[int] = set()  # turns in which a part has left its node unfit
        self.ended: dict[int, set[QueuedWork]] = {}  # turn -> kinds of work that have ended
        self.waits: tuple[QueueWait, ...] = ()
        self.asked = 0  # times that several nodes were asked together
        self.served: dict[int, float] = {}  # request -> seconds that it has waited
        self.grants: list[tuple[str, tuple[int, ...]]] = []

    # The view

    def open(self) -> list[QueueRequest]:
        return [one for one in self.requests.values() if one.state in OPEN]

    def parts(self, node: str) -> list[QueueRequest]:
        return [one for one in self.open() if one.node == node and one.state in HOLDING]

    def room(self) -> dict[tuple[str, str], DomainRoom]:
        counts: dict[tuple[str, str], Counter[str]] = {}
        for name in self.held | self.wanted():
            node = self.nodes[name]
            for domain in node.domains:
                counted = counts.setdefault(domain, Counter())
                counted.update(hold.kind for hold in node.holds)
                counted["total"] += bool(node.holds)
        return {
            domain: DomainRoom(
                counted["planned"], counted["failed"], counted["total"], *self.limits[domain[0]]
            )
            for domain, counted in counts.items()
        }

    def wanted(self) -> set[str]:
        """Return the nodes that a view needs: those with an open request. A schedule looks at all of them."""
        return set(self.nodes)

    def view(self) -> QueueView:
        changing = [
            name
            for name in sorted(self.held)
            for node in [self.nodes[name]]
            if any(hold.owner == "kernel" and hold.kind == "planned" for hold in node.holds)
        ]
        nodes = {
            name: replace(self.nodes[name], ended=frozenset(self.ended_of(name)))
            for name in self.wanted()
        }
        return QueueView(
            self.open(), nodes, self.room(), self.freezes, {CLASS: changing}, frozenset(self.dead)
        )

    def ended_of(self, name: str) -> set[QueuedWork]:
        turns = {one.turn for one in self.parts(name)}
        return {work for turn in turns if turn is not None for work in self.ended.get(turn, ())}

    # Decisions

    def settle(self, stop_after: int | None = None) -> None:
        """Decide and apply until nothing is left to do, or until the process dies after some actions."""
        written = 0
        for _ in range(100):
            seen = self.view()
            decision = decide(seen, self.now)
            assert decision == decide(seen, self.now), "decide() changed something"
            for action in decision.actions:
                if stop_after is not None and written >= stop_after:
                    return
                self.apply(action)
                written += 1
            if not decision.actions:
                self.waits = decision.waits
                self.check_waits()
                return
        raise AssertionError(f"decide() does not come to rest: {decision.actions}")

    def check_waits(self) -> None:
        """Each open request is served, or named as waiting with a reason and an owner."""
        waiting = {one.id for one in self.open() if one.state is RequestState.WAITING}
        assert waiting == {wait.request for wait in self.waits}
        assert all(wait.reason and wait.owner for wait in self.waits)

    def apply(self, action: QueueAction) -> None:
        match action:
            case ExpireRequest(number, _):
                self.close(number, RequestState.EXPIRED)
            case LoseWork(number, _):
                self.end(number, succeeded=False, fit=False)
            case RequeueRequest(number, _):
                self.change(number, state=RequestState.WAITING, turn=None, under=None)
            case OfferRequest(number, _):
                self.change(number, offered_at=self.now)
            case GrantQuiet(number):
                self.change(number, state=RequestState.GRANTED)
                self.served[number] = self.now - self.requests[number].since
            case GrantTurn():
                self.grant(action)
            case GrantTogether(numbers, parts):
                asked = {one.id for one in self.together(self.requests[numbers[0]])}
                assert asked == set(numbers), "a request is granted in part"
                assert len({part.node for part in parts}) == len(parts) == len(numbers)
                for part in parts:
                    self.apply(part)
            case JoinTurn(node, numbers, turn, under):
                assert all(one.state is not RequestState.RETURNING for one in self.parts(node))
                holds = self.nodes[node].holds
                assert not any(hold.kind == "person" for hold in holds)
                assert under != ALREADY_OUT or all(hold.kind == "failed" for hold in holds)
                self.take(numbers, turn, under)

    def grant(self, action: GrantTurn) -> None:
        node = self.nodes[action.node]
        wanted = [self.requests[number] for number in action.requests]
        assert not self.parts(action.node), "a node has two turns"
        drains = any(WorkNeed.DRAIN in one.needs for one in wanted)
        if drains:
            assert not any(hold.kind == "planned" for hold in node.holds), "a node is drained twice"
            assert not any(hold.kind == "person" for hold in node.holds), "a person's drain"
            everyone = {
                one.id
                for one in self.open()
                if one.node == action.node
                and one.state is RequestState.WAITING
                and (one.together is None or one.id in action.requests)
            }
            assert set(action.requests) == everyone, "a request waits for another drain"
        if action.under == QUEUE:
            before = self.room()
            self.hold(action.node, QueueHold(QUEUE, "planned", "work", action.deadline))
            for domain, room in self.room().items():
                for count, limit in (
                    (room.planned, room.planned_limit),
                    (room.total, room.total_limit),
                ):
                    assert limit is None or count <= limit or room == before[domain], domain
            failed = self.limits["class"][1]
            assert failed is None or self.room()["class", CLASS].failed <= failed
        else:
            assert action.under == ALREADY_OUT
            assert node.holds
        self.take(action.requests, action.turn, action.under)
        self.grants.append((action.node, action.requests))

    def take(self, numbers: Sequence[int], turn: int, under: str) -> None:
        for number in numbers:
            assert self.requests[number].state is RequestState.WAITING
            self.change(number, state=RequestState.GRANTED, turn=turn, under=under)
            self.served[number] = self.now - self.requests[number].since

    def change(self, number: int, **values: object) -> None:
        self.requests[number] = replace(self.requests[number], **values)  # type: ignore[arg-type]

    def hold(self, name: str, hold: QueueHold) -> None:
        node = self.nodes[name]
        rest = tuple(one for one in node.holds if one.owner != hold.owner)
        self.nodes[name] = replace(node, holds=(*rest, hold))
        self.held.add(name)

    def drop(self, name: str, owner: str) -> None:
        node = self.nodes[name]
        holds = tuple(one for one in node.holds if one.owner != owner)
        self.nodes[name] = replace(node, holds=holds)
        if not holds:
            self.held.discard(name)

    # Askers

    def together(self, request: QueueRequest) -> list[QueueRequest]:
        """Return the open requests that were asked together with one, with itself."""
        if request.together is None:
            return [request]
        return [one for one in self.open() if one.together == request.together]

    def ask_together(self, names: Sequence[str], work: QueuedWork) -> None:
        if any(one.node in names and one.work is work for one in self.open()):
            return
        self.asked += 1
        for name in names:
            self.ask(name, work, together=f"run {self.asked}")

    def ask(
        self,
        node: str | None,
        work: QueuedWork,
        security: bool = False,
        together: str | None = None,
        holder: str = "",
    ) -> None:
        if any(one.node == node and one.work is work for one in self.open()):
            return
        number = self.number = self.number + 1
        self.requests[number] = QueueRequest(
            id=number,
            work=work,
            class_=CLASS,
            reason="a reason",
            who="ann",
            holder=holder or f"m/{together or number}",
            since=self.now,
            beat_at=self.now,
            node=node,
            needs=WORKS.get(work, ()),
            security=security,
            together=together,
        )

    def beat(self) -> None:
        """Let each asker that lives give a sign of life."""
        for one in self.open():
            if one.holder not in self.dead:
                self.change(one.id, beat_at=self.now)

    def begin(self, request: QueueRequest) -> None:
        alive = request.holder not in self.dead
        if not may_begin(self.view(), request) or not alive:
            return
        for one in self.together(request):
            if one.node is not None:
                states = [part.state for part in self.parts(one.node)]
                assert RequestState.RUNNING not in states, "two parts run on one node"
            self.change(one.id, state=RequestState.RUNNING, deadline=self.now + one.limit)

    def end(self, number: int, *, succeeded: bool, fit: bool) -> None:
        """End a part or a return, as the store does."""
        request = self.requests[number]
        final = RequestState.DONE if succeeded else RequestState.FAILED
        if request.node is None:
            self.change(number, state=final)
            return
        if request.state is RequestState.RETURNING:
            self.change(number, state=final)
            self.back(request, fit)
            return
        self.change(number, state=final)
        assert request.turn is not None
        self.ended.setdefault(request.turn, set()).add(request.work)
        if not fit:
            self.unfit.add(request.turn)
        if request.under not in (QUEUE, ALREADY_OUT):
            if not fit:
                self.hold(request.node, QueueHold(QUEUE, "failed", "unfit"))
        elif not self.parts(request.node):
            if request.turn in self.unfit:
                self.out(request)
            elif request.under == QUEUE or QueuedWork.REPAIR in self.ended[request.turn]:
                late = self.now + RETURN_WITHIN
                self.change(number, state=RequestState.RETURNING, deadline=late)

    def back(self, request: QueueRequest, back: bool) -> None:
        assert request.node is not None
        if not back:
            self.out(request)
            return
        for hold in self.nodes[request.node].holds:
            if hold.owner == QUEUE or (hold.kind == "failed" and request.under == ALREADY_OUT):
                self.drop(request.node, hold.owner)

    def out(self, request: QueueRequest) -> None:
        if request.node is not None and request.under == QUEUE:
            self.hold(request.node, QueueHold(QUEUE, "failed", "it stays out"))

    def close(self, number: int, state: RequestState) -> None:
        request = self.requests[number]
        self.change(number, state=state)
        granted = request.state is RequestState.GRANTED and request.under == QUEUE
        if not granted or request.node is None or self.parts(request.node):
            return
        if self.ended.get(request.turn or 0):
            self.out(request)
        else:
            self.drop(request.node, QUEUE)

    # Schedules

    def run(self, schedule: Sequence[int]) -> None:
        for number in schedule:
            self.operate(number % 16, number // 16)
            self.check()

    def operate(self, operation: int, chosen: int) -> None:
        name = f"n{chosen % NODES}"
        rest = chosen // NODES
        live = self.open()
        one = live[chosen % len(live)] if live else None
        if operation <= 3:
            self.ask(name, tuple(WORKS)[rest % len(WORKS)], security=rest % 7 == 0)
        elif operation == 4 and rest % 3 == 0:
            self.ask(None, QueuedWork.MIRROR)
        elif operation == 4:
            names = [f"n{(chosen + step) % NODES}" for step in range(2 + rest % 2)]
            work = (QueuedWork.APPLY, QueuedWork.ROLLBACK)[rest // 2 % 2]
            self.ask_together(names[:PLANNED], work)
        elif operation in (5, 6) and one is not None:
            self.begin(one)
        elif operation in (7, 8) and one is not None and one.holder not in self.dead:
            if one.state in (RequestState.RUNNING, RequestState.RETURNING):
                self.end(one.id, succeeded=rest % 4 != 0, fit=rest % 5 != 0)
        elif operation == 9 and one is not None:
            self.dead.add(one.holder) if rest % 2 else None
            moved = rest % 4 == 0 and one.together is None
            if moved:
                self.change(one.id, holder=f"{one.holder}x")
        elif operation == 10:
            if any(hold.kind == "person" for hold in self.nodes[name].holds):
                self.drop(name, "bob")
            elif not self.nodes[name].holds:
                self.hold(name, QueueHold("bob", "person", "disk"))
        elif operation == 11:
            self.freezes = () if self.freezes else (QueueFreeze("rack", "r0", "power", "carol"),)
        elif operation == 12:
            self.move_rollout(name, rest)
        elif operation == 13:
            if not self.nodes[name].holds:
                self.hold(name, QueueHold("kernel", "failed", "driver"))
        elif operation == 14:
            self.now += (30.0, 300.0, HOUR, 3 * HOUR, 30 * HOUR)[rest % 5]
            self.beat()
        elif operation == 15:
            self.settle(stop_after=rest % 3)
        if operation % 3 == 0:
            self.settle()

    def move_rollout(self, name: str, rest: int) -> None:
        """Let a rollout take the node, or go a step further with the one that it has."""
        node = self.nodes[name]
        own = any(hold.owner == "kernel" and hold.kind == "planned" for hold in node.holds)
        if own:
            following = {"granted": "applying", "applying": "returning", "returning": None}
            running = [one for one in self.parts(name) if one.state is RequestState.RUNNING]
            step = following[node.step or "granted"] if not running else node.step
            self.nodes[name] = replace(node, step=step)
            if step is None:
                self.drop(name, "kernel")
        elif rest % 3 == 0:
            self.nodes[name] = replace(node, wanted_by=None if node.wanted_by else "kernel")
        elif not node.holds:
            room = self.room()
            if all(
                (one := room[domain]).planned_limit is not None
                and one.planned < one.planned_limit
                and (one.total_limit is None or one.total < one.total_limit)
                for domain in node.domains
            ):
                self.hold(name, QueueHold("kernel", "planned", "kernel", self.now + HOUR))
                self.nodes[name] = replace(self.nodes[name], step="granted", wanted_by=None)

    def check(self) -> None:
        """Check what holds at any time."""
        for request in self.open():
            states = {one.state is RequestState.WAITING for one in self.together(request)}
            assert len(states) == 1, "a part of a request for several nodes is granted"
            begun = {one.state is RequestState.GRANTED for one in self.together(request)}
            assert len(begun) == 1, "a part of a request for several nodes has begun"
        for name, node in self.nodes.items():
            parts = self.parts(name)
            assert len({one.turn for one in parts}) <= 1, "two turns on one node"
            assert sum(one.state is RequestState.RUNNING for one in parts) <= 1
            queue = [hold for hold in node.holds if hold.owner == QUEUE and hold.kind == "planned"]
            holding = [one for one in parts if one.under == QUEUE]
            assert bool(queue) == bool(holding), "a hold without a part, or a part without a hold"

    # The end

    def let_end(self) -> float:
        """Let persons, the rollout and all askers finish; return the longest further wait."""
        self.freezes = ()
        for name, node in self.nodes.items():
            self.nodes[name] = replace(node, step=None, wanted_by=None)
            for hold in node.holds:
                if hold.owner != QUEUE:
                    self.drop(name, hold.owner)
                elif hold.kind == "failed":
                    self.drop(name, QUEUE)
        begun = self.now
        for _ in range(2000):
            if not self.open():
                return self.now - begun
            self.settle()
            self.check()
            for one in self.open():
                if one.holder in self.dead:
                    continue
                if one.state is RequestState.GRANTED:
                    self.begin(one)
                elif one.state in (RequestState.RUNNING, RequestState.RETURNING):
                    self.end(one.id, succeeded=True, fit=True)
                elif WorkNeed.DRAIN not in one.needs and one.node is not None:
                    self.close(one.id, RequestState.CANCELLED)  # for a node that serves again
            # A person releases what was lost.
            for name, node in self.nodes.items():
                if any(hold.owner == QUEUE and hold.kind == "failed" for hold in node.holds):
                    self.drop(name, QUEUE)
            self.now += 60.0
            self.beat()
        raise AssertionError(f"not served: {[(one.id, one.state) for one in self.open()]}")


BOUND = PATIENCE  # of the last phase, in which nothing but earlier requests is in the way
