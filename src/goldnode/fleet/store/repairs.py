"""Repairs in the store: the log of the ladder is its state, and each repair is a part of a turn in the queue.

Each transition is one line of the log, written in the transaction that changes the queue with it. A
controller reads the lines since its last one first: where another has written meanwhile, nothing is
written, and it decides again. So any number of controllers may run, and none has a lease.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, select

from goldnode.fleet.rollout.ladder import (
    ENDED,
    TICKET,
    CasePhase,
    ChangeLeave,
    Holder,
    LadderAction,
    LadderState,
    LiftStop,
    MoveCase,
    OpenCase,
    RepairCase,
    StopLadder,
    StoreEvidence,
)
from goldnode.fleet.rollout.queue import (
    ALREADY_OUT,
    HOLDING,
    QUEUE,
    RETURN_WITHIN,
    QueuedWork,
    RequestState,
    WorkNeed,
)
from goldnode.fleet.rollout.state import HEALTH
from goldnode.fleet.store import queue, tables
from goldnode.fleet.store.errors import GrantRefusedError, RefusalKind, StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.log import LogLine, append, entries
from goldnode.fleet.store.many import padded
from goldnode.fleet.store.queue import NodeAsk, QueueClaim, WorkOutcome

OWNER = "repair"  # of the hold of a node that its gate has drained, and the actor of the log
WHO = "ladder"  # in the list of the queue
# All controllers of the ladder are one asker: its log decides which of them acts.
HOLDER = "(ladder)"
LEASE = 900.0  # seconds for which a place is kept while no controller runs
NEEDS = (WorkNeed.DRAIN, WorkNeed.REBOOT, WorkNeed.POWER)
# Lines of the ladder have this in the column `rollout`, which is indexed. No rollout can have such a name.
STREAM = "(ladder)"
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (OpenCase, MoveCase, StopLadder, LiftStop, StoreEvidence, ChangeLeave)
}


class LadderBehindError(StoreError):
    """Another controller has written since this one read: read, and decide again."""


@dataclass
class LadderRecord:
    """State of the ladder as far as this process has read the log."""

    state: LadderState = field(default_factory=LadderState)
    seq: int = 0
    lines: list[tuple[float, LadderAction]] = field(default_factory=list)

    def read(self, connection: Connection) -> None:
        """Apply the lines since the last one."""
        for row in entries(connection, rollout=STREAM, after=self.seq):
            action = read_action(row)
            self.seq = row["seq"]
            if action is not None:
                self.state.apply(action, row["at"])
                self.lines.append((row["at"], action))


def read_action(row: RowMapping) -> LadderAction | None:
    """Return the action of a line; None for one of a later version."""
    content = json.loads(row["content"])
    kind = _KINDS.get(content.pop("action"))
    if kind is None:
        return None
    if kind is OpenCase:
        return OpenCase(_made(RepairCase, content["case"]))
    made: LadderAction = _made(kind, content)
    return made


def _made(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """Return a dataclass from its JSON form. Ignore fields of a later version."""
    names = {item.name for item in fields(kind)}
    values = {name: value for name, value in content.items() if name in names}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    if "phase" in values:
        values["phase"] = CasePhase(values["phase"])
    return kind(**values)


def node_of(action: LadderAction) -> str | None:
    """Return the node of a transition; None for one of the whole ladder."""
    if isinstance(action, OpenCase):
        return action.case.node
    return getattr(action, "node", None)


def write(
    connection: Connection, record: LadderRecord, actions: Sequence[LadderAction], now: float
) -> None:
    """Write transitions, and what they change in the queue and its holds. Raises LadderBehindError, and QueueError."""
    _current(connection, record)
    for action in actions:
        follows = _effects(connection, record.state, action, now)
        for one in (action, *follows):
            append(connection, _line(one, now))


def _current(connection: Connection, record: LadderRecord) -> None:
    last = connection.scalar(
        select(func.max(tables.log.c.seq)).where(tables.log.c.rollout == STREAM)
    )
    if (last or 0) != record.seq:
        raise LadderBehindError("another controller has written to the ladder")


def _line(action: LadderAction, now: float, who: str = OWNER) -> LogLine:
    content = {"action": type(action).__name__, **asdict(action)}
    subject = getattr(action, "subject", None) or node_of(action)
    return LogLine(
        now,
        who=who,
        action=content["action"],
        subject=str(subject),
        content=content,
        rollout=STREAM,
    )


def _effects(
    connection: Connection, state: LadderState, action: LadderAction, now: float
) -> list[LadderAction]:
    """Change the part of a case in the queue as a transition wants it. Return the transitions that follow from that."""
    if isinstance(action, MoveCase):
        if action.phase in ENDED:
            _close(connection, action.node, action.why, now)
        elif action.phase is CasePhase.TICKET:
            _stays_out(connection, state.cases[action.node], action.why, now)
        elif action.phase is CasePhase.RETURN and state.cases[action.node].leave:
            case = state.cases[action.node]
            return _finished(connection, case, action, now)
    elif isinstance(action, ChangeLeave) and not action.leave:
        _close(connection, action.node, "", now)
    return []


def _part(connection: Connection, node: str) -> RowMapping | None:
    """Return the open request of the ladder for a node."""
    request = tables.request
    query = select(request).where(
        request.c.state.in_(tables.OPEN_REQUESTS),
        request.c.node == node,
        request.c.holder == HOLDER,
    )
    return connection.execute(query).mappings().first()


def _own_hold(node: str) -> ColumnElement[bool]:
    return and_(tables.hold.c.node == node, tables.hold.c.owner == OWNER)


def _close(connection: Connection, node: str, why: str, now: float) -> None:
    """End the part of a node. A node that nothing else holds is back, as far as the queue knows."""
    connection.execute(tables.hold.delete().where(_own_hold(node)))
    part = _part(connection, node)
    if part is None:
        return
    claim = QueueClaim(part["id"], part["token"])
    returns = part["state"] == RequestState.RETURNING.value
    if part["state"] == RequestState.RUNNING.value:
        returns = queue.finish(connection, claim, WorkOutcome(False, why), now).returns
    elif not returns:
        queue.withdraw(connection, claim, why or "the repair has ended", now)
    if returns:
        queue.returned(connection, claim, True, "", now)


def _stays_out(connection: Connection, case: RepairCase, why: str, now: float) -> None:
    """End the part of a case with a node that is not fit: a person repairs it."""
    reason = f"repair of {case.finding}: {why}"
    connection.execute(tables.hold.update().where(_own_hold(case.node)).values(reason=reason))
    part = _part(connection, case.node)
    if part is None:
        return
    claim = QueueClaim(part["id"], part["token"])
    if part["state"] == RequestState.RUNNING.value:
        queue.finish(connection, claim, WorkOutcome(False, reason, fit=False), now)
    else:
        queue.withdraw(connection, claim, reason, now)


def _finished(
    connection: Connection, case: RepairCase, move: MoveCase, now: float
) -> list[LadderAction]:
    """End the work of a case. Its leave ends with it, unless the ladder is the one that returns the node."""
    part = _part(connection, case.node)
    if part is None or part["state"] != RequestState.RUNNING.value:
        return []
    outcome = WorkOutcome(move.cured or case.cured, move.why)
    ending = queue.finish(connection, QueueClaim(part["id"], part["token"]), outcome, now)
    if ending.returns:
        return []
    connection.execute(tables.hold.delete().where(_own_hold(case.node)))
    request = tables.request
    unfit = connection.scalar(
        select(request.c.id).where(request.c.turn == part["turn"], ~request.c.fit).limit(1)
    )
    # Other parts return the node, or it stays out for them. A node that was out before was drained by the ladder only.
    run = None if ending.last and unfit is None else ""
    return [ChangeLeave(case.node, False, run)]


def take(
    connection: Connection,
    record: LadderRecord,
    case: RepairCase,
    holder: Holder,
    times: tuple[float, float],
) -> str:
    """Ask the queue for the node of a case, and record its leave once its part begins, in one transaction.

    A node that its gate has drained counts as failed from now on: its repair takes no room.

    :param times: the time now, and the seconds that the part may take.

    Returns why it waits; empty once it has leave. Raises LadderBehindError, and StoreError for a node that the store does
    not know or that failed in a rollout, or while another process asks for its repair.
    """
    _current(connection, record)
    now, limit = times
    cancelled = _cancelled(connection, case)
    if cancelled is not None:
        write(connection, record, [MoveCase(case.node, CasePhase.VOID, case.rung, cancelled)], now)
        return cancelled
    _refuse(connection, case, holder)
    if holder is Holder.GATE:
        _failed(connection, case, now)
    part = _part(connection, case.node)
    if part is None:
        reason = f"{case.finding}: {case.rung}"
        given = NodeAsk(QueuedWork.REPAIR, reason, WHO, HOLDER, case.node, needs=NEEDS, lease=LEASE, limit=limit)  # fmt: skip
        claim = queue.ask(connection, given, now)
    else:
        claim = QueueClaim(part["id"], part["token"])
    standing = queue.poll(connection, claim, now)
    if standing.may_begin:
        queue.begin(connection, claim, now)
        write(connection, record, [ChangeLeave(case.node, True, standing.run)], now)
        return ""
    if standing.wait is not None:
        return f"place {standing.wait.place} in the queue: {standing.wait.reason}"
    return "another part of its turn runs"


def _cancelled(connection: Connection, case: RepairCase) -> str | None:
    """Return the reason for which a person has cancelled the request of a case; None if none has."""
    request = tables.request
    query = select(request.c.result).where(
        request.c.node == case.node,
        request.c.holder == HOLDER,
        request.c.since >= case.changed_at,
        request.c.state == RequestState.CANCELLED.value,
    )
    reason: str | None = connection.scalar(query.limit(1))
    return reason


def _refuse(connection: Connection, case: RepairCase, holder: Holder) -> None:
    """Raise GrantRefusedError for a node that is out for a rollout: that, or a person, decides about it."""
    hold = tables.hold
    if holder is Holder.GATE:
        return
    row = connection.execute(
        select(hold.c.owner, hold.c.reason).where(
            hold.c.node == case.node,
            hold.c.kind == "failed",
            hold.c.owner.not_in((OWNER, QUEUE, HEALTH)),
        )
    ).first()
    if row is not None:
        raise GrantRefusedError(
            RefusalKind.OUT_ALREADY,
            f"{case.node} is out of service already (failed, {row.owner}): {row.reason}",
        )


def _failed(connection: Connection, case: RepairCase, now: float) -> None:
    """Record that the gate of a node has taken it out of service."""
    hold = tables.hold
    if connection.scalar(select(hold.c.node).where(_own_hold(case.node))) is None:
        reason = f"repair of {case.finding}: {case.rung}"
        values = {"node": case.node, "owner": OWNER, "kind": "failed", "reason": reason}
        connection.execute(hold.insert().values(since=now, **values))


def prolong(connection: Connection, node: str, now: float) -> None:
    """Let a return go on while a controller works on it: its scheduler may be away for long."""
    request = tables.request
    connection.execute(
        request.update()
        .where(
            request.c.node == node,
            request.c.holder == HOLDER,
            request.c.state == RequestState.RETURNING.value,
        )
        .values(deadline=now + RETURN_WITHIN)
    )


def ended_leaves(
    connection: Connection, cases: Mapping[str, RepairCase], now: float
) -> list[LadderAction]:
    """Return the transitions of cases whose leave ended without the ladder: a person has released the node, or its part is lost.

    The part of a case is lost when no controller has worked on it within its limit: nothing is known of the node then.
    """
    hold = tables.hold
    held = [name for name, case in cases.items() if case.leave]
    owners: dict[str, set[str]] = {name: set() for name in held}
    query = select(hold.c.node, hold.c.owner).where(hold.c.node.in_(padded(held)))
    for node, owner in connection.execute(query) if held else ():
        owners[node].add(owner)
    actions: list[LadderAction] = []
    for name, left in owners.items():
        case, part = cases[name], _part(connection, name)
        stays = bool(left & {QUEUE, OWNER})
        if part is not None and part["state"] in HOLDING:
            stays = bool(left)
        elif stays and case.phase not in (CasePhase.TICKET, CasePhase.ACT):
            why = "its turn in the queue has ended: see `goldnode fleet log`"
            actions.append(MoveCase(name, CasePhase.TICKET, TICKET, why))
        if not stays:
            actions.append(ChangeLeave(name, False))
    return actions


def left_drains(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Return the run of the last turn with a part of the ladder, for nodes that nothing holds and nothing waits for.

    Such a run has a node drained without an order: a kill or a race left it so.
    """
    request, hold, other = tables.request, tables.hold, tables.request.alias("open_part")
    asked = padded(names)
    busy = set(connection.scalars(select(hold.c.node).where(hold.c.node.in_(asked))))
    open_nodes = select(other.c.node).where(
        other.c.node.in_(asked), other.c.state.in_(tables.OPEN_REQUESTS)
    )
    busy |= set(connection.scalars(open_nodes))
    rows = connection.execute(
        select(request.c.node, func.max(request.c.turn))
        .where(
            request.c.node.in_(asked),
            request.c.holder == HOLDER,
            request.c.under.in_((QUEUE, ALREADY_OUT)),
        )
        .group_by(request.c.node)
    )
    return {node: queue.turn_name(turn) for node, turn in rows if node not in busy}


