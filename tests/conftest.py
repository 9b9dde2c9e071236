"""Fixtures every kind of test may use."""

from __future__ import annotations

import pytest
from docker import DockerClient

from goldnode.lab import engine


@pytest.fixture(scope="session")
def docker_client() -> DockerClient:
    """The Docker engine. There being none is a failure that says what to do, not a skip."""
    return engine.connect()
