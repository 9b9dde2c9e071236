"""The molecule scenarios, whole. Each must leave the count of what its nodes' verification showed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REAL = "stacks"
SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml") if path.parent.name != REAL)
# The suite has more checks than this for any class with a driver; far fewer means that it looked at nothing.
FEWEST = 20


@pytest.mark.lab
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    run(scenario, "create", "check", "converge", "idempotence", "verify")


@pytest.mark.real
def test_there_and_back_between_real_stacks() -> None:
    """Once there and back, and GOLDNODE_STACK_ROUNDS times where it is set: each leg on real packages takes a minute or two."""
    rounds = int(os.environ.get("GOLDNODE_STACK_ROUNDS") or 1)
    proof = ROOT / ".goldnode" / f"molecule-{REAL}.legs"
    proof.unlink(missing_ok=True)
    run(REAL, "create", "converge", "idempotence", "side_effect", "verify")
    text = proof.read_text()
    assert f"{2 * rounds + 1} legs verified, 0 failed ({rounds} times there and back)" in text
    assert len(re.findall(r"^leg \d+ to .* every file as after the first leg there$", text, re.MULTILINE)) == 2 * rounds - 1


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
        assert re.search(rf"{scenario}\b.*{action}: Executed: Successful", done.stdout), f"{action} did not run"
    found = re.search(r"(\d+) verified, (\d+) failed", proof.read_text())
    assert found
    assert int(found[1]) >= FEWEST
    assert int(found[2]) == 0
