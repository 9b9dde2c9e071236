"""The kernel's log of this boot, judged: section `events` of a capture against the Xid table of the class document.

The rules, each with its source:

* NVIDIA's immediate action decides the meaning of an Xid (Xid catalogue; `facts/xid.yml`). RESTART_APP and IGNORE are no fault of the
  node: they are recorded, and stay `match`. A number that the table lacks is reported as *could not read*.
* One GPU gives one finding, under its most specific number; the others are its evidence. Xid 45 and 154 follow others (catalogue).
* Xid 48 alone, or with 63, 64 or 95: reset. With 94, the error was kept to one program: the GPU is to be reset when it is free (catalogue, workflow 48).
* Xid 154 names the action that is needed now. If its last line names none, the driver has seen the reset: earlier events are settled.
* The word in the line (Fatal, Non-fatal, Nonfatal) decides SXids and Xid 144 to 150 (Fabric Manager guide, appendix D; catalogue, decode table).
* NVLink errors of GPUs follow a fatal SXid, or a peer that is lost: they are its evidence. On three GPUs or more they are one fault (guide, D.5).
* A program's Xids (13, 31 …) count as a fault only where several different programs meet them on one GPU and no other GPU has any: degraded,
  to be tested (catalogue, workflows 13 and 31). A bug in a job shows on the GPUs of that job, under one program name.
* The next boot settles an event that needed a reset or restart, and counts it: after two boots with such an event of one GPU within
  `repeat_days`, the hardware is to be inspected (gpud: two reboots, then hardware inspection).
* A reset without a restart is not in the log unless Xid 154 shows it: `goldnode-node ack` settles it.
* A log that has lost its beginning is not a clean log.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ..ground.boot import seconds
from ..ground.host import like
from ..probe.values import is_fault, known
from ..state.finding import ELSEWHERE, MATCH, MISMATCH, UNREAD, Finding
from ..state.kinds import GPU, NODE, NOTHING, PROCESS, VISIT
from ..state.remedy import ACKNOWLEDGE, GPU_RESET, PERSON, REBOOT, REPAIR, SITE, Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeAlias


Json: TypeAlias = "Dict[str, Any]"

DRAIN, DEGRADED, NONE = "drain", "degraded", "none"
BLAST = {
    "RESTART_APP": PROCESS,
    "RESET_GPU": GPU,
    "RESTART_BM": NODE,
    "RESTART_VM": NODE,
    "UPDATE_SWFW": NODE,
    "CHECK_MECHANICALS": VISIT,
    "CHECK_UVM": GPU,
    "WORKFLOW_XID_48": GPU,
    "WORKFLOW_NVLINK_ERR": GPU,
    "WORKFLOW_NVLINK5_ERR": GPU,
}
ORDER = (NOTHING, PROCESS, GPU, NODE, VISIT)
# The most specific events come first; the others in order of arrival.
FIRST = ("bus_lost", 79, 95, 64, 140, 94, 48)
# The action that Xid 154 requests (ctrl2080gpu.h): its meaning for the node, and what the action disrupts.
RECOVERY = {
    "none": (NONE, NOTHING),
    "gpu_reset": (DRAIN, GPU),
    "node_reboot": (DRAIN, NODE),
    "system_reboot": (DRAIN, NODE),
    "bus_reset": (DRAIN, NODE),
    "drain_p2p": (DRAIN, GPU),
    "drain_and_reset": (DRAIN, GPU),
    "recover_imex": (DEGRADED, NODE),
}
HISTORY = 128  # events of earlier boots that are remembered
ACK = "`goldnode-node ack` when that is done: the log does not show a reset."


class Fault(NamedTuple):
    """One parsed row of the log: its meaning (none, degraded, drain, or unread if unknown) and the blast
    radius of its remedy.
    """

    row: Json
    meaning: str
    blast: str
    text: str

    @property
    def what(self) -> Any:
        """The number, or the kind if there is no number."""
        return self.row.get("code") if self.row.get("code") is not None else self.row.get("kind")


def judge(
    document: Mapping[str, Any], capture: Mapping[str, Any], memory: Mapping[str, Any]
) -> Tuple[List[Finding], Json]:
    """Return the findings about the kernel's log, and the new ``memory["events"]``. Pure. Accepts arguments
    of wrong types.

    The memory is {acked: {boot_id, truncated, rows: {key: [count, last_seq]}}, history: [{boot_id, address,
    what, time}]}.
    """
    stored = remembered(memory)
    events = capture.get("events")
    if events is None and capture.get("source") not in ("live", "root"):
        return [], stored  # this source has no log
    readable = _log(events, capture, stored)
    if readable.outcome in (UNREAD, ELSEWHERE) and not (
        isinstance(events, dict) and events.get("rows")
    ):
        return [readable], stored
    log: Json = events if isinstance(events, dict) else {}
    rows = [row for row in map(_row, _list(log.get("rows"))) if _of_this_boot(row, log)]
    open_rows = [row for row in rows if not _settled(row, stored, log)]
    limits = _limits(document)
    findings = [readable]
    gpus = _gpus(document, capture, open_rows, limits)
    findings += gpus + _others(capture, open_rows, limits)
    findings += _acknowledged([row for row in rows if _settled(row, stored, log)])
    stored["history"] = _history(stored["history"], gpus, capture, log)
    findings += _repeated(stored["history"], limits, capture)
    return _one_each(findings), stored


def acknowledge(
    capture: Mapping[str, Any],
    memory: Mapping[str, Any],
    name: str = "*",
    subject: Optional[str] = None,
) -> Tuple[Json, List[str]]:
    """Return ``memory["events"]`` after an acknowledgement of the log up to now, and the ids of the settled
    findings.

    :param name: id of the findings, with * and ?. A fault that was reported as part of another finding is
        settled with it.
    :param subject: their subject; None for any.
    """
    stored = remembered(memory)
    events = capture.get("events")
    log: Json = events if isinstance(events, dict) and not is_fault(events) else {}
    rows = [row for row in map(_row, _list(log.get("rows"))) if _of_this_boot(row, log)]
    earlier: Json = (
        stored["acked"]
        if stored["acked"].get("boot_id") == log.get("boot_id")
        else {"truncated": False, "rows": {}}
    )
    acked, done = dict(earlier["rows"]), set()
    for row in rows:
        names, about = _names(row, rows)
        matching = [item for item in names if like(item, name)]
        if matching and (subject is None or any(like(item, subject) for item in about)):
            acked[_key(row)] = [row["count"], row["last_seq"]]
            done.add(matching[0])
    truncated = bool(log.get("truncated")) and subject is None and like("events.log", name)
    if truncated:
        done.add("events.log")
    history = []
    for item in stored["history"]:
        mine = subject is None or like(item["address"], subject)
        if mine and (like("gpu.repeated_faults", name) or like(str(item.get("what")), name)):
            done.add(str(item.get("what")))
        else:
            history.append(item)
    settled = {
        "boot_id": log.get("boot_id"),
        "truncated": truncated or bool(earlier.get("truncated")),
        "rows": acked,
    }
    return {"acked": settled, "history": history}, sorted(done)


def _names(row: Json, rows: Sequence[Json]) -> Tuple[List[str], List[str]]:
    """Return the ids of the findings that may report a row, its own first, and their subjects."""
    kind, parameters = row["kind"], _parameters(row)
    about = [
        str(item)
        for item in (
            row["address"],
            parameters.get("device"),
            parameters.get("interface"),
            parameters.get("controller"),
        )
        if item
    ]
    if kind not in ("xid", "sxid", "bus_lost"):
        return [
            _IDS.get(kind, "events.unknown"),
            *(["pcie.slot_down"] if kind == "link_down" else []),
        ], about or [""]
    name = (
        "gpu.bus_lost"
        if kind == "bus_lost"
        else f"{kind}.{row['code']}"
        if row["code"] is not None
        else kind
    )
    names = [name, "xid.programs", *(["pci.bus_lost"] if kind == "bus_lost" else [])]
    link = row["code"] == 74 or 144 <= (row["code"] or 0) <= 154
    for other in rows:
        same = other["kind"] in ("xid", "bus_lost") and other["address"] == row["address"]
        cause = link and (other["kind"] in ("sxid", "bus_lost") or other["code"] == 79)
        if kind != "sxid" and (same or cause) and other is not row:
            names.append(
                "gpu.bus_lost"
                if other["kind"] == "bus_lost"
                else f"{other['kind']}.{other['code']}"
            )
            about += [other["address"]] if other["address"] else []
    return [*names, *(["nvlink.errors"] if link else [])], about or [""]


def remembered(memory: Mapping[str, Any]) -> Json:
    """Return ``memory["events"]`` without items of a wrong type."""
    stored = memory.get("events") if isinstance(memory, dict) else None
    stored = stored if isinstance(stored, dict) else {}
    acked = stored.get("acked")
    history = [
        item
        for item in _list(stored.get("history"))
        if isinstance(item.get("boot_id"), str)
        and isinstance(item.get("address"), str)
        and isinstance(item.get("time"), (int, float))
    ]
    if not isinstance(acked, dict) or not isinstance(acked.get("rows"), dict):
        acked = {"boot_id": None, "truncated": False, "rows": {}}
    return {"acked": acked, "history": history[-HISTORY:]}


# -- the log itself


def _log(events: Any, capture: Mapping[str, Any], stored: Json) -> Finding:
    """Return whether the log could be read, and from its beginning."""
    wanted = "the kernel's log since boot"
    remedy = Remedy(
        "Read it with `journalctl -k -b`; keep it with a persistent journal (/var/log/journal) or a larger ring (kernel parameter log_buf_len).",
        PERSON,
    )
    if not isinstance(events, dict) or is_fault(events):
        text = str(events.get("text")) if isinstance(events, dict) else "the capture has none"
        return Finding("events.log", UNREAD, wanted, text, remedy, blast=NOTHING)
    error = events.get("error")
    if error is not None:
        text = str(error.get("text")) if isinstance(error, dict) else str(error)
        identity = capture.get("identity")
        away = (isinstance(identity, dict) and identity.get("container") is True) or capture.get(
            "source"
        ) == "root"
        absent = isinstance(error, dict) and error.get("fault") == "not_exposed"
        return Finding(
            "events.log",
            ELSEWHERE if away and absent else UNREAD,
            wanted,
            text,
            None if away else remedy,
            blast=NOTHING,
        )
    sources = ", ".join(_scalars(events.get("sources"))) or "nothing"
    if events.get("truncated"):
        acked = stored["acked"]
        text = f"its beginning is lost (read from {sources}): earlier lines are unknown"
        if acked.get("truncated") and acked.get("boot_id") == events.get("boot_id"):
            return Finding("events.log", MATCH, wanted, text + "; acknowledged")
        return Finding(
            "events.log",
            UNREAD,
            wanted,
            text,
            Remedy(f"{remedy} For this boot: `goldnode-node ack`.", PERSON, ACKNOWLEDGE),
            blast=NOTHING,
        )
    return Finding("events.log", MATCH, wanted, f"read from {sources}")


def _of_this_boot(row: Json, log: Json) -> bool:
    """Return whether a row is of this boot; older lines are not evidence for it."""
    return not row.get("boot_id") or not log.get("boot_id") or row["boot_id"] == log["boot_id"]


def _key(row: Mapping[str, Any]) -> str:
    more = _parameters(row)
    parts = [row.get(name) for name in ("kind", "code", "address", "mig")]
    parts += [
        more.get(name)
        for name in ("severity", "device", "interface", "slot", "driver", "cgroup", "controller")
    ]
    return "/".join("" if part is None else str(part) for part in parts)


def _settled(row: Json, stored: Json, log: Json) -> bool:
    """Return whether a person has acknowledged all lines of this row."""
    acked = stored["acked"]
    if not log.get("boot_id") or acked.get("boot_id") != log["boot_id"]:
        return False
    have = acked["rows"].get(_key(row))
    if not isinstance(have, list) or len(have) != 2 or not isinstance(have[0], int):
        return False
    last = row.get("last_seq")
    return _count(row) <= have[0] and (
        last is None or (isinstance(have[1], int) and last <= have[1])
    )


def _acknowledged(rows: Sequence[Json]) -> List[Finding]:
    """Return the note that a person has settled a fault."""
    if not rows:
        return []
    text = f"{len(rows)} kinds of events of this boot"
    return [
        Finding(
            "events.acknowledged",
            outcome=MATCH,
            expected="settled by a person",
            got=text,
            remedy=None,
            subject=None,
            evidence=_evidence_of(rows),
        )
    ]


# -- GPUs and switches


def _gpus(
    document: Mapping[str, Any], capture: Mapping[str, Any], rows: Sequence[Json], limits: Json
) -> List[Finding]:
    """Return the findings for Xids, SXids and lost devices: one per faulty GPU or switch, and one for
    harmless rows.
    """
    table = document.get("xid") if isinstance(document.get("xid"), dict) else None
    by_gpu: Dict[Optional[str], List[Fault]] = {}
    by_switch: Dict[Optional[str], List[Fault]] = {}
    for row in rows:
        kind, where = row.get("kind"), _text(row.get("address"))
        if kind == "sxid":
            by_switch.setdefault(where, []).append(_sxid(table, row))
        elif kind == "xid":
            by_gpu.setdefault(where, []).append(_xid(table, row))
        elif kind == "bus_lost" and _parameters(row).get("driver", "nvidia") in (
            "nvidia",
            "amdgpu",
        ):
            by_gpu.setdefault(where, []).append(
                Fault(row, DRAIN, NODE, "the GPU has fallen off the bus")
            )
    for where, faults in by_gpu.items():
        by_gpu[where] = _workflows(faults)
    findings: List[Finding] = []
    causes = [fault for faults in by_switch.values() for fault in faults if fault.meaning == DRAIN]
    lost = [
        where
        for where, faults in by_gpu.items()
        if any(fault.what in ("bus_lost", 79) for fault in faults)
    ]
    shown: List[Fault] = []
    for where in list(by_gpu):
        links = [
            fault for fault in by_gpu[where] if _is_link(table, fault) and fault.meaning != NONE
        ]
        if links and where not in lost and (causes or lost):
            # The GPU saw what happened elsewhere.
            shown += links
            by_gpu[where] = _without(by_gpu[where], links)
    findings += _switches(by_switch, shown)
    several = {
        w: [f for f in faults if _is_link(table, f) and f.meaning == DRAIN]
        for w, faults in by_gpu.items()
    }
    several = {where: links for where, links in several.items() if links}
    if len(several) >= 3 and not causes and not lost:
        all_links = [fault for links in several.values() for fault in links]
        text = f"NVLink errors on {len(several)} GPUs at once"
        remedy = Remedy(
            f"Drain the node and restart it; look at the fabric manager and the switches. {ACK}",
            REBOOT,
            ACKNOWLEDGE,
        )
        findings.append(
            Finding(
                "nvlink.errors",
                outcome=MISMATCH,
                expected="none",
                got=text,
                remedy=remedy,
                subject=None,
                evidence=_evidence(all_links),
                blast=NODE,
                severity=DRAIN,
            )
        )
        for where, links in several.items():
            by_gpu[where] = _without(by_gpu[where], links)
    for where, faults in sorted(by_gpu.items(), key=lambda item: item[0] or ""):
        findings += _gpu(where, faults, shown if where in lost else ())
    return findings + _programs(by_gpu, capture, limits)


def _entry(table: Optional[Mapping[str, Any]], code: Any) -> Optional[Tuple[str, str, str]]:
    """Return (action, meaning for the node, meaning) of a number from the class document; None if it is not
    listed.
    """
    entry = table.get(str(code)) if table is not None else None
    if not isinstance(entry, (list, tuple)) or len(entry) < 3:
        return None
    return str(entry[0] or ""), str(entry[1]), str(entry[2])


def _xid(table: Optional[Mapping[str, Any]], row: Json) -> Fault:
    code, parameters = row.get("code"), _parameters(row)
    if code is None:
        return Fault(row, UNREAD, NOTHING, "an Xid in a form that this version does not know")
    entry = _entry(table, code)
    if entry is None:
        why = (
            "the class document has no table of Xids: run site.yml"
            if table is None
            else "it is not listed"
        )
        return Fault(row, UNREAD, NOTHING, f"Xid {code}: {why}")
    action, meaning, name = entry
    blast = BLAST.get(action, GPU if meaning == DRAIN else NOTHING)
    if code == 154:
        recovery = str(parameters.get("recovery"))
        meaning, blast = RECOVERY.get(recovery, (UNREAD, NOTHING))
        name = f"the driver asks for: {recovery.replace('_', ' ')}"
    elif action == "WORKFLOW_NVLINK5_ERR" and isinstance(row.get("fatal"), bool):
        meaning, blast = (DRAIN, GPU) if row["fatal"] else (NONE, NOTHING)
    return Fault(row, meaning, blast, f"Xid {code}: {name}")


def _sxid(table: Optional[Mapping[str, Any]], row: Json) -> Fault:
    """Judge an SXid by the word in its line; without one, by the number in the Fabric Manager guide."""
    code, fatal = row.get("code"), row.get("fatal")
    entry = _entry(table, code)
    name = f"SXid {code}" + (f": {entry[2]}" if entry else "")
    if not isinstance(fatal, bool):
        fatal = {"SXID_FATAL": True, "SXID_NON_FATAL": False}.get(entry[0] if entry else "")
    if fatal is None:
        return Fault(row, UNREAD, NOTHING, f"{name}: the line does not say whether it is fatal")
    return Fault(row, DRAIN if fatal else NONE, NODE if fatal else NOTHING, name)


def _workflows(faults: List[Fault]) -> List[Fault]:
    """Apply NVIDIA's rules for combinations of Xids (48, 45, 154) to the lines of one GPU."""
    codes = {fault.row.get("code") for fault in faults}
    action = next((fault for fault in faults if fault.what == 154), None)
    after = _seq(action.row) if action is not None and action.meaning == NONE else None
    judged = []
    for fault in faults:
        if fault.what in (48, 171, 172) and 94 in codes and not codes & {64, 95}:
            fault = fault._replace(meaning=DEGRADED, text=fault.text + ", contained")
        last = _seq(fault.row)
        if after is not None and fault.blast == GPU and last is not None and last < after:
            fault = fault._replace(
                meaning=NONE,
                blast=NOTHING,
                text=fault.text + ", settled by a reset that Xid 154 reports",
            )
        judged.append(fault)
    return judged


