"""The report on a fleet, and the comparison of two times, in a terminal: tables of rich, or plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from goldnode.commands.fleet.report_page import (
    by_node,
    evidence,
    lemon_line,
    measured_line,
    rung_hardware,
    rung_named,
    rung_result,
    slow_line,
    slowing_line,
    totals_of,
    trend_line,
    with_others,
    words,
)
from goldnode.commands.output import table
from goldnode.documents import fleet_report as doc
from goldnode.node.ground.text import phrase, shortened

_MOST = 30  # lines of one section
_NAMES = 100  # characters of the nodes of one line
_CHANGES = 3  # changes of one line
SIMULATED = "SIMULATED: the captures are, or contain, those of simulated hardware"


@dataclass(frozen=True)
class _TextSection:
    """One section: a title, and a table with a heading. `style` is that of the first column, by row."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str] = field(default=())


def as_text(document: doc.FleetReportDocument | doc.FleetDiffDocument) -> str:
    """Return a report or a comparison as text without colours."""
    lines = [SIMULATED] if document.simulated else []
    lines.append(_headline(document))
    for section in _sections(document):
        lines += ["", section.title]
        if section.rows:
            lines.append(table([section.heading, *section.rows]))
    return "\n".join(lines)


def show(document: doc.FleetReportDocument | doc.FleetDiffDocument) -> None:
    """Print a report or a comparison on a terminal."""
    from rich.console import Console  # start-up time: only for terminals
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if document.simulated:
        console.print(Text(SIMULATED, style="bold magenta"))
    console.print(Text(_headline(document), style="bold"))
    for section in _sections(document):
        shown = Table(
            *section.heading,
            title=section.title,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
        )
        for place, row in enumerate(section.rows):
            style = section.styles[place] if place < len(section.styles) else ""
            shown.add_row(
                Text(row[0], style=style), *(Text(one, overflow="fold") for one in row[1:])
            )
        console.print()
        console.print(shown)


def _headline(document: doc.FleetReportDocument | doc.FleetDiffDocument) -> str:
    if isinstance(document, doc.FleetReportDocument):
        return _report_headline(document)
    return _diff_headline(document)


def _sections(document: doc.FleetReportDocument | doc.FleetDiffDocument) -> Iterator[_TextSection]:
    if isinstance(document, doc.FleetReportDocument):
        return _report_sections(document)
    return _diff_sections(document)


def _report_headline(report: doc.FleetReportDocument) -> str:
    counts = (
        ", ".join(
            f"{number} {words(state)}" for state, number in totals_of(report).items() if number
        )
        or "no nodes"
    )
    return f"{len(report.nodes)} nodes as of {report.at}: {counts}; {_number(len(report.causes), 'cause')}"


