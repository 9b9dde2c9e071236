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
* Lines of other drivers and of the kernel are judged by their row in facts/log_lines.yml: severity, remedy, the lines that withdraw them,
  and the rate below which they are a note.
* A reset without a restart is not in the log unless Xid 154 shows it: `goldnode-node ack` settles it.
* An oops or a lockup degrades a node, an oops in a GPU's driver drains it; the kernel's taint (D, L, M) shows them where the log has lost them.
* A record of the previous boot (BERT, machine checks at start) is about the past: degraded, for a visit to the BMC's log.
* A log that has lost its beginning is not a clean log.
"""

from __future__ import annotations

import time

from ..ground import log_lines
from ..ground.boot import seconds
from ..ground.host import like
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from ..probe.logs import APART
from ..probe.values import is_fault, known
from ..state.finding import ELSEWHERE, MATCH, MISMATCH, UNREAD, Finding
from ..state.kinds import GPU, NODE, NOTHING, PROCESS, VISIT
from ..state.remedy import ACKNOWLEDGE, GPU_RESET, PERSON, REBOOT, REPAIR, SITE, Remedy
from .rules import as_list, as_map, rows_of, text_of

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
OTHER = Remedy("Run `goldnode-node check` of the version that read this log.", PERSON)
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
        """Return the number, or the kind if there is no number."""
        code = self.row.get("code")
        return self.row.get("kind") if code is None else code


def judge(
    document: Mapping[str, Any], capture: Mapping[str, Any], memory: Mapping[str, Any]
) -> Tuple[List[Finding], Json]:
    """Return the findings about the kernel's log, and the new ``memory["events"]``. Pure. Accepts arguments
    of wrong types.

    The memory is {acked: {boot_id, truncated, rows: {key: [count, last_seq]}}, history: [{boot_id,
    address, what, time}]}.
    """
    stored = remembered(memory)
    events = capture.get("events")
    if events is None and capture.get("source") not in ("live", "root"):
        return [], stored  # this source has no log
    readable = _log(events, capture, stored)
    log: Json = as_dict(events)
    # A log that is incomplete still shows events, and those are judged.
    if readable.outcome in (UNREAD, ELSEWHERE) and not log.get("rows"):
        return [readable, *_tainted(capture, ())], stored
    rows = [row for row in map(_row, rows_of(log.get("rows"))) if _of_this_boot(row, log)]
    open_rows = [row for row in rows if not _settled(row, stored, log)]
    limits = _limits(document)
    findings = [readable]
    gpus = _gpus(document, capture, open_rows, limits)
    findings += gpus + _others(capture, open_rows, limits) + _tainted(capture, rows)
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
    log = as_map(capture.get("events"))
    rows = [row for row in map(_row, rows_of(log.get("rows"))) if _of_this_boot(row, log)]
    earlier: Json = {"truncated": False, "rows": {}}
    if stored["acked"].get("boot_id") == log.get("boot_id"):
        earlier = stored["acked"]
    acked, done = dict(earlier["rows"]), set()
    for row in rows:
        names, about = _names(row, rows)
        matching = [item for item in names if like(item, name)]
        if matching and (subject is None or any(like(item, subject) for item in about)):
            acked[_key(row)] = [row["count"], row["last_seq"]]
            done.add(matching[0])
    # A gap in the log has no subject, so that an acknowledgement with one does not settle it.
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
    places = [row["address"]]
    places += [parameters.get(name) for name in ("device", "interface", "controller", "subject")]
    about = [str(place) for place in places if place]
    if kind not in ("xid", "sxid", "bus_lost"):
        form = log_lines.form(str(parameters.get("id"))) if kind == "line" else None
        names = [form.finding if form else _IDS.get(kind, "events.unknown")]
        if kind == "link_down":
            names.append("pcie.slot_down")
        elif kind == "mce":
            names.append("machine.previous_boot")
        return names, about or [""]
    names = [_id(kind, row["code"]), "xid.programs"]
    if kind == "bus_lost":
        names.append("pci.bus_lost")
    # NVLink errors of a GPU are evidence of a fault elsewhere, and are settled with that.
    link = row["code"] == 74 or 144 <= (row["code"] or 0) <= 154
    for other in rows:
        same = other["kind"] in ("xid", "bus_lost") and other["address"] == row["address"]
        cause = link and (other["kind"] in ("sxid", "bus_lost") or other["code"] == 79)
        if kind != "sxid" and (same or cause) and other is not row:
            names.append(_id(other["kind"], str(other["code"])))
            about += filter(None, [other["address"]])
    if link:
        names.append("nvlink.errors")
    return names, about or [""]


def _id(kind: str, code: Any) -> str:
    """Return the id of the finding about an Xid, an SXid or a lost GPU; without a number the kind alone."""
    if kind == "bus_lost":
        return "gpu.bus_lost"
    return kind if code is None else f"{kind}.{code}"


def remembered(memory: Mapping[str, Any]) -> Json:
    """Return ``memory["events"]`` without items of a wrong type."""
    events = as_dict(memory).get("events")
    stored = as_dict(events)
    acked = stored.get("acked")
    history = [
        item
        for item in rows_of(stored.get("history"))
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
    if not isinstance(events, dict):
        text = "the capture has none"
        return Finding("events.log", UNREAD, wanted, text, remedy, blast=NOTHING)
    if is_fault(events):
        return Finding("events.log", UNREAD, wanted, str(events.get("text")), remedy, blast=NOTHING)
    error = events.get("error")
    if error is not None:
        known_error = error if isinstance(error, dict) else {"text": error}
        text = str(known_error.get("text"))
        identity = capture.get("identity")
        inside = isinstance(identity, dict) and identity.get("container") is True
        # Neither a container nor a directory has a log of its own.
        if not inside and capture.get("source") != "root":
            return Finding("events.log", UNREAD, wanted, text, remedy, blast=NOTHING)
        outcome = ELSEWHERE if known_error.get("fault") == "not_exposed" else UNREAD
        return Finding("events.log", outcome, wanted, text, blast=NOTHING)
    sources = ", ".join(_scalars(events.get("sources"))) or "nothing"
    if not events.get("truncated"):
        return Finding("events.log", MATCH, wanted, f"read from {sources}")
    acked = stored["acked"]
    text = f"its beginning is lost (read from {sources}): earlier lines are unknown"
    if acked.get("truncated") and acked.get("boot_id") == events.get("boot_id"):
        return Finding("events.log", MATCH, wanted, text + "; acknowledged")
    remedy = Remedy(f"{remedy} For this boot: `goldnode-node ack`.", PERSON, ACKNOWLEDGE)
    return Finding("events.log", UNREAD, wanted, text, remedy, blast=NOTHING)


def _of_this_boot(row: Json, log: Json) -> bool:
    """Return whether a row is of this boot; older lines are not evidence for it."""
    return not row.get("boot_id") or not log.get("boot_id") or row["boot_id"] == log["boot_id"]


def _key(row: Mapping[str, Any]) -> str:
    more = _parameters(row)
    parts = [row.get(name) for name in ("kind", "code", "address", "mig")]
    parts += [more.get(name) for name in APART]
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
    return [_note("events.acknowledged", "settled by a person", text, rows)]


def _note(
    name: str,
    expected: str,
    got: str,
    rows: Sequence[Json],
    *,
    subject: Optional[str] = None,
    severity: str = "",
) -> Finding:
    """Return a match that is recorded for its evidence."""
    return Finding(
        name,
        outcome=MATCH,
        expected=expected,
        got=got,
        subject=subject,
        evidence=_evidence_of(rows),
        severity=severity,
    )


def _wrong(
    name: str,
    got: str,
    evidence: Tuple[str, ...],
    *,
    remedy: Remedy,
    blast: str,
    subject: Optional[str] = None,
    expected: str = "none",
    severity: str = "",
) -> Finding:
    """Return a mismatch."""
    return Finding(
        name,
        outcome=MISMATCH,
        expected=expected,
        got=got,
        remedy=remedy,
        subject=subject,
        evidence=evidence,
        severity=severity,
        blast=blast,
    )


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
    # Lines without an address are judged together: the driver did not name the GPU.
    for row in rows:
        kind, where = row.get("kind"), text_of(row.get("address"))
        if kind == "sxid":
            by_switch.setdefault(where, []).append(_sxid(table, row))
        elif kind == "xid":
            by_gpu.setdefault(where, []).append(_xid(table, row))
        elif kind == "bus_lost" and _is_gpu(row):
            by_gpu.setdefault(where, []).append(
                Fault(row, DRAIN, NODE, "the GPU has fallen off the bus")
            )
    by_gpu = {where: _workflows(faults) for where, faults in by_gpu.items()}
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
    # Two GPUs share a link; errors on three or more have one cause between them (guide, D.5).
    if len(several) >= 3 and not causes and not lost:
        evidence = _evidence([fault for links in several.values() for fault in links])
        text = f"NVLink errors on {len(several)} GPUs at once"
        remedy = Remedy(
            f"Drain the node and restart it; look at the fabric manager and the switches. {ACK}",
            REBOOT,
            ACKNOWLEDGE,
        )
        findings.append(
            _wrong("nvlink.errors", text, evidence, remedy=remedy, blast=NODE, severity=DRAIN)
        )
        for where, links in several.items():
            by_gpu[where] = _without(by_gpu[where], links)
    for where, faults in sorted(by_gpu.items(), key=lambda item: item[0] or ""):
        findings += _gpu(where, faults, shown if where in lost else ())
    return findings + _programs(by_gpu, capture, limits)


def _is_gpu(row: Json) -> bool:
    """Return whether a line about a lost device is about a GPU, by its driver."""
    return _parameters(row).get("driver", "nvidia") in ("nvidia", "amdgpu")


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
    if table is None:
        why = "the class document has no table of Xids: run site.yml"
        return Fault(row, UNREAD, NOTHING, f"Xid {code}: {why}")
    if entry is None:
        return Fault(row, UNREAD, NOTHING, f"Xid {code}: it is not listed")
    action, meaning, name = entry
    blast = BLAST.get(action, GPU if meaning == DRAIN else NOTHING)
    if code == 154:
        recovery = str(parameters.get("recovery"))
        meaning, blast = RECOVERY.get(recovery, (UNREAD, NOTHING))
        name = f"the driver asks for: {recovery.replace('_', ' ')}"
    elif action == "WORKFLOW_NVLINK5_ERR" and isinstance(row.get("fatal"), bool):
        # The word in the line decides, as for SXids (catalogue, decode table).
        meaning, blast = (DRAIN, GPU) if row["fatal"] else (NONE, NOTHING)
    return Fault(row, meaning, blast, f"Xid {code}: {name}")


def _sxid(table: Optional[Mapping[str, Any]], row: Json) -> Fault:
    """Judge an SXid by the word in its line; without one, by the number in the Fabric Manager guide."""
    code, fatal = row.get("code"), row.get("fatal")
    action, _, meaning = _entry(table, code) or ("", "", "")
    name = f"SXid {code}: {meaning}" if meaning else f"SXid {code}"
    if not isinstance(fatal, bool):
        fatal = {"SXID_FATAL": True, "SXID_NON_FATAL": False}.get(action)
    if fatal is None:
        return Fault(row, UNREAD, NOTHING, f"{name}: the line does not say whether it is fatal")
    return Fault(row, DRAIN, NODE, name) if fatal else Fault(row, NONE, NOTHING, name)


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
            evidence = _evidence([*bad, *shown])
            name = f"sxid.{bad[0].what}"
            findings.append(_wrong(name, text, evidence, remedy=remedy, blast=NODE, subject=where))
        for fault in faults:
            if fault.meaning == UNREAD:
                findings.append(_unknown("sxid", fault, where))
            elif fault.meaning == NONE:
                findings.append(_harmless("sxid", "not fatal", fault, where))
    return findings


def _harmless(kind: str, expected: str, fault: Fault, where: Optional[str]) -> Finding:
    name, text = f"{kind}.{fault.what}", _fault_text(fault)
    return _note(name, expected, text, [fault.row], subject=where, severity=DEGRADED)


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
            seen_by = {fault.row.get("address") for fault in peers}
            text += f"; seen as NVLink errors by {len(seen_by)} GPUs"
        name = "gpu.bus_lost" if first.what == "bus_lost" else f"xid.{first.what}"
        findings.append(
            _wrong(
                name,
                text,
                _evidence([*bad, *peers]),
                remedy=_remedy(where, blast, severity),
                blast=blast,
                subject=where,
                severity=severity,
            )
        )
    findings += [_unknown("xid", fault, where) for fault in faults if fault.meaning == UNREAD]
    findings += [
        _harmless("xid", "no fault of the node", fault, where)
        for fault in faults
        if fault.meaning == NONE
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
    return Finding(
        _id(kind, fault.row.get("code")),
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

    The GPU needs a test. Where all of them name one TPC in their Xid 13, two processes and a single GPU are enough: a
    bug in a program shows on many (catalogue, workflow 13: "repeat TPC and GPC"; NVIDIA/NVSentinel 270 and 345).
    """
    names, numbers = limits.get("app_xid_names"), limits.get("app_xid_processes")
    having = {
        where: [f for f in faults if f.what in (13, 31, 32, 69)] for where, faults in by_gpu.items()
    }
    having = {where: faults for where, faults in having.items() if faults}
    if not isinstance(names, int) or not isinstance(numbers, int):
        return []
    if len(having) != 1:
        return []
    ((where, faults),) = having.items()
    places = sorted(
        {str(place) for fault in faults for place in _parameters(fault.row).get("places") or ()}
    )
    one = len({place.partition(", SM")[0] for place in places}) == 1
    one = one and all(fault.what == 13 for fault in faults)
    # On a node with one GPU, every program fails on that one: it proves nothing.
    if not one and len(rows_of(capture.get("gpus"))) < 2:
        return []
    programs = {str(name) for fault in faults for name in _parameters(fault.row).get("names") or ()}
    processes = {str(pid) for fault in faults for pid in _parameters(fault.row).get("pids") or ()}
    # One job with many processes has one program name, and its bug shows on its GPUs alone.
    if len(programs) < names or len(processes) < (names if one else numbers):
        return []
    text = f"{len(programs)} programs ({', '.join(sorted(programs))}) failed on this GPU"
    text += f", all on {'; '.join(places)}" if one else ", and none on another"
    text += f": {_fault_text(faults[0])}"
    remedy = Remedy(
        "Test the GPU with `dcgmi diag -r 3` when it is free; `goldnode-node ack` when it passes. If errors on one TPC return, "
        "run NVIDIA's field diagnostic.",
        PERSON,
        ACKNOWLEDGE,
    )
    return [
        _wrong(
            "xid.programs",
            text,
            _evidence(faults),
            expected="errors of programs on no GPU alone",
            remedy=remedy,
            blast=GPU,
            subject=where,
        )
    ]


