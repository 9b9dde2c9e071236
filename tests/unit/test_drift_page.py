"""docs/reference/drift.md lists the table of tests/e2e/drift, and the table is whole."""

from __future__ import annotations

from collections import Counter

from tests.e2e.drift.__main__ import page
from tests.e2e.drift.table import PAGE, rows

from goldnode.node.state.kinds import kind


def test_page_is_that_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run .venv/bin/python -m tests.e2e.drift"


def test_table_has_the_rows_of_the_trial_and_more() -> None:
    table = rows()
    counts = Counter(row.kind for row in table)
    assert counts["trial"] == 43
    assert counts["own"] >= 30
    assert counts["harmless"] >= 15
    assert len({row.id for row in table}) == len(table)


def test_each_row_names_findings_and_how_it_is_taken_back() -> None:
    for row in rows():
        if row.kind == "harmless":
            assert (row.check, row.plan, row.repair) == ({}, None, None), row.id
            continue
        assert row.repair, row.id
        assert row.check, row.id
        for item in row.check:
            assert kind(item), (row.id, item)
