"""Run `benchmarks/run report [--nodes N] [--out DIR]`: time and memory of the report over 10,000 synthetic nodes, and of its page.

Each report is a process of its own, so that its memory is its own. The first paint is that of Chromium on this machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.report.data import NOW, make
from goldnode.commands.fleet.report_page import html
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ReportSettings, ReportSource


def peak_mib() -> int:
    """Return the peak of this program's memory. ru_maxrss would have that of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def one(directory: Path, page: Path) -> None:
    """Make one report and its page, and print their figures. Runs in a process of its own."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = report(ReportSource(directory), ReportSettings(NOW))
    row: dict[str, Any] = {
        "seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_mib": peak_mib(),
        "causes": len(found.causes),
        "digest": hashlib.sha256(found.model_dump_json(by_alias=True).encode()).hexdigest(),
    }
    wall = time.perf_counter()
    content = html(found).encode()
    page.write_bytes(content)
    row |= {
        "page_seconds": round(time.perf_counter() - wall, 2),
        "page_mb": round(len(content) / 1e6, 2),
    }
    print(json.dumps(row))


def first_paint(page: Path) -> float | None:
    """Return the seconds until Chromium has painted the page; None without Chromium or playwright."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright  # extra dev
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=chromium, args=options)
        window = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
        window.goto(page.as_uri())
        window.wait_for_function(
            "performance.getEntriesByName('first-contentful-paint').length > 0"
        )
        painted: float = window.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        browser.close()
    return round(painted / 1000, 2)


def measure(nodes: int, runs: int) -> dict[str, Any]:
    """Make the fleet and its reports, and return the figures: of whole captures, and of the last ones by change."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "fleet.html")
        rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for by_change, found in rows.items():
            make(Path(folder, str(by_change)), nodes, by_change=by_change)
            for _ in range(runs):
                words = [sys.executable, "-m", "benchmarks.report", "--one"]
                words += [str(Path(folder, str(by_change))), str(page)]
                done = subprocess.run(
                    words, check=True, capture_output=True, text=True, cwd=pages.ROOT
                )
                found.append(json.loads(done.stdout))
                print(done.stdout, end="", flush=True)
        return {
            "nodes": nodes,
            "runs": rows[False],
            "by_change": rows[True],
            "same_bytes": all(
                len({row["digest"] for row in found}) == 1 for found in rows.values()
            ),
            "first_paint_seconds": first_paint(page),
        }


def tables(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    figures = found["figures"]
    names = ("seconds", "cpu_seconds", "peak_mib", "page_seconds", "page_mb")
    rows = [
        [captures, *(str(row[name]) for name in names)]
        for captures, kind in (("whole", "runs"), ("the last by change", "by_change"))
        for row in figures[kind]
    ]
    head = [
        "Captures",
        "seconds",
        "CPU seconds",
        "peak of memory, MiB",
        "seconds of the page",
        "MB of the page",
    ]
    same = "the same bytes" if figures["same_bytes"] else "**different bytes**"
    paint = figures["first_paint_seconds"]
    painted = "not measured, without Chromium" if paint is None else f"{paint} s"
    return (
        f"{pages.about(found)} {figures['nodes']:,} simulated nodes, two captures each. Reports of the same files are {same}. "
        f"First paint of the page: {painted}.\n\n{pages.table(head, rows)}"
    )


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one)
        return
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "report",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
    }
    found["figures"] = measure(chosen.nodes, chosen.runs)
    pages.write("report", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
