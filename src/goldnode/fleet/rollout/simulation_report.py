"""Summary of simulated runs, and a chart of one of them."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from goldnode.fleet.rollout.simulate import SimulatedRun, percentile

# of the drawing, in units of its view box
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 300, 70, 50, 40
_POINTS = 400  # of a line
_SERIES = (("moved", "#1f6fb2"), ("out, planned", "#d98a00"), ("out, failed", "#b3261e"))


@dataclass(frozen=True)
class SimulationSummary:
    """Percentiles over runs. A pair is (p50, p95); None: it happened in no run."""

    runs: int
    ends: tuple[tuple[str, int], ...]
    rules: tuple[tuple[str, int], ...]  # that stopped runs
    stopped: int
    touched_at_stop: tuple[float, float] | None
    stopped_after: tuple[float, float] | None
    hours: tuple[float, float]
    hours_completed: tuple[float, float] | None
    hours_99: tuple[float, float] | None
    capacity_lost: tuple[float, float]
    idle: tuple[float, float]
    peak_out: tuple[float, float]
    slow: tuple[float, float]
    denied: tuple[float, float]  # nodes in the denied state at the end
    left: tuple[float, float]  # nodes failed, overdue or deferred at the end


def summarize(runs: Sequence[SimulatedRun]) -> SimulationSummary:
    """Return the summary of runs of one document."""
    stopped = [run for run in runs if run.touched_at_stop is not None]

    def pair(value: Callable[[SimulatedRun], float | None]) -> tuple[float, float] | None:
        numbers = [number for run in runs if (number := value(run)) is not None]
        return (percentile(numbers, 0.5), percentile(numbers, 0.95)) if numbers else None

    def known(value: Callable[[SimulatedRun], float]) -> tuple[float, float]:
        return pair(value) or (0.0, 0.0)

    return SimulationSummary(
        runs=len(runs),
        ends=tuple(Counter(run.end for run in runs).most_common()),
        rules=tuple(Counter(run.rule for run in stopped if run.rule).most_common()),
        stopped=len(stopped),
        touched_at_stop=pair(lambda run: run.touched_at_stop),
        stopped_after=pair(lambda run: run.stopped_after),
        hours=known(lambda run: run.hours),
        hours_completed=pair(lambda run: run.hours_completed),
        hours_99=pair(lambda run: run.hours_99),
        capacity_lost=known(lambda run: run.capacity_lost),
        idle=known(lambda run: run.idle_median),
        peak_out=known(lambda run: run.peak_out),
        slow=known(lambda run: run.slow),
        denied=known(lambda run: run.denied),
        left=known(lambda run: run.failed + run.overdue + run.deferred),
    )


def data(summary: SimulationSummary, runs: Sequence[SimulatedRun]) -> dict[str, Any]:
    """Return summary and runs for a JSON document."""
    rows = [
        {name: value for name, value in asdict(run).items() if name != "timeline"} for run in runs
    ]
    return {"simulated": True, "summary": asdict(summary), "runs": rows}


def text(summary: SimulationSummary) -> str:
    """Return the summary for a person."""
    rows = [
        ("ends", ", ".join(f"{end} {count}" for end, count in summary.ends)),
        ("stopped", f"{summary.stopped} of {summary.runs} runs"),
        *((f"  by {rule}", f"{count} runs") for rule, count in summary.rules),
        ("nodes touched before the stop", _pair(summary.touched_at_stop, "nodes", 0)),
        ("hours to the stop", _pair(summary.stopped_after, "h", 1)),
        ("hours until it was completed", _pair(summary.hours_completed, "h", 1)),
        ("hours until 99 % had moved", _pair(summary.hours_99, "h", 1)),
        ("hours until the last node had moved", _pair(summary.hours, "h", 1)),
        ("capacity lost to steps", _pair(summary.capacity_lost, "node-hours", 0)),
        ("drained node waits for its step", _pair(summary.idle, "s (median of a run)", 0)),
        ("most nodes out at once", _pair(summary.peak_out, "nodes", 0)),
        ("failed, overdue or deferred at the end", _pair(summary.left, "nodes", 0)),
    ]
    if summary.denied[1]:
        rows.append(("in the denied state at the end", _pair(summary.denied, "nodes", 0)))
    if summary.slow[1]:
        rows.append(
            ("in service with a loss that no requirement saw", _pair(summary.slow, "nodes", 0))
        )
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _pair(value: tuple[float, float] | None, unit: str, digits: int) -> str:
    if value is None:
        return "did not happen"
    low, high = (f"{number:,.{digits}f}" for number in value)
    return f"p50 {low}, p95 {high} {unit}"


def middle(runs: Sequence[SimulatedRun]) -> SimulatedRun:
    """Return the run with the median number of hours."""
    return sorted(runs, key=lambda run: (run.hours, run.seed))[(len(runs) - 1) // 2]


def svg(run: SimulatedRun, title: str) -> str:
    """Return a chart of nodes over hours."""
    # Every Nth point, and the last one: a chart shows no more.
    rows = run.timeline[:: max(1, len(run.timeline) // _POINTS)]
    rows = (*rows, run.timeline[-1]) if run.timeline else ((0.0, 0, 0, 0),)
    hours = max(rows[-1][0], 1 / 60)
    most = max(1, *(max(row[1:]) for row in rows))

    def x(value: float) -> float:
        return _LEFT + value / hours * (_WIDTH - _LEFT - 20)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _BOTTOM - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20">{html.escape(title)} (simulated)</text>',
    ]
    for share in (0, 0.5, 1):
        at = y(share * most)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - 20}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{share * most:,.0f}</text>'
        )
        below = _HEIGHT - _BOTTOM + 16
        parts.append(
            f'<text x="{x(share * hours):.1f}" y="{below}" text-anchor="middle">{share * hours:.1f} h</text>'
        )
    if run.stopped_after is not None:
        at = x(min(run.stopped_after, hours))
        parts.append(
            f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#b3261e" stroke-dasharray="4 3"/>'
        )
        parts.append(f'<text x="{at + 4:.1f}" y="{_TOP + 10}" fill="#b3261e">stopped</text>')
    for number, (name, colour) in enumerate(_SERIES, start=1):
        line = f"M{x(rows[0][0]):.1f} {y(rows[0][number]):.1f}" + "".join(
            f"H{x(row[0]):.1f}V{y(row[number]):.1f}" for row in rows[1:]
        )
        parts.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        left = _LEFT + (number - 1) * 150
        parts.append(f'<text x="{left}" y="{_HEIGHT - 12}" fill="{colour}">nodes {name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def page(run: SimulatedRun, title: str, summary: SimulationSummary) -> str:
    """Return one HTML page with the chart and the summary."""
    heading = f"{html.escape(title)} (simulated)"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{heading}</title>\n'
        f"<h1>{heading}</h1>\n{svg(run, title)}<pre>{html.escape(text(summary))}</pre>\n</html>\n"
    )
