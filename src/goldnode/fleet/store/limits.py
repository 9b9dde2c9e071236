"""Limits of failure domains: how many nodes may be out of service, from the documents in force.

`apply` writes them into `buffer` in the transaction that changes a document or the nodes, so that
no grant ever sees limits of an earlier document.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from sqlalchemy import ColumnElement, Connection, bindparam, func, select

from goldnode.fleet.store import tables
from goldnode.fleet.store.errors import StoreError

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
RETURN_WITHIN = 2 * 3600.0  # seconds


@dataclass(frozen=True)
class FleetLimits:
    """Limits of one class. A share such as "2%" is of the nodes of the class, rounded down, and 1 at least.

    `per` has the planned limit of one rack, leaf or cohort. A cohort without a number has none of
    its own.
    """

    planned: str
    failed: str
    total: str
    per: Mapping[str, int] = field(default_factory=dict)
    return_within: float = RETURN_WITHIN  # seconds until a granted node is overdue

    def text(self) -> str:
        """Return the limits as the store has them."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    @lru_cache(maxsize=64)  # each grant reads them, and they change with a document
    def read(cls, text: str) -> FleetLimits:
        """Return stored limits. Ignore fields of a later version."""
        values = json.loads(text)
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def number(limit: str, nodes: int) -> int:
    """Return a limit as a number of nodes. Raises StoreError for text that is no limit."""
    share = _SHARE.fullmatch(limit.strip())
    if share:
        return max(1, int(float(share[1]) * nodes / 100 + 1e-9)) if nodes else 0
    if limit.strip().isdigit():
        return int(limit)
    raise StoreError(
        f'"{limit}" is no limit', remedy="use a number of nodes, or a share such as 2%"
    )


def in_force(connection: Connection) -> dict[str, FleetLimits]:
    """Return the limits of each class: of its active rollout, else of its last one, else its own."""
    limits = {
        row["class"]: FleetLimits.read(row["limits"])
        for row in connection.execute(
            select(tables.class_limits.c["class"], tables.class_limits.c.limits)
        ).mappings()
    }
    rollout = tables.rollout
    rows = connection.execute(
        select(rollout.c["class"], rollout.c.limits)
        .where(rollout.c.phase != "queued")
        .order_by(rollout.c.phase.in_(tables.ACTIVE_PHASES), rollout.c.submitted_at)
    )
    # The last row of a class wins.
    return limits | {row[0]: FleetLimits.read(row[1]) for row in rows}


_OF_ROLLOUT = (
    select(tables.rollout.c.limits, tables.rollout.c.name)
    .where(tables.rollout.c["class"] == bindparam("of_class"), tables.rollout.c.phase != "queued")
    .order_by(
        tables.rollout.c.phase.in_(tables.ACTIVE_PHASES).desc(),
        tables.rollout.c.submitted_at.desc(),
    )
    .limit(1)
)


def of_nodes() -> ColumnElement[str | None]:
    """Return an expression for the text of the limits in force for the class of a row of `node`."""
    rollout, own = tables.rollout.alias("in_force"), tables.class_limits
    of_rollout = (
        select(rollout.c.limits)
        .where(rollout.c["class"] == tables.node.c["class"], rollout.c.phase != "queued")
        .order_by(rollout.c.phase.in_(tables.ACTIVE_PHASES).desc(), rollout.c.submitted_at.desc())
        .limit(1)
        .correlate(tables.node)
    )
    of_class = (
        select(own.c.limits).where(own.c["class"] == tables.node.c["class"]).correlate(tables.node)
    )
    return func.coalesce(of_rollout.scalar_subquery(), of_class.scalar_subquery())


def rollout_of(connection: Connection, name: str) -> str | None:
    """Return the rollout whose limits are in force for a class; None if they are its own."""
    row = connection.execute(_OF_ROLLOUT, {"of_class": name}).first()
    return None if row is None else str(row.name)


def apply(connection: Connection) -> None:
    """Write the limits in force into the buffers of all failure domains."""
    limits = in_force(connection)
    node = tables.node
    rows = connection.execute(
        select(node.c["class"], node.c.rack, node.c.leaf, node.c.cohort).where(~node.c.retired)
    )
    sizes: Counter[tuple[str, str]] = Counter()
    classes: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for domain in _domains(row):
            sizes[domain] += 1
            classes.setdefault(domain, set()).add(row[0])
    before = {
        (row.scope, row.name): tuple(row)[2:]
        for row in connection.execute(
            select(
                *(tables.buffer.c[name] for name in ("scope", "name")),
                *(tables.buffer.c[name] for name in _LIMITED),
            )
        )
    }
    for domain in sorted(set(sizes) | set(before)):
        after = (
            sizes[domain],
            *_of_domain(domain, sizes[domain], classes.get(domain, set()), limits),
        )
        if domain not in before:
            values = dict(zip(_LIMITED, after, strict=True))
            connection.execute(
                tables.buffer.insert().values(scope=domain[0], name=domain[1], **values)
            )
        elif before[domain] != after:
            connection.execute(
                tables.buffer.update()
                .where(tables.buffer.c.scope == domain[0], tables.buffer.c.name == domain[1])
                .values(**dict(zip(_LIMITED, after, strict=True)))
            )


_LIMITED = ("nodes", "planned_limit", "failed_limit", "total_limit")


def _domains(row: tuple[str | None, ...]) -> Iterator[tuple[str, str]]:
    return ((scope, name) for scope, name in zip(tables.SCOPES, row, strict=True) if name)


def _of_domain(
    domain: tuple[str, str], nodes: int, classes: set[str], limits: Mapping[str, FleetLimits]
) -> tuple[int | None, int | None, int | None]:
    """Return the planned, failed and total limit. A domain of several classes has the lowest one."""
    scope, name = domain
    if scope == "class":
        own = limits.get(name)
        if own is None:
            return None, None, None
        return number(own.planned, nodes), number(own.failed, nodes), number(own.total, nodes)
    planned = [
        limits[one].per[scope] for one in classes if one in limits and scope in limits[one].per
    ]
    return (min(planned, default=None), None, None)
