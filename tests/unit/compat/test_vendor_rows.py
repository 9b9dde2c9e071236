"""Combinations from vendors' documents: each is judged as its document has it, and each depends on a fact or a rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compat import vendor_rows

ROWS = vendor_rows.ROWS
FITTING = [row for row in ROWS if "by" not in row]


def test_vendor_rows_are_numerous_unique_and_name_source_and_rule() -> None:
    assert len([row for row in ROWS if len(vendor_rows.rules_of(row)) < 2]) >= 250
    assert len({vendor_rows.name(row) for row in ROWS}) == len(ROWS)
    assert all(row["source"] for row in ROWS)
    assert min(Counter(row["judge"] for row in ROWS).values()) >= 10
    # A row that does not fit names its rule.
    assert all(("by" in row) == (row["judge"] != "fits") for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=vendor_rows.name)
def test_row_is_judged_as_its_document_has_it(row: dict[str, Any], tmp_path: Path) -> None:
    found = vendor_rows.findings(row, tmp_path)
    reported = [f"{item.rule}: {item.severity}: {item.message}" for item in found]
    assert vendor_rows.judgement(found) == row["judge"], reported
    if row["judge"] != "fits":
        severity = next(
            key for key, value in vendor_rows.JUDGEMENTS.items() if value == row["judge"]
        )
        deciding = {item.rule for item in found if item.severity == severity}
        assert set(vendor_rows.rules_of(row)) <= deciding, reported
    # An unknown has its reason, and what to do about it.
    assert all(item.message and item.remedy for item in found if item.severity == "unknown"), (
        reported
    )


# All of them: tests/images/test_compat_answers.py, and `python -m tests.unit.compat.vendor_rows`.
@pytest.mark.parametrize("row", FITTING[::40], ids=vendor_rows.name)
def test_row_that_fits_depends_on_a_fact(row: dict[str, Any], tmp_path: Path) -> None:
    assert vendor_rows.depends_on(row, tmp_path) is not None


def test_row_that_does_not_fit_depends_on_its_rule(tmp_path: Path) -> None:
    others = [row for row in ROWS if "by" in row]
    assert [
        vendor_rows.name(row) for row in others if vendor_rows.depends_on(row, tmp_path) is None
    ] == []
