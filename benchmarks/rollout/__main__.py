"""CPU time of a simulated rollout, and nodes touched before a bad change is stopped.

    benchmarks/run rollout [--nodes N] [--runs N] [--out DIR]

The figures of nodes and hours are simulated. The time is that of the process, so other work on the machine changes it less
than a clock; the load is in the result.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages
from goldnode.fleet.control.document_files import load
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.simulate import Simulation, made_up, percentile

DOCUMENT = f"""\
schema: goldnode.rollout/1
rollout: benchmark
class: l4
from: {{stack: debian12_r580, lock: "sha256:{"0" * 64}"}}
to: {{stack: debian12_r580, lock: "sha256:{"1" * 64}"}}
pools:
  canary: {{nodes: 8, spread: leaf}}
waves:
- {{name: canary, pool: canary}}
- {{name: first, nodes: 60}}
- {{name: third, nodes: 300}}
- {{name: half, percent: 50%}}
- {{name: all, percent: 100%}}
limits: {{planned: 2%, failed: 8%, total: 10%, per: {{rack: 1, leaf: 2}}}}
require:
- boot: {{base_rate: 0.2%}}
drain: {{wait: 30m}}
"""
CASES = {
    "good": (),
    "good, hardware faults": ("hardware", "absent"),
    "breaks 100%": ("image=100%", "absent"),
    "breaks 30%": ("image=30%", "absent"),
    "breaks 10%": ("image=10%", "absent"),
    "breaks 5%": ("image=5%", "absent"),
}


def settings() -> RolloutSettings:
    """Return the document of the benchmark."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rollout.yml"
        path.write_text(DOCUMENT, encoding="utf-8")
        return load(path).settings


def measure(
    found: RolloutSettings, faults: tuple[str, ...], nodes: int, runs: int
) -> dict[str, Any]:
    """Return CPU seconds, simulated hours and touched nodes of some runs."""
    times, hours, touched = [], [], []
    for seed in range(1, runs + 1):
        began = time.process_time()
        run = Simulation(found, made_up(nodes, found.origin), parse(faults), seed).run()
        times.append(time.process_time() - began)
        hours.append(run.hours)
        if run.touched_at_stop is not None:
            touched.append(run.touched_at_stop)
    return {
        "cpu_seconds_median": round(statistics.median(times), 2),
        "cpu_seconds_most": round(max(times), 2),
        "simulated_hours_p50": round(percentile(hours, 0.5), 1),
        "stopped": len(touched),
        "touched_p50_p95": [percentile(touched, 0.5), percentile(touched, 0.95)]
        if touched
        else None,
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    rows = []
    for name, row in found["cases"].items():
        touched = row["touched_p50_p95"]
        rows.append(
            [
                name,
                f"{row['cpu_seconds_median']:.2f}",
                f"{row['cpu_seconds_most']:.2f}",
                f"{row['simulated_hours_p50']:.1f}",
                f"{row['stopped']} of {found['runs']}",
                f"{touched[0]:.0f} / {touched[1]:.0f}" if touched else "",
            ]
        )
    head = [
        "The change",
        "CPU s, median",
        "most",
        "Simulated hours",
        "Stopped",
        "Nodes touched, p50 / p95",
    ]
    return f"{pages.about(found)} {found['nodes']:,} simulated nodes, {found['runs']} seeds.\n\n{pages.table(head, rows)}"


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "rollout",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "nodes": chosen.nodes,
        "runs": chosen.runs,
        "cases": {},
    }
    own = settings()
    for name, faults in CASES.items():
        found["cases"][name] = measure(own, faults, chosen.nodes, chosen.runs)
        print(name, json.dumps(found["cases"][name]), flush=True)
    pages.write("rollout", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
