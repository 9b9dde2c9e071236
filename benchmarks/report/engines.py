"""Run `python -m benchmarks.report.engines [--nodes N] [--data DIRECTORY --at TIME]`: the views of the report in DuckDB and in ClickHouse.

ClickHouse is chdb of the extra `dev`: over the files, and over tables that were filled from them. Every view has to have the same rows in all
three. Times are CPU seconds of the process, each view once. Without --data, the fleet is that of the benchmark of the report.
"""
# ruff: noqa: S608  # names of views of the report

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chdb import session
from tests.unit.fleet.report.test_report_clickhouse import plain

from benchmarks.report.data import NOW, make
from goldnode.fleet.report import clickhouse, engine
from goldnode.fleet.report.frame import ReportSettings, ReportSource, views

# One question over all captures of the facts, and one over all numbers.
QUESTIONS = {
    "one fact of all captures": "SELECT value, count(*) AS n FROM facts WHERE key = 'gpu.vbios' GROUP BY value",
    "one number of all captures": "SELECT count(*) AS n, max(value) AS most FROM numbers WHERE key = 'gpu.temperature'",
}


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--at", type=datetime.fromisoformat, default=NOW)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = chosen.data or Path(folder, "data")
        if chosen.data is None:
            make(data, chosen.nodes, by_change=True)
        print(json.dumps(measure(data, chosen.at.astimezone(UTC), Path(folder)), indent=1))


def measure(data: Path, at: datetime, folder: Path) -> dict[str, Any]:
    """Return bytes, seconds, and the views whose rows differ from those of DuckDB."""
    source, settings = ReportSource(data), ReportSettings(at)
    queries = {view.name: f"SELECT * FROM {view.name}" for view in views()} | QUESTIONS
    begin = time.process_time()
    with engine.opened(source, settings) as connection:
        duck: dict[str, Any] = {"open_seconds": round(time.process_time() - begin, 2)}
        rows, duck["seconds"] = {}, {}
        for name, query in queries.items():
            begin = time.process_time()
            rows[name] = plain(engine.rows(connection, f"({query})"))
            duck["seconds"][name] = round(time.process_time() - begin, 3)
        keys = engine.keys_of(connection)
    found: dict[str, Any] = {"duckdb": duck, "parquet_bytes": _bytes(data)}
    for load in (False, True):
        start: Any = session.Session  # without types
        opened = start(str(folder / f"clickhouse-{load}"))
        opened.query("CREATE DATABASE goldnode")
        opened.query("USE goldnode")
        begin = time.process_time()
        for statement in clickhouse.statements(source, settings, keys, load=load):
            opened.query(statement)
        own: dict[str, Any] = {"open_seconds": round(time.process_time() - begin, 2)}
        own["seconds"], own["different"] = {}, []
        for name, query in queries.items():
            begin = time.process_time()
            text = opened.query(query, "JSONEachRow").data()
            own["seconds"][name] = round(time.process_time() - begin, 3)
            if plain([json.loads(line) for line in text.splitlines()]) != rows[name]:
                own["different"].append(name)
        sizes = opened.query(
            "SELECT substring(table, 8) AS name, sum(bytes_on_disk) AS bytes FROM system.parts "
            "WHERE active AND database = 'goldnode' AND table LIKE 'loaded_%' GROUP BY table",
            "JSONEachRow",
        ).data()
        own["bytes"] = {
            row["name"]: int(row["bytes"]) for row in map(json.loads, sizes.splitlines())
        }
        opened.close()
        found["clickhouse_tables" if load else "clickhouse_files"] = own
    for own in (found["duckdb"], found["clickhouse_files"], found["clickhouse_tables"]):
        own["seconds_of_views"] = round(sum(own["seconds"][view.name] for view in views()), 2)
    return found


def _bytes(data: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for file in data.glob("*/class=*/day=*/part-*.parquet"):
        table = file.relative_to(data).parts[0]
        sizes[table] = sizes.get(table, 0) + file.stat().st_size
    return sizes


if __name__ == "__main__":
    main()
