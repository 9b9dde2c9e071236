"""Repairs in the store: the log of the ladder is its state, and its holds are in the ledger.

Each transition is one line of the log, written in the transaction that changes the holds with it. A
controller reads the lines since its last one first: where another has written meanwhile, nothing is
written, and it decides again. So any number of controllers may run, and none has a lease.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, func, select

from goldnode.fleet.rollout.ladder import (
    ENDED,
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
from goldnode.fleet.store import tables
from goldnode.fleet.store.errors import GrantRefusedError, RefusalKind, StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.log import LogLine, append, entries
from goldnode.fleet.store.room import Room, no_document

OWNER = "repair"  # of holds, and the actor of the log
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
    """Write transitions, and the holds that they change. Raises LadderBehindError, and GrantRefusedError."""
    last = connection.scalar(
        select(func.max(tables.log.c.seq)).where(tables.log.c.rollout == STREAM)
    )
    if (last or 0) != record.seq:
        raise LadderBehindError("another controller has written to the ladder")
    for action in actions:
        _holds(connection, record.state, action, now)
        append(connection, _line(action, now))


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


def _holds(connection: Connection, state: LadderState, action: LadderAction, now: float) -> None:
    hold = tables.hold
    if isinstance(action, MoveCase):
        own = and_(hold.c.node == action.node, hold.c.owner == OWNER)
        if action.phase in ENDED:
            connection.execute(hold.delete().where(own))
        elif action.phase is CasePhase.TICKET:
            reason = f"repair of {state.cases[action.node].finding}: {action.why}"
            # A person repairs it: nothing ends this by a time, and its alerts count again.
            values = {"kind": "failed", "reason": reason, "deadline": None}
            connection.execute(hold.update().where(own).values(**values))
    elif isinstance(action, ChangeLeave) and not action.leave:
        connection.execute(hold.delete().where(hold.c.node == action.node, hold.c.owner == OWNER))


def grant(
    connection: Connection,
    record: LadderRecord,
    case: RepairCase,
    holder: Holder,
    times: tuple[float, float],
) -> None:
    """Take the hold of a case and record its leave, in one transaction.

    The hold is planned, within the limits; of a node that its gate has drained it is failed, because that node counts
    as out already.

    :param times: the time now, and the seconds after which the hold is overdue.

    Raises LadderBehindError, and GrantRefusedError for a node that is held for another reason, and where there is no room.
    """
    node, hold = tables.node, tables.hold
    row = connection.execute(
        select(*(node.c[name] for name in tables.SCOPES), node.c.boot_id).where(
            node.c.name == case.node, ~node.c.retired
        )
    ).first()
    if row is None:
        raise GrantRefusedError(
            RefusalKind.UNKNOWN_NODE,
            f'the store has no node "{case.node}"',
            remedy="add it: `goldnode fleet nodes FILE`",
        )
    others = connection.execute(
        select(hold.c.owner, hold.c.kind, hold.c.reason).where(hold.c.node == case.node)
    ).all()
    now, limit = times
    if any(other.owner == OWNER for other in others):
        write(connection, record, [ChangeLeave(case.node, True)], now)
        return
    # A rollout records each drain of others as a person's hold: that of the gate is one of them.
    foreign = [
        other
        for other in others
        if not (holder is Holder.GATE and other.kind in ("person", "failed"))
    ]
    if foreign:
        raise GrantRefusedError(
            RefusalKind.OUT_ALREADY,
            f"{case.node} is out of service already ({foreign[0].kind}, {foreign[0].owner}): {foreign[0].reason}",
        )
    planned = holder is not Holder.GATE
    if planned:
        domains = tuple((scope, row[n]) for n, scope in enumerate(tables.SCOPES) if row[n])
        room = Room(connection, [domains])
        if not domains:
            raise no_document("")
        room.check(domains, None)
    connection.execute(
        hold.insert().values(
            node=case.node,
            owner=OWNER,
            kind="planned" if planned else "failed",
            since=now,
            deadline=now + limit,
            boot_id=row.boot_id,
            reason=f"repair of {case.finding}: {case.rung}",
        )
    )
    write(connection, record, [ChangeLeave(case.node, True)], now)


def held(connection: Connection) -> set[str]:
    """Return the nodes that the ladder holds."""
    return set(connection.scalars(select(tables.hold.c.node).where(tables.hold.c.owner == OWNER)))


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
