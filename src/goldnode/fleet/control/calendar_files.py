"""Freeze calendars of a site: iCalendar files (RFC 5545), read and expanded into spans of time.

The packages icalendar and recurring-ical-events read the format. What they accept without a word, and a
freeze calendar must not lose, is an error here: a file that is cut off, an unknown time zone, an event
without a length. Then the calendar could not be checked, and no node is taken.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import urllib3

from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file
from goldnode.fleet.rollout.model import CalendarReading, FreezeSpan
from goldnode.fleet.rollout.windows import instant
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.core.site import Site, SiteCalendar

DAY = 86400.0
AHEAD = 60.0  # days that a controller expands
LARGEST = 16 << 20  # bytes of a file
_MOST = 10_000  # events of one file within the time that is expanded
_TOO_OFTEN = (
    "SECONDLY",
    "MINUTELY",
)  # no freeze repeats so, and a year of it takes minutes to expand
_TIMES = ("DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "STATUS")
_WAIT = 60.0  # seconds for an answer
_SHOWN = 80  # characters of a summary


class CalendarError(GoldnodeError):
    """A calendar that cannot be read for certain."""


@dataclass(frozen=True)
class CalendarRules:
    """How events of a file become freezes. `before` is in seconds."""

    zone: ZoneInfo
    match: str | None = None
    before: float = 0.0


def names_of(site: Site, node_class: str) -> tuple[str, ...]:
    """Return the freeze calendars that hold for a class."""
    return tuple(
        name
        for name, item in site.fleet.calendars.items()
        if not item.classes or node_class in item.classes
    )


def read(site: Site, node_class: str, now: float, days: float = AHEAD) -> list[CalendarReading]:
    """Return a reading of each calendar of a class. One that cannot be read has its problem; never raises for it."""
    return [
        read_one(site, name, now=now, days=days, declared=site.fleet.calendars[name])
        for name in names_of(site, node_class)
    ]


@dataclass
class CalendarReader:
    """The part of a controller that reads the calendars of its class."""

    site: Site
    node_class: str
    clock: Callable[[], float]

    def read(self) -> list[CalendarReading]:
        """Return a reading of each calendar."""
        return read(self.site, self.node_class, self.clock())


def read_one(
    site: Site, name: str, *, now: float, days: float, declared: SiteCalendar
) -> CalendarReading:
    """Return the reading of one calendar, from the begin of the day on."""
    begin = now // DAY * DAY
    until = begin + days * DAY
    path = site.resolve(declared.file)
    rules = CalendarRules(ZoneInfo(declared.zone), declared.match, declared.before * 3600)
    try:
        age = now - written(path)
        if declared.max_age is not None and age > declared.max_age * DAY:
            text = f"{path} was written {age / DAY:.0f} days ago, and max_age is {declared.max_age:g} days"
            raise CalendarError(text)
        spans = expand(content(path), path, rules, begin, until)
    except GoldnodeError as problem:
        return CalendarReading(name, now, until, problem=str(problem).rstrip("."))
    return CalendarReading(name, now, until, spans)


def written(path: Path) -> float:
    """Return when a file was written. Raises CalendarError."""
    try:
        return path.stat().st_mtime
    except OSError as problem:
        raise CalendarError(f"{path} cannot be read: {problem.strerror}") from problem


def content(path: Path) -> bytes:
    """Return the content of a file. Raises CalendarError."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as problem:
        raise CalendarError(f"{path} cannot be read: {problem.strerror}") from problem
    if len(text) > LARGEST:
        raise CalendarError(f"{path} has more than {LARGEST >> 20} MiB")
    return text


