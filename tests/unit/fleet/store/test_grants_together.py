"""Many requests in one call: the same answers and rows as one by one, and statements that do not grow with them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, event, select
from tests.unit.fleet.store.fleets import (
    ALICE,
    CLASS,
    NEW,
    OLD,
    fill,
    held,
    rollout,
    take_hold,
    wish,
)

from goldnode.fleet.service import batch
from goldnode.fleet.service.batch import SharedRequest
from goldnode.fleet.store import grants, orders, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError
from goldnode.fleet.store.grants import Candidate, GivenBack, Leave, LeaveRequest
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.orders import Scope

MANY = FleetLimits("40", "40", "40")
Together = Callable[[Connection, Sequence[LeaveRequest]], Sequence[Any]]


@contextmanager
def statements(store: StoreDatabase) -> Iterator[list[str]]:
    """Collect the statements that run in the block."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        found.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


def of_rollout(number: int, **more: str) -> LeaveRequest:
    return wish(number, **{"rollout": "kernel", "digest": OLD, "boot_id": "b1", **more})


# The first statement takes the lock of the ledger.
BOUNDS: dict[str, tuple[Together, Callable[[int], LeaveRequest], int]] = {
    "grant": (grants.grant_all, wish, 1 + 4),
    "return": (grants.give_back_all, wish, 1 + 3),
    "grant of a rollout": (grants.grant_all, of_rollout, 1 + 5),
    "return of a rollout": (
        grants.give_back_all,
        lambda n: of_rollout(n, digest=NEW, boot_id="b2"),
        1 + 8,
    ),
    "report": (grants.observe_all, lambda n: of_rollout(n, boot_id="b3"), 1 + 5),
}


@pytest.mark.parametrize("count", [1, 20])
def test_statements_of_a_call_do_not_depend_on_the_number_of_requests(
    store: StoreDatabase, count: int
) -> None:
    fill(store, 40, MANY, racks=40)
    rollout(store)
    with store.write() as connection:
        connection.execute(tables.buffer.update().values(planned_limit=40, total_limit=40))
    ran = {}
    for first, own in (
        (0, "grant"),
        (0, "return"),
        (20, "grant of a rollout"),
        (20, "return of a rollout"),
        (0, "report"),
    ):
        together, request, _ = BOUNDS[own]
        asked = [request(number) for number in range(first, first + count)]
        with statements(store) as found:
            answers = store.run(lambda c, together=together, asked=asked: together(c, asked))  # type: ignore[misc]
        assert not [
            one for one in answers if isinstance(one, Exception) or getattr(one, "refusal", None)
        ]
        ran[own] = len(found)
    assert ran == {own: bound for own, (_, _, bound) in BOUNDS.items()}


def test_refusals_of_a_full_fleet_take_no_statement_each(store: StoreDatabase) -> None:
    fill(store, 30)
    with statements(store) as found:
        answers = batch.commit(
            store, [SharedRequest(grants.grant_all, wish(number)) for number in range(30)]
        )
    assert sum(isinstance(one, Leave) for one in answers) == 2
    assert sum(isinstance(one, GrantRefusedError) for one in answers) == 28
    assert len(found) == 1 + 6  # with the savepoint


def test_a_guard_that_refuses_one_node_of_many_refuses_only_that_one(store: StoreDatabase) -> None:
    fill(store, 4, MANY)
    rollout(store)
    store.run(lambda c: orders.deny(c, CLASS, NEW, ALICE))
    works = [SharedRequest(grants.grant_all, one) for one in (of_rollout(0), wish(1), wish(2))]
    answers = batch.commit(store, works)
    assert [type(one).__name__ for one in answers] == ["GrantRefusedError", "Leave", "Leave"]
    assert held(store) == {"n01": "planned", "n02": "planned"}


def test_returns_are_answered_before_grants(store: StoreDatabase) -> None:
    fill(store, 4, FleetLimits("1", "1", "1"))
    store.run(lambda c: grants.grant(c, wish(0)))
    works = [SharedRequest(grants.grant_all, wish(1)), SharedRequest(grants.give_back_all, wish(0))]
    leave, back = batch.commit(store, works)
    assert isinstance(leave, Leave)
    assert back == GivenBack(True)


_NODE = st.integers(0, 5)
_WISH = st.builds(
    lambda number, machine, name, more: wish(
        number,
        **{
            **({"node": f"{number:032x}"} if machine else {}),
            **({"rollout": name} if name else {}),
            **more,
        },
    ),
    _NODE,
    st.booleans(),
    st.sampled_from([None, "kernel", "unknown"]),
    st.sampled_from(
        [
            {},
            {"boot_id": "b1", "digest": OLD},
            {"boot_id": "b2", "digest": NEW},
            {"group": "r1"},
            {"node": "n99"},
            {"wants": "sha256:other"},
        ]
    ),
)
_CALLS = st.lists(
    st.tuples(
        st.sampled_from([grants.grant_all, grants.give_back_all, grants.observe_all]),
        st.lists(_WISH, min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def _plain(answer: object) -> object:
    if isinstance(answer, GrantRefusedError):
        return answer.kind, answer.message
    if isinstance(answer, GivenBack):
        return answer.released, answer.phase, answer.refusal and _plain(answer.refusal)
    return answer.name if isinstance(answer, Candidate) else answer


def _rows(connection: Connection, table: Table) -> list[tuple[Any, ...]]:
    """Return the rows in a fixed order, without numbers: two requests may write their lines in another order."""
    names = [column for column in table.c if column.name not in ("seq", "log_seq")]
    return sorted((tuple(row) for row in connection.execute(select(*names))), key=repr)


LEDGER = (tables.hold, tables.step, tables.buffer, tables.node, tables.log, tables.observation)


@pytest.fixture(scope="module")
def prepared(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a rollout, a failed node, one that a person drained, and a frozen rack."""
    path = Path(shutil.copy(migrated, tmp_path_factory.mktemp("together") / "fleet.db"))
    store = StoreDatabase(str(path))
    fill(store, 6, FleetLimits("2", "2", "4", {"rack": 1}), racks=3)
    rollout(store, waves=(("n00", "n01", "n02"),))
    store.run(lambda c: take_hold(c, "n04", "failed", "check", ALICE))
    store.run(lambda c: take_hold(c, "n05", "person", "alice", ALICE))
    store.run(lambda c: orders.freeze(c, Scope("rack", "r2"), ALICE))
    store.close()
    return path


@settings(max_examples=40)
@given(calls=_CALLS)
def test_many_requests_get_the_answers_of_one_after_the_other(
    prepared: Path, calls: list[tuple[Together, list[LeaveRequest]]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        one, many = (
            StoreDatabase(str(shutil.copy(prepared, Path(place) / name)))
            for name in ("one.db", "many.db")
        )
        with one.write() as single, many.write() as shared:
            for together, asked in calls:
                alone = [together(single, [own])[0] for own in asked]
                assert list(map(_plain, together(shared, asked))) == list(map(_plain, alone))
            for table in LEDGER:
                assert _rows(single, table) == _rows(shared, table)
        one.close()
        many.close()
