"""Each rule once on a healthy node, where it says nothing, and once on one that is not, where it says what, and how badly. And the traps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.unit.node import captures
from tests.unit.node.captures import (
    LOST,
    NO,
    class_document,
    healthy,
    idle,
    interrupts,
    spoiled,
)

from goldnode.node.probe.values import not_exposed, unread
from goldnode.node.state.finding import (
    DEFERRED,
    ELSEWHERE,
    MATCH,
    MISMATCH,
    NOT_EXPOSED,
    UNREAD,
    Finding,
)
from goldnode.node.verdict import check, deltas, table

G3 = "0000:5d:00.0"
PORT3 = "0000:5c:01.0"

# Everything that a class can declare, right for the healthy node.
BASELINE: dict[str, Any] = {
    "gpu": {
        "vbios": ["96.00.5E.00.01"],
        "subsystem_ids": ["10de:16c1"],
        "memory_mib": [81559],
        "pcie": {"gen": 5, "width": 16},
        "nvlinks": 18,
        "bar1_mib": 131072,
        "max_clocks": {"sm_mhz": 1980, "memory_mhz": 2619},
        "numa": {address: index // 4 for index, address in enumerate(captures.addresses())},
    },
    "cpu": {"sockets": 2, "cores": 96, "smt": False},
    "memory": {"total_gib": 2014, "tolerance": 0.01},
    "network": {
        "eth0": {"mtu": 9000, "speed_mbps": 400000, "numa_node": 0, "firmware": ["28.39.1002"]}
    },
    "infiniband": {"mlx5_0": {"rate_gbps": 400, "ports": 1, "firmware": ["28.39.1002"]}},
    "storage": {
        "mounts": {"/": {"free_gib": 100, "type": "ext4"}},
        "devices": {"count": 1, "models": ["Example SSD"]},
        "paths": {"/data": {"latency_ms": 20, "read_mb_s": 500}},
    },
    "modules": ["nvidia-uvm"],
    "services": ["nvidia-persistenced.service"],
}


def declared() -> Any:
    return class_document(baseline=BASELINE)


def node() -> dict[str, Any]:
    return spoiled(healthy(), "storage.paths", {"/data": {"latency_ms": 2, "read_mb_s": 3000}})


def judged(
    document: Any, capture: dict[str, Any], memory: dict[str, Any] | None = None
) -> list[Finding]:
    return table.judge(document, capture, deltas.step(memory or {}, capture)[0])


def wrong(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.outcome != MATCH]


def test_a_healthy_node_matches_whether_all_or_nothing_is_declared() -> None:
    for document in (class_document(), declared()):
        found = judged(document, node())
        assert not wrong(found), wrong(found)
        assert check.exit_code(found) == 0
        assert len({(item.id, item.subject) for item in found}) == len(found)
    silent = {entry.kind.id for entry in table.TABLE} - {
        item.id for item in judged(declared(), node())
    }
    expected = {
        "gpu.uuid_known",
        "gpu.clock",
        "gpu.retired_pages",
        "gpu.modes",
        "gpu.ras",
        "gpu.ecc.corrected",
        "pcie.link",
        "net.drops",
        "net.flaps",
    }
    assert silent == expected, (
        f"on the healthy node these rules have no finding, or one unexpectedly: {sorted(silent ^ expected)}; "
        "declare the value in BASELINE, and give the node its reading in tests/unit/node/captures.py"
    )


def loaded(*gpus: int) -> tuple[Any, ...]:
    """Changes by which these GPUs are at work at their full clock; all of them without a number."""
    changes: list[Any] = []
    for gpu in gpus or ("*",):
        changes += [f"gpus.{gpu}.utilization.gpu", 98, f"gpus.{gpu}.throttle.mask", 0]
        changes += [f"gpus.{gpu}.clocks.current.graphics_mhz", 1980]
    return tuple(changes)


def unexplained(**more: Any) -> tuple[Any, ...]:
    """Changes by which one GPU has 60 GiB in use without a process."""
    values = {"memory.used_mib": 61440, "processes": [], "other_processes": 0, **more}
    return tuple(part for path, value in values.items() for part in (f"gpus.3.{path}", value))


def clock_of(mhz: int) -> tuple[str, int]:
    """A change of one GPU's clock."""
    return "gpus.3.clocks.current.graphics_mhz", mhz


def cards(*versions: str, board: str = "MT_0000000970") -> dict[str, Any]:
    """InfiniBand cards of one board id, beside the one that the class declares."""
    own = healthy()["infiniband"]["mlx5_0"]
    rows = {
        f"mlx5_{n}": {**own, "address": f"0000:4{n}:00.0", "board": board, "firmware": version}
        for n, version in enumerate(versions, 3)
    }
    return {"mlx5_0": own, **rows}


