"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goldnode.node.ground import host


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key that signs images and disks: its secret and its public file."""
    from tests.unit.images.registries import make_key  # here, since most tests need nothing of it

    return make_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(autouse=True)
def own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """For another user than root, the trees that tests make belong to the user who runs them."""
    if os.geteuid():
        monkeypatch.setattr(host, "SUPERUSER", (os.geteuid(), os.getegid()))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small files need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
