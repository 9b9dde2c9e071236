"""check(): judge a node against its class. Every declared item ends in one outcome, and an item that could
not be read never counts as good.
"""

from __future__ import annotations

import json
import time

from .. import probe
from ..effective.boot_choice import REBUILD
from ..ground import boot, verdict_files
from ..ground.host import Host, Json
from ..ground.text import cleaned
from ..ground.typed import NamedTuple
from ..state import gpumodel, owners
from ..state.domains import apt, driver_files, policy, program
from ..state.domains import driver as driver_domain
from ..state.engine import DOMAINS, judge, observed
from ..state.finding import (
    DEFERRED,
    ELSEWHERE,
    MATCH,
    MISMATCH,
    NOT_EXPOSED,
    SUPPRESSED,
    UNREAD,
    Finding,
    judge_item,
    ordered,
    place,
)
from ..state.model import Observed, Plan, declared
from ..state.preflight import unread
from ..state.remedy import COMMAND, PERSON, REBOOT, REPAIR, SITE, Remedy
from . import binding, current, deltas, mitigations, rules, suppress, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from ..ground.document import ClassDocument


SCHEMA = current.SCHEMA
VERDICT = verdict_files.VERDICT

# Exit codes (design, section 6).
HEALTHY, DEGRADED, DRAIN, UNKNOWN, NOT_THIS_CLASS = 0, 1, 2, 3, 4
STATUS = {
    HEALTHY: "healthy",
    DEGRADED: "degraded",
    DRAIN: "drain",
    UNKNOWN: "could_not_check",
    NOT_THIS_CLASS: "not_this_class",
}


OUTCOMES = (MATCH, MISMATCH, NOT_EXPOSED, UNREAD, ELSEWHERE, DEFERRED, SUPPRESSED)
ROOT_ALONE = "root alone can change it"
BOOTING = 600  # seconds after boot in which the first check is the one before work is let in


class Checked(NamedTuple):
    """Verdict, its capture, the state to store, and why the previous state could not be used (None if it
    could).
    """

    verdict: Json
    capture: Optional[Json]
    memory: Optional[Json]
    fault: Optional[str]