def _is_link(table: Optional[Mapping[str, Any]], fault: Fault) -> bool:
    entry = _entry(table, fault.row.get("code"))
    return entry is not None and entry[0] in ("WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR")


def _without(faults: Sequence[Fault], links: Sequence[Fault]) -> List[Fault]:
    """Return the faults of a GPU without those that other findings report, and without a requested action
    (154) that only those caused.
    """
    rest = [fault for fault in faults if fault not in links]
    others = any(fault.meaning not in (NONE, UNREAD) and fault.what != 154 for fault in rest)
    return [fault for fault in rest if fault.what != 154 or others]


def _switches(
    by_switch: Mapping[Optional[str], Sequence[Fault]], shown: Sequence[Fault]
) -> List[Finding]:
    """Return one finding per NVSwitch with a fatal SXid, including the NVLink errors of GPUs that follow from
    it.
    """
    findings = []
    for where, faults in sorted(by_switch.items(), key=lambda item: item[0] or ""):
        bad = [fault for fault in faults if fault.meaning == DRAIN]
        if bad:
            text = "; ".join(_fault_text(fault) for fault in bad)
            if shown:
                gpus = sorted({str(fault.row.get("address")) for fault in shown})
                text += f"; seen as NVLink errors by {len(gpus)} GPUs ({', '.join(gpus)})"
            remedy = Remedy(
                "Drain the node and restart it, which resets GPUs and switches; where it comes back, "
                "have the link inspected.",
                REBOOT,
                REPAIR,
            )
            findings.append(
                Finding(
                    f"sxid.{bad[0].what}",
                    outcome=MISMATCH,
                    expected="none",
                    got=text,
                    remedy=remedy,
                    subject=where,
                    evidence=_evidence([*bad, *shown]),
                    blast=NODE,
                )
            )
        for fault in faults:
            if fault.meaning == UNREAD:
                findings.append(_unknown("sxid", fault, where))
            elif fault.meaning == NONE:
                findings.append(
                    Finding(
                        f"sxid.{fault.what}",
                        outcome=MATCH,
                        expected="not fatal",
                        got=_fault_text(fault),
                        remedy=None,
                        subject=where,
                        evidence=_evidence([fault]),
                        severity=DEGRADED,
                    )
                )
    return findings


