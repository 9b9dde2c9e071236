"""Combinations of late 2026 in tests/cases/compat/winter.yml: each is judged as its source has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.compat import test_autumn_cases

# Versions are text: YAML would make a number of 580.142.
TABLE: dict[str, Any] = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/winter.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
CASES: list[dict[str, Any]] = TABLE["cases"]


def test_cases_are_unique_and_have_their_source() -> None:
    assert len({test_autumn_cases.name(case) for case in CASES}) == len(CASES) >= 60
    assert {case["source"] for case in CASES} == set(TABLE["sources"])


@pytest.mark.parametrize("case", CASES, ids=test_autumn_cases.name)
def test_combination_of_winter(case: dict[str, Any], tmp_path: Path) -> None:
    judgement, shown = test_autumn_cases.judged(case, tmp_path)
    assert judgement == case["judge"], shown