def held(connection: Connection) -> set[str]:
    """Return the nodes that the ladder holds: with a part in the queue, or out of service for a person after a repair."""
    request, hold = tables.request, tables.hold
    nodes = set(connection.scalars(select(hold.c.node).where(hold.c.owner == OWNER)))
    parts = select(request.c.node).where(
        request.c.holder == HOLDER, request.c.state.in_(tuple(sorted(HOLDING)))
    )
    failed = (
        select(request.c.node)
        .join(hold, and_(hold.c.node == request.c.node, hold.c.owner == QUEUE))
        .where(request.c.holder == HOLDER, request.c.turn.is_not(None), hold.c.kind == "failed")
    )
    return nodes | set(connection.scalars(parts)) | set(connection.scalars(failed))


def waits_for_tests(connection: Connection, node: str) -> bool:
    """Return whether the repair of a node is over but for its check and tests."""
    record = LadderRecord()
    record.read(connection)
    case = record.state.cases.get(node)
    return case is not None and case.leave and case.phase is CasePhase.CHECK


def silenced(connection: Connection) -> dict[str, float]:
    """Return the nodes whose repair is under way, each with the end of its part."""
    request = tables.request
    rows = connection.execute(
        select(request.c.node, request.c.deadline).where(
            request.c.holder == HOLDER,
            request.c.state.in_((RequestState.RUNNING.value, RequestState.RETURNING.value)),
        )
    )
    return {row.node: row.deadline for row in rows}


