"""Remedies whose finding needs more than one check to come or to go: several boots, a first check, a slow path, another reader."""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.faults import carried
from tests.faults.run import PERIOD, Bases, Node
from tests.faults.steps import board, documented, log, several
from tests.faults.table import Row, nothing
from tests.faults.test_repaired import findings_of, swapped
from tests.simulators.hardware import machine
from tests.unit.node.captures import class_document, healthy

from goldnode.node.probe import software, storage
from goldnode.node.state import remedy
from goldnode.node.verdict import events, table

GPU1, GPU3 = "0000:18:00.0", "0000:28:00.0"
CONTAINED = (
    "NVRM: Xid (PCI:{}): 95, pid=4242, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"
)
REPEATED = ("gpu.repeated_faults", GPU3)


def booted(node: Node) -> None:
    machine.reboot(node.machine)
    node.elapsed += PERIOD


def test_acknowledged_exchange_of_a_gpu_ends_its_repeated_faults_alone(bases: Bases) -> None:
    node = bases.node("board_h100")
    for turn in range(3):
        gpus = (GPU3,) if turn else (GPU3, GPU1)
        log(*(CONTAINED.format(gpu.rpartition(".")[0]) for gpu in gpus))(node, 1)
        assert (REPEATED in findings_of(node)) == (turn > 0)
        booted(node)
    finding = findings_of(node)[REPEATED]
    assert finding["steps"] == [remedy.REPAIR, remedy.ACKNOWLEDGE]
    assert "have the GPU replaced" in finding["remedy"]
    swapped(3)(node, node.root)
    booted(node)
    row = Row("repeated", "", nothing)
    for left in findings_of(node).values():
        assert carried.take(remedy.ACKNOWLEDGE, node, row, left) is None
    assert findings_of(node) == {}
    # One more fault of the other GPU is its second.
    log(CONTAINED.format(GPU1.rpartition(".")[0]))(node, 1)
    assert ("gpu.repeated_faults", GPU1) in findings_of(node)


def test_process_that_was_ended_is_not_reported_at_the_next_boot(bases: Bases) -> None:
    node = bases.node("board_h100")
    for _ in range(2):
        booted(node)
        board("gpu3.processes=1:70000000000", "gpu3.memory.used=70000000000")(node, 1)
        reported = findings_of(node)[("gpu.processes", None)]
        assert "`fuser -v /dev/nvidia*`, and end it" in reported["remedy"]
    for fault in ("gpu3.processes", "gpu3.memory.used"):
        node.without(fault)
    booted(node)
    assert findings_of(node) == {}


def test_fabric_manager_that_is_installed_and_started_ends_the_finding() -> None:
    document: Any = {**class_document(), "platform": {"nvswitch": True}}
    package = {"nvidia-fabricmanager": "580.95.05-1"}

    def reported(installed: dict[str, str], active: str) -> dict[str, Any]:
        shown = {"nvidia-fabricmanager.service": {"active": active}}
        section = software.fabric_manager(installed, shown)
        capture = {**healthy(), "fabric_manager": section, "simulated": False}
        rows = table.judge(document, capture)
        (finding,) = [row for row in rows if row.id == "fabric.manager"]
        return {"outcome": finding.outcome, "remedy": str(finding.remedy)}

    for installed, active in (({}, "inactive"), (package, "failed")):
        finding = reported(installed, active)
        assert finding["outcome"] == "mismatch"
        assert "in exactly the driver's version" in finding["remedy"]
    assert reported(package, "active")["outcome"] == "match"


def test_server_that_answers_in_time_again_ends_the_finding_of_a_slow_path(bases: Bases) -> None:
    def declared(document: dict[str, Any]) -> None:
        for place in (document, document["health"]):
            paths = {"/scratch/data": {"latency_ms": 20}}
            place["baseline"].setdefault("storage", {})["paths"] = paths

    node = bases.node("board_h100")
    (node.root / "scratch/data").mkdir(parents=True)
    several(documented(declared))(node, 1)
    key = ("storage.path", "/scratch/data")
    with mock.patch.object(storage, "speed", return_value={"latency_ms": 900.0}):
        assert "then check the server" in findings_of(node)[key]["remedy"]
    node.wait(PERIOD)
    with mock.patch.object(storage, "speed", return_value={"latency_ms": 2.0}):
        assert findings_of(node) == {}


def test_reader_that_works_again_ends_the_finding_of_its_section(bases: Bases) -> None:
    node = bases.node("board_h100")
    with mock.patch.object(storage, "devices", side_effect=OSError(5, "Input/output error")):
        reported = findings_of(node)
        # The remedy shows the error of the reader, and changes nothing.
        finding = reported[("capture.storage", None)]
        assert "`goldnode-node capture`" in finding["remedy"]
        code, printed, _ = node.command("capture")
        assert (code, "Input/output error" in printed) == (0, True)
    node.wait(PERIOD)
    assert findings_of(node) == {}


def test_event_of_another_version_is_left_to_the_program_that_read_it() -> None:
    capture = {
        **healthy(),
        "events": {"boot_id": "boot-1", "rows": [{"kind": "later", "count": 1}]},
    }
    rows = events.judge(class_document(), capture, {})[0]
    (finding,) = [row for row in rows if row.id == "events.unknown"]
    assert (finding.outcome, "`goldnode-node check`" in str(finding.remedy)) == (
        "could_not_read",
        True,
    )
    capture["events"]["rows"] = []
    assert [
        row for row in events.judge(class_document(), capture, {})[0] if row.id == "events.unknown"
    ] == []
