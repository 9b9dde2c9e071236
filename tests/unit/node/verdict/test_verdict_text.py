"""The verdict as a person reads it."""

from __future__ import annotations

from typing import Any

from goldnode.node.verdict.report import verdict_table


def verdict(*findings: dict[str, Any]) -> dict[str, Any]:
    base = {
        "severity": "drain",
        "expected": "it",
        "got": "the driver hangs",
        "remedy": "Look.",
        "subject": None,
        "evidence": (),
        "blast": None,
    }
    rows = [{**base, **finding} for finding in findings]
    counts = {"match": 0, "could_not_read": len(rows)}
    return {
        "simulated": False,
        "class": "c",
        "time": "now",
        "status": "drain",
        "exit_code": 2,
        "counts": counts,
        "findings": rows,
    }


def silent(count: int) -> list[dict[str, Any]]:
    return [{"id": f"gpu.item{number}", "outcome": "could_not_read"} for number in range(count)]


def test_items_unread_for_one_reason_are_reported_together() -> None:
    text = verdict_table(
        verdict({"id": "gpu.library", "outcome": "could_not_read", "remedy": "Reboot."}, *silent(5))
    )
    assert text.count("the driver hangs") == 2
    assert "5 items: Look." in text
    assert "gpu.item0 gpu.item1 gpu.item2 gpu.item3 gpu.item4" in text
    assert "gpu.library: Reboot." in text


def test_a_few_have_a_row_each() -> None:
    text = verdict_table(verdict(*silent(3)))
    assert text.count("the driver hangs") == 3
    assert "items:" not in text
