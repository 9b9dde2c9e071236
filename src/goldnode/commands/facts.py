"""`goldnode facts audit`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.facts.audit import FactsFault
    from goldnode.facts.review import ReviewedFile


@click.group()
def facts() -> None:
    """Show which compatibility facts are wrong, stale or in doubt."""


@facts.command()
@reports("facts-audit")
@click.option(
    "--stale-after",
    type=click.IntRange(min=1),
    default=90,
    show_default=True,
    metavar="DAYS",
    help="Age from which a file is stale.",
)
def audit(form: str, stale_after: int) -> None:
    """List facts that are wrong, stale, contradictory, in doubt or from a single source.

    Exit status: 0 no row is wrong and no file is stale, 1 otherwise.
    """
    import datetime as dt
    from dataclasses import asdict

    from goldnode.facts import audit as rows
    from goldnode.facts.review import review

    faults = rows.faults()
    files = review(dt.datetime.now(tz=dt.UTC).date(), stale_after=stale_after)
    content = {
        "faults": [asdict(fault) for fault in faults],
        "files": [{**asdict(file), "compiled": str(file.compiled)} for file in files],
    }
    emit(form, content, lambda: _text(faults, files))
    sys.exit(1 if faults or any(file.stale for file in files) else 0)


def _text(faults: list[FactsFault], files: list[ReviewedFile]) -> str:
    lines = [f"wrong: {fault.error()}" for fault in faults]
    for file in files:
        state = "stale" if file.stale else "current"
        lines.append(
            f"{file.name}: {state} ({file.age_days} days), {file.single} of {file.sourced} rows from a single source, "
            f"{len(file.contradictory)} contradictory, {len(file.in_doubt)} in doubt"
        )
        for kind, found in (("contradictory", file.contradictory), ("in doubt", file.in_doubt)):
            lines += [f"  {kind}: {row.name} (line {row.line}): {row.why}" for row in found]
    lines.append(
        f"{len(files)} files: {len(faults)} rows are wrong, {sum(file.stale for file in files)} files are stale."
    )
    return "\n".join(lines)
