"""Suppressions: what they cover, what they never cover, and what they are worth after their last day."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.node.state.finding import (
    ELSEWHERE,
    MATCH,
    MISMATCH,
    NOT_EXPOSED,
    SUPPRESSED,
    UNREAD,
    Finding,
)
from goldnode.node.state.remedy import PERSON, Remedy
from goldnode.node.verdict import check, suppress

ROW: dict[str, Any] = {
    "id": "net.*",
    "owner": "ann",
    "reason": "a cable is on order",
    "expires": "2026-12-01",
    "severity": "degraded",
}
TODAY = "2026-11-22"


def finding(
    outcome: str = MISMATCH,
    severity: str = "degraded",
    name: str = "net.mtu",
    subject: str | None = "eth0",
) -> Finding:
    return Finding(
        name,
        outcome=outcome,
        expected="9000",
        got="1500",
        remedy=Remedy("Set it.", PERSON),
        subject=subject,
        severity=severity,
    )


@pytest.mark.parametrize(
    ("found", "row", "outcome", "code"),
    [
        (finding(), {}, SUPPRESSED, 0),
        (finding(), {"id": "net.mtu", "subject": "eth?"}, SUPPRESSED, 0),
        (finding(), {"expires": TODAY}, SUPPRESSED, 0),
        (finding(NOT_EXPOSED), {}, SUPPRESSED, 0),
        (finding(MISMATCH, "drain"), {"severity": "drain"}, SUPPRESSED, 0),
        # not covered
        (finding(), {"id": "net.drops"}, MISMATCH, 1),
        (finding(), {"subject": "eth1"}, MISMATCH, 1),
        (finding(), {"expires": "2026-11-21"}, MISMATCH, 1),
        (finding(MISMATCH, "drain"), {}, MISMATCH, 2),
        (finding(UNREAD), {}, UNREAD, 3),
        (finding(ELSEWHERE), {}, ELSEWHERE, 3),
        (finding(MATCH), {}, MATCH, 0),
        (
            finding(MISMATCH, "drain", "gpu.ids", None),
            {"id": "gpu.*", "severity": "drain"},
            MISMATCH,
            4,
        ),
        (finding(MISMATCH, "degraded", "memory.state", None), {"id": "*emory.state"}, MISMATCH, 1),
        # hostile
        (finding(), {"id": None}, MISMATCH, 1),
        (finding(), {"expires": 20991231}, MISMATCH, 1),
        (finding(), {"id": "["}, MISMATCH, 1),
    ],
)
def test_row_suppresses_only_findings_that_it_covers(
    found: Finding, row: dict[str, Any], outcome: str, code: int
) -> None:
    after = suppress.apply([found], [{**ROW, **row}], TODAY)
    assert [item.outcome for item in after] == [outcome]
    assert check.exit_code(after) == code


def test_suppressed_finding_names_owner_expiry_and_reason() -> None:
    (held,) = suppress.apply([finding()], [ROW], TODAY)
    assert held.evidence == ("accepted by ann until 2026-12-01: a cable is on order",)
    (past,) = suppress.apply([finding()], [ROW], "2026-12-02")
    assert past.evidence == (
        "was accepted by ann until 2026-12-01, which is past: a cable is on order",
    )


def test_of_two_rows_the_one_that_holds_counts() -> None:
    (held,) = suppress.apply([finding()], [{**ROW, "expires": "2026-01-01"}, ROW], TODAY)
    assert held.outcome == SUPPRESSED


@pytest.mark.parametrize("rows", [None, {}, "x", [None, 3, "x", {}]])
def test_rows_of_no_shape_cover_nothing(rows: Any) -> None:
    assert suppress.apply([finding()], rows, TODAY) == [finding()]
