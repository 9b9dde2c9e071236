"""Baselines and verdicts on speed as text and as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from goldnode.commands.output import table
from goldnode.documents.floors import FloorsDocument, FloorsMetric
from goldnode.floors.baseline import FloorBaseline
from goldnode.floors.dead_board import dead_board_floors
from goldnode.floors.results import UncountedRow, short
from goldnode.floors.slow import key_of
from goldnode.floors.verdicts import SpeedReport

_SHOWN = 20  # rows of what was left out
DEAD_BOARD = "dead board only"


def data(learned: FloorBaseline) -> dict[str, Any]:
    """Return a baseline for a JSON document."""
    return {
        "file": str(learned.file),
        "keyid": learned.keyid,
        "baseline": learned.document.model_dump(mode="json", by_alias=True),
        "dead_board_tflops": dead_board_floors(learned.document.platform),
    }


def baseline_text(learned: FloorBaseline) -> str:
    """Return a baseline as text."""
    document = learned.document
    parts = [
        _head(learned),
        table([_HEADING, *(row for one in document.metrics for row in _rows(one))]),
    ]
    below = [
        f"{name} below {value:g} TFLOPS"
        for name, value in dead_board_floors(document.platform).items()
    ]
    if below:
        parts.append(
            f"{DEAD_BOARD} (the floor of goldnode-smoke, a share of the data sheet's peak): {', '.join(below)}"
        )
    parts.append(_left_out(document))
    if not all(one.verified for one in document.metrics):
        names = sorted({one.job for one in document.metrics if not one.verified})
        parts.append(f"not verified: the jobs {', '.join(names)} were never seen on such hardware")
    return "\n\n".join(part for part in parts if part)


_HEADING = ("METRIC", "FOR", "MEDIAN", "SIGMA", "FLOOR", "UNIT", "DEVICES", "NODES", "RUNS")


def _rows(metric: FloorsMetric) -> Iterable[tuple[str, ...]]:
    for one in metric.statistics:
        name = str(key_of(metric))
        yield (
            name if one.quantile == "p50" else f"{name} {one.quantile}",
            " ".join(part for part in (metric.node, metric.device) if part) or "each device",
            f"{one.median:.6g}",
            f"{abs(one.sigma / one.median):.2%}",
            f"{one.floor:.6g}",
            metric.unit,
            str(metric.devices),
            str(metric.nodes),
            str(metric.runs),
        )


def _head(learned: FloorBaseline) -> str:
    document = learned.document
    kind = "simulated baseline" if document.simulated else "baseline"
    if document.scope == "class":
        scope = f"{len(document.nodes)} nodes"
    else:
        scope = f"{', '.join(document.nodes)} alone: other nodes are not judged"
    lines = [
        f"{kind} of class {document.class_ or 'none'} on {document.platform}: {scope}",
        f"results: {document.results}, from {document.begin} to {document.end}",
        f"class digest: {short(document.class_digest)}; runner: {short(document.runner)}",
        f"signature: {'not verified' if learned.keyid is None else f'by key {learned.keyid[:12]}'}",
    ]
    for name, unit in (
        ("temperature_c", "°C"),
        ("power_w", "W"),
        ("sm_mhz", "MHz, highest of each result"),
    ):
        ranges = [getattr(one, name) for one in document.metrics if getattr(one, name) is not None]
        if ranges:
            low, high = min(one[0] for one in ranges), max(one[1] for one in ranges)
            lines.append(f"{name.partition('_')[0]}: {low:g} to {high:g} {unit}")
    return "\n".join(lines)


def _left_out(document: FloorsDocument) -> str:
    excluded = document.left_out
    if not excluded:
        return "left out: nothing"
    rows = [f"  {_place(one)}: {one.why} ({one.results})" for one in excluded[:_SHOWN]]
    more = ""
    if len(excluded) > _SHOWN:
        more = f"\n  and {len(excluded) - _SHOWN} more; --format json has all"
    return "left out:\n" + "\n".join(rows) + more


def _place(row: Any) -> str:
    return " ".join(part for part in (row.node, row.device, row.metric) if part)


def report_data(report: SpeedReport) -> dict[str, Any]:
    """Return verdicts for a JSON document."""
    return {
        "answer": report.answer.value,
        "verdicts": [one.data() for one in report.verdicts],
        "not_counted": [
            {"node": one.node, "device": one.device, "metric": one.metric, "why": one.why}
            for one in report.uncounted
        ],
    }


def report_text(report: SpeedReport) -> str:
    """Return verdicts as text: failures first."""
    order = {"fails": 0, "inconclusive": 1, "passes": 2}
    lines = [
        one.sentence() for one in sorted(report.verdicts, key=lambda one: order[one.answer.value])
    ]
    counts: dict[UncountedRow, int] = {}
    for row in report.uncounted:
        counts[row] = counts.get(row, 0) + 1
    lines += [
        f"not counted: {_place(row)}: {row.why} ({number})"
        for row, number in list(counts.items())[:_SHOWN]
    ]
    if len(counts) > _SHOWN:
        lines.append(f"and {len(counts) - _SHOWN} more; --format json has all")
    return "\n".join([*lines, f"answer: {report.answer.value}"])
