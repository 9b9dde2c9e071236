"""Readers of logs: the kernel's, those of jobs with NCCL, and Python tracebacks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from goldnode.classdoc import known
from goldnode.explain import bars
from goldnode.explain.model import TextAnswer, TextReading, of_symptom
from goldnode.facts import xid
from goldnode.facts.symptoms import of_finding, of_line, symptoms
from goldnode.node.ground.host import Host
from goldnode.node.probe import events, logs
from goldnode.node.verdict import events as event_rules
from goldnode.node.verdict import undeclared

# A line of a kernel log: the stamp of dmesg (since the boot or since the last line), of syslog, of the journal, or a
# message that only the kernel writes.
_KERNEL = re.compile(
    r"^(\[ *\+?\d+\.\d+\]|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|kern *:|<\d+>|\d+,\d+,\d+,)"
    r"|^(\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\d[T ][\d:.,]+\S*) (\S+ )?kernel:( |$)|\bNVRM: "
)
# Open modules before 535 print the driver's name without a colon; /proc/driver/nvidia/version does too.
_WITHOUT_COLON = re.compile(r"\bNVRM (?!version: )(?=\w+: )")
# How node-problem-detector passes a message of the kernel on: an event of `kubectl describe node`, or a condition.
_CARRIED = re.compile(
    r"^\s*(?:Warning|Normal)\s+\w+\s+\S.*?\s{2,}kernel-monitor(?:,\s*\S+)?\s+(?P<event>\S.*)$"
    r"|\breason is \w+, +message is (?P<condition>\S.*)$"
)


# An Xid 154 names the action that the driver asks for.
_RECOVERY = re.compile(r"recovery action changed (?:from .{0,60}? )?to 0x([0-9a-fA-F]{1,2})\b")
_RECOVERED = "Nothing: the driver asks for no action any more."
_RECOVER = "Drain the node, and do what the line asks for."
_BARE_XID = re.compile(r"\bNVRM: Xid ?: ?\d")
# The second line of a PCIe error that was wrapped.
_WRAPPED = re.compile(r"^\s+type=[\w ]{1,40} Layer, ")
_LINES = 4  # of a finding that several lines of the log make


def kernel(lines: Sequence[str]) -> TextReading | None:
    """Read lines of a kernel log, and Xids as people quote them, by the rules of the health check."""
    reading = TextReading("a kernel log")
    lines = [_WITHOUT_COLON.sub("NVRM: ", line) for line in lines]
    text = _kernel_lines(lines, reading.used)
    quoted = _quoted(lines, reading)
    if not reading.used:
        return None
    section = events.parsed("\n".join(text))
    for finding in _findings(section):
        reading.answers.append(_of_finding(finding, lines))
    reading.answers.extend(quoted)
    reading.answers = _of_links(reading.answers)
    # The parser of the check leaves lines to the readers of state; a person gets their symptom.
    done = {answer.line - 1 for answer in quoted}
    for number in sorted(reading.used - done):
        rows = of_line(lines[number])[:1]
        if rows and bars.needless(lines[number]):
            continue
        if rows and not events.parsed(lines[number])["rows"]:
            reading.answers.append(of_symptom(rows[0], text=lines[number], line=number))
    reading.answers = bars.of_started(reading.answers, lines)
    count = len(reading.used)
    reading.notes.append(f"{count} line{'' if count == 1 else 's'}")
    return reading


def _kernel_lines(lines: Sequence[str], used: set[int]) -> list[str]:
    """Return the messages of the kernel in `lines`, and add the numbers of their lines to `used`."""
    text = []
    for number, line in enumerate(lines):
        carried = _CARRIED.search(line)
        if carried:
            message = carried["event"] or carried["condition"]
            if not _message(message):
                continue
            used.add(number)
            text.append(message)
        elif _KERNEL.search(line) or _message(line):
            used.add(number)
            text.append(line)
        elif number - 1 in used and _WRAPPED.match(line):
            used.add(number)
            text[-1] = f"{text[-1]} {line.strip()}"
    return text


def _message(line: str) -> bool:
    """Return whether a line without a stamp is a message that the health check knows."""
    data = line.strip().encode()
    return bool(logs.candidates(data)) and bool(events.parsed(line.strip())["rows"])


def _quoted(lines: Sequence[str], reading: TextReading) -> list[TextAnswer]:
    """Return the answers to Xids that the parser does not read, and mark their lines as read."""
    answers = []
    for number, line in enumerate(lines):
        # The parser needs an address; a person may have left it out.
        if number in reading.used and not _BARE_XID.search(line):
            continue
        for code, address in xid.quoted(line):
            reading.used.add(number)
            answers.append(of_xid(code, text=line, line=number, subject=address))
    return answers


def of_xid(code: int, *, text: str, line: int, subject: str | None) -> TextAnswer:
    """Return the answer to an Xid or SXid by its number. `line` counts from 0."""
    row = xid.explain(str(code))[0]
    asked = _RECOVERY.search(text) if code == 154 else None
    if asked:
        return _of_recovery(int(asked.group(1), 16), text=text, line=line, subject=subject)
    return TextAnswer(
        id=f"{row['kind'].lower()}.{code}",
        title=f"{row['kind']} {code}: {row['means'] or row['name'] or 'NVIDIA does not list it'}",
        text=text.strip(),
        line=line + 1,
        layer="hardware" if row["node"] == "drain" else "driver",
        subject=subject,
        effect=row["node"],
        causes=tuple(row.get("causes", ())),
        check="the kernel's log around it; does it come back on the same board, or with the same program?",
        run="check",
        here=(f"{row['kind'].lower()}.*",),
        fix=row["remedy"].replace("ADDRESS", subject or "ADDRESS") + _support(row),
        sources=tuple(row["sources"]),
    )


def _of_recovery(number: int, *, text: str, line: int, subject: str | None) -> TextAnswer:
    """Return the answer to an Xid 154 by the number of the action that its line asks for."""
    row = xid.explain("154")[0]
    known = 0 <= number < len(logs.RECOVERY)
    name = logs.RECOVERY[number] if known else "unknown"
    meaning = event_rules.RECOVERY[name][0] if name in event_rules.RECOVERY else "degraded"
    return TextAnswer(
        id="xid.154",
        title=f"Xid 154: the driver asks for: {name.replace('_', ' ')}",
        text=text.strip(),
        line=line + 1,
        layer="driver" if meaning == "none" else "hardware",
        subject=subject,
        effect=meaning,
        check="the Xid of the same GPU before it, which is the fault",
        run="check",
        here=("xid.*",),
        fix=_RECOVERED if meaning == "none" else _RECOVER,
        sources=tuple(row["sources"]),
    )


def _support(row: Mapping[str, Any]) -> str:
    """Return what NVIDIA asks for after its immediate action, as a sentence to add; empty if nothing."""
    if row.get("then") != "CONTACT_SUPPORT" or row.get("node") == "none":
        return ""
    return " Where it comes back, ask the vendor of the machine (`nvidia-bug-report.sh` before the restart)."


def _findings(section: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the health check reports because of these events."""
    host = Host("/")  # of which nothing is read

    def findings(part: dict[str, Any]) -> list[dict[str, Any]]:
        capture: dict[str, Any] = {
            "schema": "goldnode.capture/1",
            "time": None,
            "source": "record",
            "events": part,
            "gpus": [],
            "driver": {"vendor": "nvidia"},
        }
        verdict = undeclared.examine(host, known.collect(), captured=capture, now=time.time())
        return list(verdict["findings"])

    without = {_key(row) for row in findings({**section, "rows": []})}
    return [row for row in findings(section) if _key(row) not in without]


