"""Class baseline from captures of good nodes.

A proposal holds the values that all captures share, and a note about each value that differs.

Every later check compares nodes with the baseline, so only captures without doubts qualify
(:func:`doubts`). They must pass the rules of the health check with the facts about their GPU model.
The lifetime error counters of every card must be zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from goldnode.classdoc.gpu_facts import health_facts
from goldnode.facts import host as facts
from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.text import phrase
from goldnode.node.probe.values import is_fault
from goldnode.node.state.finding import DEFERRED, ELSEWHERE, MATCH, MISMATCH
from goldnode.node.verdict import deltas, rules, table
from goldnode.node.verdict.rules import as_list, as_map, fetch, is_number

Json = dict[str, Any]

# Findings about the node's hardware, which a reason can justify. All other findings mean that
# something is broken.
BY_DESIGN = ("gpu.memory", "pcie.width", "pcie.gen", "nvlink.active")
# Units that belong to the hardware. A container engine is stopped while a boot check runs, so it is
# not in a baseline.
UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "openibd.service",
    "chrony.service",
)
# Lifetime counters that must be zero on an exemplary node: path in a GPU, description.
CLEAN = (
    ("ecc.aggregate.uncorrected", "uncorrected errors in the card's life"),
    ("remapped_rows.uncorrectable", "rows remapped for uncorrectable errors"),
    ("retired_pages.double_bit", "pages retired for uncorrectable errors"),
)


@dataclass
class BaselineProposal:
    """A proposed `baseline`, and a sentence for each value that was left out."""

    baseline: Json
    notes: list[str] = field(default_factory=list)


def model_of(capture: Mapping[str, Any]) -> str | None:
    """Return the GPU model of the facts whose PCI ids cover all GPUs of a capture.

    None if no model matches, or the capture has no GPU.
    """
    ids = {row.get("pci_id") for row in as_list(capture.get("gpus")) if isinstance(row, dict)}
    names = [name for name, row in facts.gpus().items() if ids and ids <= set(row.pci_ids)]
    # Models can share a PCI id: prefer the one whose memory size matches.
    memory = {fetch(row, "memory.total_mib") for row in as_list(capture.get("gpus"))}
    near = [
        name
        for name in names
        if any(is_number(size) and _near(size, facts.gpu(name).memory_mib) for size in memory)
    ]
    return next(iter([*near, *names]), None)


def _near(size: float, stated: int | None) -> bool:
    # A driver may reserve a part of the memory, as in `checks._VRAM`.
    return stated is not None and abs(size - stated) <= 0.05 * stated


def doubts(
    capture: Mapping[str, Any], model: str | None, nvswitch: bool = False, reason: str | None = None
) -> list[str]:
    """Return the reasons why a capture is not one of a good node; empty for a good node. Pure.

    :param nvswitch: whether the platform connects all GPUs, so that the facts' number of NVLinks applies.
    :param reason: why links and sizes may differ from the facts; those differences are then accepted.
    """
    gpus = as_list(capture.get("gpus"))
    document: Json = {
        "platform": {"nvswitch": nvswitch},
        "health": health_facts(model),
        "baseline": {},
        "policy": {},
        "gpu": None,
    }
    if model is not None:
        known = facts.gpu(model)
        document["gpu"] = {
            "vendor": known.vendor,
            "model": model,
            "count": len(gpus),
            "pci_ids": list(known.pci_ids),
        }
    # A capture has no history. Work may be running, so rules for the first check of a boot do not
    # apply.
    counted, _ = deltas.step({}, capture)
    counted.first_of_boot = False
    reasons = []
    for item in table.judge(cast(ClassDocument, document), capture, counted):
        designed = reason is not None and item.outcome == MISMATCH and item.id in BY_DESIGN
        if (
            item.outcome not in (MATCH, DEFERRED, ELSEWHERE)
            and not designed
            and item.expected is not None
        ):
            about = phrase(" of {}", item.subject)
            reasons.append(
                f"{item.id}{about}: {item.got} (want {item.expected})"
                + "".join(f"; {text}" for text in item.evidence[:2])
            )
    for row in gpus:
        for path, what in CLEAN:
            value = fetch(row, path)
            if is_number(value) and value > 0:
                reasons.append(f"{as_map(row).get('address')} has {value} {what}")
    events = as_map(capture.get("events"))
    reported = [
        row
        for row in as_list(events.get("rows"))
        if isinstance(row, dict) and row.get("kind") not in ("oom", "link_down")
    ]
    reasons += [
        f"the kernel's log says: {rules.sanitized(row.get('text'), 120)}" for row in reported[:4]
    ]
    if is_fault(capture.get("events")) or events.get("truncated") is True:
        reasons.append("the kernel's log could not be read from its beginning")
    if capture.get("simulated"):
        reasons.append("its hardware is simulated")
    return reasons


def propose(
    captures: Sequence[tuple[str, Mapping[str, Any]]], reason: str | None = None
) -> BaselineProposal:
    """Return the values that captures (name, content) have in common.

    Pure. The captures must pass :func:`doubts`.
    """
    proposal = BaselineProposal({})
    gpu = _gpus(captures, reason, proposal.notes)
    if gpu:
        proposal.baseline["gpu"] = gpu
    for key, make in (
        ("cpu", _cpu),
        ("memory", _memory),
        ("network", _network),
        ("infiniband", _infiniband),
        ("storage", _storage),
    ):
        value = make([capture for _, capture in captures], proposal.notes)
        if value:
            proposal.baseline[key] = value
    active = [
        {
            name
            for name, row in as_map(capture.get("services")).items()
            if fetch(row, "active") == "active"
        }
        for _, capture in captures
    ]
    units = [name for name in UNITS if all(name in names for names in active)]
    if units:
        proposal.baseline["services"] = units
    proposal.notes.append(
        "mounts, paths and kernel modules are not proposed: which of them work needs is for you to say"
    )
    return proposal


def _same(values: Sequence[Any], what: str, notes: list[str]) -> Any:
    """Return the value that all captures share; None, with a note, if it differs or is missing in some."""
    known = [value for value in values if value is not None and not is_fault(value)]
    if not known:
        return None
    if len(known) < len(values):
        notes.append(f"{what} is left out: not every capture has it")
        return None
    if any(value != known[0] for value in known):
        shown = ", ".join(dict.fromkeys(str(value) for value in known))
        notes.append(f"{what} is left out: it differs ({rules.sanitized(shown)})")
        return None
    return known[0]


def _gpus(
    captures: Sequence[tuple[str, Mapping[str, Any]]], reason: str | None, notes: list[str]
) -> Json:
    rows = [
        row
        for _, capture in captures
        for row in as_list(capture.get("gpus"))
        if isinstance(row, dict) and not is_fault(row)
    ]
    if not rows:
        return {}
    common: Json = {}
    for key, path in (("vbios", "vbios"), ("subsystem_ids", "subsystem_id")):
        values = sorted(
            {str(fetch(row, path)) for row in rows if isinstance(fetch(row, path), str)}
        )
        if values:
            common[key] = values
    sizes = sorted(
        {
            int(fetch(row, "memory.total_mib"))
            for row in rows
            if is_number(fetch(row, "memory.total_mib"))
        }
    )
    if sizes:
        common["memory_mib"] = sizes
    for key in ("vbios", "subsystem_ids", "memory_mib"):
        if len(common.get(key, ())) > 1:
            notes.append(
                f"baseline.gpu.{key} has {len(common[key])} values, all taken for right: "
                f"{', '.join(map(str, common[key]))}"
            )
    pcie = {
        "gen": _same([_most(row) for row in rows], "baseline.gpu.pcie.gen", notes),
        "width": _same(
            [fetch(row, "pcie.width.current") for row in rows], "baseline.gpu.pcie.width", notes
        ),
    }
    common["pcie"] = {key: value for key, value in pcie.items() if is_number(value)}
    common["nvlinks"] = _same([_active(row) for row in rows], "baseline.gpu.nvlinks", notes)
    common["bar1_mib"] = _same(
        [fetch(row, "memory.bar1_mib") for row in rows], "baseline.gpu.bar1_mib", notes
    )
    common["max_clocks"] = _same([_clocks(row) for row in rows], "baseline.gpu.max_clocks", notes)
    nodes = [
        {
            str(address): fetch(row, "node")
            for address, row in as_map(fetch(capture, "numa.affinity")).items()
            if address in {as_map(gpu).get("address") for gpu in as_list(capture.get("gpus"))}
            and is_number(fetch(row, "node"))
        }
        for _, capture in captures
    ]
    common["numa"] = _same([node or None for node in nodes], "baseline.gpu.numa", notes)
    if reason is not None:
        common["reason"] = reason
    return {key: value for key, value in common.items() if value not in (None, {}, [])}


def _most(row: Mapping[str, Any]) -> Any:
    """Return the highest generation of a GPU's PCIe link: an idle link trains down."""
    known = [
        value
        for value in (fetch(row, "pcie.gen.current"), fetch(row, "pcie.gen.max"))
        if is_number(value)
    ]
    return max(known) if known else None


