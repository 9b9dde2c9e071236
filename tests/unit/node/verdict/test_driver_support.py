"""The driver by the facts: end of life, security, known bad combinations."""

from __future__ import annotations

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
