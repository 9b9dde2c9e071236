"""Settings that no class declares: judged by the board's range, by the other GPUs, and by the pending mode."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.node.captures import healthy, spoiled

from goldnode.node.device.nvidia import is_fault
from goldnode.node.state.domains import policy
from goldnode.node.verdict import settings

G3 = "0000:5d:00.0"
FACTS = {"10de:2330": {"pcie": {"gen": 5, "width": 16}}}
CLOCKS = {
    "application": {"graphics_mhz": 1755, "memory_mhz": 2619},
    "max": {"graphics_mhz": 1980, "memory_mhz": 2619},
}


def judged(
    capture: dict[str, Any], facts: dict[str, Any] | None = None
) -> dict[tuple[str, str | None], str]:
    found = settings.findings(capture, FACTS if facts is None else facts)
    return {(row.id, row.subject): row.outcome for row in found}


def test_settings_that_are_alike_and_in_range_match() -> None:
    found = judged(spoiled(healthy(), "gpus.*.clocks", CLOCKS))
    assert set(found.values()) == {"match"}
    assert {name for name, _ in found} == {
        "policy.persistence_mode",
        "policy.compute_mode",
        "policy.power_limit_watts",
        "policy.clocks.graphics_mhz",
        "policy.clocks.memory_mhz",
        "policy.ecc",
        "policy.mig",
        "gpu.bar1",
    }


@pytest.mark.parametrize(
    ("path", "value", "name", "got"),
    [
        ("persistence_mode", False, "policy.persistence_mode", "off"),
        ("compute_mode", "prohibited", "policy.compute_mode", "no CUDA program can use it"),
        ("power.limit_w", 500, "policy.power_limit_watts", "500 W"),
        ("power.limit_w", 150, "policy.power_limit_watts", "the board takes 200 to 700 W"),
        ("memory.bar1_mib", 256, "gpu.bar1", "256 MiB"),
        (
            "clocks",
            {**CLOCKS, "application": {"graphics_mhz": 1990}},
            "policy.clocks.graphics_mhz",
            "above the maximum",
        ),
        ("clocks", {"max": {"sm_mhz": 1755}}, "gpu.max_clocks", "1755 MHz"),
        ("temperature.memory_c", 96, "gpu.temperature", "memory at 96 °C"),
        (
            "remapped_banks",
            {"pending": True, "none": 0},
            "gpu.remap.pending",
            "a bank remap is pending",
        ),
        ("remapped_banks", {"pending": False, "none": 1}, "gpu.remap.spare", "1 groups have none"),
    ],
)
def test_one_gpu_that_differs_is_a_finding(path: str, value: Any, name: str, got: str) -> None:
    capture = spoiled(
        healthy(), "gpus.*.temperature.memory_max_c", 95, "gpus.*.clocks.max.sm_mhz", 1980
    )
    found = [
        row
        for row in settings.findings(spoiled(capture, f"gpus.3.{path}", value), FACTS)
        if row.id == name
    ]
    assert [(row.outcome, row.subject, row.severity) for row in found] == [
        ("mismatch", G3, "degraded")
    ]
    assert got in str(found[0].got)


@pytest.mark.parametrize(
    ("key", "pcie", "busy", "outcome"),
    [
        ("width", {"width": {"current": 8, "max": 16}}, False, "mismatch"),
        ("width", {"width": {"current": 16, "max": 16}}, False, "match"),
        # Rubin rests with 2 of 16 lanes (generation 6).
        (
            "width",
            {"gen": {"current": 6, "max": 6}, "width": {"current": 2, "max": 16}},
            False,
            "deferred",
        ),
        (
            "width",
            {"gen": {"current": 6, "max": 6}, "width": {"current": 2, "max": 16}},
            True,
            "mismatch",
        ),
        ("gen", {"gen": {"current": 1, "max": 4}}, False, "deferred"),
        ("gen", {"gen": {"current": 1, "max": 4}}, True, "mismatch"),
    ],
)
def test_the_link_of_an_unknown_model_is_held_to_what_gpu_and_slot_can_do(
    key: str, pcie: dict[str, Any], busy: bool, outcome: str
) -> None:
    capture = healthy()
    capture["gpus"] = [capture["gpus"][0]]
    capture["gpus"][0].update(
        pcie=pcie, pstate=0 if busy else 8, utilization={"gpu": 99 if busy else 0}
    )
    found = {
        name: value for (name, _), value in judged(capture, {}).items() if name == f"pcie.{key}"
    }
    assert found == {f"pcie.{key}": outcome}
    assert f"pcie.{key}" not in {name for name, _ in judged(capture)}, (
        "the table of rules judges it by the facts"
    )


def test_values_that_differ_from_the_default_of_the_board_are_named() -> None:
    capture = spoiled(healthy(), "gpus.3.power.limit_w", 500)
    assert settings.unusual(capture) == {"policy.power_limit_watts": "default 700 W"}


def test_the_settings_of_a_record_have_the_shape_that_policy_compares() -> None:
    """Any GPU of a record gives something that the domain can judge: random faults, missing and wrong values."""
    drawn = random.Random(5)  # noqa: S311 - test input
    fault = {"fault": "unread", "text": "Unknown Error"}
    values: list[Any] = [
        None,
        fault,
        {"fault": "not_exposed", "text": "N/A"},
        True,
        False,
        5,
        "default",
        {},
        [],
    ]
    document: Any = {
        "policy": {
            "persistence_mode": True,
            "ecc": True,
            "mig": {"enabled": True, "profiles": ["1g.10gb"]},
            "power_limit_watts": 500,
            "clocks": {"graphics_mhz": 1755, "memory_mhz": 2619},
            "compute_mode": "default",
        }
    }
    for _ in range(500):
        gpu = healthy()["gpus"][0]
        for name in ("persistence_mode", "compute_mode", "ecc", "mig", "power", "clocks"):
            if drawn.random() < 0.5:
                gpu[name] = drawn.choice(values)
            elif isinstance(gpu[name], dict) and gpu[name]:
                gpu[name] = {**gpu[name], drawn.choice(list(gpu[name])): drawn.choice(values)}
        own = settings.of_record(gpu)
        for key, want in policy.effective(document, own).items():
            for _item, row in policy.judged(own, key, want, {}):
                assert row.outcome in ("match", "mismatch", "not_exposed", "could_not_read")


def test_mig_of_a_record_without_profiles_is_not_judged_by_profiles() -> None:
    gpu = spoiled(healthy(), "gpus.0.mig", {"current": True, "pending": True})["gpus"][0]
    assert is_fault(settings.of_record(gpu)["mig"])
