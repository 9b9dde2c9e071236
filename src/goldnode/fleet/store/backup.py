"""Backup and restore: one file for both engines, so that a store can also move from SQLite to PostgreSQL.

The file is gzip-compressed JSON lines: a header, then every row of every table from one consistent
view. A restore fills an empty store in one transaction, verifies the log and the counters, and
freezes the fleet: grants made after the backup are not in it, so a person compares the nodes first.
"""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from goldnode.core.files import replace_file
from goldnode.fleet.store import guards, log, orders, schema, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreDamagedError, StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.log import LogVerdict

FORMAT = "goldnode.fleet-backup/1"
_BATCH = 500  # rows of one statement
# A controller of the time after the backup may have a later epoch than the backup: its writes must stay refused.
EPOCHS_AHEAD = 1000


@dataclass(frozen=True)
class BackupSummary:
    """Rows of a backup by table, and the verdict of its log."""

    rows: dict[str, int]
    log: LogVerdict


def backup(store: StoreDatabase, file: Path, public_key: Path | None = None) -> BackupSummary:
    """Write all rows to a file. Raise StoreDamagedError if the log does not verify: the file is not written."""
    with store.read() as connection:
        schema.check(connection)
        verdict = log.verify(connection, public_key)
        rows: dict[str, int] = {}
        lines = [
            _line({"format": FORMAT, "version": schema.version(connection), "at": time.time()})
        ]
        for table, row in _rows(connection):
            rows[table] = rows.get(table, 0) + 1
            lines.append(_line({"table": table, "row": row}))
        lines.append(_line({"end": rows}))
    # Not for others: the log has who gave which order.
    replace_file(file, gzip.compress(b"".join(lines), mtime=0), 0o600)
    return BackupSummary(rows, verdict)


def restore(
    store: StoreDatabase, file: Path, who: str, public_key: Path | None = None
) -> BackupSummary:
    """Fill an empty store from a backup, and freeze the fleet. Any error leaves the store empty."""
    header, rows = _read(file)
    if header["version"] > schema.VERSION:
        raise StoreError(
            f"the backup has schema {header['version']}, which this goldnode (schema {schema.VERSION}) cannot read",
            file=file,
            remedy="restore it with the goldnode that wrote it, or a later one",
        )

    def fill(connection: Connection) -> BackupSummary:
        schema.migrate(connection)
        if connection.scalar(select(func.count()).select_from(tables.log)):
            raise StoreError(
                "the store is not empty",
                file=store.name,
                remedy="restore into another file or database",
            )
        # The guards judge changes, and rows of a backup are none; log and counters are verified
        # below.
        guards.remove(connection)
        for name, batch in _batches(rows):
            connection.execute(tables.metadata.tables[name].insert(), batch)
        connection.execute(
            tables.rollout.update().values(epoch=tables.rollout.c.epoch + EPOCHS_AHEAD)
        )
        _renumber(connection)
        guards.install(connection)
        verdict = log.verify(connection, public_key)
        check_counters(connection)
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(header["at"]))
        order = PersonsOrder(
            who,
            time.time(),
            f"restored from a backup of {at}: compare the nodes with the store, then unfreeze",
        )
        orders.freeze(connection, orders.Scope(), order)
        counts: dict[str, int] = {}
        for name, _ in rows:
            counts[name] = counts.get(name, 0) + 1
        return BackupSummary(counts, verdict)

    return store.run(fill)


def check_counters(connection: Connection) -> None:
    """Raise StoreDamagedError unless every counter equals what the holds add up to."""
    hold, node = tables.hold, tables.node
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    query = select(hold.c.node, hold.c.kind, *(node.c[scope] for scope in tables.SCOPES)).join(
        node, node.c.name == hold.c.node
    )
    for row in connection.execute(query).mappings():
        for scope in tables.SCOPES:
            if row[scope]:
                counters = wanted.setdefault(
                    (scope, row[scope]), {"planned": 0, "failed": 0, "person": 0, "nodes": set()}
                )
                counters[row["kind"]] += 1
                counters["nodes"].add(row["node"])
    for stored in connection.execute(select(tables.buffer)).mappings():
        counted = wanted.pop((stored["scope"], stored["name"]), {"nodes": ()})
        for kind in ("planned", "failed", "person"):
            if stored[kind] != counted.get(kind, 0) or stored["total"] != len(counted["nodes"]):
                raise StoreDamagedError(
                    f"the counters of {stored['scope']} {stored['name']} do not match its holds",
                    remedy="restore a backup: `goldnode fleet store restore FILE`",
                )
    if wanted:
        scope, name = min(wanted)
        raise StoreDamagedError(
            f"{scope} {name} has holds and no counters",
            remedy="restore a backup: `goldnode fleet store restore FILE`",
        )


def _rows(connection: Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    for table in tables.metadata.sorted_tables:
        if table is not tables.schema:
            for row in connection.execute(select(table).order_by(*table.primary_key)).mappings():
                yield table.name, dict(row)


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _read(file: Path) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Return the header and the rows of a backup. Raise StoreError for a file that is none, or is cut short."""
    problem = StoreError(
        "this is no backup of a store, or it is cut short", file=file, remedy="use another copy"
    )
    try:
        lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        header, *content, end = lines
        rows = [(str(line["table"]), dict(line["row"])) for line in content]
        if header["format"] != FORMAT or sum(end["end"].values()) != len(rows):
            raise problem
        if not isinstance(header["version"], int) or not isinstance(header["at"], int | float):
            raise problem
    except (
        zlib.error,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        gzip.BadGzipFile,
    ) as cause:
        raise problem from cause
    return header, [(name, row) for name, row in rows if name in tables.metadata.tables]


def _batches(
    rows: list[tuple[str, dict[str, Any]]],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the rows in batches of one table, in order."""
    batch: list[dict[str, Any]] = []
    last = ""
    for name, row in rows:
        if batch and (name != last or len(batch) == _BATCH):
            yield last, batch
            batch = []
        last = name
        batch.append(row)
    if batch:
        yield last, batch


def _renumber(connection: Connection) -> None:
    """Let PostgreSQL number new rows after the restored ones. SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table, key in (
        ("log", "seq"),
        ("observation", "seq"),
        ("denied", "seq"),
        ("request", "id"),
    ):
        connection.exec_driver_sql(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{key}'), "  # noqa: S608 - constants
            f"GREATEST((SELECT max({key}) FROM {table}), 1), EXISTS (SELECT 1 FROM {table}))"
        )
