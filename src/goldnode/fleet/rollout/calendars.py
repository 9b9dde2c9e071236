"""Freeze calendars in a decision: readings go in as values, and each reason to wait comes out.

Files are read and recurring events are expanded outside of here (`fleet.control.calendar_files`), so a
controller, the views and the simulator decide by the same function. A calendar that could not be read
never counts as one without a freeze.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import CalendarReading, FreezeSpan


@dataclass(frozen=True)
class CalendarHold:
    """A calendar on which no node is taken now. `until` is None where its end is not known."""

    calendar: str
    reason: str
    until: float | None = None


def holds(
    settings: RolloutSettings, readings: Mapping[str, CalendarReading], now: float
) -> list[CalendarHold]:
    """Return the calendars that hold nodes back at `now`, by name.

    Each calendar that the settings name needs a reading. One that is not named and has a reading holds
    too: a controller has recorded it.
    """
    names = sorted({*settings.calendars, *readings})
    held = (_hold(name, readings.get(name), now) for name in names)
    return [item for item in held if item is not None]


def _hold(name: str, reading: CalendarReading | None, now: float) -> CalendarHold | None:
    problem = None
    if reading is None:
        problem = "it has not been read"
    elif reading.problem is not None:
        problem = reading.problem
    elif reading.until <= now:
        problem = "its events were read up to an earlier day"
    if problem is not None:
        return CalendarHold(name, f"calendar {name} could not be checked: {problem}")
    present = [span for span in reading.spans if span.begin <= now < span.end] if reading else []
    if not present or reading is None:
        return None
    first = min(present, key=lambda span: (span.begin, span.summary))
    return CalendarHold(name, f"calendar {name}: {first.summary}", _end(reading.spans, now))


def _end(spans: Iterable[FreezeSpan], now: float) -> float:
    """Return when a freeze that holds at `now` is over, with those that follow it without a gap."""
    end = now
    for span in sorted(spans, key=lambda one: one.begin):
        if span.begin <= end:
            end = max(end, span.end)
    return end


def coming(
    readings: Iterable[CalendarReading], now: float, count: int
) -> list[tuple[str, FreezeSpan]]:
    """Return the first `count` freezes that have not ended, with their calendars, in the order of time."""
    rows = [
        (reading.calendar, span) for reading in readings for span in reading.spans if span.end > now
    ]
    return sorted(rows, key=lambda row: (row[1].begin, row[1].end, row[0]))[:count]
