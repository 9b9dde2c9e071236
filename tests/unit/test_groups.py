"""What scripts/test relies on: tests that share a disk of gigabytes run in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = (tmp_path / "processes").read_text().split()
    assert len(processes) == 6
    assert len(set(processes)) == 1
