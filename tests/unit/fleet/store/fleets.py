"""A small fleet for tests of the store."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, and_, func, select

from goldnode.fleet.rollout import model
from goldnode.fleet.store import controllers, grants, nodes, rollouts, tables
from goldnode.fleet.store.controllers import Controller, Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError
from goldnode.fleet.store.grants import GivenBack, Leave, LeaveRequest, PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.log import LogLine, append
from goldnode.fleet.store.nodes import StoredNode

CLASS = "h100"
NOW = 1_800_000_000.0
OLD, NEW = "sha256:old", "sha256:new"
ALICE = PersonsOrder("alice@controller", NOW, "a reason")
BOB = PersonsOrder("bob@controller", NOW, "another reason")
LIMITS = FleetLimits("2", "2", "3", {"rack": 1})


def node(number: int, racks: int = 4) -> StoredNode:
    """Return node `number`: n00 in rack r0, n01 in rack r1, …"""
    return StoredNode(
        f"n{number:02}", CLASS, f"r{number % racks}", f"l{number % 2}", machine=f"{number:032x}"
    )


def fill(
    store: StoreDatabase,
    count: int = 8,
    limits: FleetLimits | None = LIMITS,
    *,
    racks: int = 4,
) -> None:
    """Store `count` nodes of one class, and its limits."""
    own: Mapping[str, FleetLimits] = {CLASS: limits} if limits else {}
    store.run(
        lambda c: nodes.put(c, [node(number, racks) for number in range(count)], own, "test", NOW)
    )


def rollout(
    store: StoreDatabase, *, name: str = "kernel", waves: tuple[tuple[str, ...], ...] = ()
) -> Controller:
    """Submit a rollout of the class, begin it, and return its controller."""
    given = Submission(
        name, CLASS, NEW, "rollout: kernel", LIMITS, author="alice@controller", separate=True
    )

    def begin(connection: Connection) -> Controller:
        controllers.submit(connection, given, NOW)
        epoch = controllers.take_over(connection, name, "first", NOW)
        assert epoch is not None
        found = Controller(name, epoch, "first")
        everyone = tuple(
            connection.scalars(select(tables.node.c.name).order_by(tables.node.c.name))
        )
        rollouts.write(connection, found, [model.Start((waves or (everyone,))[0])], NOW)
        return found

    return store.run(begin)


def leave(store: StoreDatabase, number: int, **more: str | float) -> Leave:
    """Ask for leave for a node."""
    return store.run(lambda c: grants.grant(c, wish(number, **more)))


def back(store: StoreDatabase, number: int, **more: str | float) -> GivenBack:
    """Give leave back."""
    return store.run(lambda c: grants.give_back(c, wish(number, **more)))


def wish(number: int, **more: str | float) -> LeaveRequest:
    """Return the request of a node."""
    return LeaveRequest(**{"node": f"n{number:02}", "group": CLASS, "now": NOW, **more})  # type: ignore[arg-type]


def refusal(store: StoreDatabase, number: int, **more: str | float) -> str:
    """Return the kind with which leave is refused; "granted" if it is not."""
    try:
        leave(store, number, **more)
    except GrantRefusedError as problem:
        return problem.kind.value
    return "granted"


def held(store: StoreDatabase) -> dict[str, str]:
    """Return the kind of each node's hold."""
    with store.read() as connection:
        return {
            row.node: row.kind
            for row in connection.execute(
                select(tables.hold.c.node, tables.hold.c.kind).order_by(tables.hold.c.node)
            )
        }


def counters(store: StoreDatabase, scope: str, name: str) -> tuple[int, int, int, int]:
    """Return planned, failed, person and total of a buffer."""
    buffer = tables.buffer
    with store.read() as connection:
        row = connection.execute(
            select(buffer.c.planned, buffer.c.failed, buffer.c.person, buffer.c.total).where(
                buffer.c.scope == scope, buffer.c.name == name
            )
        ).one()
    return row.planned, row.failed, row.person, row.total


def take_hold(
    connection: Connection, name: str, kind: str, owner: str, order: PersonsOrder
) -> None:
    """Record that a node is out of service for a reason outside of any rollout, as the writer of a rollout's state does."""
    hold = tables.hold
    key = and_(hold.c.node == name, hold.c.owner == owner)
    if connection.scalar(select(func.count()).select_from(hold).where(key)):
        return
    row = {"node": name, "owner": owner, "kind": kind, "reason": order.reason}
    connection.execute(hold.insert().values(since=order.now, **row))
    content = {"action": "TakeHold", **row}
    append(connection, LogLine(order.now, order.who, "TakeHold", name, content))


def drop_hold(connection: Connection, name: str, owner: str, order: PersonsOrder) -> bool:
    """Record that a reason outside of any rollout has ended. Return whether there was such a hold."""
    hold = tables.hold
    key = and_(hold.c.node == name, hold.c.owner == owner)
    ended = connection.execute(hold.delete().where(key, hold.c.kind == "person")).rowcount
    if ended:
        content = {"action": "DropHold", "node": name, "owner": owner}
        append(connection, LogLine(order.now, order.who, "DropHold", name, content))
    return bool(ended)