def _gpu(
    where: Optional[str], faults: Sequence[Fault], peers: Sequence[Fault] = ()
) -> List[Finding]:
    """Return the findings of one GPU: the most specific Xid, unknown Xids, and harmless ones."""
    findings = []
    bad = sorted((fault for fault in faults if fault.meaning in (DRAIN, DEGRADED)), key=_weight)
    if bad:
        first = bad[0]
        severity = DRAIN if any(fault.meaning == DRAIN for fault in bad) else DEGRADED
        blast = max((fault.blast for fault in bad), key=ORDER.index)
        text = "; ".join(_fault_text(fault) for fault in bad)
        if peers:
            text += f"; seen as NVLink errors by {len({fault.row.get('address') for fault in peers})} GPUs"
        name = "gpu.bus_lost" if first.what == "bus_lost" else f"xid.{first.what}"
        findings.append(
            Finding(
                name,
                outcome=MISMATCH,
                expected="none",
                got=text,
                remedy=_remedy(where, blast, severity),
                subject=where,
                evidence=_evidence([*bad, *peers]),
                blast=blast,
                severity=severity,
            )
        )
    findings += [_unknown("xid", fault, where) for fault in faults if fault.meaning == UNREAD]
    quiet = [fault for fault in faults if fault.meaning == NONE]
    findings += [
        Finding(
            f"xid.{fault.what}",
            outcome=MATCH,
            expected="no fault of the node",
            got=_fault_text(fault),
            remedy=None,
            subject=where,
            evidence=_evidence([fault]),
            severity=DEGRADED,
        )
        for fault in quiet
    ]
    return findings


