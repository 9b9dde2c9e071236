"""Summary page of a run for people, made only from its record."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterable, List, Mapping, Sequence

MARKS = {
    "passed": "passed",
    "failed": "**FAILED**",
    "could not check": "could not check",
    "skipped": "skipped",
}


def page(record: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    steps = {row["name"]: row for row in record["steps"]}
    versions = record["versions"]
    boards = Counter(versions.get("gpus") or [])
    lines = [
        f"# prove-gpu: {', '.join(f'{count} x {name}' for name, count in boards.items()) or 'no GPU'}",
        "",
    ]
    if record["simulated"]:
        lines += ["> **SIMULATED HARDWARE.** Nothing on this page says anything of a real GPU.", ""]
    counts = ", ".join(f"{count} {status}" for status, count in record["counts"].items() if count)
    lines += [f"{record['time']}, {record['seconds']:.0f} s: {counts}.", ""]
    lines += [f"* {note}" for note in record["notes"]] + ([""] if record["notes"] else [])
    lines += _table(("Step", "Result", "Observations", "s"), (
        (row[(
            "title"
        )], MARKS[row["status"]], row["reason"], f"{row['seconds']:.1f}") for row in record["steps"]
    ))  # fmt: skip
    lines += ["## Machine", ""]
    machine = [
        (key.replace("_", " "), _text(value))
        for key, value in versions.items()
        if key != "gpus" and value not in (None, [], "")
    ]
    lines += _table(("", ""), machine)
    lines += _load(steps) + _latency(steps) + _timing(steps) + _change(steps) + _findings(steps)
    lines += ["## Redacted", ""]
    redacted = (
        ", ".join(f"{count} {kind}" for kind, count in record["redacted"].items())
        or "nothing was found that had to be"
    )
    lines += [
        f"Placeholders in this directory replace: {redacted}. Equal values have equal placeholders. PCI "
        "addresses are kept.",
        "",
    ]
    lines += ["## Files", "", ", ".join(f"`{name}`" for name in record["files"]), ""]
    lines += [
        "`scripts/prove-gpu import DIR` makes this directory a recorded capture of the tests (docs/how-to/prove-gpu.md).",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> List[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]


def _cell(value: Any) -> str:
    """Return a value as one table cell, without special characters of Markdown and terminals."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text.replace("|", "\\|").replace("<", "&lt;")


def _text(value: Any) -> str:
    if isinstance(value, dict) and "fault" in value:
        return str(value["text"])
    if isinstance(value, dict):
        return "; ".join(f"{key} {_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(steps: Mapping[str, Any], name: str) -> Any:
    return steps.get(name, {}).get("figures") or {}


def _load(steps: Mapping[str, Any]) -> List[str]:
    figures = _figures(steps, "load")
    if not figures.get("gpus"):
        return []
    keys = [key for key in figures["gpus"][0] if key != "address"]
    rows = [
        [row["address"], *("not read" if row[key] is None else row[key] for key in keys)]
        for row in figures["gpus"]
    ]
    return [
        f"## Under load ({figures.get('by')})",
        "",
        *_table(["GPU", *(key.replace("_", " ") for key in keys)], rows),
    ]


def _latency(steps: Mapping[str, Any]) -> List[str]:
    figures = _figures(steps, "latency")
    if not figures.get("calls"):
        return []
    # A call that failed has the driver's text in place of figures.
    rows = [
        (
            name,
            row["count"] if "p50" in row else row.get("text", "not asked"),
            *(row.get(key, "") for key in ("min", "p50", "p95", "max")),
        )
        for name, row in figures["calls"].items()
    ]
    head = (
        f"nvmlInit {figures['init_us'] / 1e3:.1f} ms, nvmlShutdown {figures['shutdown_us'] / 1e3:.1f} ms, "
        f"{figures['gpus']} GPUs in turn."
    )
    return [
        "## Latency of NVML, µs",
        "",
        head,
        "",
        *_table(("call", "samples", "least", "median", "95 %", "greatest"), rows),
    ]


def _timing(steps: Mapping[str, Any]) -> List[str]:
    figures = _figures(steps, "timing")
    if not figures:
        return []
    rows = [
        (name, row["count"], row["min"], row["p50"], row["max"], f"{row['to_floor']:.2f}")
        for name, row in figures.items()
    ]
    return [
        "## A check's time, ms of wall time",
        "",
        *_table(("", "runs", "least", "median", "greatest", "median : floor"), rows),
    ]


def _change(steps: Mapping[str, Any]) -> List[str]:
    rows = [
        (key, _text(value))
        for name in ("policy", "change")
        for key, value in _figures(steps, name).items()
    ]
    return ["## Settings", "", *_table(("", ""), rows)] if rows else []


def _findings(steps: Mapping[str, Any]) -> List[str]:
    lines = []
    for name in ("check", "load"):
        lines += [
            f"* {steps[name]['title']}: {_cell(line)}"
            for line in _figures(steps, name).get("wrong") or []
        ]
    return ["## Findings", "", *lines, ""] if lines else []
