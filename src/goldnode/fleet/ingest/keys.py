"""Keys of the values of a capture: how lists and objects become items, and of which kind a key is.

A key is the path of a value without numbers and names of parts: `gpu.vbios`,
`network.counters.rx_errors`. The identity of the part is the item of the row: the UUID of a GPU,
the PCI address of a NIC, the path of a mount. GPUs that are enumerated in another order thus have
the same rows, and a replaced GPU has others.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache


class KeyKind(StrEnum):
    """Kind of a key. Facts are compared between nodes; counters only grow; gauges vary."""

    FACT = "fact"
    COUNTER = "counter"
    GAUGE = "gauge"
    IDENTITY = "identity"  # names one machine or part: differs on every node
    STATE = "state"  # a text that varies while the node works
    ORDER = "order"  # number by which a part was found at this boot
    DROPPED = "dropped"  # not stored: another value has it, or it is of no use in a report


# Objects and lists whose elements are parts, by the key of the element. The fields are tried in order for its
# identity; without one, the name in the object is it. `test_keys.py` compares this with the type of the document.
PARTS: dict[str, tuple[str, ...]] = {
    "gpu": ("uuid", "serial", "address"),
    "gpu.nvlink.links": ("link",),
    "gpu.ras": (),
    "nvswitches": ("address",),
    "devices": (),
    "pci": (),
    "numa.nodes": (),
    "numa.affinity": (),
    "numa.distances": (),
    "numa.distances.to": (),
    "cpu.governors": (),
    "memory.hugepages": (),
    "memory.edac": (),
    "network": ("address",),
    "infiniband": ("address",),
    "infiniband.ports": (),
    "storage.devices": ("address",),
    "storage.mounts": (),
    "storage.paths": (),
    "storage.raid": (),
    "runtime.cdi": ("kind", "file"),
    "services": (),
    "os.module_files": (),
    "os.module_files.module": (),
    "packages.drift": ("name",),
    "events.rows": ("kind", "code", "address"),
}
# Parts inside parts whose key has no name in the document: {GPU: {NIC: distance}}, {RELEASE: {MODULE: …}}.
NESTED = {"numa.distances": "numa.distances.to", "os.module_files": "os.module_files.module"}
# Names of sections that differ from the document's.
RENAMED = {"gpus": "gpu"}

# The first pattern that matches decides. Without a pattern, a text or flag is a fact, and a number is a gauge.
_PATTERNS: tuple[tuple[str, KeyKind], ...] = (
    # Columns of the table of nodes.
    ("schema", KeyKind.DROPPED),
    ("time", KeyKind.DROPPED),
    ("uptime", KeyKind.DROPPED),
    ("simulated", KeyKind.DROPPED),
    ("source", KeyKind.DROPPED),
    ("identity.class", KeyKind.DROPPED),
    ("identity.boot_*", KeyKind.DROPPED),
    ("events.boot_id", KeyKind.DROPPED),
    ("recorded", KeyKind.DROPPED),
    ("time_sync.clock", KeyKind.DROPPED),
    ("anonymous", KeyKind.DROPPED),
    ("gpu.settings", KeyKind.DROPPED),  # the same values, as the GPU policy compares them
    ("gpu.processes", KeyKind.DROPPED),  # processes have no identity that lasts
    ("blocked", KeyKind.DROPPED),
    ("events.last_seq", KeyKind.DROPPED),
    ("events.rows.kind", KeyKind.DROPPED),  # part of the item
    ("events.rows.code", KeyKind.DROPPED),
    ("events.rows.address", KeyKind.DROPPED),
    ("events.rows.boot_id", KeyKind.DROPPED),
    ("events.rows.text", KeyKind.DROPPED),
    ("events.rows.parameters*", KeyKind.DROPPED),
    ("events.rows.count", KeyKind.COUNTER),
    ("events.rows.*seq", KeyKind.DROPPED),
    ("events.rows.*uptime_s", KeyKind.GAUGE),
    ("events.rows.time", KeyKind.DROPPED),
    ("gpu.nvlink.links.link", KeyKind.DROPPED),  # the item
    ("gpu.index", KeyKind.ORDER),
    ("gpu.minor", KeyKind.ORDER),
    ("*.uuid", KeyKind.IDENTITY),
    ("*.serial", KeyKind.IDENTITY),
    ("*.mac", KeyKind.IDENTITY),
    ("*guid", KeyKind.IDENTITY),
    ("gpu.fabric.cluster", KeyKind.IDENTITY),
    ("gpu.fabric.clique", KeyKind.IDENTITY),
    ("identity.hostname", KeyKind.IDENTITY),
    ("identity.machine_id", KeyKind.IDENTITY),
    ("*.replay", KeyKind.COUNTER),
    ("gpu.ecc.*.*", KeyKind.COUNTER),
    ("gpu.remapped_rows.*", KeyKind.COUNTER),
    ("gpu.retired_pages.*", KeyKind.COUNTER),
    ("gpu.bad_pages.*", KeyKind.COUNTER),
    ("gpu.ras.*", KeyKind.COUNTER),
    ("gpu.nvlink.links.errors.*", KeyKind.COUNTER),
    ("gpu.throttle.violation_ns.*", KeyKind.COUNTER),
    ("gpu.throttle.residency.*", KeyKind.COUNTER),
    ("gpu.throttle.mask", KeyKind.GAUGE),
    ("gpu.throttle.*", KeyKind.STATE),
    ("pci.aer*", KeyKind.COUNTER),
    ("memory.edac.*", KeyKind.COUNTER),
    ("network.carrier_changes", KeyKind.COUNTER),
    ("network.counters.*", KeyKind.COUNTER),
    ("infiniband.ports.*counters.*", KeyKind.COUNTER),
    ("storage.devices.smart.media_errors", KeyKind.COUNTER),
    ("storage.devices.smart.power_on_hours", KeyKind.COUNTER),
    ("storage.devices.smart.percentage_used", KeyKind.COUNTER),
    ("storage.devices.smart.spare_threshold", KeyKind.FACT),
    ("services.restarts", KeyKind.COUNTER),
    ("services.since_us", KeyKind.GAUGE),
    ("pressure.*_us", KeyKind.COUNTER),
    # Constant numbers: sizes, limits, widths.
    ("gpu_count", KeyKind.FACT),
    ("os.kernel.taint", KeyKind.FACT),
    ("gpu.memory.total_mib", KeyKind.FACT),
    ("gpu.memory.bar1_mib", KeyKind.FACT),
    ("gpu.pcie.width.*", KeyKind.FACT),
    ("gpu.pcie.*.max", KeyKind.FACT),
    ("gpu.pcie.*.device_max", KeyKind.FACT),
    ("gpu.power.draw_w", KeyKind.GAUGE),
    ("gpu.power.*", KeyKind.FACT),
    ("gpu.clocks.max.*", KeyKind.FACT),
    ("gpu.clocks.application*", KeyKind.FACT),
    ("gpu.temperature.slowdown_c", KeyKind.FACT),
    ("gpu.temperature.shutdown_c", KeyKind.FACT),
    ("gpu.temperature.*max_c", KeyKind.FACT),
    ("gpu.nvlink.links.version", KeyKind.FACT),
    ("pci.numa_node", KeyKind.FACT),
    ("pci.link.gen", KeyKind.GAUGE),  # an idle link is slower
    ("pci.link.*", KeyKind.FACT),
    ("pci.power_state", KeyKind.STATE),
    ("pci.limits.*", KeyKind.FACT),
    ("pci.iommu_group", KeyKind.ORDER),
    # Different by a few MiB on equal machines, as is the total.
    ("numa.nodes.memory_mib", KeyKind.GAUGE),
    ("numa.*", KeyKind.FACT),
    ("cpu.mhz*", KeyKind.GAUGE),
    ("cpu.*", KeyKind.FACT),
    ("memory.swap_total_mib", KeyKind.FACT),
    ("memory.numa_balancing", KeyKind.FACT),
    ("memory.hugepages.total", KeyKind.FACT),
    ("network.mtu", KeyKind.FACT),
    ("network.speed_mbps", KeyKind.FACT),
    ("network.numa_node", KeyKind.FACT),
    ("infiniband.ports.rate_gbps", KeyKind.FACT),
    ("storage.devices.size_bytes", KeyKind.FACT),
    ("storage.mounts.size_mib", KeyKind.FACT),
    ("storage.raid.*", KeyKind.FACT),
    ("runtime.*", KeyKind.FACT),
    ("packages.total", KeyKind.FACT),
    ("limits.*", KeyKind.FACT),
)

# The rules by which rows are made of a capture.
RULES = repr((PARTS, NESTED, RENAMED, _PATTERNS))


@cache
def declared_kind(key: str) -> KeyKind | None:
    """Return the kind that the table declares for a key; None if it declares none."""
    return next((kind for pattern, kind in _PATTERNS if fnmatchcase(key, pattern)), None)


def kind(key: str, number: bool) -> KeyKind:
    """Return the kind of a key of this type of value.

    A text or flag is never a counter or gauge. A number without a declared kind is a gauge.
    """
    declared = declared_kind(key)
    if declared is None:
        return KeyKind.GAUGE if number else KeyKind.FACT
    if not number and declared in (KeyKind.COUNTER, KeyKind.GAUGE):
        return KeyKind.FACT
    if number and declared is KeyKind.STATE:
        return KeyKind.GAUGE
    return declared
