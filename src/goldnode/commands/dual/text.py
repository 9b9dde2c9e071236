"""The comparison of two records as text and as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from goldnode.commands.output import html_page, table
from goldnode.documents.dual import (
    DualArray,
    DualDocument,
    DualLatency,
    DualPlace,
    DualQuantile,
    DualSide,
)
from goldnode.node.ground.text import and_more, phrase

_ROWS = 400  # of the table of layers in a page
_WIDTH, _HEIGHT = 900, 150  # of a chart
SIMULATED = "SIMULATED: a side declares simulated hardware"


def text(document: DualDocument) -> str:
    """Return the comparison for a terminal."""
    return "\n".join(_lines(document))


def _lines(document: DualDocument) -> Iterator[str]:
    if document.simulated:
        yield SIMULATED
    yield f"{document.answer}: {document.reasons[0] if document.reasons else 'nothing was compared'}"
    yield from (f"  {reason}" for reason in document.reasons[1:])
    yield ""
    yield f"a: {side(document.a)}"
    yield f"b: {side(document.b)}"
    yield f"first difference in bits: {place(document.first_difference)}"
    yield f"first divergence:         {place(document.first_divergence)}"
    yield ""
    shown = [
        row
        for row in document.arrays
        if row.role == "output" or row.state in ("outside", "not_compared")
    ]
    rows = [_row(row) for row in shown[:20]]
    if rows:
        yield table(
            [("array", "state", "outside", "max ULP", "max absolute", "relative L2"), *rows]
        )
        more = len(shown) - len(rows)
        if more:
            yield f"and {more} more outside of their tolerance (--format json, --html)"
        yield ""
    for one in document.samples:
        yield f"sampled output {one.name} ({one.draws_a} and {one.draws_b} draws): {one.answer}, {one.why}"
    for times in document.latency:
        yield from _times(times)
    if document.differences:
        names = ", ".join(row.what for row in document.differences[:12])
        more = len(document.differences) - 12
        yield f"what differs: {names}{and_more(more)}"


def side(half: DualSide) -> str:
    """Return one side in one line."""
    parts = [f"{half.name}: {half.stack}", f"precision {half.precision}"]
    if half.repeatable is False:
        parts.append("its own runs differ in bits")
    if half.hooks_change_output:
        parts.append("hooks change its output")
    return ", ".join(parts)


def place(point: DualPlace | None) -> str:
    """Return a place in the order of execution."""
    if point is None:
        return "none"
    return f"{point.role} {point.name}{phrase(' ({})', point.module)}, step {point.step}"


def number(value: float | None) -> str:
    """Return a figure with three digits."""
    return "-" if value is None else f"{value:.3g}"


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds."""
    return "?" if value is None else f"{value * 1000:.3f}"


def span(row: DualQuantile, letter: str) -> str:
    """Return a quantile of one side with its bounds, in milliseconds."""
    middle, low, high = (getattr(row, f"{letter}{part}") for part in ("", "_low", "_high"))
    return f"{milliseconds(middle)} ({milliseconds(low)} to {milliseconds(high)})"


def ratio(row: DualQuantile) -> str:
    """Return the bounds of the ratio of b to a."""
    low, high = ("?" if one is None else f"{one:.3f}" for one in (row.ratio_low, row.ratio_high))
    return f"{low} to {high}"


def outside(row: DualArray) -> str:
    """Return how many of the compared elements are outside of the tolerance."""
    return f"{row.outside} of {row.compared}" if row.compared else row.why or "-"


def _row(row: DualArray) -> tuple[str, ...]:
    steps = "-" if row.max_ulp is None else str(row.max_ulp)
    figures = (steps, number(row.max_absolute), number(row.l2))
    return (f"{row.role} {row.name}", row.state.replace("_", " "), outside(row), *figures)


def _times(times: DualLatency) -> Iterator[str]:
    yield f"{times.phase} runs, {times.runs_a} and {times.runs_b}, milliseconds with bounds:"
    rows = [
        (
            f"p{row.quantile * 100:g}",
            span(row, "a"),
            span(row, "b"),
            ratio(row),
            row.answer or "not judged",
        )
        for row in times.quantiles
    ]
    yield table([("", "a", "b", "b / a", "answer"), *rows])
    yield ""


# The page


def html(document: DualDocument) -> str:
    """Return the comparison as one self-contained page."""
    rows = [row for row in document.arrays if row.role != "input"]
    return html_page(
        "dual.html.j2",
        found=document,
        rows=rows[:_ROWS],
        left_out=max(0, len(rows) - _ROWS),
        profile=profile(rows),
        histogram=histogram,
        place=place,
        number=number,
        span=span,
        ratio=ratio,
        outside=outside,
        simulated=SIMULATED,
    )


def profile(rows: Sequence[DualArray]) -> list[dict[str, float | str]]:
    """Return the bars of the relative L2 distance per step, on a logarithmic scale from 1e-10 to 1."""
    if not rows:
        return []
    wide = _WIDTH / len(rows)
    bars: list[dict[str, float | str]] = []
    for index, row in enumerate(rows):
        share = 1.0 if row.state == "outside" and row.l2 is None else _share(row.l2)
        # A distance of zero is still a visible bar.
        high = max(2.0, share * _HEIGHT)
        label = (
            f"{row.role} {row.name}: {row.state.replace('_', ' ')}, relative L2 {number(row.l2)}"
        )
        box = {"x": index * wide, "y": _HEIGHT - high, "width": max(0.5, wide - 1), "height": high}
        bars.append(
            {
                **{name: round(value, 2) for name, value in box.items()},
                "state": row.state,
                "label": label,
            }
        )
    return bars


def _share(value: float | None) -> float:
    return 0.0 if not value else min(1.0, max(0.0, (math.log10(value) + 10) / 10))


def histogram(times: DualLatency) -> list[dict[str, float]]:
    """Return the bars of both sides: share of the runs per bin."""
    bins = len(times.histogram_a)
    shares = [
        [count / max(1, sum(counts)) for count in counts]
        for counts in (times.histogram_a, times.histogram_b)
    ]
    most = max(max(row) for row in shares) or 1.0
    wide = _WIDTH / bins
    return [
        {
            "x": round(index * wide, 2),
            "width": round(wide - 1, 2),
            "a": round(shares[0][index] / most * _HEIGHT, 2),
            "b": round(shares[1][index] / most * _HEIGHT, 2),
        }
        for index in range(bins)
    ]
