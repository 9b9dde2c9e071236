"""check(): a node held against its class. Every declared item ends in one outcome, and what could not be looked at never counts as good."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional

from .. import boot
from ..host import Host
from ..state.domains import apt, program
from ..state.domains import driver as driver_domain
from ..state.engine import DOMAINS, judge, look
from ..state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding, judge_item, place
from ..state.model import Observed, Plan
from ..state.observe import digest
from ..state.preflight import unread
from . import current

SCHEMA = current.SCHEMA
VERDICT = current.VERDICT

# Exit codes (design, section 6).
HEALTHY, DEGRADED, DRAIN, UNKNOWN, NOT_THIS_CLASS = 0, 1, 2, 3, 4
STATUS = {
    HEALTHY: "healthy",
    DEGRADED: "degraded",
    DRAIN: "drain",
    UNKNOWN: "could_not_check",
    NOT_THIS_CLASS: "not_this_class",
}


def check(host: Host, document: Mapping[str, Any], now: Optional[float] = None, passive: bool = False) -> Dict[str, Any]:
    """Observe the host and judge it. Returns the verdict (schema goldnode.verdict/1); writes nothing.

    :param passive: put no load on the node that the work there would feel. Every item is judged all the same.
    """
    seen = look(host, document)
    plan = judge(document, seen, {})
    findings = find(document, seen, plan)
    code = exit_code(findings)
    return {
        "schema": SCHEMA,
        "class": document["class"],
        "class_digest": document["digest"],
        "lock_digest": document["lock"]["digest"],
        "stack": document["stack"]["name"],
        "exercised": document["stack"]["exercised"],
        "simulated": document["simulated"] or seen.simulated,
        "boot_identity": seen.boot_identity,
        "uptime": boot.uptime(host.text("/proc/uptime") or "") if host.live else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "passive": passive,
        "status": STATUS[code],
        "exit_code": code,
        "counts": {outcome: sum(f.outcome == outcome for f in findings) for outcome in (MATCH, MISMATCH, NOT_EXPOSED, UNREAD, ELSEWHERE)},
        "findings": [asdict(finding) for finding in findings],
    }


def exit_code(findings: List[Finding]) -> int:
    """The worst of the findings; an item that could not be judged outranks `degraded`, since it may hide a `drain`."""
    bad = [finding for finding in findings if finding.outcome == MISMATCH]
    if any(finding.id in ("node.os", "gpu.ids") for finding in bad):
        return NOT_THIS_CLASS
    if any(finding.severity == "drain" for finding in bad):
        return DRAIN
    if any(finding.outcome in (UNREAD, ELSEWHERE) for finding in findings) or not findings:
        return UNKNOWN
    return DEGRADED if bad else HEALTHY


def find(document: Mapping[str, Any], seen: Observed, plan: Plan) -> List[Finding]:
    """One finding per declared item. Pure."""
    found = _identity(document, seen) + _kernel(document, seen)
    if document.get("driver"):
        found += _driver(document, seen)
    found += [Finding(name, ELSEWHERE, "degraded", "as declared", "this version neither sets nor reads it") for name in unread(document)]
    for domain in DOMAINS:
        found += domain.findings(document, seen)
    found += _kept_out(document, seen) + _stack(document, seen, plan) + _next_boot(document, seen, plan)
    return found


def _identity(document: Mapping[str, Any], seen: Observed) -> List[Finding]:
    wanted = document["os"]
    have = f"{seen.os.get('id')} {seen.os.get('version')}"
    found = [
        judge_item(
            "node.os",
            f"{wanted['id']} {wanted['version']}",
            have,
            "drain",
            "Reinstall the node, or move it to the class of its release.",
        )
    ]
    gpu = document.get("gpu")
    if gpu:
        elsewhere = place(seen) or ("the class declares simulated GPUs" if document["simulated"] else None)
        if seen.simulated and seen.gpus is not None:  # a simulator's bus, which is this node's own
            elsewhere = None
        ids = sorted({str(item["id"]) for item in seen.gpus or []})
        foreign = [item for item in ids if item not in gpu["pci_ids"]]
        found.append(
            judge_item(
                "gpu.ids",
                f"{gpu['model']} only",
                f"{gpu['model']} only" if not foreign else ", ".join(foreign),
                "drain",
                "Move the node to the class of its GPUs.",
                elsewhere,
            )
        )
        count = f"{len(seen.gpus or [])}"
        driver = {"nvidia": "nvidia", "amd": "amdgpu"}.get(gpu["vendor"], "a driver")
        unbound = [f"{item['address']} ({item['driver'] or 'no driver'})" for item in seen.gpus or [] if item["driver"] != driver]
        found.append(
            judge_item(
                "gpu.bound",
                driver,
                ", ".join(unbound) or driver,
                "drain",
                f"See dmesg for why {driver} did not take the GPU, and lspci -k for who did.",
                elsewhere,
            )
        )
        found.append(
            judge_item(
                "gpu.count",
                f"{gpu['count']}",
                count,
                "drain",
                "A GPU is missing on the PCI bus: reseat or replace it, power-cycle the node.",
                elsewhere,
            )
        )
    return found


def _kernel(document: Mapping[str, Any], seen: Observed) -> List[Finding]:
    release = document["kernel"]["release"]
    return [
        judge_item(
            "kernel.running",
            release,
            seen.running_kernel,
            "drain",
            f"Boot {release}: `goldnode_reboot=true` with site.yml, or reboot the node.",
            place(seen),
        )
    ]


def _driver(document: Mapping[str, Any], seen: Observed) -> List[Finding]:
    driver, release = document["driver"], document["kernel"]["release"]
    elsewhere = place(seen) or ("the class declares simulated GPUs" if document["simulated"] else None)
    version = driver["version"]
    found = []
    if not driver["in_tree"]:
        fault = driver_domain.module_fault(document, seen.modules.get(release))
        want = f"{driver['module']} {version} ({driver['flavour']}) for {release}"
        found.append(
            judge_item(
                "driver.module_file",
                want,
                want if fault is None else fault,
                "drain",
                f"Run site.yml: it {'installs' if driver.get('built') else 'builds'} the module, and tells why when it cannot.",
            )
        )
        loaded = seen.loaded.get("nvidia")
        found.append(
            judge_item(
                "driver.loaded",
                version,
                loaded,
                "drain",
                "Reboot the node: what is loaded is not what is installed.",
                elsewhere,
            )
        )
    else:
        loaded = driver["module"] if driver["module"] in seen.loaded else None
        found.append(
            judge_item(
                "driver.loaded",
                driver["module"],
                loaded,
                "drain",
                f"See why {driver['module']} is not loaded: dmesg.",
                elsewhere,
            )
        )
    name = driver.get("library")
    if name:
        file = (seen.library or "").rpartition("/")[2]
        got = file.split(".so.", 1)[1] if ".so." in file else None
        found.append(
            judge_item(
                "driver.library",
                version,
                got,
                "drain",
                f"Run site.yml: {name} is of another version than the module, and CUDA will not start.",
            )
        )
    return found


def _kept_out(document: Mapping[str, Any], seen: Observed) -> List[Finding]:
    found = []
    for module in document["blacklist"]:
        inside = sorted(
            {
                f"initramfs of {release}"
                for release, image in seen.initramfs.items()
                if any(module in path.replace("-", "_") for path in image.get("unwanted", ()))
            }
        )
        where = inside + ([f"loaded (driver of {', '.join(_bound(seen, module)) or 'no GPU'})"] if module in seen.loaded else [])
        where += [f"{row['file']}:{row['line']}" for row in seen.forced if row["module"].replace("-", "_") == module]
        found.append(judge_item(f"blacklist.{module}", "kept out", ", ".join(where) or "kept out", "drain", "Run site.yml, then reboot."))
    unread = [f"{release}: {image['error']}" for release, image in seen.initramfs.items() if "error" in image]
    if unread and document["blacklist"]:
        found.append(
            Finding(
                "blacklist.initramfs",
                UNREAD,
                "degraded",
                "an initramfs that can be listed",
                "; ".join(unread),
                "Install the compressor it was made with (zstd, lz4).",
            )
        )
    return found


def _bound(seen: Observed, module: str) -> List[str]:
    return [str(gpu["address"]) for gpu in seen.gpus or [] if gpu["driver"] == module]


def _stack(document: Mapping[str, Any], seen: Observed, plan: Plan) -> List[Finding]:
    """Drift: whatever the engine would change, in the groups in which a person thinks of it."""
    wrong = [
        f"{p['name']} {seen.version(p['name']) or 'missing'} (want {p['version']})"
        for p in document["packages"]
        if seen.version(p["name"]) != p["version"]
    ]
    free = [p["name"] for p in document["packages"] if not seen.packages.get(p["name"], {}).get("hold")]
    total = len(document["packages"])
    moves = next((action for action in plan.actions if action.kind == "packages.transact"), None)
    if moves and not wrong:  # the set is there, and somebody brought other members of the family
        wrong = list(moves.data["lines"])
    foreign = [refusal.message for refusal in apt.refusals(document, seen)]
    lock = f"{total} packages as locked"
    held = f"{total} packages on hold"
    rest = [a for a in plan.actions if a.kind in ("file.write", "file.remove", "file.unmerge", "file.comment", "link", "initramfs.rebuild")]
    files = "as declared"
    program_mode = (seen.files.get(program.PROGRAM) or {}).get("mode")
    declared = seen.files.get(program.CLASS)
    same = declared is not None and declared["content"] == program.class_file(document).content
    computed = program.document_digest(document)
    return [
        judge_item(
            "class.document",
            document["digest"],
            computed if same else digest(str(declared).encode()),
            "degraded",
            "Run site.yml: the class has changed since it was applied, or somebody has edited it on the node.",
        ),
        judge_item(
            "stack.lock",
            lock,
            lock if not wrong else "; ".join(wrong[:4]) + (" …" if len(wrong) > 4 else ""),
            "drain",
            "Run site.yml: it takes the set back to its lock in one transaction.",
        ),
        judge_item(
            "stack.holds",
            held,
            held if not free else f"{len(free)} free: {', '.join(free[:4])}",
            "degraded",
            "Run site.yml: an upgrade could move these.",
        ),
        judge_item(
            "apt.sources",
            "the stack's own",
            "; ".join(foreign) or "the stack's own",
            "degraded",
            "See the remedy site.yml gives for each of them; it refuses to change the node while they stand.",
        ),
        judge_item(
            "node.program",
            "mode 0755",
            "missing" if program_mode is None else f"mode {program_mode:04o}",
            "degraded",
            "Run site.yml: others could change the program, or it is not there for the next boot.",
        ),
        judge_item(
            "node.files",
            files,
            files if not rest else "; ".join(a.line() for a in rest[:4]),
            "degraded",
            "Run site.yml.",
        ),
    ]


def _next_boot(document: Mapping[str, Any], seen: Observed, plan: Plan) -> List[Finding]:
    release = document["kernel"]["release"]
    note = next((n.message for n in plan.notes if n.subject == "boot.entry"), None)
    if note:
        finding = Finding("boot.next", ELSEWHERE, "drain", release, note)
    else:
        finding = judge_item(
            "boot.next",
            release,
            seen.boot.get("release"),
            "drain",
            "Run site.yml: the next boot would start another kernel than the class's.",
        )
    reasons = list(plan.reboot)
    pending = judge_item(
        "boot.pending",
        "no reboot pending",
        "; ".join(reasons) or "no reboot pending",
        "degraded",
        "Reboot the node in its turn (`goldnode_reboot=true`).",
    )
    image = f"initrd.img-{release}"
    there = image if release in seen.initramfs or release not in seen.kernels else "missing"
    remedy = f"Run site.yml: without it {release} would not find its root."
    initrd = judge_item("boot.initramfs", image, there, "drain", remedy)
    if seen.trial.get("release") == release and seen.trial.get("failed"):
        remedy = "Run rollback.yml again to try it once more, or site.yml to go forward again; the earlier default is what boots."
        tried = Finding("boot.trial", MISMATCH, "drain", f"{release}, tried and found good", str(seen.trial["failed"]), remedy)
        return [finding, tried, initrd, pending]
    return [finding, initrd, pending] if seen.live else [finding, initrd]
