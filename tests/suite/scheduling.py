"""The order of the tests and their distribution over processes: what takes longest begins first, and no process runs out of work early.

A *unit* is what one process runs in one go: the tests of one `xdist_group`, else those of one file, which share their nodes.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.suite.timings import Timings, split
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

# Where a stage leaves the seconds of its tests; `python -m tests.suite run` sets it.
REPORT = "GOLDNODE_TEST_REPORT"


def unit_of(item: pytest.Item) -> str:
    """Return the unit of a collected test."""
    groups = {
        str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))
        for mark in item.iter_markers("xdist_group")
    }
    return "_".join(sorted(groups)) or item.nodeid.partition("::")[0]


def order(items: list[pytest.Item], timings: Timings) -> None:
    """Order units by what they cost, the most expensive first. The tests of a unit keep their order."""
    cost: defaultdict[str, float] = defaultdict(float)
    first: dict[str, int] = {}
    units = [unit_of(item) for item in items]
    for place, (unit, item) in enumerate(zip(units, items, strict=True)):
        cost[unit] += timings.seconds(item.nodeid, {mark.name for mark in item.iter_markers()})
        first.setdefault(unit, place)
    ranked = sorted(range(len(items)), key=lambda place: (-cost[units[place]], first[units[place]], place))
    items[:] = [items[place] for place in ranked]


class Scheduler(LoadGroupScheduling):
    """`--dist loadgroup` with files as units where a test has no group, and with units handed out as late as possible."""

    def _split_scope(self, nodeid: str) -> str:
        file, group, _ = split(nodeid)
        return group or file

    def _reschedule(self, node: WorkerController) -> None:
        """Hand the next unit to `node` when its last test is about to begin.

        pytest begins a test only when it knows the one after it, so a process needs its next unit that early. pytest-xdist hands it
        out one test earlier: the unit then waits behind two tests, perhaps of minutes, while another process has nothing to do.
        """
        if self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)


class Recorder:
    """Collects the seconds of each test, set-up and tear-down included, and writes them to the file that REPORT names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = split(report.nodeid)
        self.seconds[f"{file}::{test}"] += report.duration

    def pytest_sessionfinish(self) -> None:
        wall = time.monotonic() - self.start
        self.path.write_text(json.dumps({"seconds": wall, "tests": self.seconds}), encoding="utf-8")


def record(config: pytest.Config) -> None:
    """Record the seconds of this run where `scripts/test` asks for it; processes of pytest-xdist report to the one that started them."""
    # Taken out of the environment: a test that runs pytest must not write there.
    path = os.environ.pop(REPORT, None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)))
