"""Windows in which nodes may be taken out of service, each in its own time zone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SOON = 9  # days to search: a week, and the day of each end


@dataclass(frozen=True)
class RolloutHours:
    """Days and hours of one window. `end` before `begin` is on the next day."""

    days: frozenset[int]  # 0 is Monday
    begin: time
    end: time
    zone: ZoneInfo

    def span(self, day: date) -> tuple[float, float] | None:
        """Return begin and end of the window that opens on `day`, as seconds since the epoch."""
        if day.weekday() not in self.days or self.begin == self.end:
            return None
        last = day + timedelta(days=1) if self.end < self.begin else day
        # Seconds since the epoch: a window keeps its wall-clock times over a change of the clock. A time that
        # comes twice is taken so that the window is open within its hours only.
        opens = datetime.combine(day, self.begin, self.zone)
        closes = datetime.combine(last, self.end, self.zone)
        if _comes_twice(opens) and not (_comes_twice(closes) and day == last):
            opens = opens.replace(fold=1)
        begin, end = instant(opens), instant(closes)
        return (begin, end) if begin < end else None


def _comes_twice(moment: datetime) -> bool:
    """Return whether the clock shows a time twice: an hour of the day on which it is put back."""
    first, second = (_offset(moment.replace(fold=fold)) for fold in (0, 1))
    return first > second


def instant(moment: datetime) -> float:
    """Return a time of a zone as seconds since the epoch. One that the clock skips is the moment of the change.

    Of a time that comes twice it is the one that `fold` names.
    """
    before, after = (_offset(moment.replace(fold=fold)) for fold in (0, 1))
    if before >= after:
        return moment.timestamp()
    # PEP 495: of a skipped time, fold 1 gives a moment before the change, and fold 0 one after it.
    low, high = (int(moment.replace(fold=fold).timestamp()) for fold in (1, 0))
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(datetime.fromtimestamp(middle, moment.tzinfo)) == before:
            low = middle
        else:
            high = middle
    return float(high)


def _offset(moment: datetime) -> timedelta:
    """Return the offset of a time with a zone from UTC."""
    return moment.utcoffset() or timedelta()


def opening(windows: Sequence[RolloutHours], now: float) -> tuple[float, float] | None:
    """Return the span of the window that is open at `now`, or else of the next one. None: none opens.

    Without windows it is always open.
    """
    if not windows:
        return (now, float("inf"))
    openings = []
    for window in windows:
        today = datetime.fromtimestamp(now, UTC).astimezone(window.zone).date()
        for offset in range(-1, _SOON):
            span = window.span(today + timedelta(days=offset))
            if span is not None and span[1] > now:
                openings.append(span)
                break
    if not openings:
        return None
    open_now = [span for span in openings if span[0] <= now]
    return max(open_now, key=lambda span: span[1]) if open_now else min(openings)
