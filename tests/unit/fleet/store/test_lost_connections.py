"""Connections to PostgreSQL that the server has closed: a new one takes their place, and no work runs twice."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text
from tests import postgresql
from tests.unit.fleet.store.fleets import fill, held, leave, wish

from goldnode.fleet.store import database, grants
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreUnavailableError

_NUMBERS = itertools.count()


@pytest.fixture
def store(server: postgresql.Cluster, template: str) -> Iterator[StoreDatabase]:
    found = StoreDatabase(server.create(f"lost_{os.getpid()}_{next(_NUMBERS)}", template))
    fill(found)
    yield found
    found.close()


def end_others(store: StoreDatabase) -> None:
    """End every connection to the database of the store, as a server does that stops."""
    other = StoreDatabase(store.engine.url.render_as_string(hide_password=False))
    with other.read() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    other.close()


def test_a_write_begins_again_where_its_connection_was_lost_before(store: StoreDatabase) -> None:
    leave(store, 0)
    end_others(store)
    leave(store, 1)
    assert held(store) == {"n00": "planned", "n01": "planned"}


def test_a_connection_that_was_idle_is_tried_first(
    store: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(store, 0)
    end_others(store)
    monkeypatch.setattr(database, "_IDLE_SECONDS", -1.0)
    assert held(store) == {"n00": "planned"}


def test_work_that_has_begun_is_not_begun_again(store: StoreDatabase) -> None:
    began = []

    def work(connection: Connection) -> None:
        began.append(grants.grant(connection, wish(0)))
        end_others(store)
        connection.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.run(work)
    assert len(began) == 1
    assert held(store) == {}


def test_a_write_has_the_lock_of_the_ledger_and_a_read_sees_one_moment(
    store: StoreDatabase,
) -> None:
    locks = text(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    )
    with store.write() as connection:
        assert connection.scalar(locks) == 1
    with store.unlocked() as connection:
        assert connection.scalar(locks) == 0
    with store.read() as connection:
        assert connection.scalar(text("SHOW transaction_isolation")) == "repeatable read"
        assert connection.scalar(locks) == 0