def _active(row: Mapping[str, Any]) -> int | None:
    links = fetch(row, "nvlink.links")
    if not isinstance(links, list):
        return None
    return sum(1 for link in links if as_map(link).get("active") is True)


def _clocks(row: Mapping[str, Any]) -> Json | None:
    clocks = {
        key: fetch(row, f"clocks.max.{key}") for key in ("graphics_mhz", "sm_mhz", "memory_mhz")
    }
    return {key: value for key, value in clocks.items() if is_number(value)} or None


def _cpu(captures: Sequence[Mapping[str, Any]], notes: list[str]) -> Json:
    common = {
        key: _same(
            [fetch(capture, f"cpu.{key}") for capture in captures], f"baseline.cpu.{key}", notes
        )
        for key in ("sockets", "cores", "smt")
    }
    return {key: value for key, value in common.items() if value is not None}


def _memory(captures: Sequence[Mapping[str, Any]], notes: list[str]) -> Json:
    sizes = [fetch(capture, "memory.total_mib") for capture in captures]
    known = [size for size in sizes if is_number(size)]
    if len(known) < len(sizes) or not known:
        return {}
    if max(known) > min(known) * 1.01:
        notes.append(f"baseline.memory is left out: it differs ({min(known)} to {max(known)} MiB)")
        return {}
    return {"total_gib": int(min(known)) // 1024}


def _network(captures: Sequence[Mapping[str, Any]], notes: list[str]) -> Json:
    def of(capture: Mapping[str, Any]) -> Json:
        rows = as_map(capture.get("network"))
        return {
            name: row
            for name, row in rows.items()
            if isinstance(row, dict) and row.get("address") and row.get("state") == "up"
        }

    common: Json = {}
    for name in _names([of(capture) for capture in captures], "baseline.network", notes):
        rows = [of(capture)[name] for capture in captures]
        entry = {
            key: _same([row.get(key) for row in rows], f"baseline.network.{name}.{key}", notes)
            for key in ("mtu", "speed_mbps", "numa_node")
        }
        entry["firmware"] = _firmware(rows)
        common[name] = {
            key: value
            for key, value in entry.items()
            # The kernel gives -1 for a speed that it does not know.
            if value not in (None, []) and not (key == "speed_mbps" and value <= 0)
        }
    return common


def _firmware(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(
        {
            # mlx5 appends the board id: "22.31.1014 (MT_0000000359)".
            str(row["firmware"]).split()[0]
            for row in rows
            if isinstance(row.get("firmware"), str) and row["firmware"].strip()
        }
    )


def _names(rows: Sequence[Json], what: str, notes: list[str]) -> list[str]:
    """Return the names that every capture has, and add a note for each other name."""
    common = sorted(set.intersection(*(set(row) for row in rows)))
    notes += [
        f"{what}.{name} is left out: not every capture has it"
        for name in sorted(set().union(*rows) - set(common))
    ]
    return common


def _infiniband(captures: Sequence[Mapping[str, Any]], notes: list[str]) -> Json:
    def of(capture: Mapping[str, Any]) -> Json:
        rows = as_map(capture.get("infiniband"))
        return {
            name: row
            for name, row in rows.items()
            if as_map(fetch(row, "ports"))
            and all(
                fetch(port, "state") == "active" for port in as_map(fetch(row, "ports")).values()
            )
        }

    common: Json = {}
    for name in _names([of(capture) for capture in captures], "baseline.infiniband", notes):
        rows = [of(capture)[name] for capture in captures]
        rates = [fetch(port, "rate_gbps") for row in rows for port in row["ports"].values()]
        rate = _same(rates, f"baseline.infiniband.{name}.rate_gbps", notes)
        ports = _same(
            [len(row["ports"]) for row in rows], f"baseline.infiniband.{name}.ports", notes
        )
        entry = {
            "rate_gbps": int(rate) if is_number(rate) else None,
            "ports": ports,
            "firmware": _firmware(rows),
        }
        common[name] = {key: value for key, value in entry.items() if value not in (None, [])}
    return common


def _storage(captures: Sequence[Mapping[str, Any]], notes: list[str]) -> Json:
    devices = [as_map(fetch(capture, "storage.devices")) for capture in captures]
    if not all(devices):
        return {}
    count = _same([len(rows) for rows in devices], "baseline.storage.devices.count", notes)
    models = sorted(
        {
            str(fetch(row, "model")).strip()
            for rows in devices
            for row in rows.values()
            if isinstance(fetch(row, "model"), str)
        }
    )
    stated = {"count": count, "models": [model for model in models if model]}
    storage = {key: value for key, value in stated.items() if value not in (None, [])}
    return {"devices": storage} if storage else {}
