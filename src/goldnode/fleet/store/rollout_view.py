"""Reads of the store for the views of a rollout: `rollout status`, `explain`, `log` and `events`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, func, or_, select

from goldnode.fleet.rollout.document import RolloutSettings, loads
from goldnode.fleet.rollout.model import NodeObservation, SchedulerObservation
from goldnode.fleet.rollout.state import Observations
from goldnode.fleet.rollout.view import RolloutBuffer, RolloutFacts
from goldnode.fleet.store import observations, rollouts, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.log import decoded, entries

# Lines without a rollout that concern rollouts: orders on the fleet, a class or a rack, and nodes that are out.
_SHARED = ("Freeze", "Thaw", "Release", "Deny", "LiftDenial", "TakeHold", "DropHold", "Overdue")


def chosen(connection: Connection, name: str | None) -> str:
    """Return the name of a rollout; without one, of the only rollout under way, else of the last one.

    Raises StoreError if there is none, or if several are under way.
    """
    table = tables.rollout
    rows = connection.execute(
        select(table.c.name, table.c.ended_at).order_by(table.c.submitted_at.desc(), table.c.name)
    ).all()
    names = [row.name for row in rows]
    if name is not None:
        if name not in names:
            known = f"it has {', '.join(names[:5])}" if names else "it has none"
            raise StoreError(
                f'the store has no rollout "{name}"; {known}',
                remedy="`goldnode fleet status` lists them",
            )
        return name
    under_way = [row.name for row in rows if row.ended_at is None]
    if len(under_way) > 1:
        raise StoreError(
            f"{len(under_way)} rollouts are under way: {', '.join(under_way)}",
            remedy="name one of them",
        )
    if not rows:
        raise StoreError(
            "the store has no rollout", remedy="run one: `goldnode rollout run DOCUMENT`"
        )
    return str((under_way or names)[0])


def settings_of(connection: Connection, name: str) -> RolloutSettings:
    """Return the settings of the stored document of a rollout."""
    row = _row(connection, name)
    return loads(row["document"], f"the stored document of rollout {name}").settings


def _row(connection: Connection, name: str) -> RowMapping:
    row = (
        connection.execute(select(tables.rollout).where(tables.rollout.c.name == name))
        .mappings()
        .first()
    )
    if row is None:
        raise StoreError(
            f'the store has no rollout "{name}"', remedy="`goldnode fleet status` lists them"
        )
    return row


@dataclass
class RolloutReader:
    """Reads one rollout again and again. The log is replayed only when it has new lines of this rollout."""

    name: str
    simulated: bool | None = None  # whether its class declares simulated hardware
    _loaded: rollouts.LoadedRollout | None = None
    _document: str = ""
    _settings: RolloutSettings | None = None
    _due: float = 0.0  # a large log is not replayed all the time
    _seen: Observations = field(default_factory=Observations)
    _observed: int | None = None  # last row of the observations

    def read(self, store: StoreDatabase) -> RolloutFacts:
        """Return the facts of a view, from one consistent view of the store."""
        with store.read() as connection:
            return self.facts(connection)

    def _stale(self, connection: Connection) -> bool:
        """Return whether the log has to be replayed."""
        loaded = self._loaded
        return loaded is None or (
            time.monotonic() >= self._due and rollouts.changed(connection, self.name, loaded.seen)
        )

    def _news(
        self, connection: Connection, node_class: str
    ) -> list[NodeObservation | SchedulerObservation]:
        """Return the observations since the last reading; the newest ones for the first time."""
        if self._observed is None:
            self._observed = connection.scalar(select(func.max(tables.observation.c.seq))) or 0
            news = observations.newest(connection, node_class)
        else:
            news, self._observed = observations.after(connection, node_class, self._observed)
        for item in news:
            self._seen.record(item)
        return news

    def facts(self, connection: Connection) -> RolloutFacts:
        """Return the facts of a view."""
        row = _row(connection, self.name)
        if self._settings is None or row["document"] != self._document:
            self._settings, self._document = settings_of(connection, self.name), row["document"]
            self._loaded = None
        settings = self._settings
        new = self._news(connection, settings.class_)
        if self._stale(connection) or self._loaded is None:
            began = time.monotonic()
            self._loaded = rollouts.load(connection, settings)
            ended = time.monotonic()
            self._due = ended + 3 * (ended - began)
            new = [*self._seen.scheduler.values(), *self._seen.nodes.values()]
        state, seen = self._loaded.state, self._seen
        for item in new:
            state.note(item)
        state.others = rollouts.others(connection, settings)
        state.record = replace(state.record, epoch=row["epoch"])
        for answer in observations.answers(connection, self.name):
            self._seen.record(answer)
        for reading in observations.calendars(connection, self.name):
            self._seen.record(reading)
        return RolloutFacts(
            settings=settings,
            state=state,
            observations=seen,
            author=row["author"],
            holder=row["holder"],
            beat_at=row["beat_at"],
            ended_at=row["ended_at"],
            buffers=_buffers(connection, settings.class_),
            simulated=self.simulated,
        )


def _buffers(connection: Connection, node_class: str) -> tuple[RolloutBuffer, ...]:
    """Return the limits of a class, and those of its racks, leaves and cohorts that have a node out."""
    buffer = tables.buffer
    buffers = []
    domains: dict[str, set[str]] = {}
    for scope in tables.SCOPES:
        column = tables.node.c[scope]
        rows = connection.scalars(
            select(column).where(tables.node.c["class"] == node_class).distinct()
        )
        domains[scope] = {name for name in rows if name}
    for row in connection.execute(
        select(buffer).order_by(buffer.c.scope, buffer.c.name)
    ).mappings():
        if row["name"] not in domains[row["scope"]]:
            continue
        for kind in ("planned", "failed", "total"):
            limit = row[f"{kind}_limit"]
            if row["scope"] == "class" or (limit is not None and row[kind]):
                buffers.append(RolloutBuffer(row["scope"], row["name"], kind, row[kind], limit))
    return tuple(sorted(buffers, key=lambda item: item.scope != "class"))


def lines(
    connection: Connection,
    rollout: str | None = None,
    *,
    after: int = 0,
    limit: int | None = None,
    node: str | None = None,
) -> list[dict[str, Any]]:
    """Return decoded lines of a rollout, or of all, with the orders that concern them."""
    log = tables.log
    shared = and_(log.c.rollout.is_(None), log.c.action.in_(_SHARED))
    where = or_(log.c.rollout.is_not(None) if rollout is None else log.c.rollout == rollout, shared)
    rows: Sequence[RowMapping] = entries(
        connection, subject=node, after=after, limit=limit, where=where
    )
    return [decoded(dict(row)) for row in rows]
