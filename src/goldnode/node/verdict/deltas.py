"""Changes of counters since the last check, since boot, and since the last acknowledgement (`ack`).

A counter is stored by its owner (a GPU's UUID, a PCI address, an interface) in :data:`MEMORY`
(schema goldnode.memory/1). The first reading is the base: errors from before (a lifetime counter
never clears) are no alarm. Time is the kernel's own (uptime and boot id), because clocks jump. A
counter that is lower than before has restarted: the driver was reloaded, or 32 bits overflowed. A
state file that cannot be used (torn, of another machine, from the future) is renamed to
`sanity.json.bad` and reported until `ack`.
"""

from __future__ import annotations

import json
import os

from ..ground.host import Host
from ..ground.typed import NamedTuple
from ..probe.values import is_fault
from ..state.finding import DEFERRED, MISMATCH, UNREAD, Finding
from ..state.kinds import NODE, NOTHING
from ..state.remedy import ACKNOWLEDGE, PERSON, REPAIR, STEPS, Remedy
from .hardware import gpu_key, without_process
from .rules import as_list, as_map, fetch, is_number, number_of, rows_of, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple


SCHEMA = "goldnode.memory/1"
MEMORY = "/var/lib/goldnode/sanity.json"
DAMAGED = MEMORY + ".bad"
LARGEST = 4 << 20  # bytes; a memory of 16 GPUs has some 60 KB
MOST = 4096  # counters kept; what has not been seen longest is forgotten first
# A first reading late in a boot covers a long time; an early one covers a short time, in which links are
# still being trained.
FIRST_MINUTES = 30.0
# A counter counts for the life of the thing, or since its driver was loaded or the kernel started.
LIFE, LOAD = "life", "load"
WRAP = 1 << 32
# Seconds: a jump that is remembered (the limit decides which are reported), and for how long.
JUMP, JUMP_REPORTED = 60.0, 86400.0
FROM_ZERO = "/aer.fatal"  # a fault at any time
# Corrected memory errors are judged by a day: a part wears out over days, and single errors are what ECC is for.
DAILY = ("/ce", "/ecc.aggregate.corrected", "/ecc.volatile.corrected")
DAY, MARK = 86400.0, 21600.0  # seconds: the window, and the distance of its marks
# Filesystems that the kernel makes read-only when it finds them damaged.
ON_DISK = ("ext4", "xfs", "btrfs", "ext3", "f2fs")


class Delta(NamedTuple):
    """Change of a counter. `value` is the change since the last check (None at the first reading), in
    `seconds` (None if unknown). `day` is the growth within the last day of this boot, at least.
    """

    now: float
    value: Optional[float]
    seconds: Optional[float]
    since_ack: float
    base_time: str
    first: bool
    reset: bool
    per_minute: Optional[float]
    span: str
    day: Optional[float] = None


class Deltas:
    """All counters of a capture compared with the stored ones, and other findings about changes between
    checks.
    """

    def __init__(self) -> None:
        self.rows: Dict[str, Delta] = {}
        self.first_of_boot = True
        self.blocked: Tuple[Any, ...] = ()
        self.held: Tuple[Any, ...] = ()  # GPUs that were in use without a process
        self.clock_jump: Optional[float] = None
        self.findings: List[Finding] = []

    def of(self, *key: str) -> Optional[Delta]:
        """Return the change of the counter of this name; None if it was not read."""
        return self.rows.get("/".join(key))


