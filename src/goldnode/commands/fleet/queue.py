"""Command `goldnode fleet queue` and `goldnode fleet cancel`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from goldnode.commands.fleet.common import REASON, STORE, give, opened
from goldnode.commands.output import emit, reports, table


@click.command()
@STORE
@reports("fleet-queue")
def queue(where: str | None, form: str) -> None:
    """List who waits for which node, why, how long, and what is next.

    Requests are in the order in which they are served. Those that have a node are first.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.store import queue as requests

    with opened(where) as store, store.read() as connection:
        shown = requests.listed(connection, time.time())
    emit(form, shown, lambda: "\n".join(_lines(shown)))


@click.command()
@click.argument("request", type=click.IntRange(min=1))
@REASON
@STORE
@reports("fleet-cancel")
def cancel(request: int, reason: str, where: str | None, form: str) -> None:
    """Remove a request that has not begun from the queue.

    The number of a request is in the list of `goldnode fleet queue`.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.store import queue as requests

    done = give(
        where, reason, lambda connection, order: requests.cancel(connection, request, order)
    )
    text = f"request {request} is cancelled" if done else f"request {request} had ended already"
    emit(form, {"request": request, "changed": done}, text)


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    if not shown["requests"]:
        yield "the queue is empty: nothing waits for a node"
        return
    heading = ("request", "node", "work", "asked by", "for", "state")
    rows = [
        (
            str(row["request"]),
            row["node"] or (f"{row['places']} of {row['class']}" if row["rollout"] else "mirror"),
            row["work"],
            row["who"],
            _age(row["seconds"]),
            _state(row),
        )
        for row in shown["requests"]
    ]
    yield table([heading, *rows])


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] != "waiting":
        return f"{row['state']}: {row['reason']}"
    following = "next, " if row["next"] else ""
    return (
        f"waits, {following}place {row['place']} ({row['rule']}): {row['wait']}; for {row['owner']}"
    )


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
