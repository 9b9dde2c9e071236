"""Observations in the store: what nodes reported, and what their scheduler said of them.

Controllers, the lock service and `rollout status` read the same rows. A row is added only when it
says something new, so the table grows with changes and not with time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, func, select

from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.model import (
    Answer,
    CalendarReading,
    NodeObservation,
    RequirementResult,
    SchedulerObservation,
)
from goldnode.fleet.store import many, tables
from goldnode.fleet.store.log import LogLine, append, entries
from goldnode.fleet.store.rollouts import ANSWER, CALENDAR

NODE, SCHEDULER = "node", "scheduler"
_COLUMNS = ("node", "at", "boot_id", "digest")  # fields of an observation that are columns


_RECORD = tables.observation.insert().inline()
_BOOTED = (
    tables.node.update()
    .where(tables.node.c.name == bindparam("of_node"))
    .values(
        boot_id=bindparam("new_boot"),
        digest=func.coalesce(bindparam("new_digest"), tables.node.c.digest),
    )
)


class Arrived(NamedTuple):
    """An observation, its source, and the time of this machine where the observation has a later one: that of the store."""

    item: NodeObservation | SchedulerObservation
    source: str
    clock: float | None = None


def record(
    connection: Connection, items: Iterable[NodeObservation | SchedulerObservation], source: str
) -> None:
    """Add observations of one source. The nodes' own rows get the new digest and boot."""
    record_all(connection, [Arrived(item, source) for item in items])


def record_all(connection: Connection, items: Sequence[Arrived]) -> None:
    """Add observations, each with its source."""
    if not items:
        return
    seen = connection.scalar(select(func.max(tables.log.c.seq))) or 0
    rows, booted = [], []
    for item, source, clock in items:
        fields = model.to_json(item)
        node = isinstance(item, NodeObservation)
        content = {name: value for name, value in fields.items() if name not in _COLUMNS}
        rows.append(
            {
                "node": item.node,
                "kind": NODE if node else SCHEDULER,
                "at": item.at if clock is None else clock,
                "received_at": item.at,
                "log_seq": seen,
                "boot_id": fields.get("boot_id"),
                "digest": fields.get("digest"),
                "content": json.dumps({"source": source, **content}, sort_keys=True),
            }
        )
        if isinstance(item, NodeObservation) and item.boot_id is not None:
            booted.append(
                {"of_node": item.node, "new_boot": item.boot_id, "new_digest": item.digest or None}
            )
    many.execute(connection, _RECORD, rows)
    many.execute(connection, _BOOTED, booted)


def record_answers(
    connection: Connection,
    answers: Iterable[RequirementResult | CalendarReading],
    rollout: str,
    who: str,
    epoch: int | None,
) -> None:
    """Write answers of requirements and readings of freeze calendars to the log.

    They are for persons and for views, also on a machine without the files of the calendars: the
    state of a rollout does not depend on them.
    """
    lines = []
    for item in answers:
        if isinstance(item, CalendarReading):
            subject, content = item.calendar, {"action": CALENDAR, **model.to_json(item)}
        else:
            subject, content = item.requirement, {"action": ANSWER, **model.to_json(item)}
        lines.append(
            LogLine(
                item.at,
                who=who,
                action=content["action"],
                subject=subject,
                content=content,
                rollout=rollout,
                epoch=epoch,
            )
        )
    append(connection, *lines)


def calendars(connection: Connection, rollout: str) -> list[CalendarReading]:
    """Return the newest reading of each freeze calendar that a controller of the rollout has recorded."""
    rows = entries(connection, rollout=rollout, where=tables.log.c.action == CALENDAR)
    newest = {row["subject"]: json.loads(row["content"]) for row in rows}
    return [
        model.from_json(CalendarReading, {name: item[name] for name in item if name != "action"})
        for item in newest.values()
    ]


def answers(connection: Connection, rollout: str) -> list[RequirementResult]:
    """Return the newest answer of each requirement for each wave."""
    rows = entries(connection, rollout=rollout, where=tables.log.c.action == ANSWER)
    return list(
        {(result.requirement, result.wave): result for result in map(answer, rows)}.values()
    )


def answer(row: RowMapping) -> RequirementResult:
    """Return the answer that a line of the log has."""
    content = json.loads(row["content"])
    given = (content["requirement"], content["wave"], Answer(content["answer"]))
    return RequirementResult(*given, row["at"], content["reason"])


