"""The views in SQL of ClickHouse, over the same Parquet files. `goldnode fleet sql --script clickhouse` prints it.

DuckDB makes the reports; this is for sites that read the files with ClickHouse. The tests run it in
chdb.
"""
# names of tables and files, quoted; nothing that a request gives

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.expanded import CLICKHOUSE_LISTS
from goldnode.fleet.ingest.tables import CANARY, NODES
from goldnode.fleet.report import frame
from goldnode.fleet.report.frame import Dialect, ReportKeys, ReportSettings, ReportSource, Row

# The characters that a pattern of the function `file` gives a meaning.
_PATTERN = frozenset("*?{}[],")


def _files(paths: Sequence[Path]) -> str:
    """Return the table function for some files of one table: those of some classes and days."""
    if any(_PATTERN & set(str(path)) for path in paths):
        raise GoldnodeError(
            "ClickHouse reads no files whose path has one of the characters * ? { } [ ] ,",
            file=paths[0],
            remedy="move the captures to another directory",
        )
    top = paths[0].parents[2]
    names = ",".join(str(path.relative_to(top)) for path in sorted(paths))
    pattern = f"{top}/{names}" if len(paths) == 1 else f"{top}/{{{names}}}"
    return f"file({frame.literal(pattern)}, Parquet)"


def _select(columns: Sequence[str], rows: Sequence[Row]) -> str:
    return frame.values(columns, rows, CLICKHOUSE.types, frame.literal)


_ROWS = 200  # of one statement: ClickHouse reads 256 KiB of one (max_query_size)
CLICKHOUSE = Dialect(
    types={"text": "Nullable(String)", "int": "Int32", "float": "Float64"},
    file_table=_files,
    quote=frame.literal,
    seconds="(toUnixTimestamp64Milli({}) / 1000.0)",
    flag="CAST({} AS Nullable(Int32))",
    lists=CLICKHOUSE_LISTS,
)


def statements(
    source: ReportSource, settings: ReportSettings, keys: ReportKeys, more: Path | None = None
) -> Iterator[str]:
    """Yield the statements that create all views of a report. `keys` are those of the files (engine.keys_of)."""
    files = frame.parts(source, settings)
    for statement in frame.prelude("clickhouse").split(";\n"):
        if statement.strip():
            yield statement.strip()
    for name, select in frame.stored_views(source, settings, CLICKHOUSE):
        yield f"CREATE VIEW {name} AS {select}"
    yield f"CREATE VIEW captures AS {frame.captures_view(CLICKHOUSE, _files(files[NODES]), settings)}"
    results = frame.results_view(
        CLICKHOUSE, _files(files[CANARY]) if files[CANARY] else None, settings
    )
    yield f"CREATE VIEW results AS {results}"
    row = ", ".join(
        f"CAST({value!r} AS Float64) AS {name}"
        for name, value in frame.settings_row(settings).items()
    )
    yield f"CREATE VIEW settings AS SELECT {row}"
    for name, (columns, rows) in frame.reference(source, settings, keys).items():
        yield f"CREATE TABLE {name} ENGINE = Memory AS {_select(columns, rows[:_ROWS])}"
        for first in range(_ROWS, len(rows), _ROWS):
            yield f"INSERT INTO {name} {_select(columns, rows[first : first + _ROWS])}"
    for name, select in frame.watched_views(source, settings, keys, CLICKHOUSE):
        yield f"CREATE VIEW {name} AS {select}"
    for view in frame.views(more):
        kind = "TABLE {} ENGINE = Memory" if view.stored else "VIEW {}"
        yield f"CREATE {kind.format(view.name)} AS {view.text}"
