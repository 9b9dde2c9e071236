"""NUMA nodes, the node of each device, the distances between GPUs and NICs, and the interrupts of NICs (the kernel's
ABI/stable/sysfs-devices-node).
"""

from __future__ import annotations

from .folder import Folder
from .values import not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

    from ..ground.host import Json
    from .context import Context
    from .values import Files

NODES = "/sys/devices/system/node"
BUS = "/sys/bus/pci/devices"
IRQ, CPU = "/proc/irq", "/sys/devices/system/cpu"
# Adapters, and pairs of neighbouring interrupts that are read of each: it may have a hundred. In many machines the nodes of
# processors alternate. NVMe disks are left out: the kernel spreads their interrupts and allows no change (PCI_IRQ_AFFINITY).
MOST, PAIRS = 32, 3
NEARNESS = ("same_switch", "same_root", "same_node", "other_node")


def read(context: Context) -> Json:
    """Read the section ``numa`` from sysfs and the section ``pci``."""
    files = context.files
    devices = {
        name: one
        for name, one in context.functions().items()
        if one["kind"] != "port" and "virtual_of" not in one
    }
    nodes: Json = {}
    numbers = [
        name[4:] for name in files.names(NODES) if name.startswith("node") and name[4:].isdecimal()
    ]
    for number in sorted(numbers, key=int):
        with Folder(files, f"{NODES}/node{number}") as folder:
            nodes[number] = {
                "cpus": folder.text("cpulist"),
                "memory_mib": _memory(folder),
                "distance": _distances(folder),
            }
    affinity = {}
    for name, one in devices.items():
        with Folder(files, f"{BUS}/{name}") as folder:
            affinity[name] = {"node": one["numa_node"], "cpus": folder.text("local_cpulist")}
    nics = [name for name, one in devices.items() if one["kind"] in ("nic", "infiniband")]
    gpus = [name for name, one in devices.items() if one["kind"] == "gpu"]
    return {
        "numa": {
            "nodes": nodes or not_exposed(f"no nodes in {NODES}"),
            "affinity": affinity,
            "interrupts": interrupts(files, devices, nodes),
            "distances": {
                gpu: {nic: distance(devices[gpu], devices[nic]) for nic in nics} for gpu in gpus
            },
        }
    }


def distance(one: Json, other: Json) -> Any:
    """Return the distance of two functions of the section ``pci``, one of NEARNESS; a fault if neither path
    nor node is known.
    """
    first, second = one["path"], other["path"]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    # Two ports in common are a root port and the upstream port of a switch; one alone is a root port of a function that has several.
    if shared >= 2:
        return "same_switch"
    if shared == 1 or one["root_bus"] == other["root_bus"]:
        return "same_root"
    nodes = one["numa_node"], other["numa_node"]
    if not all(isinstance(node, int) for node in nodes):
        return not_exposed("the firmware names no NUMA node for one of them")
    return "same_node" if nodes[0] == nodes[1] else "other_node"


def _memory(folder: Folder) -> Any:
    text = folder.text("meminfo")
    if not isinstance(text, str):
        return text
    for line in text.split("\n"):
        parts = line.split()
        # Node 0 MemTotal:       1056000000 kB
        if len(parts) >= 4 and parts[2] == "MemTotal:" and parts[3].isdecimal():
            return int(parts[3]) // 1024
    return unread("no MemTotal in meminfo")


def _distances(folder: Folder) -> Any:
    text = folder.text("distance")
    if not isinstance(text, str):
        return text
    parts = text.split()
    if not parts or not all(part.isdecimal() for part in parts):
        return unread(f"no distances: {text[:40]!r}")
    return [int(part) for part in parts]


# -- interrupts


def interrupts(files: Files, functions: Json, nodes: Json) -> Json:
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
                # The setting; the processor that takes it follows with the next interrupt.
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