def newest(connection: Connection, node_class: str) -> list[NodeObservation | SchedulerObservation]:
    """Return the newest observation of each kind for each node of a class, in the order of their rows."""
    table = tables.observation
    last = (
        select(func.max(table.c.seq))
        .join(tables.node, tables.node.c.name == table.c.node)
        .where(tables.node.c["class"] == node_class)
        .group_by(table.c.node, table.c.kind)
    )
    rows = connection.execute(
        select(table).where(table.c.seq.in_(last)).order_by(table.c.seq)
    ).mappings()
    return [_read(row) for row in rows]


class LastReport(NamedTuple):
    """The newest report of a node, when it arrived by the clock of that machine, and the last line of the log before."""

    report: NodeObservation
    clock: float
    log_seq: int


_own = tables.observation.alias("own")
_LAST = select(tables.observation).where(
    tables.observation.c.seq.in_(
        select(
            select(func.max(_own.c.seq))
            .where(_own.c.node == tables.node.c.name, _own.c.kind == NODE)
            .correlate(tables.node)
            .scalar_subquery()
        ).where(tables.node.c.name.in_(bindparam("of_nodes", expanding=True)))
    )
)


def last(connection: Connection, names: Iterable[str]) -> dict[str, LastReport]:
    """Return the newest report of each of these nodes."""
    rows = connection.execute(_LAST, {"of_nodes": many.padded(names)}).mappings()
    reports = ((_read(row), row) for row in rows)
    return {
        item.node: LastReport(item, row["at"], row["log_seq"])
        for item, row in reports
        if isinstance(item, NodeObservation)
    }


_log = tables.log.c
_CHANGED = (
    select(_log.subject, _log.rollout, func.max(_log.seq).label("seq"))
    .where(_log.subject.in_(bindparam("of_nodes", expanding=True)), _log.seq > bindparam("after"))
    .group_by(_log.subject, _log.rollout)
)


def changed_since(
    connection: Connection, reports: Mapping[str, LastReport]
) -> set[tuple[str, str | None]]:
    """Return the nodes and rollouts of which the log has a line about the node after its report.

    :param reports: reports by node.
    """
    if not reports:
        return set()
    after = min(one.log_seq for one in reports.values())
    rows = connection.execute(_CHANGED, {"of_nodes": many.padded(reports), "after": after})
    return {(row.subject, row.rollout) for row in rows if row.seq > reports[row.subject].log_seq}


def after(
    connection: Connection, node_class: str, seq: int
) -> tuple[list[NodeObservation | SchedulerObservation], int]:
    """Return the observations of a class after row `seq`, and the last row of the table."""
    table = tables.observation
    last = connection.scalar(select(func.max(table.c.seq))) or 0
    if last <= seq:
        return [], seq
    rows = connection.execute(
        select(table)
        .join(tables.node, tables.node.c.name == table.c.node)
        .where(tables.node.c["class"] == node_class, table.c.seq > seq, table.c.seq <= last)
        .order_by(table.c.seq)
    ).mappings()
    return [_read(row) for row in rows], last


def history(
    connection: Connection, node_class: str
) -> list[tuple[int, NodeObservation | SchedulerObservation]]:
    """Return all observations of a class in order, each with the last line of the log before it."""
    table = tables.observation
    rows = connection.execute(
        select(table)
        .join(tables.node, tables.node.c.name == table.c.node)
        .where(tables.node.c["class"] == node_class)
        .order_by(table.c.seq)
    ).mappings()
    return [(row["log_seq"], _read(row)) for row in rows]


def _read(row: RowMapping) -> NodeObservation | SchedulerObservation:
    """Return the observation of a row. `at` is the time of the store: the clock of a node proves nothing."""
    kind: type[Any] = SchedulerObservation if row["kind"] == SCHEDULER else NodeObservation
    content = json.loads(row["content"])
    fields = {name: content[name] for name in kind.__dataclass_fields__ if name in content}
    if kind is NodeObservation:
        fields |= {"boot_id": row["boot_id"], "digest": row["digest"]}
    observation: NodeObservation | SchedulerObservation = model.from_json(
        kind, {**fields, "node": row["node"], "at": row["received_at"]}
    )
    return observation
