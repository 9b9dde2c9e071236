"""Report of `goldnode check --to` as text, as one HTML page, and as files of rollout documents."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from goldnode.commands.output import html_page, table
from goldnode.compat.model import DeclaredAt
from goldnode.compat.report import WIDTH, where
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file
from goldnode.core.progress import text_width
from goldnode.documents.rollout import RolloutDocument
from goldnode.documents.what_if import (
    WhatIfChange,
    WhatIfDocument,
    WhatIfFinding,
    WhatIfLocks,
    WhatIfMove,
    WhatIfSubject,
)
from goldnode.node.ground.text import phrase

OWNERS = (
    "canary pool, waves, soak times, requirements, windows and approvals are the owner's to add"
)
_STEPS = {
    "replace": "replace before the nodes move",
    "move": "move",
    "start": "start after the nodes have moved",
    "drop": "drop",
}


def text(document: WhatIfDocument) -> str:
    """Return the report for a person: verdicts, changed findings, parts and packages, order, rollouts."""
    lines = [*_wrapped(f"{summary(document)}.", ""), ""]
    lines += [f"class {item.class_} stays: {item.why}" for item in document.stays]
    lines += ["", *_verdicts(document)]
    alike: dict[str, list[WhatIfSubject]] = {}  # subjects with the same changes are shown once
    for subject in document.subjects:
        alike.setdefault(f"{_differing(subject)}", []).append(subject)
    for subjects in alike.values():
        rows = _differing(subjects[0])
        if rows:
            heading = _wrapped(", ".join(map(title, subjects)), "")
            lines += ["", *heading, *(line for row in rows for line in _change(row))]
    for locks in document.locks:
        lines += ["", *_locks(locks)]
    lines += ["", "order, once the reasons below are resolved:" if document.refused else "order:"]
    for number, step in enumerate(document.order, start=1):
        lines += _wrapped(f"{number}. {_STEPS[step.do]}: {'; '.join(step.what)}", "  ", "     ")
        lines += _wrapped(step.why, "     ")
    lines += ["", *_end(document), ""]
    lines += _wrapped(
        f"Facts of {document.facts}. Not checked: {'; '.join(document.not_checked)}.", ""
    )
    return "\n".join(_single_blank(lines))


def summary(document: WhatIfDocument) -> str:
    """Return one sentence: the classes that move, and the number of findings that differ."""
    number = len(document.moves)
    counts = document.counts
    return (
        f"{number} class{'es' * (number != 1)} to stack {document.to_stack} ({_lock(document.to_lock)}): "
        f"{', '.join(map(moved, document.moves))}. Findings: {counts.new} new, {counts.changed} changed, "
        f"{counts.gone} gone, {counts.unchanged} unchanged"
    )


def moved(item: WhatIfMove) -> str:
    """Return a class with its present stack and number of hosts."""
    hosts = "" if item.hosts is None else f", {item.hosts} host{'s' * (item.hosts != 1)}"
    return f"{item.class_} (stack {item.stack}{hosts})"


def title(subject: WhatIfSubject) -> str:
    """Return a subject with its class."""
    return f"{subject.kind} {subject.name}{phrase(' on class {}', subject.class_)}"


def rollout_text(document: RolloutDocument) -> str:
    """Return a rollout document as the text of its YAML file."""
    content = document.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return f"# Not complete: {OWNERS}.\n" + yaml.safe_dump(content, sort_keys=False, width=WIDTH)


def write_rollouts(document: WhatIfDocument, directory: Path) -> list[Path]:
    """Write each rollout document to NAME.yml in `directory`, and return the files. Raises GoldnodeError."""
    written = []
    for rollout in document.rollouts:
        path = directory / f"{rollout.rollout}.yml"
        try:
            replace_file(path, rollout_text(rollout).encode())
        except OSError as problem:
            raise GoldnodeError(
                f"the rollout document cannot be written: {problem.strerror}",
                file=path,
                remedy="name another directory with --rollouts",
            ) from problem
        written.append(path)
    return written


def html(document: WhatIfDocument) -> str:
    """Return the report as one self-contained HTML page."""
    return html_page(
        "what_if.html.j2",
        report=document,
        summary=summary,
        moved=moved,
        title=title,
        lock=_lock,
        rollout_text=rollout_text,
        owners=OWNERS,
        steps=_STEPS,
        size=_size,
    )


def _lock(digest: str | None) -> str:
    return "no lock" if digest is None else f"lock {digest.removeprefix('sha256:')[:12]}"


def _verdicts(document: WhatIfDocument) -> list[str]:
    rows = [["subject", "before", "after", ""]]
    for subject in document.subjects:
        indent = "  " if subject.class_ else ""
        rows.append(
            [
                f"{indent}{subject.kind} {subject.name}",
                subject.before,
                subject.after,
                "<- changes" if subject.before != subject.after else "",
            ]
        )
    return table(rows).splitlines()


def _differing(subject: WhatIfSubject) -> list[WhatIfChange]:
    return [change for change in subject.changes if change.change != "unchanged"]


def _change(change: WhatIfChange) -> list[str]:
    now, was = change.after or change.before, change.before if change.change == "changed" else None
    assert now is not None  # noqa: S101 - a change has one side at least
    lines = _wrapped(
        f"{_severity(now)}: {now.message} [{now.rule}]", f"  {change.change:<9}", " " * 11
    )
    if was is not None:
        lines += _wrapped(f"before: {_severity(was)}: {was.message}", " " * 11, " " * 13)
    if now.remedy and change.change != "gone":
        lines += _wrapped(f"instead: {now.remedy}", " " * 11, " " * 13)
    if now.sources:
        lines += _wrapped(f"source: {'; '.join(now.sources)}", " " * 11, " " * 13)
    return lines


def _severity(finding: WhatIfFinding) -> str:
    return finding.severity if finding.accepted is None else f"{finding.severity} (accepted)"


def _locks(locks: WhatIfLocks) -> list[str]:
    lines = [
        f"stack {locks.stack} ({_lock(locks.lock)}) -> {locks.to_stack} ({_lock(locks.to_lock)}), in one transaction:"
    ]
    width = max((len(part.part) for part in locks.parts), default=0)
    for part in locks.parts:
        if part.before == part.after:
            move = f"stays at {part.after}"
        else:
            move = f"{part.before or 'none'} -> {part.after or 'none'}"
        lines += _wrapped(f"{part.part:<{width}}  {move}", "  ")
        if part.before != part.after:
            lines += _wrapped(f"{part.why}{phrase(' [{}]', part.rule)}", " " * (width + 4))
    held = [row for row in locks.packages if row.held]
    if held:
        lines.append(
            f"packages of the stack set, {len(held)} of {len(locks.packages)} that differ:"
        )
        packages = [
            [f"  {row.kind}", row.name, f"{row.before or '-'} -> {row.after or '-'}", row.reason]
            for row in held
        ]
        lines += table(packages).splitlines()
        lines.append(
            f"{_size(locks.fetch_bytes)} to fetch; {f'reboot: {locks.reboot}' if locks.reboot else 'no reboot'}"
        )
    elif locks.lock and locks.to_lock:
        lines.append("no package of the stack set differs")
    else:
        lines.append("packages are not compared: a lock is missing")
    return lines


def _end(document: WhatIfDocument) -> list[str]:
    lines: list[str] = []
    for rollout in document.rollouts:
        lines += [
            f"rollout of class {rollout.class_}:",
            *(f"  {line}" for line in rollout_text(rollout).splitlines()),
            "",
        ]
    for name in dict.fromkeys(item.class_ for item in document.refused):
        lines.append(f"no rollout of class {name}, because:")
        for item in document.refused:
            if item.class_ == name:
                lines += _wrapped(item.why, "  - ", "    ")
                if item.remedy:
                    lines += _wrapped(f"instead: {item.remedy}", "    ", "      ")
    for move in document.moves if document.rollouts else ():
        if move.stack != document.to_stack and move.class_ in {
            item.class_ for item in document.rollouts
        }:
            place = where(DeclaredAt(Path(move.file), move.line))
            lines += _wrapped(f"To declare it: `stack: {document.to_stack}` in {place}", "")
    return lines


def _size(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"


def _single_blank(lines: Sequence[str]) -> Iterable[str]:
    return (line for index, line in enumerate(lines) if line or (index and lines[index - 1]))


def _wrapped(reported: str, first: str, after: str | None = None) -> list[str]:
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(
        reported,
        text_width(WIDTH),
        initial_indent=first,
        subsequent_indent=first if after is None else after,
        **options,
    )
