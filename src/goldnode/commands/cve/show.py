"""Command `goldnode cve show`, which `goldnode cve` without a command is too."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA
from goldnode.commands.output import emit, emit_rows, reports
from goldnode.node.ground.text import and_more, phrase, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from goldnode.cve.report import CarrierRow, CveSummary
    from goldnode.documents.cve import CveDocument

_NAMES = 4  # carriers that a line names
_SUMMARY = 200  # characters
# Vulnerabilities that --all shows in full; more are one line each.
_SHOWN = 5
_NO_FEED = (
    "No data of a tracker were given. Name a file, or fetch the data of Debian: "
    "--feed debian=https://security-tracker.debian.org/tracker/data/json --fetch"
)


@click.command()
@click.argument("names", nargs=-1, metavar="[CVE]...")
@click.option("--all", "everything", is_flag=True, help="Show all vulnerabilities that are open.")
@given.SOURCES
@DATA
@reports("cve")
def show(
    names: tuple[str, ...],
    everything: bool,
    sources: CveSources,
    data: Path | None,
    form: str,
) -> None:
    """Show which locks, images, disks and nodes carry a vulnerability.

    Locks, disks and images are judged by their packages, nodes by the kernel and the driver that run, by the packages
    of their lock and by the container toolkit. A fix that is installed and not booted is not a fix.

    Without --feed, only NVIDIA's bulletins in the compatibility facts are known.

    Exit status: 0 nothing is affected, 1 something is, or it is not known, 2 an error.
    """
    from goldnode.core.site import load_site
    from goldnode.cve.claims import CVE
    from goldnode.cve.match import Matcher, inventory
    from goldnode.cve.report import CveQuestion, build

    if bool(names) == everything:
        raise click.UsageError("name vulnerabilities, or use --all")
    if sources.modules and len(names) != 1:
        raise click.UsageError("--module is for one CVE")
    wanted = tuple(
        dict.fromkeys(name.upper() if CVE.fullmatch(name.upper()) else name for name in names)
    )
    now = dt.datetime.now(dt.UTC)
    site = load_site()
    carriers = given.carriers_of(site)
    nodes = [] if sources.no_nodes else given.nodes_of_fleet(data or site.fleet_data(), now)
    feeds = given.feeds_of(sources, carriers, nodes, now.date())
    modules = given.kernel_names(sources.modules)
    matcher = Matcher(feeds, None if everything else set(wanted), modules)
    report = build(
        CveQuestion(None if everything else wanted, now),
        inventory(carriers, nodes, modules),
        matcher,
        nodes,
    )
    seen = _Seen(report.entries())
    if form == "json":
        content = report.head.model_dump(mode="json", by_alias=True, exclude={"vulnerabilities"})
        emit_rows(content, "vulnerabilities", (entry.text() for entry in seen))
    else:
        lines = [feed.line(now.date()) for feed in feeds]
        emit(form, {}, _text(report.head, seen, lines, full=not everything))
    if report.head.no_record or seen.open:
        sys.exit(1)


class _Seen:
    """Entries of a report as they pass, and whether one of them has open rows."""

    def __init__(self, entries: Iterator[CveSummary]) -> None:
        self._entries, self.open = entries, False

    def __iter__(self) -> Iterator[CveSummary]:
        for entry in self._entries:
            self.open = self.open or bool(entry.open_rows)
            yield entry


def _text(head: CveDocument, entries: Iterable[CveSummary], feeds: list[str], *, full: bool) -> str:
    lines = [f"data: {line}" for line in feeds]
    if head.nodes.get("captured"):
        simulated = head.nodes.get("simulated", 0)
        lines.append(
            f"nodes: {head.nodes['captured']} by their last captures"
            + phrase(", {} of SIMULATED hardware", simulated)
        )
    shown, short = [], []
    for number, entry in enumerate(entries):
        short.append(_short(entry))
        if full or number < _SHOWN:
            shown += ["", *_entry(entry)]
    if full or len(short) <= _SHOWN:
        lines += shown
    else:
        lines += ["", *short]
    for name in head.no_record:
        lines += [
            "",
            f"{name}: no record in these data, which does not mean that nothing is affected",
        ]
    if not short and not head.no_record:
        lines += ["", "nothing that these data know is open"]
    if head.not_judged:
        lines.append("")
        lines += [
            f"not judged: {row.kind} {_names(row.names)}: {row.why}" for row in head.not_judged
        ]
    if {feed.kind for feed in head.feeds} <= {"facts"}:
        lines += ["", _NO_FEED]
    return "\n".join(lines)


def _entry(entry: CveSummary) -> list[str]:
    head = (
        f"{entry.id} ({entry.severity}){phrase(': {}', shortened(_line(entry.summary), _SUMMARY))}"
    )
    lines = [head]
    if entry.note:
        lines.append(f"  {entry.note}")
    if not entry.rows:
        lines.append("  no lock, image, disk or node has a package of it")
    for row in entry.rows:
        lines += [f"  {row.state}: {row.kind} {_names(row.names)}", f"    {_reason(row)}"]
    return lines


def _reason(row: CarrierRow) -> str:
    fixed = ""
    if row.fixed is not None and row.fixed not in row.why:
        fixed = f"; fixed in {row.fixed}"
    return f"{row.package} {row.version}: {row.why}{fixed} [{row.feed}{phrase(', {}', row.word)}]"


def _short(entry: CveSummary) -> str:
    counts = [
        f"{kind} {number} {state}"
        for kind, states in entry.counts.items()
        for state, number in states.items()
        if state not in ("fixed", "not-affected")
    ]
    return f"{entry.id} ({entry.severity}): {', '.join(counts)}"


def _names(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + and_more(len(names) - _NAMES)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
