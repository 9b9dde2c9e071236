"""DuckDB over the report's data: one view for each table, of whole parts alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.tables import NODES, ORDER, PartName, found_parts

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
    """Return a connection with the views nodes, findings, facts, numbers and digests. It cannot change the files.

    With `at`, the views hold what was stored at that time: captures of later times, and those that arrived later,
    are left out. Raise GoldnodeError for a directory without data.
    """
    import duckdb  # missing without the extra

    limits = limits or ReadLimits()
    parts = _within(found_parts(directory), limits)
    connection = duckdb.connect(":memory:")
    connection.execute(
        f"SET memory_limit='{limits.memory}'; SET threads={limits.threads}; SET TimeZone='UTC'"
    )
    if parts and limits.at is not None:
        # All rows of a part arrived at one time.
        files = {str(part.file(directory, NODES)): part for part in parts}
        found = connection.execute(
            f"SELECT filename, any_value(received) <= ?::TIMESTAMP FROM {_source(list(files))} GROUP BY filename",  # noqa: S608
            [_naive(limits.at)],
        ).fetchall()
        parts = sorted(files[name] for name, arrived in found if arrived)
    if not parts:
        raise GoldnodeError(
            "no captures of this time are stored here",
            file=directory,
            remedy="run `goldnode fleet ingest` first, or give another time",
        )
    where = _where(limits)
    if limits.last:
        parts = _last(connection, directory, parts, where)
        where = "WHERE (node, time) IN (SELECT node, time FROM last_captures)"
    for table in (NODES, *ORDER[:-1]):
        source = _source([str(part.file(directory, table)) for part in parts])
        rows = f"SELECT * EXCLUDE (filename) FROM {source} {where}"  # noqa: S608 - names are quoted
        connection.execute(f"CREATE VIEW {table} AS {rows}")
    return connection


def _last(
    connection: duckdb.DuckDBPyConnection, directory: Path, parts: list[PartName], where: str
) -> list[PartName]:
    """Create the table of the last capture of each node; return the parts that have one of them."""
    files = {str(part.file(directory, NODES)): part for part in parts}
    newest = f"SELECT node, max(time) AS time, arg_max(filename, time) AS file FROM {_source(list(files))} {where} GROUP BY node"  # noqa: S608
    connection.execute(f"CREATE TABLE last_captures AS {newest}")
    found = connection.execute("SELECT DISTINCT file FROM last_captures").fetchall()
    return sorted(files[name] for (name,) in found) or parts[-1:]


def _source(files: list[str]) -> str:
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    columns = "hive_partitioning=true, hive_types={'class': VARCHAR, 'day': DATE}, filename=true"
    return f"read_parquet([{listed}], {columns})"


def _within(parts: list[PartName], limits: ReadLimits) -> list[PartName]:
    """Return the parts of the days within the limits."""
    first = limits.since.astimezone(UTC).strftime("%Y-%m-%d") if limits.since else ""
    last = limits.at.astimezone(UTC).strftime("%Y-%m-%d") if limits.at else "9999"
    return [part for part in parts if first <= part.day <= last]


def _where(limits: ReadLimits) -> str:
    bounds = [
        f"time {sign} TIMESTAMP '{_naive(time).isoformat(sep=' ')}'"
        for sign, time in (("<=", limits.at), (">=", limits.since))
        if time is not None
    ]
    return f"WHERE {' AND '.join(bounds)}" if bounds else ""


def _naive(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(tzinfo=None)
