"""Interrupts of fast adapters: one that was set to the other socket is found, and machines with a reason are silent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.node.captures import class_document, healthy, interrupts, spoiled

from goldnode.node.probe.values import not_exposed
from goldnode.node.state.finding import MATCH, MISMATCH, Finding
from goldnode.node.verdict import table

FAR = interrupts(range(48, 54))
PLACE = "numa.interrupts"
NIC = "0000:41:00.0"
AT_MEMORY = {**FAR, "devices": {NIC: {**FAR["devices"][NIC], "node": 2}}}
# Sub-NUMA clusters: four nodes in two sockets.
CLUSTERS = {
    str(node): {"cpus": f"{24 * node}-{24 * node + 23}", "distance": distance}
    for node, distance in enumerate(
        [[10, 12, 21, 21], [12, 10, 21, 21], [21, 21, 10, 12], [21, 21, 12, 10]]
    )
}


def answers(*changes: Any) -> list[Finding]:
    found = table.judge(class_document(), spoiled(healthy(), *changes))
    return [finding for finding in found if finding.id == "net.irq"]


def test_interrupts_on_the_other_socket_are_found_with_the_command_that_moves_them() -> None:
    (finding,) = answers(PLACE, FAR)
    assert (finding.outcome, finding.severity, finding.subject) == (MISMATCH, "degraded", NIC)
    assert finding.expected == "processors 0-47"
    assert "48, 49, 50" in str(finding.got)
    assert finding.evidence[0] == "interrupt 100 is taken by processor 48"
    assert finding.remedy is not None
    assert f"/sys/bus/pci/devices/{NIC}/local_cpulist" in str(finding.remedy)


# Name of a machine that must stay silent, and what it has.
SILENT: list[tuple[str, tuple[Any, ...]]] = [
    ("one interrupt of several is near", (PLACE, interrupts([0, *range(48, 53)]))),
    ("the driver chose these processors", (PLACE, interrupts(range(48, 54), range(48, 54)))),
    ("the processors of its socket are isolated", (PLACE, interrupts(range(48, 54), isolated="0-47"))),
    ("irqaffinity= names the other socket", (PLACE, {**FAR, "default": "ffffffff,ffff0000,00000000"})),
    ("a slow adapter", (PLACE, FAR, "network.eth0.speed_mbps", 10_000, "infiniband", {})),
    ("an interface that is down", (PLACE, FAR, "network.eth0.state", "down", "infiniband", {})),
    ("a virtual machine", (PLACE, FAR, "identity.virtual", "kvm")),
    ("a container", (PLACE, FAR, "identity.container", "docker")),
    ("one NUMA node", (PLACE, not_exposed("one NUMA node has all processors"))),
    ("an adapter without a NUMA node", (PLACE, {**FAR, "devices": {}})),
    ("a capture of an older program", (PLACE, None)),
    ("clusters of one socket", (PLACE, interrupts(range(24, 30)), "numa.nodes", CLUSTERS)),
    ("a node without processors", (PLACE, AT_MEMORY, "numa.nodes/2", {"cpus": "", "distance": [21, 21, 10]})),
    ("one interrupt only", (PLACE, {**FAR, "devices": {NIC: {"node": 0, "count": 1, "read": {"100": {"cpus": "48"}}}}})),
    ("nothing of an interrupt can be read", (PLACE, interrupts([not_exposed("gone")] * 6))),
]  # fmt: skip


@pytest.mark.parametrize("changes", [row[1] for row in SILENT], ids=[row[0] for row in SILENT])
def test_machines_with_a_reason_are_silent(changes: tuple[Any, ...]) -> None:
    assert [row for row in answers(*changes) if row.outcome != MATCH] == []


def test_clusters_of_the_other_socket_are_far() -> None:
    (finding,) = answers(PLACE, interrupts(range(72, 78)), "numa.nodes", CLUSTERS)
    assert (finding.outcome, finding.expected) == (MISMATCH, "processors 0-47")
