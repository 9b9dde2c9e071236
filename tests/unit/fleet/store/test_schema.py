"""Versions of the schema: what a version was, and the code of one version on the tables of the next."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event, text
from tests.unit.fleet.store.fleets import (
    ALICE,
    BOB,
    CLASS,
    NEW,
    NOW,
    OLD,
    back,
    drop_hold,
    fill,
    leave,
    rollout,
    take_hold,
)

from goldnode.fleet.rollout.model import (
    ChangePhase,
    Deny,
    Direction,
    DropHold,
    Finish,
    Freeze,
    FreezeScope,
    Grant,
    HoldKind,
    Prior,
    Proceed,
    Promote,
    RolloutPhase,
    StepPhase,
    TakeHold,
    Turn,
)
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.store import grants, log, orders, queue, rollouts, schema
from goldnode.fleet.store.database import StoreDatabase, open_store
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.orders import Scope
from goldnode.fleet.store.status import status

HERE = Path(__file__).parent
VERSIONS = range(1, schema.VERSION + 1)


def frozen(version: int) -> Path:
    """Return the file with the tables and indexes of a version."""
    return HERE / f"schema-{version}.sql"


def statements(version: int) -> Path:
    """Return the file with the statements of a version."""
    return HERE / f"statements-{version}.sql"


# A next version as a migration would make it: it only adds.
NEXT = (
    "ALTER TABLE node ADD COLUMN power_feed VARCHAR(255)",
    "ALTER TABLE hold ADD COLUMN ticket VARCHAR(255) NOT NULL DEFAULT ''",
    "ALTER TABLE rollout ADD COLUMN lane VARCHAR(32) NOT NULL DEFAULT 'normal'",
    "ALTER TABLE log ADD COLUMN host VARCHAR(255)",
    "CREATE TABLE rung (node VARCHAR(255) PRIMARY KEY, rung INTEGER NOT NULL)",
    "UPDATE goldnode_schema SET version = version + 1",
)


ACTIONS = (
    Promote(1, ()),
    Grant("n03", Direction.FORWARD, 1, NOW + 1, Prior(True, OLD, "b1")),
    Proceed("n03", StepPhase.APPLYING, NOW + 2),
    Turn("n03", 2, NOW + 3),
    Finish("n03", phase=StepPhase.FAILED, wave=0, cause="x", blame=None, failed=True),
    TakeHold("n04", "outside", HoldKind.PERSON, ""),
    DropHold("n04", "outside"),
    Deny("sha256:bad", ""),
    Freeze("f1", FreezeScope.ROLLOUT, "kernel", "", ""),
    ChangePhase(RolloutPhase.COMPLETED, ""),
)


def use(store: StoreDatabase) -> None:
    """Use every kind of statement of the store."""
    fill(store)
    controller = rollout(store)
    leave(store, 0, rollout="kernel", digest=OLD, boot_id="b1", wants=NEW)
    back(store, 0, rollout="kernel", digest=NEW, boot_id="b2")
    leave(store, 1)
    back(store, 1)
    leave(store, 1)
    store.run(lambda c: grants.overdue(c, NOW + 10**6))
    store.run(lambda c: grants.release(c, "n01", ALICE))
    store.run(lambda c: take_hold(c, "n02", "person", "alice", ALICE))
    store.run(lambda c: drop_hold(c, "n02", "alice", ALICE))
    store.run(lambda c: orders.freeze(c, Scope(), ALICE))
    store.run(lambda c: orders.unfreeze(c, Scope(), ALICE))
    store.run(lambda c: orders.deny(c, CLASS, "bad", ALICE))
    store.run(lambda c: orders.lift_denial(c, CLASS, "bad", ALICE))
    store.run(lambda c: orders.approve(c, "kernel", "first", "oncall", BOB))
    store.run(lambda c: controller.claim(c, "w", 1))
    store.run(lambda c: rollouts.write(c, controller, ACTIONS, NOW))
    use_queue(store)
    store.run(lambda c: log.seal(c, NOW))
    with store.read() as connection:
        log.verify(connection)
        assert status(connection)["nodes"] == 8


def use_queue(store: StoreDatabase) -> None:
    """Use every kind of statement of the queue."""

    def asked(name: str, work: QueuedWork, now: float = NOW) -> queue.QueueClaim:
        given = queue.NodeAsk(
            work, "x", "ann", f"m/{name}", name, needs=(WorkNeed.DRAIN, WorkNeed.DRIVER)
        )
        return store.run(lambda c: queue.ask(c, given, now))

    both = [asked("n05", QueuedWork.APPLY), asked("n05", QueuedWork.REPAIR)]
    for claim, fit in zip(reversed(both), (True, True), strict=True):
        store.run(lambda c, one=claim: queue.begin(c, one, NOW))  # type: ignore[misc]
        done = queue.WorkOutcome(True, "", fit)
        store.run(lambda c, one=claim, how=done: queue.finish(c, one, how, NOW))  # type: ignore[misc]
    store.run(lambda c: queue.returned(c, both[0], True, "", NOW))
    cancelled = asked("n06", QueuedWork.REPAIR)
    store.run(lambda c: queue.poll(c, cancelled, NOW))
    store.run(lambda c: queue.cancel(c, cancelled.id, ALICE))
    lost = asked("n07", QueuedWork.REPAIR)
    store.run(lambda c: queue.begin(c, lost, NOW))
    store.run(lambda c: queue.advance(c, NOW + 10**7))


def test_code_works_on_the_tables_of_the_next_version(address: str) -> None:
    store = StoreDatabase(address)
    with store.write() as connection:
        for statement in NEXT:
            connection.execute(text(statement))
    store.close()
    store = open_store(address)
    use(store)
    store.close()


def test_tables_that_exclude_this_code_are_refused(address: str) -> None:
    store = StoreDatabase(address)
    with store.write() as connection:
        connection.execute(text("UPDATE goldnode_schema SET version = 9, oldest = 9"))
    store.close()
    with pytest.raises(StoreError, match="Upgrade goldnode on this machine"):
        open_store(address)


def test_tables_of_an_earlier_version_name_the_migration(address: str) -> None:
    store = StoreDatabase(address)
    with store.write() as connection:
        connection.execute(text("UPDATE goldnode_schema SET version = 0"))
    store.close()
    with pytest.raises(StoreError, match="goldnode fleet store migrate"):
        open_store(address)


def test_migration_twice_changes_nothing(store: StoreDatabase) -> None:
    fill(store)
    assert store.run(schema.migrate) == (schema.VERSION, schema.VERSION)
    leave(store, 0)


def tables_of(path: Path) -> str:
    """Return the statements of a SQLite store's tables and indexes."""
    with sqlite3.connect(path) as connection:
        found = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type <> 'trigger' AND name NOT LIKE 'alembic%' ORDER BY name"
        ).fetchall()
    return "".join(f"{row[0]};\n" for row in found)