def _number(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _report_sections(report: doc.FleetReportDocument) -> Iterator[_TextSection]:
    yield _TextSection(
        "Classes",
        ("class", "nodes", "known", "states"),
        [
            (
                one.class_,
                str(one.nodes),
                str(one.known),
                ", ".join(f"{n} {words(s)}" for s, n in one.states.items()),
            )
            for one in report.classes
        ],
    )
    if report.causes:
        yield _limited(
            "Drift and faults",
            ("cause", "severity", "nodes", "", "difference", "evidence"),
            [
                (
                    one.topic,
                    one.severity or "-",
                    str(one.nodes.count),
                    _nodes(one.nodes),
                    _changes(one.changes) + phrase("; also {}", ", ".join(one.also)),
                    evidence(one),
                )
                for one in report.causes
            ],
            [
                {"drain": "red", "degraded": "yellow"}.get(one.severity or "", "")
                for one in report.causes
            ],
        )
    if report.unchecked:
        yield _limited(
            "Could not be checked",
            ("topic", "nodes", "", "declared and read"),
            [
                (one.topic, str(one.nodes.count), _nodes(one.nodes), _changes(one.changes))
                for one in report.unchecked
            ],
        )
    if report.not_known:
        yield _not_known(report)
    if report.mixed:
        yield _limited(
            "Mixed groups (the rarest value first)",
            ("group", "value of", "nodes by value"),
            [
                (
                    one.group,
                    _key(one.key, one.part),
                    "; ".join(f"{v.value}: {_nodes(v.nodes)}" for v in one.values),
                )
                for one in report.mixed
            ],
        )
    if report.no_majority:
        yield _limited(
            "No majority: no value is usual",
            ("fact", "class", "nodes by value"),
            [
                (
                    _key(one.key, one.part),
                    one.class_,
                    "; ".join(f"{v.count} {v.value}" for v in one.values[:6]),
                )
                for one in report.no_majority
            ],
        )
    if report.changed:
        yield _changed(f"Changed since {report.compared}", report.changed)
    yield from _single(report)
    if report.rungs:
        yield _limited(
            "Rungs of the ladder",
            ("finding", "rung", "hardware and driver", "cured", ""),
            [
                (one.finding, one.rung, rung_hardware(one), rung_result(one), rung_named(one))
                for one in report.rungs
            ],
            ["red" if one.never_helps else "" for one in report.rungs],
        )


def _not_known(report: doc.FleetReportDocument) -> _TextSection:
    from goldnode.fleet.report.causes import nodes_of

    groups: dict[tuple[str, str], list[str]] = {}
    for node in report.not_known:
        groups.setdefault((node.state, node.class_), []).append(node.node)
    made = {key: nodes_of(names) for key, names in sorted(groups.items())}
    return _TextSection(
        f"Not known: no capture in {report.stale_after_hours:g} hours",
        ("state", "class", "nodes", ""),
        [(state, class_, str(one.count), _nodes(one)) for (state, class_), one in made.items()],
    )


def _single(report: doc.FleetReportDocument) -> Iterator[_TextSection]:
    """Yield the sections with one line for each node."""
    if report.failed_jobs:
        yield _limited(
            "Canary jobs that did not pass",
            ("job", "state", "nodes", "", "reason"),
            [
                (one.job, words(one.state), str(one.nodes.count), _nodes(one.nodes), one.why or "-")
                for one in report.failed_jobs
            ],
        )
    if report.slow:
        rows = [
            (one.worst.node, with_others(slow_line(one.worst), one.also))
            for one in by_node(report.slow)
        ]
        yield _limited("Slow nodes", ("node", "metric"), rows)
    if report.slowing:
        rows = [
            (one.worst.node, with_others(slowing_line(one.worst), one.also))
            for one in by_node(report.slowing)
        ]
        yield _limited("Nodes that become slower", ("node", "metric"), rows)
    if report.measured:
        lines = [(measured_line(one),) for one in report.measured]
        yield _TextSection("Canary results", ("class",), lines)
    if report.trends:
        yield _limited(
            "Counters that grow",
            ("node", "counter"),
            [(one.node, trend_line(one)) for one in report.trends],
        )
    if report.lemons:
        yield _limited(
            "Repeat offenders in 30 days",
            ("node", "score"),
            [(one.node, lemon_line(one)) for one in report.lemons],
        )


def _diff_headline(document: doc.FleetDiffDocument) -> str:
    away = ""
    if document.not_compared.count:
        away = f"; {document.not_compared.count} without a capture of one of them: {_nodes(document.not_compared)}"
    return f"{document.from_} to {document.to}: {_number(document.compared, 'node')} compared{away}"


def _diff_sections(document: doc.FleetDiffDocument) -> Iterator[_TextSection]:
    if document.changed:
        yield _changed("Changes", document.changed)
    if document.statuses:
        yield _limited(
            "Status",
            ("class", "nodes", "", "change"),
            [
                (one.class_, str(one.nodes.count), _nodes(one.nodes), f"{one.before} → {one.after}")
                for one in document.statuses
            ],
        )
    if not document.compared:
        yield _TextSection(
            "No node could be compared: give times with captures, or a longer --stale-after", (), []
        )
    elif not document.changed and not document.statuses:
        yield _TextSection("Nothing has changed", (), [])


def _changed(title: str, items: Sequence[doc.ReportDifference]) -> _TextSection:
    return _limited(
        title,
        ("topic", "nodes", "", "change"),
        [
            (one.topic, str(one.nodes.count), _nodes(one.nodes), _changes(one.changes))
            for one in items
        ],
    )


def _limited(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> _TextSection:
    shown = list(rows[:_MOST])
    if len(rows) > _MOST:
        shown.append((f"{len(rows) - _MOST} more: --format json", *("" for _ in heading[1:])))
    return _TextSection(title, heading, shown, styles[:_MOST])


def _nodes(nodes: doc.ReportNodes) -> str:
    return shortened(nodes.folded, _NAMES)


def _key(key: str, part: str | None) -> str:
    return f"{key} {part}" if part else key


def _changes(items: Sequence[doc.ReportChange]) -> str:
    shown = [
        f"{_key(one.key, one.part)} {_value(one.expected)} → {_value(one.got)}"
        for one in items[:_CHANGES]
    ]
    return "; ".join([*shown, f"{len(items) - _CHANGES} more"] if len(items) > _CHANGES else shown)


def _value(text: str | None) -> str:
    return "none" if text is None else text or "empty"
