"""DuckDB over the report's data: one view for each table, of whole parts alone."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import compact, expanded
from goldnode.fleet.ingest.present import change_files, check_bases
from goldnode.fleet.ingest.tables import (
    CANARY,
    DIGESTS,
    FACTS,
    FINDINGS,
    NODES,
    NUMBERS,
    SCHEMAS,
    PartName,
    days_around,
    days_between,
    found_parts,
)
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
        rows = _source(directory, CANARY, results)
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
    chosen = _last(connection, directory, parts, limits) if limits.last else parts
    nodes = f"SELECT * FROM ({_stored(directory, NODES, chosen)}) {_where(limits, received=True)}"  # noqa: S608 - names are quoted
    if limits.last:
        nodes = f"SELECT * FROM ({nodes}) SEMI JOIN last_captures USING (node, time)"  # noqa: S608
    connection.execute(f"CREATE VIEW stored_nodes AS {nodes}")
    connection.execute(f"CREATE VIEW nodes AS SELECT {NODE_COLUMNS} FROM stored_nodes")  # noqa: S608 - columns of the table
    near = _with_bases(found_parts(directory), chosen)
    check_bases(connection, directory, near)
    for table in (FACTS, NUMBERS, DIGESTS):
        connection.execute(f"CREATE VIEW stored_{table} AS {_stored(directory, table, near)}")
    connection.execute(f"CREATE VIEW stored_changes AS {_changes(directory, chosen)}")
    findings = f"SELECT * FROM {_source(directory, FINDINGS, chosen)}"  # noqa: S608
    # A part may have captures that arrived later.
    connection.execute(
        f"CREATE VIEW findings AS SELECT * FROM ({findings}) SEMI JOIN stored_nodes USING (node, time)"  # noqa: S608
    )
    for name, select in expanded.views(expanded.DUCKDB_LISTS):
        connection.execute(f"CREATE VIEW {name} AS {select}")


NODE_COLUMNS = ", ".join(
    [*(name for name in SCHEMAS[NODES].names if name not in ("base", "blocks")), "class", "day"]
)


def _stored(directory: Path, table: str, parts: list[PartName]) -> str:
    files = [part.file(directory, table) for part in parts]
    return expanded.stored(expanded.DUCKDB_LISTS, table, files, _source(directory, table, parts))


def _with_bases(found: list[PartName], chosen: list[PartName]) -> list[PartName]:
    """Return the parts of the found ones that can have the bases of captures in the chosen ones."""
    days: dict[str, set[str]] = {}
    for class_, day in {(part.class_, part.day) for part in chosen}:
        days.setdefault(class_, set()).update(days_between(*days_around(day)))
    return [part for part in found if part.day in days.get(part.class_, ())]


def _changes(directory: Path, parts: list[PartName]) -> str:
    """Return the SELECT of the changes in parts. An earlier goldnode wrote no changes."""
    files = change_files(directory, parts)
    if not files:
        return expanded.DUCKDB_LISTS.no_changes.format(day="DATE '2000-01-01'")
    return f"SELECT * FROM {_files([str(file) for file in files])}"  # noqa: S608 - names are quoted


def _source(directory: Path, table: str, parts: list[PartName], filename: bool = False) -> str:
    """Return the table function of the files of one table."""
    return _files([str(part.file(directory, table)) for part in parts], filename)


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
        f"FROM {_files(list(files), filename=True)} {_where(limits, received=True)} GROUP BY node"
    )
    connection.execute(f"CREATE TABLE last_captures AS {newest}")
    last = connection.execute("SELECT DISTINCT file FROM last_captures").fetchall()
    return sorted(files[name] for (name,) in last) or parts[-1:]


def _files(files: list[str], filename: bool = False) -> str:
    """Return the table function of files. Those of an earlier goldnode lack columns, which are null."""
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    columns = (
        "hive_partitioning=true, hive_types={'class': VARCHAR, 'day': DATE}, union_by_name=true"
    )
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
