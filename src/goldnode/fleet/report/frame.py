"""Tables under the views: settings, tables of keys, and the Parquet files, in SQL of DuckDB or of ClickHouse.

The views of `sql/views` are the same text in both. Each is one SELECT; its name is that of the file without the
number. `-- stored` in its first lines makes it a temporary table in DuckDB, since others read it more than once.
"""
# ruff: noqa: S608  # names of tables and files, quoted; nothing that a request gives

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.tables import DIGESTS, FACTS, FINDINGS, NODES, NUMBERS, PartName, found_parts
from goldnode.fleet.report import topics

Value = str | int | float | None
Row = tuple[Value, ...]
_FILE = re.compile(r"\d+_([a-z_]+)\.sql")
CONFIDENCE = 0.99  # of the bound of a median: fleet/report/sql/views/70_slow.sql


@dataclass(frozen=True)
class ReportSettings:
    """The time of a report, and its limits."""

    at: datetime
    before: datetime | None = None  # the time that is compared with; None: a week earlier
    stale_after: timedelta = timedelta(hours=26)
    min_share: float = 0.6
    min_nodes: int = 3
    samples: int = 25
    sigmas: float = 3.25  # of healthy nodes, 1 in 10,000 is slow; of those that lost a tenth, 9 in 10
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
    """A directory of captures, the nodes that should report, and groups besides cohorts (jobs, rings)."""

    directory: Path
    expected: Sequence[ExpectedNode] = ()
    groups: Sequence[tuple[str, str]] = ()  # name of the group, node


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
    found = [
        _view(item.name, item.read_text(encoding="utf-8"))
        for item in own.iterdir()
        if item.name.endswith(".sql")
    ]
    found.sort(key=lambda view: view.file)
    if more is not None:
        if not more.is_dir():
            raise GoldnodeError(
                "there is no such directory of views", file=more, remedy="name one with files NN_NAME.sql"
            )
        found += [
            _view(path.name, path.read_text(encoding="utf-8"), path) for path in sorted(more.glob("*.sql"))
        ]
    return found


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

    Captures are read of all days, for stale nodes; facts from the earlier time on; findings of the last month.
    """
    found = found_parts(source.directory)
    if not found:
        raise GoldnodeError(
            "no captures are stored here", file=source.directory, remedy="run `goldnode fleet ingest` first"
        )
    facts = min(settings.compared, settings.at) - settings.stale_after
    first = {
        NODES: None,
        FACTS: facts,
        DIGESTS: facts,
        NUMBERS: settings.at - settings.trend,
        FINDINGS: settings.at - settings.month,
    }
    return {
        table: _files(source.directory, table, found, since, settings.at) for table, since in first.items()
    }


def _files(
    directory: Path, table: str, found: Iterable[PartName], since: datetime | None, until: datetime
) -> list[Path]:
    low = f"{since:%Y-%m-%d}" if since else ""
    # Without a file, an empty list would be no table: the last one then has no row of that time.
    named = list(found)
    chosen = [part for part in named if low <= part.day <= f"{until:%Y-%m-%d}"] or named[-1:]
    return [part.file(directory, table) for part in chosen]


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
    }


def bounds(most: int) -> list[Row]:
    """Return for numbers of samples the place, from the best value on, that bounds the median from above.

    Order statistics: the k-th best of n values is not below the median with probability P(Binomial(n, 1/2) >= k).
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
    found = [topics.report_key(key) for key in sorted(keys.facts)]
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
                )
                for one in found
            ],
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
    }


@dataclass(frozen=True)
class Dialect:
    """Parts of the frame that differ between engines."""

    types: Mapping[str, str]
    file_table: Callable[[Sequence[Path]], str]
    seconds: str
    flag: str


def literal(value: Value) -> str:
    """Return a value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


def values(
    columns: Sequence[str], rows: Sequence[Row], types: Mapping[str, str], quote: Callable[[Value], str]
) -> str:
    """Return a SELECT of rows; columns are given as `NAME TYPE` with the types of `reference`."""
    named = [column.split() for column in columns]
    if not rows:
        nothing = ", ".join(
            f"CAST({0 if kind != 'text' else quote('')} AS {types[kind]}) AS {name}" for name, kind in named
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
            f"CAST({quote(value)} AS {types[kind]})" for value, (_, kind) in zip(row, named, strict=True)
        )
        for row in others
    ]
    return " UNION ALL ".join([f"SELECT {head}", *tail])


def captures_view(dialect: Dialect, nodes: str, settings: ReportSettings) -> str:
    """Return the SELECT of `captures`: what had been captured and had arrived at the time of the report."""
    limit = settings.at.astimezone(UTC).timestamp()
    return (
        f"SELECT node, class, cohort, time, {dialect.seconds.format('time')} AS seconds, boot_id, uptime, "
        f"{dialect.flag.format('simulated')} AS simulated, status, class_digest, lock_digest "
        f"FROM {nodes} WHERE {dialect.seconds.format('time')} <= {limit!r} AND {dialect.seconds.format('received')} <= {limit!r}"
    )
