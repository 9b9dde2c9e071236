"""Run `benchmarks/run ingest [--nodes N] [--hours H] [--out DIR]`: captures of simulated 8-GPU nodes, from files into Parquet.

Each hour is an ingest of its own, as they arrive. Two fleets: `random`, whose readings and counters of throttling are drawn
for each capture, and `lifelike` (lifelike.py), exact and to the stated precision. Prints captures per second of CPU time, the peak
of memory, bytes of a whole capture and of one by change, and from these the size of 90 days of hourly captures of 10,000 nodes: one
whole capture a week, and changes for all others.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.simulators.fleet import capture

from benchmarks import pages
from benchmarks.ingest import lifelike
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.tables import DIGESTS, FACTS, NODES, NUMBERS, ORDER

BEGIN = datetime(2026, 11, 25, tzinfo=UTC)
CAPTURES = 90 * 24 * 10_000
WEEK = 7 * 24  # captures of a node, of which one is whole
WHOLE = (FACTS, NUMBERS, DIGESTS)  # tables of whole captures; nearly all
FLEETS = ("random exact", "lifelike exact", "lifelike stated")


def drawn(nodes: int, at: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield a capture of each node whose readings are random."""
    for number in range(nodes):
        content = capture(number, at)
        for gpu in content["gpus"]:
            gpu["temperature"] |= {
                "gpu_c": chance.randint(30, 80),
                "memory_c": chance.randint(40, 90),
            }
            gpu["power"]["draw_w"] = round(chance.uniform(70, 700), 1)
            gpu["clocks"]["current"]["sm_mhz"] = chance.randrange(300, 1981, 15)
            for reason in gpu["throttle"]["violation_ns"]:
                gpu["throttle"]["violation_ns"][reason] = chance.randrange(10**9)
        yield content


def sizes(data: Path) -> dict[str, int]:
    """Return the bytes of the files of each table."""
    return {
        table: sum(file.stat().st_size for file in (data / table).rglob("*.parquet"))
        for table in ORDER
    }


def measure(fleet: str, nodes: int, hours: int) -> dict[str, Any]:
    """Ingest the captures of a day and of the first hour of the next on one core, and return the figures."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    kind, precision = fleet.split()
    chance, lively = random.Random(1), lifelike.nodes(nodes)  # noqa: S311 - values of a benchmark
    cpu: list[float] = []
    size = 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        for hour in range(hours):
            at = BEGIN + timedelta(hours=hour)
            source = Path(folder, f"{hour}")
            source.mkdir()
            chosen = drawn(nodes, at, chance) if kind == "random" else lifelike.captures(lively, at)
            for number, content in enumerate(chosen):
                content["identity"]["class"] = "h100"
                file = source / f"n{number:05}.json"
                size += file.write_text(json.dumps(content), encoding="utf-8")
            begin = time.process_time()
            result = ingest(IngestRequest(data, (source,), at, precision=precision), at)
            cpu.append(time.process_time() - begin)
            if (result.stored, result.refused) != (nodes, []):
                raise SystemExit(f"stored {result.stored}, refused {result.refused[:3]}")
            shutil.rmtree(source)
            if hour == 0:
                first = sizes(data)
        found = sizes(data)
    whole = sum(first[table] for table in (*WHOLE, NODES)) / nodes
    captures = nodes * max(hours - 1, 1)  # one hour alone has no changes
    each = {table: round((found[table] - first[table]) / captures, 1) for table in ORDER}
    total = sum(each.values()) + whole / WEEK
    later = cpu[1:] or cpu
    return {
        "fleet": fleet,
        "captures": nodes * hours,
        "hours": hours,
        "per_second_and_core": round(nodes * len(later) / sum(later)),
        "first_hour_per_second_and_core": round(nodes / cpu[0]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "json_bytes": size // (nodes * hours),
        "whole_bytes": round(whole),
        "changed_bytes": each,
        "bytes": round(total, 1),
        "gb_of_90_days_hourly": round(total * CAPTURES / 1e9, 2),
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    rows = [
        [
            row["fleet"],
            f"{row['captures']:,}",
            f"{row['per_second_and_core']:,}",
            f"{row['peak_mib']:,}",
            f"{row['whole_bytes']:,}",
            f"{sum(row['changed_bytes'].values()):,.0f}",
            f"{row['gb_of_90_days_hourly']:.2f}",
        ]
        for row in found["figures"]
    ]
    head = [
        "Fleet",
        "captures",
        "a second and core",
        "peak, MiB",
        "bytes of a whole one",
        "of one by change",
        "GB of 90 days, hourly, 10,000 nodes",
    ]
    return f"{pages.about(found)} Simulated captures.\n\n{pages.table(head, rows)}"


def one(fleet: str, nodes: int, hours: int) -> dict[str, Any]:
    """Measure in a process of its own, so that the memory is its own."""
    words = [sys.executable, "-m", "benchmarks.ingest", "--one", fleet]
    words += ["--nodes", str(nodes), "--hours", str(hours)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=pages.ROOT)
    print(done.stdout, end="", flush=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hours", type=int, default=25)
    parser.add_argument("--one", choices=FLEETS, help=argparse.SUPPRESS)
    parser.add_argument("--peers", type=Path, help=argparse.SUPPRESS)  # its matplotlib draws
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.nodes, chosen.hours)))
        return
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "ingest",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
    }
    found["figures"] = [one(fleet, chosen.nodes, chosen.hours) for fleet in FLEETS]
    data = pages.write("ingest", found, tables(found), chosen.out)
    if chosen.peers:
        pages.draw(Path(__file__).with_name("plot.py"), data, chosen.peers)


if __name__ == "__main__":
    main()
