"""Tables under the views: settings, tables of keys, and the Parquet files, in SQL of DuckDB or of ClickHouse.

The views of `sql/views` are the same text in both. Each is one SELECT; its name is that of the file
without the number. `-- stored` in its first lines makes it a temporary table in DuckDB, since
others read it more than once.
"""
# ruff: noqa: S608  # names of tables and files, quoted; nothing that a request gives

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.documents.floors import FloorsDocument, FloorsMetric
from goldnode.fleet.ingest import expanded
from goldnode.fleet.ingest.class_names import NO_CLASS
from goldnode.fleet.ingest.expanded import ListDialect
from goldnode.fleet.ingest.present import change_files
from goldnode.fleet.ingest.tables import (
    BASE_DAYS,
    CANARY,
    CHANGES,
    DIGESTS,
    FACTS,
    FINDINGS,
    NODES,
    NUMBERS,
    ORDER,
    PartName,
    found_parts,
)
from goldnode.fleet.report import topics
from goldnode.floors import counting
from goldnode.node.ground.text import phrase

Value = str | int | float | None
Row = tuple[Value, ...]
_FILE = re.compile(r"\d+_([a-z_]+)\.sql")
CONFIDENCE = 0.99  # of the bound of a median: fleet/report/sql/views/70_slow_captures.sql


@dataclass(frozen=True)
class ReportSettings:
    """The time of a report, and its limits."""

    at: datetime
    before: datetime | None = None  # the time that is compared with; None: a week earlier
    stale_after: timedelta = timedelta(hours=26)
    min_share: float = 0.6
    min_nodes: int = 3
    samples: int = 25
    sigmas: float = (
        3.25  # of healthy nodes, 1 in 10,000 is slow; of those that lost a tenth, 9 in 10
    )
    loss: float = (
        0.05  # least loss that makes a node slow without a floor, and a trend worth a line
    )
    trend: timedelta = timedelta(days=7)
    month: timedelta = timedelta(days=30)

    @property
    def compared(self) -> datetime:
        """Return the earlier time of the comparison."""
        return self.before or self.at - timedelta(days=7)


@dataclass(frozen=True)
class ExpectedNode:
    """A node that should report."""

    node: str
    class_: str
    cohort: str | None = None


@dataclass(frozen=True)
class ReportSource:
    """A directory of captures, the nodes that should report, groups besides cohorts (jobs, rings), and baselines."""

    directory: Path
    expected: Sequence[ExpectedNode] = ()
    groups: Sequence[tuple[str, str]] = ()  # name of the group, node
    floors: Sequence[FloorsDocument] = ()
    # Named collection by which ClickHouse reads these files in a bucket; None: it reads those of the directory.
    collection: str | None = None


@dataclass(frozen=True)
class ReportView:
    """One view: its name, its text, and whether it is stored."""

    name: str
    text: str
    stored: bool
    about: str
    file: str = field(default="", compare=False)


def views(more: Path | None = None) -> list[ReportView]:
    """Return goldnode's views, then those of the directory `more`, in the order of their files."""
    own = files("goldnode.fleet.report") / "sql" / "views"
    views = [
        _view(item.name, item.read_text(encoding="utf-8"))
        for item in own.iterdir()
        if item.name.endswith(".sql")
    ]
    views.sort(key=lambda view: view.file)
    if more is not None:
        if not more.is_dir():
            raise GoldnodeError(
                "there is no such directory of views",
                file=more,
                remedy="name one with files NN_NAME.sql",
            )
        views += [
            _view(path.name, path.read_text(encoding="utf-8"), path)
            for path in sorted(more.glob("*.sql"))
        ]
    return views


def _view(file: str, text: str, path: Path | None = None) -> ReportView:
    match = _FILE.fullmatch(file)
    if match is None:
        raise GoldnodeError(
            "the name of a view's file is a number, an underscore and small letters",
            file=path,
            remedy="rename it: 99_name.sql",
        )
    comments = [line[3:] for line in text.splitlines() if line.startswith("-- ")]
    stored = "stored" in comments
    about = " ".join(line for line in comments if line != "stored")
    return ReportView(match[1], text.rstrip().rstrip(";"), stored, about, file)


def prelude(engine: str) -> str:
    """Return the functions that the views use, for `duckdb` or `clickhouse`."""
    return (files("goldnode.fleet.report") / "sql" / f"{engine}.sql").read_text(encoding="utf-8")


