"""Rule about the interrupts of fast adapters: docs/reference/sanity.md#interrupts has its reasons.

Judged is what was set, as the processor that takes an interrupt follows with its next one only (Linux 6.12). The kernel's own choice
(arch/x86/kernel/apic/vector.c) and irqbalance's (placement.c, place_irq_affinity_hint) are near.
"""

from __future__ import annotations

from ..probe.machine import numbers_of, ranges
from ..probe.values import is_fault
from .rules import (
    Answer,
    Node,
    RuleResult,
    as_map,
    bad,
    fetch,
    is_guest,
    is_number,
    rule,
    wrong_or_ok,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set

    from ..ground.host import Json


FAST_MBPS, FAST_GBPS = 25_000, 25
SAME_SOCKET = 15  # NUMA distance up to which nodes are parts of one socket; the own node has 10, another socket 20 or more


@rule("net.irq")
def interrupts(node: Node) -> Answer:
    """Judge whether the interrupts of a fast adapter that is up were set to processors of other sockets only."""
    section = as_map(fetch(node.capture, "numa.interrupts"))
    if node.elsewhere() or is_guest(node.capture) or is_fault(section):
        return None
    devices = as_map(section.get("devices"))
    results: List[RuleResult] = []
    judged = 0
    for address, names in sorted(_fast(node).items()):
        device = as_map(devices.get(address))
        near, rows = _near(node, device.get("node"), section), as_map(device.get("read"))
        if not near or len(rows) < 2:
            continue
        judged += 1
        far = {number: row for number, row in rows.items() if _is_far(row, near)}
        if len(far) == len(rows):
            cpus = ", ".join(dict.fromkeys(str(row["cpus"]) for row in far.values()))
            text = f"{', '.join(names)}: all {len(far)} of {device.get('count')} that were read are set to processors {cpus}"
            now = [
                f"interrupt {number} is taken by processor {row.get('effective')}"
                for number, row in far.items()
            ]
            results.append(bad(f"processors {ranges(near)}", text, *now[:3], subject=address))
    return wrong_or_ok(results, judged, "near their adapters", f"{judged} adapters")


def _fast(node: Node) -> Dict[str, List[str]]:
    """Return the names of interfaces and InfiniBand devices that are up and fast, by PCI address."""
    names: Dict[str, List[str]] = {}
    for name, row in as_map(node.capture.get("network")).items():
        speed = fetch(row, "speed_mbps")
        if fetch(row, "state") == "up" and is_number(speed) and speed >= FAST_MBPS:
            names.setdefault(str(fetch(row, "address")), []).append(name)
    for name, row in as_map(node.capture.get("infiniband")).items():
        ports = as_map(fetch(row, "ports")).values()
        rates = [fetch(port, "rate_gbps") for port in ports if fetch(port, "state") == "active"]
        if any(is_number(rate) and rate >= FAST_GBPS for rate in rates):
            names.setdefault(str(fetch(row, "address")), []).append(name)
    return names


def _near(node: Node, own: Any, section: Json) -> Set[int]:
    """Return the processors of the socket of a NUMA node that take interrupts; empty where that is unknown."""
    nodes = as_map(fetch(node.capture, "numa.nodes"))
    distances = fetch(as_map(nodes.get(str(own))), "distance")
    if not is_number(own) or not isinstance(distances, list):
        return set()
    near: Set[int] = set()
    for number, distance in zip(sorted(nodes, key=int), distances):
        cpus = fetch(nodes[number], "cpus")
        if is_number(distance) and distance <= SAME_SOCKET and isinstance(cpus, str):
            near.update(numbers_of(cpus))
    isolated = section.get("isolated")
    if isinstance(isolated, str):
        near.difference_update(numbers_of(isolated))
    allowed = _mask(section.get("default"))
    return near & allowed if allowed else near


def _is_far(row: Any, near: Set[int]) -> bool:
    """Return whether an interrupt was set to processors that are not near, by something else than its driver."""
    cpus = fetch(row, "cpus")
    chosen = set(numbers_of(cpus)) if isinstance(cpus, str) else set()
    return bool(chosen) and not chosen & near and _mask(fetch(row, "hint")) != chosen


def _mask(text: Any) -> Set[int]:
    """Return the processors of a mask of the kernel, groups of eight hexadecimal digits; empty if it cannot be read."""
    try:
        bits = int(text.replace(",", ""), 16) if isinstance(text, str) else 0
    except ValueError:
        return set()
    return {number for number in range(bits.bit_length()) if bits >> number & 1}
