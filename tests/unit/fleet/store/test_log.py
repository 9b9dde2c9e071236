"""The log: append-only, sealed, and verified; whoever changes a line is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from tests.unit.fleet.store.fleets import NOW, back, fill, leave

from goldnode.fleet.store import guards, log
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreDamagedError


def fill_log(store: StoreDatabase, key: Path | None = None) -> None:
    """Write some lines with two heads."""
    fill(store)
    store.run(lambda c: log.seal(c, NOW, key))
    leave(store, 0)
    back(store, 0)
    store.run(lambda c: log.seal(c, NOW, key))


def tamper(store: StoreDatabase, statement: str) -> None:
    """Run a statement as an owner of the database who drops the guards."""

    def work(connection: Connection) -> None:
        guards.remove(connection)
        connection.execute(text(statement))
        guards.install(connection)

    store.run(work)


def test_log_as_written_verifies(store: StoreDatabase, keys: tuple[Path, Path]) -> None:
    fill_log(store, keys[0])
    leave(store, 1)
    with store.read() as connection:
        assert log.verify(connection, keys[1]) == log.LogVerdict(
            sealed=3, unsealed=1, heads=2, signed=2
        )


def test_nothing_new_is_not_sealed_again(store: StoreDatabase) -> None:
    fill_log(store)
    assert store.run(lambda c: log.seal(c, NOW)) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET who = 'mallory' WHERE seq = 2",
        "UPDATE log SET at = at + 1 WHERE seq = 1",
        "DELETE FROM log WHERE seq = 2",
        "DELETE FROM log_head WHERE seq = 1",
        "UPDATE log_head SET digest = '" + "0" * 64 + "' WHERE seq = 1",
    ],
)
def test_changed_log_is_found(store: StoreDatabase, statement: str) -> None:
    fill_log(store)
    tamper(store, statement)
    with store.read() as connection, pytest.raises(StoreDamagedError, match="the log was changed"):
        log.verify(connection)


def test_head_that_was_computed_again_needs_the_key(
    store: StoreDatabase, keys: tuple[Path, Path]
) -> None:
    fill_log(store, keys[0])
    tamper(store, "UPDATE log SET who = 'mallory' WHERE seq = 3")
    tamper(store, "DELETE FROM log_head WHERE seq = 3")
    store.run(lambda c: log.seal(c, NOW))  # without the key
    with store.read() as connection:
        log.verify(connection)
        with pytest.raises(StoreDamagedError, match="is not signed"):
            log.verify(connection, keys[1])


def test_signature_of_another_head_is_refused(
    store: StoreDatabase, keys: tuple[Path, Path]
) -> None:
    fill_log(store, keys[0])
    tamper(
        store,
        "UPDATE log_head SET envelope = (SELECT envelope FROM log_head WHERE seq = 1) WHERE seq = 3",
    )
    with (
        store.read() as connection,
        pytest.raises(StoreDamagedError, match="differs from what was signed"),
    ):
        log.verify(connection, keys[1])
