"""SQL of the tables as if every capture were stored whole, in DuckDB or ClickHouse, over the stored rows.

The stored rows are views with the prefix `stored_`: what the files have. A capture has the rows of its
base, but for the keys that it has changes of.
"""
# ruff: noqa: S608  # names of views and columns of this file alone

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.fleet.ingest.tables import DIGESTS, FACTS, NODES, NUMBERS, by_change


@dataclass(frozen=True)
class ListDialect:
    """How an engine makes rows of lists."""

    unnest: str  # a SELECT of {columns}, and of {first}, {others} and place from {changes}
    other: str  # one of the other lists, in it
    no_changes: str  # a SELECT without rows, with the columns of stored_changes; {day}: of the type of that column
    nulls: Mapping[
        str, str
    ]  # types of columns that are null where an earlier goldnode wrote all files


DUCKDB_LISTS = ListDialect(
    unnest=(
        'SELECT {columns}, unnest("{first}") AS "{first}", {others}, generate_subscripts("{first}", 1) - 1 AS place '
        'FROM {changes} WHERE len("{first}") > 0'
    ),
    other='unnest("{name}") AS "{name}"',
    no_changes=(
        "SELECT '' AS class, {day} AS day, '' AS node, TIMESTAMP_MS '2000-01-01' AS time, TIMESTAMP_MS '2000-01-01' AS base, "
        "'' AS key, CAST([] AS VARCHAR[]) AS items, CAST([] AS DOUBLE[]) AS \"values\", CAST([] AS VARCHAR[]) AS texts, "
        "CAST([] AS VARCHAR[]) AS faults WHERE 1 = 0"
    ),
    nulls={"base": "TIMESTAMP_MS", "precision": "VARCHAR", "place": "SMALLINT"},
)
CLICKHOUSE_LISTS = ListDialect(
    unnest=(
        'SELECT {columns}, one AS "{first}", {others}, place FROM {changes} '
        'ARRAY JOIN "{first}" AS one, arrayMap(i -> i - 1, arrayEnumerate("{first}")) AS place'
    ),
    other='if(length("{name}") = 0, NULL, "{name}"[place + 1]) AS "{name}"',
    no_changes=(
        "SELECT '' AS class, {day} AS day, '' AS node, toDateTime64(0, 3) AS time, toDateTime64(0, 3) AS base, '' AS key, "
        'CAST([] AS Array(Nullable(String))) AS items, CAST([] AS Array(Nullable(Float64))) AS "values", '
        "CAST([] AS Array(Nullable(String))) AS texts, CAST([] AS Array(Nullable(String))) AS faults WHERE 1 = 0"
    ),
    nulls={},  # the columns are named where the files are read
)
# Name of the table -> the list that its changes are in, and the lists beside it.
_LISTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    FACTS: ("texts", ("faults", "items")),
    NUMBERS: ("values", ("items",)),
}
# Columns that files of an earlier goldnode lack. A column that no file has is added as null.
_LACKING = {NODES: ("base", "precision"), FACTS: ("place",), NUMBERS: ("place",)}
_WHO = "class, day, node, time, base, key"
_VALUES = {FACTS: "value, fault", NUMBERS: "value"}  # columns


def stored(dialect: ListDialect, table: str, files: Sequence[Path], rows: str) -> str:
    """Return the SELECT of `stored_TABLE` for the table function `rows` of these files."""
    lacking = [] if any(map(by_change, files)) else _LACKING.get(table, ())
    columns = ", ".join(
        [
            "*",
            *(
                f"CAST(NULL AS {dialect.nulls[name]}) AS {name}"
                for name in lacking
                if name in dialect.nulls
            ),
        ]
    )
    select = f"SELECT {columns} FROM {rows}"
    return (
        f"SELECT *, coalesce(base, time) AS held FROM ({select}) AS n" if table == NODES else select
    )