# id, what is otherwise, outcome, severity, whether it is found only where it was declared
CASES: list[tuple[str, tuple[Any, ...], str, str, bool]] = [
    # the library, and GPUs that are gone
    ("gpu.library", ("gpu_error", unread("the driver did not answer within 20 s")), UNREAD, "drain", False),
    ("gpu.library", ("gpu_error", unread("Driver Not Loaded", 9)), MISMATCH, "drain", False),
    ("gpu.library", ("gpu_error", unread("Driver/library version mismatch", 18)), MISMATCH, "drain", False),
    ("gpu.library", ("gpus", unread("it hangs")), UNREAD, "drain", False),
    ("gpu.library", ("gpus", None), UNREAD, "drain", False),
    ("gpu.lost", ("gpus.3", {"address": G3, "index": 3, "lost": True}), MISMATCH, "drain", False),
    ("gpu.lost", (f"pci/{G3}/gone", True), MISMATCH, "drain", False),
    ("gpu.lost", ("gpus.3", unread("the driver hung before its turn")), UNREAD, "drain", False),
    ("gpu.visible", ("gpus", captures.healthy()["gpus"][:7]), MISMATCH, "drain", False),
    ("gpu.visible", ("gpus.3.index", None), MISMATCH, "drain", False),
    ("gpu.visible", ("devices", {"/dev/nvidia0": "0666", "/dev/nvidiactl": "0666"}), MISMATCH, "drain", False),
    # identity
    ("gpu.uuid", ("gpus.3.uuid", captures.gpu(2)["uuid"]), MISMATCH, "drain", False),
    ("gpu.serial", ("gpus.3.serial", captures.gpu(2)["serial"]), MISMATCH, "degraded", False),
    ("gpu.visible", ("gpus.3.pci_id", "10de:2331"), MISMATCH, "drain", False),
    ("gpu.visible", ("gpus.3.address", "0000:5e:00.0"), MISMATCH, "drain", False),
    ("gpu.uuid_known", ("gpus.3.uuid", "GPU-????????-????"), MISMATCH, "drain", False),
    ("gpu.board", ("gpus.3.subsystem_id", "10de:1839"), MISMATCH, "drain", True),
    ("gpu.memory", ("gpus.3.memory.total_mib", 73000), MISMATCH, "drain", False),
    ("gpu.memory", ("gpus.3.memory.total_mib", 81000), MISMATCH, "drain", False),
    ("gpu.memory", ("gpus.*.memory.total_mib", 73000), MISMATCH, "drain", False),
    ("gpu.memory", ("gpus.*.memory.total_mib", 81000), MISMATCH, "drain", True),
    ("gpu.memory", ("gpus.3.memory.total_mib", NO), NOT_EXPOSED, "drain", False),
    ("gpu.vbios", ("gpus.3.vbios", "96.00.74.00.01"), MISMATCH, "degraded", False),
    ("gpu.vbios", ("gpus.*.vbios", "96.00.74.00.01"), MISMATCH, "degraded", True),
    ("gpu.bar1", ("gpus.3.memory.bar1_mib", 256), MISMATCH, "drain", True),
    ("gpu.memory", ("gpus.3.memory.total_mib", 97871), MISMATCH, "drain", False),
    ("gpu.max_clocks", ("gpus.3.clocks.max.sm_mhz", 1755), MISMATCH, "degraded", False),
    ("gpu.max_clocks", ("gpus.*.clocks.max.sm_mhz", 1755), MISMATCH, "degraded", True),
    ("gpu.max_clocks", ("gpus.3.clocks.max.sm_mhz", LOST), UNREAD, "degraded", True),
    ("gpu.inforom", ("gpus.3.inforom.valid", False), MISMATCH, "degraded", False),
    ("driver.agree", ("driver.library", "580.105.08"), MISMATCH, "drain", False),
    # errors
    ("gpu.recovery_action", ("gpus.3.recovery_action", "gpu_reset"), MISMATCH, "drain", False),
    ("gpu.recovery_action", ("gpus.3.recovery_action", "something new"), MISMATCH, "drain", False),
    ("gpu.ecc.uncorrected", ("gpus.3.ecc.volatile.uncorrected", 1), MISMATCH, "drain", False),
    ("gpu.ecc.uncorrected", ("gpus.3.ecc.volatile.uncorrected", NO), NOT_EXPOSED, "drain", False),
    ("gpu.ecc.uncorrected", ("gpus.3.ecc.volatile.uncorrected", unread("Unknown Error", 999)), UNREAD, "drain", False),
    ("gpu.ecc.uncorrected", ("gpus.3.ecc", None), UNREAD, "drain", False),
    ("gpu.ecc.uncorrected", ("gpus.3.ecc.volatile.uncorrected", "1"), UNREAD, "drain", False),
    ("gpu.sram", ("gpus.3.ecc.sram.threshold_exceeded", True), MISMATCH, "drain", False),
    ("gpu.remap.pending", ("gpus.3.remapped_rows.pending", True), MISMATCH, "drain", False),
    ("gpu.remap.failure", ("gpus.3.remapped_rows.failure", True), MISMATCH, "drain", False),
    ("gpu.remap.spare", ("gpus.3.remapped_rows.histogram.none", 1), MISMATCH, "degraded", False),
    ("gpu.remap.spare", ("gpus.3.remapped_rows.uncorrectable", 512), MISMATCH, "degraded", False),
    ("gpu.retired_pages", ("gpus.3.retired_pages", {"single_bit": 0, "double_bit": 1, "pending": True}), MISMATCH, "drain", False),
    ("gpu.retired_pages", ("gpus.3.retired_pages", {"single_bit": 60, "double_bit": 3, "pending": False}), MISMATCH, "drain", False),
    ("gpu.retired_pages", ("gpus.3.retired_pages", {"single_bit": 15, "double_bit": 0, "pending": False}), MISMATCH, "degraded", False),
    ("gpu.repair", ("gpus.3.repair.tpc_pending", True), MISMATCH, "drain", False),
    ("gpu.repair", ("gpus.3.unrepairable_memory", True), MISMATCH, "drain", False),
    ("gpu.modes", ("gpus.3.ecc.pending", False), MISMATCH, "degraded", False),
    ("gpu.modes", ("gpus.3.mig", {"current": True, "pending": True, "instances": []}), MISMATCH, "degraded", False),
    ("gpu.ras", ("gpus.3.ras", {"umc": {"ue": 1, "ce": 0}}), MISMATCH, "drain", False),
    ("gpu.throttle", ("gpus.3.throttle.mask", 0x8 | 0x40), MISMATCH, "drain", False),
    ("gpu.throttle", ("gpus.3.throttle.mask", 0x20), MISMATCH, "degraded", False),
    ("gpu.throttle", ("gpus.3.throttle.mask", LOST), UNREAD, "drain", False),
    ("gpu.throttle", ("gpus.3.throttle", {"status": 1 << 32, "active": ["TEMP_GPU"], "kinds": ["thermal"]}), MISMATCH, "drain", False),
    ("gpu.throttle.brake", ("gpus.3.throttle.mask", 0x80), MISMATCH, "degraded", False),
    ("gpu.throttle.brake", ("gpus.3.throttle.mask", 0x88), MISMATCH, "drain", False),
    ("gpu.throttle", ("gpus.3.throttle.mask", 0x8), MISMATCH, "drain", False),
    ("gpu.clock", (*loaded(), *clock_of(345)), MISMATCH, "degraded", False),
    ("gpu.clock", (*loaded(3), *clock_of(345)), MISMATCH, "degraded", False),
    ("gpu.held", ("gpus.3.processes", [{"pid": 7, "memory_mib": 61440, "state": "gone"}]), MISMATCH, "drain", False),
    ("gpu.held", ("gpus.3.processes", [{"pid": 7, "memory_mib": 500, "state": "zombie"}]), MISMATCH, "degraded", False),
    ("gpu.held", ("gpus.3.processes", LOST), UNREAD, "drain", False),
    ("gpu.held", unexplained(), DEFERRED, "drain", False),
    ("gpu.power.enforced", ("gpus.3.power.enforced_w", 500.0), MISMATCH, "degraded", False),
    ("gpu.temperature", ("gpus.3.temperature.margin_c", 0), MISMATCH, "degraded", False),
    ("gpu.temperature", ("gpus.3.temperature.margin_c", 1), MISMATCH, "degraded", False),
    ("gpu.temperature", ("gpus.3.temperature.margin_c", LOST), UNREAD, "degraded", False),
    ("gpu.temperature", ("gpus.3.temperature", {"margin_c": NO, "gpu_c": 91, "slowdown_c": 92}), MISMATCH, "degraded", False),
    ("gpu.temperature", ("gpus.3.temperature", {"margin_c": NO, "gpu_c": 93, "slowdown_c": 92}), MISMATCH, "degraded", False),
    # links
    ("pcie.width", ("gpus.3.pcie.width.current", 8), MISMATCH, "drain", False),
    ("pcie.width", ("gpus.3.pcie.width", {"current": 8, "max": 8}), MISMATCH, "drain", False),
    ("pcie.width", (f"pci/{G3}/link/width", 8), MISMATCH, "drain", False),
    ("pcie.width", (f"pci/{PORT3}/link/width", 8), MISMATCH, "drain", False),
    ("pcie.width", (f"pci/{G3}/link/width", 255), MISMATCH, "drain", False),
    ("pcie.gen", ("gpus.*.pcie.gen", {"current": 4, "max": 4, "device_max": 5}), MISMATCH, "drain", False),
    ("pcie.gen", (f"pci/{PORT3}/link", captures.link(4)), MISMATCH, "drain", False),
    ("pcie.gen", ("gpus.3.pcie.gen.current", 2, f"pci/{G3}/link/gen", 2, "gpus.3.utilization.gpu", 95), MISMATCH, "drain", False),
    ("pcie.gen", ("gpus.3.pcie.gen.current", 2, f"pci/{G3}/link/gen", 2), DEFERRED, "drain", False),
    ("pcie.gen", ("gpus.3.pcie.gen", {"current": 1, "max": 4, "device_max": 5}, f"pci/{G3}/link/gen", 1, "gpus.3.pstate", 8), MISMATCH, "drain", False),
    ("pcie.aer", (f"pci/{PORT3}/aer", {"correctable": 9000, "nonfatal": 0, "fatal": 0, "counters": {"RxErr": 9000}}), MISMATCH, "degraded", False),
    ("pcie.aer", (f"pci/{PORT3}/aer", {"correctable": 0, "nonfatal": 0, "fatal": 1}), MISMATCH, "drain", False),
    ("pcie.replay", ("gpus.3.pcie.replay", 100000), MISMATCH, "degraded", False),
    ("nvlink.active", ("gpus.3.nvlink.links.7.active", False), MISMATCH, "drain", False),
    ("nvlink.active", ("gpus.*.nvlink.links", captures.gpu()["nvlink"]["links"][:12]), MISMATCH, "drain", False),
    ("nvlink.active", ("gpus.3.nvlink", NO), NOT_EXPOSED, "drain", False),
    ("nvlink.active", ("gpus.3.nvlink.links.7.active", LOST), UNREAD, "drain", False),
    ("nvlink.errors", ("gpus.3.nvlink.links.7.errors.replay", 9000), MISMATCH, "degraded", False),
    ("fabric.state", ("gpus.*.fabric.state", "in_progress"), MISMATCH, "drain", False),
    ("fabric.state", ("gpus.3.fabric.status", "Failure"), MISMATCH, "drain", False),
    ("fabric.state", ("gpus.*.fabric", {"state": "not_supported"}), UNREAD, "drain", False),
    ("fabric.state", ("gpus.3.fabric", LOST), UNREAD, "drain", False),
    ("fabric.manager", ("fabric_manager.active", False), MISMATCH, "drain", False),
    ("gpu.numa", (f"numa/affinity/{G3}/node", 1), MISMATCH, "degraded", True),
    ("gpu.numa", ("numa", unread("the reader failed")), UNREAD, "degraded", True),
    # the host
    ("cpu.layout", ("cpu.sockets", 1), MISMATCH, "drain", True),
    ("cpu.layout", ("cpu.smt", True), MISMATCH, "drain", True),
    ("cpu.microcode", ("cpu.microcode", ["0x2b0005c0", "0x2b000461"]), MISMATCH, "degraded", False),
    ("memory.total", ("memory.total_mib", 1998000), MISMATCH, "drain", True),
    ("memory.total", ("memory", unread("the reader failed")), UNREAD, "drain", True),
    ("memory.edac", ("memory.edac.mc0.ue", 1), MISMATCH, "drain", False),
    ("memory.edac", ("memory.edac.mc0.ce", 100000), MISMATCH, "degraded", False),
    ("net.speed", ("network.eth0.speed_mbps", 100000), MISMATCH, "drain", True),
    ("net.state", ("network.eth0.state", "down"), MISMATCH, "drain", True),
    ("net.state", ("network", {}), MISMATCH, "drain", True),
    ("net.mtu", ("network.eth0.mtu", 1500), MISMATCH, "degraded", True),
    ("net.mtu", ("network.eth0.mtu", None), UNREAD, "degraded", True),
    ("net.numa", ("network.eth0.numa_node", 1), MISMATCH, "degraded", True),
    ("net.irq", ("numa.interrupts", interrupts(range(48, 54))), MISMATCH, "degraded", False),
    ("net.irq", ("numa.interrupts", interrupts(["48-95"] * 6)), MISMATCH, "degraded", False),
    ("net.firmware", ("network.eth0.firmware", "20.1"), MISMATCH, "degraded", True),
    ("net.firmware", ("infiniband", cards("28.39.1002", "28.39.1002", "28.36.1010")), MISMATCH, "degraded", False),
    ("ib.port", ("infiniband.mlx5_0.ports.1.state", "down"), MISMATCH, "drain", True),
    ("ib.port", ("infiniband.mlx5_0.ports.1.rate_gbps", 200), MISMATCH, "drain", True),
    ("ib.port", ("infiniband", {}), MISMATCH, "drain", True),
    ("storage.mount", ("storage.mounts", {}), MISMATCH, "drain", True),
    ("storage.mount", ("storage.mounts", {"/": {**healthy()["storage"]["mounts"]["/"], "readonly": True}}), MISMATCH, "drain", False),
    ("storage.mount", ("storage.mounts", {"/": {**healthy()["storage"]["mounts"]["/"], "free_mib": 100}}), MISMATCH, "degraded", False),
    ("storage.mount", ("storage.mounts", {"/": {**healthy()["storage"]["mounts"]["/"], "inodes_free_percent": 0.5}}), MISMATCH, "degraded", False),
    ("storage.mount", ("storage.mounts", {"/": unread("it hangs")}), UNREAD, "drain", True),
    ("storage.devices", ("storage.devices", {}), MISMATCH, "drain", True),
    ("storage.health", ("storage.devices.nvme0n1.smart.critical_warning", 1), MISMATCH, "degraded", False),
    ("storage.health", ("storage.devices.nvme0n1.smart.critical_warning", 8), MISMATCH, "drain", False),
    ("storage.health", ("storage.devices.nvme0n1.smart", LOST), UNREAD, "degraded", False),
    ("storage.health", ("storage.devices.nvme0n1.smart.percentage_used", 104), MISMATCH, "degraded", False),
    ("storage.health", ("storage.raid", {"md0": {"level": "raid1", "state": "active", "devices": 2, "active": 1}}), MISMATCH, "degraded", False),
    ("storage.path", ("storage.paths", {"/data": {"latency_ms": 90, "read_mb_s": 3000}}), MISMATCH, "degraded", True),
    ("storage.path", ("storage.paths", {}), DEFERRED, "degraded", True),
    ("storage.path", ("storage.paths", {"/data": unread("it hangs")}), UNREAD, "degraded", True),
    ("host.pressure", ("pressure.io.full_avg10", 75.0), MISMATCH, "degraded", False),
    ("time.sync", ("time_sync.synchronised", False), MISMATCH, "degraded", False),
    ("module.loaded", ("os.modules", ["nvidia"]), MISMATCH, "drain", True),
    ("service.active", ("services", {}), UNREAD, "degraded", True),
    ("runtime.cdi_paths", ("runtime.cdi", [{"file": "/etc/cdi/n.yaml", "kind": "nvidia.com/gpu", "missing": ["/dev/nvidia9"]}]), MISMATCH, "degraded", False),
    ("runtime.cdi_paths", ("runtime.cdi", [{"file": "/etc/cdi/n.yaml", "kind": "nvidia.com/gpu", "wrong": ["/dev/a is 1:3"]}]), MISMATCH, "degraded", False),
    ("runtime.cdi_paths", ("runtime.cdi", [{"file": "/etc/cdi/n.yaml", "kind": None, "gpu": True, "error": unread("line 2")}]), UNREAD, "degraded", False),
    ("capture.network", ("network", unread("the reader failed: KeyError")), UNREAD, "degraded", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "outcome", "severity", "only_declared"), CASES)
