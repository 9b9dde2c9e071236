"""Version of the schema, and its migrations.

`goldnode_schema` has the version of the tables and the oldest code that can write them. Code
refuses tables that are too new for it and tables that still need a migration. Migrations only add,
so that the code of one version works with the tables of the next: controllers, services and nodes
are upgraded one after the other.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, select

from goldnode.fleet.store import guards, tables
from goldnode.fleet.store.errors import StoreError

VERSION = 3  # of the tables that this code creates
OLDEST = 1  # code that can write these tables
_MIGRATE = "run `goldnode fleet store migrate`"


def migrate(connection: Connection) -> tuple[int, int]:
    """Create the tables, or migrate them to this code's version. Return the version before and after."""
    before = version(connection)
    if before > VERSION:
        return before, before
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    guards.remove(connection)
    guards.install(connection)
    connection.execute(tables.schema.delete())
    connection.execute(tables.schema.insert().values(one=1, version=VERSION, oldest=OLDEST))
    return before, VERSION


def version(connection: Connection) -> int:
    """Return the version of the tables; 0 for an empty database."""
    versions = _read(connection)
    return versions[0] if versions else 0


def check(connection: Connection) -> None:
    """Raise StoreError unless this code can write the tables."""
    versions = _read(connection)
    if versions is None:
        raise StoreError("the store is empty: it has no tables yet", remedy=_MIGRATE)
    if versions[0] < VERSION:
        raise StoreError(
            f"the store has schema {versions[0]}, and this goldnode needs {VERSION}",
            remedy=f"{_MIGRATE}: services of the previous version go on working",
        )
    if versions[1] > VERSION:
        raise StoreError(
            f"the store has schema {versions[0]}, which code of schema {VERSION} cannot write",
            remedy="upgrade goldnode on this machine",
        )


def _read(connection: Connection) -> tuple[int, int] | None:
    if not inspect(connection).has_table(tables.schema.name):
        return None
    row = connection.execute(select(tables.schema.c.version, tables.schema.c.oldest)).first()
    return (row[0], row[1]) if row else None
