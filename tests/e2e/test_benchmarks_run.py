"""The benchmarks that need nodes, disks, image builds or peers, each in its shortest form. See tests/unit/test_benchmarks.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.long]
ROOT = Path(__file__).parents[2]
SHORTEST = {
    "converge": ["--nodes", "1", "--runs", "1"],
    "disks": ["--runs", "1", "--no-verify"],
    "hosts": ["--hosts", "4", "--runs", "1"],
    "images": ["--runs", "1"],
    "inspect": ["--runs", "1", "--root", "/usr/lib/python3"],
    "provision": ["--runs", "1", "--leg", "first run without a driver"],
}


@pytest.mark.parametrize("name", SHORTEST)
def test_shortest_form_runs(name: str, tmp_path: Path) -> None:
    argv = ["benchmarks/run", name, *SHORTEST[name], "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["commit"]