def domains(connection: Connection, names: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return class, rack, leaf and cohort of nodes of the store."""
    node = tables.node
    rows = connection.execute(
        select(node.c.name, *(node.c[scope] for scope in tables.SCOPES)).where(~node.c.retired)
    ).mappings()
    wanted = set(names)
    return {
        row["name"]: {scope: row[scope] for scope in tables.SCOPES}
        for row in rows
        if row["name"] in wanted
    }


def lift(connection: Connection, subject: str, order: PersonsOrder) -> None:
    """Lift a stop of the ladder. Raises StoreError for another subject."""
    record = LadderRecord()
    record.read(connection)
    if subject not in record.state.stops:
        known = ", ".join(sorted(record.state.stops)) or "none is in force"
        raise StoreError(
            f'the ladder is not stopped for "{subject}"', remedy=f"stops in force: {known}"
        )
    action = LiftStop(subject)
    order.log(
        connection,
        subject,
        {
            "action": type(action).__name__,
            **asdict(action),
            "reason": order.reason,
            "who": order.who,
        },
        STREAM,
    )


def classes(connection: Connection) -> list[str]:
    """Return the classes of the nodes of the store."""
    column = tables.node.c["class"]
    query = select(column).where(~tables.node.c.retired).distinct().order_by(column)
    return list(connection.scalars(query))
