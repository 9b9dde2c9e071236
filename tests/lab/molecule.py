"""Runs a molecule scenario whole, and looks at what it says it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REAL = "stacks"
# The suite has more checks than this for any class with a driver; far fewer means that it looked at nothing.
FEWEST = 20


def run(scenario: str, *actions: str) -> None:
    """Run a scenario whole, and see that each of its actions ran and that its verification verified."""
    proof = ROOT / ".goldnode" / f"molecule-{scenario}.verified"
    proof.unlink(missing_ok=True)
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [str(programs / "molecule"), "test", "-s", scenario],
        cwd=ROOT,
        # molecule runs ansible's programs by name; the guard is exported here because a lost configuration is its case.
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ANSIBLE_HOST_PATTERN_MISMATCH": "error",
            "NO_COLOR": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    for action in actions:
        assert re.search(rf"{scenario}\b.*{action}: Executed: Successful", done.stdout), (
            f"{action} did not run"
        )
    found = re.search(r"(\d+) verified, (\d+) failed", proof.read_text())
    assert found
    assert int(found[1]) >= FEWEST
    assert int(found[2]) == 0
