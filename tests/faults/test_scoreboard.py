"""The fault scoreboard: every fault is found with its remedy, no healthy node is called broken, again and after a boot."""

from __future__ import annotations

import pytest
from tests.faults.__main__ import PAGE, page
from tests.faults.peers import MARKS, TOOLS
from tests.faults.run import Bases, run
from tests.faults.table import MEASURED, ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row, bases: Bases) -> None:
    result = run(row, bases)
    if row.red:
        assert result.wrong, f"{row.name} is as it should be: take `red` from its row"
        return
    assert result.wrong == [], row.text


@pytest.mark.parametrize("name", sorted({row.node for row in ROWS}))
def test_the_node_is_healthy_before(name: str, bases: Bases) -> None:
    bases.base(name)
    for verdict in bases.verdicts[name]:
        bad = [
            finding
            for finding in verdict["findings"]
            if finding["outcome"] not in ("match", "deferred")
        ]
        assert (verdict["exit_code"], verdict["rc"]) == (0, 0), bad


def test_every_scenario_that_others_were_measured_with_has_its_row() -> None:
    assert [row.name for row in MEASURED] == list(MARKS)
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {len(marks.split()) for marks in MARKS.values()} == {len(TOOLS)}


def test_page_equals_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.faults --write"
