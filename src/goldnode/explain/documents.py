"""Readers of whole documents: `nvidia-smi -q`, its XML, captures, also as a part of an `nvidia-bug-report`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from goldnode.classdoc import known
from goldnode.explain.model import TextAnswer, TextReading, of_symptom
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.ground.text import cleaned
from goldnode.node.probe import smi, smitext
from goldnode.node.verdict import undeclared

_RULE = re.compile(r"^_{20,}$|^=+NVSMI LOG=+$")


def query(lines: Sequence[str]) -> TextReading | None:
    """Read the output of `nvidia-smi -q`, judged as `goldnode check-node` judges it."""
    start = next((number for number, line in enumerate(lines) if "NVSMI LOG" in line), None)
    if start is None:
        return None
    end = next(
        (
            number
            for number, line in enumerate(lines)
            if number > start and _RULE.match(line.strip())
        ),
        len(lines),
    )
    text = "\n".join(lines[start:end])
    try:
        capture = dict(cleaned(smitext.parse(text.encode(), "the text")))
    except NodeError as problem:
        return TextReading(
            "`nvidia-smi -q`", set(range(start, end)), [f"could not be read: {problem}"]
        )
    return _judged("`nvidia-smi -q`", capture, lines=lines, span=range(start, end))


_FABRIC = re.compile(
    r"^\s*(?P<name>State|Status|CliqueId|ClusterUUID|Health|Summary|Bandwidth|Route \w+(?: in progress)?|Access Timeout Recovery"
    r"|Incorrect Configuration|Partition Assigned)\s*(?::\s*(?P<value>.*\S))?\s*$"
)


def fabric(lines: Sequence[str]) -> TextReading | None:
    """Read sections *Fabric* of `nvidia-smi -q` that were pasted without the document around them."""
    reading = TextReading("the section Fabric of `nvidia-smi -q`")
    for start, line in enumerate(lines):
        if line.strip() != "Fabric":
            continue
        values: dict[str, str] = {}
        end = start + 1
        while end < len(lines) and (match := _FABRIC.match(lines[end])):
            values.setdefault(match["name"], match["value"] or "")
            end += 1
        if "State" not in values:
            continue
        reading.used.update(range(start, end))
        state, status = values["State"], values.get("Status", "N/A")
        # N/A in both is a board without a fabric.
        if state not in ("Completed", "N/A") or status not in ("Success", "N/A"):
            title = f"the fabric of a GPU is {state}, with the status {status}"
            answer = of_symptom("fabric-not-ready", text=lines[start + 1], line=start, title=title)
            reading.answers.append(answer)
    return reading if reading.used else None


def xml(lines: Sequence[str]) -> TextReading | None:
    """Read the output of `nvidia-smi -q -x`."""
    start = next(
        (number for number, line in enumerate(lines) if line.lstrip().startswith("<?xml")), None
    )
    end = next((number for number, line in enumerate(lines) if "</nvidia_smi_log>" in line), None)
    if start is None or end is None or end < start:
        return None
    try:
        text = "\n".join(lines[start : end + 1])
        capture = dict(cleaned(smi.parse(text.encode(), "the text")))
    except NodeError as problem:
        notes = [f"could not be read: {problem}"]
        return TextReading("`nvidia-smi -q -x`", set(range(start, end + 1)), notes)
    return _judged("`nvidia-smi -q -x`", capture, lines=lines, span=range(start, end + 1))


def _judged(
    form: str, capture: dict[str, Any], *, lines: Sequence[str], span: range
) -> TextReading:
    verdict = undeclared.examine(Host("/"), known.collect(), captured=capture, now=time.time())
    reading = TextReading(form, set(span))
    reading.notes.append(
        f"{len(capture.get('gpus') or [])} GPUs, judged as `goldnode check-node`: {verdict['status']}"
    )
    for finding in verdict["findings"]:
        if finding["outcome"] == "mismatch":
            reading.answers.append(
                TextAnswer(
                    id=finding["id"],
                    title=f"{finding['got']} (expected: {finding['expected']})",
                    text=lines[span.start],
                    line=span.start + 1,
                    layer=finding["domain"],
                    subject=finding["subject"],
                    effect=finding["severity"],
                    run="check",
                    here=(finding["id"],),
                    fix=finding["remedy"],
                )
            )
    return reading


def bug_report(lines: Sequence[str]) -> TextReading | None:
    """Take the frame of an `nvidia-bug-report`: its rules and the names of its sections.

    The sections are read by the readers of their forms.
    """
    if not any("nvidia bug report log file" in line.lower() for line in lines[:60]):
        return None
    reading = TextReading("an nvidia-bug-report")
    sections = 0
    for number, line in enumerate(lines):
        if re.match(r"^_{20,}$|^\*\*\* |^====+$", line.strip()):
            reading.used.add(number)
            sections += line.startswith("*** ")
    reading.notes.append(f"{sections} sections")
    return reading
