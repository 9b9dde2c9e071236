"""Remedies of faults in the kernel's log, carried out: after the restart or the acknowledgement that one ends with, it is gone.

A restart of the node begins a new log. Where a person only repairs or installs something, the log still has the line, so the
remedy must end with an acknowledgement. Without one the node would stay out for good.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.node.verdict.test_log_cases import CASES, DOCUMENT

from goldnode.facts.log_lines import KernelLine, lines
from goldnode.node.probe import events
from goldnode.node.state import remedy
from goldnode.node.state.finding import MISMATCH, Finding
from goldnode.node.verdict.events import acknowledge, judge

FAULTS = [case for case in CASES if case["answer"] != "none"]
ROWS = [row for row in lines().values() if row.remedy and not row.limit]
# Kinds of messages that neither table has.
OTHERS = {
    "pcie.slot_down": ["pcieport 0000:00:01.0: pciehp: Slot(5): Link Down"],
    "pci.bus_lost": [
        "mlx5_core 0000:41:00.0: Unable to change power state from D3cold to D0, device inaccessible"
    ],
    "memory.oom": [
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
        "task_memcg=/system.slice/slurmd.service,task=slurmd,pid=12,uid=0",
        "Out of memory: Killed process 12 (slurmd) total-vm:1kB, anon-rss:1kB",
    ],
    "driver.api_mismatch": [
        "NVRM: API mismatch: the client has the version 535.247.01, but",
        "NVRM: this kernel module has the version 535.261.03.  Please",
    ],
    "storage.io_error": ["nvme0n1: I/O error, dev nvme0n1, sector 5"],
    "machine.previous_boot": [
        "BERT: Error records from previous boot:",
        "[Hardware Error]: event severity: fatal",
        "[Hardware Error]:   section_type: IA32/X64 processor error",
    ],
}
ENDS_THE_BOOT = {remedy.REBOOT, remedy.REPAIR}


def capture_of(text: list[str], case: dict[str, Any] | None = None) -> dict[str, Any]:
    section = {**events.parsed("\n".join(text)), "boot_id": "boot-1"}
    for at, row in enumerate(section["rows"], 1):
        # The text of a log has no numbers, and the records of the kernel have.
        row.update(seq=at, last_seq=at + row["count"] - 1)
    capture = {"source": "live", "uptime": 1e6, "gpus": [], "gpu_error": None, "events": section}
    return {**capture, **(case or {}).get("capture", {})}


def bad(capture: dict[str, Any], memory: dict[str, Any]) -> list[Finding]:
    judged = judge(DOCUMENT, capture, memory)[0]
    return [finding for finding in judged if finding.outcome == MISMATCH]


def left(capture: dict[str, Any]) -> list[str]:
    """Carry the remedies of all findings out, one after the other. Return the remedies of those that are still there."""
    memory: dict[str, Any] = {}
    found = bad(capture, memory)
    assert found, "there is no fault"
    for finding in found:
        steps = getattr(finding.remedy, "steps", ())
        if ENDS_THE_BOOT & set(steps):
            return []  # a new boot has a new log
        if remedy.ACKNOWLEDGE in steps:
            acked, _ = acknowledge(capture, memory, finding.id, finding.subject)
            memory = {"events": acked}
    return [f"{finding.id}: {finding.remedy}" for finding in bad(capture, memory)]


@pytest.mark.parametrize("case", FAULTS, ids=[case["source"] for case in FAULTS])
def test_remedies_of_a_real_log_end_its_faults(case: dict[str, Any]) -> None:
    assert left(capture_of(case["lines"], case)) == []


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_remedy_of_a_row_of_the_log_table_ends_its_fault(row: KernelLine) -> None:
    assert left(capture_of([f"[   12.5] {row.examples[0]}"])) == []


@pytest.mark.parametrize(("name", "text"), OTHERS.items(), ids=list(OTHERS))
def test_remedy_of_another_message_ends_its_fault(name: str, text: list[str]) -> None:
    capture = capture_of([f"[   12.{at}] {line}" for at, line in enumerate(text)])
    assert [finding.id for finding in bad(capture, {})] == [name]
    assert left(capture) == []
