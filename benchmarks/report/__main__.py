"""Time and memory of `goldnode fleet report` over 10,000 synthetic nodes: `python -m benchmarks.report [NODES]`."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report.data import NOW, make
from goldnode.commands.fleet_report_page import html
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ReportSettings, ReportSource


def main() -> None:
    """Make the fleet, then print the time of each report, the size of its page, and the memory of the process."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), nodes)
        texts = []
        for _ in range(2):
            start = time.perf_counter()
            found = report(ReportSource(Path(folder)), ReportSettings(NOW))
            texts.append(found.model_dump_json(by_alias=True))
            print(f"report on {nodes} nodes: {time.perf_counter() - start:.2f} s, {len(found.causes)} causes")
        print(f"the same bytes again: {texts[0] == texts[1]}")
        start = time.perf_counter()
        print(f"page: {len(html(found).encode()) / 1e6:.2f} MB in {time.perf_counter() - start:.2f} s")
        # The process has also made the fleet: the memory is an upper bound.
        print(
            f"memory of making the fleet and of the reports: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB"
        )


if __name__ == "__main__":
    main()
