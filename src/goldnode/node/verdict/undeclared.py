"""Judge a node that has no class: by the facts of the GPU models that it has.

Everything that the hardware, the driver and the kernel report of their own health is judged as with
a class. What only a class can declare (versions, settings, the number of GPUs, network, storage) is
listed with the value that was found. What this user may not read is listed too, and is not judged.
Nothing is written.
"""

from __future__ import annotations

import os
import time
from typing import cast

from .. import probe
from ..ground import boot
from ..ground.host import Host, Json
from ..ground.text import cleaned
from ..ground.typed import NamedTuple
from ..probe.binding import MARKS
from ..probe.values import is_fault, known
from ..state.domains import policy
from ..state.finding import ELSEWHERE, MISMATCH, UNREAD, Finding
from ..state.kinds import DEGRADED, NODE
from ..state.remedy import PERSON, Remedy
from . import binding, check, deltas, driver_support, rules, settings, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    from ..ground.document import ClassDocument

# The GPUs of the first of these vendors are judged: a processor's own graphics are not what the node is for.
VENDORS = (("nvidia", "10de"), ("amd", "1002"), ("intel", "8086"))
# Messages of files and of NVML (return code 4) that root would not get.
DENIED = (
    "permission denied",
    "operation not permitted",
    "insufficient permissions",
    "no permission",
)
# Kinds of reasons why something could not be read, by words of their texts.
REASONS = (
    ("permission", DENIED),
    (
        "no_driver",
        ("driver is loaded", "driver not loaded", "library was not asked", "shared library"),
    ),
    (
        "missing",
        (
            "not found",
            "not installed",
            "no such file",
            "systemd does not run",
            "no /sys",
            "no /proc",
        ),
    ),
    (
        "source",
        (
            "not in this capture",
            "output of nvidia-smi",
            "recorded capture",
            "container shows",
            "does not run",
        ),
    ),
)
# Findings that compare with the data sheet of the model. Nobody declared that this node must reach it.
BY_FACTS = ("pcie.width", "pcie.gen", "gpu.memory", "nvlink.active")
NO_GPU = Remedy(
    "Check `lspci` and the firmware's settings if there should be a GPU; without one, declare a class: "
    "`goldnode adopt`.",
    PERSON,
)

UNREADABLE = Remedy("Search dmesg for SUBJECT: the device or its bridge has failed.", PERSON)
NAMELESS = "a GPU without model and PCI id"
PCI_ID = len("10de:2330")


class KnownGpus(NamedTuple):
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
    *,
    declared: Optional[ClassDocument] = None,
) -> Json:
    """Return the verdict (schema goldnode.verdict/1) about a node without a class.

    `class` is None. Keys are added: `detected` describes GPUs and platform, `unjudged` lists what
    this user may not read or what the record does not state, as {id, subject, got}, `unread` all
    that could not be read, by reason, `undeclared` what a class would declare, as {item, found},
    `driver` findings by the facts about drivers, `advice` texts about models and driver, `facts`
    the date of the facts.

    :param facts: of :func:`goldnode.node.ground.known.facts`.
    :param captured: a recorded capture, which is judged in place of the host.
    :param declared: parts of a class document that need no lock; only for a recorded capture.
    """
    now = time.time() if now is None else now
    capture = live(host, passive) if captured is None else captured
    present = gpus(capture, facts)
    document = cast("ClassDocument", {**implied(capture, facts, present), **(declared or {})})
    # Nothing is stored on such a node, so that every counter is at its first reading.
    counted, _ = deltas.step({}, capture)
    counted.first_of_boot = False
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    judged = table.judge(document, capture, counted) + check.events(document, capture, {})[0]
    open_settings = settings.findings(capture, rules.as_map(document["health"].get("models")))
    if declared is not None:
        judged += _declared(document, capture)
        open_settings = [
            item for item in open_settings if item.id not in {row.id for row in judged}
        ]
    judged += open_settings
    driver = driver_support.findings(capture, facts, today)
    if capture.get("source") in rules.PARTIAL or capture.get("gpu_error") is not None:
        # A library that does not answer is `gpu.library`. An output of nvidia-smi has no second count of its GPUs;
        # with a class, `gpu.count` compares it.
        judged = [item for item in judged if item.id != "gpu.visible"]
    if present.vendor is None:
        judged.append(_no_gpu(capture))
    judged += _unread_functions(capture)
    judged += binding.finding(capture, present.vendor)
    root = captured is not None or os.geteuid() == 0
    mine = judged
    if declared is None:
        judged = [_milder(item) for item in judged]
        mine = [item for item in judged if not _left_out(item, capture, root)]
    verdict = check.summary(
        document, check.settled(document, check.one_each(mine), today, capture), now, passive
    )
    verdict.update(
        simulated=bool(capture.get("simulated")),
        boot_identity=rules.as_map(capture.get("identity")).get("boot_identity"),
        uptime=capture.get("uptime"),
        unjudged=[
            {"id": item.id, "subject": item.subject, "got": item.got}
            for item in judged
            if item not in mine
        ],
        undeclared=[
            row for row in undeclared(capture, present) if row["item"] not in _items(declared)
        ],
        unread=unread(judged, mine),
        detected=detected(capture, facts, present),
        driver=[check.as_json(item) for item in driver],
        advice=advice(capture, facts, present, driver),
        facts=facts["compiled"],
    )
    if captured is None:
        verdict["uptime"] = boot.uptime(host.text("/proc/uptime") or "")
    else:
        verdict["recorded"] = {
            "time": capture.get("time") or capture.get("recorded"),
            "source": capture.get("source"),
            "hostname": rules.as_map(capture.get("identity")).get("hostname"),
        }
    found_texts: Json = cleaned(verdict)
    return found_texts


