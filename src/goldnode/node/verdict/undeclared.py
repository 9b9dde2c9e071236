"""Judge a node that has no class: by the facts of the GPU models that it has.

Everything that the hardware, the driver and the kernel report of their own health is judged as with a class.
What only a class can declare (versions, settings, the number of GPUs, network, storage) is listed with the
value that was found. What this user may not read is listed too, and is not judged. Nothing is written.
"""

from __future__ import annotations

import os
import time

from .. import boot, probe
from ..host import Host, Json
from ..plain import NamedTuple, replace
from ..probe.values import is_fault
from ..state.debversion import compare
from ..state.finding import UNREAD, Finding, ordered
from ..state.kinds import DEGRADED, NODE
from ..state.remedy import PERSON, Remedy
from . import check, deltas, rules, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

# The GPUs of the first of these vendors are judged: a processor's own graphics are not what the node is for.
VENDORS = (("nvidia", "10de"), ("amd", "1002"), ("intel", "8086"))
# Messages of files and of NVML (return code 4) that root would not get.
DENIED = ("permission denied", "operation not permitted", "insufficient permissions", "no permission")
# Findings that compare with the data sheet of the model. Nobody declared that this node must reach it.
BY_FACTS = ("pcie.width", "pcie.gen", "gpu.memory", "nvlink.active")
NO_GPU = Remedy(
    "Check `lspci` and the firmware's settings if there should be a GPU; without one, declare a class: "
    "`goldnode adopt`.",
    PERSON,
)


class Found(NamedTuple):
    """The GPUs of a capture: vendor, models by PCI id, and their number."""

    vendor: Optional[str]
    models: Dict[str, List[str]]
    number: int
    unknown: List[str]


def examine(
    host: Host,
    facts: Mapping[str, Any],
    passive: bool = False,
    captured: Optional[Mapping[str, Any]] = None,
    now: Optional[float] = None,
) -> Json:
    """Return the verdict (schema goldnode.verdict/1) about a node without a class.

    `class` is None. Keys are added: `unjudged` lists what this user may not read, as {id, subject, got},
    `undeclared` what a class would declare, as {item, found}, `advice` texts about models and driver, `facts`
    the date of the facts.

    :param facts: of :func:`goldnode.node.known.facts`.
    :param captured: a recorded capture, which is judged in place of the host.
    """
    now = time.time() if now is None else now
    capture = probe.capture(host, None, passive) if captured is None else captured
    found = gpus(capture, facts)
    document = implied(capture, facts, found)
    counted, _ = deltas.step({}, capture)
    counted.first_of_boot = False
    judged = table.judge(document, capture, counted) + check.events(document, capture, {})[0]
    if found.vendor is None:
        judged.append(_no_gpu(capture))
    judged = [_milder(item) for item in judged]
    root = captured is not None or os.geteuid() == 0
    mine = [item for item in judged if root or not _denied(item)]
    verdict = check.summary(document, ordered(check.one_each(mine), sets_gpus=False), now, passive)
    verdict.update(
        simulated=bool(capture.get("simulated")),
        boot_identity=rules.as_map(capture.get("identity")).get("boot_identity"),
        uptime=capture.get("uptime")
        if captured is not None
        else boot.uptime(host.text("/proc/uptime") or ""),
        unjudged=[
            {"id": item.id, "subject": item.subject, "got": item.got} for item in judged if item not in mine
        ],
        undeclared=undeclared(capture, found),
        advice=advice(capture, facts, found, time.strftime("%Y-%m-%d", time.gmtime(now))),
        facts=facts["compiled"],
    )
    if captured is not None:
        verdict["recorded"] = {
            "time": capture.get("time"),
            "source": capture.get("source"),
            "hostname": rules.as_map(capture.get("identity")).get("hostname"),
        }
    return verdict


def _milder(finding: Finding) -> Finding:
    """Return a finding without the severity of a declaration: many clouds and boards give a GPU fewer lanes."""
    if finding.id in BY_FACTS and finding.severity != DEGRADED:
        return replace(finding, severity=DEGRADED)
    return finding


def _denied(finding: Finding) -> bool:
    return finding.outcome == UNREAD and any(text in str(finding.got).lower() for text in DENIED)


def _no_gpu(capture: Mapping[str, Any]) -> Finding:
    pci = capture.get("pci")
    unread = isinstance(pci, dict) and is_fault(pci)
    text = f"the PCI bus could not be read: {pci['text']}" if pci and unread else "no GPU on the PCI bus"
    return Finding("check", UNREAD, "a GPU that can be judged", text, NO_GPU, blast=NODE)


def gpus(capture: Mapping[str, Any], facts: Mapping[str, Any]) -> Found:
    """Return the GPUs that the PCI bus shows, or else those that the library lists."""
    listed = [row for row in rules.as_list(capture.get("gpus")) if isinstance(row, dict)]
    on_bus = [
        row
        for row in rules.as_map(capture.get("pci")).values()
        if isinstance(row, dict) and row.get("kind") == "gpu"
    ]
    for vendor, prefix in VENDORS:
        ids = [str(row.get("pci_id")) for row in on_bus if str(row.get("pci_id")).startswith(prefix)]
        ids = ids or [str(row.get("pci_id")) for row in listed if row.get("vendor") == vendor]
        if ids:
            known = {name: facts["models"][name]["models"] for name in ids if name in facts["models"]}
            names = [
                str(row.get("name") or row.get("pci_id"))
                for row in listed
                if row.get("vendor") == vendor and row.get("pci_id") not in known
            ]
            unknown = names or [name for name in ids if name not in known]
            return Found(vendor, known, len(ids), list(dict.fromkeys(unknown)))
    return Found(None, {}, 0, [])


