"""View of the store for persons and for metrics: buffers, holds, freezes, rollouts, the deny list."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, and_, case, func, or_, select

from goldnode.fleet.store import tables

# Phases of a step in which its node is drained and out of service.
HELD_PHASES = ("applying", "returning")


def status(connection: Connection) -> dict[str, Any]:
    """Return the state of the fleet as one JSON object, from one consistent view."""
    hold, node = tables.hold, tables.node
    holds = (
        connection.execute(
            select(
                *(
                    hold.c[name]
                    for name in ("node", "owner", "kind", "rollout", "since", "deadline", "reason")
                ),
                node.c["class"],
                node.c.rack,
            )
            .join(node, node.c.name == hold.c.node)
            .order_by(hold.c.node, hold.c.owner)
        )
        .mappings()
        .all()
    )
    return {
        "nodes": connection.scalar(select(func.count()).select_from(node).where(~node.c.retired)),
        "buffers": _rows(connection, tables.buffer, ("scope", "name")),
        "holds": [dict(row) for row in holds],
        "freezes": _rows(connection, tables.frozen, ("at",), in_force=True),
        "denied": _rows(connection, tables.denied, ("class", "digest"), in_force=True),
        "rollouts": _rows(
            connection, tables.rollout, ("submitted_at",), without=("document", "limits")
        ),
        "steps": _steps(connection),
        "overdue": _overdue(connection),
        "log": _log(connection),
    }


def _steps(connection: Connection) -> list[dict[str, Any]]:
    """Return the number of nodes in each state, for each rollout that has not ended.

    A node that a person released converges later, as a deferred one: its hold has ended, and its
    step has not changed.
    """
    step, rollout, hold = tables.step, tables.rollout, tables.hold
    released = and_(step.c.phase.in_(("failed", "overdue")), hold.c.node.is_(None))
    phase = case((released, "deferred"), else_=step.c.phase).label("phase")
    steps = (
        select(step.c.rollout, step.c.direction, phase)
        .join(rollout, rollout.c.name == step.c.rollout)
        .join(hold, and_(hold.c.owner == step.c.rollout, hold.c.node == step.c.node), isouter=True)
        .where(rollout.c.ended_at.is_(None))
        .subquery()
    )
    columns = (steps.c.rollout, steps.c.direction, steps.c.phase)
    rows = connection.execute(
        select(*columns, func.count().label("nodes")).group_by(*columns).order_by(*columns)
    )
    return [dict(row) for row in rows.mappings()]


def _overdue(connection: Connection) -> list[dict[str, Any]]:
    """Return the nodes that did not return in time: of rollouts by their step, of FleetLock by their hold."""
    hold, step = tables.hold, tables.step
    rows = connection.execute(
        select(hold.c.node, hold.c.owner)
        .join(
            step, and_(step.c.rollout == hold.c.rollout, step.c.node == hold.c.node), isouter=True
        )
        .where(
            hold.c.kind == "failed", or_(step.c.phase == "overdue", hold.c.deadline.is_not(None))
        )
        .order_by(hold.c.node, hold.c.owner)
    )
    return [dict(row) for row in rows.mappings()]


def measured(connection: Connection) -> dict[str, Any]:
    """Return the state of the fleet with the arms of its rollouts, for metrics."""
    return {**status(connection), "arms": arms(connection), "changing": changing(connection)}


def changing(connection: Connection) -> list[dict[str, Any]]:
    """Return the nodes that are out of service for planned work, each with its owner.

    A node of a rollout that is drained still runs jobs, and is none of them.
    """
    hold, step = tables.hold, tables.step
    rows = connection.execute(
        select(hold.c.node, hold.c.owner)
        .join(
            step, and_(step.c.rollout == hold.c.rollout, step.c.node == hold.c.node), isouter=True
        )
        .where(hold.c.kind == "planned", or_(step.c.phase.is_(None), step.c.phase.in_(HELD_PHASES)))
        .order_by(hold.c.node)
    )
    return [dict(row) for row in rows.mappings()]


def arms(connection: Connection) -> list[dict[str, Any]]:
    """Return the nodes in service of classes with an active rollout, each with its arm.

    `changed` nodes serve with the new state, `control` nodes with the earlier one. A node that is
    out of service, or that the rollout has touched and not changed, is in neither.
    """
    node, rollout, step, hold = tables.node, tables.rollout, tables.step, tables.hold
    query = (
        select(rollout.c.name.label("rollout"), node.c.name.label("node"), step.c.phase)
        .join(rollout, rollout.c["class"] == node.c["class"])
        .join(
            step, and_(step.c.rollout == rollout.c.name, step.c.node == node.c.name), isouter=True
        )
        .where(rollout.c.phase.in_(tables.ACTIVE_PHASES), ~node.c.retired)
        .where(~select(hold.c.node).where(hold.c.node == node.c.name).exists())
        .where(
            or_(step.c.phase.is_(None), and_(step.c.phase == "done", step.c.direction == "forward"))
        )
        .order_by(rollout.c.name, node.c.name)
    )
    return [
        {
            "rollout": row.rollout,
            "node": row.node,
            "arm": "control" if row.phase is None else "changed",
        }
        for row in connection.execute(query)
    ]


def _log(connection: Connection) -> dict[str, int]:
    """Return the number of the last line, of the last sealed one, and the lines between them."""
    sealed = connection.scalar(select(func.max(tables.head.c.seq))) or 0
    after = select(func.count(), func.max(tables.log.c.seq)).where(tables.log.c.seq > sealed)
    unsealed, last = connection.execute(after).one()
    return {"last": last or sealed, "sealed": sealed, "unsealed": unsealed}


def _rows(
    connection: Connection,
    table: Table,
    order: tuple[str, ...],
    *,
    in_force: bool = False,
    without: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    dropped = {*without, *(("lifted_at", "lifted_by") if in_force else ())}
    query = select(*(column for column in table.c if column.name not in dropped))
    if in_force:
        query = query.where(table.c.lifted_at.is_(None))
    return [
        dict(row)
        for row in connection.execute(query.order_by(*(table.c[name] for name in order))).mappings()
    ]
