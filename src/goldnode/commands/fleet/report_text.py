"""The report on a fleet, and the comparison of two times, in a terminal: tables of rich, or plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from goldnode.commands.fleet.report_page import (
    by_node,
    evidence,
    lemon_line,
    measured_line,
    slow_line,
    slowing_line,
    totals_of,
    trend_line,
    with_others,
    words,
)
from goldnode.commands.output import table
from goldnode.documents import fleet_report as doc

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


def as_text(found: doc.FleetReportDocument | doc.FleetDiffDocument) -> str:
    """Return a report or a comparison as text without colours."""
    lines = [SIMULATED] if found.simulated else []
    lines.append(_headline(found))
    for section in _sections(found):
        lines += ["", section.title]
        if section.rows:
            lines.append(table([section.heading, *section.rows]))
    return "\n".join(lines)


def show(found: doc.FleetReportDocument | doc.FleetDiffDocument) -> None:
    """Print a report or a comparison on a terminal."""
    from rich.console import Console  # start-up time: only for terminals
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if found.simulated:
        console.print(Text(SIMULATED, style="bold magenta"))
    console.print(Text(_headline(found), style="bold"))
    for section in _sections(found):
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


def _headline(found: doc.FleetReportDocument | doc.FleetDiffDocument) -> str:
    return (
        _report_headline(found)
        if isinstance(found, doc.FleetReportDocument)
        else _diff_headline(found)
    )


def _sections(found: doc.FleetReportDocument | doc.FleetDiffDocument) -> Iterator[_TextSection]:
    return (
        _report_sections(found)
        if isinstance(found, doc.FleetReportDocument)
        else _diff_sections(found)
    )


def _report_headline(found: doc.FleetReportDocument) -> str:
    counts = (
        ", ".join(
            f"{number} {words(state)}" for state, number in totals_of(found).items() if number
        )
        or "no nodes"
    )
    return f"{len(found.nodes)} nodes as of {found.at}: {counts}; {_number(len(found.causes), 'cause')}"


def _number(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _report_sections(found: doc.FleetReportDocument) -> Iterator[_TextSection]:
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
            for one in found.classes
        ],
    )
    if found.causes:
        yield _limited(
            "Drift and faults",
            ("cause", "severity", "nodes", "", "difference", "evidence"),
            [
                (
                    one.topic,
                    one.severity or "-",
                    str(one.nodes.count),
                    _nodes(one.nodes),
                    _changes(one.changes) + (f"; also {', '.join(one.also)}" if one.also else ""),
                    evidence(one),
                )
                for one in found.causes
            ],
            [
                {"drain": "red", "degraded": "yellow"}.get(one.severity or "", "")
                for one in found.causes
            ],
        )
    if found.unchecked:
        yield _limited(
            "Could not be checked",
            ("topic", "nodes", "", "declared and read"),
            [
                (one.topic, str(one.nodes.count), _nodes(one.nodes), _changes(one.changes))
                for one in found.unchecked
            ],
        )
    if found.not_known:
        yield _not_known(found)
    if found.mixed:
        yield _limited(
            "Mixed groups (the rarest value first)",
            ("group", "value of", "nodes by value"),
            [
                (
                    one.group,
                    _key(one.key, one.part),
                    "; ".join(f"{v.value}: {_nodes(v.nodes)}" for v in one.values),
                )
                for one in found.mixed
            ],
        )
    if found.no_majority:
        yield _limited(
            "No majority: no value is usual",
            ("fact", "class", "nodes by value"),
            [
                (
                    _key(one.key, one.part),
                    one.class_,
                    "; ".join(f"{v.count} {v.value}" for v in one.values[:6]),
                )
                for one in found.no_majority
            ],
        )
    if found.changed:
        yield _changed(f"Changed since {found.compared}", found.changed)
    yield from _single(found)


def _not_known(found: doc.FleetReportDocument) -> _TextSection:
    from goldnode.fleet.report.causes import nodes_of

    groups: dict[tuple[str, str], list[str]] = {}
    for node in found.not_known:
        groups.setdefault((node.state, node.class_), []).append(node.node)
    made = {key: nodes_of(names) for key, names in sorted(groups.items())}
    return _TextSection(
        f"Not known: no capture in {found.stale_after_hours:g} hours",
        ("state", "class", "nodes", ""),
        [(state, class_, str(one.count), _nodes(one)) for (state, class_), one in made.items()],
    )


def _single(found: doc.FleetReportDocument) -> Iterator[_TextSection]:
    """Yield the sections with one line for each node."""
    if found.failed_jobs:
        yield _limited(
            "Canary jobs that did not pass",
            ("job", "state", "nodes", "", "reason"),
            [
                (one.job, words(one.state), str(one.nodes.count), _nodes(one.nodes), one.why or "-")
                for one in found.failed_jobs
            ],
        )
    if found.slow:
        rows = [
            (one.worst.node, with_others(slow_line(one.worst), one.also))
            for one in by_node(found.slow)
        ]
        yield _limited("Slow nodes", ("node", "metric"), rows)
    if found.slowing:
        rows = [
            (one.worst.node, with_others(slowing_line(one.worst), one.also))
            for one in by_node(found.slowing)
        ]
        yield _limited("Nodes that become slower", ("node", "metric"), rows)
    if found.measured:
        lines = [(measured_line(one),) for one in found.measured]
        yield _TextSection("Canary results", ("class",), lines)
    if found.trends:
        yield _limited(
            "Counters that grow",
            ("node", "counter"),
            [(one.node, trend_line(one)) for one in found.trends],
        )
    if found.lemons:
        yield _limited(
            "Repeat offenders in 30 days",
            ("node", "score"),
            [(one.node, lemon_line(one)) for one in found.lemons],
        )


def _diff_headline(found: doc.FleetDiffDocument) -> str:
    away = (
        f"; {found.not_compared.count} without a capture of one of them: {_nodes(found.not_compared)}"
        if found.not_compared.count
        else ""
    )
    return f"{found.from_} to {found.to}: {_number(found.compared, 'node')} compared{away}"


def _diff_sections(found: doc.FleetDiffDocument) -> Iterator[_TextSection]:
    if found.changed:
        yield _changed("Changes", found.changed)
    if found.statuses:
        yield _limited(
            "Status",
            ("class", "nodes", "", "change"),
            [
                (one.class_, str(one.nodes.count), _nodes(one.nodes), f"{one.before} → {one.after}")
                for one in found.statuses
            ],
        )
    if not found.compared:
        yield _TextSection(
            "No node could be compared: give times with captures, or a longer --stale-after", (), []
        )
    elif not found.changed and not found.statuses:
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
    return nodes.folded if len(nodes.folded) <= _NAMES else nodes.folded[: _NAMES - 1] + "…"


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