def test_each_rule_finds_its_fault(
    name: str, changes: tuple[Any, ...], outcome: str, severity: str, only_declared: bool
) -> None:
    capture = spoiled(node(), *changes)
    found = [
        finding
        for finding in judged(declared(), capture)
        if finding.id == name and finding.outcome == outcome
    ]
    assert found, wrong(judged(declared(), capture))
    assert {finding.severity for finding in found} == {severity}
    assert all(finding.remedy and "SUBJECT" not in finding.remedy for finding in found)
    assert check.exit_code(found) == (
        {"drain": 2, "degraded": 1}[severity]
        if outcome == MISMATCH
        else 0
        if outcome == DEFERRED
        else 3
    )
    undeclared = [
        finding
        for finding in judged(class_document(), capture)
        if finding.id == name and finding.outcome == outcome
    ]
    assert bool(undeclared) != only_declared


def test_every_rule_has_its_fault() -> None:
    later = {
        "gpu.ecc.aggregate",
        "gpu.ecc.corrected",
        "gpu.processes",
        "pcie.link",
        "net.drops",
        "net.flaps",
        "host.blocked",
    }  # below, and in test_deltas.py
    rules = {entry.kind.id for entry in table.TABLE}
    cases = {case[0] for case in CASES if not case[0].startswith("capture.")} | later
    assert not rules - cases, f"CASES of this file has no row for the rules {sorted(rules - cases)}"
    assert not cases - rules, f"CASES of this file names what is no rule: {sorted(cases - rules)}"


