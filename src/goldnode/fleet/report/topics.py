"""Topics of facts and findings, and the keys that the views treat in a special way.

A topic is a cause as an operator names it: driver, kernel, VBIOS. Differences of one topic on one
node are one cause. The kind of a key (fact, counter, gauge) is that of
`goldnode.fleet.ingest.keys`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from goldnode.facts.health import limits
from goldnode.fleet.ingest.keys import PARTS, KeyKind, declared_kind, kind

# The first pattern that matches decides. A key without a topic has the first two names of its path as topic.
_KEY_TOPICS: tuple[tuple[str, str], ...] = (
    ("identity.class*", "class"),
    ("identity.lock_digest", "class"),
    ("identity.image_id", "class"),
    ("identity.product.bios*", "bios"),
    ("identity.product.*", "machine"),
    ("os.kernel.cmdline", "kernel command line"),
    ("os.kernel.*", "kernel"),
    ("os.module_files.*", "kernel modules"),
    ("os.modules", "kernel modules"),
    ("os.*", "operating system"),
    ("driver.options", "driver options"),
    ("driver.*", "driver"),
    ("gpu.gsp_firmware", "driver"),
    ("gpu.driver", "driver"),
    ("gpu_count", "GPU count"),
    ("gpu_error*", "GPU count"),
    ("gpu.vbios", "VBIOS"),
    ("gpu.inforom.*", "InfoROM"),
    ("gpu.ecc.*", "ECC"),
    ("gpu.mig.*", "MIG"),
    ("gpu.power.*", "power limit"),
    ("gpu.clocks.*", "clocks"),
    ("gpu.persistence_mode", "GPU policy"),
    ("gpu.compute_mode", "GPU policy"),
    ("gpu.pcie.*", "PCIe"),
    ("gpu.remapped_*", "GPU memory repair"),
    ("gpu.retired_pages*", "GPU memory repair"),
    ("gpu.repair.*", "GPU memory repair"),
    ("gpu.unrepairable_memory", "GPU memory repair"),
    ("gpu.recovery_action", "GPU state"),
    ("gpu.lost", "GPU state"),
    ("gpu.nvlink.*", "NVLink"),
    ("gpu.fabric.*", "fabric"),
    ("fabric_manager.*", "fabric manager"),
    ("nvswitches.*", "NVSwitch"),
    ("gpu.address", "GPU place"),
    ("gpu.*", "GPU model"),
    ("devices*", "device nodes"),
    ("pci.*", "PCIe"),
    ("numa.*", "NUMA"),
    ("cpu.governors", "CPU governor"),
    ("cpu.microcode", "CPU microcode"),
    ("cpu.smt", "SMT"),
    ("cpu.*", "CPU"),
    ("memory.hugepages.*", "huge pages"),
    ("memory.transparent_hugepages", "transparent huge pages"),
    ("memory.numa_balancing", "NUMA balancing"),
    ("memory.swap*", "swap"),
    ("memory.*", "memory"),
    ("network.firmware", "NIC firmware"),
    ("network.mtu", "MTU"),
    ("network.*", "network link"),
    ("infiniband.firmware", "HCA firmware"),
    ("infiniband.*", "InfiniBand link"),
    ("storage.devices.firmware", "SSD firmware"),
    ("storage.devices.*", "disks"),
    ("storage.mounts*", "mounts"),
    ("storage.raid*", "RAID"),
    ("runtime.cdi*", "CDI"),
    ("runtime.toolkit", "container toolkit"),
    ("runtime.*", "container engine"),
    ("services.*", "services"),
    ("packages.*", "packages"),
    ("time_sync.*", "time"),
    ("limits.*", "limits"),
)
_FINDING_TOPICS: tuple[tuple[str, str], ...] = (
    ("class.document", "class"),
    ("stack.lock", "packages"),
    ("stack.holds", "packages"),
    ("apt.sources", "packages"),
    ("kernel.*", "kernel"),
    ("boot.*", "kernel"),
    ("policy.power*", "power limit"),
    ("policy.clocks*", "clocks"),
    ("policy.ecc*", "ECC"),
    ("policy.mig*", "MIG"),
    ("policy.host.governor*", "CPU governor"),
    ("policy.host.swap*", "swap"),
    ("policy.host.hugepages*", "huge pages"),
    ("policy.host.transparent_hugepages*", "transparent huge pages"),
    ("policy.host.numa_balancing*", "NUMA balancing"),
    ("policy.host.cmdline*", "kernel command line"),
    ("policy.host.iommu*", "kernel command line"),
    ("policy.host.network*", "MTU"),
    ("policy.host.*", "host policy"),
    ("policy.*", "GPU policy"),
    ("blacklist*", "kernel modules"),
    ("driver.*", "driver"),
    ("modules*", "kernel modules"),
    ("module.loaded", "driver"),
    ("runtime.cdi*", "CDI"),
    ("runtime.toolkit", "container toolkit"),
    ("runtime.*", "container engine"),
    ("service*", "services"),
    ("watch.timer", "services"),
    ("gpu.count", "GPU count"),
    ("gpu.bound", "GPU count"),
    ("gpu.visible", "GPU count"),
    ("gpu.lost", "GPU state"),
    ("gpu.recovery_action", "GPU state"),
    ("gpu.vbios", "VBIOS"),
    ("gpu.inforom", "InfoROM"),
    ("gpu.ecc.*", "ECC"),
    ("gpu.sram", "ECC"),
    ("gpu.modes", "GPU policy"),
    ("gpu.remap*", "GPU memory repair"),
    ("gpu.retired_pages", "GPU memory repair"),
    ("gpu.repair", "GPU memory repair"),
    ("gpu.throttle*", "throttling"),
    ("gpu.temperature", "throttling"),
    ("gpu.power.*", "power limit"),
    ("gpu.max_clocks", "clocks"),
    ("gpu.uuid*", "GPU identity"),
    ("gpu.numa", "NUMA"),
    ("gpu.*", "GPU model"),
    ("fabric.manager", "fabric manager"),
    ("fabric.*", "fabric"),
    ("nvlink.*", "NVLink"),
    ("pcie.*", "PCIe"),
    ("pci.*", "PCIe"),
    ("cpu.layout", "CPU"),
    ("memory.total", "memory"),
    ("memory.edac", "memory"),
    ("net.mtu", "MTU"),
    ("net.firmware", "NIC firmware"),
    ("net.*", "network link"),
    ("ib.*", "InfiniBand link"),
    ("storage.mount", "mounts"),
    ("storage.*", "disks"),
    ("time.sync", "time"),
)
# Facts that vary on a healthy node, or that describe no state of it. No view compares them.
_VARYING = (
    "source",
    "simulated",
    "recorded",
    "events*",
    "gpu.throttle*",
    "gpu.power.enforced_w",
    "pci.link.gen",  # idle links run at a lower speed
    "pci.power_state",
    "pci.aer_reported*",
    "os.modules",
    "services.sub",
    "blocked*",
    "pci_unread",
)
# Facts that the nodes of a cohort must agree on (docs/explanation/rollouts.md), in the order in which it is shown.
AGREED = (
    "identity.class_digest",
    "driver.loaded",
    "os.kernel.running",
    "gpu.vbios",
    "gpu.gsp_firmware",
    "infiniband.firmware",
    "network.firmware",
    "fabric_manager.installed",
    "runtime.toolkit",
    "nccl.version",
)
# Identities whose change means that a part was replaced. Those of a boot are new at every boot.
_PARTS = ("*.serial", "*.mac", "*guid", "gpu.uuid")
_LOOSE = ("gpu.*",)  # parts that are interchangeable: their identity is no name that nodes share
# Facts that only some healthy nodes have.
_OPTIONAL = (
    "gpu.mig.instances",
    "packages.*",
    "os.module_files*",
    "runtime.cdi.missing",
    "pci.limits*",
)


@dataclass(frozen=True)
class ReportKey:
    """A key of facts or numbers as the views need it."""

    key: str
    section: str
    topic: str
    kind: str  # fact, part (identity of a part), or another kind that no view compares
    compared: bool
    loose: bool
    agree: bool
    named: bool  # a table names its topic
    optional: bool


@dataclass(frozen=True)
class PartKey:
    """A key that each of several equal parts has. `board`: it identifies the part itself."""

    key: str
    topic: str
    board: bool


@dataclass(frozen=True)
class RateRule:
    """A counter whose steady growth is a sign of wear. `stored`: the board stores it over boots."""

    pattern: str
    an_hour: float
    stored: bool


# Judgement, not a fact of a vendor: growth that is worth a line. The unit is events an hour.
# Corrected memory errors have the limit of the verdict (facts/health.yml).
RATES = (
    RateRule("gpu.ecc.aggregate.corrected", limits()["ecc_corrected_day"].value / 24, True),
    RateRule("gpu.ecc.volatile.corrected", limits()["ecc_corrected_day"].value / 24, False),
    RateRule("memory.edac.ce", limits()["edac_corrected_day"].value / 24, False),
    RateRule("gpu.remapped_rows.correctable", 0.02, True),
    RateRule("gpu.remapped_rows.uncorrectable", 0.02, True),
    RateRule("gpu.retired_pages.*", 0.02, True),
    RateRule("gpu.bad_pages.*", 0.02, True),
    RateRule("gpu.ecc.aggregate.*", 0.1, True),
    RateRule("gpu.ecc.volatile.*", 0.1, False),
    RateRule("gpu.ecc.sram.*", 0.1, True),
    RateRule("gpu.pcie.replay", 0.5, False),
    RateRule("gpu.nvlink.links.errors.*", 0.5, False),
    RateRule("pci.aer.*", 0.5, False),
    RateRule("memory.edac.*", 0.1, False),
    RateRule("network.carrier_changes", 0.2, False),
    RateRule("network.counters.*errors", 0.5, False),
    RateRule("infiniband.ports.*counters.*", 0.5, False),
    RateRule("storage.devices.smart.media_errors", 0.05, False),
)
_NO_RATES = ("*data*", "*packets*", "*bytes*", "*_wait", "*.lifespan")


@dataclass(frozen=True)
class MetricRule:
    """A performance metric. `margin` is the least loss, as a share, that makes a node slow."""

    pattern: str
    higher_is_better: bool
    margin: float


METRICS = (
    MetricRule("storage.paths.read_mb_s", True, 0.1),
    MetricRule("storage.paths.latency_ms", False, 0.5),
    MetricRule("performance.*_ms", False, 0.05),
    MetricRule("performance.*", True, 0.05),
)


def _first(text: str, table: Iterable[tuple[str, str]]) -> str | None:
    return next((topic for pattern, topic in table if fnmatchcase(text, pattern)), None)


def _any(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


@cache
def report_key(key: str) -> ReportKey:
    """Return what the views need of a key."""
    topic = _first(key, _KEY_TOPICS)
    kind_name = str(kind(key, number=False))
    if _any(key, _PARTS):
        kind_name = "part"
    return ReportKey(
        key=key,
        section=key.partition(".")[0],
        topic=topic or ".".join(key.split(".")[:2]),
        kind=kind_name,
        compared=not _any(key, _VARYING),
        loose=_any(key, _LOOSE),
        agree=key in AGREED,
        named=topic is not None or declared_kind(key) is KeyKind.FACT,
        optional=_any(key, _OPTIONAL),
    )


@cache
def part_key(key: str, number: bool) -> PartKey | None:
    """Return a key that each GPU of a node has alike; None for others, and for those that vary."""
    key_row = report_key(key)
    kinds = (KeyKind.FACT, KeyKind.COUNTER, KeyKind.GAUGE)
    if (
        not key_row.loose
        or key_row.optional
        or (key_row.kind != "part" and kind(key, number) not in kinds)
    ):
        return None
    board = key in {f"{key_row.section}.{field}" for field in PARTS[key_row.section]}
    return PartKey(key, key_row.topic, board) if board or key_row.compared else None


@cache
def finding_topic(finding: str) -> str:
    """Return the topic of a finding."""
    return _first(finding, _FINDING_TOPICS) or finding


def finding_is_loose(finding: str) -> bool:
    """Return whether the subject of a finding is one of several interchangeable parts."""
    return finding.startswith(("gpu.", "xid.", "sxid.", "nvlink."))


def rate(key: str) -> RateRule | None:
    """Return the rule of a counter; None for one whose growth is normal."""
    if _any(key, _NO_RATES):
        return None
    return next((rule for rule in RATES if fnmatchcase(key, rule.pattern)), None)


def metric(key: str) -> MetricRule | None:
    """Return the rule of a performance metric; None for another number."""
    return next((rule for rule in METRICS if fnmatchcase(key, rule.pattern)), None)
