"""Fixtures of the fault scoreboard."""

from __future__ import annotations

import pytest
from tests.faults.run import Bases
from tests.simulators.hardware import build


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """The healthy nodes of the scoreboard."""
    return Bases(tmp_path_factory.mktemp("nodes"), build(tmp_path_factory.mktemp("library")).parent)