def _weight(fault: Fault) -> Tuple[int, int, int, float]:
    first = FIRST.index(fault.what) if fault.what in FIRST else len(FIRST)
    # 154 gives the action, and the others the cause.
    return (fault.meaning != DRAIN, int(fault.what == 154), first, fault.row.get("uptime_s") or 0.0)


def _remedy(where: Optional[str], blast: str, severity: str) -> Remedy:
    if blast == GPU:
        address = where or "ADDRESS"
        wait = "When nothing runs on it" if severity == DEGRADED else "Stop what runs on it, then"
        text = f"{wait} `nvidia-smi --gpu-reset -i {address}`; where that fails, restart the node. {ACK}"
        return Remedy(text, GPU_RESET, ACKNOWLEDGE)
    if blast == NODE:
        text = "Drain the node and restart it; where the GPU stays away, cut the power for half a minute. Keep `nvidia-bug-report.sh` for the ticket."
        return Remedy(text, REBOOT, REPAIR)
    if blast == VISIT:
        return Remedy("Drain the node; have power cables and seating of the GPU inspected.", REPAIR)
    return Remedy(
        "Look at the lines with `goldnode xid`; `goldnode-node ack` when it is understood.",
        PERSON,
        ACKNOWLEDGE,
    )


def _unknown(kind: str, fault: Fault, where: Optional[str]) -> Finding:
    remedy = Remedy(
        "Ask NVIDIA with the line and `nvidia-bug-report.sh`; `goldnode-node ack` when it is understood.",
        PERSON,
        ACKNOWLEDGE,
    )
    name = f"{kind}.{fault.row.get('code')}" if fault.row.get("code") is not None else kind
    return Finding(
        name,
        outcome=UNREAD,
        expected="an event that is understood",
        got=_fault_text(fault),
        remedy=remedy,
        subject=where,
        evidence=_evidence([fault]),
        blast=NOTHING,
        severity=DEGRADED,
    )