# -- traps: what looks like a fault and is none


def past(capture: dict[str, Any]) -> dict[str, Any]:
    """H2: one remapped row and one uncorrected error in the card's life, nothing pending."""
    return spoiled(
        capture,
        "gpus.3.ecc.aggregate.uncorrected",
        1,
        "gpus.3.remapped_rows.uncorrectable",
        1,
        "gpus.3.remapped_rows.histogram",
        {"max": 639, "high": 1, "partial": 0, "low": 0, "none": 0},
    )


TRAPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("H0 at full generation", class_document(), healthy()),
    ("H1 at rest", class_document(), idle(healthy())),
    ("H1 at rest, all declared", declared(), idle(node())),
    ("H2 the past of a card", class_document(), past(healthy())),
    ("software power cap under load", class_document(), spoiled(healthy(), "gpus.*.throttle.mask", 0x4, "gpus.*.utilization.gpu", 99)),
    ("no SRAM status with an older driver", class_document(), spoiled(healthy(), "gpus.*.ecc.sram", not_exposed("Function Not Found", 13))),
    ("no recovery action with an older driver", class_document(), spoiled(healthy(), "gpus.*.recovery_action", not_exposed("Not Found", 13))),
    ("no AER and no PCI at all in a virtual machine", class_document(), spoiled(healthy(), "pci", {}, "identity.virtual", "kvm")),
    (
        "a hypervisor's own ports",
        class_document(),
        spoiled(healthy(), "identity.virtual", "kvm", f"pci/{PORT3}/link", {"gen": 1, "max_gen": 1, "width": 1, "max_width": 1}),
    ),
    (
        "links that never leave the package",
        class_document(),
        spoiled(healthy(), f"pci/{G3}/on_package", True, f"pci/{G3}/link", captures.link(1, 1), "gpus.3.pcie", NO),
    ),
    (
        "12 of 18 links by design",
        class_document(baseline={"gpu": {"nvlinks": 12, "reason": "bridged"}}),
        spoiled(healthy(), "gpus.*.nvlink.links", captures.gpu()["nvlink"]["links"][:12]),
    ),
    (
        "x8 in one slot by design",
        class_document(baseline={"gpu": {"overrides": [{"address": G3, "pcie": {"width": 8}, "reason": "an x8 riser"}]}}),
        spoiled(healthy(), "gpus.3.pcie.width", {"current": 8, "max": 8}, f"pci/{G3}/link", captures.link(5, 8)),
    ),
    ("counts that began before anyone looked", class_document(), spoiled(healthy(), "network.eth0.counters.rx_dropped", 10**9)),
    ("a clock that is being set after boot", class_document(), spoiled(healthy(), "time_sync.synchronised", False, "uptime", 60.0)),
    ("no PSI", class_document(), spoiled(healthy(), "pressure", not_exposed("No such file or directory", 2))),
    ("ECC switched off", class_document(), spoiled(healthy(), "gpus.*.ecc", {"current": False, "pending": False, "volatile": NO, "aggregate": NO})),
    (
        "an Ampere board with NVSwitch reports no fabric",
        class_document(),
        spoiled(healthy(), "gpus.*.architecture", "Ampere", "gpus.*.fabric", {"state": "not_supported"}),
    ),
    ("all GPUs at work, at clocks some per cent apart", class_document(), spoiled(healthy(), *loaded(), *clock_of(1755))),
    ("one GPU at work, locked to half its clock to save power", class_document(), spoiled(healthy(), *loaded(3), *clock_of(990))),
    ("a GPU whose job has just ended", class_document(), spoiled(healthy(), *loaded(), *clock_of(345), "gpus.3.throttle.mask", 1)),
    ("a GPU at its power cap", class_document(), spoiled(healthy(), *loaded(), *clock_of(600), "gpus.3.throttle.mask", 4)),
    ("a display's card at rest, busy for its low clock", class_document(), spoiled(healthy(), *loaded(3), *clock_of(210), "gpus.3.pstate", 8)),
    (
        "two GPUs of a board with one serial number",
        class_document(),
        spoiled(healthy(), "gpus.3.serial", captures.gpu(2)["serial"], "gpus.3.multi_gpu_board", True),
    ),
    ("boards without serial numbers", class_document(), spoiled(healthy(), "gpus.*.serial", "0000000000000")),
    ("a virtual machine's processors", class_document(), spoiled(healthy(), "identity.virtual", "kvm", "cpu.microcode", ["0x1", "0xffffffff"])),
    (
        "cards of two boards, each with its firmware",
        class_document(),
        spoiled(healthy(), "infiniband", {**cards("28.39.1002"), "mlx5_9": cards("20.1", board="MT_0000000008")["mlx5_3"]}),
    ),
    ("a virtual machine's lanes", class_document(), spoiled(healthy(), "identity.virtual", "kvm", "pci", {}, "gpus.*.pcie.width.current", 8)),
    ("a laptop at its limit", class_document(), spoiled(healthy(), "gpus.*.name", "NVIDIA GeForce RTX 4090 Laptop GPU", "gpus.*.temperature.margin_c", 1)),
    ("a display's memory", class_document(), spoiled(healthy(), *unexplained(other_processes=2))),
    (
        "memory of MIG's instances",
        class_document(),
        spoiled(healthy(), *unexplained(), "gpus.*.mig.current", True, "gpus.*.mig.pending", True),
    ),
    ("the kernel's cache in the memory of Grace", class_document(), spoiled(healthy(), *unexplained(name="NVIDIA GH200 480GB"))),
    ("memory of the vGPUs of a host", class_document(), spoiled(healthy(), *unexplained(), "os.modules", ["nvidia", "nvidia_vgpu_vfio"])),
    ("a passive check", declared(), spoiled(node(), "storage.paths", {})),
    ("no node of a GPU", {**class_document(), "gpu": None}, spoiled(healthy(), "gpus", [], "pci", {}, "devices", {}, "driver", {})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "document", "capture"), TRAPS, ids=[row[0] for row in TRAPS])
