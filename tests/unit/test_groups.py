"""Distribution over processes, which scripts/test relies on: what shares a disk stays together, and no unit waits without need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

GROUPED = """
import os, pathlib, time
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("disk")
def test_together(number):
    time.sleep(0.1)
    with pathlib.Path("processes").open("a") as out:
        out.write(f"{os.getpid()}\\n")
"""


def test_a_group_is_run_by_one_process(tmp_path: Path) -> None:
    """pytest 9.2 has ids that pytest-xdist 3.8 cannot mark with their group: each process then built the disk for itself."""
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group\n")
    done = pytest_there(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = (tmp_path / "processes").read_text().split()
    assert len(processes) == 6
    assert len(set(processes)) == 1


UNITS = {
    # The last test of `long` ends only when `short` has run: it never does if that was queued behind it.
    "test_long.py": """
import pathlib, time

def test_first():
    pass

def test_last():
    for _ in range(300):
        if pathlib.Path("short").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the unit test_short.py waited behind this test")
""",
    "test_middle.py": "def test_middle():\n    pass\n",
    "test_short.py": "import pathlib\n\ndef test_short():\n    pathlib.Path('short').touch()\n",
}
CONFTEST = """
from tests.suite import scheduling
from tests.suite.timings import Timings

def pytest_collection_modifyitems(items):
    files = {f"test_{name}.py": {"tests": 1, "seconds": took, "slow": {}} for name, took in (("short", 1), ("middle", 2), ("long", 3))}
    scheduling.order(items, Timings(files=files))

def pytest_xdist_make_scheduler(config, log):
    return scheduling.Scheduler(config, log)
"""


def test_a_unit_is_not_queued_behind_two_tests(tmp_path: Path) -> None:
    for name, text in (UNITS | {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n"}).items():
        (tmp_path / name).write_text(text)
    done = pytest_there(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_files_and_groups_are_ordered_by_what_they_took(tmp_path: Path) -> None:
    order = "import pathlib\n\ndef test_{0}():\n    with pathlib.Path('order').open('a') as out:\n        out.write('{0} ')\n"
    for name in ("long", "middle", "short"):
        (tmp_path / f"test_{name}.py").write_text(order.format(name))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = pytest_there(tmp_path, processes=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "order").read_text().split() == ["long", "middle", "short"]


def pytest_there(directory: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",  # and no other plugin: each process would import them all
        "-n",
        str(processes),
        "--dist",
        "loadgroup",
        "--no-loadscope-reorder",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        argv, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