def _programs(
    by_gpu: Mapping[Optional[str], Sequence[Fault]], capture: Mapping[str, Any], limits: Json
) -> List[Finding]:
    """Report errors of programs that only one GPU has, with several programs (workflows 13 and 31).

    The GPU needs a test.
    """
    names, numbers = limits.get("app_xid_names"), limits.get("app_xid_processes")
    having = {
        where: [f for f in faults if f.what in (13, 31, 32, 69)] for where, faults in by_gpu.items()
    }
    having = {where: faults for where, faults in having.items() if faults}
    if (
        not isinstance(names, int)
        or not isinstance(numbers, int)
        or len(having) != 1
        or len(_list(capture.get("gpus"))) < 2
    ):
        return []
    ((where, faults),) = having.items()
    programs = {str(name) for fault in faults for name in _parameters(fault.row).get("names") or ()}
    processes = {str(pid) for fault in faults for pid in _parameters(fault.row).get("pids") or ()}
    if len(programs) < names or len(processes) < numbers:
        return []
    text = f"{len(programs)} programs ({', '.join(sorted(programs))}) failed on this GPU, and none on another: {_fault_text(faults[0])}"
    remedy = Remedy(
        "Test the GPU with `dcgmi diag -r 3` when it is free; `goldnode-node ack` when it passes.",
        PERSON,
        ACKNOWLEDGE,
    )
    return [
        Finding(
            "xid.programs",
            outcome=MISMATCH,
            expected="errors of programs on no GPU alone",
            got=text,
            remedy=remedy,
            subject=where,
            evidence=_evidence(faults),
            blast=GPU,
        )
    ]


# -- other things