def counters(capture: Mapping[str, Any]) -> Iterator[Tuple[str, str, float]]:
    """Yield (name, kind, value) of every stored counter of a capture."""
    for gpu in as_list(capture.get("gpus")):
        if not isinstance(gpu, dict) or is_fault(gpu) or gpu.get("lost") is True:
            continue
        owner = f"gpu/{sanitized(gpu_key(gpu), 80)}/"
        for path, kind in (
            ("ecc.aggregate.uncorrected", LIFE),
            ("ecc.aggregate.corrected", LIFE),
            ("remapped_rows.uncorrectable", LIFE),
            ("pcie.replay", LOAD),
        ):
            value = fetch(gpu, path)
            if is_number(value):
                yield owner + path, kind, value
        # amdgpu counts since it was loaded, and stores no count over the board's life.
        since_load = fetch(gpu, "ecc.volatile.corrected")
        if is_number(since_load) and not is_number(fetch(gpu, "ecc.aggregate.corrected")):
            yield f"{owner}ecc.volatile.corrected", LOAD, since_load
        for name in ("thermal", "hw_slowdown", "sw_thermal", "hw_power_brake"):
            value = fetch(gpu, f"throttle.violation_ns.{name}")
            if is_number(value):
                yield f"{owner}throttle.{name}", LOAD, value

        links = [as_map(row.get("errors")) for row in rows_of(fetch(gpu, "nvlink.links"))]
        for name in ("replay", "recovery", "crc_flit", "crc_data"):
            read = [row[name] for row in links if is_number(row.get(name))]
            if read:
                yield f"{owner}nvlink.{name}", LOAD, sum(read)
    for address, row in as_map(capture.get("pci")).items():
        for name in ("correctable", "nonfatal", "fatal"):
            value = fetch(row, f"aer.{name}")
            if is_number(value):
                yield f"pci/{sanitized(address, 40)}/aer.{name}", LOAD, value
    for name, row in as_map(capture.get("network")).items():
        for key, value in [
            *as_map(fetch(row, "counters")).items(),
            ("carrier_changes", fetch(row, "carrier_changes")),
        ]:
            if is_number(value):
                yield f"net/{sanitized(name, 40)}/{sanitized(key, 40)}", LOAD, value
    for name, row in as_map(capture.get("infiniband")).items():
        for port, inner in as_map(fetch(row, "ports")).items():
            for key in ("link_downed", "symbol_error"):
                value = fetch(inner, f"counters.{key}")
                if is_number(value):
                    yield f"ib/{sanitized(name, 40)}/{sanitized(port, 8)}/{key}", LOAD, value
    for name, row in as_map(as_map(capture.get("memory")).get("edac")).items():
        if is_number(fetch(row, "ce")):
            yield f"edac/{sanitized(name, 40)}/ce", LOAD, row["ce"]
    for name, row in as_map(fetch(capture, "storage.devices")).items():
        if is_number(fetch(row, "smart.media_errors")):
            yield f"disk/{sanitized(name, 40)}/media_errors", LIFE, fetch(row, "smart.media_errors")
    for name, row in as_map(capture.get("pressure")).items():
        if is_number(fetch(row, "full_us")):
            yield f"psi/{sanitized(name, 20)}/full_us", LOAD, row["full_us"]


def _clock_jump(
    memory: Mapping[str, Any],
    clock: Any,
    uptime: Optional[float],
    passed: Optional[float],
    same: bool,
) -> Tuple[Optional[float], Optional[List[Any]]]:
    """Return the jump of the clock to report, and the row that remembers it.

    A jump is reported for a day: timestamps of logs and files are wrong around it.

    :param passed: seconds since the last check of this boot.
    :param same: whether the last check was in this boot.
    """
    earlier, row = memory.get("clock"), memory.get("jump")
    jump = None
    if passed is not None and is_number(clock) and is_number(earlier):
        jump = (clock - earlier) - passed
    if jump is not None and abs(jump) > JUMP:
        return jump, [jump, uptime]
    remembered = same and isinstance(row, list) and len(row) == 2 and all(map(is_number, row))
    if remembered and row is not None and 0 <= (uptime or 0) - row[1] < JUMP_REPORTED:
        return row[0], row
    return jump, None


def _first_reading(
    name: str, kind: str, now: float, base: float, time: str, *, uptime: Optional[float]
) -> Delta:
    """Return the change of a counter that was not stored before. Only some kinds have a rate since boot."""
    owner = name.split("/", 1)[0]
    rate = None
    if kind == LOAD and owner not in ("net", "psi", "ib") and "throttle." not in name:
        rate = now / max(uptime / 60, FIRST_MINUTES) if uptime is not None else None
    return Delta(
        now,
        value=None,
        seconds=None,
        since_ack=now - base,
        base_time=time,
        first=True,
        reset=False,
        per_minute=rate,
        span="since boot",
    )


