"""Commands `goldnode fleet report`, `goldnode fleet diff` and `goldnode fleet sql`."""

from __future__ import annotations

import csv
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import opened
from goldnode.commands.fleet.ingest import DATA_OR_BUCKET, directory
from goldnode.commands.floors import TRUST, trusted
from goldnode.commands.options import EXISTING, FILE, NEW_FILE, OLD_DIRECTORY, grouped
from goldnode.commands.output import emit, reports, say
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file
from goldnode.core.site import load_site

if TYPE_CHECKING:
    from goldnode.documents.fleet_report import FleetDiffDocument, FleetReportDocument, ReportRung
    from goldnode.documents.floors import FloorsDocument
    from goldnode.fleet.report.frame import ReportSettings, ReportSource

_FORMS = (
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%MZ",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
)
_AGO = re.compile(r"(\d+)([mhd])")
COLLECTION = "goldnode"  # named collection of ClickHouse with the address and the keys of a bucket
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class Moment(click.ParamType[datetime]):
    """A time in UTC, or how long ago: 2026-11-26T08:00Z, 2026-11-26, 90m, 24h, 7d."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the time, to the second."""
        if isinstance(value, datetime):
            return value
        match = _AGO.fullmatch(value)
        try:
            if match:
                return datetime.now(UTC).replace(microsecond=0) - timedelta(
                    **{_UNITS[match[2]]: int(match[1])}
                )
        except OverflowError:
            # So long ago that there is no date of it: refused below as any other text.
            pass
        for form in _FORMS:
            with suppress(ValueError):
                return datetime.strptime(value, form).replace(tzinfo=UTC)
        return self.fail(
            f"{value!r} is no time: give UTC as 2026-11-26T08:00Z, or how long ago, as 24h or 7d",
            param,
            ctx,
        )


@dataclass(frozen=True)
class ReportOptions:
    """Subject of a report: the time, and the nodes that should report."""

    at: datetime | None = None
    stale_after: float = 26
    nodes: Path | None = None
    groups: Path | None = None
    floors: tuple[Path, ...] = ()
    trust: tuple[Path, ...] = ()
    views: Path | None = None


@dataclass(frozen=True)
class ReportOutput:
    """Where the report goes, and whether it has names."""

    out: Path | None = None
    anonymous: bool = False


_AT = click.option(
    "--at",
    type=Moment(),
    metavar="TIME",
    show_default="now",
    help="Report on this time, by what had arrived then.",
)
_STALE = click.option(
    "--stale-after",
    type=click.FloatRange(min=0.1, max=2160),
    default=26,
    show_default=True,
    metavar="HOURS",
    help="A node without a capture for longer is not known.",
)
_NODES = click.option(
    "--nodes",
    type=FILE,
    metavar="FILE",
    help="Fleet file (as of `goldnode fleet nodes`): nodes that should report.",
)
_GROUPS = click.option(
    "--groups",
    type=FILE,
    metavar="FILE",
    help="Groups besides cohorts, such as jobs or rings: lines GROUP,NODE.",
)
_FLOORS = click.option(
    "--floors",
    multiple=True,
    type=EXISTING,
    metavar="PATH",
    help="Baseline of `goldnode floors learn`, or a directory of them, for slow nodes. Repeatable.",
)
_VIEWS = click.option(
    "--views",
    type=OLD_DIRECTORY,
    metavar="DIRECTORY",
    help="Your own views, NN_NAME.sql, created after goldnode's.",
)
_ANONYMOUS = click.option(
    "--anonymous",
    is_flag=True,
    help="Replace names of nodes and groups, addresses and serial numbers.",
)
_OPTIONS = grouped("what", ReportOptions, _AT, _STALE, _NODES, _GROUPS, _FLOORS, TRUST, _VIEWS)


@click.command()
@_OPTIONS
@grouped(
    "output",
    ReportOutput,
    click.option(
        "--out",
        type=NEW_FILE,
        metavar="FILE",
        help="Write to this file instead of standard output. The file is replaced at once.",
    ),
    _ANONYMOUS,
)
@DATA_OR_BUCKET
@reports("fleet-report", "html", "prometheus")
def report(what: ReportOptions, output: ReportOutput, data: str | None, form: str) -> None:
    """Show drift, mixed groups, slow nodes, growing counters and repeat offenders.

    Reads the captures and canary results that `goldnode fleet ingest` has stored. One line is one cause, with all of its nodes. A node
    that has not reported is not known: neither healthy nor faulty.
    """
    settings = _settings(what)
    source = _source(what, data, settings)
    # After `_source`, which names a missing extra: this import needs its packages.
    from goldnode.fleet.report.build import report as build

    document = build(source, settings, what.views)
    document = document.model_copy(update={"rungs": _rungs(settings.at.timestamp())})
    if output.anonymous:
        from goldnode.fleet.report.anonymous import anonymous

        document = anonymous(document)
    _write(form, document, output)


