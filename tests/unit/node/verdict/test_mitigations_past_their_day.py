"""A mitigation whose last day is past is a finding on the node, until site.yml has removed it."""

from __future__ import annotations

import pytest

from goldnode.node.state.finding import MATCH, MISMATCH
from goldnode.node.verdict import mitigations

ROW = {"cve": "CVE-2026-31431", "owner": "ada", "expires": "2026-12-31", "reason": "x"}


@pytest.mark.parametrize(
    ("rows", "today", "outcomes"),
    [
        (None, "2026-12-31", []),
        ([], "2026-12-31", []),
        ([ROW], "2026-12-31", [MATCH]),
        ([ROW], "2027-01-01", [MISMATCH]),
        ([{**ROW, "expires": "2027-06-30"}, ROW], "2027-01-01", [MISMATCH]),
        ([{"cve": 1}], "2027-01-01", []),
        ("damaged", "2027-01-01", []),
    ],
)
def test_mitigation_is_a_finding_after_its_last_day(
    rows: object, today: str, outcomes: list[str]
) -> None:
    found = mitigations.findings(rows, today)
    assert [one.outcome for one in found] == outcomes
    if outcomes == [MISMATCH]:
        assert found[0].got == "CVE-2026-31431 of ada was until 2026-12-31"
        assert found[0].remedy is not None
