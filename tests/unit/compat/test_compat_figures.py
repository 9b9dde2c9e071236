"""The counts of combinations in docs/proof.md are those of the case tables."""

from __future__ import annotations

from pathlib import Path

from tests import compat_figures
from tests.unit.compat.test_gpu_packages import PACKAGES

PAGE = Path(__file__).parents[3] / "docs/proof.md"


def test_counts_of_the_page_are_those_of_the_tables() -> None:
    written = compat_figures.written(PAGE)
    assert written == list(compat_figures.lines()), (
        "run `python -m tests.compat_figures` and put its rows into docs/proof.md"
    )


def test_counts_that_the_page_promises_hold() -> None:
    assert compat_figures.rows("locks.yml") >= 40
    # More than half of them passed in silence once.
    assert len(PACKAGES) >= 60
