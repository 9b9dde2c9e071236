"""A layout of its own for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.oci.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty layout."""
    return Layout(tmp_path / "store")