def parts(source: ReportSource, settings: ReportSettings) -> Mapping[str, list[Path]]:
    """Return the files of each table that a report of this time can need. Raise GoldnodeError for a directory without captures.

    Captures are read of all days, for stale nodes; facts from the earlier time on; findings and
    canary results of the last month. The table of canary results may have no file.
    """
    parts = found_parts(source.directory)
    if not parts:
        raise GoldnodeError(
            "no captures are stored here",
            file=source.directory,
            remedy="run `goldnode fleet ingest` first",
        )
    files: dict[str, list[Path]] = {}
    for table in (*ORDER, CANARY):
        named = parts if table != CANARY else found_parts(source.directory, CANARY)
        chosen = chosen_parts(settings, table, named)
        if table == CHANGES:
            files[table] = change_files(source.directory, chosen)
        else:
            files[table] = [part.file(source.directory, table) for part in chosen]
    return files


def chosen_parts(settings: ReportSettings, table: str, found: Sequence[PartName]) -> list[PartName]:
    """Return the parts of the found ones whose files of a table a report can need."""
    facts = min(settings.compared, settings.at) - settings.stale_after
    numbers = settings.at - settings.trend
    bases = timedelta(days=BASE_DAYS)
    month = settings.at - settings.month
    since, until = {
        NODES: (None, settings.at),
        FACTS: (facts - bases, settings.at + bases),
        DIGESTS: (facts - bases, settings.at + bases),
        NUMBERS: (numbers - bases, settings.at + bases),
        CHANGES: (min(facts, numbers), settings.at),
        FINDINGS: (month, settings.at),
        CANARY: (month, settings.at),
    }[table]
    low = phrase("{:%Y-%m-%d}", since)
    chosen = [part for part in found if low <= part.day <= f"{until:%Y-%m-%d}"]
    # Without a file, an empty list would be no table: the last one then has no row of that time.
    return chosen or (list(found[-1:]) if table != CANARY else [])


