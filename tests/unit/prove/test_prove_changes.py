"""What may be changed on a GPU and what is left alone, as a table; and the file that outlives a killed run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from goldnode.prove import changes
from goldnode.prove.session import NotChecked

ABSENT = {"rc": 3, "text": "Not Supported"}
GPU: dict[str, Any] = {
    "uuid": "GPU-1", "persistence_mode": False, "compute_mode": "default", "processes": [],
    "power": {"limit": 700, "default": 700, "min": 200, "max": 700},
    "clocks": {"application": {"graphics": 1980, "memory": 2619}, "supported": {"2619": [[210, 1980, 15]]}},
    "ecc": {"current": True, "pending": True}, "mig": {"current": False, "pending": False},
}  # fmt: skip


def gpu(**other: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GPU), **other}


@pytest.mark.parametrize(
    ("board", "field", "other", "why"),
    [
        (gpu(), "persistence_mode", True, ""),
        (gpu(persistence_mode=True), "persistence_mode", None, "may forget clocks and power limit"),
        (gpu(), "power_limit_watts", 695, ""),
        (gpu(power={"limit": 350.5, "min": 200, "max": 700}), "power_limit_watts", 345.5, ""),
        (gpu(power={"limit": 200, "min": 200, "max": 700}), "power_limit_watts", 205, ""),
        (
            gpu(power={"limit": 72, "min": 72, "max": 72}),
            "power_limit_watts",
            None,
            "leaves no other value (72 to 72 W)",
        ),
        (
            gpu(power={"limit": 700, "min": ABSENT, "max": ABSENT}),
            "power_limit_watts",
            None,
            "range cannot be read",
        ),
        (
            gpu(power={"limit": ABSENT}),
            "power_limit_watts",
            None,
            "does not show it (Not Supported)",
        ),
        (gpu(), "clocks", {"mode": "application", "graphics_mhz": 1965, "memory_mhz": 2619}, ""),
        (
            gpu(clocks={"application": {"graphics": ABSENT, "memory": ABSENT}}),
            "clocks",
            None,
            "does not show it",
        ),
        (
            gpu(
                clocks={
                    "application": {"graphics": 210, "memory": 2619},
                    "supported": {"2619": [[210, 1980, 15]]},
                }
            ),
            "clocks",
            None,
            "no lower clock",
        ),
        (
            gpu(clocks={"application": {"graphics": 1980, "memory": 2619}, "supported": ABSENT}),
            "clocks",
            None,
            "no lower clock",
        ),
        (gpu(), "compute_mode", "exclusive_process", ""),
        (gpu(compute_mode="prohibited"), "compute_mode", "default", ""),
        (gpu(compute_mode="unknown"), "compute_mode", None, "could not be put back"),
    ],
)
def test_proposal_has_another_value_or_the_reason_for_none(
    board: dict[str, Any], field: str, other: Any, why: str
) -> None:
    found = next(item for item in changes.proposals({"0": board}) if item.field == field)
    assert found.other == other
    assert why in found.why


def test_ecc_and_mig_are_never_proposed() -> None:
    assert {
        item.field for item in changes.proposals({"0": GPU, "1": {"rc": 15, "text": "GPU is lost"}})
    } == set(changes.FIELDS)


def test_differences_are_reported_by_their_place_and_processes_do_not_count() -> None:
    after = gpu(processes=[7], compute_mode="prohibited", power={**GPU["power"], "limit": 699})
    reported = changes.differences(
        changes.without_processes({"0": GPU}), changes.without_processes({"0": after})
    )
    assert reported == [
        "gpu0.compute_mode: prohibited, was default",
        "gpu0.power.limit: 699, was 700",
    ]
    assert changes.differences({"0": GPU}, {"0": {"rc": 15}}) != []


def test_restore_file_is_read_in_the_same_boot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "place/state.json"
    assert changes.read_restore_file(state) is None
    rows = [{"uuid": "GPU-1", "field": "compute_mode", "value": "default"}]
    changes.write_restore_file(state, rows)
    assert state.stat().st_mode & 0o777 == 0o600
    assert changes.read_restore_file(state) == rows
    monkeypatch.setattr(changes, "boot_id", lambda: "another")
    assert changes.read_restore_file(state) is None
    assert not state.parent.exists(), "the driver has forgotten it with that boot"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": "other", "found": []}',
        '{"schema": "goldnode.prove-gpu-state/1", "found": [{"field": "ecc", "uuid": "x"}]}',
    ],
)
def test_a_state_file_of_another_make_is_not_obeyed(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(
        NotChecked, match="compare the GPUs with `nvidia-smi -q`, then remove the file"
    ):
        changes.read_restore_file(state)
    assert state.read_text() == text


def test_a_lock_is_a_clock_that_the_driver_lists() -> None:
    assert changes.lock(GPU) == {"mode": "locked", "graphics_mhz": 1965}
    assert changes.lock(gpu(clocks={"supported": ABSENT})) is None
    json.dumps(changes.lock(GPU))
