"""The report on a fleet as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from markupsafe import Markup

from goldnode.commands.output import html_page
from goldnode.documents import fleet_report as doc
from goldnode.fleet.report.causes import nodes_of
from goldnode.node.ground.text import phrase

LIMIT = 300  # rows of a table of the page; the list of nodes has all
# States from the worst to the best, with their words and the tag of page.css. Other statuses are shown as they are.
STATES = {
    "drain": ("drain", "block"),
    "not_this_class": ("not this class", "block"),
    "degraded": ("degraded", "warn"),
    "could_not_check": ("could not check", "unknown"),
    "no_verdict": ("no verdict", "unknown"),
    "stale": ("stale: not known", "unknown"),
    "silent": ("silent: not known", "unknown"),
    "not_reported": ("not reported", "unknown"),
    "healthy": ("healthy", "ok"),
}
_EVIDENCE = {"declared": "declared", "majority": "majority", "last_week": "new"}


@dataclass(frozen=True)
class _AwayNodes:
    state: str
    class_: str
    nodes: doc.ReportNodes


def html(report: doc.FleetReportDocument) -> str:
    """Return the page: no network, all of the report in it."""
    totals = totals_of(report)
    return html_page(
        "fleet_report.html.j2",
        found=report,
        limit=LIMIT,
        hours=f"{report.stale_after_hours:g}",
        totals={state: number for state, number in totals.items() if number},
        away=_away(report),
        words=words,
        figure=figure,
        slow=by_node(report.slow),
        slowing=by_node(report.slowing),
        lines={
            "slow": slow_line,
            "slowing": slowing_line,
            "measured": measured_line,
            "basis": basis,
            "rung_hardware": rung_hardware,
            "rung_result": rung_result,
            "rung_named": rung_named,
        },
        evidence=evidence,
        data=_script(_data(report)),
    )


def totals_of(report: doc.FleetReportDocument) -> dict[str, int]:
    """Return the number of nodes in each state, the worst first."""
    counts = [
        (str(state), number) for one in report.classes for state, number in one.states.items()
    ]
    return {state: sum(number for name, number in counts if name == state) for state in STATES}


def words(state: str) -> str:
    """Return a state in words."""
    return STATES[state][0] if state in STATES else state


def figure(value: float) -> str:
    """Return a number with four digits."""
    # More than four digits would get an exponent.
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def evidence(cause: doc.ReportCause) -> str:
    """Return how a cause was seen, and the share of the majority."""
    shown = [_EVIDENCE[one] for one in cause.evidence]
    if cause.share is not None and cause.of is not None and "majority" in cause.evidence:
        shown[cause.evidence.index("majority")] += f" ({cause.share:.1%} of {cause.of})"
    return ", ".join(shown)


def _away(report: doc.FleetReportDocument) -> list[_AwayNodes]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in report.not_known:
        groups.setdefault((node.state, node.class_), []).append(node.node)
    return [_AwayNodes(*key, nodes_of(names)) for key, names in sorted(groups.items())]


def _script(content: dict[str, Any]) -> Markup:
    """Return JSON for a script element: no text in it can end the element, or be markup."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # U+2028 and U+2029 end a line in JavaScript before ES2019.
    for one in "<>&\u2028\u2029":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return Markup(text)  # noqa: S704 the characters of markup are escaped above


class _Places:
    """Texts, each with a number."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.places = {text: place for place, text in enumerate(texts)}

    def __getitem__(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def _data(report: doc.FleetReportDocument) -> dict[str, Any]:
    """Return what the script of the page reads; fleet_report.js describes it."""
    states, classes, cohorts, statuses = _Places(STATES), _Places(), _Places(), _Places(STATES)
    index = {node.node: place for place, node in enumerate(report.nodes)}
    # Lists instead of objects, and numbers instead of names: a page of 10,000 nodes stays small.
    nodes = [
        [
            node.node,
            states[node.state],
            classes[node.class_],
            None if not node.cohort else cohorts[node.cohort],
            _seconds(node.at),
            [
                [_seconds(e.at), statuses[e.status], int(e.booted), int(e.class_changed)]
                for e in node.history
            ],
        ]
        for node in report.nodes
    ]
    days = [
        [_seconds(f"{day.day}T00:00:00Z"), status, number]
        for day in report.days
        for status, number in day.states.items()
    ]
    return {
        "at": _seconds(report.at),
        "compared": report.compared,
        "order": list(STATES),
        "words": {state: one[0] for state, one in STATES.items()},
        "tags": {state: one[1] for state, one in STATES.items()},
        "states": list(states.places),
        "classes": list(classes.places),
        "cohorts": list(cohorts.places),
        "statuses": list(statuses.places),
        "nodes": nodes,
        "causes": [
            {
                "topic": one.topic,
                "evidence": evidence(one),
                "changes": _changes(one.changes),
                "nodes": _ranges(one.nodes, index),
            }
            for one in report.causes
        ],
        "changed": [
            {
                "topic": one.topic,
                "changes": _changes(one.changes),
                "nodes": _ranges(one.nodes, index),
            }
            for one in report.changed
        ],
        "mixed": [
            {
                "text": f"{one.group}: {one.key} is {value.value} on {value.nodes.count} nodes",
                "nodes": _ranges(value.nodes, index),
            }
            for one in report.mixed
            for value in one.values
        ],
        "lines": _lines(report, index),
        "days": days,
    }


def _lines(report: doc.FleetReportDocument, index: dict[str, int]) -> dict[int, list[str]]:
    """Return the sentences on single nodes, by the place of the node."""
    result: dict[int, list[str]] = {}
    for slow in by_node(report.slow):
        result.setdefault(index[slow.worst.node], []).append(
            with_others(slow_line(slow.worst), slow.also)
        )
    for slowing in by_node(report.slowing):
        line = with_others(slowing_line(slowing.worst), slowing.also)
        result.setdefault(index[slowing.worst.node], []).append(line)
    for job in report.failed_jobs:
        for name in job.nodes.names:
            result.setdefault(index[name], []).append(job_line(job))
    for trend in report.trends:
        result.setdefault(index[trend.node], []).append(trend_line(trend))
    for lemon in report.lemons:
        result.setdefault(index[lemon.node], []).append(lemon_line(lemon))
    return result


_Metric = TypeVar("_Metric", doc.ReportSlow, doc.ReportSlowing)


@dataclass(frozen=True)
class NodeMetrics(Generic[_Metric]):
    """A node with its metrics, the worst one first."""

    metrics: list[_Metric]

    @property
    def worst(self) -> _Metric:
        """Return the worst metric."""
        return self.metrics[0]

    @property
    def also(self) -> str:
        """Return the metrics by name, each with the number of its parts; the worst one only if it has several."""
        counts: dict[str, int] = {}
        for one in self.metrics:
            counts[one.metric] = counts.get(one.metric, 0) + 1
        names = [
            f"{name} on {number} parts" if number > 1 else name
            for name, number in counts.items()
            if number > 1 or name != self.worst.metric
        ]
        return ", ".join(names)


def by_node(rows: Iterable[_Metric]) -> list[NodeMetrics[_Metric]]:
    """Return the nodes of some metrics, each once, in their order: the greatest loss is first."""
    groups: dict[str, list[_Metric]] = {}
    for one in rows:
        groups.setdefault(one.node, []).append(one)
    return [NodeMetrics(metrics) for metrics in groups.values()]


def with_others(line: str, also: str) -> str:
    """Return the sentence on a node's worst metric, with the names of the others."""
    return f"{line}; also {also}" if also else line


