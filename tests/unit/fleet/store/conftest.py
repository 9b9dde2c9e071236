"""Fixtures of the store's tests: every test that asks for `store` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import postgresql

from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.Cluster]:
    """A private PostgreSQL of this process."""
    reason = postgresql.missing()
    if reason:
        pytest.skip(reason)
    with postgresql.cluster() as found:
        yield found


@pytest.fixture(scope="session")
def template(server: postgresql.Cluster) -> str:
    """The name of a migrated database on PostgreSQL, to copy."""
    name = f"template_{os.getpid()}"
    database = StoreDatabase(server.create(name))
    database.run(schema.migrate)
    database.close()
    return name


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a migrated store without rows, on the engine that `request.param` names."""
    if request.param == "sqlite":
        path = tmp_path / "fleet.db"
        shutil.copy(request.getfixturevalue("migrated"), path)
        return str(path)
    server: postgresql.Cluster = request.getfixturevalue("server")
    return server.create(
        f"store_{os.getpid()}_{next(_NUMBERS)}", request.getfixturevalue("template")
    )


@pytest.fixture
def store(address: str) -> Iterator[StoreDatabase]:
    """An open store without rows."""
    database = StoreDatabase(address)
    yield database
    database.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "address" in metafunc.fixturenames:
        metafunc.parametrize("address", ["sqlite", "postgresql"], indirect=True)
