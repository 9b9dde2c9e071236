"""Command `goldnode fleet store`: migrations, backup, restore, verification."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from goldnode.commands.fleet.common import STORE, address, key_file, opened
from goldnode.commands.options import FILE, NEW_FILE
from goldnode.commands.output import emit, reports
from goldnode.core import extras
from goldnode.core.site import load_site


@click.group(no_args_is_help=True)
def store() -> None:
    """Migrate, copy, restore and verify the store."""


@store.command()
@STORE
@reports("fleet-store")
def migrate(where: str | None, form: str) -> None:
    """Create the tables of the store, or update them to this version.

    Migrations only add: services of the previous version go on working.
    """
    extras.require("fleet")
    from goldnode.fleet.store import schema  # sqlalchemy: only the extra `fleet` installs it
    from goldnode.fleet.store.database import StoreDatabase

    # Not `opened`, which refuses a store of another schema.
    database = StoreDatabase(address(where, load_site()))
    try:
        before, after = database.run(schema.migrate)
    finally:
        database.close()
    text = f"the store has schema {after}" + (
        "" if before == after else f", before: {before or 'none'}"
    )
    emit(form, {"before": before, "after": after, "store": database.name}, text)


@store.command()
@click.argument("file", type=NEW_FILE, metavar="FILE")
@STORE
@reports("fleet-store-backup")
def backup(file: Path, where: str | None, form: str) -> None:
    """Copy the store to a file, while services run.

    The log is sealed and verified first. The file restores into SQLite and into PostgreSQL.
    """
    site = load_site()
    with opened(where) as database:
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.store import backup as copies
        from goldnode.fleet.store import log

        # Lines that are not sealed would be in the backup and could not be verified.
        database.run(
            lambda connection: log.seal(connection, time.time(), key_file(site, "signing_key"))
        )
        done = copies.backup(database, file, key_file(site, "public_key"))
    emit(
        form,
        {"file": file, "rows": done.rows, "log": asdict(done.log)},
        f"wrote {sum(done.rows.values())} rows to {file}; {done.log.sealed} lines of the log verified",
    )


@store.command()
@click.argument("file", type=FILE, metavar="FILE")
@STORE
@reports("fleet-store-backup")
def restore(file: Path, where: str | None, form: str) -> None:
    """Copy a backup into an empty store, and freeze the fleet.

    The log is verified. Grants made after the backup are not in it: compare the nodes with `goldnode fleet status`,
    then run `goldnode fleet unfreeze --all`.
    """
    extras.require("fleet")
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.shared.person import person
    from goldnode.fleet.store import backup as copies
    from goldnode.fleet.store.database import StoreDatabase

    site = load_site()
    # Not `opened`: the store is empty, and the backup creates its tables.
    database = StoreDatabase(address(where, site))
    try:
        done = copies.restore(database, file, person(), key_file(site, "public_key"))
    finally:
        database.close()
    emit(
        form,
        {"file": file, "rows": done.rows, "log": asdict(done.log)},
        f"restored {sum(done.rows.values())} rows; {done.log.sealed} lines of the log verified. The fleet is frozen: "
        "compare the nodes, then run `goldnode fleet unfreeze --all`",
    )


@store.command()
@STORE
@reports("fleet-store-verify")
def verify(where: str | None, form: str) -> None:
    """Verify the log against its sealed heads, and the counters against the holds.

    Exit status: 0 all is as it was written, 2 something was changed.
    """
    site = load_site()
    with opened(where) as database, database.read() as connection:
        from goldnode.fleet.store import log  # sqlalchemy: only the extra `fleet` installs it
        from goldnode.fleet.store.backup import check_counters

        verified = log.verify(connection, key_file(site, "public_key"))
        check_counters(connection)
    emit(
        form,
        asdict(verified),
        f"{verified.sealed} lines match {verified.heads} heads, {verified.signed} of them with a verified signature; "
        f"{verified.unsealed} lines are not sealed yet",
    )
