"""Order of the tests, and their distribution over processes: the longest start first, and no process idles
early.

A *unit* runs in one process: the tests of one `xdist_group`, or otherwise those of one file, which share
their nodes.
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

# File for the test durations of a stage; `python -m tests.suite run` sets this variable.
REPORT = "GOLDNODE_TEST_REPORT"


def unit_of(item: pytest.Item) -> str:
    """Return the unit of a collected test."""
    groups = {
        str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))
        for mark in item.iter_markers("xdist_group")
    }
    return "_".join(sorted(groups)) or item.nodeid.partition("::")[0]


def order(items: list[pytest.Item], timings: Timings) -> None:
    """Sort units by cost, the most expensive first. Tests of a unit retain their order."""
    cost: defaultdict[str, float] = defaultdict(float)
    first: dict[str, int] = {}
    units = [unit_of(item) for item in items]
    for place, (unit, item) in enumerate(zip(units, items, strict=True)):
        cost[unit] += timings.seconds(item.nodeid, {mark.name for mark in item.iter_markers()})
        first.setdefault(unit, place)
    ranked = sorted(
        range(len(items)), key=lambda place: (-cost[units[place]], first[units[place]], place)
    )
    items[:] = [items[place] for place in ranked]


class Scheduler(LoadGroupScheduling):
    """`--dist loadgroup` with files as units for tests without a group, and with units assigned as late as
    possible.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, group, _ = split(nodeid)
        return group or file

    def _reschedule(self, node: WorkerController) -> None:
        """Assign the next unit to `node` when its last test is about to start.

        pytest starts a test only when it knows the next one, so a process needs its next unit at that time.
        pytest-xdist assigns it one test earlier. The unit then waits behind two tests, perhaps for minutes,
        while another process is idle.
        """
        if (
            self.workqueue
            and not node.shutting_down
            and self._pending_of(self.assigned_work[node]) > 1
        ):
            return
        super()._reschedule(node)


class Recorder:
    """Recorder of test durations, including set-up and tear-down, which it writes to the file named in
    REPORT.
    """

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
    """Record the durations of this run if `scripts/test` requests it.

    Worker processes of pytest-xdist report to the process that started them.
    """
    # Removed from the environment: a test that runs pytest must not write to this file.
    path = os.environ.pop(REPORT, None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)))
