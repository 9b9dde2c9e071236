"""Actions of a controller in one write: the same rows as one by one, and statements that do not grow with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event, select
from tests import postgresql
from tests.unit.fleet.store.fleets import CLASS, NOW, OLD, fill, held, rollout

from goldnode.fleet.rollout.model import (
    Action,
    Blame,
    Direction,
    Finish,
    Grant,
    Overdue,
    Prior,
    Proceed,
    StepPhase,
    Turn,
)
from goldnode.fleet.store import rollouts, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError
from goldnode.fleet.store.limits import FleetLimits

COUNT = 12
PRIOR = Prior(True, OLD, "b1")


def started(store: StoreDatabase) -> Any:
    fill(store, COUNT, FleetLimits("12", "12", "12"), racks=COUNT)
    controller = rollout(store)
    with store.write() as connection:
        connection.execute(tables.buffer.update().values(planned_limit=COUNT, total_limit=COUNT))
    return controller


def of(numbers: Sequence[int], kind: type, *more: Any) -> list[Action]:
    return [kind(f"n{number:02}", *more) for number in numbers]


# By kind: statements for the nodes of one kind, besides lock, beat, the lines and the last number.
KINDS: dict[str, tuple[type, tuple[Any, ...], int]] = {
    "grants": (Grant, (Direction.FORWARD, 1, NOW + 9, PRIOR), 3),
    "proceeds": (Proceed, (StepPhase.APPLYING, NOW + 9), 3),
    "turns": (Turn, (2, NOW + 9), 3),
    "finishes": (Finish, (StepPhase.DONE, 0), 3),
}


@pytest.mark.parametrize("count", [1, COUNT])
def test_statements_of_a_write_do_not_depend_on_the_number_of_nodes(
    store: StoreDatabase, count: int
) -> None:
    controller = started(store)
    found: list[str] = []
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda _one, _two, statement, *_more: found.append(statement),
    )
    ran = {}
    for name, (kind, more, _) in KINDS.items():
        found.clear()
        actions = of(range(count), kind, *more)
        store.run(lambda c, actions=actions: rollouts.write(c, controller, actions, NOW))  # type: ignore[misc]
        targets = sum("rollout.target" in statement for statement in found)  # read once by grants
        ran[name] = len(found) - targets - 4
    assert ran == {name: bound for name, (_, _, bound) in KINDS.items()}


STORY: tuple[Action, ...] = (
    *of((0, 1, 2, 3, 4), Grant, Direction.FORWARD, 1, NOW + 9, PRIOR),
    *of((0, 1, 2), Proceed, StepPhase.APPLYING, NOW + 8, "a cause"),
    *of((0,), Finish, StepPhase.DONE, 0),
    *of((1,), Finish, StepPhase.FAILED, 0, "broken", Blame.SOFTWARE, True),
    *of((5,), Finish, StepPhase.DEFERRED, 0),
    *of((2,), Turn, 2, NOW + 7, "goes back"),
    *of((3,), Overdue, "late"),
    *of((0, 6), Grant, Direction.BACK, 2, NOW + 9, PRIOR),
)


def test_a_write_leaves_the_rows_of_its_actions_one_by_one(
    server: postgresql.Cluster, template: str
) -> None:
    rows = []
    for width in (1, len(STORY)):
        store = StoreDatabase(server.create(f"story_{width}", template))
        controller = started(store)
        with store.write() as connection:
            for first in range(0, len(STORY), width):
                rollouts.write(connection, controller, STORY[first : first + width], NOW)
        with store.read() as connection:
            of_tables = (tables.step, tables.hold, tables.buffer, tables.log)
            rows.append(
                [
                    connection.execute(select(table).order_by(*table.primary_key.columns)).all()
                    for table in of_tables
                ]
            )
        store.close()
    assert rows[0] == rows[1]
    assert len(rows[0][0]) == 7


def test_a_write_with_one_grant_too_many_writes_none(store: StoreDatabase) -> None:
    controller = started(store)
    with store.write() as connection:
        connection.execute(
            tables.buffer.update().where(tables.buffer.c.name == CLASS).values(planned_limit=3)
        )
    grants = of(range(4), Grant, Direction.FORWARD, 1, NOW + 9, PRIOR)
    with pytest.raises(GrantRefusedError):
        store.run(lambda c: rollouts.write(c, controller, grants, NOW))
    assert held(store) == {}
    store.run(lambda c: rollouts.write(c, controller, grants[:3], NOW))
    assert len(held(store)) == 3
