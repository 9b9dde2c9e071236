#!/usr/bin/env bash
# icalendar 7.3.2: a time zone that one calendar defines also counts in the calendars that are read after it, against their own definition.
#
# The names are shared by the process (`icalendar.timezone.tzp`), and the first definition of a name stays. Exchange calls any zone that a user has
# changed "Customized Time Zone", so the second file is read hours off. `icalendar.use_zoneinfo()` before each file empties the table.
# Installs icalendar 7.3.2 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'icalendar==7.3.2'
tools/bin/python - <<'PY'
import icalendar

NAME = "Customized Time Zone"

def calendar(offset: str) -> str:
    lines = f"""BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//EN
BEGIN:VTIMEZONE
TZID:{NAME}
BEGIN:STANDARD
DTSTART:16010101T000000
TZOFFSETFROM:{offset}
TZOFFSETTO:{offset}
END:STANDARD
END:VTIMEZONE
BEGIN:VEVENT
UID:one
DTSTART;TZID={NAME}:20260701T120000
DTEND;TZID={NAME}:20260701T130000
END:VEVENT
END:VCALENDAR
"""
    return lines.replace("\n", "\r\n")

def hours(offset: str) -> float:
    event = icalendar.Calendar.from_ical(calendar(offset)).events[0]
    return event.start.utcoffset().total_seconds() / 3600

first, second = hours("+0200"), hours("-0500")
icalendar.use_zoneinfo()
alone = hours("-0500")
print(f"first file, defined as +2: {first:+g}; second file, defined as -5: {second:+g}; alone: {alone:+g}")
raise SystemExit((first, second, alone) != (2, 2, -5))
PY