def basis(one: doc.ReportSlow) -> str:
    """Return what a slow metric was compared with."""
    if one.basis == "floors":
        return f"floor of the baseline of {one.baseline}"
    return f"statistics of {one.nodes} nodes, no baseline"


def slow_line(one: doc.ReportSlow) -> str:
    """Return a slow metric in one sentence."""
    part = phrase(" of {}", one.part)
    quantity = "quantile" if one.metric.endswith((" p95", " p99")) else "median"
    unit = phrase(" {}", one.unit)
    doubt = "" if one.verified else "; the job is not verified on such hardware"
    return (
        f"{one.metric}{part}: {one.loss:.1%} slower than usual; {quantity} {figure(one.median)}{unit} of {one.samples} "
        f"samples, 99 % bound {figure(one.bound)}, floor {figure(one.floor)}, usual {figure(one.usual)} "
        f"({basis(one)}), {one.at}{doubt}"
    )


def slowing_line(one: doc.ReportSlowing) -> str:
    """Return a metric that becomes slower in one sentence."""
    part = phrase(" of {}", one.part)
    return f"{one.metric}{part} loses {one.a_day:.2%} a day: {one.loss:.1%} in {figure(one.days)} days, {one.results} results"


def job_line(one: doc.ReportFailedJob) -> str:
    """Return a canary job that did not pass in one sentence."""
    return f"canary job {one.job} {one.state.replace('_', ' ')}{phrase(': {}', one.why)}"


def measured_line(one: doc.ReportMeasured) -> str:
    """Return how the canary results of a class were judged in one sentence."""
    parts = [f"{one.floors} by floors", f"{one.by_class} by statistics of the class"]
    if one.not_judged:
        parts.append(f"{one.not_judged} not judged: too few runs or devices, or another clock")
    label = "simulated " if one.simulated else ""
    return (
        f"{one.class_} on {label}{one.platform}: {one.nodes} nodes with results of 30 days, {one.slow} slow; "
        f"judged {', '.join(parts)}"
    )


def trend_line(one: doc.ReportTrend) -> str:
    """Return a trend in one sentence."""
    part = phrase(" of {}", one.part)
    return f"{one.counter}{part} grows by {figure(one.an_hour)} an hour: {figure(one.growth)} in {figure(one.hours)} hours"


def rung_hardware(one: doc.ReportRung) -> str:
    """Return model, VBIOS and driver before a rung."""
    return ", ".join(text for text in (one.model, one.firmware, one.driver) if text) or "-"


def rung_result(one: doc.ReportRung) -> str:
    """Return how often a rung has cured its finding, with the interval."""
    back = phrase(", {} came back", str(one.came_back) if one.came_back else "")
    return f"{one.cured} of {one.tries}{back} ({one.low:.0%} to {one.high:.0%})"


def rung_named(one: doc.ReportRung) -> str:
    """Return that a rung never helps, where the data suffice for that."""
    return "never helps" if one.never_helps else ""


def lemon_line(one: doc.ReportLemon) -> str:
    """Return the score of a repeat offender in one sentence."""
    parts = ", ".join(
        f"{number} {name if number > 1 else name.removesuffix('s')}"
        for name, number in one.parts.items()
        if number
    )
    return f"repeat offender with score {figure(one.score)}: {parts}"


def _seconds(moment: str | None) -> int | None:
    return None if moment is None else int(datetime.fromisoformat(moment).timestamp())


def _changes(items: Sequence[doc.ReportChange]) -> list[list[str | None]]:
    return [[item.key, item.part, item.expected, item.got] for item in items]


def _ranges(nodes: doc.ReportNodes, index: dict[str, int]) -> list[list[int]]:
    """Return the places of nodes as ranges."""
    ranges: list[list[int]] = []
    for place in sorted(index[name] for name in nodes.names if name in index):
        if ranges and ranges[-1][1] == place - 1:
            ranges[-1][1] = place
        else:
            ranges.append([place, place])
    return ranges
