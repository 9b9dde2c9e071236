"""Command `goldnode fleet status` and `goldnode fleet log`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import click

from goldnode.commands.fleet.common import STORE, opened
from goldnode.commands.options import LINES
from goldnode.commands.output import emit, reports, table


@click.command()
@STORE
@reports("fleet-status")
def status(where: str | None, form: str) -> None:
    """Show limits, holds, freezes and rollouts."""
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.store.status import status as read

    with opened(where) as store, store.read() as connection:
        state = read(connection)
    emit(form, state, lambda: "\n".join(_status(state)))


@click.command()
@click.option("--rollout", metavar="NAME", help="Only the lines of a rollout.")
@click.option(
    "--subject", metavar="SUBJECT", help="Only the lines about a node, or about another subject."
)
@LINES
@STORE
@reports("fleet-log")
def log(rollout: str | None, subject: str | None, lines: int, where: str | None, form: str) -> None:
    """Show the log of the store."""
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.store import log as lines_of

    with opened(where) as store, store.read() as connection:
        rows = [
            lines_of.decoded(dict(row))
            for row in lines_of.entries(connection, rollout=rollout, subject=subject, limit=lines)
        ]
    emit(form, {"lines": rows}, lambda: "\n".join(map(_line, rows)) or "the log has no such line")


def _status(state: Mapping[str, Any]) -> Iterator[str]:
    for row in state["freezes"]:
        yield (
            f"FROZEN: {row['scope']} {row['subject']}".rstrip()
            + f", by {row['who']}: {row['reason']}"
        )
    heading = ("domain", "nodes", "planned", "failed", "by persons", "out")
    shown = [
        (
            f"{row['scope']} {row['name']}",
            str(row["nodes"]),
            _of(row, "planned"),
            _of(row, "failed"),
            str(row["person"]),
            _of(row, "total"),
        )
        for row in state["buffers"]
        # Racks and leaves without a node that is out would fill the screen.
        if row["scope"] == "class" or row["total"]
    ]
    yield table([heading, *shown]) if shown else "no nodes: `goldnode fleet nodes FILE`"
    if state["holds"]:
        yield ""
        rows = [
            (
                row["node"],
                row["kind"],
                row["owner"],
                _time(row["since"]),
                _time(row["deadline"]),
                row["reason"],
            )
            for row in state["holds"]
        ]
        yield table([("node", "hold", "owner", "since", "expected", "reason"), *rows])
    for row in state["rollouts"]:
        yield f"rollout {row['name']}: {row['phase']}, wave {row['wave']}, epoch {row['epoch']} ({row['holder'] or 'no controller'})"
    for row in state["denied"]:
        yield f"denied for class {row['class']}: {row['digest']}, by {row['who']}: {row['reason']}"


def _of(row: Mapping[str, Any], kind: str) -> str:
    limit = row[f"{kind}_limit"]
    return f"{row[kind]}" if limit is None else f"{row[kind]} of {limit}"


def _line(row: Mapping[str, Any]) -> str:
    details = {
        key: value
        for key, value in row["content"].items()
        # They are in the line already, or are whole documents.
        if key not in ("action", "who", "node", "document", "before")
        and value not in (None, "", [])
    }
    words = " ".join(f"{key}={value}" for key, value in details.items())
    return f"{row['seq']:>6}  {_time(row['at'])}  {row['who']}  {row['action']} {row['subject']}  {words}".rstrip()


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{dt.datetime.fromtimestamp(seconds, tz=dt.UTC):%Y-%m-%d %H:%M:%S}Z"
