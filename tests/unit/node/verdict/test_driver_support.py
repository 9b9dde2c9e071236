"""The driver by the facts: end of life, security, known bad combinations."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.unit.node.captures import healthy, spoiled

from goldnode.compat import known_bad
from goldnode.facts import host as facts_host
from goldnode.node.ground import known
from goldnode.node.verdict import driver_support

FACTS = known.facts()
TODAY = "2026-11-24"


def judged(version: Any, pci_id: str = "10de:2330", **more: Any) -> dict[str, tuple[str, str]]:
    capture = spoiled(healthy(), "gpus.*.pci_id", pci_id)
    capture["driver"] = {"vendor": "nvidia", "reported": version, "flavour": "open", **more}
    return {
        row.id: (row.outcome, f"{row.got} {row.remedy}")
        for row in driver_support.findings(capture, FACTS, TODAY)
    }


@pytest.mark.parametrize(
    ("version", "support", "security"),
    [
        ("535.86.05", "mismatch", "mismatch"),
        ("580.95.05", "match", "mismatch"),
        ("580.178.04", "match", "match"),
        ("620.1", "match", "mismatch"),
    ],
)
def test_end_of_life_and_security(version: str, support: str, security: str) -> None:
    found = judged(version)
    assert (found["driver.support"][0], found["driver.security"][0]) == (support, security)


@pytest.mark.parametrize("branch", FACTS["branches"])
def test_advice_to_move_is_followed_and_ends_its_findings(branch: str) -> None:
    version = (FACTS["branches"][branch].get("security") or {}).get("floor") or f"{branch}.1"
    for name in ("driver.support", "driver.security"):
        outcome, text = judged(version)[name]
        moves = re.search(r"ove to a branch that \w+ \w+ \(([\d, ]+)\)", text)
        assert bool(moves) == (outcome == "mismatch"), text
        for other in moves[1].split(", ") if moves else ():
            after = judged(FACTS["branches"][other]["security"]["floor"])
            assert after["driver.support"][0] == after["driver.security"][0] == "match", other


def test_update_of_the_driver_ends_the_finding_of_its_security() -> None:
    _, text = judged("580.95.05")["driver.security"]
    wanted = re.search(r"Update the driver to ([\d.]+) or later", text)
    assert wanted is not None
    assert judged(wanted[1])["driver.security"][0] == "match"


# Capture of a node for each row, and what its fix changes where it names no version of the driver.
KNOWN_BAD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "debian13-blackwell": ("550.163.01", "10de:2901", {}),
    "volta-after-580": ("595.71.05", "10de:1db5", {"reported": "580.178.04"}),
    "kepler-after-470": ("535.309.01", "10de:102d", {"reported": "470.256.02"}),
    "open-on-volta": ("580.178.04", "10de:1db5", {"flavour": "proprietary"}),
    "proprietary-on-blackwell": ("615.71.09", "10de:2901", {"flavour": "open"}),
    "proprietary-615": ("615.71.09", "10de:2330", {"flavour": "open"}),
    "h100-too-old": ("510.47.03", "10de:2331", {}),
    "l40s-h100nvl": ("535.86.05", "10de:26b9", {}),
    "h200-too-old": ("550.54.14", "10de:2335", {}),
    "b200-too-old": ("570.86.15", "10de:2901", {}),
    "b300-too-old": ("575.57.08", "10de:3182", {}),
    "dcgm-3-driver-580": ("580.178.04", "10de:2330", {"dcgm": None}),
    "xid119-525": ("525.60.13", "10de:2330", {}),
    "blackwell-615-fix": ("580.95.05", "10de:2901", {}),
}  # fmt: skip
# No fix is known, it is one of the machine's make, or the row is for declared stacks.
WITHOUT_FIX = {"debian12-open-lag", "mixed-volta-blackwell", "rtxpro6000", "gb10-sva", "gh200-boot", "grace-boot", "xid119-590-595"}  # fmt: skip


@pytest.mark.parametrize("row", KNOWN_BAD)
def test_fix_of_a_known_bad_combination_ends_it(row: str) -> None:
    version, pci_id, changed = KNOWN_BAD[row]
    given: dict[str, Any] = {"flavour": "open" if row != "proprietary-615" else "proprietary"}
    if "flavour" in changed:
        given = {"flavour": {"open": "proprietary", "proprietary": "open"}[changed["flavour"]]}
    if "dcgm" in changed:
        given["dcgm"] = "3.3.9"
    outcome, text = judged(version, pci_id, **given)["driver.known_bad"]
    assert (outcome, row in text) == ("mismatch", True)
    # All fixes that the remedy names are followed: the newest of their versions has each "or later".
    versions = re.findall(r"\b\d{3}\.[\d.]*\d", text.partition("The facts name as fix:")[2])
    newest = max(
        versions, key=lambda text: [int(part) for part in text.split(".")], default=version
    )
    after = {"reported": newest, **given, **changed}
    if changed.get("dcgm", "") is None:
        del after["dcgm"]
    assert row not in judged(after.pop("reported"), pci_id, **after)["driver.known_bad"][1]


def test_every_known_bad_row_has_its_fix_carried_out_or_has_none() -> None:
    assert {row["id"] for row in FACTS["known_bad"]} == set(KNOWN_BAD) | WITHOUT_FIX


@pytest.mark.parametrize(
    "version", ["999.1", "", "N/A", None, {"fault": "unread", "text": "x"}, 580, "580"]
)
def test_a_driver_that_the_facts_do_not_know_is_not_judged(version: Any) -> None:
    assert judged(version) == {}


@pytest.mark.parametrize(
    ("version", "pci_id", "row"),
    [
        ("510.47.03", "10de:2331", "h100-too-old"),
        ("580.95.05", "10de:2901", "blackwell-615-fix"),
        ("580.95.05", "10de:2330", None),
        ("595.71.05", "10de:1db5", "volta-after-580"),
        ("580.95.05", "10de:1db5", "open-on-volta"),
    ],
)
def test_known_bad_driver_and_gpu_is_a_mismatch(version: str, pci_id: str, row: str | None) -> None:
    outcome, text = judged(version, pci_id)["driver.known_bad"]
    assert outcome == ("match" if row is None else "mismatch")
    assert row is None or row in text


@pytest.mark.parametrize(("version", "bad"), [("580.95.05", True), ("575.57.08", False)])
def test_dcgm_3_with_a_driver_of_cuda_13_is_advice(version: str, bad: bool) -> None:
    for more in ({}, {"dcgm": "3.3.9"}):
        _, text = judged(version, "10de:2330", **more)["driver.known_bad"]
        assert ("dcgm-3-driver-580" in text) == (bad and bool(more))


def test_an_unknown_flavour_is_no_known_bad_combination() -> None:
    assert (
        "open-on-volta" not in judged("580.95.05", "10de:1db5", flavour=None)["driver.known_bad"][1]
    )


def test_ranges_are_read_as_the_compatibility_rules_read_them() -> None:
    ranges = {
        item
        for row in known_bad.rows()
        for part in row.match
        for key in ("driver", "branch")
        for item in ([part[key]] if isinstance(part.get(key), str) else part.get(key, ()))
    }
    versions = [
        version
        for name in facts_host.branches()
        for version in (name, *facts_host.branch(name).point_releases)
    ]
    assert len(ranges) > 20
    assert len(versions) > 100
    for wanted in ranges:
        for version in versions:
            assert driver_support.within(version, wanted) == known_bad.in_range(version, wanted), (
                version,
                wanted,
            )


def test_every_packed_row_can_be_decided() -> None:
    ids = {row["id"] for row in FACTS["known_bad"]}
    assert {"h100-too-old", "xid119-525", "gh200-boot"} <= ids
    for row in FACTS["known_bad"]:
        for part in row["match"]:
            assert set(part) <= set(driver_support.CONDITIONS), row["id"]
