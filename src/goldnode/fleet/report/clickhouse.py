"""The views in SQL of ClickHouse. `goldnode fleet sql --script clickhouse` prints it.

DuckDB makes the reports; this is for sites whose data one machine does not hold, or that have a
ClickHouse anyway. The tests run it in chdb. The views read the same Parquet files, or tables that
were filled from them.

Another connection than that of the script reads the views, also after a restart of the server.
Thus a view has the settings that it needs in it, and no table is of the engine Memory.
"""
# ruff: noqa: S608  # names of tables and files, quoted; nothing that a request gives

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.expanded import CLICKHOUSE_LISTS
from goldnode.fleet.ingest.tables import CANARY, NODES, ORDER, SCHEMAS, found_parts
from goldnode.fleet.report import frame
from goldnode.fleet.report.frame import Dialect, ReportKeys, ReportSettings, ReportSource, Row

# The characters that a pattern of the function `file` gives a meaning.
_PATTERN = frozenset("*?{}[],")
_TYPES = {
    pa.string(): "Nullable(String)",
    pa.binary(): "Nullable(String)",
    pa.bool_(): "Nullable(Bool)",
    pa.int16(): "Nullable(Int16)",
    pa.int32(): "Nullable(Int32)",
    pa.float64(): "Nullable(Float64)",
    # Without a zone, ClickHouse would show times, and read those of a query, in the zone of the server.
    pa.timestamp("ms"): "Nullable(DateTime64(3, 'UTC'))",
}
# Of each statement that reads: what the views rely on, whatever the reader's settings are.
_SETTINGS = "join_use_nulls = 1, transform_null_in = 0, union_default_mode = 'DISTINCT', use_hive_partitioning = 1"
STORED_PARTS = "stored_parts"  # table: the file names of the parts that readers see
_ROWS = 200  # of one statement: ClickHouse reads 256 KiB of one (max_query_size)
_LISTED = 1000  # names of files of one statement


def columns(table: str) -> dict[str, str]:
    """Return the columns of a table with their types. The blocks of an ingest are left out."""

    def kind(type_: pa.DataType) -> str:
        return f"Array({kind(type_.value_type)})" if pa.types.is_list(type_) else _TYPES[type_]

    return {field.name: kind(field.type) for field in SCHEMAS[table] if field.name != "blocks"}


@dataclass(frozen=True)
class ClickHouseFiles:
    """The Parquet files as ClickHouse reads them: those of a directory, or of a bucket by a named collection."""

    directory: Path
    collection: str | None = None

    def function(self, table: str) -> str:
        """Return the table function of all files of one table. Raise GoldnodeError for a path that is a pattern."""
        # The types: files of an earlier goldnode lack columns, which then are null, and a table may have no file.
        named = {**columns(table), "class": "LowCardinality(String)", "day": "Date"}
        types = frame.literal(", ".join(f'"{name}" {kind}' for name, kind in named.items()))
        names = f"{table}/class=*/day=*/part-*.parquet"
        if self.collection is not None:
            return f"s3({self.collection}, filename = '{names}', format = 'Parquet', structure = {types})"
        if _PATTERN & set(str(self.directory)):
            raise GoldnodeError(
                "ClickHouse reads no files whose path has one of the characters * ? { } [ ] ,",
                file=self.directory,
                remedy="move the captures to another directory",
            )
        return f"file({frame.literal(f'{self.directory.resolve()}/{names}')}, Parquet, {types})"

    def rows(self, paths: Sequence[Path]) -> str:
        """Return the SELECT of the rows of some files of one table: those of some days, of all classes."""
        table = paths[0].parents[2].name
        # ClickHouse opens those files alone whose names are in the table.
        return _of_days(table, self.function(table), "_file", paths)

    def prepare(self) -> Iterator[str]:
        """Yield the statements before the views."""
        yield from _listed(self.directory, STORED_PARTS)


@dataclass(frozen=True)
class ClickHouseTables:
    """Tables of ClickHouse with the rows of the files.

    A load that was ended at any statement is repeated whole. A part is in `loaded_parts` once all of
    its rows are loaded. Readers see the parts in `stored_parts`, which is exchanged in one step.
    """

    files: ClickHouseFiles

    def rows(self, paths: Sequence[Path]) -> str:
        """Return the SELECT of the rows of some files of one table: those of some days, of all classes."""
        table = paths[0].parents[2].name
        return _of_days(table, f"loaded_{table}", "file", paths)

    def prepare(self) -> Iterator[str]:
        """Yield the statements that load the parts which are not loaded yet, and remove those that are no more."""
        for name in ("loaded_parts", STORED_PARTS):
            yield f"CREATE TABLE IF NOT EXISTS {name} (file String) ENGINE = MergeTree ORDER BY file"
        yield from _listed(self.files.directory, "new_parts")
        # Readers have left the parts that the last load replaced: they are not in its list.
        yield f"DELETE FROM loaded_parts WHERE file NOT IN (SELECT file FROM {STORED_PARTS})"
        for table in (*ORDER, CANARY):
            named = {name: _loaded_type(table, name, kind) for name, kind in columns(table).items()}
            types = ", ".join(f'"{name}" {kind}' for name, kind in named.items())
            yield (
                f"CREATE TABLE IF NOT EXISTS loaded_{table} "
                f"({types}, class LowCardinality(String), day Date, file LowCardinality(String)) "
                f"ENGINE = MergeTree PARTITION BY day ORDER BY ({', '.join(_sorted(table))})"
            )
            yield f"DELETE FROM loaded_{table} WHERE file NOT IN (SELECT file FROM loaded_parts)"
            listed = ", ".join(f'"{name}"' for name in named)
            yield (
                f"INSERT INTO loaded_{table} ({listed}, class, day, file) "
                f"SELECT {listed}, class, day, _file FROM {self.files.function(table)} "
                "WHERE _file IN (SELECT file FROM new_parts WHERE file NOT IN (SELECT file FROM loaded_parts)) "
                # A first load has more days than the 100 that a statement may write to.
                "SETTINGS max_partitions_per_insert_block = 0"
            )
        yield (
            "INSERT INTO loaded_parts SELECT file FROM new_parts "
            "WHERE file NOT IN (SELECT file FROM loaded_parts)"
        )
        yield f"EXCHANGE TABLES new_parts AND {STORED_PARTS}"


