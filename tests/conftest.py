"""Fixtures every kind of test may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from docker import DockerClient

from goldnode.lab import engine


@pytest.fixture(scope="session")
def docker_client() -> DockerClient:
    """The Docker engine. There being none is a failure that says what to do, not a skip."""
    return engine.connect()


# What takes longest begins first, so that no process is left with it at the end while the others have nothing to do.
LONGEST = (
    "tests/e2e/test_real.py",
    "tests/e2e/test_real_debian13.py",
    "tests/lab/test_molecule_stacks.py",
    "tests/e2e/test_real_prebuilt.py",
    "tests/disks/test_disk_build.py",
    "tests/e2e/test_power_cut.py",
)
DEARER = ("real", "images", "lab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by what they cost; the tests of a file keep their order (`--no-loadscope-reorder` makes xdist keep this one)."""
    cost: dict[str, int] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        marks = [place for place, mark in enumerate(DEARER, start=len(LONGEST)) if item.get_closest_marker(mark)]
        mine = LONGEST.index(file) if file in LONGEST else min(marks, default=len(LONGEST) + len(DEARER))
        cost[file] = min(cost.get(file, mine), mine)
    items.sort(key=lambda item: cost[item.nodeid.partition("::")[0]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the machine had left to the report of a test that failed: one that ran out of something is told from one that is wrong."""
    report = yield
    if report.failed:
        report.sections.append(("this machine when the test had failed", machine()))
    return report


def machine() -> str:
    """Free space and inodes, memory, processes and load, a line each."""
    disk, inodes = shutil.disk_usage("/"), os.statvfs("/")
    memory = [line for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines() if line.startswith(("MemA", "Commit"))]
    processes = sum(1 for path in Path("/proc").iterdir() if path.name.isdecimal())
    return "\n".join(
        [
            f"/: {disk.free >> 20} MiB of {disk.total >> 20} free, {inodes.f_favail} inodes",
            *memory,
            f"{processes} processes, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}",
        ]
    )
