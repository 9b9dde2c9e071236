"""Readers of what other programs of a node print: Slurm's `sinfo -R` and `scontrol show node`, `ras-mc-ctl`, and `ibstat`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from goldnode.explain.model import TextReading, of_symptom
from goldnode.facts.symptoms import of_line

# `sinfo -R`, and `sinfo --list-reasons` with a format of one's own.
_REASONS = re.compile(r"^REASON\s+(?:\w+\s+)*NODELIST\s*$")
_NODE = re.compile(
    r"^\s*(NodeName|Arch|CPU\w+|AvailableFeatures|ActiveFeatures|Gres\w*|NodeAddr|OS|RealMemory|State|Partitions"
    r"|\w+Time|CfgTRES|AllocTRES|CurrentWatts|ExtSensors\w+|Reason|Comment|Extra)=\S"
)


def slurm(lines: Sequence[str]) -> TextReading | None:
    """Read the table of `sinfo -R`, and the fields of `scontrol show node`. The reason of a drain is judged."""
    head = next((number for number, line in enumerate(lines) if _REASONS.match(line)), None)
    fields = [number for number, line in enumerate(lines) if _NODE.match(line)]
    table: list[int] = []
    if head is not None:
        timed = "TIMESTAMP" in lines[head]
        for number in range(head + 1, len(lines)):
            # A row has a user, a time and nodes; sinfo cuts the reason at 20 characters.
            form = r"\s\d{4}-\d\d-\d\dT[\d:]+\s+\S+\s*$" if timed else r"\S\s{2,}\S+\s*$"
            if not re.search(form, lines[number]):
                break
            table.append(number)
    elif not any("Reason=" in lines[number] or "State=" in lines[number] for number in fields):
        return None
    judged = [number for number in fields if re.search("Reason=|INVALID_REG", lines[number])]
    reasons = [*table, *judged]
    name = "`sinfo -R`" if head is not None else "`scontrol show node`"
    reading = TextReading(f"the output of {name}", used=set(fields) - set(reasons))
    if head is not None:
        reading.used.add(head)
    reading.notes.append(f"{len(reasons)} reason{'' if len(reasons) == 1 else 's'} of a drain")
    for number in reasons:
        for row in of_line(lines[number])[:1]:
            reading.used.add(number)
            reading.answers.append(of_symptom(row, text=lines[number], line=number))
    return reading


_NONE = re.compile(r"^No [\w ]+ errors\.$")
_RECORD = re.compile(
    r"^\s*\d+ (?:\d{4}-\d\d-\d\d \S+ .*?error: |Corrected error|Uncorrected error)"
)
_SECTION = re.compile(r"^[\w ]+ (?:events|records summary|summary):$")


def ras(lines: Sequence[str]) -> TextReading | None:
    """Read `ras-mc-ctl --errors` or `--summary` of rasdaemon."""
    none = {number for number, line in enumerate(lines) if _NONE.match(line)}
    records = [number for number, line in enumerate(lines) if _RECORD.match(line)]
    if not none or len(none) + len(records) < 2:
        return None
    sections = {number for number, line in enumerate(lines) if _SECTION.match(line)}
    reading = TextReading("the output of `ras-mc-ctl`", used={*none, *records, *sections})
    reading.notes.append(f"{len(records)} record{'' if len(records) == 1 else 's'}")
    for number in records:
        bad = re.search(r"\b(?:uncorrected|fatal)\b", lines[number], re.IGNORECASE)
        name = "memory-uncorrected" if bad else "memory-corrected"
        reading.answers.append(of_symptom(name, text=lines[number], line=number))
    return reading


_CA = re.compile(r"^CA '(?P<name>\w+)'$")
_PORT = re.compile(r"^\s*Port (?P<number>\d+):$")
_FIELD = re.compile(
    r"^\s*(?P<name>CA type|Number of ports|Firmware version|Hardware version|Node GUID|System image GUID|State|Physical state|Rate"
    r"|Base lid|LMC|SM lid|Capability mask|Port GUID|Link layer):\s*(?P<value>.*)$"
)


def ibstat(lines: Sequence[str]) -> TextReading | None:
    """Read `ibstat` of infiniband-diags. A port that is not active is judged."""
    reading = TextReading("the output of `ibstat`")
    adapter = port = state = ""
    at = ports = 0
    for number, line in enumerate(lines):
        head, of_port, field = _CA.match(line), _PORT.match(line), _FIELD.match(line)
        if head:
            adapter, port = head["name"], ""
        elif of_port:
            port, ports = of_port["number"], ports + 1
        elif field and field["name"] == "State":
            state, at = field["value"], number
        elif field and field["name"] == "Physical state" and state not in ("", "Active"):
            reading.answers.append(
                of_symptom(
                    "ib-port-down",
                    text=lines[at],
                    line=at,
                    subject=adapter or None,
                    title=f"port {port or '?'} of {adapter or 'an adapter'} is {state} ({field['value']})",
                )
            )
            state = ""
        elif not field:
            continue
        reading.used.add(number)
    if not ports:
        return None
    reading.notes.append(f"{ports} port{'' if ports == 1 else 's'}")
    return reading
