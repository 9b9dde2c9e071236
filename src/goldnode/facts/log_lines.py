"""Typed access to `facts/log_lines.yml`: forms of messages of the kernel, what each means for a node, and who repairs it.

To add a message of a driver, add a row to that file:

1. `from`: the driver's name at the beginning of the line, or the first word of a line without a device (`EXT4-fs`, `NVRM`).
2. `mark`: words that are in every line of this form. They must contain one of `MARKS` in `node/probe/logs.py`, which is what whole logs are searched for.
3. `form`: a regular expression that matches from the beginning of the message. The message begins after driver, PCI address,
   port, `[drm]` and `*ERROR*`; `head` in `node/probe/logs.py` splits it. Leave it out where the message begins with the mark. Groups: `address`
   (PCI), `subject` (disk, port, DIMM, module; one finding for each), `multiple_of_N` (a number: the line counts only if it
   is a multiple of N), any other is a parameter of the event.
4. `finding`: its id in `node/state/kinds.py`; `severity`: `none` for a line that is known to be harmless.
5. `settled_by`: rows that withdraw it when they come later for the same device, such as a reset that succeeded.
   `limit`: a limit of `health.yml` in lines per minute, below which the line is a note.
6. `source` and `at`: the driver's file and function, with its version. `example`: a line, from a real log if there is one.

Then `python -m tests.unit.node.ground.test_log_lines` writes the table for the node and the page; the tests name what is missing. Real lines with
their expected verdict go into `tests/cases/logs/lines.yml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from goldnode.facts import host as facts
from goldnode.facts.host import Origin

FILE = "log_lines.yml"


@dataclass(frozen=True)
class KernelLineRemedy:
    """Repair of a reported fault. `steps` are those of a remedy, `blast` its blast radius."""

    name: str
    text: str
    steps: tuple[str, ...]
    blast: str


@dataclass(frozen=True)
class KernelLine:
    """One form of a message of the kernel. `form` is a regular expression for the message after its head."""

    id: str
    drivers: tuple[str, ...]
    mark: str
    form: str
    finding: str
    severity: str
    means: str
    remedy: KernelLineRemedy | None
    settled_by: tuple[str, ...]
    limit: str | None
    origins: tuple[Origin, ...]
    at: str
    examples: tuple[str, ...]


@cache
def remedies() -> dict[str, KernelLineRemedy]:
    """Return the remedies by name."""
    return {
        name: KernelLineRemedy(name, row["text"], tuple(row["steps"]), row["blast"])
        for name, row in facts.load(FILE)["remedies"].items()
    }


@cache
def lines() -> dict[str, KernelLine]:
    """Return every form by its id."""
    return {row["id"]: _line(row) for row in facts.load(FILE)["lines"]}


def _line(row: dict[str, Any]) -> KernelLine:
    return KernelLine(
        row["id"],
        drivers=_several(row["from"]),
        mark=row["mark"],
        form=row.get("form") or _literal(row["mark"]),
        finding=row["finding"],
        severity=row["severity"],
        means=row["means"],
        remedy=remedies().get(row.get("remedy", "")),
        settled_by=tuple(row.get("settled_by") or ()),
        limit=row.get("limit"),
        origins=facts.origins(FILE, row["source"]),
        at=row["at"],
        examples=_several(row["example"]),
    )


def _several(value: str | list[str]) -> tuple[str, ...]:
    """Return one text, or several, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value)


def _literal(text: str) -> str:
    """Return the text as a regular expression; `re.escape` would escape spaces, which only makes it longer."""
    return text.translate({ord(char): "\\" + char for char in r"\.^$*+?{}[]()|"})


def table() -> dict[str, Any]:
    """Return the table for the program on the node: `remedies` by name and the rows, each a list in the order of
    :class:`goldnode.node.ground.log_lines.Form`.
    """
    rows = [
        [
            row.id,
            " ".join(row.drivers),
            row.mark,
            row.form,
            row.finding,
            row.severity,
            row.means,
            row.remedy and row.remedy.name,
            " ".join(row.settled_by),
            row.limit,
        ]
        for row in lines().values()
    ]
    used = {row.remedy.name for row in lines().values() if row.remedy}
    texts = {
        name: [row.text, row.blast, *row.steps] for name, row in remedies().items() if name in used
    }
    return {"remedies": texts, "rows": rows}
