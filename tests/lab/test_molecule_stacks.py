"""The scenario between two real stacks: each of its legs builds a real driver, so that it is a file, and a process, of its own."""

from __future__ import annotations

import os
import re

import pytest
from tests.lab.molecule import REAL, ROOT, run


@pytest.mark.real
@pytest.mark.long
def test_changes_between_real_stacks_leave_the_same_files() -> None:
    """Once there and back, and GOLDNODE_STACK_ROUNDS times where it is set: each leg on real packages takes a minute or two."""
    rounds = int(os.environ.get("GOLDNODE_STACK_ROUNDS") or 1)
    proof = ROOT / ".goldnode" / f"molecule-{REAL}.legs"
    proof.unlink(missing_ok=True)
    run(REAL, "create", "converge", "idempotence", "side_effect", "verify")
    text = proof.read_text()
    assert f"{2 * rounds + 1} legs verified, 0 failed ({rounds} times there and back)" in text
    assert (
        len(
            re.findall(
                r"^leg \d+ to .* every file as after the first leg there$", text, re.MULTILINE
            )
        )
        == 2 * rounds - 1
    )
