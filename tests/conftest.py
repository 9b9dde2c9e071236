"""Fixtures every kind of test may use."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import APIError
from tests.suite import properties, scheduling, stages, timings
from xdist.remote import Producer

properties.register()


@pytest.fixture(scope="session")
def docker_client() -> DockerClient:
    """The Docker engine. There being none is a failure that says what to do, not a skip."""
    from goldnode.core import (
        docker_engine as engine,  # here, so that a change of it affects only the tests that use an engine
    )

    client = engine.connect()
    remove_abandoned(client)
    return client


def remove_abandoned(client: DockerClient) -> None:
    """Remove the labs of test processes that were killed: the engine restarts their nodes for ever."""
    from goldnode.testing.lab.nodes import Lab, labs

    for name in labs(client):
        process = re.fullmatch(r"(?:e2e|real)-(\d+)(?:-.*)?", name)
        if process and not Path(f"/proc/{process[1]}").exists():
            with contextlib.suppress(
                APIError, OSError
            ):  # another worker removes it at the same time
                Lab(name, client, state=Path(tempfile.gettempdir())).down()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes after their argument: an archive has the time of its creation, and pytest-xdist refuses
    tests whose names differ between its processes.
    """
    return argname if isinstance(val, bytes) and len(val) > 32 else None


def pytest_configure(config: pytest.Config) -> None:
    scheduling.record(config)
    # Collection makes millions of objects that stay, and the garbage collector would go through them again and again.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # Tests make and drop large documents. Python's own threshold of 700 objects took a twentieth of their time.
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what took longest last time (`--no-loadscope-reorder` makes pytest-xdist keep this order)."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        if any(mark.name in stages.HEAVY for mark in item.iter_markers()) and not stages.is_heavy(
            file
        ):
            raise pytest.UsageError(
                f"{item.nodeid}: write its marker as pytest.mark.NAME in {file}; the stage of nodes is found by that text"
            )
    properties.prepare(config, items)
    scheduling.order(items, timings.load())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> scheduling.Scheduler | None:
    return scheduling.Scheduler(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the machine had left to the report of a test that failed: one that ran out of something is told from one that is wrong."""
    report = yield
    properties.note(item, report)
    if report.failed:
        report.sections.append(("this machine when the test had failed", machine()))
    return report


def machine() -> str:
    """Free space and inodes, memory, processes and load, a line each."""
    disk, inodes = shutil.disk_usage("/"), os.statvfs("/")
    memory = [
        line
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith(("MemA", "Commit"))
    ]
    processes = sum(1 for path in Path("/proc").iterdir() if path.name.isdecimal())
    return "\n".join(
        [
            f"/: {disk.free >> 20} MiB of {disk.total >> 20} free, {inodes.f_favail} inodes",
            *memory,
            f"{processes} processes, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}",
        ]
    )