def _others(capture: Mapping[str, Any], rows: Sequence[Json], limits: Json) -> List[Finding]:
    """Judge every event that is not an Xid, an SXid or the loss of a GPU."""
    findings = []
    for row in rows:
        judge_kind = _KINDS.get(str(row.get("kind")))
        if judge_kind is not None:
            findings.append(judge_kind(row, capture, limits))
        elif row.get("kind") not in ("xid", "sxid", "bus_lost"):
            text = f"an event of the unknown kind {row.get('kind')}"
            findings.append(
                Finding(
                    "events.unknown",
                    outcome=UNREAD,
                    expected=None,
                    got=text,
                    remedy=None,
                    subject=None,
                    evidence=_evidence_of([row]),
                    blast=NOTHING,
                )
            )
        elif row.get("kind") == "bus_lost" and _parameters(row).get("driver", "nvidia") not in (
            "nvidia",
            "amdgpu",
        ):
            text = f"a device of driver {_parameters(row).get('driver')} does not answer any more"
            remedy = Remedy(
                "Restart the node; where the device stays away, have it inspected.", REBOOT, REPAIR
            )
            where = _text(row.get("address"))
            findings.append(
                Finding(
                    "pci.bus_lost",
                    outcome=MISMATCH,
                    expected="none",
                    got=text,
                    remedy=remedy,
                    subject=where,
                    evidence=_evidence_of([row]),
                    blast=NODE,
                )
            )
    return findings


def _of_row(
    row: Json,
    name: str,
    text: str,
    remedy: Optional[Remedy] = None,
    blast: str = NOTHING,
    *,
    severity: str = DEGRADED,
    subject: Any = None,
) -> Finding:
    """Return the finding of one row of the log: a mismatch if there is a remedy, otherwise a match."""
    where = _text(subject if subject is not None else row.get("address"))
    times = f", {_count(row)} times" if _count(row) > 1 else ""
    return Finding(
        name,
        outcome=MISMATCH if remedy else MATCH,
        expected="none",
        got=text + times,
        remedy=remedy,
        subject=where,
        evidence=_evidence_of([row]),
        blast=blast if remedy else None,
        severity=severity,
    )