def live(host: Host, passive: bool) -> Json:
    """Return the capture of this machine.

    Docker and Kubernetes do not set the variable by which systemd detects a container. Their marks
    count here and not for a node with a class: an image that was exported from a container has the
    files as well.
    """
    capture = probe.capture(host, None, passive)
    identity = capture.get("identity")
    if isinstance(identity, dict) and not is_fault(identity) and not identity.get("container"):
        try:
            environment = host.data("/proc/1/environ") or b""
        except OSError:
            environment = b""
        pod = any(item.startswith(b"KUBERNETES_SERVICE_HOST=") for item in environment.split(b"\0"))
        identity["container"] = pod or any(host.exists(name) for name in MARKS)
    return capture


# Findings about the stack, of which only a lock knows the versions.
STACK = ("kernel.running", "driver.loaded", "stack.lock", "boot.next", "node.files")


def _declared(document: ClassDocument, capture: Mapping[str, Any]) -> List[Finding]:
    """Return the findings about GPUs and policy of a class without its stack."""
    # The rules of a recorded capture read these sections, and a class without its lock has none of them.
    stack: Dict[str, Any] = {"kernel": {"release": None}, "driver": None, "packages": []}
    whole = cast("ClassDocument", {**document, **stack})
    return [item for item in check.of_record(whole, capture) if item.id not in STACK]


def _items(declared: Optional[ClassDocument]) -> List[str]:
    """Return the items of :func:`undeclared` that a class declares."""
    if declared is None:
        return []
    names = policy.items(declared) if policy.declares(declared) else []
    return ["os", "gpu.count", *(f"policy.{name}" for name in names)]


def _milder(finding: Finding) -> Finding:
    """Return a finding without the severity of a declaration: many clouds and boards give a GPU fewer lanes."""
    if finding.id in BY_FACTS and finding.severity != DEGRADED:
        return finding._replace(severity=DEGRADED)
    return finding


def _left_out(finding: Finding, capture: Mapping[str, Any], root: bool) -> bool:
    """Return whether an item is only listed: this user may not read it, the kernel's log is incomplete, or
    nvidia-smi does not print it.

    No class declared any of these. Events that an incomplete log still shows are judged.
    """
    if finding.id == "events.log" and finding.outcome == UNREAD:
        return True
    denied = finding.outcome == UNREAD and any(text in str(finding.got).lower() for text in DENIED)
    partial = capture.get("source") in rules.PARTIAL
    return (denied and not root) or (partial and finding.outcome == ELSEWHERE)


def unread(judged: List[Finding], mine: List[Finding]) -> List[Json]:
    """Return the values that could not be read, by reason: [{why, got, items}].

    `mine`: the findings of the verdict.
    """
    groups: Dict[Tuple[str, str], List[str]] = {}
    for item in judged:
        if item.id not in ("check", "gpu.bound") and (
            item not in mine or item.outcome in (UNREAD, ELSEWHERE)
        ):
            text = str(item.got)
            groups.setdefault((why(text), text), []).append(item.id)
    return [
        {"why": reason, "got": text, "items": list(dict.fromkeys(items))}
        for (reason, text), items in groups.items()
    ]