# -- other things


def _others(capture: Mapping[str, Any], rows: Sequence[Json], limits: Json) -> List[Finding]:
    """Judge every event that is not an Xid, an SXid or the loss of a GPU."""
    findings = []
    for row in rows:
        judge_kind = _KINDS.get(str(row.get("kind")))
        if row.get("kind") == "line":
            findings.append(_line(row, rows, capture, limits))
        elif judge_kind is not None:
            findings.append(judge_kind(row, capture, limits))
        elif row.get("kind") not in ("xid", "sxid", "bus_lost"):
            text = f"an event of the unknown kind {row.get('kind')}"
            evidence = _evidence_of([row])
            findings.append(
                Finding(
                    "events.unknown", UNREAD, None, text, OTHER, evidence=evidence, blast=NOTHING
                )
            )
        elif row.get("kind") == "bus_lost" and not _is_gpu(row):
            text = f"a device of driver {_parameters(row).get('driver')} does not answer any more"
            remedy = Remedy(
                "Restart the node; where the device stays away, have it inspected.", REBOOT, REPAIR
            )
            where, evidence = text_of(row.get("address")), _evidence_of([row])
            findings.append(
                _wrong("pci.bus_lost", text, evidence, remedy=remedy, blast=NODE, subject=where)
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
    where = text_of(row.get("address") if subject is None else subject)
    got = text + _times(row)
    if remedy is None:
        return _note(name, "none", got, [row], subject=where, severity=severity)
    evidence = _evidence_of([row])
    return _wrong(name, got, evidence, remedy=remedy, blast=blast, subject=where, severity=severity)


def _line(row: Json, rows: Sequence[Json], capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a line by its row in facts/log_lines.yml.

    A later line may withdraw it for the same device. With a limit it counts only above that rate.
    """
    form = log_lines.form(str(_parameters(row).get("id")))
    if form is None:  # a capture of another version
        evidence = _evidence_of([row])
        got = "a line of another version"
        return Finding("events.unknown", UNREAD, None, got, OTHER, evidence=evidence, blast=NOTHING)
    subject = _parameters(row).get("subject") or row.get("address")
    text = form.means
    settled = bool(form.settled_by) and any(_withdraws(other, row, form, rows) for other in rows)
    if settled:
        text += ", and a later line withdraws it"
    if form.id.startswith("kmod.") and _loaded(row, capture):
        text, settled = text + ", and it is loaded now", True
    rate, most = _rate(row), limits.get(form.limit or "")
    rare = form.limit is not None and not (isinstance(most, (int, float)) and rate > most)
    if form.remedy is None or form.severity == NONE or settled or rare:
        return _of_row(row, form.finding, text, subject=subject)
    if form.limit is not None:
        text += f", {rate:.0f} a minute"
    name = form.remedy
    if form.id == "nvidia.unsupported" and _twin_works(capture, row.get("address")):
        # The driver decides by the board's registers: NVIDIA/aicr issue 1858, one H100 of eight.
        text, name = "the driver refused this GPU, and runs another one of its model", "restart"
    sentence, blast, *steps = log_lines.remedy(name)
    if not {REBOOT, REPAIR} & set(steps):  # the log does not show that it is done
        sentence, steps = f"{sentence} {ACK}", [*steps, ACKNOWLEDGE]
    remedy = Remedy(sentence, *steps).about(str(subject or "the device"))
    return _of_row(row, form.finding, text, remedy, blast, severity=form.severity, subject=subject)


def _withdraws(later: Json, row: Json, form: log_lines.Form, rows: Sequence[Json]) -> bool:
    """Return whether a line withdraws another one: listed for it, later, and of no other device."""
    if _parameters(later).get("id") not in form.settled_by.split(" "):
        return False
    for one, other in (
        (row.get("address"), later.get("address")),
        (_parameters(row).get("subject"), _parameters(later).get("subject")),
    ):
        if None not in (one, other) and one != other:
            return False
    at, after = _seq(row), _seq(later)
    if (
        at is None and after is None
    ):  # stamps only: the order of the first lines, which is enough for a single one
        return _count(row) == 1 and rows.index(later) > rows.index(row)
    return at is not None and after is not None and after > at


def _twin_works(capture: Mapping[str, Any], where: Any) -> bool:
    """Return whether the GPU library lists another GPU with the PCI id of this one."""
    pci = as_map(capture.get("pci"))
    model = as_map(pci.get(where)).get("pci_id")
    twins = [name for name, device in pci.items() if as_map(device).get("pci_id") == model]
    return bool(model) and any(name != where and _works(capture, name) for name in twins)


def _loaded(row: Json, capture: Mapping[str, Any]) -> bool:
    """Return whether the module that a line names first is loaded now."""
    module = str(row.get("text")).partition(":")[0]
    return module in as_list(as_map(capture.get("os")).get("modules"))


def _rate(row: Json, errors: Any = None) -> float:
    """Return the lines, or the errors that they count, per minute, of at least one minute."""
    first, last = row.get("uptime_s"), row.get("last_uptime_s")
    minutes = 1.0
    if isinstance(first, (int, float)) and isinstance(last, (int, float)):
        minutes = max(1.0, (last - first) / 60)
    count = errors if isinstance(errors, int) and not isinstance(errors, bool) else 0
    return max(_count(row), count) / minutes


def _api_mismatch(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a module that was used by a library of another version.

    A container may have its own library. In that case the line names the loaded module and a
    foreign version, and the node's own library matches. Anything else is a fault of the node.
    """
    driver = capture.get("driver")
    if not isinstance(driver, dict):
        driver = {}
    loaded, library = driver.get("loaded"), driver.get("library")
    parameters = _parameters(row)
    client, module = parameters.get("client"), parameters.get("module")
    text = "a library of another version than the loaded module asked it"
    if client and module:
        text = f"{parameters.get('name') or 'a program'} came with version {client}, the module is {module}"
    if known(loaded) and loaded == library == module and client not in (None, library):
        return _of_row(row, "driver.api_mismatch", text + "; the node's own library fits")
    remedy = Remedy(
        "Make module and libraries one version (site.yml) and load the module again, or restart the node. "
        "Where it comes back, write the initramfs again: it may hold the former module.",
        SITE,
        REBOOT,
    )
    return _of_row(row, "driver.api_mismatch", text, remedy, NODE)


def _not_started(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a device that the driver could not start. For a GPU that answers now, the line is about the past."""
    kind, driver = str(row.get("kind")), str(_parameters(row).get("driver") or "nvidia")
    name, text = f"driver.{kind}", f"{driver} could not start it"
    if _parameters(row).get("status"):
        text += f" ({_parameters(row)['status']})"
    if driver not in ("nvidia", "amdgpu", "xe", "i915", "nvidia-nvswitch"):
        remedy = Remedy("Look at the device with `lspci -vv`; restart the node.", REBOOT)
        return _of_row(row, name, text, remedy, NODE)
    away = _not_listed(capture)
    if (
        away and row.get("address") is None and driver == "nvidia"
    ):  # the line names no board: those that the bus has and the library lacks
        text += f": {', '.join(away)}"
    elif _works(capture, row.get("address")):
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
        "Restart the node; where it stays so, look at firmware and driver's version, and have power and seating inspected (`nvidia-bug-report.sh`).",
        REBOOT,
        REPAIR,
    )
    return _of_row(row, name, text, remedy, NODE, severity=DRAIN)


def _not_listed(capture: Mapping[str, Any]) -> List[str]:
    """Return NVIDIA's GPUs on the bus that the library does not list, without those that are handed to virtual machines."""
    gpus = rows_of(capture.get("gpus"))
    listed = {gpu.get("address") for gpu in gpus if isinstance(gpu.get("index"), int)}
    return sorted(
        str(where)
        for where, device in as_map(capture.get("pci")).items()
        if isinstance(device, dict)
        and device.get("kind") == "gpu"
        and str(device.get("pci_id")).startswith("10de:")
        and device.get("driver") != "vfio-pci"
        and where not in listed
    )


def _works(capture: Mapping[str, Any], where: Any) -> bool:
    """Return whether the GPU library lists this GPU (without an address: every GPU that the node has) and can reach it now."""
    gpus = rows_of(capture.get("gpus"))
    mine = [gpu for gpu in gpus if where is None or gpu.get("address") == where]
    if capture.get("gpu_error") is not None or not mine:
        return False
    # Only the library numbers GPUs; one without a number is known from the bus alone.
    return all(isinstance(gpu.get("index"), int) and gpu.get("lost") is not True for gpu in mine)


def _aer(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge PCIe errors.

    Corrected ones are judged by their rate: the link repairs them (PCI Express base specification,
    6.2).
    """
    severity = _parameters(row).get("severity")
    text = f"{severity} PCIe error"
    if _parameters(row).get("type"):
        text += f" ({_parameters(row)['type']})"
    remedy = Remedy(
        "Have seating, riser and cable of the device inspected; a restart trains the link again.",
        REPAIR,
    )
    if severity == "corrected":
        most = limits.get("aer_correctable_minute")
        rate = _rate(row)
        if isinstance(most, (int, float)) and rate > most:
            return _of_row(row, "pcie.aer", f"{text}, {rate:.0f} a minute", remedy, NODE)
        return _of_row(row, "pcie.aer", text)

    fatal = row.get("fatal") is True and row.get("address") in _gpu_path(capture)
    return _of_row(row, "pcie.aer", text, remedy, NODE, severity=DRAIN if fatal else DEGRADED)


def _gpu_path(capture: Mapping[str, Any]) -> List[str]:
    """Return the addresses of GPUs and of the ports above them."""
    addresses: List[str] = []
    for where, device in as_map(capture.get("pci")).items():
        if isinstance(device, dict) and device.get("kind") in ("gpu", "nvswitch"):
            addresses += [str(where), *_scalars(device.get("path"))]
    return addresses


def _limited(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Report the kernel's remark at enumeration. The path itself is judged hop by hop."""
    have, can, link, at = map(_parameters(row).get, ("gbps", "capable_gbps", "link", "at"))
    text = f"{have} of {can} Gb/s, limited by {link} at {at}"
    where = text_of(row.get("address"))
    return _note("pcie.limited", "judged by the path itself", text, [row], subject=where)


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
    more = _parameters(row)
    severity, dimm = more.get("severity"), f" ({more['dimm']})" if more.get("dimm") else ""
    if severity == "previous boot":
        return _previous_boot(row)
    subject = more.get("subject") or more.get("controller")
    if row.get("fatal") is True:
        remedy = Remedy(
            "Drain the node; have the memory module or the CPU that the line names replaced (`ras-mc-ctl --errors`).",
            REPAIR,
        )
        text = "a hardware error that was not corrected" + dimm
        return _of_row(row, "machine.mce", text, remedy, VISIT, severity=DRAIN, subject=subject)
    rate, most = _rate(row, more.get("errors")), limits.get("edac_corrected_minute")
    text = f"hardware errors: {severity}{dimm}"
    if severity == "unknown":  # the kernel leaves the details to a decoder
        return _of_row(row, "machine.mce", text + "; `ras-mc-ctl --errors` lists them")
    if isinstance(most, (int, float)) and rate > most:
        remedy = Remedy(
            "Have the memory module that the line names replaced at the next maintenance (`ras-mc-ctl --errors`).",
            REPAIR,
        )
        text = f"{text}, {rate:.0f} a minute"
        return _of_row(row, "machine.mce", text, remedy, VISIT, subject=subject)
    return _of_row(row, "machine.mce", text, subject=subject)


def _previous_boot(row: Json) -> Finding:
    """Judge a record of an error that ended the previous boot. Some firmware has a reference without content at every boot."""
    section, worst = map(_parameters(row).get, ("section", "worst"))
    text = f"an error ended the previous boot: {section or 'of an unknown kind'}"
    known_kind = section and section != "Firmware Error Record Reference"
    if worst not in ("fatal", "recoverable") or not known_kind:
        return _of_row(row, "machine.previous_boot", text)
    remedy = Remedy(
        f"Read the BMC's event log for the part; where it comes back, have the part replaced. {ACK}",
        PERSON,
        ACKNOWLEDGE,
    )
    return _of_row(row, "machine.previous_boot", text, remedy)


# Drivers of GPUs: after an oops in one of them no GPU can be trusted.
_GPU_DRIVERS = ("nvidia", "amdgpu", "xe", "i915", "nova", "nouveau")


def _crashed(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge an oops or a lockup. After an oops the kernel's state is not defined (Documentation/admin-guide/tainted-kernels.rst)."""
    kind, module = str(row.get("kind")), str(_parameters(row).get("module") or "")
    text = "the kernel had an oops" if kind == "oops" else "a processor was locked up"
    if module:
        text += f" in module {module}"
    remedy = Remedy(
        "Restart the node when nothing runs on it, and keep the trace for the vendor; where it comes back, change the driver's or the kernel's "
        f"version. {ACK}",
        REBOOT,
        ACKNOWLEDGE,
    )
    if kind == "lockup":
        return _of_row(row, "kernel.lockup", text, remedy, NODE)
    severity = DRAIN if module.startswith(_GPU_DRIVERS) else DEGRADED
    return _of_row(row, "kernel.oops", text, remedy, NODE, severity=severity)


def _tainted(capture: Mapping[str, Any], rows: Sequence[Json]) -> List[Finding]:
    """Report an oops, a lockup or a machine check that only the kernel's taint shows: the log has lost its lines.

    One that is in the log is judged, and acknowledged, there.
    """
    flags = as_map(as_map(capture.get("os")).get("kernel")).get("taint_flags")
    kinds = {row["kind"] for row in rows}
    findings = []
    for letter, kind, name, text in (
        ("D", "oops", "kernel.oops", "an oops"),
        ("L", "lockup", "kernel.lockup", "a lockup"),
        ("M", "mce", "machine.mce", "a machine check"),
    ):
        if isinstance(flags, str) and letter in flags and kind not in kinds:
            got = f"the kernel's taint {letter} shows {text} since boot; the log has no line of it"
            remedy = Remedy("Restart the node when nothing runs on it.", REBOOT)
            row = _wrong(name, got, (), remedy=remedy, blast=NODE, severity=DEGRADED)
            findings.append(row)
    return findings


def _link_down(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a PCIe slot that went down: it has lost its device.

    Network links go down at each start, and are judged by state and counters.
    """
    slot = _parameters(row).get("slot")
    if slot is not None:
        remedy = Remedy(
            "Restart the node; where the device stays away, have it inspected.", REBOOT, REPAIR
        )
        severity = DRAIN if row.get("address") in _gpu_path(capture) else DEGRADED
        text = f"the link of slot {slot} went down"
        return _of_row(row, "pcie.slot_down", text, remedy, NODE, severity=severity)
    return _of_row(
        row, "net.link_down", "the link went down", subject=_parameters(row).get("interface")
    )


def _hung(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Judge a task that is blocked, or was shortly before: a device below it does not answer.

    Earlier ones are over.
    """
    names = _parameters(row).get("names") or [_parameters(row).get("name")]
    text = f"{', '.join(map(str, names))} waited for longer than the kernel's limit"
    tasks = rows_of(capture.get("blocked"))
    blocked = {task["pid"] for task in tasks if isinstance(task.get("pid"), int)}
    recent, last = limits.get("hung_task_recent_s"), row.get("last_uptime_s")
    now = capture.get("uptime")
    numbers = all(isinstance(value, (int, float)) for value in (recent, last, now))
    late = numbers and now - last <= recent  # type: ignore[operator]
    if late or blocked & set(_parameters(row).get("pids") or ()):
        remedy = Remedy(
            "Look at what it waits for with `goldnode-node diagnose`: storage, network file systems, or a driver that hangs.",
            PERSON,
        )
        return _of_row(row, "kernel.hung_task", text, remedy, PROCESS)
    return _of_row(row, "kernel.hung_task", text)


def _oom(row: Json, capture: Mapping[str, Any], limits: Json) -> Finding:
    """Note a job that the kernel has ended for lack of memory. A service of the node that was ended is a fault."""
    service = _parameters(row).get("subject")
    names = ", ".join(map(str, _parameters(row).get("names") or ["a process"]))
    where = "its own limit" if _parameters(row).get("cgroup") else "the node's memory"
    if service:
        remedy = Remedy(
            f"Restart {service} if it does not run, and keep memory for services (Slurm's MemSpecLimit, the kubelet's system-reserved, "
            f"OOMScoreAdjust). {ACK}",
            PERSON,
            ACKNOWLEDGE,
        )
        text = f"the kernel ended the service {service} ({names}) at {where}"
        return _of_row(row, "memory.oom", text, remedy, PROCESS, subject=service)
    if _parameters(row).get("cgroup"):
        return _of_row(row, "memory.oom", f"{names} ended at its own limit", subject="jobs")
    return _of_row(row, "memory.oom", f"{names} ended at the node's memory", subject="node")


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
    "oops": _crashed,
    "lockup": _crashed,
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
    "oops": "kernel.oops",
    "lockup": "kernel.lockup",
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
    days, times = limits.get("repeat_days"), limits.get("xid_repeats")
    now = seconds(capture.get("time"))
    if not isinstance(days, (int, float)) or not isinstance(times, int) or now is None:
        return []
    by_address: Dict[str, List[Json]] = {}
    # The clock may have been set back since; a time in the future is as near as one in the past.
    for item in history:
        if abs(now - item["time"]) <= days * 86400:
            by_address.setdefault(item["address"], []).append(item)
    findings = []
    for where, items in sorted(by_address.items()):
        if len({item["boot_id"] for item in items}) >= times:
            evidence = tuple(
                f"{time.strftime('%Y-%m-%d', time.gmtime(item['time']))} {item.get('what')}"
                for item in items
            )
            text = f"needed a reset or restart in {len(items)} boots within {days:g} days"
            remedy = Remedy(
                "Keep the node drained; run NVIDIA's field diagnostic and have the GPU replaced where it fails. `goldnode-node ack` after that.",
                REPAIR,
                ACKNOWLEDGE,
            )
            findings.append(
                _wrong(
                    "gpu.repeated_faults",
                    text,
                    evidence,
                    expected=f"fewer than {times} boots",
                    remedy=remedy,
                    blast=VISIT,
                    subject=where,
                )
            )
    return findings


# -- small things


def _limits(document: Mapping[str, Any]) -> Json:
    return as_map(as_map(document.get("health")).get("limits"))


def _scalars(value: Any) -> List[str]:
    return [str(item) for item in as_list(value) if isinstance(item, (str, int, float))]


def _row(row: Json) -> Json:
    """Return a row of the capture with checked types. A value of another type counts as missing."""

    def scalar(value: Any) -> Any:
        if isinstance(value, list):
            return [item for item in value if isinstance(item, (str, int, float))]
        return value if isinstance(value, (str, int, float, bool)) else None

    code, count, parameters = row.get("code"), row.get("count"), row.get("parameters")
    given = {}
    if isinstance(parameters, dict):
        given = {str(key): scalar(value) for key, value in parameters.items()}
    for name in ("names", "pids"):
        if not isinstance(given.get(name, []), list):
            del given[name]
    numbers = ("seq", "last_seq", "uptime_s", "last_uptime_s")
    return {
        "kind": text_of(row.get("kind")) or "unknown",
        "code": code if isinstance(code, int) and not isinstance(code, bool) else None,
        **{name: text_of(row.get(name)) for name in ("address", "mig", "boot_id")},
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


def _count(row: Mapping[str, Any]) -> int:
    count: int = row["count"]
    return count


def _seq(row: Mapping[str, Any]) -> Optional[float]:
    """Return the position of the last line in the log."""
    for name in ("last_seq", "last_uptime_s"):
        if isinstance(row.get(name), (int, float)):
            return float(row[name])
    return None


def _times(row: Mapping[str, Any]) -> str:
    return f", {_count(row)} times" if _count(row) > 1 else ""


def _fault_text(fault: Fault) -> str:
    mig = f" ({fault.row['mig']})" if fault.row.get("mig") else ""
    return f"{fault.text}{mig}{_times(fault.row)}"


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
        # The sort is stable: of two that are equally bad, the first one stays first.
        pair = [have, finding]
        pair.sort(key=lambda f: (order.get(f.outcome, 0), f.severity == DRAIN), reverse=True)
        text = "; ".join(dict.fromkeys(str(item.got) for item in pair))
        evidence = pair[0].evidence + pair[1].evidence
        once[key] = pair[0]._replace(got=text, evidence=evidence[:8])
    return list(once.values())
