"""Run `benchmarks/run ingest [--nodes N] [--hours H] [--out DIR]`: captures of simulated 8-GPU nodes, from files into Parquet.

Prints captures per second of CPU time, the peak of memory, bytes of a capture as JSON and in each table, and the size of
90 days of hourly captures of 10,000 nodes, computed from these. The values of a simulated node vary more than those of an
idle one: temperatures, clocks, power and all counters of throttling are random.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.simulators.fleet import capture

from benchmarks import pages
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.tables import ORDER

NOW = datetime(2026, 11, 26, 8, tzinfo=UTC)
CAPTURES = 90 * 24 * 10_000


def write(folder: Path, nodes: int, at: datetime, chance: random.Random) -> int:
    """Write one capture of each node. Return their bytes."""
    size = 0
    for number in range(nodes):
        found = capture(number, at)
        found["identity"]["class"] = f"class{number * 4 // nodes}"
        for gpu in found["gpus"]:
            gpu["temperature"] |= {
                "gpu_c": chance.randint(30, 80),
                "memory_c": chance.randint(40, 90),
            }
            gpu["power"]["draw_w"] = round(chance.uniform(70, 700), 1)
            gpu["clocks"]["current"]["sm_mhz"] = chance.randrange(300, 1981, 15)
            for reason in gpu["throttle"]["violation_ns"]:
                gpu["throttle"]["violation_ns"][reason] = chance.randrange(10**9)
        size += (folder / f"n{number:05}-{at:%Y%m%d%H}.json").write_text(
            json.dumps(found), encoding="utf-8"
        )
    return size


def measure(nodes: int, hours: int) -> dict[str, Any]:
    """Ingest the captures on one core, and return the figures."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    chance = random.Random(1)  # noqa: S311 - values of a benchmark
    with tempfile.TemporaryDirectory() as folder:
        source, data = Path(folder, "captures"), Path(folder, "data")
        source.mkdir()
        size = sum(
            write(source, nodes, NOW - timedelta(hours=hour), chance) for hour in range(hours)
        )
        wall, cpu = time.monotonic(), time.process_time()
        result = ingest(IngestRequest(data, (source,), NOW), NOW)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        if (result.stored, result.refused) != (nodes * hours, []):
            raise SystemExit(f"stored {result.stored}, refused {result.refused[:3]}")
        files = {
            table: sum(file.stat().st_size for file in (data / table).rglob("*.parquet"))
            for table in ORDER
        }
    bytes_each = {table: round(count / result.stored, 1) for table, count in files.items()}
    return {
        "captures": result.stored,
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "per_second_and_core": round(result.stored / cpu),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "json_bytes": size // result.stored,
        "parquet_bytes": bytes_each,
        "gb_of_90_days_hourly": {
            table: round(each * CAPTURES / 1e9, 2) for table, each in bytes_each.items()
        },
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    figures = found["figures"]
    speed = [
        ["captures", f"{figures['captures']:,}"],
        ["seconds, CPU seconds", f"{figures['seconds']}, {figures['cpu_seconds']}"],
        ["captures per second and core", f"{figures['per_second_and_core']:,}"],
        ["peak of memory, MiB", f"{figures['peak_mib']:,}"],
        ["bytes of a capture as JSON", f"{figures['json_bytes']:,}"],
    ]
    sizes = [
        [
            table,
            f"{figures['parquet_bytes'][table]:,}",
            f"{figures['gb_of_90_days_hourly'][table]:.2f}",
        ]
        for table in ORDER
    ]
    total = sum(figures["gb_of_90_days_hourly"].values())
    sizes.append(["all", f"{sum(figures['parquet_bytes'].values()):,.0f}", f"{total:.2f}"])
    head = ["Table", "bytes of a capture", "GB of 90 days, hourly, 10,000 nodes"]
    return f"{pages.about(found)} Simulated captures.\n\n{pages.table(['', ''], speed)}\n{pages.table(head, sizes)}"


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--hours", type=int, default=1)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "ingest",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
    }
    found["figures"] = measure(chosen.nodes, chosen.hours)
    print(json.dumps(found["figures"], indent=1))
    pages.write("ingest", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
