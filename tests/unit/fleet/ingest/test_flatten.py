"""Flattening: every value of a capture has one row, under a key without numbers, with the identity of its part."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.ingest.fleet_reports import capture

from goldnode.fleet.ingest.flatten import MOST_VALUES, Flattener, Leaf
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.text import LONGEST, clean


def leaves(*found: dict[str, Any]) -> list[Leaf]:
    """Return the leaves of captures, from a new Flattener."""
    flattener = Flattener()
    for one in found:
        flattener.add(one)
    return list(flattener.leaves())


def of(found: list[Leaf], key: str) -> dict[str, str | float]:
    return {leaf.item: leaf.value for leaf in found if leaf.key == key}


def test_values_have_the_identity_of_their_part() -> None:
    found = leaves(capture())
    assert of(found, "gpu.vbios")["GPU-n1-3"] == "96.00.5E.00.01"
    assert of(found, "gpu.nvlink.links.active")["GPU-n1-3/17"] == "true"
    assert of(found, "gpu.nvlink.links.errors.replay")["GPU-n1-0/0"] == 0.0
    assert of(found, "network.mtu") == {"0000:41:00.0": "9000"}
    assert of(found, "network.name") == {"0000:41:00.0": "eth0"}
    assert of(found, "infiniband.ports.state") == {"0000:42:00.0/1": "active"}
    assert of(found, "storage.mounts.type") == {"/": "ext4"}
    assert of(found, "os.kernel.running") == {"": capture()["os"]["kernel"]["running"]}
    assert of(found, "os.kernel.installed") == {
        "": " ".join(sorted(capture()["os"]["kernel"]["installed"]))
    }
    assert [leaf.fault for leaf in found if leaf.key == "gpu.retired_pages"] == ["not_exposed"] * 8


def test_counters_and_gauges_are_numbers_and_limits_are_facts() -> None:
    found = leaves(capture())
    assert of(found, "gpu.temperature.gpu_c")["GPU-n1-0"] == 31.0
    assert of(found, "gpu.power.limit_w")["GPU-n1-0"] == "700"
    assert of(found, "gpu.persistence_mode")["GPU-n1-0"] == "true"
    assert not [leaf for leaf in found if leaf.key in ("time", "schema", "gpu.settings")]


def test_gpus_in_another_order_have_the_same_rows() -> None:
    first, second = capture(), capture()
    second["gpus"] = second["gpus"][3:] + second["gpus"][:3]
    second["pci"] = dict(reversed(second["pci"].items()))
    assert Counter(leaves(first)) == Counter(leaves(second))


def test_a_replaced_gpu_has_other_rows() -> None:
    first, second = capture(), capture()
    second["gpus"][2] |= {"uuid": "GPU-new", "serial": "new"}
    gone, come = (
        Counter(leaves(first)) - Counter(leaves(second)),
        Counter(leaves(second)) - Counter(leaves(first)),
    )
    assert {leaf.item.partition("/")[0] for leaf in gone} == {"GPU-n1-2"}
    assert {leaf.item.partition("/")[0] for leaf in come} == {"GPU-new"}


def test_parts_with_one_identity_get_distinct_keys() -> None:
    found = capture()
    found["network"]["eth1"] = {**found["network"]["eth0"], "mtu": 1500}
    assert of(leaves(found), "network.mtu") == {
        "0000:41:00.0#eth0": "9000",
        "0000:41:00.0#eth1": "1500",
    }


@pytest.mark.parametrize("drop", [("uuid",), ("uuid", "serial"), ("uuid", "serial", "address")])
def test_a_lost_gpu_is_named_by_what_is_left(drop: tuple[str, ...]) -> None:
    found = capture()
    for key in drop:
        found["gpus"][0][key] = {"fault": "unread", "text": "GPU is lost", "rc": 15}
    item = {1: "n10", 2: "0000:18:00.0", 3: "#1"}[len(drop)]
    assert of(leaves(found), "gpu.name")[item] == "NVIDIA H100 80GB HBM3"


_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e6, 1e6)
    | st.text(max_size=5)
)
_NAMES = st.sampled_from(
    ["gpus", "os", "network", "pci", "a", "link", "uuid", "address", "x.y", "links", "nvlink"]
)
_VALUE = st.recursive(
    _SCALAR | st.lists(st.text(max_size=3), max_size=3),
    lambda inner: (
        st.dictionaries(_NAMES, inner, max_size=4)
        | st.lists(st.dictionaries(_NAMES, inner, max_size=3), max_size=3)
    ),
    max_leaves=12,
)


def refused(flattener: Flattener, one: dict[str, Any]) -> str | None:
    """Add a capture; return why it was refused."""
    try:
        flattener.add(one)
    except RefusedReportError as problem:
        return problem.message
    return None


@settings(max_examples=300)
@given(st.lists(st.dictionaries(_NAMES, _VALUE, max_size=4), min_size=1, max_size=6), st.randoms())
def test_remembered_rows_are_those_of_a_new_walk(
    found: list[dict[str, Any]], chance: random.Random
) -> None:
    """The memory of a Flattener has no effect on its rows, refusals in between included."""
    series = [chance.choice(found) for _ in range(12)]
    expected: Counter[Leaf] = Counter()
    together = Flattener()
    for one in series:
        alone = Flattener()
        refusal = refused(alone, one)
        assert refused(together, one) == refusal
        if refusal:
            assert not list(alone.leaves())
            assert (alone.facts, alone.keys, alone.items) == ({}, {}, {})
            continue
        expected.update(alone.leaves())
    assert Counter(together.leaves()) == expected


@settings(max_examples=60)
@given(st.data())
def test_every_leaf_of_a_mutated_capture_is_found_once(data: st.DataObject) -> None:
    """One changed value of a known place changes one row."""
    found = capture()
    gpu = found["gpus"][data.draw(st.integers(0, 7))]
    value = data.draw(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)
    )
    before = Counter(leaves(found))
    gpu["vbios"] = value
    changed = Counter(leaves(found)) - before
    assert list(changed.elements()) in ([], [Leaf("gpu.vbios", gpu["uuid"], clean(value))])


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("x", {f"k{number}": 1 for number in range(MOST_VALUES + 1)}, "more than"),
        ("x", "a" * (LONGEST + 1), "a text has"),
        ("x", nested(40), "nested too deep"),
        ("x", float("inf"), "not a finite number"),
        ("x", {"y": float("-inf")}, "not a finite number"),
        ("memory", {"total_mib": float("inf")}, "not a finite number"),
        ("x", 10**400, "not a finite number"),
        ("x", [1, [float("nan")]], "not a finite number"),
        ("x", {"fault": "made up", "text": ""}, "fault of no known kind"),
    ],
)
def test_a_hostile_value_is_refused_and_leaves_nothing(
    place: str, value: Any, message: str
) -> None:
    flattener = Flattener()
    flattener.add(capture())
    before = (
        list(flattener.leaves()),
        len(flattener.facts),
        len(flattener.keys),
        len(flattener.items),
    )
    with pytest.raises(RefusedReportError, match=message):
        flattener.add({**capture("n2"), place: value})
    assert (
        list(flattener.leaves()),
        len(flattener.facts),
        len(flattener.keys),
        len(flattener.items),
    ) == before
    flattener.add(capture())
    assert Counter(flattener.leaves()) == Counter(
        {leaf: 2 * count for leaf, count in Counter(before[0]).items()}
    )


@given(st.text(max_size=60))
def test_cleaned_texts_are_safe_to_print_and_stay_so(text: str) -> None:
    found = clean(text)
    found.encode("utf-8")
    assert not [
        char
        for char in found
        if ord(char) < 32 or 127 <= ord(char) < 160 or "\u202a" <= char <= "\u202e"
    ]
    assert clean(found) == found


def test_a_list_of_objects_that_no_table_describes_is_a_fact() -> None:
    assert of(leaves({"x": [{"b": 1, "a": None}]}), "x") == {"": '[{"a": null, "b": 1}]'}
    assert str(of(leaves({"x": [{"a": "b" * LONGEST}]}), "x")[""]).startswith("sha256:")


def test_the_flattened_capture_survives_json() -> None:
    assert Counter(leaves(json.loads(json.dumps(capture())))) == Counter(leaves(capture()))


@pytest.mark.parametrize("texts", [["a", "b"], ["a", "known"], ["a", "b", "a"], ["known", "known"]])
def test_new_items_have_the_codes_of_items_one_by_one(texts: list[str]) -> None:
    together, singly = Flattener(), Flattener()
    for one in (together, singly):
        one.item("known")
    assert together.new_items(texts) == [singly.item(text) for text in texts]
    assert together.item_list == singly.item_list == list(together.items)
    assert (together.items, together.text) == (singly.items, singly.text)
