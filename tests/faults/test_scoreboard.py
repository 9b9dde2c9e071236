"""The fault scoreboard: every fault is found with its remedy, no healthy node is called broken, again and after a boot."""

from __future__ import annotations

import pytest
from tests.faults.run import Bases, run
from tests.faults.table import ROWS, Row
from tests.simulators.hardware import build


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """The healthy nodes of the scoreboard."""
    return Bases(tmp_path_factory.mktemp("nodes"), build(tmp_path_factory.mktemp("library")).parent)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row, bases: Bases) -> None:
    result = run(row, bases)
    assert result.wrong == [], row.text


@pytest.mark.parametrize("name", sorted({row.node for row in ROWS}))
def test_the_node_is_healthy_before(name: str, bases: Bases) -> None:
    bases.base(name)
    for verdict in bases.verdicts[name]:
        bad = [finding for finding in verdict["findings"] if finding["outcome"] not in ("match", "deferred")]
        assert (verdict["exit_code"], verdict["rc"]) == (0, 0), bad