def _api_mismatch(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a module that was used by a library of another version.

    A container may have its own library. In that case the line names the loaded module and a foreign version,
    and the node's own library matches. Anything else is a fault of the node.
    """
    driver = capture.get("driver")
    loaded, library = (
        (driver.get("loaded"), driver.get("library")) if isinstance(driver, dict) else (None, None)
    )
    parameters = _parameters(row)
    client, module = parameters.get("client"), parameters.get("module")
    text = "a library of another version than the loaded module asked it"
    if client and module:
        text = f"{parameters.get('name') or 'a program'} came with version {client}, the module is {module}"
    if known(loaded) and loaded == library == module and client not in (None, library):
        return _of_row(row, "driver.api_mismatch", text + "; the node's own library fits")
    remedy = Remedy(
        "Make module and libraries one version (site.yml) and load the module again, or restart the node.",
        SITE,
        REBOOT,
    )
    return _of_row(row, "driver.api_mismatch", text, remedy, NODE)


def _not_started(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a device that the driver could not start. For a GPU that answers now, the line is about the past."""
    kind, driver = str(row.get("kind")), str(_parameters(row).get("driver") or "nvidia")
    name, text = (
        f"driver.{kind}",
        f"{driver} could not start it"
        + (f" ({_parameters(row)['status']})" if _parameters(row).get("status") else ""),
    )
    if driver not in ("nvidia", "amdgpu", "xe", "i915", "nvidia-nvswitch"):
        return _of_row(
            row,
            name,
            text,
            Remedy("Look at the device with `lspci -vv`; restart the node.", REBOOT),
            NODE,
        )
    if _works(capture, row.get("address")):
        if kind == "probe_failed":
            return _of_row(row, name, text + ", and it answers now")
        remedy = Remedy(
            f"It answers now. Where it comes back: restart the node, and look at power and firmware. {ACK}",
            REBOOT,
            REPAIR,
            ACKNOWLEDGE,
        )
        return _of_row(row, name, text, remedy, NODE)
    remedy = Remedy(
        "Restart the node; where it stays so, look at power, firmware and the driver's version (`nvidia-bug-report.sh`).",
        REBOOT,
        REPAIR,
    )
    return _of_row(row, name, text, remedy, NODE, severity=DRAIN)


def _works(capture: Mapping[str, Any], where: Any) -> bool:
    """Return whether the GPU library lists this GPU (without an address: every GPU that the node has) and can reach it now."""
    gpus = _list(capture.get("gpus"))
    if capture.get("gpu_error") is not None or not gpus:
        return False
    mine = [gpu for gpu in gpus if where is None or gpu.get("address") == where]
    return bool(mine) and all(
        isinstance(gpu.get("index"), int) and gpu.get("lost") is not True for gpu in mine
    )


def _aer(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge PCIe errors.

    Corrected ones are judged by their rate: the link repairs them (PCI Express base specification, 6.2).
    """
    severity = _parameters(row).get("severity")
    kind = _parameters(row).get("type")
    text = f"{severity} PCIe error" + (f" ({kind})" if kind else "")
    remedy = Remedy(
        "Have seating, riser and cable of the device inspected; a restart trains the link again.",
        REPAIR,
    )
    if severity == "corrected":
        most = limits.get("aer_correctable_minute")
        first, last = row.get("uptime_s"), row.get("last_uptime_s")
        minutes = (
            max(1.0, (last - first) / 60)
            if isinstance(first, (int, float)) and isinstance(last, (int, float))
            else 1.0
        )
        if isinstance(most, (int, float)) and _count(row) / minutes > most:
            return _of_row(
                row, "pcie.aer", f"{text}, {_count(row) / minutes:.0f} a minute", remedy, NODE
            )
        return _of_row(row, "pcie.aer", text)
    fatal = row.get("fatal") is True and row.get("address") in _gpu_path(capture)
    return _of_row(row, "pcie.aer", text, remedy, NODE, severity=DRAIN if fatal else DEGRADED)


def _gpu_path(capture: Mapping[str, Any]) -> List[str]:
    """Return the addresses of GPUs and of the ports above them."""
    pci = capture.get("pci")
    addresses: List[str] = []
    for where, device in pci.items() if isinstance(pci, dict) and not is_fault(pci) else ():
        if isinstance(device, dict) and device.get("kind") in ("gpu", "nvswitch"):
            addresses += [str(where), *_scalars(device.get("path"))]
    return addresses


def _limited(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Report the kernel's remark at enumeration. The path itself is judged hop by hop."""
    parameters = _parameters(row)
    text = f"{parameters.get('gbps')} of {parameters.get('capable_gbps')} Gb/s, limited by {parameters.get('link')} at {parameters.get('at')}"
    return Finding(
        "pcie.limited",
        outcome=MATCH,
        expected="judged by the path itself",
        got=text,
        remedy=None,
        subject=_text(row.get("address")),
        evidence=_evidence_of([row]),
    )


def _io_error(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    device = _parameters(row).get("device")
    remedy = Remedy(
        f"Look at the health of {device} (`smartctl -a`, `nvme smart-log`); replace it where errors come back. {ACK}",
        REPAIR,
        ACKNOWLEDGE,
    )
    return _of_row(
        row, "storage.io_error", "errors of reading or writing", remedy, VISIT, subject=device
    )


def _mce(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    severity = _parameters(row).get("severity")
    subject = _parameters(row).get("controller")
    if row.get("fatal") is True:
        remedy = Remedy(
            "Drain the node; have the memory module or the CPU that the line names replaced (`ras-mc-ctl --errors`).",
            REPAIR,
        )
        return _of_row(
            row,
            "machine.mce",
            "a hardware error that was not corrected",
            remedy,
            VISIT,
            severity=DRAIN,
            subject=subject,
        )
    return _of_row(row, "machine.mce", f"hardware errors: {severity}", subject=subject)


def _link_down(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a PCIe slot that went down: it has lost its device.

    Network links go down at each start, and are judged by state and counters.
    """
    slot = _parameters(row).get("slot")
    if slot is not None:
        remedy = Remedy(
            "Restart the node; where the device stays away, have it inspected.", REBOOT, REPAIR
        )
        return _of_row(row, "pcie.slot_down", f"the link of slot {slot} went down", remedy, NODE)
    return _of_row(
        row, "net.link_down", "the link went down", subject=_parameters(row).get("interface")
    )


def _hung(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a task that is blocked, or was shortly before: a device below it does not answer.

    Earlier ones are over.
    """
    text = f"{', '.join(str(n) for n in _parameters(row).get('names') or [_parameters(row).get('name')])} waited for longer than the kernel's limit"
    blocked = {
        task["pid"] for task in _list(capture.get("blocked")) if isinstance(task.get("pid"), int)
    }
    recent, last, now = (
        limits.get("hung_task_recent_s"),
        row.get("last_uptime_s"),
        capture.get("uptime"),
    )
    late = (
        isinstance(recent, (int, float))
        and isinstance(last, (int, float))
        and isinstance(now, (int, float))
        and now - last <= recent
    )
    if late or blocked & set(_parameters(row).get("pids") or ()):
        remedy = Remedy(
            "Look at what it waits for with `goldnode-node diagnose`: storage, network file systems, or a driver that hangs.",
            PERSON,
        )
        return _of_row(row, "kernel.hung_task", text, remedy, PROCESS)
    return _of_row(row, "kernel.hung_task", text)


def _oom(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Note a job that the kernel has ended for lack of memory. The node is not at fault."""
    where = "its own limit" if _parameters(row).get("cgroup") else "the node's memory"
    text = f"{', '.join(str(n) for n in _parameters(row).get('names') or ['a process'])} ended at {where}"
    return _of_row(
        row, "memory.oom", text, subject="jobs" if _parameters(row).get("cgroup") else "node"
    )


_KINDS = {
    "api_mismatch": _api_mismatch,
    "init_failed": _not_started,
    "probe_failed": _not_started,
    "aer": _aer,
    "bandwidth_limited": _limited,
    "io_error": _io_error,
    "mce": _mce,
    "link_down": _link_down,
    "hung_task": _hung,
    "oom": _oom,
}


_IDS = {
    "api_mismatch": "driver.api_mismatch",
    "init_failed": "driver.init_failed",
    "probe_failed": "driver.probe_failed",
    "aer": "pcie.aer",
    "bandwidth_limited": "pcie.limited",
    "io_error": "storage.io_error",
    "mce": "machine.mce",
    "link_down": "net.link_down",
    "hung_task": "kernel.hung_task",
    "oom": "memory.oom",
}


# -- over boots


def _history(
    history: Sequence[Json], gpus: Iterable[Finding], capture: Mapping[str, Any], log: Json
) -> List[Json]:
    """Return the history of faults that needed a reset or a restart, once per boot and GPU."""
    boot, at = log.get("boot_id"), seconds(capture.get("time"))
    rows = list(history)
    if isinstance(boot, str) and boot and at is not None:
        have = {(item["boot_id"], item["address"]) for item in history}
        for finding in gpus:
            serious = finding.outcome == MISMATCH and finding.severity == DRAIN and finding.subject
            if serious and (boot, finding.subject) not in have:
                rows.append(
                    {"boot_id": boot, "address": finding.subject, "what": finding.id, "time": at}
                )
                have.add((boot, str(finding.subject)))
    return rows[-HISTORY:]


def _repeated(history: Sequence[Json], limits: Json, capture: Mapping[str, Any]) -> List[Finding]:
    """Report GPUs and switches that needed a reset or restart in two or more boots within the days that the
    class sets.
    """
    days, times, now = (
        limits.get("repeat_days"),
        limits.get("xid_repeats"),
        seconds(capture.get("time")),
    )
    if not isinstance(days, (int, float)) or not isinstance(times, int) or now is None:
        return []
    by_address: Dict[str, List[Json]] = {}
    for item in history:
        if abs(now - item["time"]) <= days * 86400:
            by_address.setdefault(item["address"], []).append(item)
    findings = []
    for where, items in sorted(by_address.items()):
        if len({item["boot_id"] for item in items}) >= times:
            result = tuple(
                f"{time.strftime('%Y-%m-%d', time.gmtime(item['time']))} {item.get('what')}"
                for item in items
            )
            text = f"needed a reset or restart in {len(items)} boots within {days:g} days"
            remedy = Remedy(
                "Keep the node drained; run NVIDIA's field diagnostic and have the GPU replaced where it fails. `goldnode-node ack` afterwards.",
                REPAIR,
                ACKNOWLEDGE,
            )
            findings.append(
                Finding(
                    "gpu.repeated_faults",
                    outcome=MISMATCH,
                    expected=f"fewer than {times} boots",
                    got=text,
                    remedy=remedy,
                    subject=where,
                    evidence=result,
                    blast=VISIT,
                )
            )
    return findings


# -- small things


def _limits(document: Mapping[str, Any]) -> Json:
    health = document.get("health")
    limits = health.get("limits") if isinstance(health, dict) else None
    return limits if isinstance(limits, dict) else {}


def _list(value: Any) -> List[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _scalars(value: Any) -> List[str]:
    return (
        [str(item) for item in value if isinstance(item, (str, int, float))]
        if isinstance(value, list)
        else []
    )


def _row(row: Json) -> Json:
    """Return a row of the capture with checked types. A value of another type counts as missing."""

    def scalar(value: Any) -> Any:
        if isinstance(value, list):
            return [item for item in value if isinstance(item, (str, int, float))]
        return value if isinstance(value, (str, int, float, bool)) else None

    code, count, parameters = row.get("code"), row.get("count"), row.get("parameters")
    given = (
        {str(key): scalar(value) for key, value in parameters.items()}
        if isinstance(parameters, dict)
        else {}
    )
    for name in ("names", "pids"):
        if not isinstance(given.get(name, []), list):
            del given[name]
    numbers = ("seq", "last_seq", "uptime_s", "last_uptime_s")
    return {
        "kind": _text(row.get("kind")) or "unknown",
        "code": code if isinstance(code, int) and not isinstance(code, bool) else None,
        **{name: _text(row.get(name)) for name in ("address", "mig", "boot_id")},
        **{
            name: row[name] if isinstance(row.get(name), (int, float)) else None for name in numbers
        },
        "count": count if isinstance(count, int) and count > 0 else 1,
        "fatal": row["fatal"] if isinstance(row.get("fatal"), bool) else None,
        "text": str(row.get("text"))[:240],
        "parameters": given,
    }


def _parameters(row: Mapping[str, Any]) -> Json:
    parameters: Json = row["parameters"]
    return parameters


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None


def _count(row: Mapping[str, Any]) -> int:
    count: int = row["count"]
    return count


def _seq(row: Mapping[str, Any]) -> Optional[float]:
    """Return the position of the last line in the log."""
    for name in ("last_seq", "last_uptime_s"):
        if isinstance(row.get(name), (int, float)):
            return float(row[name])
    return None


def _fault_text(fault: Fault) -> str:
    times = f", {_count(fault.row)} times" if _count(fault.row) > 1 else ""
    mig = f" ({fault.row['mig']})" if fault.row.get("mig") else ""
    return f"{fault.text}{mig}{times}"


def _evidence(faults: Sequence[Fault]) -> Tuple[str, ...]:
    return _evidence_of([fault.row for fault in faults])


def _evidence_of(rows: Sequence[Json]) -> Tuple[str, ...]:
    return tuple(str(row.get("text"))[:240] for row in rows[:8])


def _one_each(findings: Sequence[Finding]) -> List[Finding]:
    """Return one finding per id and subject.

    Rows that differ otherwise are joined, and the worse outcome counts.
    """
    order = {UNREAD: 1, MISMATCH: 2}
    once: Dict[Tuple[str, Optional[str]], Finding] = {}
    for finding in findings:
        key = (finding.id, finding.subject)
        have = once.get(key)
        if have is None:
            once[key] = finding
            continue
        rank = [(order.get(f.outcome, 0), f.severity == DRAIN) for f in (have, finding)]
        better, other = (finding, have) if rank[1] > rank[0] else (have, finding)
        text = better.got if better.got == other.got else f"{better.got}; {other.got}"
        once[key] = better._replace(got=text, evidence=(better.evidence + other.evidence)[:8])
    return list(once.values())
