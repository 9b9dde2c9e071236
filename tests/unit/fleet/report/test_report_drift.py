"""One hundred drifts of twenty kinds: each is one cause with its nodes, and nothing else is one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import (
    NOW,
    Change,
    Json,
    SyntheticNode,
    canary,
    finding,
    fleet,
    put,
    store,
    store_results,
)

from goldnode.commands.fleet.report_text import SIMULATED, as_text
from goldnode.documents.fleet_report import FleetReportDocument
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ReportSettings, ReportSource


def reported(directory: Path) -> FleetReportDocument:
    return report(ReportSource(directory), ReportSettings(NOW))


def lose_gpus(capture: Json, count: int) -> None:
    """GPUs that are gone leave the bus, the device nodes and the topology."""
    for _ in range(count):
        address = capture["gpus"].pop()["address"]
        capture["gpu_count"] -= 1
        capture["pci"].pop(address)
        capture["numa"]["affinity"].pop(address)
        capture["devices"].pop(f"/dev/nvidia{capture['gpu_count']}")


def all_of(*changes: Change) -> Change:
    def change(capture: Json) -> None:
        for one in changes:
            one(capture)

    return change


@dataclass(frozen=True)
class DriftKind:
    """A kind of drift: the topic of its cause, and the change for a version of its own."""

    topic: str
    change: Callable[[int], Change]
    finding: str | None = None


KINDS = (
    DriftKind(
        "driver",
        lambda n: all_of(
            *(
                put(f"driver/{key}", f"570.{n}")
                for key in ("loaded", "library", "proc", "reported")
            ),
            put("gpus/*/gsp_firmware", f"570.{n}"),
        ),
        "driver.loaded",
    ),
    DriftKind(
        "kernel",
        lambda n: all_of(
            put("os/kernel/running", f"6.1.{n}"), put("os/kernel/installed", [f"6.1.{n}"])
        ),
        "kernel.running",
    ),
    DriftKind("kernel command line", lambda n: put("os/kernel/cmdline", f"ro quiet x={n}")),
    DriftKind("VBIOS", lambda n: put("gpus/0/vbios", f"96.00.1.{n}")),
    DriftKind("InfoROM", lambda n: put("gpus/0/inforom/image", f"G520.{n}")),
    DriftKind("MIG", lambda n: put("gpus/0/mig/instances", [f"{n}g.10gb"])),
    DriftKind(
        "power limit", lambda n: put("gpus/*/power/limit_w", 500.0 + n), "policy.power_limit_watts"
    ),
    DriftKind("GPU policy", lambda n: put("gpus/*/compute_mode", f"mode{n}")),
    DriftKind("GPU count", lambda n: lambda capture: lose_gpus(capture, n + 1)),
    DriftKind("PCIe", lambda n: put("pci/0000:18:00.0/link/width", n + 1), "pcie.width"),
    DriftKind("fabric manager", lambda n: put("fabric_manager/installed", f"570.{n}")),
    DriftKind("NIC firmware", lambda n: put("network/eth0/firmware", f"28.{n}")),
    DriftKind("MTU", lambda n: put("network/eth0/mtu", 1500 + n), "net.mtu"),
    DriftKind("HCA firmware", lambda n: put("infiniband/mlx5_0/firmware", f"28.{n}")),
    DriftKind("SSD firmware", lambda n: put("storage/devices/nvme0n1/firmware", f"GDC{n}")),
    DriftKind("container toolkit", lambda n: put("runtime/toolkit", f"1.1.{n}")),
    DriftKind("transparent huge pages", lambda n: put("memory/transparent_hugepages", f"other{n}")),
    DriftKind("CPU microcode", lambda n: put("cpu/microcode", [f"0x{n}"])),
    DriftKind("bios", lambda n: put("identity/product/bios_version", f"0.{n}")),
    DriftKind(
        "services", lambda n: put("services/nvidia-persistenced.service/active", f"state{n}")
    ),
)


def drifted(nodes: list[SyntheticNode], since: datetime) -> set[tuple[str, tuple[str, ...]]]:
    """Inject a hundred drifts of twenty kinds from a time on. Return topic and nodes of each."""
    chosen = random.Random(21)  # noqa: S311 a fixed choice
    expected = set()
    for kind in KINDS:
        free = chosen.sample(
            nodes, 20
        )  # at most 20 of 120 nodes drift in one topic: the majority remains
        for number in range(5):
            hit = [free.pop() for _ in range(1 + number % 4)]
            for node in hit:
                node.change(kind.change(number), since)
                if kind.finding:
                    node.find(finding(kind.finding, "declared", f"other {number}"), since)
            expected.add((kind.topic, tuple(sorted(node.name for node in hit))))
    return expected


def test_hundred_drifts_are_hundred_causes_and_nothing_else(tmp_path: Path) -> None:
    nodes = fleet(120)
    expected = drifted(nodes, NOW - timedelta(days=1))
    document = reported(store(tmp_path, nodes, [NOW - timedelta(days=8), NOW - timedelta(hours=1)]))
    found = [(cause.topic, tuple(cause.nodes.names)) for cause in document.causes]
    assert (len(KINDS), len(expected)) == (20, 100)
    assert len(found) == len(set(found)), "a cause was reported twice"
    assert set(found) - expected == set()
    assert expected - set(found) == set()
    assert all("last_week" in cause.evidence for cause in document.causes), "all are new"
    other = (
        "mixed",
        "no_majority",
        "unchecked",
        "not_known",
        "slow",
        "slowing",
        "trends",
        "lemons",
    )
    assert {name: getattr(document, name) for name in other if getattr(document, name)} == {}
    # The text has each cause on one line.
    text = as_text(document)
    assert text.count("Drift and faults") == 1
    assert "100 causes" in text


def healthy_variation(node: SyntheticNode) -> None:
    """Change what differs between healthy nodes: boots, temperatures, order of GPUs, links that sleep."""
    node.change(put("identity/boot_id", f"boot-{node.number}-7"))
    node.change(put("gpus/*/temperature/gpu_c", float(node.number % 50)))
    node.change(put("gpus/*/throttle/active", ["sw_power_cap"]))
    node.change(put("pci/*/link/gen", 1))
    node.change(lambda capture: capture["gpus"].reverse())
    for place in range(8):
        node.change(put(f"gpus/{place}/index", place))


def test_clean_fleet_reports_nothing(tmp_path: Path) -> None:
    nodes = fleet(40, cohort_size=8)
    for node in nodes[::3]:
        healthy_variation(node)
    chosen = random.Random(4)  # noqa: S311 repeatable
    store(
        tmp_path,
        nodes,
        [NOW - timedelta(days=8), *(NOW - timedelta(hours=hour) for hour in (30, 18, 1))],
    )
    for day in (5, 1):
        samples = {
            node.name: {"": [600 * chosen.gauss(1, 0.01) for _ in range(20)]} for node in nodes
        }
        time = NOW - timedelta(days=day)
        store_results(
            tmp_path, [canary(name, time, {"gemm": one}) for name, one in samples.items()]
        )
    found = reported(tmp_path)
    assert found.causes == []
    sections = {
        "mixed",
        "no_majority",
        "unchecked",
        "not_known",
        "slow",
        "slowing",
        "failed_jobs",
        "trends",
    }
    sections |= {"lemons", "changed"}
    assert {name: getattr(found, name) for name in sections if getattr(found, name)} == {}
    [state] = found.classes
    assert (state.states, found.measured[0].slow) == ({"healthy": 40}, 0)
    titles = [
        line for line in as_text(found).splitlines() if line and not line.startswith((" ", "h100"))
    ]
    assert titles == [
        SIMULATED,
        "40 nodes as of 2026-11-26T08:00:00Z: 40 healthy; 0 causes",
        "Classes",
        *titles[3:],
    ]
    assert [
        line for line in titles[3:] if line.split("  ")[0] not in ("class", "Canary results")
    ] == []


def test_another_class_document_is_one_cause_with_what_it_brings(tmp_path: Path) -> None:
    nodes = fleet(12)
    for node in nodes[:3]:
        node.change(put("identity/class_digest", "sha256:9"))
        node.change(put("os/kernel/running", "6.1.9"))
        node.change(put("runtime/toolkit", "1.2"))
    found = reported(store(tmp_path, nodes)).causes
    assert [(cause.topic, cause.also, cause.nodes.count) for cause in found] == [
        ("class", ["container toolkit", "kernel"], 3)
    ]


def test_part_that_the_majority_has_and_a_node_lacks_is_drift(tmp_path: Path) -> None:
    nodes = fleet(8)
    nodes[2].change(lambda capture: capture["storage"]["mounts"].clear())
    found = reported(store(tmp_path, nodes)).causes
    assert [
        (cause.topic, cause.nodes.names, {change.got for change in cause.changes})
        for cause in found
    ] == [("mounts", [nodes[2].name], {None})]


def remove(*paths: str) -> Change:
    """Return a change that removes places of a capture."""

    def change(capture: Json) -> None:
        for path in paths:
            *parents, last = path.split("/")
            place: Any = capture
            for one in parents:
                place = place[int(one) if isinstance(place, list) else one]
            del place[last]

    return change


@pytest.mark.parametrize(
    ("paths", "topic", "keys"),
    [
        (("gpus/3/vbios",), "VBIOS", {"gpu.vbios": "1 of 8"}),
        (("gpus/3/vbios", "gpus/5/vbios"), "VBIOS", {"gpu.vbios": "2 of 8"}),
        (("gpus/3/temperature/memory_c",), "GPU model", {"gpu.temperature.memory_c": "1 of 8"}),
        (("gpus/3/ecc/current",), "ECC", {"gpu.ecc.current": "1 of 8"}),
        (
            ("gpus/3/vbios", "gpus/3/compute_mode", "gpus/3/power/limit_w"),
            "GPU values",
            {"gpu.vbios": "1 of 8", "gpu.compute_mode": "1 of 8", "gpu.power.limit_w": "1 of 8"},
        ),
    ],
)
def test_value_that_one_gpu_lacks_and_all_others_have_is_one_cause(
    tmp_path: Path, paths: tuple[str, ...], topic: str, keys: dict[str, str]
) -> None:
    nodes = fleet(6)
    for node in nodes[1:3]:
        node.change(remove(*paths))
    [cause] = reported(store(tmp_path, nodes)).causes
    assert (cause.topic, cause.nodes.names, cause.evidence) == (
        topic,
        names(nodes[1:3]),
        ["majority"],
    )
    assert {change.key: change.part for change in cause.changes} == keys
    assert {change.got for change in cause.changes} == {None}
    assert None not in {change.expected for change in cause.changes}


def test_links_that_one_gpu_lacks_are_one_cause(tmp_path: Path) -> None:
    nodes = fleet(6)
    nodes[2].change(lambda capture: capture["gpus"][3]["nvlink"]["links"].pop())
    found = reported(store(tmp_path, nodes)).causes
    links = len(nodes[0].report(NOW)["capture"]["gpus"][0]["nvlink"]["links"])
    assert [(cause.topic, cause.nodes.names) for cause in found] == [("NVLink", [nodes[2].name])]
    assert {change.part for change in found[0].changes} == {f"1 of {8 * links}"}


def test_values_of_a_gpu_that_could_not_be_read_are_not_missing(tmp_path: Path) -> None:
    nodes = fleet(6)
    nodes[2].change(put("gpus/3/vbios", {"fault": "unread", "text": "no"}))
    nodes[2].change(put("gpus/3/temperature/gpu_c", {"fault": "unread", "text": "no"}))
    assert reported(store(tmp_path, nodes)).causes == []


def test_value_that_no_gpu_of_most_nodes_has_is_not_missing(tmp_path: Path) -> None:
    nodes = fleet(6)
    for node in nodes[:4]:
        node.change(remove(*(f"gpus/{place}/temperature/memory_c" for place in range(8))))
    nodes[4].change(remove("gpus/3/temperature/memory_c"))
    assert reported(store(tmp_path, nodes)).causes == []


def test_gpu_that_is_lost_explains_the_values_that_it_lacks(tmp_path: Path) -> None:
    nodes = fleet(6)
    nodes[2].change(remove("gpus/3/vbios", "gpus/3/compute_mode"))
    nodes[2].find(finding("gpu.lost", "no GPU", "GPU 3", domain="hardware", severity="drain"))
    found = reported(store(tmp_path, nodes)).causes
    assert [(cause.topic, cause.also) for cause in found] == [("GPU state", ["GPU values"])]


@pytest.mark.parametrize("fault", ["unread", "not_exposed"])
def test_value_that_could_not_be_read_is_no_drift(tmp_path: Path, fault: str) -> None:
    nodes = fleet(8)
    nodes[2].change(put("driver/loaded", {"fault": fault, "text": "no"}))
    nodes[3].change(
        lambda capture: capture["storage"]["mounts"]["/"].update(
            type={"fault": fault, "text": "no"}
        )
    )
    assert reported(store(tmp_path, nodes)).causes == []


def test_finding_that_could_not_be_read_is_neither_drift_nor_healthy(tmp_path: Path) -> None:
    nodes = fleet(4)
    nodes[1].find(finding("gpu.vbios", "96", "unread: GPU is lost", outcome="could_not_read"))
    found = reported(store(tmp_path, nodes))
    assert found.causes == []
    assert [(one.topic, one.nodes.names) for one in found.unchecked] == [("VBIOS", [nodes[1].name])]
    assert found.classes[0].states == {"could_not_check": 1, "healthy": 3}


def names(nodes: list[SyntheticNode]) -> list[str]:
    return [node.name for node in nodes]


def test_nodes_that_all_drifted_alike_are_declared_drift_and_no_majority_drift(
    tmp_path: Path,
) -> None:
    nodes = fleet(6)
    for node in nodes:
        node.change(put("driver/loaded", "570"))
        node.find(finding("driver.loaded", "580", "570"))
    [cause] = reported(store(tmp_path, nodes)).causes
    assert (cause.topic, cause.evidence, cause.nodes.names) == (
        "driver",
        ["declared"],
        names(nodes),
    )


def test_half_of_the_nodes_moved_is_no_majority_and_no_drift(tmp_path: Path) -> None:
    nodes = fleet(6)
    for node in nodes[:3]:
        node.change(put("driver/loaded", "570"))
    found = reported(store(tmp_path, nodes))
    assert found.causes == []
    [open_fact] = found.no_majority
    assert (open_fact.key, [(one.value, one.count) for one in open_fact.values]) == (
        "driver.loaded",
        [("570", 3), ("580.95.05", 3)],
    )


@pytest.mark.parametrize(("moved", "share"), [(2, 4 / 6), (1, 5 / 6)])
def test_majority_has_its_share_and_count(tmp_path: Path, moved: int, share: float) -> None:
    nodes = fleet(6)
    for node in nodes[:moved]:
        node.change(put("driver/loaded", "570"))
    [cause] = reported(store(tmp_path, nodes)).causes
    assert (cause.evidence, cause.nodes.count, cause.of, cause.share) == (
        ["majority"],
        moved,
        6,
        round(share, 4),
    )


def test_platforms_are_compared_apart(tmp_path: Path) -> None:
    nodes = fleet(12)
    for node in nodes[:6]:
        node.change(put("identity/product/name", "Other"))
        node.change(put("identity/product/bios_version", "7"))
    found = reported(store(tmp_path, nodes))
    assert found.causes == []