def check(
    host: Host,
    document: ClassDocument,
    now: Optional[float] = None,
    passive: bool = False,
    captured: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """Observe the host and judge it. Returns the verdict (schema goldnode.verdict/1); writes nothing.

    :param passive: put no load on the node that the work there would feel. Every item is judged all the same.
    :param captured: a capture that was recorded: it is judged instead of the host, and nothing of the host is read.
    """
    return examine(host, document, now, passive, captured).verdict


def examine(
    host: Host,
    document: ClassDocument,
    now: Optional[float] = None,
    passive: bool = False,
    captured: Optional[Mapping[str, Any]] = None,
) -> Checked:
    """Run :func:`check`, and return the verdict with the state to store (:func:`keep`).

    An image does not run, and has no capture.
    """
    now = time.time() if now is None else now
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    if captured is not None:
        # A record has no earlier check on this machine, and its processes are none of a boot.
        counted, _ = deltas.step({}, captured)
        counted.first_of_boot = False
        findings = (
            of_record(document, captured)
            + table.judge(document, captured, counted)
            + events(document, captured, {})[0]
        )
        findings = binding.explained(findings, captured)
        verdict = summary(document, settled(document, findings, today, captured), now, passive)
        identity = rules.as_map(captured.get("identity"))
        verdict.update(
            simulated=bool(document["simulated"] or captured.get("simulated")),
            boot_identity=identity.get("boot_identity"),
            uptime=captured.get("uptime"),
            recorded={
                "time": captured.get("time") or captured.get("recorded"),
                "source": captured.get("source"),
                "hostname": identity.get("hostname"),
            },
        )
        return Checked(cleaned(verdict), None, None, None)
    context = probe.begin(host, document, passive) if host.live else None
    seen = observed(host, document)
    plan = judge(document, seen, {})
    findings = find(document, seen, plan)
    capture: Optional[Json] = None
    memory: Optional[Json] = None
    fault = None
    if context is not None:
        capture = probe.finish(context, seen)
        before, fault = deltas.load(host, capture)
        counted, memory = deltas.step(before, capture)
        counted.first_of_boot = (
            counted.first_of_boot and not passive and (capture.get("uptime") or BOOTING) < BOOTING
        )
        own = table.judge(document, capture, counted)
        # The log is judged against the stored memory, and gives a part of the new one.
        logged, memory["events"] = events(document, capture, before)
        own += deltas.carried(memory, before, own, passive)
        findings += own + counted.findings + logged + deltas.unusable_memory(host, fault)
        if (document.get("return_tests") or {}).get("after_absence"):
            memory["absence"] = deltas.absence(before, memory, fault)
        findings += deltas.persistent(memory, findings, str(capture.get("time")), memory["boot"])
        # A clock that was set back must not bring back what has expired.
        today = max(today, str(before.get("time") or "")[:10])
        findings += mitigations.findings(document.get("mitigations"), today)
    elif document.get("baseline"):
        findings.append(Finding("baseline", ELSEWHERE, "as declared", "an image does not run"))
    simulated = bool(seen.simulated or (capture or {}).get("simulated"))
    findings = binding.explained(findings, capture or {})
    verdict = summary(document, settled(document, one_each(findings), today, capture), now, passive)
    verdict.update(
        simulated=bool(document["simulated"] or simulated),
        boot_identity=seen.boot_identity,
        uptime=boot.uptime(host.text("/proc/uptime") or "") if host.live else None,
    )
    return Checked(cleaned(verdict), capture, memory, fault)


def settled(
    document: ClassDocument,
    findings: List[Finding],
    today: str,
    capture: Optional[Mapping[str, Any]] = None,
) -> List[Finding]:
    """Return the findings after suppression by the class, with remedies that do not conflict."""
    rest = suppress.apply(findings, document.get("suppressions"), today)
    return ordered(binding.connected(rest, capture or {}), policy.declares(document))


def summary(document: ClassDocument, findings: List[Finding], now: float, passive: bool) -> Json:
    """Return the verdict for findings."""
    code = exit_code(findings)
    return {
        "schema": SCHEMA,
        "class": document["class"],
        "class_digest": document["digest"],
        "lock_digest": document["lock"]["digest"],
        "stack": document["stack"]["name"],
        "exercised": document["stack"]["exercised"],
        "simulated": document["simulated"],
        "boot_identity": None,
        "uptime": None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "passive": passive,
        "status": STATUS[code],
        "exit_code": code,
        "counts": {outcome: sum(f.outcome == outcome for f in findings) for outcome in OUTCOMES},
        "findings": [as_json(finding) for finding in findings],
    }


def as_json(finding: Finding) -> Json:
    """Return a finding as a part of the verdict: its fields, with fault domain and steps of the remedy."""
    return {
        **finding._asdict(),
        "evidence": list(finding.evidence),
        "steps": list(finding.steps),
        "domain": finding.domain,
    }


def keep(host: Host, checked: Checked) -> None:
    """Store the state for the next check, and the capture as evidence of the verdict. Raises OSError."""
    if checked.memory is not None:
        deltas.save(host, checked.memory, checked.fault)
    if checked.capture is not None:
        host.write(
            probe.CAPTURE, json.dumps(checked.capture, separators=(",", ":")).encode(), 0o600
        )


def unkept(verdict: Json, why: str) -> Json:
    """Return the verdict of a check that could not store its state, or that of its gate.

    That is a failure of the check: it could not check, unless the node is bad as far as it did. The
    next check cannot judge counters, and the gate carries nothing out without a record.
    """
    remedy = Remedy(
        "Make room on the root filesystem, or see dmesg for why it is read-only.", PERSON
    )
    finding = Finding(
        "memory.state",
        UNREAD,
        "the state for the next check is stored",
        rules.sanitized(why),
        remedy,
    )
    findings = [item for item in verdict["findings"] if item["id"] != finding.id]
    findings.append(as_json(finding))
    code = verdict["exit_code"]
    if code not in (DRAIN, NOT_THIS_CLASS):
        code = UNKNOWN
    counts = {outcome: sum(item["outcome"] == outcome for item in findings) for outcome in OUTCOMES}
    return {
        **verdict,
        "exit_code": code,
        "status": STATUS[code],
        "counts": counts,
        "findings": findings,
    }


def events(
    document: ClassDocument, capture: Mapping[str, Any], memory: Mapping[str, Any]
) -> Tuple[List[Finding], Any]:
    """Return the findings of the kernel's log, and the memory for the next check."""
    from . import events as logged  # a plan imports this module too, and reads no log

    try:
        return logged.judge(document, capture, memory)
    except Exception as problem:  # a log of another make must not end the check, nor pass
        text = rules.sanitized(f"the log could not be judged: {type(problem).__name__}: {problem}")
        return [Finding("events.log", UNREAD, "the kernel's log since boot", text)], memory.get(
            "events", {}
        )


def one_each(findings: List[Finding]) -> List[Finding]:
    """Return one finding for each (id, subject): the worse of two."""
    once: Dict[Any, Finding] = {}
    for finding in findings:
        key = (finding.id, finding.subject)
        if key not in once or table.rank(finding) > table.rank(once[key]):
            once[key] = finding
    return list(once.values())


NOT_SHOWN = "a recorded capture does not show it"
LOADED_IS_OLDER = Remedy("Reboot the node: what is loaded is not what is installed.", REBOOT)


def of_record(document: ClassDocument, capture: Mapping[str, Any]) -> List[Finding]:
    """Return the engine's findings for a recorded capture: its values are judged, and the rest is not
    verified here. Pure.
    """
    node = rules.Node(document, capture)
    system, driver = rules.as_map(capture.get("os")), rules.as_map(capture.get("driver"))
    # nvidia-smi reports the driver that answers; only a node shows which module is loaded.
    loaded = rules.text_of(driver.get("loaded")) or rules.text_of(driver.get("reported"))
    gpus = None
    if isinstance(capture.get("gpus"), list):
        gpus = [
            {
                "address": str(row.get("address")),
                "id": row.get("pci_id"),
                "driver": row.get("driver"),
            }
            for row in node.listed
        ]
    seen = Observed(
        os={key: str(system.get(key)) for key in ("id", "version")},
        running_kernel=rules.text_of(rules.fetch(system, "kernel.running")),
        page_kib=rules.fetch(capture, "memory.page_kib"),
        gpus=gpus,
        loaded={"nvidia": loaded} if loaded is not None else {},
        simulated=node.simulated,
    )
    findings = _identity(document, seen) + _kernel(document, seen)
    wanted = document.get("driver")
    if wanted and not wanted["in_tree"]:
        findings.append(judge_item("driver.loaded", wanted["version"], loaded, LOADED_IS_OLDER))
    findings += _recorded_policy(document, node, seen)
    shown = {
        "node.os": system.get("id"),
        "gpu.count": gpus is not None and not _of_some(node),
        "gpu.ids": gpus is not None
        and all(isinstance(row.get("pci_id"), str) for row in node.listed),
        "gpu.bound": gpus is not None and all(row.get("driver") is not None for row in node.listed),
        "kernel.running": seen.running_kernel,
        "driver.loaded": loaded is not None,
    }
    return [
        *(item if shown.get(item.id, True) else _not_shown(item) for item in findings),
        _recorded_packages(document, capture),
        _recorded_boot(document, system),
        Finding("node.files", ELSEWHERE, "as declared", NOT_SHOWN),
    ]


def _recorded_policy(document: ClassDocument, node: rules.Node, seen: Observed) -> List[Finding]:
    """Return the findings about the recorded GPU settings. The results of setters are not in a capture."""
    if not policy.declares(document):
        return []
    from . import settings as recorded  # start-up time: only for a record

    # A record of some GPUs (nvidia-smi with -i) does not have their numbers.
    settings = {
        str(row["index"] if rules.is_number(row.get("index")) else place): (
            rules.as_map(row.get("settings")) or recorded.of_record(row)
        )
        for place, row in enumerate(node.gpus)
        if node.partial or rules.is_number(row.get("index"))
    }
    seen.gpu_settings = {
        "vendor": policy.vendor(document),
        "error": None if settings else NOT_SHOWN,
        "gpus": settings,
        "record": {},
    }
    wanted: ClassDocument = {**document, "simulated": False}
    if _of_some(node) and document.get("gpu"):
        wanted["gpu"] = {**declared(document["gpu"]), "count": len(settings)}
    judged = policy.findings(wanted, seen)
    for number, item in enumerate(judged):
        # Where the driver has no getter, the results of the setters decide, which stay on the node.
        if item.outcome == MISMATCH and policy.UNRECORDED in str(item.got):
            judged[number] = _not_shown(item)
    return judged if settings else [item._replace(outcome=ELSEWHERE) for item in judged]


def _of_some(node: rules.Node) -> bool:
    """Return whether a record lists only some of the attached GPUs: `gpu.visible` judges their number."""
    return node.partial and rules.is_number(node.capture.get("gpu_count"))


def _not_shown(finding: Finding) -> Finding:
    return finding._replace(outcome=ELSEWHERE, got=NOT_SHOWN, remedy=None)


def _recorded_packages(document: ClassDocument, capture: Mapping[str, Any]) -> Finding:
    """Return the finding about the recorded drift from the lock."""
    drift = rules.fetch(capture, "packages.drift")
    if not isinstance(drift, list):
        return Finding("stack.lock", ELSEWHERE, "as locked", NOT_SHOWN)
    rows = [rules.as_map(row) for row in drift[:4]]
    texts = [f"{row.get('name')} {row.get('have')} (want {row.get('want')})" for row in rows]
    lock = f"{len(document['packages'])} packages as locked"
    return judge_item(
        "stack.lock",
        lock,
        rules.sanitized("; ".join(texts)) or lock,
        Remedy("Run site.yml: it takes the set back to its lock.", SITE),
    )


def _recorded_boot(document: ClassDocument, system: Mapping[str, Any]) -> Finding:
    """Return the finding about the recorded kernel of the next boot."""
    after = rules.fetch(system, "kernel.next_boot")
    release = document["kernel"]["release"]
    if not isinstance(after, str):
        return Finding("boot.next", ELSEWHERE, release, NOT_SHOWN)
    return judge_item(
        "boot.next",
        release,
        rules.sanitized(after),
        Remedy(
            "Run site.yml: the next boot would start another kernel.",
            SITE,
            before="it would start another kernel",
        ),
    )


def exit_code(findings: List[Finding]) -> int:
    """Return the worst result of the findings.

    An item that could not be judged outranks `degraded`, since it may hide a `drain`.
    """
    bad = [finding for finding in findings if finding.outcome == MISMATCH]
    # A node of another class is not degraded: no other finding about it means anything.
    if any(finding.id in ("node.os", "gpu.ids") for finding in bad):
        return NOT_THIS_CLASS
    if any(finding.severity == "drain" for finding in bad):
        return DRAIN
    # No finding at all means that nothing was judged.
    if any(unknown(finding) for finding in findings) or not findings:
        return UNKNOWN
    return DEGRADED if bad else HEALTHY


def unknown(finding: Finding) -> bool:
    """Return whether a finding leaves a declared item open.

    A setting that its setter accepted and that no driver call reads back is reported, and is as
    certain as possible. A finding without a declaration (`expected` is None) is information.
    """
    if finding.outcome == NOT_EXPOSED:
        return finding.expected is not None and not all(
            ": set at " in part for part in str(finding.got).split("; ")
        )
    return finding.outcome not in (MATCH, MISMATCH, DEFERRED, SUPPRESSED)


def find(document: ClassDocument, seen: Observed, plan: Plan) -> List[Finding]:
    """Return one finding per declared item. Pure."""
    findings = _identity(document, seen) + _kernel(document, seen)
    if document.get("driver"):
        findings += _driver(document, seen)
    findings += [
        Finding(
            name,
            ELSEWHERE,
            "as declared",
            "this version neither sets nor reads it",
            Remedy("Run site.yml: it installs the program that this class is made for.", SITE),
            severity="degraded",
        )
        for name in unread(document)
    ]
    for domain in DOMAINS:
        findings += domain.findings(document, seen)
    return [
        *findings,
        *_blacklisted(document, seen),
        *_stack(document, seen, plan),
        *_next_boot(document, seen, plan),
    ]


def _identity(document: ClassDocument, seen: Observed) -> List[Finding]:
    wanted = document["os"]
    have = f"{seen.os.get('id')} {seen.os.get('version')}"
    findings = [
        judge_item(
            "node.os",
            f"{wanted['id']} {wanted['version']}",
            have,
            Remedy("Reinstall the node, or move it to the class of its release.", PERSON),
        )
    ]
    gpu = document.get("gpu")
    if gpu:
        elsewhere = _no_real_gpu(document, seen)
        if seen.simulated and seen.gpus is not None:  # a simulator's bus, which is this node's own
            elsewhere = None
        rows = gpumodel.on_bus(gpu, seen.gpus)
        findings.append(_models(document, sorted({str(item["id"]) for item in rows}), elsewhere))
        # Two drivers of the kernel are Intel's: the stack declares which.
        stack = document.get("driver")
        own = stack["module"] if stack is not None else "a driver"
        driver = {"nvidia": "nvidia", "amd": "amdgpu"}.get(gpu["vendor"], own)
        unbound = [
            f"{item['address']} ({item['driver'] or 'no driver'})"
            for item in rows
            if item["driver"] != driver
        ]
        findings.append(
            judge_item(
                "gpu.bound",
                driver,
                ", ".join(unbound) or driver,
                Remedy(
                    f"See dmesg for why {driver} did not take the GPU, and lspci -k for who did.",
                    PERSON,
                ),
                elsewhere,
            )
        )
        findings.append(
            judge_item(
                "gpu.count",
                f"{gpu['count']}",
                f"{len(rows)}",
                Remedy(
                    "A GPU is missing on the PCI bus: reseat or replace it, power-cycle the node.",
                    REPAIR,
                ),
                elsewhere,
            )
        )
    return findings


def _no_real_gpu(document: ClassDocument, seen: Observed) -> Optional[str]:
    """Return why the GPUs of this place cannot be judged; None if they can."""
    if document["simulated"]:
        return place(seen) or "the class declares simulated GPUs"
    return place(seen)


def _models(document: ClassDocument, ids: List[str], elsewhere: Optional[str]) -> Finding:
    """Return whether the GPUs with these PCI ids are those of the class."""
    gpu, move = declared(document["gpu"]), Remedy("Move the node to the class of its GPUs.", PERSON)
    if not gpumodel.is_auto(gpu):
        expected = f"{gpu['model']} only"
        foreign = [item for item in ids if item not in gpu["pci_ids"]]
        return judge_item("gpu.ids", expected, ", ".join(foreign) or expected, move, elsewhere)
    expected = "models that fit the stack"
    bad = [f"{item}: {gpumodel.unfit(gpu, item)}" for item in ids if gpumodel.unfit(gpu, item)]
    known, unknown = gpumodel.names(gpu, ids)
    if elsewhere or bad:
        return judge_item("gpu.ids", expected, "; ".join(bad), move, elsewhere)
    if unknown and not gpumodel.unknown_accepted(document):
        remedy = Remedy(
            "Add the model to the facts with its source, or accept the unknown in the class (`compat.unknown: accept`).",
            PERSON,
        )
        return Finding(
            "gpu.ids", UNREAD, expected, f"not in the facts: {', '.join(unknown)}", remedy
        )
    return Finding("gpu.ids", MATCH, expected, ", ".join([*known, *unknown]) or "no GPU")


def _kernel(document: ClassDocument, seen: Observed) -> List[Finding]:
    release, running = document["kernel"]["release"], seen.running_kernel
    expected, pages = release, document["kernel"].get("page_kib")
    remedy = Remedy(
        f"Run site.yml with `-e goldnode_reboot=true`: it has {release} boot next, and reboots the node in its turn.",
        SITE,
        REBOOT,
    )
    elsewhere = place(seen)
    if pages is not None:
        expected = f"{release}, pages of {pages} KiB"
        if running and not elsewhere and not isinstance(seen.page_kib, int):
            return [
                Finding("kernel.running", UNREAD, expected, f"{running}, pages of unknown size")
            ]
        if running == release:  # a reboot would start the same kernel
            remedy = Remedy(
                "The locked kernel runs: correct the page size that its stack states.", PERSON
            )
        running = running and f"{running}, pages of {seen.page_kib} KiB"
    return [judge_item("kernel.running", expected, running, remedy, elsewhere)]


def _driver(document: ClassDocument, seen: Observed) -> List[Finding]:
    driver, release = declared(document["driver"]), document["kernel"]["release"]
    elsewhere = _no_real_gpu(document, seen)
    version, module = driver["version"], driver["module"]
    findings = []
    if not driver["in_tree"]:
        want = f"{module} {version} ({driver['flavour']}) for {release}"
        got = driver_domain.module_fault(document, seen.modules.get(release)) or want
        # A prebuilt module comes as a package; any other is built on the node.
        how = "installs" if driver.get("built") else "builds"
        remedy = Remedy(f"Run site.yml: it {how} the module, and reports why when it cannot.", SITE)
        findings.append(judge_item("driver.module_file", want, got, remedy))
        loaded = seen.loaded.get("nvidia")
        findings.append(judge_item("driver.loaded", version, loaded, LOADED_IS_OLDER, elsewhere))
    else:
        # A driver in the kernel's tree has the kernel's version, and none of its own to compare.
        remedy = Remedy(f"See why {module} is not loaded: dmesg.", PERSON)
        loaded = module if module in seen.loaded else None
        findings.append(judge_item("driver.loaded", module, loaded, remedy, elsewhere))
    name = driver.get("library")
    if name:
        # The version of a library is in the name that its link points to: libcuda.so.570.86.15.
        _, _, have = (seen.library or "").rpartition("/")[2].partition(".so.")
        text = (
            f"Run site.yml: {name} is of another version than the module, and CUDA will not start."
        )
        remedy = driver_files.undo(document, seen, name) or Remedy(text, SITE)
        findings.append(judge_item("driver.library", version, have or None, remedy))
    return findings


def _blacklisted(document: ClassDocument, seen: Observed) -> List[Finding]:
    findings = []
    for module in document["blacklist"]:
        inside = sorted(
            {
                f"initramfs of {release}"
                for release, image in seen.initramfs.items()
                if any(module in path.replace("-", "_") for path in image.get("unwanted", ()))
            }
        )
        where = list(inside)
        if module in seen.loaded:
            where.append(f"loaded (driver of {', '.join(_bound(seen, module)) or 'no GPU'})")
        where += [
            f"{row['file']}:{row['line']}"
            for row in seen.forced
            if row["module"].replace("-", "_") == module
        ]
        findings.append(
            judge_item(
                f"blacklist.{module}",
                "kept out",
                ", ".join(where) or "kept out",
                Remedy("Run site.yml, then reboot.", SITE, REBOOT),
            )
        )
    unread = [
        f"{release}: {image['error']}"
        for release, image in seen.initramfs.items()
        if "error" in image and REBUILD not in image["error"]  # boot.initramfs has it
    ]
    if unread and document["blacklist"]:
        findings.append(
            Finding(
                "blacklist.initramfs",
                UNREAD,
                "an initramfs that can be listed",
                "; ".join(unread),
                Remedy("Install the compressor it was made with (zstd, lz4).", PERSON),
                severity="degraded",
            )
        )
    return findings


def _bound(seen: Observed, module: str) -> List[str]:
    return [str(gpu["address"]) for gpu in seen.gpus or [] if gpu["driver"] == module]


# Actions on files that `node.files` reports.
_FILE_ACTIONS = (
    "file.write",
    "file.remove",
    "file.unmerge",
    "file.comment",
    "link",
    "initramfs.rebuild",
    "directory.secure",
    "record.restore",
    "swap.mask",
)


def _stack(document: ClassDocument, seen: Observed, plan: Plan) -> List[Finding]:
    """Return the drift: the changes that the engine would make, in groups that people use."""
    foreign = [refusal.message for refusal in apt.refusals(document, seen)]
    rest = [action for action in plan.actions if action.kind in _FILE_ACTIONS]
    text = "this class was not applied here, or its document was deleted."
    if seen.files.get(program.CLASS) is not None:
        text = "the class has changed since it was applied, or it was edited on the node."
    return [
        judge_item(
            "class.document",
            document["digest"],
            _document_digest(document, seen, plan),
            Remedy(f"Run site.yml: {text}", SITE),
        ),
        *_packages(document, seen, plan),
        judge_item(
            "apt.sources",
            "the stack's own",
            "; ".join(foreign) or "the stack's own",
            Remedy(
                "See the remedy site.yml gives for each of them; it refuses to change the node while they stand.",
                PERSON,
            ),
        ),
        apt.fence_finding(document, seen),
        *_ownership(seen, plan),
        judge_item(
            "node.files",
            "as declared",
            "; ".join(action.line() for action in rest[:4]) or "as declared",
            Remedy("Run site.yml.", SITE),
        ),
    ]


def _some(items: Sequence[str]) -> str:
    """Return the first items as text."""
    return "; ".join(items[:4]) + (" …" if len(items) > 4 else "")


def _document_digest(document: ClassDocument, seen: Observed, plan: Plan) -> str:
    """Return the digest of the class document on the node."""
    declared = seen.files.get(program.CLASS)
    if declared is None:
        return f"no {program.CLASS}"
    # The plan has made the text of the document already: it writes one that differs, in content or in mode.
    written = {a.target: a.data.get("content") for a in plan.actions if a.kind == "file.write"}
    if written.get(program.CLASS) in (None, declared["content"]):
        return program.document_digest(document)
    try:
        there = program.document_digest(json.loads(declared["content"]))
    except (ValueError, AttributeError, RecursionError):
        return f"{program.CLASS} is no class document"
    same = there == program.document_digest(document)
    return f"{there}, with other settings of the site" if same else there


def _packages(document: ClassDocument, seen: Observed, plan: Plan) -> List[Finding]:
    """Return whether the packages have their locked versions and are on hold."""
    wrong = [
        f"{p['name']} {seen.version(p['name']) or 'missing'} (want {p['version']})"
        for p in document["packages"]
        if seen.version(p["name"]) != p["version"]
    ]
    moves = next((action for action in plan.actions if action.kind == "packages.transact"), None)
    if moves and not wrong:  # the set is installed, and other members of the family as well
        wrong = list(moves.data["lines"])
    free = [
        p["name"] for p in document["packages"] if not seen.packages.get(p["name"], {}).get("hold")
    ]
    total = len(document["packages"])
    lock, held = f"{total} packages as locked", f"{total} packages on hold"
    return [
        judge_item(
            "stack.lock",
            lock,
            _some(wrong) or lock,
            Remedy("Run site.yml: it takes the set back to its lock in one transaction.", SITE),
        ),
        judge_item(
            "stack.holds",
            held,
            f"{len(free)} free: {', '.join(free[:4])}" if free else held,
            Remedy("Run site.yml: an upgrade could move these.", SITE),
        ),
    ]


def _ownership(seen: Observed, plan: Plan) -> List[Finding]:
    """Return whether root alone can change the program, goldnode's files, and the directories above them."""
    own, system, severe = owners.findings(seen, plan.actions)
    there = seen.files.get(program.PROGRAM)
    if there is None:
        program_got = "missing"
    elif there.get("type", "file") != "file":
        program_got = owners.kind(there)
    else:
        program_got = f"mode {there['mode']:04o}"
    return [
        judge_item(
            "node.program",
            "mode 0755",
            program_got,
            Remedy(
                "Run site.yml: others could change the program, or it is not there for the next boot.",
                SITE,
            ),
        ),
        judge_item(
            "node.owner",
            ROOT_ALONE,
            _some(own) or ROOT_ALONE,
            Remedy(
                "Find out who changed that and what ran since as root, then run site.yml: it makes root "
                "own goldnode's files again.",
                SITE,
            ),
        ),
        judge_item(
            "node.parents",
            ROOT_ALONE,
            _some(system) or ROOT_ALONE,
            Remedy(
                "Who can write there can replace what root runs for goldnode: `chown root:root` and `chmod go-w` each of them, and run site.yml.",
                COMMAND,
                SITE,
            ),
            severity="drain" if severe else "degraded",
        ),
    ]


def _next_boot(document: ClassDocument, seen: Observed, plan: Plan) -> List[Finding]:
    release = document["kernel"]["release"]
    note = next((n.message for n in plan.notes if n.subject == "boot.entry"), None)
    slots = seen.slots.get("survey") or {}
    if slots.get("tried"):
        finding = Finding(
            "boot.next",
            DEFERRED,
            release,
            f"this boot tries an image ({slots['tried']}): it is reported once the image is good",
        )
    elif slots.get("next") not in (None, slots.get("running")):
        image = slots["slots"][slots["next"]]["image"]
        finding = Finding(
            "boot.next",
            DEFERRED,
            release,
            f"image {image} in slot {slots['next']} boots next, with a kernel of its own",
        )
    elif note:
        finding = Finding("boot.next", ELSEWHERE, release, note)
    else:
        finding = judge_item(
            "boot.next",
            release,
            seen.boot.get("release"),
            Remedy(
                "Run site.yml: the next boot would start another kernel than the class's.",
                SITE,
                before="it would start another kernel",
            ),
        )
    reasons = list(plan.reboot)
    pending = judge_item(
        "boot.pending",
        "no reboot pending",
        "; ".join(reasons) or "no reboot pending",
        Remedy(
            "Reboot the node in its turn: run site.yml with `-e goldnode_reboot=true`.",
            SITE,
            REBOOT,
        ),
    )
    remedy = Remedy(
        f"Run site.yml: {release} would not start.", SITE, before=f"{release} would not start"
    )
    whole = f"{release}, image and modules"
    start = judge_item("boot.kernel", whole, seen.boot.get("fault") or whole, remedy)
    if seen.container and not seen.boot.get("fault"):
        start = Finding("boot.kernel", ELSEWHERE, whole, "a container boots no kernel")
    image = f"initrd.img-{release}"
    there = image if release in seen.initramfs or release not in seen.kernels else "missing"
    if REBUILD in str(seen.initramfs.get(release, {}).get("error")):
        there = str(seen.initramfs[release]["error"])
    remedy = Remedy(
        f"Run site.yml: without it {release} would not find its root.",
        SITE,
        before=f"{release} would not find its root",
    )
    initrd = judge_item("boot.initramfs", image, there, remedy)
    if seen.trial.get("release") == release and seen.trial.get("failed"):
        remedy = Remedy(
            "Run rollback.yml again to try it once more, or site.yml to go forward again; the earlier default is what boots.",
            PERSON,
        )
        tried = Finding(
            "boot.trial",
            MISMATCH,
            f"{release}, tried and found good",
            str(seen.trial["failed"]),
            remedy,
        )
        return [finding, tried, start, initrd, pending]
    return [finding, start, initrd, *([pending] if seen.live else [])]