def views(
    dialect: ListDialect, by_change: bool = True, narrow: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the name and the SELECT of each view: facts, numbers and digests, and those that they are made of.

    `replaced_TABLE` has the keys of captures whose rows are not those of the base, and
    `replacing_TABLE` these rows.

    In `stored_nodes`, the column `held` is the time whose rows a capture has.

    :param by_change: False where no capture has a base, and the joins would only take as long again.
    :param narrow: `stored_nodes` has few of the captures, and the others' changes are left out at once.
    """
    if not by_change:
        for table in _LISTS:
            yield from _unchanged(table, f"stored_{table}", _VALUES[table])
        for table in (*_LISTS, DIGESTS):
            yield table, f"SELECT * FROM stored_{table}"
        return
    changes = "stored_changes"
    if narrow:
        changes = "narrow_changes"
        yield (
            changes,
            "SELECT r.* FROM stored_changes AS r INNER JOIN stored_nodes AS c "
            "ON c.class = r.class AND c.node = r.node AND c.time = r.time",
        )
    for table in _LISTS:
        yield f"replaced_{table}", _replaced(table, changes)
        yield f"replacing_{table}", _changed(dialect, table, changes, f"stored_{table}")
        yield table, _whole(table)
    yield (
        DIGESTS,
        # A capture with a base has rows of its own only for the sections that differ from it.
        "SELECT d.class AS class, d.day AS day, d.node AS node, d.time AS time, d.section AS section, d.digest AS digest "
        "FROM stored_digests AS d INNER JOIN stored_nodes AS c ON c.class = d.class AND c.node = d.node AND c.time = d.time "
        "UNION ALL "
        "SELECT c.class AS class, c.day AS day, c.node AS node, c.time AS time, d.section AS section, d.digest AS digest "
        "FROM stored_nodes AS c INNER JOIN stored_digests AS d ON d.class = c.class AND d.node = c.node AND d.time = c.held "
        "LEFT JOIN stored_digests AS o ON o.class = c.class AND o.node = c.node AND o.time = c.time AND o.section = d.section "
        "WHERE c.held <> c.time AND o.section IS NULL",
    )


def watched_views(
    dialect: ListDialect, keys: Sequence[str], by_change: bool
) -> Iterator[tuple[str, str]]:
    """Yield the name and the SELECT of views of a few keys of numbers: of the stored rows, and of all captures' changes.

    The names are as those of `views`, with `watched` in place of the table.

    :param keys: as SQL. Constants reach the files, where rows of other keys are left out; a join with a table of keys does not.
    """
    own = f"key IN ({', '.join(keys)})" if keys else "1 = 0"
    yield "watched_numbers", f"SELECT * FROM stored_{NUMBERS} WHERE {own}"
    if not by_change:
        yield from _unchanged("watched", "watched_numbers", _VALUES[NUMBERS])
        return
    yield "watched_changes", f"SELECT * FROM stored_changes WHERE {own}"
    yield "replaced_watched", _replaced(NUMBERS, "watched_changes")
    yield "replacing_watched", _changed(dialect, NUMBERS, "watched_changes", "watched_numbers")


def _unchanged(name: str, rows: str, values: str) -> Iterator[tuple[str, str]]:
    """Yield views of changes without rows, with the types of the stored ones."""
    nothing = f"SELECT class, day, node, time, item, key, {values} FROM {rows} WHERE 1 = 0"
    yield f"replaced_{name}", nothing
    yield f"replacing_{name}", nothing


def _replaced(table: str, changes: str) -> str:
    first, _ = _LISTS[table]
    return f'SELECT class, node, time, key FROM {changes} WHERE length("{first}") > 0'


def _changed(dialect: ListDialect, table: str, changes: str, bases: str) -> str:
    """Return the SELECT of the rows that replace those of a base."""
    first, others = _LISTS[table]
    listed = dialect.unnest.format(
        columns=_WHO,
        first=first,
        others=", ".join(dialect.other.format(name=name) for name in others),
        changes=changes,
    )
    values = "u.texts AS value, u.faults AS fault" if table == FACTS else 'u."values" AS value'
    return (
        f"SELECT u.class AS class, u.day AS day, u.node AS node, u.time AS time, coalesce(u.items, b.item) AS item, "
        f"u.key AS key, {values} FROM ({listed}) AS u "
        f"LEFT JOIN {bases} AS b ON b.class = u.class AND b.node = u.node AND b.time = u.base AND b.key = u.key "
        "AND b.place = u.place"
    )


def _whole(table: str) -> str:
    """Return the SELECT of the rows of every capture."""
    own = ", ".join(f"f.{name} AS {name}" for name in _VALUES[table].split(", "))
    return (
        f"SELECT c.class AS class, c.day AS day, c.node AS node, c.time AS time, f.item AS item, f.key AS key, {own} "
        f"FROM stored_nodes AS c INNER JOIN stored_{table} AS f ON f.class = c.class AND f.node = c.node AND f.time = c.held "
        f"LEFT JOIN replaced_{table} AS k "
        "ON k.class = c.class AND k.node = c.node AND k.time = c.time AND k.key = f.key WHERE k.key IS NULL "
        # A part has changes of captures that are not read: later ones, and older ones where the last are read alone.
        f"UNION ALL SELECT f.class AS class, f.day AS day, f.node AS node, f.time AS time, f.item AS item, f.key AS key, {own} "
        f"FROM replacing_{table} AS f INNER JOIN stored_nodes AS c ON c.class = f.class AND c.node = f.node AND c.time = f.time"
    )
