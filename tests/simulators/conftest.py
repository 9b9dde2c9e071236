"""Fixtures for the tests of the simulators."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulators.hardware import build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the simulated libnvidia-ml.so.1, compiled once per session."""
    return build(tmp_path_factory.mktemp("library"))
