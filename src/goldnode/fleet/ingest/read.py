"""DuckDB over the report's data: one view for each table, of whole parts alone."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import compact
from goldnode.fleet.ingest.tables import CANARY, NODES, ORDER, PartName, found_parts
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class ReadLimits:
    """Time and size of what is read. `at` and `since` bound the time of captures; `at` that of their arrival too.

    `last`: only the last capture of each node.
    """

    at: datetime | None = None
    since: datetime | None = None
    memory: str = "700MB"
    threads: int = 2
    last: bool = False


def connect(directory: Path, limits: ReadLimits | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views nodes, findings, facts, numbers and digests, and canary if there are results.

    With `at`, the views hold what was stored at that time: captures of later times, and those that
    arrived later, are left out. Raise GoldnodeError for a directory without data.
    """
    import duckdb  # missing without the extra

    limits = limits or ReadLimits()
    handle = compact.lock_for_reading(directory)
    connection = duckdb.connect(":memory:")
    if handle is not None:
        # Replaced files stay as long as the connection.
        weakref.finalize(connection, os.close, handle)
    parts = _within(found_parts(directory), limits)
    connection.execute(
        f"SET memory_limit='{limits.memory}'; SET threads={limits.threads}; SET TimeZone='UTC'"
    )
    if parts:
        _views(connection, directory, parts, limits)
    # All rows are read: DuckDB 2.0 refuses a query by `sql` while a result of the connection is open.
    if not parts or not connection.execute("SELECT 1 FROM nodes LIMIT 1").fetchall():
        raise GoldnodeError(
            "no captures of this time are stored here",
            file=directory,
            remedy="run `goldnode fleet ingest` first, or give another time",
        )
    results = _within(found_parts(directory, CANARY), limits)
    if results:
        rows = _source([str(part.file(directory, CANARY)) for part in results])
        connection.execute(
            f"CREATE VIEW canary AS SELECT * FROM {rows} {_where(limits, received=True)}"  # noqa: S608
        )
    return connection


def _views(
    connection: duckdb.DuckDBPyConnection,
    directory: Path,
    parts: list[PartName],
    limits: ReadLimits,
) -> None:
    if limits.last:
        parts = _last(connection, directory, parts, limits)
    for table in (NODES, *ORDER[:-1]):
        source = _source([str(part.file(directory, table)) for part in parts])
        rows = f"SELECT * FROM {source} {_where(limits, received=table == NODES)}"  # noqa: S608 - names are quoted
        if limits.last:
            rows = f"SELECT * FROM ({rows}) SEMI JOIN last_captures USING (node, time)"  # noqa: S608
        elif limits.at is not None and table != NODES:
            # A part may have captures that arrived later.
            rows = f"SELECT * FROM ({rows}) SEMI JOIN nodes USING (node, time)"  # noqa: S608
        connection.execute(f"CREATE VIEW {table} AS {rows}")


def _last(
    connection: duckdb.DuckDBPyConnection,
    directory: Path,
    parts: list[PartName],
    limits: ReadLimits,
) -> list[PartName]:
    """Create the table of the last capture of each node; return the parts that have one of them."""
    files = {str(part.file(directory, NODES)): part for part in parts}
    newest = (
        "SELECT node, max(time) AS time, arg_max(filename, time) AS file "  # noqa: S608
        f"FROM {_source(list(files), filename=True)} {_where(limits, received=True)} GROUP BY node"
    )
    connection.execute(f"CREATE TABLE last_captures AS {newest}")
    last = connection.execute("SELECT DISTINCT file FROM last_captures").fetchall()
    return sorted(files[name] for (name,) in last) or parts[-1:]


def _source(files: list[str], filename: bool = False) -> str:
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    columns = "hive_partitioning=true, hive_types={'class': VARCHAR, 'day': DATE}"
    return f"read_parquet([{listed}], {columns}{', filename=true' if filename else ''})"


def _within(parts: list[PartName], limits: ReadLimits) -> list[PartName]:
    """Return the parts of the days within the limits."""
    first = limits.since.astimezone(UTC).strftime("%Y-%m-%d") if limits.since else ""
    last = limits.at.astimezone(UTC).strftime("%Y-%m-%d") if limits.at else "9999"
    return [part for part in parts if first <= part.day <= last]


def _where(limits: ReadLimits, received: bool = False) -> str:
    bounds = [
        f"time {sign} TIMESTAMP '{_naive(time).isoformat(sep=' ')}'"
        for sign, time in (("<=", limits.at), (">=", limits.since))
        if time is not None
    ]
    if received and limits.at is not None:
        bounds.append(f"received <= TIMESTAMP '{_naive(limits.at).isoformat(sep=' ')}'")
    return phrase("WHERE {}", " AND ".join(bounds))


def _naive(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(tzinfo=None)
