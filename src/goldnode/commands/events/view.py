"""Commands `goldnode events list`, `status` and `skip`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from goldnode.commands.events import hook_of, site_with_hooks
from goldnode.commands.options import NEW_FILE
from goldnode.commands.output import emit, reports, table
from goldnode.core.files import replace_file
from goldnode.core.site import load_site


@click.command(name="list")
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Number of events, the last ones.",
)
@click.option(
    "--kind", default="*", show_default=True, metavar="KIND", help="Only this kind, or a pattern."
)
@reports("events")
def list_(lines: int, kind: str, form: str) -> None:
    """List the last events.

    They are in the outbox for 30 days after their delivery.
    """
    from goldnode.fleet.events.outbox import Outbox

    outbox = Outbox(load_site().events_outbox())
    # Reading must not create the outbox.
    last = outbox.last(lines) if outbox.file.exists() else []
    shown = [one for one in last if fnmatchcase(one.kind, kind)]
    rows = [[one.at, one.severity, one.kind, _text(one)] for one in shown]
    content = {"events": [one.model_dump(mode="json", by_alias=True) for one in shown]}
    emit(form, content, lambda: table(rows) if rows else "no events")


def _text(event: Any) -> str:
    return f"SIMULATED: {event.text}" if event.simulated else str(event.text)


@click.command()
@click.option(
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    help="With --format prometheus: write to this file, whole or not at all, for node_exporter's textfile collector.",
)
@reports("events-status", "prometheus")
def status(out: Path | None, form: str) -> None:
    """Show what each hook has, and what has failed.

    Exit status: 0 no hook fails, 1 one does.
    """
    from goldnode.fleet.events.outbox import Outbox
    from goldnode.fleet.events.view import waiting

    if out is not None and form != "prometheus":
        raise click.UsageError("--out needs --format prometheus")
    site = site_with_hooks()
    outbox = Outbox(site.events_outbox())
    states = outbox.hooks(site.events.hooks)
    rows: list[dict[str, Any]] = []
    for name, hook in site.events.hooks.items():
        state = states[name]
        # The site file allows exactly one of them.
        kind = next(
            key
            for key in ("command", "webhook", "alertmanager", "ticket")
            if getattr(hook, key) is not None
        )
        rows.append(
            {
                "name": name,
                "kind": kind,
                "waiting": waiting(outbox, hook, state),
                "failures": state.failures,
                "error": state.error,
                "delivered": _moment(state.delivered),
                "again": _moment(state.again),
            }
        )
    if form == "prometheus":
        from goldnode.fleet.events.metrics import text

        counts = {row["name"]: row["waiting"] for row in rows}
        content = text({name: states[name] for name in counts}, counts)
        if out is None:
            click.echo(content, nl=False)
        else:
            replace_file(out, content.encode())
    else:
        emit(form, {"outbox": str(outbox.file), "hooks": rows}, lambda: _table(rows))
    sys.exit(1 if any(row["failures"] for row in rows) else 0)


def _table(rows: list[dict[str, Any]]) -> str:
    shown = [["hook", "kind", "waiting", "delivered last", "failures"]]
    shown += [
        [
            row["name"],
            row["kind"],
            str(row["waiting"]),
            row["delivered"] or "never",
            str(row["failures"]),
        ]
        for row in rows
    ]
    failed = [
        f"{row['name']}: {row['error']}; again at {row['again']}" for row in rows if row["error"]
    ]
    return "\n".join([table(shown), *failed])


def _moment(seconds: float | None) -> str | None:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}" if seconds else None


@click.command()
@click.argument("hook")
@reports("events-skip")
def skip(hook: str, form: str) -> None:
    """Remove the events that wait for a hook.

    The hook never gets them. The events stay in the outbox, for other hooks and for `goldnode events list`.
    """
    from goldnode.fleet.events.outbox import Outbox
    from goldnode.fleet.events.view import waiting

    site = site_with_hooks()
    receiver = hook_of(site, hook)
    outbox = Outbox(site.events_outbox())
    # Registered if it is new, and then nothing waits for it.
    count = waiting(outbox, receiver, outbox.hooks([hook])[hook])
    outbox.skip(hook)
    emit(form, {"hook": hook, "skipped": count}, f"hook {hook}: {count} events skipped")
