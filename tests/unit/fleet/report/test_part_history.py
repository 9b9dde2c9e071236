"""History of parts by serial number and UUID: swaps, moves, boards without numbers, repeated numbers, whole nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulators.fleet import NOW, SyntheticNode, fleet, put, store

from goldnode.fleet.report.part_history import sightings
from goldnode.fleet.shared.part_places import (
    ChangeKind,
    PartIdentities,
    PartSighting,
    compare,
    history_of,
    identities,
    is_placeholder,
    known,
    machine_replaced,
    repeated,
    shown,
)
from goldnode.node.probe.values import not_exposed, unread

DAY = timedelta(days=1)
T0 = datetime(2026, 11, 1, tzinfo=UTC).replace(tzinfo=None)


def part(
    slot: str = "0000:18:00.0",
    serial: str | None = "S1",
    identity: str | None = "GPU-1",
    *,
    node: str = "n1",
    days: tuple[float, float] = (0, 1),
    kind: str = "gpu",
) -> PartSighting:
    first, last = (T0 + number * DAY for number in days)
    return PartSighting(node, kind, slot, serial, identity, first, last)


def machine(serial: str | None = "M1", days: tuple[float, float] = (0, 1)) -> PartSighting:
    return part("", serial, None, kind="machine", days=days)


def kinds(before: list[PartSighting], after: list[PartSighting]) -> list[str]:
    return [str(change.kind) for change in compare(before, after)]


OTHER = "0000:2a:00.0"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([part()], [part()], ["same"]),
        ([part()], [part(serial="S2", identity="GPU-2")], ["replaced"]),
        # GeForce shows no serial number.
        ([part(serial=None)], [part(serial=None)], ["same"]),
        ([part(serial=None)], [part(serial=None, identity="GPU-2")], ["replaced"]),
        # No UUID: the number alone.
        ([part(identity=None)], [part(serial="S2", identity=None)], ["replaced"]),
        # The board came back with another GPU on it.
        ([part()], [part(identity="GPU-2")], ["same"]),
        # A part without an identity is unknown, and not replaced.
        ([part()], [part(serial=None, identity=None)], ["unknown"]),
        ([part(serial=None)], [part(serial="S1", identity=None)], ["unknown"]),
        ([part(identity="GPU-????", serial=None)], [part(serial=None)], ["unknown"]),
        ([part(serial="0", identity=None)], [part(serial="0", identity=None)], ["unknown"]),
        # A lost GPU is absent, and not replaced.
        ([part(), part(OTHER, "S2", "GPU-2")], [part()], ["same", "absent"]),
        # Two boards were exchanged: nothing is new.
        (
            [part(), part(OTHER, "S2", "GPU-2")],
            [part(serial="S2", identity="GPU-2"), part(OTHER)],
            ["moved", "moved"],
        ),
        # Moved to an empty slot.
        ([part()], [part(OTHER)], ["moved"]),
        ([part()], [part(), part(OTHER, "S2", "GPU-2")], ["same", "new"]),
        # The GPUs of one board share a number; their UUIDs differ.
        (
            [part(serial="B1"), part(OTHER, "B1", "GPU-2")],
            [part(serial="B1"), part(OTHER, "B1", "GPU-2")],
            ["same", "same"],
        ),
        (
            [part(serial="B1"), part(OTHER, "B1", "GPU-2")],
            [part(serial="B2", identity="GPU-3"), part(OTHER, "B2", "GPU-4")],
            ["replaced", "replaced"],
        ),
    ],
)
def test_change_of_a_slot(
    before: list[PartSighting], after: list[PartSighting], expected: list[str]
) -> None:
    assert kinds(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        ([machine(), part()], [machine("M2"), part(serial="S9", identity="GPU-9")], True),
        # The same GPUs in another chassis: not the whole node.
        ([machine(), part()], [machine("M2"), part()], False),
        ([machine(), part()], [machine(), part(serial="S9", identity="GPU-9")], False),
        # A chassis without a number, and GPUs that are all new: nobody can tell.
        ([part()], [part(serial="S9", identity="GPU-9")], None),
        (
            [machine("Default string"), part()],
            [machine("Default string"), part(serial="S9", identity="GPU-9")],
            None,
        ),
    ],
)
def test_whole_node_is_replaced_only_if_no_part_stays(
    before: list[PartSighting], after: list[PartSighting], whole: bool | None
) -> None:
    assert machine_replaced(compare(before, after)) is whole


@pytest.mark.parametrize(
    "text",
    [None, "", "0", "00000000", "N/A", "To Be Filled By O.E.M.", "Default string", "GPU-????????"],
)
def test_placeholder_identifies_nothing(text: str | None) -> None:
    assert is_placeholder(text)


@pytest.mark.parametrize("text", ["1650022012345", "GPU-1", "S1001", "0324517012345"])
def test_real_number_is_no_placeholder(text: str) -> None:
    assert not is_placeholder(text)


def test_number_of_two_nodes_at_once_identifies_no_part() -> None:
    clones = [
        part(serial="S1", identity=None, node="n1", days=(0, 9)),
        part(serial="S1", identity=None, node="n2", days=(3, 12)),
    ]
    assert repeated(clones) == {"S1"}
    assert history_of(clones, ["S1"]) == ([], frozenset())
    # One after the other is a move.
    moved = [clones[0], replace(clones[1], first=T0 + 10 * DAY)]
    assert repeated(moved) == frozenset()
    assert [one.node for one in history_of(moved, ["S1"])[0]] == ["n1", "n2"]


def test_part_that_moved_has_one_history_and_a_number_leads_to_the_next() -> None:
    rows = [
        part(node="n1", days=(0, 5)),
        part(OTHER, node="n2", days=(7, 8)),
        # Back from the vendor: the board's number, another GPU.
        part(node="n3", days=(20, 21), identity="GPU-7"),
        part(node="n4", days=(30, 31), serial=None, identity="GPU-7"),
        part(node="n5", days=(0, 31), serial="S5", identity="GPU-5"),
    ]
    history, names = history_of(rows, ["S1"])
    assert [one.node for one in history] == ["n1", "n2", "n3", "n4"]
    assert names == {"S1", "GPU-1", "GPU-7"}


PARTS = st.builds(
    part,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["S1", "S2", "0", None]),
    st.sampled_from(["GPU-1", "GPU-2", "GPU-?", None]),
)


@given(
    st.lists(PARTS, max_size=3, unique_by=lambda one: one.slot),
    st.lists(PARTS, max_size=3, unique_by=lambda one: one.slot),
)
def test_replaced_needs_two_identities_that_differ(
    before: list[PartSighting], after: list[PartSighting]
) -> None:
    """Never by a value that is missing, a placeholder, or repeated."""
    rules = PartIdentities(repeated(before) | repeated(after))
    for change in compare(before, after):
        if change.kind is ChangeKind.REPLACED:
            assert change.before is not None
            assert change.after is not None
            assert rules.names(change.before)
            assert rules.names(change.after)
            assert not rules.names(change.before) & rules.names(change.after)
        if change.kind is ChangeKind.SAME:
            assert rules.names(change.before) & rules.names(change.after)  # type: ignore[arg-type]


# Of captures


def swapped(serial: Any, uuid: Any, gpu: int = 0) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        put(f"gpus/{gpu}/serial", serial)(found)
        put(f"gpus/{gpu}/uuid", uuid)(found)

    return change


def of(nodes: list[SyntheticNode], directory: Path) -> list[PartSighting]:
    times = [NOW - days * DAY for days in (20, 15, 10, 5, 1)]
    store(directory, nodes, times)
    return sightings(directory, NOW, [one.name for one in nodes])


def gpus(rows: list[PartSighting], node: str, slot: str = "0000:18:00.0") -> list[PartSighting]:
    return [one for one in rows if (one.node, one.kind, one.slot) == (node, "gpu", slot)]


def test_swapped_board_is_two_sightings_of_its_slot(tmp_path: Path) -> None:
    nodes = fleet(2)
    nodes[0].change(swapped("NEW1", "GPU-new"), NOW - 10 * DAY)
    rows = of(nodes, tmp_path)
    name = nodes[0].name
    old, new = gpus(rows, name)
    assert (old.captures, new.captures) == (2, 3)
    assert (new.serial, new.identity, new.simulated) == ("NEW1", "GPU-new", True)
    assert len(gpus(rows, nodes[1].name)) == 1
    before = known(rows, name, old.last)
    changes = compare(before, shown(rows, name))
    assert [change.before.serial for change in changes if change.kind is ChangeKind.REPLACED] == [  # type: ignore[union-attr]
        old.serial
    ]
    assert {str(change.kind) for change in changes} == {"same", "replaced"}
    assert machine_replaced(changes) is False


def test_values_that_cannot_be_read_are_no_swap(tmp_path: Path) -> None:
    nodes = fleet(1)
    nodes[0].change(swapped(unread("lost", 15), unread("lost", 15)), NOW - 10 * DAY)
    nodes[0].change(put("identity/product/serial", not_exposed("a guest")), NOW - 10 * DAY)
    rows = of(nodes, tmp_path)
    name = nodes[0].name
    changes = compare(known(rows, name, NOW.replace(tzinfo=None)), shown(rows, name))
    assert {str(change.kind) for change in changes} == {"same", "absent"}
    # The slot still has the part that it showed before: what a ticket blames.
    (last,) = [
        one for one in known(rows, name, NOW.replace(tzinfo=None)) if one.slot == "0000:18:00.0"
    ]
    assert last.serial == "16500100000"


def test_part_in_another_node_has_its_history_there(tmp_path: Path) -> None:
    nodes = fleet(2)
    first = gpus(of(nodes, tmp_path / "before"), nodes[0].name)[0]
    nodes[0].change(swapped("NEW1", "GPU-new"), NOW - 10 * DAY)
    nodes[1].change(swapped(first.serial, first.identity), NOW - 5 * DAY)
    store(tmp_path, nodes, [NOW - days * DAY for days in (20, 10, 1)])
    rows = sightings(tmp_path, NOW, names=[str(first.serial)])
    history, names = history_of(rows, [str(first.serial)])
    assert [one.node for one in history] == [nodes[0].name, nodes[1].name]
    assert names == {first.serial, first.identity}
    assert sightings(tmp_path, NOW, names=["none"]) == []


def test_geforce_without_numbers_is_known_by_its_uuid(tmp_path: Path) -> None:
    nodes = fleet(1)
    for gpu in range(8):
        nodes[0].change(put(f"gpus/{gpu}/serial", not_exposed("GeForce")))
    nodes[0].change(put("gpus/0/uuid", "GPU-new"), NOW - 5 * DAY)
    old, new = gpus(of(nodes, tmp_path), nodes[0].name)
    assert (old.serial, new.serial) == (None, None)
    assert identities([old, new]).same(old, new) is False
