"""Command `goldnode cve`."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.ingest import DATA
from goldnode.commands.options import grouped
from goldnode.commands.output import emit, emit_rows, reports
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.text import and_more, phrase, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from goldnode.core.site import Site
    from goldnode.cve.nodes import NodeFacts
    from goldnode.cve.report import CarrierRow, CveSummary
    from goldnode.cve.subjects import Carriers
    from goldnode.documents.cve import CveDocument

_NAMES = 4  # carriers that a line names
_SUMMARY = 200  # characters
# Vulnerabilities that --all shows in full; more are one line each.
_SHOWN = 5


@dataclass(frozen=True)
class _CveSources:
    """Options of `goldnode cve` about its data."""

    feeds: tuple[str, ...]
    fetch: bool
    max_age: int | None
    modules: tuple[str, ...]
    no_nodes: bool


_SOURCES = grouped(
    "sources",
    _CveSources,
    click.option(
        "--feed",
        "feeds",
        multiple=True,
        metavar="KIND=FILE|URL[@DATE]",
        help="Vulnerability data, with their date: KIND is debian (the security tracker's JSON), osv, oval or csaf. "
        "Repeatable.",
    ),
    click.option(
        "--fetch",
        is_flag=True,
        help="Fetch the URLs. Without it, what was fetched last is used.",
    ),
    click.option(
        "--max-age",
        type=click.IntRange(min=0),
        metavar="DAYS",
        help="Refuse data of --feed that are older.",
    ),
    click.option(
        "--module",
        "modules",
        multiple=True,
        metavar="NAME",
        help="Kernel module with the vulnerable code: nodes that have not loaded it are named. Only for one CVE. "
        "Repeatable.",
    ),
    click.option("--no-nodes", is_flag=True, help="Read no captures of the fleet."),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[CVE]...")
@click.option("--all", "everything", is_flag=True, help="Show all vulnerabilities that are open.")
@_SOURCES
@DATA
@reports("cve")
def cve(
    names: tuple[str, ...],
    everything: bool,
    sources: _CveSources,
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
    from goldnode.cve.feeds import FeedRequest, load_feeds
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
    carriers = carriers_of(site)
    nodes = [] if sources.no_nodes else _nodes(data or site.fleet_data(), now)
    systems = {subject.system for subject in carriers.subjects} | {node.system for node in nodes}
    request = FeedRequest({system for system in systems if system is not None}, fetch=sources.fetch)
    feeds = load_feeds(sources.feeds, request)
    for feed in feeds[:-1]:
        age = feed.age(now.date())
        if sources.max_age is not None and (age is None or age > sources.max_age):
            raise GoldnodeError(
                f"{feed.line(now.date())}; --max-age permits {sources.max_age}",
                remedy="get newer data; for a URL, add --fetch",
            )
    # The kernel names modules with underscores, and modprobe takes both.
    modules = frozenset(name.replace("-", "_") for name in sources.modules)
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
        emit_rows(content, "vulnerabilities", (entry.content() for entry in seen))
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


def carriers_of(site: Site) -> Carriers:
    """Return the locks, disks and images of a site, and the derived images and channels of its stores."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.cve import subjects
    from goldnode.disks.model import builds, store_directory
    from goldnode.disks.places import ChannelStore
    from goldnode.images.matrix import load_matrix
    from goldnode.images.store import DEFAULT, VARIABLE, open_store

    catalog = load_catalog()
    carriers = subjects.Carriers()
    for subject in subjects.stacks(catalog, site):
        carriers.add(subject)
    for subject in subjects.disks(catalog, builds(store_directory())):
        carriers.add(subject)
    # Opening a store creates it.
    store = open_store() if DEFAULT.is_dir() or os.environ.get(VARIABLE) else None
    matrix = load_matrix()
    for subject in subjects.images(matrix, store):
        carriers.add(subject)
    for subject in subjects.disk_channels(catalog, ChannelStore(store_directory()), carriers):
        carriers.add(subject)
    for subject in subjects.image_channels(matrix, store) if store is not None else ():
        carriers.add(subject)
    return carriers


def _nodes(directory: Path, now: dt.datetime) -> list[NodeFacts]:
    if not directory.is_dir():
        click.echo(f"no captures in {directory}: nodes are not judged", err=True)
        return []
    extras.require("report")
    from goldnode.cve.nodes import nodes_of

    return nodes_of(directory, now)


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