@click.command()
@click.option(
    "--from", "start", type=Moment(), required=True, metavar="TIME", help="The earlier time."
)
@click.option(
    "--to", "end", type=Moment(), metavar="TIME", show_default="now", help="The later time."
)
@click.option(
    "--stale-after",
    type=click.FloatRange(min=0.1, max=2160),
    default=26,
    show_default=True,
    metavar="HOURS",
    help="Use captures that are at most this much older than either time.",
)
@_ANONYMOUS
@DATA_OR_BUCKET
@reports("fleet-diff")
def diff(
    start: datetime,
    end: datetime | None,
    stale_after: float,
    anonymous: bool,
    data: str | None,
    *,
    form: str,
) -> None:
    """Show what changed on the nodes between two times.

    For instance before an incident: `goldnode fleet diff --from 24h`. One line is one change, with all of its nodes.
    """
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.report.frame import ReportSettings, ReportSource

    end = end or now()
    if start >= end:
        raise click.UsageError("--from is not before --to")
    settings = ReportSettings(end, before=start, stale_after=timedelta(hours=stale_after))
    source = ReportSource(_data(data, settings))
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.report.build import diff as build

    document = build(source, settings)
    if anonymous:
        from goldnode.fleet.report.anonymous import anonymous as without_names

        document = without_names(document)
    _write(form, document, ReportOutput())


@click.command()
@click.argument("query", required=False)
@_OPTIONS
@click.option(
    "--script",
    type=click.Choice(["clickhouse", "clickhouse-tables"]),
    help="Print the statements that create the views in ClickHouse, and run nothing: over the files, or over tables "
    "that the statements fill from them.",
)
@DATA_OR_BUCKET
@reports("fleet-sql")
def sql(
    query: str | None, what: ReportOptions, script: str | None, data: str | None, form: str
) -> None:
    """Run SQL on the captures and on the views of the report.

    With QUERY, it prints the rows. Without, it reads statements from a terminal, each up to a semicolon; `views` lists
    the views. The files of the captures cannot be changed.
    """
    settings = _settings(what)
    source = _source(what, data, settings)
    # pyarrow: only the extra `report` installs it.
    from goldnode.commands.fleet import sql as fleet_sql
    from goldnode.fleet.report.engine import keys_of, opened

    with opened(source, settings, what.views) as connection:
        # Before the connection is locked: the statements are printed and run nowhere here.
        if script:
            # pyarrow: only the extra `report` installs it.
            from goldnode.fleet.report.clickhouse import statements

            load, keys = script == "clickhouse-tables", keys_of(connection)
            made = statements(source, settings, keys, what.views, load=load)
            click.echo(";\n\n".join(made) + ";")
            return
        fleet_sql.lock(connection)
        if query is None:
            if form != "text":
                raise click.UsageError("--format json needs a query")
            fleet_sql.shell(connection, what.views)
            return
        answer = fleet_sql.run(connection, query)
    emit(form, {"columns": answer.columns, "rows": answer.rows}, lambda: fleet_sql.text(answer))


