"""Processors that take the interrupts of network adapters (the kernel's core-api/irq/irq-affinity and ABI/testing/sysfs-bus-pci).

NVMe disks are left out. The kernel spreads their interrupts over all processors, one queue for each, and lets nobody change that
(`PCI_IRQ_AFFINITY` in drivers/nvme/host/pci.c). An adapter has up to a hundred interrupts, so only some are read.
"""

from __future__ import annotations

from .folder import Folder
from .values import not_exposed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping

    from ..ground.host import Json
    from .values import Files

BUS, IRQ, CPU = "/sys/bus/pci/devices", "/proc/irq", "/sys/devices/system/cpu"
MOST = 32  # adapters
PAIRS = 3  # of neighbouring interrupts that are read of an adapter: in many machines the nodes of processors alternate


def read(files: Files, functions: Mapping[str, Any], nodes: Json) -> Json:
    """Return the interrupts of adapters on a machine with several nodes that have processors; a fault on any other."""
    cpus = [node.get("cpus") for node in nodes.values()]
    if sum(isinstance(text, str) and text != "" for text in cpus) < 2:
        return not_exposed("one NUMA node has all processors")
    adapters = [
        name
        for name, one in functions.items()
        if one["kind"] in ("nic", "infiniband")
        and "virtual_of" not in one
        and isinstance(one["numa_node"], int)
    ]
    return {
        # Without these, all processors take interrupts.
        "default": files.text(f"{IRQ}/default_smp_affinity"),
        "isolated": files.text(f"{CPU}/isolated"),
        "devices": {
            name: {"node": functions[name]["numa_node"], **adapter(files, name)}
            for name in adapters[:MOST]
        },
    }


def adapter(files: Files, name: str) -> Json:
    """Return {count: number of interrupts, read: {NUMBER: {cpus, effective, hint}}} of an adapter."""
    numbers = sorted(
        int(number) for number in files.names(f"{BUS}/{name}/msi_irqs") if number.isdecimal()
    )
    rows = {}
    for number in some(numbers):
        with Folder(files, f"{IRQ}/{number}") as folder:
            rows[str(number)] = {
                # What was set. The processor that takes it now follows with the next interrupt only.
                "cpus": folder.text("smp_affinity_list"),
                "effective": folder.text("effective_affinity_list"),
                "hint": folder.text("affinity_hint"),
            }
    return {"count": len(numbers), "read": rows}


def some(numbers: List[int]) -> List[int]:
    """Return pairs of neighbours from the beginning, the middle and the end, without the first, which is often for events."""
    rest = numbers[1:]
    if len(rest) <= 2 * PAIRS:
        return rest or numbers
    starts = [at * (len(rest) - 2) // (PAIRS - 1) for at in range(PAIRS)]
    return [rest[start + next_one] for start in starts for next_one in (0, 1)]
