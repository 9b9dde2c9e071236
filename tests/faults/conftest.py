"""Fixtures of the fault scoreboard."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.run import Bases
from tests.simulators.hardware import build

MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bases]:
    """The healthy nodes of the scoreboard. In memory, where possible: on a disk, a third of a row is its files."""
    library = build(tmp_path_factory.mktemp("library")).parent
    with tempfile.TemporaryDirectory(
        prefix="goldnode-faults-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as place:
        yield Bases(Path(place), library)
