"""Observations in the store: what nodes reported, and what their scheduler said of them.

Controllers, the lock service and `rollout status` read the same rows. A row is added only when it says something
new, so the table grows with changes and not with time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, func, select

from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.model import Answer, NodeObservation, RequirementResult, SchedulerObservation
from goldnode.fleet.store import tables
from goldnode.fleet.store.log import LogLine, append, entries
from goldnode.fleet.store.rollouts import ANSWER

NODE, SCHEDULER = "node", "scheduler"
_COLUMNS = ("node", "at", "boot_id", "digest")  # fields of an observation that are columns


def record(
    connection: Connection,
    items: Iterable[NodeObservation | SchedulerObservation],
    source: str,
    clock: float | None = None,
) -> None:
    """Add observations. The nodes' own rows get the new digest and boot.

    :param clock: the time of this machine, where the observations have a later one: that of the store.
    """
    seen = connection.scalar(select(func.max(tables.log.c.seq))) or 0
    for item in items:
        fields = model.to_json(item)
        node = isinstance(item, NodeObservation)
        content = {name: value for name, value in fields.items() if name not in _COLUMNS}
        connection.execute(
            tables.observation.insert().inline(),
            {
                "node": item.node,
                "kind": NODE if node else SCHEDULER,
                "at": item.at if clock is None else clock,
                "received_at": item.at,
                "log_seq": seen,
                "boot_id": fields.get("boot_id"),
                "digest": fields.get("digest"),
                "content": json.dumps({"source": source, **content}, sort_keys=True),
            },
        )
        if isinstance(item, NodeObservation) and item.boot_id is not None:
            connection.execute(
                tables.node.update()
                .where(tables.node.c.name == item.node)
                .values(boot_id=item.boot_id, digest=item.digest or tables.node.c.digest)
            )


def record_answers(
    connection: Connection, answers: Iterable[RequirementResult], rollout: str, who: str, epoch: int | None
) -> None:
    """Write what requirements answered to the log, for persons: the state of a rollout does not depend on it."""
    for item in answers:
        content = {
            "action": ANSWER,
            "requirement": item.requirement,
            "wave": item.wave,
            "answer": item.answer.value,
            "reason": item.reason,
        }
        append(connection, LogLine(item.at, who, ANSWER, item.requirement, content, rollout, epoch))


def answers(connection: Connection, rollout: str) -> list[RequirementResult]:
    """Return the newest answer of each requirement for each wave."""
    rows = entries(connection, rollout=rollout, where=tables.log.c.action == ANSWER)
    return list({(found.requirement, found.wave): found for found in map(answer, rows)}.values())


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
    rows = connection.execute(select(table).where(table.c.seq.in_(last)).order_by(table.c.seq)).mappings()
    return [_read(row) for row in rows]


class LastReport(NamedTuple):
    """The newest report of a node, when it arrived by the clock of that machine, and the last line of the log before."""

    report: NodeObservation
    clock: float
    log_seq: int


def last(connection: Connection, name: str) -> LastReport | None:
    """Return the newest report of one node."""
    table = tables.observation
    row = (
        connection.execute(
            select(table)
            .where(table.c.node == name, table.c.kind == NODE)
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )
    if row is None:
        return None
    found = _read(row)
    return LastReport(found, row["at"], row["log_seq"]) if isinstance(found, NodeObservation) else None


def changed_since(connection: Connection, last: LastReport, rollout: str | None) -> bool:
    """Return whether the log has a line of a rollout about a node after its report."""
    log = tables.log.c
    query = select(log.seq).where(log.subject == last.report.node, log.seq > last.log_seq)
    return connection.scalar(query.where(log.rollout == rollout).limit(1)) is not None


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
    found: NodeObservation | SchedulerObservation = model.from_json(
        kind, {**fields, "node": row["node"], "at": row["received_at"]}
    )
    return found
