"""The tutorials and guides that need nodes, images or the network, followed as printed. See tests/documented.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import documented
from tests.documented import LONG, Reader, Scenario

pytestmark = [pytest.mark.lab, pytest.mark.long]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = documented.online(tmp_path)
    yield found
    for state in sorted(
        tmp_path.glob("**/.goldnode/lab/*")
    ):  # of a page that ended before its last block
        command = [sys.executable, "-m", "goldnode.testing.lab", "down", state.name]
        subprocess.run(command, cwd=state.parents[2], check=False)


@pytest.mark.parametrize("scenario", LONG, ids=lambda scenario: scenario.name)
def test_documented_commands_run(scenario: Scenario, reader: Reader) -> None:
    reader.follow(scenario)