def _change(
    name: str,
    kind: str,
    now: float,
    row: Mapping[str, Any],
    uptime: Optional[float],
    *,
    passed: Optional[float],
    same: bool,
) -> Tuple[Delta, float]:
    """Return the change of a counter since its stored row, and its new base.

    :param passed: seconds since the last check of this boot.
    :param same: whether the last check was in this boot.
    """
    before, base = row["last"], row["base"]
    fresh = now < before or (kind == LOAD and not same)
    if not fresh:
        value = now - before
    elif kind == LOAD and same and before < WRAP and before > 0.9 * WRAP and now < 0.1 * WRAP:
        # 32 bits have overflowed, within one boot and from near the end to near the start.
        value = WRAP - before + now
    elif kind == LOAD:
        value = now
    else:
        value = 0  # a lower lifetime count: another card under the same name, or a cleared InfoROM
    base = now - (before - base)
    # Counts at the first reading of a boot date from device detection: they have a rate, and are not events
    # themselves.
    if same or kind == LIFE or name.endswith(FROM_ZERO):
        base -= value
    seconds, span, shortest = None, "since boot", 1.0
    if same:
        seconds = passed
        span = f"in {passed:.0f} s" if passed is not None else "since the last check"
    elif kind == LOAD:
        seconds, shortest = uptime, FIRST_MINUTES
    # The time between two checks may be seconds: a single event is not sixty a minute.
    per_minute = value / max(seconds / 60, shortest) if seconds is not None else None
    when = _short(row.get("time")) or "?"
    return Delta(
        now,
        value=value,
        seconds=seconds,
        since_ack=now - base,
        base_time=when,
        first=False,
        reset=fresh,
        per_minute=per_minute,
        span=span,
    ), base


def _marks(stored: Iterable[Any], growth: float, new: float, uptime: float) -> List[List[float]]:
    """Return the marks of a counter's day, oldest first: [uptime, growth at that time].

    A counter that restarted or was acknowledged begins a new day.

    :param new: errors from before the first reading of this boot, as many as belong to one day.
    """
    marks = [
        mark
        for mark in stored
        if isinstance(mark, list) and len(mark) == 2 and all(map(is_number, mark))
    ]
    marks = [mark for mark in marks if 0 <= uptime - mark[0] <= DAY and mark[1] <= growth]
    if not marks or uptime - marks[-1][0] >= MARK:
        marks.append([uptime, growth - (0.0 if marks else new)])
    return marks


def step(memory: Mapping[str, Any], capture: Mapping[str, Any]) -> Tuple[Deltas, Dict[str, Any]]:
    """Return the changes of the counters since `memory` was stored, and the new memory. Pure.

    :param memory: the result of :func:`load`; empty if nothing was stored.
    """
    changed = Deltas()
    identity = as_map(capture.get("identity"))
    boot, uptime = _short(identity.get("boot_identity")), number_of(capture.get("uptime"))
    time = _short(capture.get("time") or capture.get("recorded")) or "?"
    same = boot is not None and memory.get("boot") == boot
    last, passed = memory.get("uptime"), None
    if same and uptime is not None and is_number(last) and uptime >= last:
        passed = uptime - last
    changed.first_of_boot = not same
    changed.blocked = tuple(as_list(memory.get("blocked"))) if same else ()
    changed.held = tuple(as_list(memory.get("held"))) if same else ()
    clock = number_of(fetch(capture, "time_sync.clock"))
    changed.clock_jump, jumped = _clock_jump(memory, clock, uptime, passed, same)
    last_counters = as_map(memory.get("counters"))
    rows: Dict[str, Any] = {}
    volatile = _volatile(capture)
    for name, kind, now in counters(capture):
        row = as_map(last_counters.get(name))
        if not is_number(row.get("last")) or not is_number(row.get("base")):
            # Errors since the driver was loaded are recent, independent of the card's earlier count.
            base = now - min(now, volatile.get(name, 0))
            if name.endswith(FROM_ZERO):
                base = 0
            changed.rows[name] = _first_reading(
                name, kind=kind, now=now, base=base, time=time, uptime=uptime
            )
        else:
            changed.rows[name], base = _change(
                name, kind=kind, now=now, row=row, uptime=uptime, passed=passed, same=same
            )
        rows[name] = {"last": now, "base": base, "time": changed.rows[name].base_time}
        if name.endswith(DAILY) and uptime is not None:
            new = 0.0 if same or kind == LIFE else now * min(1.0, DAY / max(uptime, 1.0))
            marks = _marks(as_list(row.get("day")) if same else (), now - base, new, uptime)
            rows[name]["day"] = marks
            day = now - base - marks[0][1]
            changed.rows[name] = changed.rows[name]._replace(day=day)
    # A counter that did not answer this time is remembered: its owner may be back at the next check.
    for name, row in last_counters.items():
        if name not in rows and isinstance(row, dict) and len(rows) < MOST:
            rows[name] = row
    last_identity, reported = changes(
        as_map(memory.get("known")), known(capture), as_list(memory.get("pending"))
    )
    changed.findings = reported
    if fetch(capture, "time_sync.synchronised") is not True:
        clock = None  # a clock that was still on its way may jump
    new = {
        "schema": SCHEMA,
        "machine_id": _short(identity.get("machine_id")),
        "boot": boot,
        "uptime": uptime,
        "time": time,
        "clock": clock,
        "counters": rows,
        "known": last_identity,
        "pending": [[item.id, item.subject, item.expected, item.got] for item in reported],
        "jump": jumped,
        "blocked": [row.get("pid") for row in rows_of(capture.get("blocked"))][:64],
        "held": [gpu_key(row) for row in rows_of(capture.get("gpus")) if without_process(row)][:64],
        "standing": as_map(memory.get("standing")),
        "events": memory.get("events", {}),
        "acks": as_list(memory.get("acks"))[-100:],
    }
    return changed, new


