"""The policy over what was recorded of real wheels: a change that alters a verdict fails here."""

from __future__ import annotations

import re

import pytest
from packaging.utils import parse_wheel_filename
from tests.unit.inspect import wheel_table
from tests.unit.inspect.wheel_table import BACKENDS, WheelRow, facts, rows, view_of


def test_table_has_the_shape_that_it_states() -> None:
    names = [row.file for row in rows()]
    assert len(names) >= 300
    assert names == sorted(set(names))
    for row in rows():
        name, version, _, _ = parse_wheel_filename(row.file)
        assert name, version
        assert re.fullmatch(r"[0-9a-f]{64}", row.sha256), row.file
        assert set(row.refused) <= set(BACKENDS)
        assert list(row.refused) == [name for name in BACKENDS if name in row.refused], row.file
        assert row.because or not row.refused, f"{row.file}: state the evidence"


def test_facts_are_of_the_wheels_in_the_table() -> None:
    assert list(facts()) == [row.file for row in rows()]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file.split("-")[0])
def test_verdict_is_what_the_wheel_is(row: WheelRow) -> None:
    assert wheel_table.refused(view_of(facts()[row.file])) == row.refused, row.because
