"""DuckDB over the report's data: one view for each table, of whole parts alone."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.tables import NODES, ORDER, SCHEMAS, found_parts

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_SQL = {"string": "VARCHAR", "timestamp[ms]": "TIMESTAMP_MS", "double": "DOUBLE", "bool": "BOOLEAN"}


def connect(
    directory: Path, *, at: datetime | None = None, memory: str = "700MB", threads: int = 2
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views nodes, findings, facts, numbers and digests. It cannot change the files.

    With `at`, the views hold what was stored at that time: captures of later times, and those that arrived later,
    are left out. Raise GoldnodeError for a directory without data.
    """
    import duckdb  # an installation without the extra has none

    parts = found_parts(directory)
    if not parts:
        raise GoldnodeError(
            "no captures are stored here", file=directory, remedy="run `goldnode fleet ingest` first"
        )
    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit='{memory}'; SET threads={threads}; SET TimeZone='UTC'")
    for table in (NODES, *ORDER[:-1]):
        files = [str(part.file(directory, table)) for part in parts]
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        source = (
            f"read_parquet([{listed}], hive_partitioning=true, hive_types={{'class': VARCHAR, 'day': DATE}})"
        )
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {source} {_until(table, at)}")
    return connection


def _until(table: str, at: datetime | None) -> str:
    if at is None:
        return ""
    limit = f"TIMESTAMP '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}'"
    if table == NODES:
        return f"WHERE time <= {limit} AND received <= {limit}"
    return f"WHERE time <= {limit} AND (node, time) IN (SELECT (node, time) FROM {NODES})"