def test_no_alarm_on_a_healthy_node(name: str, document: Any, capture: dict[str, Any]) -> None:
    document = {**document, "platform": {"nvswitch": "node of a GPU" not in name}}
    memory: dict[str, Any] = {}
    for _ in range(2):
        counted, memory = deltas.step(memory, capture)
        found = table.judge(document, capture, counted) + counted.findings
        assert check.exit_code(found) == 0, wrong(found)
        assert {finding.outcome for finding in found} <= {MATCH, DEFERRED}


# -- what cannot be known is never a match


def test_mig_hides_remapped_rows_and_only_the_drivers_own_verdict_covers_them() -> None:
    hidden = spoiled(
        healthy(),
        "gpus.*.remapped_rows",
        NO,
        "gpus.*.mig.current",
        True,
        "gpus.*.mig.pending",
        True,
    )
    found = {(f.id, f.subject): f for f in judged(class_document(), hidden)}
    assert found["gpu.remap.pending", G3].outcome == NOT_EXPOSED
    assert check.exit_code(list(found.values())) == 0
    blind = spoiled(hidden, "gpus.*.recovery_action", not_exposed("Not Found", 13))
    assert check.exit_code(judged(class_document(), blind)) == 3


def test_the_recovery_action_reports_its_reasons() -> None:
    capture = spoiled(
        healthy(), "gpus.3.recovery_action", "gpu_reset", "gpus.3.remapped_rows.pending", True
    )
    found = next(f for f in judged(class_document(), capture) if f.id == "gpu.recovery_action")
    assert found.evidence == ("row remap pending",)
    assert found.blast == "gpu"
    assert G3 in str(found.remedy)