def absence(
    before: Mapping[str, Any], memory: Mapping[str, Any], fault: Optional[str]
) -> Optional[Dict[str, Any]]:
    """Return the time without a check before this boot: {boot, last, uptime, why}. Pure.

    It is stored with the counters, so a check that is killed after that does not lose it. None on a
    node without an earlier check. `last` is the clock at the last check before this boot; None if
    unknown, with the reason in `why`.

    :param before: the stored memory.
    :param memory: the new one.
    :param fault: why the stored one could not be used.
    """
    if before and before.get("boot") == memory["boot"]:
        stored = before.get("absence")
        return stored if isinstance(stored, dict) else None
    if not before and fault is None:
        return None
    last, why = number_of(before.get("clock")), None
    if last is None and fault:
        why = f"{MEMORY}: {fault}"
    elif last is None:
        why = "its clock was not synchronised at the last check"
    return {"boot": memory["boot"], "last": last, "uptime": memory["uptime"], "why": why}


def _short(value: Any) -> Optional[str]:
    return sanitized(value, 120) if isinstance(value, str) else None


def _volatile(capture: Mapping[str, Any]) -> Dict[str, float]:
    """Return the part of a lifetime counter that belongs to this load of the driver."""
    counts = {}
    for gpu in as_list(capture.get("gpus")):
        value = fetch(gpu, "ecc.volatile.uncorrected")
        if isinstance(gpu, dict) and is_number(value):
            counts[f"gpu/{sanitized(gpu_key(gpu), 80)}/ecc.aggregate.uncorrected"] = value
    return counts


# -- identity: what a node was, and is no more