def test_version_is_what_it_was(migrated: Path) -> None:
    """A store of this version exists at sites: its tables never change, a new version adds to them."""
    assert tables_of(migrated) == frozen(schema.VERSION).read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_earlier_store_is_migrated_with_its_rows(tmp_path: Path, version: int) -> None:
    path = tmp_path / "fleet.db"
    with sqlite3.connect(path) as connection:
        created = frozen(version).read_text(encoding="utf-8")
        connection.executescript(created.replace("CREATE TABLE sqlite_sequence(name,seq);\n", ""))
        connection.execute(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
        )
        connection.execute("INSERT INTO alembic_version VALUES (?)", (f"{version:04}",))
        connection.execute("INSERT INTO goldnode_schema VALUES (1, ?, 1)", (version,))
        connection.execute("INSERT INTO node (name, class) VALUES ('n00', 'l4')")
    store = StoreDatabase(str(path))
    assert store.run(schema.migrate) == (version, schema.VERSION)
    store.close()
    assert tables_of(path) == frozen(schema.VERSION).read_text(encoding="utf-8")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM node").fetchall() == [("n00",)]


@pytest.mark.parametrize("version", VERSIONS)
def test_statements_of_each_version_run_on_these_tables(migrated: Path, version: int) -> None:
    """Services of an earlier version go on while the tables are migrated."""
    with sqlite3.connect(migrated) as connection:
        for statement in statements(version).read_text(encoding="utf-8").split(";\n"):
            if statement.strip():
                connection.execute(f"EXPLAIN {statement}", [None] * statement.count("?"))


def record(directory: Path) -> None:
    """Write both files, for a new version: `python -m tests.unit.fleet.store.test_schema DIRECTORY`."""
    path = directory / "fleet.db"
    store = StoreDatabase(str(path))
    store.run(schema.migrate)
    found: set[str] = set()
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_more: found.add(" ".join(statement.split())),
    )
    use(store)
    store.close()
    frozen(schema.VERSION).write_text(tables_of(path), encoding="utf-8")
    kept = sorted(
        one for one in found if one.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")
    )
    statements(schema.VERSION).write_text("".join(f"{one};\n" for one in kept), encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        record(Path(place))