def why(text: str) -> str:
    """Return the kind of reason for which something could not be read."""
    lower = text.lower()
    for kind, words in REASONS:
        if any(word in lower for word in words):
            return kind
    return "other"


def detected(capture: Mapping[str, Any], facts: Mapping[str, Any], present: KnownGpus) -> Json:
    """Return GPUs by model and the platform, as texts."""
    rows = rules.rows_of(capture.get("gpus"))
    ids = [str(row.get("pci_id")) for row in rows if row.get("vendor") == present.vendor]
    # One PCI id may be of several models; the name that the GPU reports is used where the facts have none.
    names = {
        str(row.get("pci_id")): row["name"] for row in rows if isinstance(row.get("name"), str)
    }
    names.update({name: " or ".join(row["models"]) for name, row in facts["models"].items()})
    models = [names.get(name, _shown(name)) for name in ids]
    if not rows:
        models = [" or ".join(name) for name in present.models.values()]
    identity, system = rules.as_map(capture.get("identity")), rules.as_map(capture.get("os"))
    virtual, running = identity.get("virtual"), rules.fetch(system, "kernel.running")
    place = []
    if system.get("id"):
        place.append(f"{system['id']} {system.get('version') or ''}".strip())
    if isinstance(running, str) and running:
        place.append(f"kernel {running}")
    if identity.get("container"):
        place.append("a container")
    if isinstance(virtual, str) and virtual != "none":
        place.append(f"virtual machine ({virtual})")
    return {
        "gpus": [
            rules.sanitized(f"{models.count(name)} x {name}") for name in dict.fromkeys(models)
        ],
        "driver": driver_support.version_of(capture),
        "platform": [rules.sanitized(text) for text in place],
    }


def _no_gpu(capture: Mapping[str, Any]) -> Finding:
    pci: Any = capture.get("pci")
    text = "no GPU on the PCI bus"
    if is_fault(pci):
        text = f"the PCI bus could not be read: {pci['text']}"
    return Finding("check", UNREAD, "a GPU that can be judged", text, NO_GPU, blast=NODE)


def _unread_functions(capture: Mapping[str, Any]) -> List[Finding]:
    """Return a finding for each PCI function that cannot be identified: it may be a GPU that is left out."""
    return [
        Finding(
            "check",
            outcome=UNREAD,
            expected="a PCI id and a class that can be read",
            got=f"those of {address} cannot be read",
            remedy=UNREADABLE.about(address),
            subject=address,
            blast=NODE,
        )
        for address in (
            rules.sanitized(name, 20) for name in rules.as_list(capture.get("pci_unread"))
        )
    ]


def gpus(capture: Mapping[str, Any], facts: Mapping[str, Any]) -> KnownGpus:
    """Return the GPUs on the PCI bus, or those that the library lists if the bus shows none."""
    listed = rules.rows_of(capture.get("gpus"))
    on_bus = [
        row
        for row in rules.as_map(capture.get("pci")).values()
        if isinstance(row, dict) and row.get("kind") == "gpu"
    ]
    # The bus shows GPUs without a driver too; a record of nvidia-smi has only the library's list.
    for vendor, prefix in VENDORS:
        ids = [
            str(row.get("pci_id")) for row in on_bus if str(row.get("pci_id")).startswith(prefix)
        ]
        ids = ids or [str(row.get("pci_id")) for row in listed if row.get("vendor") == vendor]
        if ids:
            known = {
                name: facts["models"][name]["models"] for name in ids if name in facts["models"]
            }
            names = [
                rules.text_of(row.get("name")) or NAMELESS
                for row in listed
                if row.get("vendor") == vendor and str(row.get("pci_id")) not in known
            ]
            unknown = names or [_shown(name) for name in ids if name not in known]
            return KnownGpus(vendor, known, len(ids), list(dict.fromkeys(unknown)))
    return KnownGpus(None, {}, 0, [])


