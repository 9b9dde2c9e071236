"""The queue in the store: requests for nodes, their grants with the limits of all grants, and their ends.

Whoever asks also decides: `advance` runs `goldnode.fleet.rollout.queue.decide` in the transaction
that writes its actions, which has the lock of the ledger. So there is no program that must run for
others, and two that decide at once do so one after the other.

A request goes `ask` → `poll` until `may_begin` → `begin` → work → `finish` → if its ending `returns`,
the return check, the return, and `returned`. Each is written before its effect. A token refuses a
process whose request another one has taken over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, or_, select

from goldnode.fleet.rollout import queue as model
from goldnode.fleet.rollout.queue import (
    ALREADY_OUT,
    HOLDING,
    LIMIT,
    OPEN,
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
    QueueDecision,
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
)
from goldnode.fleet.shared import identity
from goldnode.fleet.store import tables
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.log import LogLine, append
from goldnode.fleet.store.many import padded
from goldnode.node.ground.drained import GATE

_ROUNDS = 100  # decisions of one transaction: each serves at least one request
_LIVE = 60.0  # seconds since the last sign of life of a rollout's controller
_OPEN = tables.request.c.state.in_(tables.OPEN_REQUESTS)


class QueueError(StoreError):
    """A request is unknown, has ended, or belongs to another process now."""


@dataclass(frozen=True)
class NodeAsk:
    """A request for a node, or for quiet (`QueuedWork.MIRROR`, without a node).

    :param holder: the process that asks, MACHINE/RUN; see `process`.
    :param limit: seconds that its part may take, with the drain.
    """

    work: QueuedWork
    reason: str
    who: str
    holder: str
    node: str | None = None
    class_: str | None = None  # of a mirror; None: all classes
    needs: tuple[WorkNeed, ...] = (WorkNeed.DRAIN,)
    lease: float = model.LEASE
    limit: float = LIMIT
    security: bool = False


@dataclass(frozen=True)
class QueueClaim:
    """A request of one process. Every later call names both."""

    id: int
    token: int


@dataclass(frozen=True)
class QueueStanding:
    """State of a request now.

    :param wait: why it waits; None if it does not.
    :param may_begin: its part may begin: call `begin`, then drain as `run`.
    :param run: the name under which each part of the turn drains and returns the node.
    """

    request: QueueRequest
    wait: QueueWait | None = None
    may_begin: bool = False

    @property
    def run(self) -> str:
        """Return the name of the run that drains: of the rollout that shares the node, or of the turn."""
        return run_of(self.request)


@dataclass(frozen=True)
class WorkOutcome:
    """Result of a part. A node that is not `fit` does not return, whatever the other parts say."""

    succeeded: bool
    text: str = ""
    fit: bool = True


@dataclass(frozen=True)
class PartEnding:
    """End of a part.

    :param last: no other part of the turn is left.
    :param returns: this process checks the node and returns it now, then calls `returned`.
    :param others: the parts that are left, as sentences.
    :param parts: the results of all parts of the turn, as sentences.
    """

    last: bool
    returns: bool
    others: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def process() -> str:
    """Return the holder that this process is."""
    own = identity.actor()
    return f"{own.controller}/{own.run}"


def run_of(request: QueueRequest) -> str:
    """Return the name of the run that drains the node of a turn (`goldnode.fleet.shared.identity.rollout_actor`)."""
    if request.under not in (None, QUEUE, ALREADY_OUT):
        return str(request.under)
    return turn_name(request.turn)


def ended_runs(connection: Connection, name: str) -> frozenset[str]:
    """Return the runs of the turns that a node has had and that have ended, as marks of drains name them."""
    request, other = tables.request, tables.request.alias("open_part")
    open_turns = select(other.c.turn).where(
        other.c.node == request.c.node, other.c.state.in_(tables.OPEN_REQUESTS)
    )
    turns = connection.scalars(
        select(request.c.turn)
        .join(tables.node, tables.node.c.name == request.c.node)
        .where(
            or_(tables.node.c.name == name, tables.node.c.machine == name),
            request.c.turn.is_not(None),
            request.c.turn.not_in(open_turns.where(other.c.turn.is_not(None))),
        )
        .distinct()
    )
    return frozenset(identity.rollout_run(turn_name(turn)) for turn in turns)


def is_out(connection: Connection, name: str) -> bool:
    """Return whether anything holds a node out of service, as far as the store knows."""
    node, hold = tables.node, tables.hold
    query = select(hold.c.node).join(node, node.c.name == hold.c.node)
    known = or_(node.c.name == name, node.c.machine == name)
    return connection.scalar(query.where(known).limit(1)) is not None


def work_on(connection: Connection, name: str, now: float) -> str | None:
    """Return what works on a node or waits for it: a rollout, a repair or a request. None: nothing does.

    A hold of a person is no work.
    """
    hold, request = tables.hold, tables.request
    held = connection.execute(
        select(hold.c.owner, hold.c.reason).where(hold.c.node == name, hold.c.kind != "person")
    ).first()
    if held is not None:
        return f"{held[0]} holds it ({held[1]})"
    waiting = connection.execute(
        select(request.c.work, request.c.who).where(
            request.c.node == name, request.c.state.in_(tuple(sorted(OPEN)))
        )
    ).first()
    if waiting is not None:
        return f"{waiting[1]} has asked for it ({waiting[0]})"
    rollout = _wanted(connection, [name], now).get(name)
    return None if rollout is None else f"rollout {rollout} takes it next"


def turn_name(turn: int | None) -> str:
    """Return the name of the run that drains the node of a turn."""
    return f"queue turn {turn}"


def unknown(connection: Connection, name: str) -> str | None:
    """Return why the queue does not decide about a node; None if it does."""
    node, buffer = tables.node, tables.buffer
    row = connection.execute(
        select(node.c["class"], buffer.c.planned_limit)
        .join(
            buffer,
            and_(buffer.c.scope == "class", buffer.c.name == node.c["class"]),
            isouter=True,
        )
        .where(or_(node.c.name == name, node.c.machine == name), ~node.c.retired)
    ).first()
    if row is None:
        return f"the store has no node {name}"
    return None if row[1] is not None else f"class {row[0]} has no limits in the store"


# Requests


def ask(connection: Connection, given: NodeAsk, now: float) -> QueueClaim:
    """Store a request, or take over the open one of the same node and work, whose process has ended or is this one.

    Raises QueueError for an unknown node, and while another process asks for the same.
    """
    if not given.reason.strip():
        raise QueueError("a request needs a reason")
    if (given.node is None) != (given.work is QueuedWork.MIRROR):
        raise QueueError("a refresh of a mirror has no node, and any other work has one")
    node_class = given.class_ or ""
    if given.node is not None:
        name, node_class = _known(connection, given.node)
        given = replace(given, node=name)
    advance(connection, now)
    before = _open_one(connection, given, node_class)
    if before is not None:
        return _taken_over(connection, before, given, now)
    return QueueClaim(_insert(connection, given, node_class, now), 1)


def ask_together(
    connection: Connection, given: NodeAsk, names: Sequence[str], now: float
) -> QueueClaim:
    """Store the requests of one process for several nodes, which are granted whole or not at all.

    Return the claim of `given.node`, which is one of them. Another call of the same process for another of
    the nodes finds its request there.

    Raises QueueError for an unknown node, and while another process asks for the same work on one of them.
    """
    own, node_class = _known(connection, given.node or "")
    given = replace(given, node=own)
    advance(connection, now)
    before = _open_one(connection, given, node_class)
    if before is not None:
        return _taken_over(connection, before, given, now)
    classes = dict([(own, node_class), *(_known(connection, name) for name in names)])
    wanted = [replace(given, node=name) for name in sorted(classes)]
    for one in wanted:
        other = _open_one(connection, one, classes[str(one.node)])
        if other is not None and other["holder"] != given.holder:
            _taken_over(
                connection, other, one, now
            )  # refuses, or ends what a dead process has left
    together = f"{given.holder} {now:.6f}"
    number = 0
    for one in wanted:
        if _open_one(connection, one, classes[str(one.node)]) is None:
            inserted = _insert(connection, one, classes[str(one.node)], now, together)
            if one.node == own:
                number = inserted
    return QueueClaim(number, 1)


def _known(connection: Connection, name: str) -> tuple[str, str]:
    """Return the name of a node and its class. Raises QueueError for one that the store does not have."""
    node = tables.node
    row = connection.execute(
        select(node.c.name, node.c["class"]).where(
            or_(node.c.name == name, node.c.machine == name), ~node.c.retired
        )
    ).first()
    if row is None:
        raise QueueError(
            f'the store has no node "{name}"', remedy="add it: `goldnode fleet nodes FILE`"
        )
    return row[0], row[1]


def _open_one(connection: Connection, given: NodeAsk, node_class: str) -> RowMapping | None:
    """Return the open request of the same node and work."""
    request = tables.request
    same = select(request).where(
        _OPEN,
        request.c.work == given.work.value,
        request.c.node.is_(None) if given.node is None else request.c.node == given.node,
        request.c["class"] == node_class,
    )
    return connection.execute(same).mappings().first()


def _insert(
    connection: Connection,
    given: NodeAsk,
    node_class: str,
    now: float,
    together: str | None = None,
) -> int:
    request = tables.request
    values = {
        "node": given.node,
        "class": node_class,
        "work": given.work.value,
        "needs": json.dumps([need.value for need in given.needs]),
        "reason": given.reason,
        "who": given.who,
        "holder": given.holder,
        "since": now,
        "beat_at": now,
        "lease": given.lease,
        "time_limit": given.limit,
        "security": given.security,
        "state": RequestState.WAITING.value,
        "together": together,
    }
    key = connection.execute(request.insert().values(**values)).inserted_primary_key or (0,)
    content = {
        "request": key[0],
        "work": given.work.value,
        "needs": values["needs"],
        "reason": given.reason,
    }
    subject = given.node or f"class {node_class}"
    _log(connection, now, given.who, "RequestNode", subject, content=content)
    return int(key[0])


def _taken_over(
    connection: Connection, before: RowMapping, given: NodeAsk, now: float
) -> QueueClaim:
    dead = before["holder"] == given.holder or _ended(before["holder"])
    if not dead and now <= before["beat_at"] + before["lease"]:
        raise QueueError(
            f"{before['who']} asks for {before['node'] or 'a mirror'} already: {before['work']}, {before['reason']}",
            remedy=f"wait for it, or cancel it: `goldnode fleet cancel {before['id']} --reason REASON`",
        )
    token = before["token"] + 1
    _change(
        connection,
        before["id"],
        token=token,
        holder=given.holder,
        who=given.who,
        reason=given.reason,
        beat_at=now,
    )
    content = {"request": before["id"], "holder": given.holder, "before": before["holder"]}
    _log(connection, now, given.who, "TakeRequest", before["node"] or "mirror", content=content)
    return QueueClaim(int(before["id"]), token)


def poll(connection: Connection, claim: QueueClaim, now: float) -> QueueStanding:
    """Give a sign of life, decide, and return how the request stands. Raises QueueError once another process has it."""
    row = _own(connection, claim)
    for number in _together(connection, row):
        _change(connection, number, beat_at=now)
    decision, view = advance(connection, now)
    return _standing(claim.id, decision, view) or QueueStanding(
        _request(_own(connection, claim, open_only=False))
    )


def _standing(number: int, decision: QueueDecision, view: QueueView) -> QueueStanding | None:
    request = next((one for one in view.requests if one.id == number), None)
    if request is None:
        return None
    wait = next((one for one in decision.waits if one.request == number), None)
    return QueueStanding(request, wait, model.may_begin(view, request))


def begin(connection: Connection, claim: QueueClaim, now: float) -> QueueStanding:
    """Record that a part begins, before anything is done to the node. Raises QueueError if it is not its turn."""
    standing = poll(connection, claim, now)
    request = standing.request
    if request.state is RequestState.RUNNING:
        return standing
    if not standing.may_begin:
        why = standing.wait.reason if standing.wait else f"it is {request.state}"
        raise QueueError(f"request {claim.id} may not begin: {why}")
    deadline = now + request.limit
    # All that was asked together begins as one: no part of it waits for another run then.
    row = _own(connection, claim)
    for number in _together(connection, row):
        begun = _request(_row(connection, number))
        _change(
            connection,
            number,
            state=RequestState.RUNNING.value,
            began_at=now,
            deadline=deadline,
        )
        _prolong(connection, begun, deadline)
        _log(
            connection,
            now,
            request.who,
            "BeginWork",
            begun.node or "mirror",
            content={"request": number, "work": request.work.value, "deadline": deadline},
        )
    running = replace(request, state=RequestState.RUNNING, deadline=deadline)
    return QueueStanding(running)


def _prolong(connection: Connection, request: QueueRequest, deadline: float) -> None:
    """Let the hold of a turn last for the part and the return check: the parts before it may have taken long."""
    hold = tables.hold
    connection.execute(
        hold.update()
        .where(hold.c.node == request.node, hold.c.owner == QUEUE, hold.c.kind == "planned")
        .where(hold.c.deadline < deadline + RETURN_WITHIN)
        .values(deadline=deadline + RETURN_WITHIN)
    )


def _row(connection: Connection, number: int) -> RowMapping:
    query = select(tables.request).where(tables.request.c.id == number)
    return connection.execute(query).mappings().one()


def _together(connection: Connection, row: RowMapping) -> list[int]:
    """Return the open requests that were asked together with one, with its own; in the order of their numbers."""
    request = tables.request
    if row["together"] is None:
        return [row["id"]]
    query = select(request.c.id).where(_OPEN, request.c.together == row["together"])
    return list(connection.scalars(query.order_by(request.c.id)))


def finish(
    connection: Connection, claim: QueueClaim, outcome: WorkOutcome, now: float
) -> PartEnding:
    """Record the result of a part. Raises QueueError if it does not run."""
    row = _own(connection, claim)
    request = _request(row)
    if request.state is not RequestState.RUNNING:
        raise QueueError(f"request {claim.id} does not run: it is {request.state}")
    return _finished(connection, request, outcome, request.who, now)


def _finished(
    connection: Connection, request: QueueRequest, outcome: WorkOutcome, who: str, now: float
) -> PartEnding:
    state = RequestState.DONE if outcome.succeeded else RequestState.FAILED
    _change(
        connection,
        request.id,
        state=state.value,
        succeeded=outcome.succeeded,
        fit=outcome.fit,
        result=outcome.text,
        ended_at=now,
    )
    content = {"request": request.id, "work": request.work.value, **asdict(outcome)}
    _log(
        connection,
        now,
        who,
        "EndWork",
        request.node or "mirror",
        content=content,
        rollout=request.rollout,
    )
    if request.node is None:
        return PartEnding(True, False)
    rows = _turn(connection, request)
    left = [one for one in rows if one["state"] in HOLDING]
    unfit = [one for one in rows if one["fit"] is False]
    parts = tuple(_result(one) for one in rows if one["state"] not in HOLDING)
    shared = request.under not in (QUEUE, ALREADY_OUT)
    if shared and not outcome.fit:
        _out(connection, request, outcome.text, now)
    if left or shared:
        return PartEnding(False, False, tuple(_result(one) for one in left), parts)
    if unfit:
        _out(connection, request, "; ".join(_result(one) for one in unfit), now)
        return PartEnding(True, False, parts=parts)
    if request.under == ALREADY_OUT and not _cured(connection, request, rows):
        return PartEnding(True, False, parts=parts)  # the node was out before, and stays so
    _change(
        connection,
        request.id,
        state=RequestState.RETURNING.value,
        deadline=now + RETURN_WITHIN,
        ended_at=None,
    )
    _prolong(connection, request, now)
    return PartEnding(True, True, parts=parts)


def _cured(connection: Connection, request: QueueRequest, rows: Sequence[RowMapping]) -> bool:
    """Return whether a turn has ended what held its node out: by a repair, or by doing again the work that had failed."""
    done = {QueuedWork(one["work"]) for one in rows if one["succeeded"]}
    if QueuedWork.REPAIR in done:
        return True
    hold = tables.hold
    held = connection.execute(
        select(hold.c.owner, hold.c.kind, hold.c.reason).where(hold.c.node == request.node)
    ).all()
    return bool(held) and all(
        owner == QUEUE and kind == "failed" and any(reason.startswith(f"{work}: ") for work in done)
        for owner, kind, reason in held
    )


def returned(connection: Connection, claim: QueueClaim, back: bool, text: str, now: float) -> None:
    """Record the end of a turn: the node serves again, or stays out for a reason. Raises QueueError if it does not return.

    A node that a repair has cured is released from the failures that held it out, as by
    `goldnode fleet release`; a person's drain stays.
    """
    row = _own(connection, claim)
    request = _request(row)
    if request.state is not RequestState.RETURNING:
        raise QueueError(f"request {claim.id} does not return a node: it is {request.state}")
    _returned(connection, row, back, text, now)


def _returned(connection: Connection, row: RowMapping, back: bool, text: str, now: float) -> None:
    request, hold = _request(row), tables.hold
    state = RequestState.DONE if row["succeeded"] else RequestState.FAILED
    result = "; ".join(part for part in (row["result"], text) if part)
    _change(
        connection,
        request.id,
        state=state.value,
        ended_at=now,
        result=result,
        fit=back,
    )
    if not back:
        _out(connection, request, text, now)
        return
    held = connection.execute(
        select(hold.c.owner, hold.c.kind, hold.c.rollout, hold.c.reason).where(
            hold.c.node == request.node, hold.c.kind != "person"
        )
    ).all()
    repaired = any(
        one["work"] == QueuedWork.REPAIR and one["succeeded"] for one in _turn(connection, request)
    )
    for owner, kind, rollout, reason in held:
        if owner == QUEUE or (kind == "failed" and repaired):
            connection.execute(
                hold.delete().where(hold.c.node == request.node, hold.c.owner == owner)
            )
        if owner != QUEUE and kind == "failed" and repaired:
            content = {
                "node": request.node,
                "who": request.who,
                "reason": f"repaired: {result or request.reason}",
                "before": {"owner": owner, "kind": kind, "reason": reason},
            }
            _log(
                connection,
                now,
                request.who,
                "Release",
                str(request.node),
                content=content,
                rollout=rollout,
            )
    end = {"node": request.node, "turn": request.turn, "back": True, "text": text}
    _log(connection, now, request.who, "EndTurn", str(request.node), content=end)


def _out(connection: Connection, request: QueueRequest, why: str, now: float) -> None:
    """Let the node of a turn stay out, paid by the failed buffer."""
    hold = tables.hold
    own = and_(hold.c.node == request.node, hold.c.owner == QUEUE)
    reason = f"{request.work}: {why}" if why else f"{request.work} has failed"
    changed = connection.execute(hold.update().where(own).values(kind="failed", reason=reason))
    already = request.under == ALREADY_OUT
    rollout = None if request.under in (QUEUE, ALREADY_OUT) else request.under
    if not changed.rowcount and not already:
        values = {"node": request.node, "owner": QUEUE, "kind": "failed", "reason": reason}
        connection.execute(hold.insert().values(since=now, **values))
        # The state of a rollout that has the node for its own part follows from its log.
        _log(
            connection,
            now,
            request.who,
            "TakeHold",
            str(request.node),
            content=values,
            rollout=rollout,
        )
        return
    content = {"node": request.node, "turn": request.turn, "back": False, "text": reason}
    _log(connection, now, request.who, "EndTurn", str(request.node), content=content)


def cancel(connection: Connection, number: int, order: PersonsOrder) -> bool:
    """Cancel a request that has not begun. Return whether it was open. Raises QueueError for one that runs."""
    row = (
        connection.execute(select(tables.request).where(tables.request.c.id == number))
        .mappings()
        .first()
    )
    if row is None:
        raise QueueError(
            f"the queue has no request {number}", remedy="`goldnode fleet queue` lists them"
        )
    request = _request(row)
    if request.state in (RequestState.RUNNING, RequestState.RETURNING):
        remedy = f"stop {request.holder}; the request ends with it"
        if request.work is QueuedWork.REPAIR:
            remedy = f"end it with `goldnode fleet release {request.node} --reason REASON`"
        raise QueueError(
            f"request {number} has begun: {request.work} on {request.node or 'a mirror'}",
            remedy=remedy,
        )
    if request.state not in model.OPEN:
        return False
    why = f"cancelled by {order.who}: {order.reason}"
    _cancel_together(connection, row, why, order.now, order.who)
    advance(connection, order.now)
    return True


def withdraw(connection: Connection, claim: QueueClaim, why: str, now: float) -> None:
    """End the own request before it begins; one that has ended is no error."""
    row = _own(connection, claim, open_only=False)
    request = _request(row)
    if request.state in (RequestState.WAITING, RequestState.GRANTED):
        _cancel_together(connection, row, why, now, request.who)


def _cancel_together(
    connection: Connection, row: RowMapping, why: str, now: float, who: str
) -> None:
    """End a request that has not begun, with all that was asked together with it."""
    for number in _together(connection, row):
        one = _request(_row(connection, number))
        _close(connection, one, RequestState.CANCELLED, why, now=now, who=who)


def _close(
    connection: Connection,
    request: QueueRequest,
    state: RequestState,
    why: str,
    *,
    now: float,
    who: str,
) -> None:
    """End a request that has not begun, and the turn, if it was all that was left of it."""
    _change(connection, request.id, state=state.value, ended_at=now, result=why)
    action = "CancelRequest" if state is RequestState.CANCELLED else "ExpireRequest"
    _log(
        connection,
        now,
        who,
        action,
        request.node or "mirror",
        content={"request": request.id, "work": request.work.value, "reason": why},
    )
    if request.state is not RequestState.GRANTED or request.node is None:
        return
    rows = _turn(connection, request)
    if any(one["state"] in HOLDING for one in rows) or request.under != QUEUE:
        return
    hold = tables.hold
    own = and_(hold.c.node == request.node, hold.c.owner == QUEUE, hold.c.kind == "planned")
    began = [one for one in rows if one["began_at"] is not None]
    if began:
        # The node is drained, and nobody is left who would return it.
        text = f"no part is left that returns it: {'; '.join(_result(one) for one in rows)}"
        _out(connection, request, text, now)
        return
    connection.execute(hold.delete().where(own))
    content = {"node": request.node, "turn": request.turn, "back": True, "text": "nothing began"}
    _log(connection, now, who, "EndTurn", request.node, content=content)


def listed(connection: Connection, now: float) -> dict[str, Any]:
    """Return the open requests as JSON, those with a node first, the others in the order in which they are served.

    It writes nothing: a request that could be granted now is `next`.
    """
    seen = view(connection, now)
    decision = decide(seen, now)
    granted = {
        number
        for action in decision.actions
        for number in getattr(action, "requests", (getattr(action, "request", 0),))
    }
    waits = {wait.request: wait for wait in decision.waits}
    waiting = [one for one in seen.requests if one.state is RequestState.WAITING]

    def key(request: QueueRequest) -> tuple[int, float, int]:
        return model.order(request, seen.nodes.get(request.node or ""), now)

    waiting.sort(key=key)
    rows = []
    for place, one in enumerate(waiting, 1):
        wait = waits.get(one.id)
        following = one.id in granted or (place == 1 and wait is not None and wait.for_room)
        rows.append(
            {
                "place": place,
                "next": following,
                "rule": model.ORDER_RULES[key(one)[0]],
                "wait": wait.reason if wait else "it is granted at the next decision",
                "owner": wait.owner if wait else "nobody",
                "until": wait.until if wait else None,
            }
        )
    held = [one for one in seen.requests if one.state in HOLDING]
    return {
        "requests": [
            *(_listed(one, now) for one in held),
            *(_listed(one, now) | row for one, row in zip(waiting, rows, strict=True)),
        ]
    }


def _listed(request: QueueRequest, now: float) -> dict[str, Any]:
    return {
        "request": request.id,
        "node": request.node,
        "class": request.class_,
        "work": request.work.value,
        "needs": [need.value for need in request.needs],
        "reason": request.reason,
        "who": request.who,
        "holder": request.holder,
        "rollout": request.rollout,
        "places": request.places,
        "since": request.since,
        "seconds": max(0.0, now - request.since),
        "state": request.state.value,
        "turn": request.turn,
        "under": request.under,
        "deadline": request.deadline,
        "place": None,
        "next": False,
        "together": request.together,
        "rule": None,
        "wait": None,
        "owner": None,
        "until": None,
    }


# Rollouts


def share(connection: Connection, name: str, class_: str, now: float) -> model.QueueShare:
    """Decide, and return what the queue has for a rollout. Its request keeps its place in the order."""
    decision, seen = advance(connection, now)
    return model.share(seen, decision, name, class_)


def in_use(connection: Connection) -> bool:
    """Return whether the queue has an open request of anything but a rollout."""
    request = tables.request
    query = select(request.c.id).where(_OPEN, request.c.rollout.is_(None)).limit(1)
    return connection.scalar(query) is not None


def keep_place(
    connection: Connection, controller: Controller, class_: str, wants: str, now: float
) -> None:
    """Keep the place of a rollout that waits for room, since it began to wait; drop it where `wants` is empty.

    Without it, requests for single nodes could take each place before the rollout does.
    """
    request, name = tables.request, controller.rollout
    own = and_(request.c.rollout == name, _OPEN)
    if not wants:
        done = {"state": RequestState.DONE.value, "ended_at": now}
        connection.execute(request.update().where(own).values(**done))
        return
    if connection.execute(request.update().where(own).values(beat_at=now, reason=wants)).rowcount:
        return
    values = {
        "class": class_,
        "work": QueuedWork.ROLLOUT.value,
        "needs": json.dumps([WorkNeed.DRAIN.value, WorkNeed.DRIVER.value]),
        "reason": wants,
        "who": f"rollout {name}",
        "holder": controller.holder,
        "since": now,
        "beat_at": now,
        "lease": model.LEASE,
        "time_limit": LIMIT,
        "rollout": name,
        "state": RequestState.WAITING.value,
    }
    connection.execute(request.insert().values(**values))


# Decisions


def advance(connection: Connection, now: float) -> tuple[QueueDecision, QueueView]:
    """Decide and write, until nothing is left to do. Return why the rest waits, and what was decided on."""
    for _ in range(_ROUNDS):
        seen = view(connection, now)
        decision = decide(seen, now)
        if not decision.actions:
            return decision, seen
        for action in decision.actions:
            _WRITERS[type(action)](connection, action, seen, now)
    raise QueueError("the queue does not come to rest")


def view(connection: Connection, now: float) -> QueueView:
    """Return what a decision depends on. It writes nothing."""
    rows = (
        connection.execute(select(tables.request).where(_OPEN).order_by(tables.request.c.id))
        .mappings()
        .all()
    )
    requests = [_request(row) for row in rows]
    names = [one.node for one in requests if one.node is not None]
    nodes = _nodes(connection, names, now) if names else {}
    return QueueView(
        requests,
        nodes,
        _room(connection, nodes.values(), requests),
        freezes=_freezes(connection),
        changing=_changing(connection) if requests else {},
        dead=frozenset(filter(_ended, {one.holder for one in requests})),
    )


def _nodes(connection: Connection, names: Sequence[str], now: float) -> dict[str, QueueNode]:
    node, hold, step = tables.node, tables.hold, tables.step
    asked = padded(names)
    domains = {
        row["name"]: tuple((scope, row[scope]) for scope in tables.SCOPES if row[scope])
        for row in connection.execute(
            select(node.c.name, *(node.c[scope] for scope in tables.SCOPES)).where(
                node.c.name.in_(asked), ~node.c.retired
            )
        ).mappings()
    }
    holds: dict[str, list[QueueHold]] = {}
    steps: dict[str, str] = {}
    query = (
        select(hold, step.c.phase)
        .join(
            step,
            and_(step.c.rollout == hold.c.owner, step.c.node == hold.c.node),
            isouter=True,
        )
        .where(hold.c.node.in_(asked))
        .order_by(hold.c.node, hold.c.owner)
    )
    for row in connection.execute(query).mappings():
        kind = row["kind"]
        if kind == "person" and row["reason"].startswith(GATE):
            kind = "failed"  # a rollout records each drain of others as a person's: this one is of the node itself
        holds.setdefault(row["node"], []).append(
            QueueHold(row["owner"], kind, row["reason"], row["deadline"])
        )
        if row["kind"] == "planned" and row["phase"]:
            steps[row["node"]] = row["phase"]
    wanted, ended = _wanted(connection, asked, now), _ended_parts(connection, asked)
    return {
        name: QueueNode(
            name,
            own,
            tuple(holds.get(name, ())),
            wanted_by=wanted.get(name),
            step=steps.get(name),
            ended=frozenset(ended.get(name, ())),
        )
        for name, own in domains.items()
    }


def _wanted(connection: Connection, names: Sequence[str], now: float) -> dict[str, str]:
    """Return the rollout that would take each node now: its controller lives, and the wave of the node is open."""
    rollout, member, step = tables.rollout, tables.member, tables.step
    rows = connection.execute(
        select(member.c.node, rollout.c.name)
        .join(rollout, rollout.c.name == member.c.rollout)
        .join(
            step,
            and_(step.c.rollout == member.c.rollout, step.c.node == member.c.node),
            isouter=True,
        )
        .where(
            member.c.node.in_(names),
            rollout.c.phase == "running",
            member.c.wave <= rollout.c.wave,
            rollout.c.beat_at.between(now - _LIVE, now + _LIVE),
            or_(step.c.phase.is_(None), step.c.phase == "passed"),
        )
    )
    return {row[0]: row[1] for row in rows}


def _ended_parts(connection: Connection, names: Sequence[str]) -> dict[str, list[QueuedWork]]:
    """Return the kinds of work that the present turn of each node has done already."""
    request, other = tables.request, tables.request.alias("open_part")
    rows = connection.execute(
        select(request.c.node, request.c.work)
        .join(other, and_(other.c.turn == request.c.turn, other.c.node == request.c.node))
        .where(
            request.c.node.in_(names),
            request.c.state.in_(("done", "failed")),
            other.c.state.in_(tuple(sorted(HOLDING))),
        )
    )
    ended: dict[str, list[QueuedWork]] = {}
    for row in rows:
        ended.setdefault(row[0], []).append(QueuedWork(row[1]))
    return ended


def _room(
    connection: Connection, nodes: Iterable[QueueNode], requests: Iterable[QueueRequest]
) -> dict[tuple[str, str], DomainRoom]:
    wanted = {domain for node in nodes for domain in node.domains}
    wanted |= {("class", one.class_) for one in requests if one.rollout}
    if not wanted:
        return {}
    buffer = tables.buffer
    rows = connection.execute(
        select(buffer).where(buffer.c.name.in_(padded(name for _, name in sorted(wanted))))
    ).mappings()
    names = [one.name for one in fields(DomainRoom)]
    return {
        (row["scope"], row["name"]): DomainRoom(**{name: row[name] for name in names})
        for row in rows
        if (row["scope"], row["name"]) in wanted
    }


def _freezes(connection: Connection) -> tuple[QueueFreeze, ...]:
    frozen = tables.frozen
    rows = connection.execute(
        select(frozen.c.scope, frozen.c.subject, frozen.c.reason, frozen.c.who).where(
            frozen.c.lifted_at.is_(None)
        )
    )
    return tuple(QueueFreeze(*row) for row in rows)


def _changing(connection: Connection) -> dict[str, tuple[str, ...]]:
    """Return the nodes that rollouts hold for a change, by class."""
    hold, node = tables.hold, tables.node
    rows = connection.execute(
        select(node.c["class"], node.c.name)
        .join(hold, hold.c.node == node.c.name)
        .where(hold.c.kind == "planned", hold.c.rollout.is_not(None))
        .order_by(node.c.name)
    )
    changing: dict[str, tuple[str, ...]] = {}
    for class_, name in rows:
        changing[class_] = (*changing.get(class_, ()), name)
    return changing


def _ended(holder: str) -> bool:
    """Return whether a process of this machine has ended. One of another machine gives signs of life, or does not."""
    return identity.works(holder.rpartition("/")[2]) is False


# Writers of actions


def _expire(connection: Connection, action: ExpireRequest, seen: QueueView, now: float) -> None:
    request = _of(seen, action.request)
    _close(connection, request, RequestState.EXPIRED, action.why, now=now, who="queue")


def _lose(connection: Connection, action: LoseWork, seen: QueueView, now: float) -> None:
    request = _of(seen, action.request)
    if request.state is RequestState.RETURNING:
        _returned(connection, _row(connection, request.id), False, action.why, now)
        return
    _finished(connection, request, WorkOutcome(False, action.why, fit=False), "queue", now)


def _requeue(connection: Connection, action: RequeueRequest, seen: QueueView, now: float) -> None:
    _change(connection, action.request, state="waiting", turn=None, under=None, granted_at=None)
    request = _of(seen, action.request)
    content = {"request": action.request, "reason": action.why}
    _log(connection, now, "queue", "RequeueRequest", str(request.node), content=content)


def _offer(connection: Connection, action: OfferRequest, seen: QueueView, now: float) -> None:
    _change(connection, action.request, offered_at=now)


def _grant(connection: Connection, action: GrantTurn, seen: QueueView, now: float) -> None:
    request = _of(seen, action.requests[0])
    if action.under == QUEUE:
        connection.execute(
            tables.hold.insert().values(
                node=action.node,
                owner=QUEUE,
                kind="planned",
                since=now,
                deadline=action.deadline,
                reason=f"{request.work}: {request.reason}",
            )
        )
    _hold_for(connection, action.requests, action.turn, action.under, now)
    _log(connection, now, "queue", "GrantTurn", action.node, content=asdict(action))


def _join(connection: Connection, action: JoinTurn, seen: QueueView, now: float) -> None:
    _hold_for(connection, action.requests, action.turn, action.under, now)
    _log(connection, now, "queue", "JoinTurn", action.node, content=asdict(action))


def _grant_together(
    connection: Connection, action: GrantTogether, seen: QueueView, now: float
) -> None:
    for part in action.parts:
        _WRITERS[type(part)](connection, part, seen, now)


def _hold_for(
    connection: Connection, numbers: Sequence[int], turn: int, under: str, now: float
) -> None:
    for number in numbers:
        _change(
            connection,
            number,
            state=RequestState.GRANTED.value,
            turn=turn,
            under=under,
            granted_at=now,
        )


def _quiet(connection: Connection, action: GrantQuiet, seen: QueueView, now: float) -> None:
    _change(connection, action.request, state=RequestState.GRANTED.value, granted_at=now)
    _log(connection, now, "queue", "GrantQuiet", "mirror", content={"request": action.request})


_WRITERS: Mapping[type[QueueAction], Callable[[Connection, Any, QueueView, float], None]] = {
    ExpireRequest: _expire,
    LoseWork: _lose,
    RequeueRequest: _requeue,
    OfferRequest: _offer,
    GrantTurn: _grant,
    JoinTurn: _join,
    GrantTogether: _grant_together,
    GrantQuiet: _quiet,
}


# Rows


def _request(row: RowMapping) -> QueueRequest:
    return QueueRequest(
        id=row["id"],
        work=QueuedWork(row["work"]),
        class_=row["class"],
        reason=row["reason"],
        who=row["who"],
        holder=row["holder"],
        since=row["since"],
        beat_at=row["beat_at"],
        node=row["node"],
        needs=tuple(WorkNeed(one) for one in json.loads(row["needs"])),
        lease=row["lease"],
        limit=row["time_limit"],
        security=bool(row["security"]),
        rollout=row["rollout"],
        places=row["places"],
        state=RequestState(row["state"]),
        turn=row["turn"],
        under=row["under"],
        offered_at=row["offered_at"],
        deadline=row["deadline"],
        together=row["together"],
    )


def _of(seen: QueueView, number: int) -> QueueRequest:
    return next(one for one in seen.requests if one.id == number)


def _own(connection: Connection, claim: QueueClaim, open_only: bool = True) -> RowMapping:
    request = tables.request
    row = connection.execute(select(request).where(request.c.id == claim.id)).mappings().first()
    if row is None or row["token"] != claim.token:
        raise QueueError(
            f"request {claim.id} belongs to another process now",
            remedy="stop this one: `goldnode fleet queue` has who asks",
        )
    if open_only and row["state"] not in tables.OPEN_REQUESTS:
        raise QueueError(f"request {claim.id} is {row['state']}: {row['result'] or 'no reason'}")
    return row


def _turn(connection: Connection, request: QueueRequest) -> Sequence[RowMapping]:
    """Return the parts of a turn, in the order of the work."""
    table = tables.request
    rows = connection.execute(
        select(table).where(table.c.turn == request.turn, table.c.node == request.node)
    ).mappings()
    return sorted(rows, key=lambda row: (model.WORK_ORDER[QueuedWork(row["work"])], row["id"]))


def _result(row: RowMapping) -> str:
    """Return a part in one sentence: the work, who asked, and how it ended."""
    text = f": {row['result']}" if row["result"] else ""
    return f"{row['work']} of {row['who']} {_STATE_WORDS[row['state']]}{text}"


_STATE_WORDS = {
    "waiting": "waits",
    "granted": "has not begun",
    "running": "runs",
    "returning": "returns the node",
    "done": "is done",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "expired": "was given up",
}


def _change(connection: Connection, number: int, **values: object) -> None:
    table = tables.request
    connection.execute(table.update().where(table.c.id == number).values(**values))


def _log(
    connection: Connection,
    at: float,
    *line: str,
    content: Mapping[str, Any],
    rollout: str | None = None,
) -> None:
    """Append a line: who, action and subject."""
    who, action, subject = line
    words = {"action": action, **content}
    append(connection, LogLine(at, who, action, subject, content=words, rollout=rollout))
