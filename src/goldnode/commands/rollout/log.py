"""Command `goldnode rollout log` and `events`: the transitions of a rollout."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from goldnode.commands.fleet.common import SIMULATED, STORE, opened, simulated_class
from goldnode.commands.options import LINES, every_option
from goldnode.commands.output import emit, reports, say

ROLLOUT = click.argument("rollout", required=False)


@click.command()
@ROLLOUT
@click.option("--node", metavar="NODE", help="Only the lines about a node.")
@LINES
@STORE
@reports("rollout-log")
def log(rollout: str | None, node: str | None, lines: int, where: str | None, form: str) -> None:
    """Show what happened in a rollout, a sentence a line.

    Without ROLLOUT: the rollout that is under way, else the last one. `goldnode fleet log` shows the whole log.
    """
    from goldnode.fleet.store import rollout_view  # sqlalchemy: only the extra `fleet` installs it

    with opened(where) as store, store.read() as connection:
        name = rollout_view.chosen(connection, rollout)
        simulated = simulated_class(rollout_view.settings_of(connection, name).class_)
        rows = rollout_view.lines(connection, name, limit=lines, node=node)
    heading = [SIMULATED] if simulated else []
    emit(
        form,
        {"rollout": name, "simulated": simulated, "lines": rows},
        lambda: "\n".join([*heading, *map(line_text, rows)]) or "no such line",
    )


@click.command()
@ROLLOUT
@click.option("--follow", is_flag=True, help="Wait for new events, until interrupted.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="SEQ",
    show_default="0; with --follow the last event",
    help="Only events after this number: the last `seq` that you have processed.",
)
@every_option("store", "--follow")
@STORE
def events(
    rollout: str | None, follow: bool, after: int | None, every: float, where: str | None
) -> None:
    """Print transitions as JSON, one object a line, for alerting.

    The schema is goldnode.rollout-event/1. Without ROLLOUT: events of all rollouts. Orders on the fleet, on a
    class or on a rack are included. To lose nothing across a restart, give the last `seq` with --after.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.rollout.lines import event
    from goldnode.fleet.store import log as store_log
    from goldnode.fleet.store import rollout_view
    from goldnode.fleet.store.errors import StoreUnavailableError

    with opened(where) as store:
        with store.read() as connection:
            name = rollout_view.chosen(connection, rollout) if rollout is not None else None
            # Numbers are of the whole store, so that they go on across rollouts.
            last = [row["seq"] for row in store_log.entries(connection, limit=1)]
        # The number of the last event, or 0 without one.
        begin = sum(last) if follow else 0
        seen = begin if after is None else after
        away = False
        while True:
            try:
                with store.read() as connection:
                    rows = rollout_view.lines(connection, name, after=seen)
            except StoreUnavailableError as problem:
                if not follow:
                    raise
                # Once for each outage.
                if not away:
                    say(f"{problem}; waiting for it")
                rows, away = [], True
            else:
                away = False
            for row in rows:
                seen = row["seq"]
                click.echo(
                    json.dumps(event(row).model_dump(by_alias=True, mode="json"), sort_keys=True)
                )
            if not follow:
                return
            time.sleep(every)


def line_text(row: dict[str, Any]) -> str:
    """Return one line of the log as text."""
    from goldnode.fleet.rollout.lines import moment, sentence

    return f"{row['seq']:>6}  {moment(row['at'])}  {sentence(row)}  [{row['who']}]"
