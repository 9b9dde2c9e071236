"""MIG placement: the search finds a layout exactly where trying every position finds one."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.facts import host, mig

TABLES = {table.id: table for row in host.gpus().values() for table in mig.tables(row)}


def brute_force(table: mig.MigTable, wanted: list[mig.MigProfile]) -> bool:
    """Return whether any combination of first slices gives a layout. Independent of the search: every one is tried."""
    if sum(row.compute for row in wanted) > table.compute_slices:
        return False
    if any(wanted.count(row) > row.instances for row in wanted):
        return False
    engines = dict.fromkeys(table.engines, 0)
    for row in wanted:
        for name, count in row.engines.items():
            engines[name] += count
    if any(engines[name] > table.engines[name] for name in engines):
        return False
    for starts in product(*(row.starts for row in wanted)):
        slices = [
            slice_
            for row, start in zip(wanted, starts, strict=True)
            for slice_ in range(start, start + row.size)
        ]
        if len(slices) == len(set(slices)) and max(slices, default=0) < table.memory_slices:
            return True
    return False


@st.composite
def layouts(draw: st.DrawFn) -> tuple[mig.MigTable, list[mig.MigProfile]]:
    table = TABLES[draw(st.sampled_from(sorted(TABLES)))]
    return table, draw(st.lists(st.sampled_from(table.profiles), max_size=5))


@given(layouts())
def test_a_layout_is_placed_exactly_if_positions_exist(
    case: tuple[mig.MigTable, list[mig.MigProfile]],
) -> None:
    table, wanted = case
    starts = mig.placement(table, wanted)
    assert (starts is not None) == brute_force(table, wanted)
    if starts is not None:
        places = list(zip(wanted, starts, strict=True))
        slices = [number for row, start in places for number in range(start, start + row.size)]
        assert all(start in row.starts for row, start in places)
        assert len(slices) == len(set(slices))
        assert all(n < table.memory_slices for n in slices)


@pytest.mark.parametrize("table", ["a30", "rtx-pro-5000-580", "rtx-pro-4500"])
def test_every_layout_of_up_to_four_instances_is_placed_as_by_trying_all(table: str) -> None:
    profiles = TABLES[table].profiles
    for count in range(1, 5):
        for wanted in combinations_with_replacement(profiles, count):
            found = mig.placement(TABLES[table], list(wanted)) is not None
            assert found == brute_force(TABLES[table], list(wanted)), [row.names for row in wanted]


def test_a_refused_layout_names_a_part_of_it_that_fits() -> None:
    gpu = host.gpu("A100-SXM4-40GB")
    fault = mig.fault(gpu, 550, ["3g.20gb", "3g.20gb", "1g.5gb"])
    assert fault is not None
    assert fault.possible == ("3g.20gb", "3g.20gb")
    assert "need 9 memory slices of one GPU, which has 8" in fault.message
    assert mig.fault(gpu, 550, fault.possible) is None


def test_a_layout_of_a_later_branch_names_the_branch() -> None:
    fault = mig.fault(host.gpu("A30"), 470, ["2g.12gb+me"])
    assert fault is not None
    assert "needs driver branch 525 or later" in fault.message


def test_between_two_tables_either_layout_is_accepted() -> None:
    gpu = host.gpu("RTX-PRO-5000-Blackwell")
    for branch, layout, fits in (
        (580, ["1g.12gb-me"], True),
        (580, ["1g.24gb"], False),
        (595, ["1g.12gb-me"], True),
        (595, ["1g.24gb"], True),
        (610, ["1g.12gb-me"], False),
    ):
        assert (mig.fault(gpu, branch, layout) is None) == fits, (branch, layout)
