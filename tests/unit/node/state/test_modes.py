"""ECC and MIG in every combination of current, pending and declared: the remedy, the plan, and whether a boot is held back.

Each row of tests/cases/modes.json is one combination on GPU 0 of a node with two GPUs; the other GPU is as declared. `steps` null: nothing is
wrong. `sets`: the plan sets the mode. `reboot`: the reasons for a boot once the plan is applied. `held`: no boot before it is applied.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from tests.unit.node.state.test_cases import CASES, PROGRAM, converged, document, merge

from goldnode.node.state import modes
from goldnode.node.state.engine import judge
from goldnode.node.state.finding import MATCH, MISMATCH, Finding, ordered
from goldnode.node.state.model import Observed, Plan
from goldnode.node.state.remedy import GPU_RESET, PERSON, POLICY, REBOOT, REPAIR, SITE, Remedy
from goldnode.node.verdict import check, table

ROWS: list[dict[str, Any]] = json.loads((CASES / "modes.json").read_text())
CELLS = {(row["mode"], row["current"], row["pending"], row["declared"]) for row in ROWS}


def name(row: dict[str, Any]) -> str:
    return " ".join(f"{key}={row[key]}" for key in ("mode", "current", "pending", "declared"))


def test_every_combination_is_in_the_table() -> None:
    assert len(ROWS) == len(CELLS) == 24
    assert (
        set(itertools.product(("ecc", "mig"), (True, False), (True, False), (True, False, None)))
        == CELLS
    )


def declared(row: dict[str, Any]) -> tuple[list[Finding], Plan]:
    """Findings and plan of a node of a class that declares the mode."""
    value = row["declared"] if row["mode"] == "ecc" else {"enabled": row["declared"]}
    whole = merge(document(), {"policy": {row["mode"]: value}})
    patch = {"gpus": {"0": {row["mode"]: {"current": row["current"], "pending": row["pending"]}}}}
    seen = Observed(**merge(converged(whole).to_dict(), {"gpu_settings": patch}))
    plan = judge(whole, seen, PROGRAM)
    return check.find(whole, seen, plan), plan


def undeclared(row: dict[str, Any]) -> list[Finding]:
    """Findings of a capture of a node whose class says nothing of the mode."""
    gpu = {
        "index": 0,
        "address": "0000:01:00.0",
        "pci_id": "10de:20b0",
        row["mode"]: {"current": row["current"], "pending": row["pending"]},
    }
    return table.judge(document(), {"gpus": [gpu]})


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_remedy_follows_from_current_pending_and_declared(row: dict[str, Any]) -> None:
    found = undeclared(row) if row["declared"] is None else declared(row)[0]
    wrong = [
        finding for finding in found if finding.id == row["finding"] and finding.outcome == MISMATCH
    ]
    if row["steps"] is None:
        assert wrong == []
        return
    remedy = wrong[0].remedy
    assert remedy is not None
    assert row["says"] in remedy
    assert (list(remedy.steps), remedy.before) == (row["steps"], row.get("before"))


@pytest.mark.parametrize("row", [row for row in ROWS if row["declared"] is not None], ids=name)
def test_plan_sets_the_mode_and_boots_only_where_that_is_needed(row: dict[str, Any]) -> None:
    _, plan = declared(row)
    assert [action.data["field"] for action in plan.actions if action.kind == "gpu.set"] == (
        [row["mode"]] if row["sets"] else []
    )
    assert plan.reboot_after() == row["reboot"]
    assert bool(plan.held) is row["held"]


def test_a_reboot_for_another_reason_is_held_back_until_the_pending_mode_is_set_back() -> None:
    whole = merge(document(), {"policy": {"ecc": True}})
    base = merge(converged(whole).to_dict(), {"reboot_marks": ["the GPU driver was replaced"]})
    spoiled = merge(
        base, {"gpu_settings": {"gpus": {"1": {"ecc": {"current": True, "pending": False}}}}}
    )
    reported = judge(whole, Observed(**spoiled), PROGRAM).to_json()["reboot"]
    assert (reported["required"], reported["reasons"]) == (False, ["the GPU driver was replaced"])
    assert reported["held"] == ["the next boot would turn ECC off for GPU 1"]
    assert judge(whole, Observed(**base), PROGRAM).to_json()["reboot"]["required"]


def test_gpus_that_differ_have_one_remedy_in_order() -> None:
    rows = [
        modes.Mode("0", True, False, True),
        modes.Mode("1", False, True, True),
        modes.Mode("2", False, False, True),
    ]
    found = modes.remedy("ecc", rows)
    assert found is not None
    assert found.steps == (POLICY, REBOOT)
    assert found.before == "it would turn ECC off for GPU 0 and it would leave ECC off for GPU 2"
    each = modes.remedy(
        "ecc", [modes.Mode("0", True, False, True), modes.Mode("1", False, True, False)]
    )
    assert each is not None
    assert "back (on for GPU 0; off for GPU 1)" in each


URGENT = Finding(
    "policy.ecc",
    MISMATCH,
    "on",
    "x",
    Remedy("Apply.", POLICY, before="it would turn ECC off for GPU 0"),
    severity="drain",
)
KERNEL = Finding(
    "boot.next",
    MISMATCH,
    "a",
    "b",
    Remedy("Run site.yml.", SITE, before="it would start another kernel"),
)


@pytest.mark.parametrize(
    ("urgent", "remedy", "steps"),
    [
        ([URGENT], Remedy("Reboot.", REBOOT), (POLICY, REBOOT)),
        ([URGENT], Remedy("Reset.", GPU_RESET), (POLICY, GPU_RESET, POLICY)),
        ([URGENT], Remedy("Reseat it.", REPAIR), (POLICY, REPAIR)),
        ([URGENT], Remedy("Look, then reboot.", PERSON, REBOOT), (POLICY, PERSON, REBOOT)),
        ([URGENT], Remedy("Run site.yml, then reboot.", SITE, REBOOT), (SITE, REBOOT)),
        ([URGENT], Remedy("Look.", PERSON), (PERSON,)),
        ([KERNEL], Remedy("Reboot.", REBOOT), (SITE, REBOOT)),
        ([URGENT, KERNEL], Remedy("Reboot.", REBOOT), (SITE, REBOOT)),
        ([], Remedy("Reboot.", REBOOT), (REBOOT,)),
        ([], Remedy("Reset.", GPU_RESET), (GPU_RESET, POLICY)),
    ],
)
def test_urgent_changes_precede_each_remedy_that_restarts(
    urgent: list[Finding], remedy: Remedy, steps: tuple[str, ...]
) -> None:
    found = ordered(
        [Finding("x", MISMATCH, "a", "b", remedy, severity="drain"), *urgent], sets_gpus=True
    )
    assert found[0].steps == steps
    for item in urgent if remedy.restarts() and remedy.steps[0] != SITE else ():
        assert item.remedy is not None
        assert str(item.remedy.before) in str(found[0].remedy)
    assert [item.remedy for item in found[1:]] == [item.remedy for item in urgent]


def test_matching_finding_adds_no_step_before_a_reboot() -> None:
    fine = Finding("policy.ecc", MATCH, "on", "on", URGENT.remedy, severity="drain")
    assert ordered(
        [Finding("x", MISMATCH, "a", "b", Remedy("Reboot.", REBOOT), severity="drain"), fine],
        sets_gpus=True,
    )[0].steps == (REBOOT,)