def _key(finding: dict[str, Any]) -> tuple[Any, ...]:
    return (finding["id"], finding["outcome"], finding["got"], finding["subject"])


def _of_finding(finding: dict[str, Any], lines: Sequence[str]) -> TextAnswer:
    evidence = str((finding["evidence"] or [finding["got"]])[0])
    at = [number for number, line in enumerate(lines) if _same(line, evidence)]
    fault = finding["outcome"] == "mismatch"
    sources: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    fix, check, effect = finding["remedy"], None, finding["severity"] if fault else "none"
    number = re.fullmatch(r"s?xid\.(\d+)", finding["id"])
    known = of_finding(finding["id"])
    if number:
        row = xid.explain(number.group(1))[0]
        sources, causes = tuple(row.get("sources", ())), tuple(row.get("causes", ()))
        fix = fix and fix + _support(row)
    elif known:
        # A text that was pasted is a part of the log: its rate decides nothing.
        sources, causes, check = tuple(map(str, known.sources)), known.causes, known.check
        fix, effect = fix or known.fix, effect if fault else None
    return TextAnswer(
        id=finding["id"],
        title=str(finding["got"]),
        text=evidence,
        line=at[0] + 1 if at else 1,
        more=tuple(map(str, finding["evidence"][1:_LINES])),
        count=max(len(at), 1),
        layer=finding["domain"],
        subject=finding["subject"],
        effect=effect,
        causes=causes,
        check=check,
        run="check",
        here=(finding["id"],),
        fix=fix or "Nothing: it is no fault of the node.",
        sources=sources,
    )