def _of_days(table: str, rows: str, file: str, paths: Sequence[Path]) -> str:
    days = sorted(path.parent.name.removeprefix("day=") for path in paths)
    names = ", ".join(f'"{name}"' for name in columns(table))
    return (
        f"(SELECT {names}, class, day FROM {rows} "
        f"WHERE day BETWEEN '{days[0]}' AND '{days[-1]}' AND {file} IN (SELECT file FROM {STORED_PARTS}))"
    )


def _sorted(table: str) -> list[str]:
    """Return the columns that the rows of a table are sorted by: those of its Parquet files."""
    return [name for name in ("key", "node", "time") if name in SCHEMAS[table].names]


# Columns of few values.
_FEW = (
    *(
        "key",
        "fault",
        "status",
        "cohort",
        "class_digest",
        "lock_digest",
        "engine",
        "source",
        "precision",
    ),
    *(
        "outcome",
        "severity",
        "domain",
        "section",
        "platform",
        "runner",
        "image",
        "how",
        "job",
        "state",
    ),
    *("metric", "unit", "better", "quantile"),
)


def _loaded_type(table: str, name: str, kind: str) -> str:
    """Return the type of a column of a loaded table: ClickHouse sorts by no column that can be null."""
    if name in _sorted(table):
        kind = kind.removeprefix("Nullable(").removesuffix(")")
    return f"LowCardinality({kind})" if name in _FEW else f"{kind} CODEC(ZSTD(3))"


def _select(columns: Sequence[str], rows: Sequence[Row]) -> str:
    return frame.values(columns, rows, _COLUMNS, frame.literal)


_COLUMNS = {"text": "Nullable(String)", "int": "Int32", "float": "Float64"}


def dialect(rows: Callable[[Sequence[Path]], str]) -> Dialect:
    """Return how ClickHouse reads: `rows` returns the SELECT of the rows of files."""
    return Dialect(
        types=_COLUMNS,
        file_table=rows,
        quote=frame.literal,
        seconds="(toUnixTimestamp64Milli({}) / 1000.0)",
        flag="CAST({} AS Nullable(Int32))",
        lists=CLICKHOUSE_LISTS,
    )


def statements(
    source: ReportSource,
    settings: ReportSettings,
    keys: ReportKeys,
    more: Path | None = None,
    *,
    load: bool = False,
) -> Iterator[str]:
    """Yield the statements that create all views of a report. `keys` are those of the files (engine.keys_of).

    They can be run again, and replace those of an earlier report.

    :param load: load the files into tables, and read these.
    """
    files = frame.parts(source, settings)
    stored = ClickHouseFiles(source.directory, source.collection)
    reader = ClickHouseTables(stored) if load else stored
    clickhouse = dialect(reader.rows)
    for statement in frame.prelude("clickhouse").split(";\n"):
        if statement.strip():
            yield statement.strip()
    yield f"SET {_SETTINGS}"
    yield from reader.prepare()
    for name, select in frame.stored_views(source, settings, clickhouse):
        yield _view(name, select)
    yield _view(
        "captures", frame.captures_view(clickhouse, clickhouse.file_table(files[NODES]), settings)
    )
    results = clickhouse.file_table(files[CANARY]) if files[CANARY] else None
    yield _view("results", frame.results_view(clickhouse, results, settings))
    row = ", ".join(
        f"CAST({value!r} AS Float64) AS {name}"
        for name, value in frame.settings_row(settings).items()
    )
    yield _view("settings", f"SELECT {row}")
    for name, (named, rows) in frame.reference(source, settings, keys).items():
        yield _table(name, _select(named, rows[:_ROWS]))
        for first in range(_ROWS, len(rows), _ROWS):
            yield f"INSERT INTO {name} {_select(named, rows[first : first + _ROWS])}"
    for name, select in frame.watched_views(source, settings, keys, clickhouse):
        yield _view(name, select)
    for view in frame.views(more):
        yield _table(view.name, view.text) if view.stored else _view(view.name, view.text)


def _view(name: str, select: str) -> str:
    # Around the whole: settings after a UNION would be those of its last SELECT alone.
    return f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM ({select}) SETTINGS {_SETTINGS}"


def _table(name: str, select: str) -> str:
    return f"CREATE OR REPLACE TABLE {name} ENGINE = MergeTree ORDER BY tuple() AS {select}"


def _listed(directory: Path, name: str) -> Iterator[str]:
    """Yield the statements that make a table of the files of all parts that readers see."""
    parts = {part for table in (NODES, CANARY) for part in found_parts(directory, table)}
    files = sorted(f"('part-{part.id}.parquet')" for part in parts)
    yield f"CREATE OR REPLACE TABLE {name} (file String) ENGINE = MergeTree ORDER BY file"
    for first in range(0, len(files), _LISTED):
        yield f"INSERT INTO {name} VALUES {', '.join(files[first : first + _LISTED])}"
