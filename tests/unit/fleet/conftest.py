"""Fixtures of the tests of fleets."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store on SQLite, to copy."""
    path = tmp_path_factory.mktemp("store") / "fleet.db"
    database = StoreDatabase(str(path))
    database.run(schema.migrate)
    database.close()
    return path
