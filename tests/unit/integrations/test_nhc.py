"""The check for Node Health Check, sourced as NHC does it, with a program in place of goldnode-node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "integrations/nhc/goldnode.nhc"
# As NHC 1.4.3 has it: the function prints, and the caller reads the status of the check.
NHC = 'die() { echo "ERROR: $2"; }; . "$0"; check_goldnode 1; echo "status $?"'


def checked(tmp_path: Path, program: str | None) -> list[str]:
    """Lines that NHC gets from the check, with `program` as goldnode-node."""
    path = tmp_path / "goldnode-node"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", NHC, str(SCRIPT)],
        env={**os.environ, "GOLDNODE_PROGRAM": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ('[ "$*" = preflight ] || exit 9', None),
        (
            'echo "goldnode: n1: degraded:"; echo "GPU 3 is gone"; exit 2',
            "goldnode: n1: degraded: GPU 3 is gone",
        ),
        ("exit 3", "goldnode: the pre-flight had no answer in time"),
        ("sleep 30", "goldnode: the pre-flight had no answer in time"),
        ('printf "x%.0s" $(seq 1000); exit 1', "x" * 240),
    ],
    ids=["good", "bad", "silent", "hangs", "long"],
)
def test_the_check(tmp_path: Path, program: str, message: str | None) -> None:
    failed = [f"ERROR: check_goldnode:  {message}", "status 1"]
    assert checked(tmp_path, program) == (["status 0"] if message is None else failed)


def test_a_node_without_goldnode_is_not_healthy(tmp_path: Path) -> None:
    first, last = checked(tmp_path, None)
    assert last == "status 1"
    assert "No such file" in first
