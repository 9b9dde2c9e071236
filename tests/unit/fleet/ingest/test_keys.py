"""The table of keys against the type of the capture."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.unit.fleet.ingest.fleet_reports import capture
from tests.unit.fleet.ingest.test_flatten import leaves

from goldnode.documents.capture import CaptureDocument
from goldnode.fleet.ingest.keys import NESTED, PARTS, RENAMED, KeyKind, kind


def parts_of(model: type[BaseModel], key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and type of every value that is, or may be, a list of objects or an object of objects."""
    for name, field in model.model_fields.items():
        own = field.alias or name
        below = f"{key}.{own}" if key else RENAMED.get(own, own)
        yield from _parts(field.annotation, below)


def _parts(annotation: Any, key: str) -> Iterator[tuple[str, Any]]:
    origin, given = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        for one in given:
            yield from _parts(one, key)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation.__name__ != "MissingValue":
            yield from parts_of(annotation, key)
    elif origin in (list, dict) and typing.get_origin(given[0]) is not typing.Literal:
        inner = given[-1]
        models = [one for one in (typing.get_args(inner) or (inner,)) if _is_part(one)]
        if models:
            yield key, annotation
            for one in models:
                yield from parts_of(one, key)


def _is_part(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, BaseModel)
        and value.__name__ != "MissingValue"
    )


def test_every_collection_of_objects_has_an_identity() -> None:
    found = {key for key, _ in parts_of(CaptureDocument)}
    assert found, "the test finds no collection"
    assert found - {*PARTS} == set(), "name the identity of these in PARTS of fleet/ingest/keys.py"


def test_nested_parts_are_parts() -> None:
    assert {*NESTED, *NESTED.values()} <= {*PARTS}


@pytest.mark.parametrize(
    ("key", "number", "expected"),
    [
        ("gpu.vbios", False, KeyKind.FACT),
        ("gpu.serial", False, KeyKind.IDENTITY),
        ("identity.product.serial", False, KeyKind.IDENTITY),
        ("gpu.index", True, KeyKind.ORDER),
        ("gpu.pcie.replay", True, KeyKind.COUNTER),
        ("gpu.pcie.width.current", True, KeyKind.FACT),
        ("gpu.ecc.current", False, KeyKind.FACT),
        ("gpu.ecc.aggregate.corrected", True, KeyKind.COUNTER),
        ("gpu.temperature.gpu_c", True, KeyKind.GAUGE),
        ("gpu.throttle.active", False, KeyKind.STATE),
        ("gpu.settings", False, KeyKind.DROPPED),
        ("made.up", True, KeyKind.GAUGE),
        ("made.up", False, KeyKind.FACT),
    ],
)
def test_kind_of_a_key_follows_from_its_name_and_type(
    key: str, number: bool, expected: KeyKind
) -> None:
    assert kind(key, number) is expected


def test_values_that_vary_on_a_healthy_node_are_no_facts() -> None:
    """Load, temperature and clocks of a second capture change no fact."""
    first, second = capture(), capture()
    for gpu in second["gpus"]:
        gpu["temperature"]["gpu_c"] = 66
        gpu["power"]["draw_w"] = 512.5
        gpu["clocks"]["current"]["sm_mhz"] = 1980
        gpu["throttle"] |= {"mask": 4, "active": ["sw_power_cap"]}
        gpu["pcie"]["gen"]["current"] = 1
    changed = {
        leaf.key
        for leaf in set(leaves(first)) ^ set(leaves(second))
        if not isinstance(leaf.value, float)
    }
    assert changed == {"gpu.throttle.active"}
    assert kind("gpu.throttle.active", number=False) is KeyKind.STATE
