"""Real lines of kernel logs (tests/cases/logs/lines.yml), read and judged: a fault gets its severity, and a harmless line none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.case_tables import table

from goldnode.facts import health, xid
from goldnode.node.probe import events
from goldnode.node.state.finding import MISMATCH
from goldnode.node.verdict.events import judge

CASES = table("logs/lines.yml")
DOCUMENT: dict[str, Any] = {
    "xid": xid.table(),
    "health": {"limits": {name: row.value for name, row in health.limits().items()}},
}
WORST = ("none", "degraded", "drain")


@pytest.mark.parametrize("case", CASES, ids=[case["source"] for case in CASES])
def test_a_real_log_gets_its_verdict(case: dict[str, Any]) -> None:
    section = {**events.parsed("\n".join(case["lines"])), "boot_id": "boot-1"}
    capture = {"source": "live", "uptime": 1e6, "gpus": [], "gpu_error": None, "events": section}
    judged = judge(DOCUMENT, {**capture, **case.get("capture", {})}, {})[0]
    bad = [finding for finding in judged if finding.outcome == MISMATCH]
    answer = max([finding.severity for finding in bad], key=WORST.index, default="none")
    assert answer == case["answer"], [finding for finding in judged if finding.evidence]
    if "findings" in case:
        assert [[finding.id, finding.subject] for finding in bad] == case["findings"]
