"""Freeze calendars as programs export them: each case is a form that Google, Exchange, Nextcloud or Apple writes.

Sources of the forms: RFC 5545; exports in public repositories and issue trackers (Exchange's own zone names and its
"Customized Time Zone" of any zone; Google's all-day events, which are free; cancelled single days of DAVx5); and
icalendar 7.3.2 with recurring-ical-events 3.8.2, which were run on each case on 2026-11-28.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from tests.unit.fleet.rollout.documents import written

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, SiteCalendar, SiteFleet
from goldnode.fleet.control import calendar_files
from goldnode.fleet.control.calendar_files import CalendarError, CalendarRules, expand

pytest.importorskip("recurring_ical_events", reason="the extra `calendars` is not installed")

ZURICH = CalendarRules(ZoneInfo("Europe/Zurich"))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
UNTIL = BEGIN + 400 * 86400
FILE = Path("freeze.ics")
HEAD = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//example//freeze//EN\r\n"
END = "END:VCALENDAR\r\n"


def event(*lines: str, uid: str = "one", zones: str = "", more: str = "", head: str = HEAD) -> str:
    """Return a calendar with one event, and `more` after it."""
    body = "\r\n".join(("BEGIN:VEVENT", f"UID:{uid}", *lines, "END:VEVENT", ""))
    return f"{head}{zones}{body}{more}{END}"


def second(*lines: str, uid: str = "one") -> str:
    return "\r\n".join(("BEGIN:VEVENT", f"UID:{uid}", *lines, "END:VEVENT", ""))


def zone(name: str, standard: str = "+0100", summer: str = "+0200") -> str:
    """Return a definition as Exchange writes it: from the year 1601 on, for ever."""
    return "\r\n".join(
        (
            "BEGIN:VTIMEZONE",
            f"TZID:{name}",
            "BEGIN:STANDARD",
            "DTSTART:16010101T030000",
            f"TZOFFSETFROM:{summer}",
            f"TZOFFSETTO:{standard}",
            "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=10",
            "END:STANDARD",
            "BEGIN:DAYLIGHT",
            "DTSTART:16010101T020000",
            f"TZOFFSETFROM:{standard}",
            f"TZOFFSETTO:{summer}",
            "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=3",
            "END:DAYLIGHT",
            "END:VTIMEZONE",
            "",
        )
    )


def timed(name: str, day: str = "20260701") -> tuple[str, str]:
    """Return the lines of an event from 12:00 to 13:00 in a zone."""
    return f"DTSTART;TZID={name}:{day}T120000", f"DTEND;TZID={name}:{day}T130000"


def spans(text: str, rules: CalendarRules = ZURICH) -> list[str]:
    """Return the freezes of a text in UTC."""
    return [
        f"{datetime.fromtimestamp(span.begin, UTC):%m-%dT%H:%M}/{datetime.fromtimestamp(span.end, UTC):%m-%dT%H:%M}"
        for span in expand(text.encode(), FILE, rules, BEGIN, UNTIL)
    ]


DAY = "DTSTART;VALUE=DATE:20260324"
CASES = {
    "Google, all day and free": (
        event("DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20261227", "TRANSP:TRANSPARENT"),
        ["12-23T23:00/12-26T23:00"],
    ),
    "Exchange, all day and free": (
        event(
            "DTSTART;VALUE=DATE:20261224",
            "DTEND;VALUE=DATE:20261225",
            "X-MICROSOFT-CDO-ALLDAYEVENT:TRUE",
            "X-MICROSOFT-CDO-BUSYSTATUS:FREE",
        ),
        ["12-23T23:00/12-24T23:00"],
    ),
    "day without an end": (event("DTSTART;VALUE=DATE:20261224"), ["12-23T23:00/12-24T23:00"]),
    "UTC": (event("DTSTART:20261224T120000Z", "DURATION:PT1H"), ["12-24T12:00/12-24T13:00"]),
    "floating": (event("DTSTART:20261224T120000", "DURATION:PT1H"), ["12-24T11:00/12-24T12:00"]),
    "floating, with the zone of the calendar": (
        event(
            "DTSTART:20261224T120000",
            "DURATION:PT1H",
            head=HEAD + "X-WR-TIMEZONE:America/New_York\r\n",
        ),
        ["12-24T17:00/12-24T18:00"],
    ),
    "zone of the database without a definition": (
        event(*timed("Europe/Zurich", "20261224")),
        ["12-24T11:00/12-24T12:00"],
    ),
    "zone of Windows with its definition": (
        event(*timed("W. Europe Standard Time"), zones=zone("W. Europe Standard Time")),
        ["07-01T10:00/07-01T11:00"],
    ),
    "zone of Windows without a definition": (
        event(*timed("W. Europe Standard Time")),
        ["07-01T10:00/07-01T11:00"],
    ),
    "zone in quotes": (
        event(*timed('"W. Europe Standard Time"'), zones=zone("W. Europe Standard Time")),
        ["07-01T10:00/07-01T11:00"],
    ),
    "zone that a user has changed, defined after the event": (
        event(*timed("Customized Time Zone"), more=zone("Customized Time Zone", "-0500", "-0400")),
        ["07-01T16:00/07-01T17:00"],
    ),
    "zone with the address of its maker": (
        event(*timed("/freeassociation.sourceforge.net/America/New_York")),
        ["07-01T16:00/07-01T17:00"],
    ),
    "weekly over a clock change, until a moment of UTC": (
        event(
            "DTSTART;TZID=Europe/Zurich:20260323T220000",
            "DTEND;TZID=Europe/Zurich:20260324T020000",
            "RRULE:FREQ=WEEKLY;UNTIL=20260406T200000Z",
        ),
        ["03-23T21:00/03-24T01:00", "03-30T20:00/03-31T00:00", "04-06T20:00/04-07T00:00"],
    ),
    "until a day, with times": (
        event(
            "DTSTART;TZID=Europe/Zurich:20260323T220000",
            "DURATION:PT4H",
            "RRULE:FREQ=WEEKLY;UNTIL=20260331",
        ),
        ["03-23T21:00/03-24T01:00", "03-30T20:00/03-31T00:00"],
    ),
    "a day is left out": (
        event(DAY, "RRULE:FREQ=DAILY;COUNT=3", "EXDATE;VALUE=DATE:20260325"),
        ["03-23T23:00/03-24T23:00", "03-25T23:00/03-26T23:00"],
    ),
    "a day is moved": (
        event(
            DAY,
            "RRULE:FREQ=DAILY;COUNT=2",
            more=second("RECURRENCE-ID;VALUE=DATE:20260325", "DTSTART;VALUE=DATE:20260410"),
        ),
        ["03-23T23:00/03-24T23:00", "04-09T22:00/04-10T22:00"],
    ),
    "a day is cancelled": (
        event(
            DAY,
            "RRULE:FREQ=DAILY;COUNT=2",
            more=second(
                "RECURRENCE-ID;VALUE=DATE:20260325",
                "DTSTART;VALUE=DATE:20260325",
                "STATUS:CANCELLED",
            ),
        ),
        ["03-23T23:00/03-24T23:00"],
    ),
    "an hour is cancelled by its moment of UTC": (
        event(
            "DTSTART;TZID=Europe/Berlin:20260323T101500",
            "DURATION:PT90M",
            "RRULE:FREQ=WEEKLY;COUNT=2",
            more=second(
                "RECURRENCE-ID:20260330T081500Z",
                "DTSTART;TZID=Europe/Berlin:20260330T101500",
                "STATUS:CANCELLED",
            ),
        ),
        ["03-23T09:15/03-23T10:45"],
    ),
    "all of it is cancelled": (event(DAY, "RRULE:FREQ=DAILY;COUNT=3", "STATUS:CANCELLED"), []),
    "a message that cancels": (event(DAY, head=HEAD + "METHOD:CANCEL\r\n"), []),
    "tentative": (event(DAY, "STATUS:TENTATIVE"), ["03-23T23:00/03-24T23:00"]),
    "two events with one id": (
        event(DAY, more=second("DTSTART;VALUE=DATE:20260410")),
        ["03-23T23:00/03-24T23:00", "04-09T22:00/04-10T22:00"],
    ),
    "a later version of an event": (
        event(DAY, "SEQUENCE:0", more=second("DTSTART;VALUE=DATE:20260410", "SEQUENCE:1")),
        ["04-09T22:00/04-10T22:00"],
    ),
    "folded lines": (
        event("SUM\r\n MARY:Freeze", "DTSTART;VALUE=DA\r\n TE:20261224"),
        ["12-23T23:00/12-24T23:00"],
    ),
    "line ends of Unix": (
        event("DTSTART;VALUE=DATE:20261224").replace("\r\n", "\n"),
        ["12-23T23:00/12-24T23:00"],
    ),
    "byte order mark": (
        "\ufeff" + event("DTSTART;VALUE=DATE:20261224"),
        ["12-23T23:00/12-24T23:00"],
    ),
    "two calendars in one file": (
        event(DAY) + event("DTSTART;VALUE=DATE:20261224", uid="two"),
        ["03-23T23:00/03-24T23:00", "12-23T23:00/12-24T23:00"],
    ),
    "began before": (
        event("DTSTART;VALUE=DATE:20251220", "DTEND;VALUE=DATE:20260106"),
        ["12-19T23:00/01-05T23:00"],
    ),
    "tasks and alarms": (
        event(
            DAY,
            "BEGIN:VALARM",
            "ACTION:DISPLAY",
            "TRIGGER:-PT15M",
            "END:VALARM",
            more="BEGIN:VTODO\r\nUID:t\r\nDUE;VALUE=DATE:20260401\r\nEND:VTODO\r\n",
        ),
        ["03-23T23:00/03-24T23:00"],
    ),
    "no event": (HEAD + END, []),
    # Clock changes of Zurich: on 29 March 02:00 is 03:00, on 25 October 03:00 is 02:00.
    "begins in the hour that is skipped": (
        event(
            "DTSTART;TZID=Europe/Zurich:20260329T023000", "DTEND;TZID=Europe/Zurich:20260329T040000"
        ),
        ["03-29T01:00/03-29T02:00"],
    ),
    "ends in the hour that comes twice": (
        event(
            "DTSTART;TZID=Europe/Zurich:20261025T013000", "DTEND;TZID=Europe/Zurich:20261025T023000"
        ),
        ["10-24T23:30/10-25T01:30"],
    ),
    "begins in the hour that comes twice": (
        event(
            "DTSTART;TZID=Europe/Zurich:20261025T023000", "DTEND;TZID=Europe/Zurich:20261025T040000"
        ),
        ["10-25T00:30/10-25T03:00"],
    ),
    "ends twice, in a zone of the file": (
        event(
            "DTSTART;TZID=Ours:20261025T013000",
            "DTEND;TZID=Ours:20261025T023000",
            zones=zone("Ours"),
        ),
        ["10-24T23:30/10-25T01:30"],
    ),
    "days over both changes": (
        event(
            "DTSTART;VALUE=DATE:20260328",
            "DURATION:P2D",
            more=second("DTSTART;VALUE=DATE:20261024", "DURATION:P2D", uid="two"),
        ),
        ["03-27T23:00/03-29T22:00", "10-23T22:00/10-25T23:00"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_events_of_a_file_are_freezes(text: str, expected: list[str]) -> None:
    assert spans(text) == expected


def test_day_that_begins_with_a_clock_change_begins_with_it() -> None:
    """In Beirut the clock goes from 00:00 to 01:00 on 29 March 2026, which is 22:00 UTC."""
    assert spans(event("DTSTART;VALUE=DATE:20260329"), CalendarRules(ZoneInfo("Asia/Beirut"))) == [
        "03-28T22:00/03-29T21:00"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no iCalendar file"),
        ("<html>Please log in</html>", "no iCalendar file"),
        # icalendar finds no event in a file that is cut off, and reports nothing.
        (event(DAY)[:-16], "cut off"),
        (event(DAY)[:-30], "cut off"),
        (event(DAY).replace("END:VEVENT\r\n", ""), "END:VCALENDAR has no BEGIN:VCALENDAR"),
        (event("DTSTART;VALUE=DATE:20261399"), "cannot be read: DTSTART"),
        (event("SUMMARY:Freeze"), 'event "Freeze" has no DTSTART'),
        (event(DAY, "EXDATE:tomorrow", "RRULE:FREQ=DAILY;COUNT=3"), "cannot be read: EXDATE"),
        (event(DAY, "RRULE:FREQ=FORTNIGHTLY"), "cannot be read: RRULE"),
        (
            event("DTSTART:20261224T120000Z", "RRULE:FREQ=SECONDLY", "DURATION:PT1S"),
            "repeats secondly",
        ),
        (event("DTSTART:20261224T120000Z"), "has no length"),
        # recurring-ical-events exchanges the two.
        (event("DTSTART:20261224T120000Z", "DTEND:20251231T120000Z"), "ends before it begins"),
        # icalendar takes these times as local ones of no zone.
        (
            event(*timed("Customized Time Zone")),
            'time zone "Customized Time Zone", which is unknown',
        ),
        (event(*timed('"(UTC+01:00) Bern, Rome"')), "which the file does not define"),
        (
            f"{HEAD}BEGIN:VFREEBUSY\r\nUID:f\r\nFREEBUSY:20261224T120000Z/PT1H\r\nEND:VFREEBUSY\r\n{END}",
            "export the events",
        ),
    ],
)
def test_file_that_is_not_certain_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(CalendarError) as error:
        expand(text.encode(), FILE, ZURICH, BEGIN, UNTIL)
    assert problem in str(error.value)
    assert "freeze.ics" in str(error.value)


def test_zone_of_another_file_does_not_count() -> None:
    """icalendar has one table of zones for the process: the first definition of a name would win."""
    one = event(*timed("Customized Time Zone"), zones=zone("Customized Time Zone"))
    other = event(
        *timed("Customized Time Zone"), zones=zone("Customized Time Zone", "-0500", "-0400")
    )
    assert spans(one) == ["07-01T10:00/07-01T11:00"]
    assert spans(other) == ["07-01T16:00/07-01T17:00"]
    with pytest.raises(CalendarError, match="does not define"):
        spans(event(*timed("Customized Time Zone")))


def test_utf_16_is_read() -> None:
    data = ("\ufeff" + event(DAY, "SUMMARY:Änderungsstopp")).encode("utf-16-le")
    (span,) = expand(data, FILE, ZURICH, BEGIN, UNTIL)
    assert span.summary == "Änderungsstopp"


def test_match_and_before() -> None:
    text = event(
        DAY,
        "SUMMARY:Change freeze",
        more=second(
            "DTSTART;VALUE=DATE:20260401", "SUMMARY:Lunch", "CATEGORIES:Team,Freeze", uid="two"
        )
        + second("DTSTART;VALUE=DATE:20260501", "SUMMARY:Picnic", uid="three"),
    )
    rules = CalendarRules(ZoneInfo("UTC"), "(?i)freeze", 3600)
    assert spans(text, rules) == ["03-23T23:00/03-25T00:00", "03-31T23:00/04-02T00:00"]


def site(directory: Path, **values: object) -> Site:
    given = {"file": "freeze.ics", "zone": "Europe/Zurich", **values}
    fleet = SiteFleet(calendars={"stop": SiteCalendar.model_validate(given)})
    return Site(fleet=fleet, file=directory / "site.yml")


def test_reading_has_the_problem_and_no_freeze(tmp_path: Path) -> None:
    (reading,) = calendar_files.read(site(tmp_path), "l4", BEGIN)
    assert reading.problem is not None
    assert "freeze.ics cannot be read: No such file or directory" in reading.problem
    (tmp_path / "freeze.ics").write_text(event(DAY))
    (reading,) = calendar_files.read(site(tmp_path), "l4", BEGIN, 400)
    assert reading.problem is None
    assert len(reading.spans) == 1


def test_old_file_counts_as_not_checked(tmp_path: Path) -> None:
    (tmp_path / "freeze.ics").write_text(event(DAY))
    at = (tmp_path / "freeze.ics").stat().st_mtime
    declared = site(tmp_path, max_age=7)
    (fresh,) = calendar_files.read(declared, "l4", at + 6.9 * 86400)
    (old,) = calendar_files.read(declared, "l4", at + 9.2 * 86400)
    assert fresh.problem is None
    assert "was written 9 days ago, and max_age is 7 days" in str(old.problem)


def test_calendar_of_another_class_is_not_read(tmp_path: Path) -> None:
    declared = site(tmp_path, classes=["h100"])
    assert calendar_files.read(declared, "l4", BEGIN) == []
    assert calendar_files.names_of(declared, "h100") == ("stop",)


@contextmanager
def served(status: int, body: str, **headers: str) -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/freeze.ics"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "headers", "problem"),
    [
        (200, "<html>Please log in</html>", {}, "replaces no file"),
        (200, event(DAY)[:-16], {}, "replaces no file"),
        (404, "", {}, "answered 404"),
        (302, "", {"Location": "https://sso.example/login"}, "to https://sso.example/login"),
    ],
)
def test_answer_that_is_no_calendar_replaces_no_file(
    tmp_path: Path, status: int, body: str, headers: dict[str, str], problem: str
) -> None:
    (tmp_path / "freeze.ics").write_text("as before")
    with served(status, body, **headers) as url, pytest.raises(GoldnodeError, match=problem):
        calendar_files.fetch(site(tmp_path, url=url), "stop", BEGIN)
    assert (tmp_path / "freeze.ics").read_text() == "as before"


def test_fetched_calendar_is_written(tmp_path: Path) -> None:
    with served(200, event(DAY)) as url:
        calendar_files.fetch(site(tmp_path, url=url), "stop", BEGIN)
    assert (tmp_path / "freeze.ics").read_bytes() == event(DAY).encode()


def test_command_shows_ages_and_the_next_freezes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yml").write_text(
        "fleet:\n  calendars:\n    stop: {file: freeze.ics, zone: UTC}\n    gone: {file: no.ics, zone: UTC}\n"
    )
    day = f"{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    (tmp_path / "freeze.ics").write_text(event(f"DTSTART;VALUE=DATE:{day}", "SUMMARY:Year end"))
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    done = CliRunner().invoke(main, ["rollout", "calendars", "stop"])
    assert done.exit_code == 0, done.output
    assert f"{day[:4]}-{day[4:6]}-{day[6:]}T00:00:00Z" in done.stdout
    assert "Year end" in done.stdout
    both = CliRunner().invoke(main, ["rollout", "calendars", "--format", "json"])
    assert both.exit_code == 1
    stop, gone = json.loads(both.stdout)["calendars"]
    assert [span["summary"] for span in stop["spans"]] == ["Year end"]
    assert "no.ics cannot be read" in gone["problem"]
    wrong = CliRunner().invoke(main, ["rollout", "calendars", "stp"])
    assert wrong.exit_code == 2
    assert "stop" in wrong.output
    checked = CliRunner().invoke(
        main, ["rollout", "check", str(written(tmp_path).source.file), "--nodes", "40"]
    )
    assert "Year end" in checked.stdout
    assert "calendar gone could not be checked" in checked.stdout
