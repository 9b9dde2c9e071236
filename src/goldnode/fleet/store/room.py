"""Room in the failure domains: counters, limits and freezes, read in one statement for any number of grants.

The caller's transaction has the lock of the ledger, so nothing else changes them meanwhile. The
guards of the database count again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, or_, select

from goldnode.fleet.store import tables
from goldnode.fleet.store.errors import GrantRefusedError, RefusalKind
from goldnode.fleet.store.many import padded

Domains = tuple[tuple[str, str], ...]  # (scope, name) of each failure domain of a node

_buffer, _frozen = tables.buffer, tables.frozen
_LIMITS = ("planned", "failed", "total")
# A node has a buffer for its class and its rack, the scopes of freezes besides `all` and `rollout`.
_ROOM = (
    select(
        *(_buffer.c[name] for name in ("scope", "name", *_LIMITS)),
        *(_buffer.c[f"{name}_limit"] for name in _LIMITS),
        _frozen.c.scope.label("frozen_scope"),
        *(_frozen.c[name] for name in ("subject", "reason", "who")),
    )
    .select_from(_buffer)
    .join(
        _frozen,
        and_(
            _frozen.c.lifted_at.is_(None),
            or_(
                _frozen.c.scope.in_(("all", "rollout")),
                and_(_frozen.c.scope == _buffer.c.scope, _frozen.c.subject == _buffer.c.name),
            ),
        ),
        isouter=True,
    )
    .where(
        or_(
            *(
                and_(
                    _buffer.c.scope == scope,
                    _buffer.c.name.in_(bindparam(f"of_{scope}", expanding=True)),
                )
                for scope in tables.SCOPES
            )
        )
    )
)


@dataclass
class _Buffer:
    """Counters of one failure domain, with the grants of this transaction, and its limits."""

    counted: dict[str, int]
    limits: dict[str, int | None]


@dataclass(frozen=True)
class _Freeze:
    scope: str
    subject: str
    reason: str
    who: str


class Room:
    """Buffers of the failure domains of some nodes, and freezes over them."""

    def __init__(self, connection: Connection, nodes: Iterable[Domains]) -> None:
        names: dict[str, list[str]] = {scope: [] for scope in tables.SCOPES}
        for domains in nodes:
            for scope, name in domains:
                names[scope].append(name)
        self._buffers: dict[tuple[str, str], _Buffer] = {}
        self._freezes: dict[tuple[str, str], _Freeze] = {}
        # With an empty list, PostgreSQL would always read the whole table. No buffer has an empty name.
        rows = connection.execute(
            _ROOM, {f"of_{scope}": padded(names[scope] or [""]) for scope in names}
        )
        for scope, name, *numbers, frozen, subject, reason, who in rows:
            self._buffers[scope, name] = _Buffer(
                dict(zip(_LIMITS, numbers[:3], strict=True)),
                dict(zip(_LIMITS, numbers[3:], strict=True)),
            )
            if frozen is not None:
                what = "" if frozen == "all" else subject
                self._freezes[frozen, what] = _Freeze(frozen, what, reason, who)

    def check(self, domains: Domains, rollout: str | None) -> None:
        """Raise GrantRefusedError, with names and numbers, if a node of these domains may not go."""
        for key in (("all", ""), *domains, ("rollout", rollout or "")):
            if freeze := self._freezes.get(key):
                what = " ".join(part for part in (freeze.scope, freeze.subject) if part)
                raise GrantRefusedError(
                    RefusalKind.FROZEN,
                    f"{what} is frozen by {freeze.who}: {freeze.reason}",
                    remedy="`goldnode fleet unfreeze` lifts it",
                )
        buffers = {domain: self._buffers[domain] for domain in domains if domain in self._buffers}
        own = buffers.get(domains[0])
        if own is None or own.limits["planned"] is None:
            raise no_document(domains[0][1])
        for (scope, name), buffer in buffers.items():
            for counter in ("failed", "planned", "total"):
                limit, taken = buffer.limits[counter], buffer.counted[counter]
                if limit is not None and taken + (counter != "failed") > limit:
                    raise GrantRefusedError(
                        RefusalKind.FAILED_BUFFER if counter == "failed" else RefusalKind.FULL,
                        f"{scope} {name}: {taken} nodes are out of service ({counter}), the limit is {limit}",
                    )

    def take(self, domains: Domains) -> None:
        """Count a grant to a node of these domains, which has no other hold."""
        for domain in domains:
            self._buffers[domain].counted["planned"] += 1
            self._buffers[domain].counted["total"] += 1


def no_document(node_class: str) -> GrantRefusedError:
    """Return the refusal for a class without limits."""
    return GrantRefusedError(
        RefusalKind.NO_DOCUMENT,
        f"no document is in force for class {node_class}",
        remedy="submit a rollout, or give the class limits: `goldnode fleet nodes FILE`",
    )
