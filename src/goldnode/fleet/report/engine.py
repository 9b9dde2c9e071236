"""The views in DuckDB."""
# ruff: noqa: S608  # names of tables and files, quoted; nothing that a request gives

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.compact import lock_for_reading
from goldnode.fleet.ingest.expanded import DUCKDB_LISTS
from goldnode.fleet.ingest.present import check_bases
from goldnode.fleet.ingest.tables import CANARY, FACTS, FINDINGS, NODES, NUMBERS, found_parts
from goldnode.fleet.report import frame
from goldnode.fleet.report.frame import (
    Dialect,
    ReportKeys,
    ReportSettings,
    ReportSource,
    ReportView,
    Row,
    Value,
)

if TYPE_CHECKING:
    import duckdb

# Views of the captures of a report that others read several times: their files have those of a week. All are small.
_TABLES = ("stored_nodes", f"replaced_{FACTS}", f"replacing_{FACTS}")
MEMORY, THREADS = "700MB", 2  # of DuckDB, which takes 80 % of the memory and all cores by itself


def quoted(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return frame.literal(value)


def _files(paths: Sequence[Path]) -> str:
    listed = ", ".join(quoted(str(path)) for path in paths)
    columns = "hive_partitioning=true, hive_types={'class': VARCHAR, 'day': VARCHAR}"
    # Files of an earlier goldnode lack columns.
    return f"read_parquet([{listed}], {columns}, union_by_name=true)"


DUCKDB = Dialect(
    types={"text": "VARCHAR", "int": "INTEGER", "float": "DOUBLE"},
    file_table=_files,
    quote=quoted,
    seconds="(epoch_ms({}) / 1000.0)",
    flag="CAST({} AS INTEGER)",
    lists=DUCKDB_LISTS,
)


def select_rows(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a SELECT of rows. A chain of UNION ALL takes DuckDB minutes for 10,000."""
    if not rows:
        return frame.values(columns, rows, DUCKDB.types, quoted)
    named = [column.split() for column in columns]
    casts = ", ".join(f"CAST({name} AS {DUCKDB.types[kind]}) AS {name}" for name, kind in named)
    listed = ", ".join(f"({', '.join(map(quoted, row))})" for row in rows)
    return (
        f"SELECT {casts} FROM (VALUES {listed}) AS listed({', '.join(name for name, _ in named)})"
    )


@contextmanager
def opened(
    source: ReportSource,
    settings: ReportSettings,
    more: Path | None = None,
    narrow: bool = False,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with all views of a report. It cannot change the files.

    :param narrow: the tables of facts, numbers and digests have the captures alone that goldnode's views read them of.

    Views of the directory `more` follow goldnode's. Raise GoldnodeError for a view that DuckDB
    refuses, also where it is used within the block, and for a file that cannot be read: it is
    damaged, or `prune` has removed it meanwhile.
    """
    import duckdb  # only the extra installs it

    connection = duckdb.connect(":memory:")
    holding = lock_for_reading(source.directory)
    try:
        files = frame.parts(source, settings)
        connection.execute(
            f"SET memory_limit='{MEMORY}'; SET threads={THREADS}; SET TimeZone='UTC'"
        )
        connection.execute(frame.prelude("duckdb"))
        # Read-only shells may open these files alone.
        connection.execute("CREATE TABLE report_files (file VARCHAR)")
        connection.executemany(
            "INSERT INTO report_files VALUES (?)",
            [[str(one)] for each in files.values() for one in each],
        )
        captures = frame.captures_view(DUCKDB, _files(files[NODES]), settings)
        connection.execute(f"CREATE VIEW captures AS {captures}")
        results = frame.results_view(
            DUCKDB, _files(files[CANARY]) if files[CANARY] else None, settings
        )
        connection.execute(f"CREATE VIEW results AS {results}")
        row = ", ".join(
            f"CAST({value!r} AS DOUBLE) AS {name}"
            for name, value in frame.settings_row(settings).items()
        )
        connection.execute(f"CREATE TABLE settings AS SELECT {row}")
        if narrow:
            connection.execute(f"CREATE TABLE wanted AS {frame.wanted_captures()}")
        wanted = "wanted" if narrow else None
        for name, select in frame.stored_views(source, settings, DUCKDB, wanted):
            kind = "TABLE" if narrow and name in _TABLES else "VIEW"
            connection.execute(f"CREATE {kind} {name} AS {select}")
        check_bases(connection, source.directory, found_parts(source.directory))
        keys = keys_of(connection)
        for name, (columns, rows) in frame.reference(source, settings, keys).items():
            connection.execute(f"CREATE TABLE {name} AS {select_rows(columns, rows)}")
        for name, select in frame.watched_views(source, settings, keys, DUCKDB):
            connection.execute(f"CREATE VIEW {name} AS {select}")
        for view in frame.views(more):
            _create(connection, view)
        yield connection
    except duckdb.Error as problem:
        raise GoldnodeError(
            f"DuckDB: {first_line(problem)}",
            file=source.directory,
            remedy="run it again; if a file is damaged, put it back from a copy, or move its part away",
        ) from None
    finally:
        connection.close()
        if holding is not None:
            os.close(holding)


def keys_of(connection: duckdb.DuckDBPyConnection) -> ReportKeys:
    """Return the keys and findings that the files have."""

    def column(name: str, table: str, where: str = "true") -> list[str]:
        query = f"SELECT DISTINCT {name} FROM {table} WHERE {name} IS NOT NULL AND {where}"
        return [row[0] for row in connection.execute(query).fetchall()]

    changes, some = "stored_changes", 'len("{}") > 0'
    facts = {*column("key", f"stored_{FACTS}"), *column("key", changes, some.format("texts"))}
    numbers = {*column("key", f"stored_{NUMBERS}"), *column("key", changes, some.format("values"))}
    return ReportKeys(sorted(facts), sorted(numbers), column("id", FINDINGS))


def _create(connection: duckdb.DuckDBPyConnection, view: ReportView) -> None:
    import duckdb  # only the extra installs it

    kind = "TEMP TABLE" if view.stored else "VIEW"
    try:
        connection.execute(f"CREATE {kind} {view.name} AS {view.text}")
    except duckdb.Error as problem:
        raise GoldnodeError(
            f"DuckDB refuses the view {view.name}: {first_line(problem)}",
            remedy=f"correct {view.file}; `goldnode fleet sql` shows the tables that views can use",
        ) from None


def rows(connection: duckdb.DuckDBPyConnection, view: str) -> list[dict[str, Any]]:
    """Return the rows of a view, in the order of their values."""
    cursor = connection.execute(f"SELECT * FROM {view} ORDER BY ALL")
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def first_line(problem: Exception) -> str:
    """Return DuckDB's reason, without the excerpt of the statement."""
    return str(problem).partition("\n")[0]