def implied(capture: Mapping[str, Any], facts: Mapping[str, Any], found: Found) -> Json:
    """Return the parts of a class document that follow from the hardware itself, for the rules."""
    names = list(dict.fromkeys(name for row in found.models.values() for name in row))
    ids = [name for name in facts["models"] if facts["models"][name]["vendor"] == found.vendor]
    on_bus = {
        str(row.get("pci_id"))
        for row in rules.as_map(capture.get("pci")).values()
        if isinstance(row, dict) and row.get("kind") == "gpu"
    }
    health = {key: facts[key] for key in ("limits", "cuda", "on_package") if key in facts}
    return {
        "class": None,
        "digest": None,
        "lock": {"digest": None},
        "stack": {"name": None, "exercised": None},
        "simulated": bool(capture.get("simulated")),
        "gpu": None
        if found.vendor is None
        else {
            "vendor": found.vendor,
            "model": " or ".join(names) or "unknown",
            "count": found.number,
            "pci_ids": sorted({*ids, *on_bus}),
        },
        "platform": {"name": None, "nvswitch": bool(rules.as_list(capture.get("nvswitches")))},
        "health": {
            **health,
            "gpu": {},
            "models": {name: facts["models"][name]["health"] for name in found.models},
        },
        "xid": facts["xid"],
        "policy": {},
        "baseline": {},
    }


def advice(capture: Mapping[str, Any], facts: Mapping[str, Any], found: Found, today: str) -> List[str]:
    """Return what the facts say of models and driver; it does not change the verdict."""
    texts = []
    if found.unknown:
        names = ", ".join(rules.plain(name, 60) for name in found.unknown[:4])
        texts.append(
            f"{names}: not in the facts, so only what the GPU reports of itself is judged (link, memory and "
            "features are not compared)."
        )
    have = rules.as_map(capture.get("driver"))
    version = have.get("reported") or have.get("loaded")
    if found.vendor != "nvidia" or not isinstance(version, str):
        return texts
    branch = version.split(".")[0]
    row = facts["branches"].get(branch)
    if row is None:
        return [*texts, f"Driver {rules.plain(version, 20)}: its branch is not in the facts."]
    ends = row.get("end_of_life")
    if ends and today[: len(ends)] > ends:
        texts.append(
            f"Driver branch {branch} reached its end of life on {ends}: plan the move to a supported branch."
        )
    security = row.get("security")
    if security and not security["fixed"]:
        newer = [
            name for name in facts["branches"] if facts["branches"][name].get("security", {}).get("fixed")
        ]
        texts.append(
            f"No version of driver branch {branch} has the fixes of the newest security bulletin; branches with them: "
            f"{', '.join(newer)}."
        )
    elif security and compare(version, security["floor"]) < 0:
        texts.append(
            f"Driver {version} lacks security fixes of bulletin {security['bulletin']} ({security['date']}): "
            f"update to {security['floor']} or newer."
        )
    return texts


def undeclared(capture: Mapping[str, Any], found: Found) -> List[Json]:
    """Return what a class would declare, each with the value found: {item, found}."""
    rows: List[Tuple[str, Any]] = []
    system = rules.as_map(capture.get("os"))
    if system.get("id"):
        rows.append(("os", f"{system.get('id')} {system.get('version')}"))
    running = rules.fetch(system, "kernel.running")
    rows.append(("kernel", running))
    rows.append(("driver", rules.as_map(capture.get("driver")).get("reported")))
    if found.vendor is not None:
        rows.append(("gpu.count", found.number))
    for name, path in (
        ("policy.persistence_mode", "persistence_mode"),
        ("policy.compute_mode", "compute_mode"),
        ("policy.power_limit_watts", "power.limit_w"),
        ("policy.clocks.graphics_mhz", "clocks.application.graphics_mhz"),
        ("policy.clocks.memory_mhz", "clocks.application.memory_mhz"),
        ("policy.ecc", "ecc.pending"),
        ("policy.mig", "mig.pending"),
    ):
        values = [
            rules.fetch(row, path) for row in rules.as_list(capture.get("gpus")) if isinstance(row, dict)
        ]
        known = list(
            dict.fromkeys(_text(value) for value in values if value is not None and not is_fault(value))
        )
        rows.append((name, ", ".join(known) if known else None))
    for section in ("network", "infiniband"):
        names = sorted(rules.as_map(capture.get(section)))
        rows.append((f"baseline.{section}", ", ".join(names[:8]) if names else None))
    return [
        {"item": name, "found": value if isinstance(value, int) else rules.plain(value)}
        for name, value in rows
        if value is not None and not is_fault(value)
    ]


def _text(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
