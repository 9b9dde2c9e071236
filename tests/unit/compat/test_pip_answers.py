"""Generated requirement sets against the recorded answers of pip's resolver: no set that pip refuses is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.case_tables import table
from tests.unit.compat.requirement_cases import case_name, findings

ANSWERS: list[dict[str, Any]] = table("compat/pip.yml")


def test_answers_are_unique_and_of_both_kinds() -> None:
    assert len({case_name(row) for row in ANSWERS}) == len(ANSWERS)
    assert {row["accepts"] for row in ANSWERS} == {True, False}


@pytest.mark.parametrize("row", ANSWERS, ids=case_name)
def test_no_set_that_pip_refuses_is_accepted(row: dict[str, Any], tmp_path: Path) -> None:
    found = findings(row, tmp_path)
    reported = [f"{item.severity}: {item.message}" for item in found]
    if row["accepts"]:
        assert "block" not in {item.severity for item in found}, reported
    else:
        assert {"block", "unknown"} & {item.severity for item in found}, row["reason"]
    assert all(item.message and item.remedy for item in found if item.severity == "unknown"), (
        reported
    )


def test_most_answers_are_known_without_pip(tmp_path: Path) -> None:
    """A check that only ever says unknown would pass the test above."""
    known = 0
    for row in ANSWERS:
        severities = {item.severity for item in findings(row, tmp_path)}
        known += "unknown" not in severities if row["accepts"] else "block" in severities
    assert known >= 0.8 * len(ANSWERS), known