def expand(
    data: bytes, file: Path, rules: CalendarRules, begin: float, until: float
) -> tuple[FreezeSpan, ...]:
    """Return the freezes of a file that end after `begin` and begin before `until`, in the order of time.

    Raises CalendarError if an event of the file cannot be understood, also one that is no freeze.
    """
    extras.require("calendars")
    text = _decoded(data)
    _whole(text, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a zone that is guessed; an unknown one is found below
            return tuple(_spans(text, rules, begin, until))
    except CalendarError as problem:
        raise CalendarError(f"{file}: {problem.message}") from problem
    except Exception as problem:  # what the packages raise for wrong content has no common class
        raise CalendarError(f"{file}: {_first_line(problem)}") from problem


def _decoded(data: bytes) -> str:
    """Return the text of a file. RFC 5545 has UTF-8; some exports begin with a byte order mark, also of UTF-16."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").removeprefix("\ufeff")
    return data.decode("utf-8", errors="replace").removeprefix("\ufeff")


_MARK = re.compile(r"(BEGIN|END):([A-Za-z0-9-]+)[ \t]*$", re.IGNORECASE)


def _whole(text: str, file: Path) -> None:
    """Refuse a file without a calendar, and one that is cut off: the package finds no event in it, and no fault."""
    opened: list[tuple[str, int]] = []
    calendars = 0
    for number, line in enumerate(text.splitlines(), 1):
        mark = _MARK.match(line)
        if mark is None:
            continue
        word, name = mark[1].upper(), mark[2].upper()
        if word == "BEGIN":
            opened.append((name, number))
        elif not opened or opened.pop()[0] != name:
            raise CalendarError(f"END:{name} has no BEGIN:{name}", file=file, line=number)
        calendars += name == "VCALENDAR" and word == "END"
    if opened:
        name, line_number = opened[-1]
        raise CalendarError(
            f"BEGIN:{name} has no END:{name}: the file is cut off", file=file, line=line_number
        )
    if not calendars:
        raise CalendarError(f"{file} is no iCalendar file: it has no BEGIN:VCALENDAR")


def _spans(text: str, rules: CalendarRules, begin: float, until: float) -> Iterator[FreezeSpan]:
    # The extra `calendars`; `expand` has asked for it.
    import icalendar
    import recurring_ical_events

    # The package remembers the zones of the files before, by name, and Outlook has one name for any zone of a user.
    icalendar.use_zoneinfo()  # type: ignore[no-untyped-call]
    calendars = icalendar.Calendar.from_ical(text, multiple=True)
    spans: set[FreezeSpan] = set()
    for calendar in calendars:
        if str(calendar.get("METHOD", "")).upper() == "CANCEL":
            continue  # each of its events is cancelled
        _check(calendar, rules.zone)
        # Wider: days begin earlier in the east, and a freeze begins `before` its event.
        first = datetime.fromtimestamp(begin, UTC) - timedelta(days=2)
        last = datetime.fromtimestamp(until, UTC) + timedelta(days=2, seconds=rules.before)
        query = recurring_ical_events.of(calendar, components=["VEVENT"], skip_bad_series=False)
        for event in query.between(first, last):
            if str(event.get("STATUS", "")).upper() == "CANCELLED" or not _matches(event, rules):
                continue
            span = _span(event, rules)
            if span.end > begin and span.begin < until:
                spans.add(span)
            if len(spans) > _MOST:
                raise CalendarError(f"it has more than {_MOST} events")
    yield from sorted(spans, key=lambda span: (span.begin, span.end, span.summary))


def _check(calendar: Any, zone: ZoneInfo) -> None:
    """Refuse events that the packages read otherwise than they are written, or not at all."""
    if calendar.walk("VFREEBUSY") and not calendar.walk("VEVENT"):
        raise CalendarError("it has free and busy times and no events: export the events")
    series: set[tuple[str, str]] = set()
    for number, event in enumerate(calendar.walk("VEVENT")):
        broken = [name for name, _ in event.errors if name in _TIMES]
        if broken or "DTSTART" not in event:
            wrong = f"cannot be read: {broken[0]}" if broken else "has no DTSTART"
            raise CalendarError(f"{_named(event)} {wrong}")
        for name in ("DTSTART", "DTEND", "RECURRENCE-ID"):
            _check_zone(event, name)
        if "DTEND" in event:
            # The package exchanges them where the end is first: a wrong year would become a freeze of the past.
            begin, end = (_moment(event[name].dt, zone, fold=0) for name in ("DTSTART", "DTEND"))
            if end < begin:
                raise CalendarError(f"{_named(event)} ends before it begins")
        for rule in _several(event.get("RRULE")):
            often = [str(part).upper() for part in _several(rule.get("FREQ"))]
            if set(often) & set(_TOO_OFTEN):
                raise CalendarError(f"{_named(event)} repeats {often[0].lower()}")
        # Of two events with one UID the package drops one: each counts here.
        key = (str(event.get("UID", "")), str(event.get("SEQUENCE", 0)))
        if "RECURRENCE-ID" not in event and "UID" in event:
            if key in series:
                event["UID"] = f"{key[0]}/{number}"
            series.add(key)


def _check_zone(event: Any, name: str) -> None:
    """Refuse a time in a zone that is neither known nor defined in the file: the package takes it as local."""
    value = event.get(name)
    if value is None or "TZID" not in value.params:
        return
    moment = value.dt
    if isinstance(moment, datetime) and moment.tzinfo is None:
        zone = value.params["TZID"]
        raise CalendarError(
            f'{_named(event)} is in time zone "{zone}", which is unknown and which the file does not define'
        )


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _named(event: Any) -> str:
    summary = _summary(event)
    return (
        f'event "{summary}"' if "SUMMARY" in event else f"event {event.get('UID', 'without a UID')}"
    )


def _summary(event: Any) -> str:
    text = " ".join(str(event.get("SUMMARY", "")).split()) or "an event without a summary"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _matches(event: Any, rules: CalendarRules) -> bool:
    """Return whether an event is a freeze, by its summary and its categories."""
    if rules.match is None:
        return True
    texts = [str(event.get("SUMMARY", ""))]
    for item in _several(event.get("CATEGORIES")):
        texts += [str(one) for one in getattr(item, "cats", [item])]
    return any(re.search(rules.match, text) for text in texts)


def _span(event: Any, rules: CalendarRules) -> FreezeSpan:
    """Return the time of one event. Raises CalendarError for one that ends before it begins, or has no length."""
    begin = _moment(event["DTSTART"].dt, rules.zone, fold=0)
    end = _moment(event["DTEND"].dt, rules.zone, fold=1)
    if end <= begin:
        raise CalendarError(f"{_named(event)} has no length: it needs an end after its begin")
    return FreezeSpan(begin - rules.before, end, _summary(event))


def _moment(value: date | datetime, zone: ZoneInfo, fold: int) -> float:
    """Return a date or time as seconds since the epoch. A day is one of `zone`, and so is a time without a zone.

    Of a time that comes twice, `fold` names the first or the second, so that a freeze is the longer one.
    """
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone follows
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone)
    return instant(value.replace(fold=fold))


def _first_line(problem: Exception) -> str:
    text = str(problem).strip().partition("\n")[0]
    return f"it cannot be read: {text or type(problem).__name__}"


def fetch(site: Site, name: str, now: float) -> None:
    """Write the file of a calendar from its address, once it can be read. Raises CalendarError."""
    declared = site.fleet.calendars[name]
    if declared.url is None:
        raise CalendarError(f"calendar {name} has no url in the site file")
    data = _got(declared.url, site.resolve(declared.ca) if declared.ca else None)
    path, rules = site.resolve(declared.file), CalendarRules(ZoneInfo(declared.zone))
    # A login page or half a file does not replace the calendar.
    try:
        expand(data, path, rules, now, now + AHEAD * DAY)
    except CalendarError as problem:
        raise CalendarError(
            f"the answer of {declared.url} replaces no file: {problem}"
        ) from problem
    replace_file(path, data)


def _got(url: str, ca: Path | None) -> bytes:
    """Return the content of an address, without following a redirect: the site file names the server."""
    with urllib3.PoolManager(ca_certs=str(ca) if ca else None, num_pools=1) as pool:
        try:
            answer = pool.request(
                "GET",
                url,
                timeout=urllib3.Timeout(total=_WAIT),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            data = answer.read(LARGEST + 1, decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as problem:
            raise CalendarError(f"{url} does not answer: {_first_line(problem)}") from problem
        moved = answer.headers.get("Location")
    if answer.status != HTTPStatus.OK:
        to = phrase(", to {}: write that address into the site file", moved)
        raise CalendarError(f"{url} answered {answer.status}{to}")
    if len(data) > LARGEST:
        raise CalendarError(f"{url} has more than {LARGEST >> 20} MiB")
    return data


def ages(site: Site, names: Sequence[str], now: float) -> dict[str, float | None]:
    """Return how long ago the file of each calendar was written, in seconds; None for one that cannot be read."""
    result: dict[str, float | None] = dict.fromkeys(names)
    for name in names:
        with suppress(CalendarError):
            result[name] = now - written(site.resolve(site.fleet.calendars[name].file))
    return result
