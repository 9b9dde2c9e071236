"""Command `goldnode rollout calendars`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from goldnode.commands.output import emit, reports, say, table
from goldnode.core.errors import GoldnodeError, nearest
from goldnode.core.site import load_site

if TYPE_CHECKING:
    from goldnode.core.site import Site
    from goldnode.fleet.rollout.model import CalendarReading

DAYS = 400.0  # of the freezes that are shown
_SHOWN = 20


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--fetch",
    is_flag=True,
    help="First write the files of the calendars that have a url. A file that cannot be read replaces none.",
)
@reports("rollout-calendars")
def calendars(names: tuple[str, ...], fetch: bool, form: str) -> None:
    """Show the freeze calendars of the site: their ages, and the next freezes.

    A rollout takes no node in an event of these calendars, and none where one of them cannot be read. Files are read as
    they are: nothing but --fetch contacts a server. Run that from a timer, and set max_age in the site file.

    Exit status: 0 each one was read, 1 some were not, 2 an error.
    """
    from goldnode.fleet.control import calendar_files

    site, now = load_site(), time.time()
    declared = site.fleet.calendars
    wanted = names or tuple(declared)
    for name in wanted:
        if name not in declared:
            raise GoldnodeError(
                f'the site file has no freeze calendar "{name}"',
                remedy=nearest(name, declared) or "add it: fleet: {calendars: {NAME: {file: …}}}",
            )
    failed = _fetched(site, wanted, now) if fetch else {}
    readings = [
        calendar_files.read_one(site, name, now=now, days=DAYS, declared=declared[name])
        for name in wanted
    ]
    ages = calendar_files.ages(site, wanted, now)
    content = {
        "calendars": [
            {
                **asdict(reading),
                "file": str(site.resolve(declared[reading.calendar].file)),
                "age": ages[reading.calendar],
                "not_fetched": failed.get(reading.calendar),
            }
            for reading in readings
        ]
    }
    emit(form, content, lambda: _text(readings, ages, now))
    if failed or any(reading.problem for reading in readings):
        sys.exit(1)


def _fetched(site: Site, names: Sequence[str], now: float) -> dict[str, str]:
    """Fetch calendars; return why each of the others was not."""
    from goldnode.fleet.control import calendar_files

    failed = {}
    for name in names:
        if site.fleet.calendars[name].url is None:
            continue
        try:
            calendar_files.fetch(site, name, now)
        except GoldnodeError as problem:
            failed[name] = str(problem)
            say(f"{name} was not fetched, and its file is as before: {problem}")
    return failed


def _text(readings: Sequence[CalendarReading], ages: dict[str, float | None], now: float) -> str:
    if not readings:
        return "The site file has no freeze calendars."
    rows = [["calendar", "written", "freezes ahead"]]
    for reading in readings:
        age = ages[reading.calendar]
        count = str(sum(span.end > now for span in reading.spans))
        rows.append(
            [
                reading.calendar,
                "?" if age is None else f"{max(0.0, age) / 3600:.1f} h ago",
                "could not check" if reading.problem else count,
            ]
        )
    return "\n".join([table(rows), "", *freezes(readings, now, _SHOWN)])


def freezes(readings: Sequence[CalendarReading], now: float, count: int) -> list[str]:
    """Return the next freezes as lines, and the calendars that could not be read."""
    from goldnode.fleet.rollout.calendars import coming
    from goldnode.fleet.rollout.lines import moment

    lines = [
        f"calendar {reading.calendar} could not be checked: {reading.problem}"
        for reading in readings
        if reading.problem
    ]
    rows = coming(readings, now, count)
    shown = [[moment(span.begin), moment(span.end), name, span.summary] for name, span in rows]
    if shown:
        lines.append(table([["next freezes: from", "until", "calendar", "event"], *shown]))
    elif not lines:
        lines.append("No calendar has a freeze in the next 400 days.")
    return lines
