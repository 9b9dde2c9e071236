#!/usr/bin/env bash
# icalendar 7.3.2: of a file that is cut off, `Calendar.from_ical(text, multiple=True)` returns no calendar, and neither an error nor a warning.
#
# The events before the cut are lost with it. A reader that asks which events there are takes half a download for a calendar without events.
# Installs icalendar 7.3.2 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'icalendar==7.3.2'
tools/bin/python -W error - <<'PY'
import icalendar

EVENT = "BEGIN:VEVENT\r\nUID:{0}\r\nDTSTAMP:20260101T000000Z\r\nDTSTART;VALUE=DATE:2026122{0}\r\nEND:VEVENT\r\n"
whole = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//example//EN\r\n" + EVENT.format(1) + EVENT.format(2) + "END:VCALENDAR\r\n"
cut = whole[: whole.rindex("END:VEVENT")]
counts = [sum(len(one.events) for one in icalendar.Calendar.from_ical(text, multiple=True)) for text in (whole, cut)]
print(f"events in the whole file: {counts[0]}; in the file without its last 2 lines: {counts[1]}")
raise SystemExit(counts != [2, 0])
PY
