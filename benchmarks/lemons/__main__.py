"""Run `benchmarks/run lemons FAULT_TRACE [--out DIR]`: do the repeat offenders of the report fail again?

FAULT_TRACE is fault_trace.json of https://github.com/stepfun-ai/InfiniteHBD-Trace: 584 faults of 400 GPU servers in
349 days. Each begin and end of a fault becomes a capture, and the view `lemons` of the report ranks the nodes at
several times. The half-life of the score was chosen on the first half of the trace; the second half is the test.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import pages
from goldnode.fleet.ingest.tables import FINDINGS, NODES, ORDER, SCHEMAS, PartName
from goldnode.fleet.report.engine import opened, rows
from goldnode.fleet.report.frame import ReportSettings, ReportSource

BEGIN = datetime(2024, 3, 30, tzinfo=UTC)
NODES_OF_TRACE, SHARE = 400, 0.05
WARM_UP, STEP, HORIZON = 60, 15, 30  # days
DAYS = 349


@dataclass(frozen=True)
class TraceEvent:
    """Begin or end of a fault, in days."""

    node: str
    day: float
    begins: bool
    fault: str


def read(file: Path) -> list[TraceEvent]:
    """Return the events of the trace, in the order of time."""
    found = json.loads(file.read_text(encoding="utf-8"))
    events = [
        TraceEvent(
            row["node_id"],
            row["event_time"],
            row["event_type"] == "fault_start",
            re.sub(r"[^a-z0-9]+", "-", row["fault_type"]["Desc"].lower()).strip("-"),
        )
        for row in found
    ]
    return sorted(events, key=lambda event: event.day)


def store(events: Sequence[TraceEvent], directory: Path) -> None:
    """Write a capture of the node for each event, with a finding for each fault that it has then."""
    open_: dict[str, Counter[str]] = defaultdict(Counter)
    captures: dict[tuple[str, datetime], list[str]] = {}
    for event in events:
        open_[event.node][event.fault] += 1 if event.begins else -1
        time = (BEGIN + timedelta(days=event.day)).replace(microsecond=0)
        captures[event.node, time] = sorted(+open_[event.node])
    days: dict[str, list[tuple[str, datetime, list[str]]]] = defaultdict(list)
    for (node, time), faults in captures.items():
        days[f"{time:%Y-%m-%d}"].append((node, time, faults))
    for day, found in days.items():
        content: dict[str, list[dict[str, Any]]] = {table: [] for table in ORDER}
        for node, time, faults in found:
            own = {"node": node, "time": time.replace(tzinfo=None)}
            more = {
                "received": own["time"],
                "boot_id": "1",
                "simulated": False,
                "status": "drain" if faults else "healthy",
            }
            content[NODES].append(own | more)
            content[FINDINGS] += [
                own
                | {"id": fault, "outcome": "mismatch", "severity": "drain", "domain": "hardware"}
                for fault in faults
            ]
        for table, listed in content.items():
            file = PartName("trace", day, "0" * 24).file(directory, table)
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(listed, SCHEMAS[table]), file)


def scores(directory: Path, day: float) -> dict[str, tuple[float, int]]:
    """Return score and faults of the nodes by the report of a day."""
    with opened(ReportSource(directory), ReportSettings(BEGIN + timedelta(days=day))) as connection:
        return {row["node"]: (row["score"], row["faults"]) for row in rows(connection, "lemons")}


def held(ranked: Mapping[str, float], faults: Mapping[str, int], count: int) -> float:
    """Return the faults of the first `count` nodes of a ranking. Nodes that tie share the places that are left."""
    groups: dict[float, list[str]] = defaultdict(list)
    for node, score in ranked.items():
        groups[score].append(node)
    total, left = 0.0, count
    for score in sorted(groups, reverse=True):
        nodes = groups[score]
        total += sum(faults.get(node, 0) for node in nodes) * min(1, left / len(nodes))
        left = max(0, left - len(nodes))
    others = [node for node in faults if node not in ranked]
    return total + sum(faults[node] for node in others) * left / max(
        1, NODES_OF_TRACE - len(ranked)
    )


def faults_between(events: Iterable[TraceEvent], low: float, high: float) -> Counter[str]:
    """Return the number of faults of each node that begin between two days."""
    return Counter(event.node for event in events if event.begins and low <= event.day < high)


def rolling(
    events: Sequence[TraceEvent], directory: Path, low: float, high: float
) -> dict[str, float]:
    """Return how many times as many faults as random nodes the top 5 %, and the listed nodes, have in the next days."""
    top = expected = listed = listed_expected = 0.0
    count, lists, day = int(SHARE * NODES_OF_TRACE), 0, low
    while day + HORIZON <= high + 0.01:
        found = scores(directory, day)
        faults = faults_between(events, day, day + HORIZON)
        top += held({node: score for node, (score, _) in found.items()}, faults, count)
        expected += faults.total() * SHARE
        named = [node for node, (_, number) in found.items() if number > 1]
        listed += sum(faults[node] for node in named)
        listed_expected += faults.total() * len(named) / NODES_OF_TRACE
        lists, day = lists + len(named), day + STEP
    return {
        "top_5_percent": round(top / expected, 2),
        "listed": round(listed / listed_expected, 2),
        "nodes_listed": lists,
    }


def measure(file: Path) -> dict[str, Any]:
    """Return the figures of a trace."""
    events = read(file)
    half = DAYS / 2
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        store(events, directory)
        later = faults_between(events, half, DAYS + 1)
        frozen = {node: score for node, (score, _) in scores(directory, half).items()}
        return {
            "faults": sum(event.begins for event in events),
            "first_half": rolling(events, directory, WARM_UP, half),
            "second_half": rolling(events, directory, half, DAYS),
            "frozen": round(
                held(frozen, later, int(SHARE * NODES_OF_TRACE)) / (later.total() * SHARE), 2
            ),
        }


def tables(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    figures = found["figures"]
    first, second = figures["first_half"], figures["second_half"]
    table = [
        [
            "the top 5 % of a new list, in its next 30 days",
            f"{first['top_5_percent']}x",
            f"{second['top_5_percent']}x",
        ],
        [
            "the nodes that the report lists (two faults in 30 days)",
            f"{first['listed']}x",
            f"{second['listed']}x",
        ],
        ["the top 5 % of the list at half time, over the second half", "", f"{figures['frozen']}x"],
    ]
    head = [
        "Faults, compared with as many random nodes",
        "first half (choice)",
        "second half (test)",
    ]
    return (
        f"{found['date']}, commit `{found['commit']}`. {figures['faults']} faults of {NODES_OF_TRACE} nodes in {DAYS} days.\n\n"
        f"{pages.table(head, table)}"
    )


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "lemons",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "figures": measure(chosen.trace),
    }
    print(json.dumps(found["figures"], indent=1))
    pages.write("lemons", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
