#!/usr/bin/env bash
# recurring-ical-events 3.8.2: of two events with one UID and no RECURRENCE-ID only one is returned, and an event whose end is before its begin is
# returned with the two exchanged. Neither is reported, also with skip_bad_series=False.
#
# Files that were merged by hand repeat a UID. A wrong year of DTEND, as after copying last year's entry, becomes an event of a year.
# Installs recurring-ical-events 3.8.2 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'recurring-ical-events==3.8.2' 'icalendar==7.3.2'
tools/bin/python - <<'PY'
import icalendar, recurring_ical_events

def days(*events: str) -> list[tuple[str, str]]:
    body = "".join(f"BEGIN:VEVENT\r\nUID:one\r\n{event}\r\nEND:VEVENT\r\n" for event in events)
    calendar = icalendar.Calendar.from_ical(f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//example//EN\r\n{body}END:VCALENDAR\r\n")
    query = recurring_ical_events.of(calendar, skip_bad_series=False)
    return [(str(one["DTSTART"].dt), str(one["DTEND"].dt)) for one in query.between((2025, 1, 1), (2028, 1, 1))]

twice = days("DTSTART;VALUE=DATE:20261224", "DTSTART;VALUE=DATE:20261231")
back = days("DTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20251227")
print(f"two events with one UID: {twice}; end before begin: {back}")
raise SystemExit(len(twice) != 1 or back != [("2025-12-27", "2026-12-24")])
PY