def stored_views(
    source: ReportSource, settings: ReportSettings, dialect: Dialect, wanted: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield name and SELECT of the views of what the files have, and of the tables as if all captures were whole.

    :param wanted: table with the node and time of the captures that these tables are of; None: all.
    """
    named = parts(source, settings)
    first = (
        f"{min(settings.compared - settings.stale_after, settings.at - settings.trend):%Y-%m-%d}"
    )
    files = dict(named)
    # Changes are read from this day on: captures before it would have values of their bases.
    recent = [file for file in named[NODES] if file.parent.name.removeprefix("day=") >= first]
    files[NODES] = recent or named[NODES][-1:]
    for table in (NODES, FACTS, NUMBERS, DIGESTS):
        rows = dialect.file_table(files[table])
        name = "stored_captures" if table == NODES else f"stored_{table}"
        yield name, expanded.stored(dialect.lists, table, files[table], rows)
    columns = ("class", "day", "node", "time", "base", "held")
    nodes = (
        f"SELECT {', '.join(f'c.{name} AS {name}' for name in columns)} FROM stored_captures AS c"
    )
    if wanted is not None:
        nodes += f" INNER JOIN {wanted} AS w ON w.node = c.node AND w.time = c.time"
    yield f"stored_{NODES}", nodes
    changes = dialect.lists.no_changes.format(day="''")
    if named[CHANGES]:
        changes = f"SELECT * FROM {dialect.file_table(named[CHANGES])}"
    yield f"stored_{CHANGES}", changes
    yield from expanded.views(
        dialect.lists, by_change=bool(named[CHANGES]), narrow=wanted is not None
    )
    yield FINDINGS, f"SELECT * FROM {dialect.file_table(named[FINDINGS])}"


def watched_views(
    source: ReportSource, settings: ReportSettings, keys: ReportKeys, dialect: Dialect
) -> Iterator[tuple[str, str]]:
    """Yield name and SELECT of the views of those counters and metrics that are read over all captures."""
    watched = [key for key in sorted(keys.numbers) if topics.rate(key) or topics.metric(key)]
    by_change = bool(parts(source, settings)[CHANGES])
    yield from expanded.watched_views(dialect.lists, list(map(dialect.quote, watched)), by_change)


def settings_row(settings: ReportSettings) -> dict[str, float]:
    """Return the columns of the view `settings`. Times are seconds since 1970."""
    at, before = settings.at.timestamp(), settings.compared.timestamp()
    stale = settings.stale_after.total_seconds()
    return {
        "now_s": at,
        "fresh_s": at - stale,
        "before_s": before,
        "back_s": before - stale,
        "trend_s": at - settings.trend.total_seconds(),
        "month_s": at - settings.month.total_seconds(),
        "min_share": settings.min_share,
        "min_nodes": settings.min_nodes,
        "samples": settings.samples,
        "sigmas": settings.sigmas,
        "loss": settings.loss,
        "clock": counting.CLOCK_TOLERANCE,
        "runs": counting.RUNS,
        "least_results": counting.RESULTS,
        "least_nodes": counting.CLASS_NODES,
        "least_devices": counting.CLASS_DEVICES,
    }


def bounds(most: int) -> list[Row]:
    """Return for numbers of samples the place, from the best value on, that bounds the median from above.

    Order statistics: the k-th best of n values is not below the median with probability
    P(Binomial(n, 1/2) >= k).
    """
    rows: list[Row] = []
    for n in range(1, most + 1):
        below = [1 - sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(1, n + 1)]
        places = [k for k, share in enumerate(below, 1) if share >= CONFIDENCE]
        if places:
            rows.append((n, max(places)))
    return rows


@dataclass(frozen=True)
class ReportKeys:
    """The keys and findings that the files have."""

    facts: Sequence[str]
    numbers: Sequence[str]
    findings: Sequence[str]


def reference(
    source: ReportSource, settings: ReportSettings, keys: ReportKeys
) -> dict[str, tuple[list[str], list[Row]]]:
    """Return the tables under the views that come from no file: name -> columns with types, rows."""
    numbers = {key: place for place, key in enumerate(sorted({*keys.facts, *keys.numbers}))}
    report_keys = [topics.report_key(key) for key in sorted(keys.facts)]
    rates = [(key, rule) for key in sorted(keys.numbers) if (rule := topics.rate(key))]
    metrics = [(key, own) for key in sorted(keys.numbers) if (own := topics.metric(key))]
    return {
        "keys": (
            [
                "key text",
                "section text",
                "topic text",
                "kind text",
                "compared int",
                "loose int",
                "agree int",
                "named int",
                "optional int",
                "number int",
            ],
            [
                (
                    one.key,
                    one.section,
                    one.topic,
                    one.kind,
                    int(one.compared),
                    int(one.loose),
                    int(one.agree),
                    int(one.named),
                    int(one.optional),
                    numbers[one.key],
                )
                for one in report_keys
            ],
        ),
        "part_keys": (
            ["key text", "topic text", "board int", "number int"],
            [(one.key, one.topic, int(one.board), numbers[one.key]) for one in _part_keys(keys)],
        ),
        "rates": (
            ["key text", "floor_rate float", "stored int"],
            [(key, rule.an_hour, int(rule.stored)) for key, rule in rates],
        ),
        "metrics": (
            ["key text", "sign float", "margin float"],
            [(key, 1.0 if rule.higher_is_better else -1.0, rule.margin) for key, rule in metrics],
        ),
        "finding_topics": (
            ["id text", "topic text", "loose int"],
            [
                (one, topics.finding_topic(one), int(topics.finding_is_loose(one)))
                for one in sorted(keys.findings)
            ],
        ),
        "bounds": (["n int", "place int"], bounds(settings.samples)),
        "expected": (
            ["node text", "class text", "cohort text"],
            [(one.node, one.class_, one.cohort) for one in source.expected],
        ),
        "groups": (["name text", "node text"], list(source.groups)),
        "floors": (_FLOORS, floor_rows(source.floors)),
    }


def _part_keys(keys: ReportKeys) -> list[topics.PartKey]:
    """Return the keys that each of several equal parts has, whether the value is a text or a number."""
    named = [(key, False) for key in keys.facts] + [(key, True) for key in keys.numbers]
    part_keys = {key: topics.part_key(key, number) for key, number in sorted(named)}
    return [one for one in part_keys.values() if one is not None]


_FLOORS = [
    *(
        "class text",
        "class_digest text",
        "platform text",
        "runner text",
        "simulated int",
        "metric text",
    ),
    *("quantile text", "node text", "device text", "usual float", "floor_value float", "nodes int"),
    *("results int", "low_mhz float", "high_mhz float", "device_mhz float", "date text"),
]


def floor_rows(floors: Iterable[FloorsDocument]) -> list[Row]:
    """Return the floors of baselines. Of two baselines with the same circumstances, the later one counts."""
    newest: dict[tuple[Value, ...], FloorsDocument] = {}
    for document in sorted(floors, key=lambda one: one.end):
        newest[_circumstances(document)] = document
    return [
        (*place, *row)
        for place, document in newest.items()
        for metric in document.metrics
        for row in _floors(document, metric)
    ]


def _circumstances(document: FloorsDocument) -> tuple[Value, ...]:
    return (
        document.class_ or NO_CLASS,
        document.class_digest or "",
        document.platform,
        document.runner,
        int(document.simulated),
    )


def _floors(document: FloorsDocument, metric: FloorsMetric) -> Iterable[Row]:
    clocks = metric.sm_mhz
    highest = max(
        (one.sm_mhz[1] for one in document.metrics if one.sm_mhz is not None), default=0.0
    )
    for one in metric.statistics:
        yield (
            counting.metric_name(metric.name, metric.phase),
            one.quantile,
            metric.node or "",
            metric.device or "",
            one.median,
            one.floor,
            metric.nodes,
            metric.results,
            -1.0 if clocks is None else clocks[0],
            -1.0 if clocks is None else clocks[1],
            highest,
            document.end[:10],
        )


@dataclass(frozen=True)
class Dialect:
    """Parts of the frame that differ between engines."""

    types: Mapping[str, str]
    file_table: Callable[[Sequence[Path]], str]
    quote: Callable[[Value], str]
    seconds: str
    flag: str
    lists: ListDialect


def literal(value: Value) -> str:
    """Return a value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


def values(
    columns: Sequence[str],
    rows: Sequence[Row],
    types: Mapping[str, str],
    quote: Callable[[Value], str],
) -> str:
    """Return a SELECT of rows; columns are given as `NAME TYPE` with the types of `reference`."""
    named = [column.split() for column in columns]
    if not rows:
        nothing = ", ".join(
            f"CAST({0 if kind != 'text' else quote('')} AS {types[kind]}) AS {name}"
            for name, kind in named
        )
        return f"SELECT {nothing} WHERE 1 = 0"
    first, *others = rows
    head = ", ".join(
        f"CAST({quote(value)} AS {types[kind]}) AS {name}"
        for value, (name, kind) in zip(first, named, strict=True)
    )
    tail = [
        "SELECT "
        + ", ".join(
            f"CAST({quote(value)} AS {types[kind]})"
            for value, (_, kind) in zip(row, named, strict=True)
        )
        for row in others
    ]
    return " UNION ALL ".join([f"SELECT {head}", *tail])


# Columns of the view `results`, for a directory without a file of canary results.
_RESULTS = [
    *(
        "node text",
        "class text",
        "seconds float",
        "result text",
        "simulated int",
        "class_digest text",
    ),
    *(
        "platform text",
        "runner text",
        "boot_id text",
        "how text",
        "job text",
        "state text",
        "why text",
    ),
    *(
        "verified int",
        "metric text",
        "device text",
        "unit text",
        "sign float",
        "quantile text",
        "runs int",
    ),
    *("value float", "bound float", "sm_mhz float", "device_sm_mhz float", "uncounted text"),
]


def results_view(dialect: Dialect, files: str | None, settings: ReportSettings) -> str:
    """Return the SELECT of `results`: rows of canary results of 30 days that had arrived at the time of the report."""
    if files is None:
        return values(_RESULTS, [], dialect.types, literal)
    until = settings.at.astimezone(UTC).timestamp()
    since = until - settings.month.total_seconds()
    seconds = dialect.seconds.format("time")
    return (
        f"SELECT node, class, {seconds} AS seconds, result, {dialect.flag.format('simulated')} AS simulated, "
        "coalesce(class_digest, '') AS class_digest, platform, runner, boot_id, how, job, state, why, "
        f"{dialect.flag.format('verified')} AS verified, metric, coalesce(device, '') AS device, unit, "
        "CASE WHEN better = 'lower' THEN -1e0 ELSE 1e0 END AS sign, quantile, runs, value, bound, sm_mhz, device_sm_mhz, "
        f"uncounted FROM {files} WHERE {seconds} <= {until!r} AND {seconds} >= {since!r} "
        f"AND {dialect.seconds.format('received')} <= {until!r}"
    )


def wanted_captures() -> str:
    """Return the SELECT of the captures whose facts a report reads: views `latest` and `moments`."""
    return (
        "SELECT node, max(time) AS time FROM captures GROUP BY node UNION "
        "SELECT c.node AS node, max(c.time) AS time FROM captures AS c CROSS JOIN settings AS s "
        "WHERE c.seconds <= s.before_s AND c.seconds >= s.back_s GROUP BY c.node"
    )


def captures_view(dialect: Dialect, nodes: str, settings: ReportSettings) -> str:
    """Return the SELECT of `captures`: what had been captured and had arrived at the time of the report."""
    limit = settings.at.astimezone(UTC).timestamp()
    return (
        f"SELECT node, class, cohort, time, {dialect.seconds.format('time')} AS seconds, boot_id, uptime, "
        f"{dialect.flag.format('simulated')} AS simulated, status, class_digest, lock_digest "
        f"FROM {nodes} WHERE {dialect.seconds.format('time')} <= {limit!r} AND {dialect.seconds.format('received')} <= {limit!r}"
    )