def known(capture: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the properties of a node that do not change by themselves: its GPUs by address, its RAM, its
    firmware, the modes of its mounts.
    """
    properties: Dict[str, Any] = {}
    for gpu in rows_of(capture.get("gpus")):
        answers = not is_fault(gpu) and gpu.get("lost") is not True
        if answers and isinstance(gpu.get("address"), str):
            for key in ("uuid", "vbios"):
                if isinstance(gpu.get(key), str):
                    properties[f"gpu/{sanitized(gpu['address'], 40)}/{key}"] = sanitized(
                        gpu[key], 80
                    )
    total = fetch(capture, "memory.total_mib")
    if is_number(total):
        properties["memory//total_mib"] = total
    bios = fetch(capture, "identity.product.bios_version")
    if isinstance(bios, str):
        properties["bios//version"] = sanitized(bios, 80)
    for path, row in as_map(fetch(capture, "storage.mounts")).items():
        if isinstance(fetch(row, "readonly"), bool) and fetch(row, "type") in ON_DISK:
            properties[f"mount/{sanitized(path, 120)}/readonly"] = row["readonly"]
    return properties


REMEDIES = {
    "gpu": (
        Remedy(
            "Another GPU, or another VBIOS, than this node had: was it replaced? Then acknowledge it: "
            "`goldnode-node ack`.",
            PERSON,
            ACKNOWLEDGE,
        ),
        "degraded",
    ),
    "memory": (
        Remedy(
            "See `dmidecode -t memory` and the BMC's event log for a DIMM that is gone; after a repair: `goldnode-node ack`.",
            REPAIR,
            ACKNOWLEDGE,
        ),
        "drain",
    ),
    "bios": (
        Remedy(
            "Was the firmware updated? Then acknowledge it: `goldnode-node ack`; see "
            "that its settings are still the class's.",
            PERSON,
            ACKNOWLEDGE,
        ),
        "degraded",
    ),
    "mount": (
        Remedy(
            "The kernel makes a filesystem read-only when it finds it damaged: see dmesg, drain the node, check it.",
            PERSON,
        ),
        "drain",
    ),
}


def changes(
    before: Mapping[str, Any], now: Mapping[str, Any], pending: List[Any]
) -> Tuple[Dict[str, Any], List[Finding]]:
    """Return findings about properties that have changed. They are reported until the old value is back, or
    until the change is acknowledged (`ack`).
    """
    keep, findings = dict(now), []
    for name, was in sorted(before.items()):
        kind, _, rest = name.partition("/")
        subject, _, key = rest.rpartition("/")  # the subject may be a path
        if name not in now:
            keep[name] = was  # it did not answer, which other rules report
            continue
        is_now = now[name]
        if was == is_now or kind not in REMEDIES:
            continue
        # The kernel's part of the memory differs a little from version to version.
        if kind == "memory" and (not is_number(was) or is_now >= was * 0.99):
            continue
        # A mount that was made writable again is no damage.
        if kind == "mount" and not (was is False and is_now is True):
            continue
        keep[name] = was
        remedy, severity = REMEDIES[kind]
        expected, got = f"{key} {was}, as it was", f"{key} {is_now}"
        if kind == "mount":
            expected, got = "writable, as it was", "read-only"
        findings.append(
            Finding(
                f"changed.{kind}",
                outcome=MISMATCH,
                expected=sanitized(expected),
                got=sanitized(got),
                remedy=remedy,
                subject=sanitized(subject, 80) or None,
                blast=NOTHING,
                severity=severity,
            )
        )
    return keep, findings


# -- events that stay until they are acknowledged


PERSISTENT = ("gpu.ecc.uncorrected", "gpu.sram", "memory.edac", "pcie.aer")
SETTLE = "Repair or replace it, then acknowledge it: `goldnode-node ack`."


def persistent(
    memory: Dict[str, Any], findings: List[Finding], time: str, boot: Optional[str]
) -> List[Finding]:
    """Return findings of damage that a reboot hides and does not repair. They remain as degraded findings
    until `ack`.

    `memory["standing"]` is updated. Only findings that are not seen now are returned.
    """
    rows = dict(as_map(memory.get("standing")))
    seen = set()
    wrong = [finding for finding in findings if finding.outcome == MISMATCH]
    for finding in wrong:
        if finding.id in PERSISTENT and finding.severity == "drain":
            name = f"{finding.id}|{finding.subject or ''}"
            seen.add(name)
            first = {"got": finding.got, "expected": finding.expected, "time": time, "boot": boot}
            rows.setdefault(name, first)
    unseen = []
    bad = {(finding.id, finding.subject) for finding in wrong}
    for name, row in sorted(rows.items()):
        identity, _, subject = name.partition("|")
        about = subject or None
        if name in seen or (identity, about) in bad or not isinstance(row, dict):
            continue
        text = f"{row.get('got')} at {row.get('time')}; not seen since"
        remedy = Remedy(SETTLE, REPAIR, ACKNOWLEDGE)
        unseen.append(
            Finding(
                identity,
                outcome=MISMATCH,
                expected=sanitized(row.get("expected")),
                got=sanitized(text),
                remedy=remedy,
                subject=about,
                evidence=(f"boot {row.get('boot')}",),
                blast=NODE,
                severity="degraded",
            )
        )
    # The oldest are dropped first: the file must not grow without limit on a node without repair.
    memory["standing"] = dict(list(rows.items())[-256:])
    return unseen


# Counters that a passive check skips: reading them loads the node, or the GPU's InfoROM.
FULL_ONLY = ("gpu.inforom", "storage.path")


def carried(
    memory: Dict[str, Any], before: Mapping[str, Any], findings: List[Finding], passive: bool
) -> List[Finding]:
    """Return the findings of this boot's last full check that a passive one does not repeat. They hold until
    the next full check.

    Updates `memory["full"]`. The result is added to the findings of a passive check.
    """
    if not passive:
        bad = [
            item for item in findings if item.id in FULL_ONLY and item.outcome in (MISMATCH, UNREAD)
        ]
        memory["full"] = [
            {
                **item._asdict(),
                "evidence": list(item.evidence),
                "steps": list(item.steps),
                "time": memory.get("time"),
            }
            for item in bad[:64]
        ]
        return []
    memory["full"] = []
    if before.get("boot") == memory.get("boot"):  # a boot may have changed what was measured
        memory["full"] = rows_of(before.get("full"))
    judged = {item.id for item in findings if item.outcome != DEFERRED}
    return [
        _from_memory(row)
        for row in memory["full"]
        if row.get("id") in FULL_ONLY
        and row["id"] not in judged
        and row.get("outcome") in (MISMATCH, UNREAD)
    ]


def _from_memory(row: Mapping[str, Any]) -> Finding:
    """Return a finding of an earlier full check. The file may be damaged, so each field is checked."""
    seen = f"seen at {sanitized(row.get('time'), 40)} by a full check; a passive one does not look at it"
    fields = ("expected", "got", "subject", "blast", "remedy")
    texts = {key: sanitized(row[key], 240) for key in fields if isinstance(row.get(key), str)}
    steps = [step for step in STEPS if step in as_list(row.get("steps"))] or [PERSON]
    return Finding(
        row["id"],
        row["outcome"],
        expected=texts.get("expected"),
        got=texts.get("got"),
        remedy=Remedy(texts["remedy"], *steps) if "remedy" in texts else None,
        subject=texts.get("subject"),
        evidence=(seen, *(sanitized(item) for item in as_list(row.get("evidence")))),
        severity="drain" if row.get("severity") == "drain" else "degraded",
        blast=texts.get("blast"),
    )


# -- the file


def load(host: Host, capture: Mapping[str, Any]) -> Tuple[Dict[str, Any], Optional[str]]:
    """Return the stored memory and, if it cannot be used, the reason; then the memory is empty. Reads only."""
    try:
        data = host.data(MEMORY)
    except OSError as problem:
        return {}, f"it cannot be read: {problem.strerror}"
    if data is None:
        return {}, None
    if len(data) > LARGEST:
        return {}, f"it has {len(data)} bytes"
    try:
        memory = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}, "it is torn"
    if (
        not isinstance(memory, dict)
        or memory.get("schema") != SCHEMA
        or not isinstance(memory.get("counters"), dict)
    ):
        return {}, f"it is not of schema {SCHEMA}"
    identity = as_map(capture.get("identity"))
    machine, own = memory.get("machine_id"), identity.get("machine_id")
    if isinstance(machine, str) and isinstance(own, str) and machine != own:
        return {}, "it is another machine's"
    last, uptime = number_of(memory.get("uptime")), number_of(capture.get("uptime"))
    same = memory.get("boot") == identity.get("boot_identity")
    # Both times are of one clock; a second is the rounding of two readings.
    if same and None not in (last, uptime) and last > uptime + 1:
        return {}, "it is from the future of this boot"
    return memory, None


def unusable_memory(host: Host, fault: Optional[str]) -> List[Finding]:
    """Return the finding about a state file that could not be used, now or before."""
    try:
        left = host.exists(DAMAGED)
    except OSError:
        left = False
    if fault is None and not left:
        return []
    got = f"{DAMAGED} was moved away: earlier counts are lost"
    if fault:
        got = f"{MEMORY}: {fault}; what was counted before is not known"
    remedy = Remedy(
        "Look whether the disk is sound (dmesg); then `goldnode-node ack` takes the old file away.",
        PERSON,
        ACKNOWLEDGE,
    )
    expected = "the record of the last check"
    return [Finding("memory.state", MISMATCH, expected, sanitized(got, 240), remedy, blast=NOTHING)]


def save(host: Host, memory: Mapping[str, Any], fault: Optional[str]) -> None:
    """Store the state. A file that could not be used is moved away first. Raises OSError."""
    if fault is not None and host.exists(MEMORY):
        # Moved and not deleted: the next checks report it until a person has acknowledged the loss.
        os.replace(host.located(MEMORY), host.located(DAMAGED))
    host.write(MEMORY, json.dumps(memory, separators=(",", ":")).encode(), 0o600)