def now() -> datetime:
    """Return the next full second: what has just arrived belongs to the report."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)


def _settings(what: ReportOptions) -> ReportSettings:
    extras.require("report")
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.report.frame import ReportSettings

    return ReportSettings(what.at or now(), stale_after=timedelta(hours=what.stale_after))


def _data(given: str | None, settings: ReportSettings) -> Path:
    """Return the directory of captures. For a bucket, it has the files of a report, and is removed as the command ends."""
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.ingest import bucket
    from goldnode.fleet.report.frame import chosen_parts

    if given is None or not bucket.is_address(given):
        return directory(None if given is None else Path(given))
    files = bucket.fetched(bucket.S3Storage.of(given), partial(chosen_parts, settings))
    return click.get_current_context().with_resource(files)


def _source(what: ReportOptions, data: str | None, settings: ReportSettings) -> ReportSource:
    where = _data(data, settings)
    # pyarrow: only the extra `report` installs it.
    from goldnode.fleet.report.frame import ExpectedNode, ReportSource

    expected: list[ExpectedNode] = []
    if what.nodes is not None:
        extras.require("fleet")
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.store.fleet_file import load

        expected = [
            ExpectedNode(node.name, node.node_class, node.cohort) for node in load(what.nodes).nodes
        ]
    groups = _groups(what.groups) if what.groups else []
    floors = _floors(what) if what.floors else []
    collection = COLLECTION if data is not None and "://" in data else None
    return ReportSource(where, expected, groups, floors, collection)


def _rungs(at: float) -> list[ReportRung]:
    """Return what the rungs of the ladder did until a time; none without a store, or where it cannot be read."""
    site = load_site()
    where = site.fleet_store()
    if "://" not in where and not Path(where).expanduser().exists():
        return []
    from goldnode.documents.fleet_report import ReportRung
    from goldnode.fleet.control.rung_versions import versions_of
    from goldnode.fleet.rollout.ladder import LadderState
    from goldnode.fleet.rollout.learning import lessons
    from goldnode.fleet.store.repairs import LadderRecord

    record, state = LadderRecord(), LadderState()
    try:
        with opened(None) as store, store.read() as connection:
            record.read(connection)
    except GoldnodeError as problem:
        say(f"the report has no rungs of the ladder: {problem}")
        return []
    for moment, action in record.lines:
        if moment <= at:
            state.apply(action, moment)
    learned = lessons(state, versions_of(Path(site.ladder.evidence)))
    return [
        ReportRung(
            finding=row.finding,
            rung=row.rung,
            model=row.versions.model,
            firmware=row.versions.firmware,
            driver=row.versions.driver,
            tries=row.tries,
            cured=row.cured,
            came_back=row.came_back,
            low=row.low,
            high=row.high,
            never_helps=row.never_helps,
        )
        for row in learned
    ]


def _floors(what: ReportOptions) -> list[FloorsDocument]:
    """Return the baselines that a report compares canary results with. Raises GoldnodeError."""
    extras.require("floors")
    from goldnode.floors import baseline  # numpy: only the extra `floors` installs it

    keys = trusted(what.trust)
    files: list[Path] = []
    for path in what.floors:
        paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not paths:
            raise GoldnodeError(
                "there is no baseline in this directory",
                file=path,
                remedy="write one there with `goldnode floors learn`",
            )
        files += paths
    return [baseline.read(file, keys).document for file in files]


def _groups(path: Path) -> list[tuple[str, str]]:
    """Return the rows of a file of groups. Raise GoldnodeError with the line of a wrong one."""
    groups = []
    try:
        with path.open(encoding="utf-8", newline="") as opened:
            for number, row in enumerate(csv.reader(opened), 1):
                cells = [cell.strip() for cell in row]
                if not any(cells) or cells[0].startswith("#"):
                    continue
                if len(cells) != 2 or not all(cells):
                    raise GoldnodeError(
                        "a line has a group, a comma and a node",
                        file=path,
                        line=number,
                        remedy="correct the line: job4711,node0001",
                    )
                groups.append((cells[0], cells[1]))
    except (UnicodeDecodeError, csv.Error, OSError) as problem:
        raise GoldnodeError(
            f"cannot be read: {problem}", file=path, remedy="give a text file in UTF-8"
        ) from None
    return groups


def _write(
    form: str, document: FleetReportDocument | FleetDiffDocument, output: ReportOutput
) -> None:
    """Print a document as text, JSON, HTML or metrics, or write it to a file."""
    from goldnode.commands.fleet import (
        report_text as text,
    )  # start-up time: it imports the documents

    if form == "text" and output.out is None and sys.stdout.isatty():
        text.show(document)
        return
    if form == "html":
        from goldnode.commands.fleet.report_page import html

        content = html(document)  # type: ignore[arg-type]  # only a report has this format
    elif form == "prometheus":
        from goldnode.fleet.report.metrics import text as metrics

        content = metrics(document)  # type: ignore[arg-type]  # only a report has this format
    elif form == "json":
        content = dumps(document)
    else:
        content = text.as_text(document) + "\n"
    if output.out is not None:
        replace_file(output.out, content.encode())
        say(f"wrote {output.out}")
    elif form == "json":
        emit(form, document.model_dump(by_alias=True, mode="json"))
    else:
        click.echo(content, nl=False)


def dumps(document: FleetReportDocument | FleetDiffDocument) -> str:
    """Return a document as JSON, as the commands print it."""
    from goldnode.commands.output import dumps as text

    return text(document.model_dump(by_alias=True, mode="json")) + "\n"