def test_the_hop_that_limits_is_named() -> None:
    found = next(
        f
        for f in judged(class_document(), spoiled(healthy(), f"pci/{PORT3}/link", captures.link(4)))
        if f.id == "pcie.gen"
    )
    assert (found.subject, found.evidence[1]) == (G3, f"{PORT3} has 4")


def test_odd_board_among_eight_is_the_odd_one() -> None:
    """N58: a board of 96 GB among boards of 80 GB. A part of its memory is not what it lacks."""
    capture = spoiled(node(), "gpus.3.memory.total_mib", 97871)
    for document in (class_document(), declared()):
        ((subject, text),) = {(f.subject, str(f.remedy)) for f in wrong(judged(document, capture))}
        assert subject == G3
        assert "another board variant" in text


def test_memory_without_a_process_counts_at_the_second_check() -> None:
    capture = spoiled(healthy(), *unexplained())
    for state in (
        capture,
        spoiled(
            healthy(), *unexplained(), "gpus.3.memory.used_mib", 9, "gpus.3.utilization.gpu", 100
        ),
    ):
        counted, memory = deltas.step({}, state)
        outcomes = []
        for _ in range(2):
            counted, memory = deltas.step(memory, state)
            outcomes += [
                f.outcome
                for f in table.judge(class_document(), state, counted)
                if f.id == "gpu.held"
            ]
        assert outcomes == [MISMATCH, MISMATCH]
        assert [f.outcome for f in judged(class_document(), state) if f.id == "gpu.held"] == [
            DEFERRED
        ]
    assert not wrong(judged(class_document(), healthy(), memory))
    inside = spoiled(
        capture, "gpus.3.processes", [{"pid": 7, "state": "gone"}], "identity.container", True
    )
    assert not [f for f in judged(class_document(), inside, memory) if f.id == "gpu.held"]


