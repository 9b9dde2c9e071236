"""The SQL shell of `goldnode fleet sql`: it reads the views, and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.output import table
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.text import and_more

if TYPE_CHECKING:
    import duckdb

_MOST = 1000  # rows that the shell prints


@dataclass(frozen=True)
class QueryResult:
    """Columns and rows of a query."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """Let the connection read the files of its views, write no file, load no extension, and change no setting."""
    files = [
        row[0] for row in connection.execute("SELECT DISTINCT file FROM report_files").fetchall()
    ]
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    # In this order: without external access the paths cannot be extended any more.
    connection.execute(f"SET allowed_paths=[{listed}]")
    connection.execute("SET enable_external_access=false")
    # Otherwise a query could set these back.
    connection.execute("SET lock_configuration=true")


def run(connection: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
    """Return the rows of a query. Raise GoldnodeError with DuckDB's reason."""
    import duckdb  # only the extra installs it

    from goldnode.fleet.report.engine import first_line  # start-up time

    try:
        # All statements of the text: a query may hide a second one behind a semicolon.
        kinds = {statement.type for statement in connection.extract_statements(query)}
        allowed = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
        if not kinds <= allowed:
            raise GoldnodeError(
                "only SELECT, EXPLAIN, DESCRIBE and SHOW can run here",
                remedy="see `goldnode fleet sql --help`",
            )
        cursor = connection.execute(query)
        columns = [column[0] for column in cursor.description or ()]
        return QueryResult(columns, cursor.fetchall() if columns else [])
    except duckdb.Error as problem:
        raise GoldnodeError(
            f"DuckDB: {first_line(problem)}", remedy="list the views with `SHOW TABLES`"
        ) from None


def text(answer: QueryResult) -> str:
    """Return rows as a table."""
    if not answer.columns:
        return ""
    shown = [tuple(answer.columns), *(tuple(map(_cell, row)) for row in answer.rows[:_MOST])]
    more = len(answer.rows) - _MOST
    return table(shown) + and_more(more, "\n{} more rows")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value).replace("\n", "\\n")


def shell(connection: duckdb.DuckDBPyConnection, more: Path | None) -> None:
    """Read statements from standard input until its end, and print their rows. An error ends only its statement."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # line editing, where Python was built with it
            import readline  # noqa: F401
        click.echo(
            "Statements end with a semicolon. `views;` lists the views, Control-D ends.", err=True
        )
    for statement in _statements():
        if statement in ("views", ".tables"):
            click.echo(_views(more))
            continue
        if statement in ("exit", "quit", ".quit"):
            return
        try:
            click.echo(text(run(connection, statement)))
        except GoldnodeError as problem:
            click.echo(str(problem), err=True)


def _views(more: Path | None) -> str:
    from goldnode.fleet.report.frame import views  # pyarrow: only the extra `report` installs it

    return table([("view", "content"), *((view.name, view.about) for view in views(more))])


def _statements() -> Iterator[str]:
    waiting: list[str] = []
    while True:
        try:
            prompt = "...> " if waiting else "sql> "
            line = input(prompt if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            line = None
        if line is not None:
            waiting.append(line)
        joined = "\n".join(waiting).strip()
        # The end of the input ends the last statement, too.
        if joined and (line is None or joined.endswith(";")):
            yield joined.rstrip(";").strip()
            waiting = []
        if line is None:
            return
