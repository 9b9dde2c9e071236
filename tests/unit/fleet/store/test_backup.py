"""Backup and restore, within and between the engines."""

from __future__ import annotations

import gzip
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.unit.fleet.store.fleets import (
    ALICE,
    BOB,
    CLASS,
    NOW,
    back,
    counters,
    fill,
    held,
    leave,
    refusal,
    rollout,
)

from goldnode.fleet.rollout.queue import QueuedWork
from goldnode.fleet.store import backup, controllers, log, orders, queue, schema, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreDamagedError, StoreError
from goldnode.fleet.store.orders import Scope


def fill_all(store: StoreDatabase) -> None:
    """Write rows into every table."""
    fill(store)
    controller = rollout(store)
    leave(store, 0, rollout="kernel", boot_id="b1", digest="old")
    back(store, 0, rollout="kernel", boot_id="b2", digest="old")
    store.run(lambda c: orders.approve(c, "kernel", "first", "oncall", BOB))
    earlier = {"rollout": "kernel", "wave": "first", "role": "oncall", "who": BOB.who, "at": NOW}
    store.run(lambda c: c.execute(tables.approval.insert().values(**earlier)))  # by schema 1
    store.run(lambda c: orders.freeze(c, Scope("rack", "r3"), ALICE))
    store.run(lambda c: orders.deny(c, CLASS, "sha256:bad", ALICE))
    asked = queue.NodeAsk(QueuedWork.REPAIR, "Xid 79", "ann", "m/1", "n03")
    store.run(lambda c: queue.ask(c, asked, NOW))
    store.run(lambda c: controller.beat(c, NOW + 1))
    store.run(lambda c: log.seal(c, NOW))


def rows(store: StoreDatabase) -> dict[str, list[Any]]:
    with store.read() as connection:
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
            ]
            for table in tables.metadata.sorted_tables
        }


def test_restore_gives_the_same_store_frozen_with_later_epochs(
    store: StoreDatabase, tmp_path: Path, migrated: Path
) -> None:
    fill_all(store)
    before = rows(store)
    assert all(before.values()), [name for name, found in before.items() if not found]
    backup.backup(store, tmp_path / "backup.gz")
    other = StoreDatabase(str(tmp_path / "other.db"))
    backup.restore(other, tmp_path / "backup.gz", "alice@controller")
    after = rows(other)
    changed = {name for name, found in before.items() if found != after[name]}
    assert changed == {"rollout", "frozen", "log"}
    assert len(after["log"]) == len(before["log"]) + 1
    assert counters(other, "class", CLASS) == (1, 0, 0, 1)
    assert refusal(other, 1) == "frozen"
    assert not held(store).keys() ^ held(other).keys()
    epochs = [
        database.run(lambda c: controllers.take_over(c, "kernel", "x", NOW))
        for database in (store, other)
    ]
    assert epochs[1] == (epochs[0] or 0) + backup.EPOCHS_AHEAD
    other.close()


def test_restore_into_the_same_engine_continues_its_numbers(
    store: StoreDatabase, tmp_path: Path
) -> None:
    """A store on PostgreSQL is filled from one on SQLite: how a site moves."""
    source = StoreDatabase(str(tmp_path / "source.db"))
    source.run(schema.migrate)
    fill_all(source)
    backup.backup(source, tmp_path / "backup.gz")
    backup.restore(store, tmp_path / "backup.gz", "alice@controller")
    store.run(lambda c: orders.unfreeze(c, Scope(), ALICE))
    leave(store, 1)
    store.run(lambda c: log.seal(c, NOW))
    with store.read() as connection:
        assert log.verify(connection).unsealed == 0
        numbers = connection.scalars(select(tables.log.c.seq).order_by(tables.log.c.seq)).all()
    assert list(numbers) == sorted(set(numbers))
    source.close()


@pytest.mark.parametrize("damage", ["cut", "bits", "text", "header", "row", "log"])
def test_damaged_backup_leaves_the_store_empty(
    store: StoreDatabase, tmp_path: Path, damage: str
) -> None:
    source = StoreDatabase(str(tmp_path / "source.db"))
    source.run(schema.migrate)
    fill_all(source)
    file = tmp_path / "backup.gz"
    backup.backup(source, file)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "bits":
        data = file.read_bytes()
        file.write_bytes(data[:40] + bytes(byte ^ 0xFF for byte in data[40:80]) + data[80:])
    elif damage == "header":
        file.write_bytes(
            gzip.compress(b"".join([b'{"format": "goldnode.fleet-backup/1"}\n', *lines[1:]]))
        )
    elif damage == "text":
        file.write_bytes(b"no backup")
    elif damage == "row":
        file.write_bytes(gzip.compress(b"".join(lines[:5] + lines[6:])))
    else:
        changed = b"".join(lines).replace(b'"who":"test"', b'"who":"mallory"')
        file.write_bytes(gzip.compress(changed))
    with pytest.raises(StoreDamagedError if damage == "log" else StoreError):
        backup.restore(store, file, "alice@controller")
    assert not any(found for name, found in rows(store).items() if name != "goldnode_schema")
    source.close()


def test_backup_is_never_open_to_others(
    store: StoreDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Path, "chmod", lambda *_: None
    )  # too late: others may have opened it before
    backup.backup(store, tmp_path / "backup.gz")
    assert stat.S_IMODE((tmp_path / "backup.gz").stat().st_mode) == 0o600


def test_store_that_is_not_empty_is_not_filled(store: StoreDatabase, tmp_path: Path) -> None:
    fill_all(store)
    backup.backup(store, tmp_path / "backup.gz")
    before = rows(store)
    with pytest.raises(StoreError, match="the store is not empty"):
        backup.restore(store, tmp_path / "backup.gz", "alice@controller")
    assert rows(store) == before


def test_counter_that_differs_from_the_holds_is_found(store: StoreDatabase) -> None:
    fill(store)
    leave(store, 0)
    with store.write() as connection:
        connection.execute(
            tables.buffer.update().where(tables.buffer.c.name == "r0").values(planned=0)
        )
    with (
        store.read() as connection,
        pytest.raises(StoreDamagedError, match="the counters of rack r0"),
    ):
        backup.check_counters(connection)