def test_power_brake_is_no_fan() -> None:
    """nvml.h: HW slowdown (0x8) is also set by the external power brake (0x80); heat is 0x40."""
    table = {0x88: "gpu.throttle.brake", 0x48: "gpu.throttle", 0x8: "gpu.throttle"}
    words = {0x88: "facility", 0x48: "fans", 0x8: "power connectors"}
    for mask, name in table.items():
        found = wrong(judged(class_document(), spoiled(healthy(), "gpus.3.throttle.mask", mask)))
        assert [item.id for item in found] == [name]
        assert words[mask] in str(found[0].remedy)
    both = wrong(judged(class_document(), spoiled(healthy(), "gpus.3.throttle.mask", 0xC8)))
    assert [item.id for item in both] == ["gpu.throttle", "gpu.throttle.brake"]


@pytest.mark.parametrize(
    ("row", "got", "remedy"),
    [
        ({"missing": [1]}, "1 of 2 disks: slot 1 is empty", "`mdadm --manage /dev/md0 --re-add"),
        (
            {"missing": [0], "failed": ["sda1"]},
            "1 of 2 disks: slot 0 is empty, sda1 has failed",
            "`mdadm --manage /dev/md0 --remove /dev/sda1`",
        ),
        ({"missing": [1], "state": "recovering"}, "1 of 2 disks: slot 1 is empty", "/proc/mdstat"),
    ],
)
def test_member_of_an_array_is_no_nvme_disk(row: dict[str, Any], got: str, remedy: str) -> None:
    array = {"level": "raid1", "state": "degraded", "devices": 2, "active": 1, **row}
    (found,) = wrong(judged(class_document(), spoiled(healthy(), "storage.raid", {"md0": array})))
    assert (found.subject, found.got) == ("md0", got)
    assert remedy in str(found.remedy)
    assert not re.search("nvme|smartctl", str(found.remedy))


