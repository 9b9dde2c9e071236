"""Windows keep their hours on both days of a clock change, and are never open outside of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from goldnode.fleet.rollout.windows import RolloutHours, opening

EVERY_DAY = frozenset(range(7))
SPRING, AUTUMN = date(2026, 3, 29), date(2026, 10, 25)  # of Europe/Berlin


def hours(begin: str, end: str, zone: str) -> RolloutHours:
    return RolloutHours(
        days=EVERY_DAY,
        begin=time.fromisoformat(begin),
        end=time.fromisoformat(end),
        zone=ZoneInfo(zone),
    )


@pytest.mark.parametrize(
    ("day", "begin", "end", "zone", "opens", "closes"),
    [
        # The clock goes from 02:00 to 03:00, which is 01:00 UTC.
        (SPRING, "01:30", "02:30", "Europe/Berlin", "00:30", "01:00"),
        (SPRING, "02:30", "03:30", "Europe/Berlin", "01:00", "01:30"),
        (SPRING, "02:10", "02:50", "Europe/Berlin", None, None),
        (SPRING, "00:00", "04:00", "Europe/Berlin", "-01:00", "02:00"),
        # It goes back from 03:00 to 02:00, at 01:00 UTC.
        (AUTUMN, "01:30", "02:30", "Europe/Berlin", "-00:30", "00:30"),
        (AUTUMN, "02:30", "03:30", "Europe/Berlin", "01:30", "02:30"),
        (AUTUMN, "02:15", "02:45", "Europe/Berlin", "00:15", "00:45"),
        (AUTUMN, "00:00", "04:00", "Europe/Berlin", "-02:00", "03:00"),
        # A change of half an hour: Lord Howe Island goes back from 02:00 to 01:30, at 15:00 UTC of the day before.
        (date(2026, 4, 5), "01:45", "03:00", "Australia/Lord_Howe", "-08:45", "-07:30"),
        # A change at midnight: in Beirut the clock goes from 00:00 to 01:00.
        (SPRING, "00:30", "02:00", "Asia/Beirut", "-02:00", "-01:00"),
    ],
)
def test_window_on_the_day_of_a_clock_change(
    day: date, begin: str, end: str, zone: str, opens: str | None, closes: str | None
) -> None:
    """`opens` and `closes` are hours of UTC from the begin of the day; negative ones are of the day before."""
    span = hours(begin, end, zone).span(day)
    midnight = datetime.combine(day, time(), UTC)

    def moment(text: str) -> float:
        sign = -1 if text.startswith("-") else 1
        hour, minute = map(int, text.lstrip("-").split(":"))
        return (midnight + sign * timedelta(hours=hour, minutes=minute)).timestamp()

    expected = None
    if opens is not None and closes is not None:
        expected = (moment(opens), moment(closes))
    assert span == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"])
def test_window_is_never_open_outside_of_its_hours(zone: str) -> None:
    """Each quarter of an hour of a year, for windows that begin and end in the hours of a change."""
    for begin, end in (("01:30", "02:30"), ("02:30", "03:30"), ("23:30", "00:30")):
        window = hours(begin, end, zone)
        now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        while now < datetime(2027, 1, 1, tzinfo=UTC).timestamp():
            span = opening([window], now)
            assert span is not None
            if span[0] <= now:
                clock = datetime.fromtimestamp(now, ZoneInfo(zone)).time()
                inside = window.begin <= clock < window.end
                if window.end < window.begin:
                    inside = clock >= window.begin or clock < window.end
                assert inside, (datetime.fromtimestamp(now, UTC), begin, end)
            now = now + 900 if span[0] <= now else max(now + 900, span[0] - 3600)
