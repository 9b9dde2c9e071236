"""Nodes of the store, with their failure domains, and the limits of classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select

from goldnode.fleet.store import limits, tables
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.log import LogLine, append


@dataclass(frozen=True)
class StoredNode:
    """A node of a class, and its failure domains."""

    name: str
    node_class: str
    rack: str | None = None
    leaf: str | None = None
    cohort: str | None = None
    machine: str | None = None  # id with which a FleetLock client asks, if it is not the name
    tags: tuple[str, ...] = ()

    def values(self) -> dict[str, str | None]:
        """Return the columns of the node."""
        columns = asdict(self)
        columns["class"] = columns.pop("node_class")
        columns["tags"] = json.dumps(self.tags) if self.tags else None
        return columns


@dataclass(frozen=True)
class NodesChange:
    """Nodes by name that a change has added, changed and retired."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    retired: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.retired)


def put(
    connection: Connection,
    nodes: Iterable[StoredNode],
    class_limits: Mapping[str, FleetLimits],
    who: str,
    now: float,
) -> NodesChange:
    """Make the nodes of these classes exactly `nodes`, and write the limits of the classes.

    Nodes of other classes stay. A node that is no longer named is retired, unless it is out of
    service: then StoreError is raised, for its return would be lost.
    """
    wanted = {node.name: node.values() for node in nodes}
    classes = {str(row["class"]) for row in wanted.values()} | set(class_limits)
    columns = [
        tables.node.c[name] for name in ("name", *tables.SCOPES, "machine", "tags", "retired")
    ]
    stored = {
        row["name"]: row
        for row in connection.execute(
            select(*columns).where(
                tables.node.c["class"].in_(classes) | tables.node.c.name.in_(wanted)
            )
        ).mappings()
    }
    added = tuple(sorted(set(wanted) - set(stored)))
    changed = tuple(
        sorted(
            name
            for name in set(wanted) & set(stored)
            if stored[name]["retired"]
            or any(stored[name][key] != value for key, value in wanted[name].items())
        )
    )
    retired = tuple(
        sorted(name for name in set(stored) - set(wanted) if not stored[name]["retired"])
    )
    _none_held(connection, retired)
    if added:
        connection.execute(tables.node.insert(), [wanted[name] for name in added])
    for name in changed:
        connection.execute(
            tables.node.update()
            .where(tables.node.c.name == name)
            .values(retired=False, **wanted[name])
        )
    for name in retired:
        connection.execute(
            tables.node.update()
            .where(tables.node.c.name == name)
            .values(retired=True, machine=None)
        )
    for name, own in class_limits.items():
        connection.execute(
            tables.class_limits.delete().where(tables.class_limits.c["class"] == name)
        )
        connection.execute(
            tables.class_limits.insert().values(**{"class": name}, limits=own.text())
        )
    limits.apply(connection)
    change = NodesChange(added, changed, retired)
    content = {
        "action": "PutNodes",
        "added": added,
        "changed": changed,
        "retired": retired,
        "limits": {name: asdict(own) for name, own in class_limits.items()},
    }
    append(connection, LogLine(now, who, "PutNodes", ", ".join(sorted(classes))[:255], content))
    return change


def _none_held(connection: Connection, names: tuple[str, ...]) -> None:
    held = sorted(
        set(connection.scalars(select(tables.hold.c.node).where(tables.hold.c.node.in_(names))))
    )
    if held:
        raise StoreError(
            f"{', '.join(held[:5])}{' …' if len(held) > 5 else ''} cannot be removed: out of service",
            remedy=f"wait until it is back, or release it: `goldnode fleet release {held[0]} --reason REASON`",
        )