@pytest.mark.parametrize(
    ("count", "minutes", "outcome"),
    [(1, 5, MATCH), (3, 5, MISMATCH), (2, 60, MATCH), (1, 1, MATCH), (2, 1, MISMATCH)],
)
def test_recoveries_of_nvlink_count_by_rate(count: int, minutes: int, outcome: str) -> None:
    _, memory = deltas.step({}, healthy())
    later = spoiled(
        healthy(),
        "uptime",
        3600.0 + minutes * 60,
        "gpus.3.nvlink.links.7.errors.recovery",
        count,
    )
    found = [f for f in judged(class_document(), later, memory) if f.id == "nvlink.errors"]
    assert outcome in {f.outcome for f in found}
    assert {f.subject for f in found} == ({G3} if outcome == MISMATCH else {None})


def test_record_with_some_of_the_gpus_names_their_number() -> None:
    capture = spoiled(healthy(1), "source", "nvidia-smi-xml", "gpu_count", 8, "gpus.0.index", None)
    for count, outcome in ((8, ELSEWHERE), (4, MISMATCH)):
        document = class_document()
        document["gpu"]["count"] = count
        (found,) = [f for f in judged(document, capture) if f.id == "gpu.visible"]
        assert found.outcome == outcome
        assert "library 0" not in str(found.got)


def test_smi_output_verifies_gpus_but_not_the_host() -> None:
    capture = {
        key: value
        for key, value in node().items()
        if key in ("schema", "time", "gpus", "driver", "simulated")
    }
    capture["source"] = "nvidia-smi-xml"
    found = judged(declared(), capture)
    assert {
        f.outcome
        for f in found
        if f.id in ("net.state", "cpu.layout", "storage.mount", "module.loaded")
    } == {ELSEWHERE}
    assert {
        f.outcome
        for f in found
        if f.id in ("pcie.width", "gpu.ecc.uncorrected", "nvlink.active", "gpu.memory")
    } == {MATCH}
    assert check.exit_code(found) == 3


def test_processes_count_at_the_first_check_of_a_boot_only() -> None:
    capture = spoiled(healthy(), "gpus.3.processes", [{"pid": 7, "memory_mib": 900}])
    counted, memory = deltas.step({}, capture)
    first = [f for f in table.judge(class_document(), capture, counted) if f.id == "gpu.processes"]
    assert [f.outcome for f in first] == [MISMATCH]
    counted, memory = deltas.step(memory, spoiled(capture, "uptime", 3700.0))
    assert not [
        f for f in table.judge(class_document(), capture, counted) if f.id == "gpu.processes"
    ]


def test_links_of_nics_have_the_lanes_that_both_ends_have() -> None:
    nic, port = "0000:41:00.0", "0000:40:01.0"
    row = {
        "kind": "nic",
        "path": [port, nic],
        "link": captures.link(),
        "aer": {"correctable": 0, "nonfatal": 0, "fatal": 0},
    }
    capture = spoiled(
        healthy(),
        f"pci/{nic}",
        row,
        f"pci/{port}",
        {"kind": "port", "path": [], "link": captures.link()},
    )
    assert [f.outcome for f in judged(class_document(), capture) if f.id == "pcie.link"] == [MATCH]
    capture["pci"][nic]["link"]["width"] = 4
    assert [
        (f.outcome, f.subject) for f in judged(class_document(), capture) if f.id == "pcie.link"
    ] == [(MISMATCH, nic)]
    capture["pci"][port]["link"] = {"gen": 5, "max_gen": 5, "width": 4, "max_width": 4}
    assert [f.outcome for f in judged(class_document(), capture) if f.id == "pcie.link"] == [MATCH]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "x",
        [],
        {},
        1e400,
        float("nan"),
        -1,
        True,
        ["\x1b[2J"],
        {"fault": 1},
        {"a": {"b": []}},
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        "gpus",
        "gpus.3",
        "gpus.3.ecc",
        "gpus.3.nvlink.links",
        "pci",
        "network",
        "storage",
        "memory",
        "os",
        "events",
        "uptime",
        "identity",
    ],
)
def test_a_hostile_capture_never_ends_the_check_and_prints_nothing_odd(
    place: str, value: Any
) -> None:
    capture = spoiled(node(), place, value)
    found = judged(declared(), capture)
    assert found
    texts = [str(text) for f in found for text in (f.id, f.got, f.subject, *f.evidence)]
    assert all(text.isprintable() for text in texts)
    if place in ("gpus", "gpus.3.ecc", "os", "memory", "network") and value in (
        None,
        "x",
        [],
        True,
    ):
        assert check.exit_code(found) != 0


def test_documents_of_an_older_goldnode_have_no_limits() -> None:
    document = {key: value for key, value in class_document().items() if key != "health"}
    assert check.exit_code(judged(document, healthy())) == 0
    assert (
        check.exit_code(judged(document, spoiled(healthy(), "gpus.3.ecc.volatile.uncorrected", 1)))
        == 2
    )


def test_fault_of_the_sixteenth_gpu_drains_the_node() -> None:
    document = class_document()
    document["gpu"]["count"] = 16
    assert check.exit_code(judged(document, healthy(16))) == 0
    assert (
        check.exit_code(judged(document, spoiled(healthy(16), "gpus.15.pcie.width.current", 8)))
        == 2
    )