def implied(capture: Mapping[str, Any], facts: Mapping[str, Any], present: KnownGpus) -> Json:
    """Return the parts of a class document that follow from the hardware itself, for the rules."""
    names = list(dict.fromkeys(name for row in present.models.values() for name in row))
    ids = [name for name in facts["models"] if facts["models"][name]["vendor"] == present.vendor]
    on_bus = {
        str(row.get("pci_id"))
        for row in rules.as_map(capture.get("pci")).values()
        if isinstance(row, dict) and row.get("kind") == "gpu"
    }
    health = {key: facts[key] for key in ("limits", "cuda", "on_package") if key in facts}
    gpu = None
    if present.vendor is not None:
        gpu = {
            "vendor": present.vendor,
            "model": " or ".join(names) or "unknown",
            "count": present.number,
            "pci_ids": sorted({*ids, *on_bus}),
        }
    return {
        "class": None,
        "digest": None,
        "lock": {"digest": None},
        "stack": {"name": None, "exercised": None},
        "simulated": bool(capture.get("simulated")),
        "gpu": gpu,
        "platform": {"name": None, "nvswitch": _joined(capture)},
        "health": {
            **health,
            "gpu": {},
            "models": {name: facts["models"][name]["health"] for name in present.models},
        },
        "xid": facts["xid"],
        "policy": {},
        "baseline": {},
    }


def _joined(capture: Mapping[str, Any]) -> bool:
    """Return whether the GPUs belong to a fabric of NVSwitches: by the bus, or because a GPU has joined or
    waits to join one.
    """
    states = [rules.fetch(gpu, "fabric.state") for gpu in rules.as_list(capture.get("gpus"))]
    return bool(rules.as_list(capture.get("nvswitches"))) or any(
        state in ("completed", "in_progress") for state in states
    )


def advice(
    capture: Mapping[str, Any], facts: Mapping[str, Any], present: KnownGpus, driver: List[Finding]
) -> List[str]:
    """Return the faults of the driver by the facts, and gaps in the facts.

    They do not change the exit code, which is about the health of the node. A security bulletin
    does not make a GPU faulty.
    """
    texts = [f"{item.got}. {item.remedy}" for item in driver if item.outcome == MISMATCH]
    if present.unknown:
        names = ", ".join(rules.sanitized(name, 60) for name in present.unknown[:4])
        texts.append(
            f"{names}: not in the facts, so only what the GPU reports of itself is judged: memory size and NVLinks are "
            "not compared with the data sheet, the link only with what GPU and slot can do."
        )
    version = driver_support.version_of(capture)
    branch = (version or "").split(".")[0]
    if present.vendor == "nvidia" and branch and branch not in facts["branches"]:
        texts.append(f"Driver {rules.sanitized(version, 20)}: its branch is not in the facts.")
    return texts


def undeclared(capture: Mapping[str, Any], present: KnownGpus) -> List[Json]:
    """Return the items that a class would declare, each with the value found: {item, found}."""
    rows: List[Tuple[str, Any]] = []
    system = rules.as_map(capture.get("os"))
    if system.get("id"):
        rows.append(("os", f"{system.get('id')} {system.get('version')}"))
    rows.append(("kernel", rules.fetch(system, "kernel.running")))
    rows.append(("driver", rules.as_map(capture.get("driver")).get("reported")))
    gpus_of = rules.rows_of(capture.get("gpus"))
    if present.vendor is not None:
        rows.append(("gpu.count", present.number))
    for name, path in (
        ("policy.persistence_mode", "persistence_mode"),
        ("policy.compute_mode", "compute_mode"),
        ("policy.power_limit_watts", "power.limit_w"),
        ("policy.clocks.graphics_mhz", "clocks.application.graphics_mhz"),
        ("policy.clocks.memory_mhz", "clocks.application.memory_mhz"),
        ("policy.ecc", "ecc.pending"),
        ("policy.mig", "mig.pending"),
    ):
        values = [rules.fetch(row, path) for row in gpus_of]
        texts = dict.fromkeys(rules.shown(value) for value in values if known(value))
        rows.append((name, ", ".join(texts) or None))
    widths = filter(None, (settings.unjudged_width(capture, row) for row in gpus_of))
    rows.append(("pcie.width", next(widths, None)))
    for section in ("network", "infiniband"):
        names = sorted(rules.as_map(capture.get(section)))
        rows.append((f"baseline.{section}", ", ".join(names[:8]) or None))
    unusual = settings.unusual(capture)
    listed: List[Json] = []
    for name, value in rows:
        if known(value) and not isinstance(value, int):
            value = rules.sanitized(f"{value}, {unusual[name]}" if name in unusual else value)
        if known(value):
            listed.append({"item": name, "found": value})
    return listed


def _shown(pci_id: str) -> str:
    """Return a PCI id as a report shows it. A record may hide it, and then holds a fault in its place."""
    return pci_id if len(pci_id) == PCI_ID else NAMELESS