def _of_links(answers: list[TextAnswer]) -> list[TextAnswer]:
    """Return the answers, in which corrected errors of a link are no longer harmless beside a GPU that left the bus."""
    if not any(answer.id == "xid.79" for answer in answers):
        return answers
    row = symptoms()["corrected-errors-and-a-lost-gpu"]
    sources = tuple(map(str, row.sources))
    rows = []
    for answer in answers:
        if answer.id == "pcie.aer" and answer.effect == "none":
            answer = replace(
                answer,
                effect=None,
                causes=row.causes,
                check=row.check,
                fix=row.fix,
                sources=sources,
            )
        rows.append(answer)
    return rows


def _same(line: str, message: str) -> bool:
    """Return whether `line` holds `message`, of which the reader keeps a bounded part."""
    return bool(message) and message[:120] in line


# -- jobs

_NCCL = re.compile(r"\bNCCL (INFO|WARN|TRACE|version)|^\S+:\d+:\d+ \[\d+\] NCCL ")
_NCCL_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_NODES = re.compile(r"\bnNodes (\d+)\b")
_OFF = re.compile(r"NCCL_(?:IB_DISABLE|NET) set by environment to \w+")
_TRACEBACK = re.compile(r"^(?P<indent>.*?)Traceback \(most recent call last\):")


def nccl(lines: Sequence[str]) -> TextReading | None:
    """Read a log of NCCL (NCCL_DEBUG=INFO or WARN), of one rank or of all."""
    used = {number for number, line in enumerate(lines) if _NCCL.search(line)}
    if not used:
        return None
    reading = TextReading("a log of NCCL", used=used)
    versions = sorted({match.group(1) for line in lines if (match := _NCCL_VERSION.search(line))})
    if versions:
        reading.notes.append(f"NCCL {', '.join(versions)}")
    if len(versions) > 1:
        at = next(number for number in sorted(used) if _NCCL_VERSION.search(lines[number]))
        reading.answers.append(
            of_symptom(
                "collective-hangs",
                text=lines[at],
                line=at,
                subject=f"NCCL {' and '.join(versions)}",
                title="ranks of one job have different versions of NCCL",
            )
        )
    nodes = {int(match.group(1)) for line in lines if (match := _NODES.search(line))}
    # Within one node NCCL needs no network, and its log names the one that it picked all the same.
    alone = nodes == {1}
    reading.notes.extend(["one node: its network is not used"] if alone else ())
    off = next((match.group(0) for line in lines if (match := _OFF.search(line))), None)
    reading.notes.extend([off] if off else ())
    for number in sorted(used):
        # Every rank warns of its neighbours' end; the message itself, not the word WARN, is the symptom.
        rows = [row for row in of_line(lines[number]) if row.id != "collective-hangs"]
        rows = rows or [row for row in of_line(lines[number]) if "NCCL WARN" in lines[number]]
        rows = [row for row in rows if not (alone and row.id == "nccl-on-tcp")]
        reading.answers.extend(of_symptom(row, text=lines[number], line=number) for row in rows[:1])
    return reading


def tracebacks(lines: Sequence[str]) -> TextReading | None:
    """Read Python tracebacks: the last line of each has the error."""
    reading = TextReading("a Python traceback")
    number = 0
    while number < len(lines):
        match = _TRACEBACK.match(lines[number])
        if match is None:
            number += 1
            continue
        indent = match["indent"]
        start = number
        number += 1
        while number < len(lines) and lines[number].removeprefix(indent)[:1].isspace():
            number += 1
        # The error, and the lines that it goes on with, up to an empty one.
        end = number
        while end < len(lines) and lines[end].strip() and end < number + 12:
            end += 1
        reading.used.update(range(start, end))
        rows = [(at, row) for at in range(number, end) for row in of_line(lines[at])]
        if rows:
            at, row = rows[0]
            reading.answers.append(of_symptom(row, text=lines[at], line=at))
        number = max(end, number)
    return reading if reading.used else None
