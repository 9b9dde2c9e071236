"""Diagnosis of two samples: one line per check, and which of four bottlenecks they show. Pure.

compute        the GPUs themselves: one is missing, faulty or throttled, or all are simply busy
input          supply of the GPUs: storage, memory and processors of the host
communication  connections between them: links, drops, retransmissions
mismatch       running software does not fit the installation

The limits below mark values that deserve a closer look. They are not the limits of a class, which `check`
applies. Only the growth of a counter between the samples matters. A counter that is smaller in the second
sample has wrapped (32 bits) or restarted; a restarted one has no rate.
"""

from __future__ import annotations

from ..ground import log_lines
from ..ground.host import Json
from ..ground.json_lines import as_dict, as_list
from ..ground.text import and_more
from ..probe.machine import printable
from ..probe.values import is_fault, known
from ..state.finding import MISMATCH as MISMATCHED
from ..verdict import binding, events
from .compatible import compatibility
from .finding import (
    COMMUNICATION,
    COMPUTE,
    FOUND,
    INPUT,
    MISMATCH,
    UNKNOWN,
    Line,
    Suspect,
    get,
    gpus_of,
    line_of,
    rows_of,
    word,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple


BUSY, WAITING = (
    90,
    50,
)  # percent of the time with work on the GPU: practically all of it, and half of it
# A GPU that spins in a collective counts as busy but draws little power. This share is a rule of thumb, so
# the report only says "probably".
IDLE_POWER = 0.4
SLOWED = 0.01  # share of the interval in which heat or a power brake throttled a GPU
CAPPED = 0.1  # share of the interval in which the power limit throttled a GPU
SLOW_CLOCK = 0.6  # relative to the maximum clock, on a busy GPU
IO, MEMORY, CPU, IOWAIT = 0.1, 0.05, 0.6, 0.2  # shares of the interval in which tasks waited
LIBRARY_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
# Packets per second. Not zero, because unwanted broadcasts count as drops too.
DROPS = 10.0
SLOWDOWNS = {
    "thermal": "heat",
    "hw_thermal": "heat (the GPU slows itself)",
    "sw_thermal": "heat (the driver slows it)",
    "hw_slowdown": "its own protection",
    "hw_power_brake": "the power brake of the machine",
    "reliability": "voltage",
    "board_limit": "the board's limit",
}
SLOWED_NOW = (
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
LINK_ERRORS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_xmit_discards",
)
RETRANSMITTED = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
)
# Log lines whose kind is a finding in itself. The Xid table of the class judges Xid and SXid lines.
# Each value: bottleneck, weight, text. The heaviest finding of a report becomes its verdict.
LINES = {
    "bus_lost": (COMPUTE, 100, "a GPU fell off the bus"),
    "api_mismatch": (MISMATCH, 95, "library and kernel module are of different drivers"),
    "init_failed": (COMPUTE, 95, "the driver could not start a GPU"),
    "probe_failed": (COMPUTE, 95, "the driver refused a GPU"),
    "mce": (COMPUTE, 60, "machine check"),
    "hung_task": (INPUT, 50, "a task hung for minutes"),
    "io_error": (INPUT, 55, "a disk reported errors"),
    "oops": (COMPUTE, 75, "the kernel had an oops"),
    "lockup": (INPUT, 60, "a processor was locked up"),
    "oom": (INPUT, 45, "the kernel killed processes for memory"),
    "link_down": (COMMUNICATION, 40, "a network link went down"),
}
# Messages of facts/log_lines.yml are judged as by the check: its finding decides the bottleneck, its severity the weight.
LISTED = (
    ("net.", COMMUNICATION),
    ("nvlink.", COMMUNICATION),
    ("storage.", INPUT),
    ("driver.", MISMATCH),
)
LISTED_WEIGHTS = {"drain": 90, "degraded": 65}


def diagnose(
    first: Optional[Json], second: Json, document: Optional[Mapping[str, Any]] = None
) -> Json:
    """Judge two samples. Return the report (schema goldnode.diagnosis/1).

    Keys: lines (each :class:`Line` as an object), bottleneck (one of the four, "none" or "undetermined"),
    verdict (a sentence), next (a command), exit_code, seconds, simulated.

    :param first: the earlier sample; None if there is only one, which skips every check of rates.
    """
    document = document or {}
    seconds = elapsed(first, second)
    before = first if first is not None and seconds else None
    lines = [
        visible(second, document),
        errors(before, second, document),
        throttling(before, second, seconds, document),
        feeding(before, second, seconds),
        joining(before, second, seconds),
        compatibility(second, document),
    ]
    faulty = sorted((line for line in lines if line.status == FOUND), key=lambda line: -line.weight)
    unknown = [line.check for line in lines if line.status == UNKNOWN]
    if faulty:
        kind, text, command = str(faulty[0].kind), faulty[0].text, faulty[0].next
        exit_code = 1
    else:
        kind, text, command = without_fault(second, unknown)
        exit_code = 3 if unknown else 0
    return {
        "schema": "goldnode.diagnosis/1",
        "simulated": bool(second.get("simulated")),
        "seconds": round(seconds, 2) if seconds else None,
        "lines": [line._asdict() for line in lines],
        "bottleneck": kind,
        "verdict": text,
        "next": command,
        "exit_code": exit_code,
    }


def elapsed(first: Optional[Json], second: Json) -> Optional[float]:
    """Return the seconds between two samples of one boot; None if unknown, or if the second is not later."""
    if first is None:
        return None
    # Counters start again with a boot, so that samples of two boots have no rates.
    boots = [get(sample, "identity", "boot_id") for sample in (first, second)]
    ups = [float(sample["uptime"]) for sample in (first, second) if _number(sample.get("uptime"))]
    if (known(boots[0]) and known(boots[1]) and boots[0] != boots[1]) or len(ups) < 2:
        return None
    return ups[1] - ups[0] if ups[1] - ups[0] > 0.05 else None


def grown(first: Any, second: Any) -> Optional[int]:
    """Return the growth of a counter; None if a value is not a number, or if the counter has restarted.

    A wrapped 32-bit counter has not restarted.
    """
    if not _number(first) or not _number(second):
        return None
    if second >= first:
        return int(second - first)
    return int(second + (1 << 32) - first) if first < 1 << 32 and first - second > 1 << 31 else None


def _unread(value: Any) -> bool:
    """Return whether reading a value failed. A value that the GPU does not expose is not a failure."""
    return is_fault(value) and value["fault"] != "not_exposed"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _by_address(sample: Optional[Json]) -> Dict[str, Json]:
    return {
        str(gpu["address"]): gpu
        for gpu in gpus_of(sample or {})
        if isinstance(gpu.get("address"), str)
    }


def _where(gpu: Json) -> str:
    address, index = gpu.get("address"), gpu.get("index")
    place = address if isinstance(address, str) else "no address"
    return f"GPU {'?' if index is None else index} ({place})"


def _which(gpu: Json) -> str:
    return word(gpu["index"] if _number(gpu.get("index")) else gpu.get("address"))


def visible(sample: Json, document: Mapping[str, Any]) -> Line:
    """Compare the numbers of GPUs that are declared, on the bus, in /dev, and answering through the library."""
    gpus, error = gpus_of(sample), sample.get("gpu_error")
    driver = dict(rows_of(sample, "driver"))
    declared = get(document, "gpu", "count")
    vendor = (
        get(document, "gpu", "vendor")
        or next((gpu.get("vendor") for gpu in gpus), None)
        or driver.get("vendor")
    )
    bus = _on_bus(sample, vendor)
    suspects = _unbound(sample, document) or _library(driver, error, bool(bus or declared))
    counts: Dict[str, Optional[int]] = {
        "declared": declared if isinstance(declared, int) else None,
        "on the bus": bus,
    }
    # Without its library no GPU answers, which is the finding already.
    if not suspects:
        # Only NVML numbers GPUs; those of other vendors are listed from the driver's files.
        counts["answering"] = sum(
            gpu.get("index") is not None or gpu.get("vendor") != "nvidia" for gpu in gpus
        )
        devices = sample.get("devices")
        if vendor == "nvidia" and isinstance(devices, dict) and not is_fault(devices):
            counts["in /dev"] = sum(
                name.startswith("/dev/nvidia") and name[11:].isdigit()
                for name, _ in rows_of(sample, "devices")
            )
    numbers = {name: count for name, count in counts.items() if count is not None}
    text = f"GPUs: {', '.join(f'{count} {name}' for name, count in numbers.items())}"
    if len(set(numbers.values())) > 1:
        look = "lspci -nn"
        if vendor == "nvidia":
            look = "lspci -d 10de: ; nvidia-smi -L; dmesg | grep -i 'fallen off'"
        suspects.append(Suspect(text, COMPUTE, 97, look))
    for gpu in gpus:
        suspects += _lost(gpu)
    if not suspects and not gpus and not bus and not declared:
        return Line(
            "gpus",
            UNKNOWN,
            "no GPU on the bus, and no class document says that there should be one",
        )
    unknown = ["the GPUs were not read"] if is_fault(sample.get("gpus")) else []
    return line_of("gpus", suspects, text, unknown)


def _unbound(sample: Json, document: Mapping[str, Any]) -> List[Suspect]:
    """Return why GPUs do not have their driver: all other faults of the driver follow from that."""
    cause = binding.of(sample, stack=bool(document.get("driver")))
    return [Suspect(printable(cause.text, 240), MISMATCH, 101, str(cause.remedy))] if cause else []


def _library(driver: Json, error: Any, expected: bool) -> List[Suspect]:
    """Return the fault of the GPU library. A missing one is a fault only if GPUs are expected."""
    versions = {
        name: driver.get(name)
        for name in ("loaded", "library")
        if isinstance(driver.get(name), str)
    }
    differ = len(set(versions.values())) > 1
    if differ or (isinstance(error, dict) and error.get("rc") == LIBRARY_MISMATCH):
        reported = " and ".join(f"{name} {printable(str(text))}" for name, text in versions.items())
        if not differ:
            reported = f"NVML return code {LIBRARY_MISMATCH}: upgraded without a reboot?"
        return [
            Suspect(
                f"loaded module and library are of different drivers ({reported})",
                MISMATCH,
                99,
                "cat /proc/driver/nvidia/version; ldconfig -p | grep libnvidia-ml; then reboot the node",
            )
        ]
    if not isinstance(error, dict) or not is_fault(error):
        return []
    if error["fault"] == "not_exposed" and not expected:
        return []
    return [
        Suspect(
            f"the GPU library cannot be used: {printable(str(error.get('text')), 160)}",
            COMPUTE,
            98,
            "dmesg | grep -iE 'NVRM|amdgpu|Xid'",
        )
    ]


def _lost(gpu: Json) -> List[Suspect]:
    """Return the faults of a GPU that cannot be used: it is lost, or its fabric is not ready."""
    suspects = []
    if gpu.get("lost") is True:
        suspects.append(
            Suspect(
                f"{_where(gpu)} is lost",
                COMPUTE,
                100,
                "dmesg | grep -iE 'Xid|fallen off'; then power-cycle the node",
            )
        )
    state = get(gpu, "fabric", "state")
    if isinstance(state, str) and state in ("not_started", "in_progress"):
        suspects.append(
            Suspect(
                f"{_where(gpu)}: the NVSwitch fabric is {state.replace('_', ' ')}, CUDA does not start",
                COMMUNICATION,
                96,
                "systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric",
            )
        )
    return suspects


def _on_bus(sample: Json, vendor: Any) -> Optional[int]:
    rows = sample.get("pci")
    if not isinstance(rows, dict) or is_fault(rows):
        return None
    start = {"nvidia": "10de:", "amd": "1002:", "intel": "8086:"}.get(str(vendor), "")
    cards = [
        row for row in rows.values() if get(row, "kind") == "gpu" and get(row, "gone") is not True
    ]
    return sum(str(get(row, "pci_id")).startswith(start) for row in cards)


# -- 2: errors


def errors(first: Optional[Json], second: Json, document: Mapping[str, Any]) -> Line:
    """Judge the kernel log since boot, recovery actions of the GPUs, uncorrectable memory errors, and PCIe
    errors.
    """
    suspects, unknown, lines = _events(second, document)
    for gpu in gpus_of(second):
        where = _where(gpu)
        query = f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {_which(gpu)}"
        action = gpu.get("recovery_action")
        if isinstance(action, str) and action != "none":
            suspects.append(
                Suspect(
                    f"{where}: the driver asks for {action.replace('_', ' ')}", COMPUTE, 94, query
                )
            )
        for keys, text in (
            (
                ("remapped_rows", "failure"),
                "a memory row could not be remapped: it has to be replaced",
            ),
            (("remapped_rows", "pending"), "a memory row waits for a reset to be remapped"),
            (("retired_pages", "pending"), "a memory page waits for a reboot to be retired"),
            (
                ("ecc", "sram", "threshold_exceeded"),
                "too many uncorrectable errors in its caches: it has to be replaced",
            ),
            (("unrepairable_memory",), "its memory cannot be repaired"),
        ):
            if get(gpu, *keys) is True:
                suspects.append(Suspect(f"{where}: {text}", COMPUTE, 90, query))
        count = get(gpu, "ecc", "volatile", "uncorrected")
        for value, what in (
            (count, "memory errors"),
            (get(gpu, "remapped_rows", "pending"), "remapped rows"),
            (action, "recovery action"),
        ):
            if _unread(value) and gpu.get("lost") is not True:
                unknown.append(f"{where}: its {what} could not be read")
        if _number(count) and count > 0:
            suspects.append(
                Suspect(
                    f"{where}: {count} uncorrectable memory errors since the driver was loaded",
                    COMPUTE,
                    91,
                    query,
                )
            )
    for address, row in rows_of(second, "pci"):
        if get(row, "gone") is True:
            suspects.append(
                Suspect(
                    f"{address} has gone from the bus",
                    COMPUTE,
                    93,
                    f"lspci -vvs {word(address)}; dmesg | grep -F {word(address)}",
                )
            )
        for kind in ("fatal", "nonfatal", "correctable"):
            count = get(row, "aer", kind)
            new = grown(get(first, "pci", address, "aer", kind), count)
            # A fatal error is a fault whenever it was; others are of interest while they grow.
            if kind == "fatal" and _number(count) and count > 0:
                suspects.append(
                    Suspect(
                        f"{address}: {count} fatal PCIe errors since boot",
                        COMPUTE,
                        85,
                        f"lspci -vvs {word(address)}",
                    )
                )
            elif new:
                suspects.append(
                    Suspect(
                        f"{address}: {new} {kind} PCIe errors while it was watched",
                        COMPUTE,
                        70,
                        f"lspci -vvs {word(address)}",
                    )
                )
    before = _by_address(first)
    for gpu in gpus_of(second):
        new = grown(
            get(before.get(str(gpu.get("address"))), "pcie", "replay"), get(gpu, "pcie", "replay")
        )
        if new:
            suspects.append(
                Suspect(
                    f"{_where(gpu)}: {new} PCIe replays while it was watched",
                    COMPUTE,
                    65,
                    "nvidia-smi -q -d PCIE",
                )
            )
    fine = "no errors since boot"
    if lines:
        fine += f"; of no concern: {lines}"
    return line_of("errors", suspects, fine, unknown)


def _events(sample: Json, document: Mapping[str, Any]) -> Tuple[List[Suspect], List[str], str]:
    """Judge the kernel log.

    Return the findings, log lines or sources that could not be judged, and the names of harmless lines (those
    that concern only the program that caused them).
    """
    section, table = sample.get("events"), document.get("xid")
    suspects: List[Suspect] = []
    unknown: List[str] = []
    lines: List[str] = []
    fault = section if is_fault(section) else get(section, "error")
    if not isinstance(section, dict) or is_fault(fault):
        reason = fault.get("text") if isinstance(fault, dict) else fault
        text = printable(str(reason or "not in this capture"), 120)
        return [], [f"the kernel's log was not read: {text}"], ""
    rows = [row for row in as_list(section.get("rows")) if isinstance(row, dict)]
    suspects += _listed(sample, document, rows)
    for row in rows:
        kind, code, count = row.get("kind"), row.get("code"), row.get("count") or 1
        where = f" on {printable(str(row['address']))}" if row.get("address") else ""
        times = f" {count} times" if count != 1 else ""
        if kind in ("xid", "sxid"):
            name = f"{'Xid' if kind == 'xid' else 'SXid'} {code}{where}{times}"
            known_row = as_dict(table).get(str(code))
            look = f"goldnode xid {word(code)}"
            if row.get("fatal") is True:
                bottleneck = COMMUNICATION if kind == "sxid" else COMPUTE
                suspects.append(Suspect(f"{name} (fatal)", bottleneck, 92, look))
            elif isinstance(known_row, (list, tuple)) and len(known_row) > 2:
                if known_row[1] == "none" or row.get("fatal") is False:
                    lines.append(name)
                else:
                    text = f"{name}: {printable(str(known_row[2] or known_row[0]), 120)}"
                    weight = 92 if known_row[1] == "drain" else 80
                    suspects.append(Suspect(text, COMPUTE, weight, look))
            elif isinstance(table, dict) and kind == "xid":
                suspects.append(
                    Suspect(
                        f"{name}: a number that the table does not know",
                        COMPUTE,
                        80,
                        "dmesg | grep -i xid",
                    )
                )
            else:
                unknown.append(f"{name}: no class document explains it (goldnode xid {word(code)})")
        elif kind in LINES:
            bottleneck, weight, text = LINES[kind]
            suspects.append(
                Suspect(
                    f"{text}{where}{times} since boot",
                    bottleneck,
                    weight,
                    f"dmesg -T | grep -iF -m5 {_quoted(row)}",
                )
            )
    return suspects, unknown, ", ".join(lines[:4])


def _listed(sample: Json, document: Mapping[str, Any], rows: List[Json]) -> List[Suspect]:
    """Return the faults in lines of facts/log_lines.yml that no later line withdraws."""
    lines = [row for row in rows if row.get("kind") == "line"]
    forms = [log_lines.form(str(get(row, "parameters", "id"))) for row in lines]
    ids = {form.finding for form in forms if form is not None}
    if not ids:
        return []
    capture = {**sample, "source": "live", "events": {**sample["events"], "rows": lines}}
    suspects = []
    for finding in events.judge(document, capture, {})[0]:
        if finding.id in ids and finding.outcome == MISMATCHED:
            where = f" on {printable(str(finding.subject))}" if finding.subject else ""
            suspects.append(
                Suspect(
                    f"{printable(str(finding.got), 160)}{where}",
                    next((kind for start, kind in LISTED if finding.id.startswith(start)), COMPUTE),
                    LISTED_WEIGHTS.get(str(finding.severity), 65),
                    f"dmesg -T | grep -iF -m5 {_quoted({'text': (finding.evidence or ('',))[0]})}",
                )
            )
    return suspects


def _quoted(row: Json) -> str:
    words = [
        word
        for word in printable(str(row.get("text") or row.get("kind"))).replace("'", " ").split()
        if word.isalnum()
    ]
    return "'" + " ".join(words[:1] or ["error"]) + "'"


# -- 3: utilisation and throttling


def throttling(
    first: Optional[Json], second: Json, seconds: Optional[float], document: Mapping[str, Any]
) -> Line:
    """Judge how busy each GPU is, and how much of the interval heat, power or a setting throttled it."""
    suspects: List[Suspect] = []
    gpus = gpus_of(second)
    before = _by_address(first)
    judged = 0
    unknown: List[str] = []
    for gpu in gpus:
        where = _where(gpu)
        look = f"nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE,CLOCK -i {_which(gpu)}"
        earlier = before.get(str(gpu.get("address")))
        use = get(gpu, "utilization", "gpu")
        limit, default = get(gpu, "power", "limit_w"), get(gpu, "power", "default_w")
        shares = {}
        if _unread(get(gpu, "throttle", "active")) and gpu.get("lost") is not True:
            unknown.append(f"{where}: what slows it down could not be read")
        counters = get(gpu, "throttle", "violation_ns")
        for name in counters if isinstance(counters, dict) and not is_fault(counters) else ():
            new = grown(get(earlier, "throttle", "violation_ns", name), counters[name])
            if new is not None and seconds:
                shares[name] = min(new / 1e9 / seconds, 1.0)
        judged += bool(shares)
        for name, reason in SLOWDOWNS.items():
            if shares.get(name, 0.0) > SLOWED:
                suspects.append(
                    Suspect(
                        f"{where}: slowed down by {reason} {_percent(shares[name])} of the time",
                        COMPUTE,
                        88,
                        look,
                    )
                )
        active = get(gpu, "throttle", "active")
        active = [str(name) for name in as_list(active)]
        hot = [name for name in active if name in SLOWED_NOW]
        # The share of the interval is better evidence than the state at its end.
        if hot and not any(shares.get(name, 0.0) > SLOWED for name in SLOWDOWNS):
            suspects.append(
                Suspect(f"{where}: slowed down now ({', '.join(hot)})", COMPUTE, 86, look)
            )
        capped = shares.get("power", 0.0) > CAPPED
        lowered = _number(limit) and _number(default) and limit < default - 1
        # A limit that the class declares is meant.
        if capped and lowered and not _declares_power(document):
            text = f"{where}: held at {limit:.0f} W of {default:.0f} W {_percent(shares['power'])} of the time"
            suspects.append(Suspect(text, COMPUTE, 84, look))
        clock, top = get(gpu, "clocks", "current", "sm_mhz"), get(gpu, "clocks", "max", "sm_mhz")
        readable = _number(clock) and _number(top) and _number(use)
        slow = readable and use >= BUSY and clock < SLOW_CLOCK * top
        if slow and not capped and not hot:
            suspects.append(Suspect(f"{where}: busy at {clock} of {top} MHz", COMPUTE, 75, look))
    if not gpus:
        return Line("load", UNKNOWN, "no GPU was read")
    reasons = any(isinstance(get(gpu, "throttle", "active"), list) for gpu in gpus)
    uses = [value for value in (get(gpu, "utilization", "gpu") for gpu in gpus) if _number(value)]
    draws = [value for value in (get(gpu, "power", "draw_w") for gpu in gpus) if _number(value)]
    fine = f"busy {_span(uses)} %" if uses else "their utilization is not reported"
    fine += f" at {_span(draws)} W" if draws else ""
    fine += ", not held back"
    if first is None:
        unknown.append("throttling needs two samples of one boot")
    elif not judged and any(gpu.get("vendor") == "nvidia" for gpu in gpus) and not reasons:
        unknown.append("the GPUs do not report the cause of slowdowns")
    return line_of("load", suspects, fine, unknown)


def _declares_power(document: Mapping[str, Any]) -> bool:
    return any("power" in str(key) for key in _keys(document.get("policy")))


def _keys(value: Any) -> List[str]:
    if isinstance(value, dict):
        return [*map(str, value), *(name for item in value.values() for name in _keys(item))]
    return [name for item in as_list(value) for name in _keys(item)]


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def _span(values: List[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


# -- 4: storage, memory, processors


def feeding(first: Optional[Json], second: Json, seconds: Optional[float]) -> Line:
    """Judge how long tasks waited for storage, memory and processors, and which tasks are blocked in the
    kernel.
    """
    suspects: List[Suspect] = []
    unknown: List[str] = []
    parts: List[str] = []
    busy = _utilization(second)
    # Waiting tasks matter less while the GPUs are busy.
    weight = 72 if busy is None or busy < BUSY else 35
    shares = _stalls(first, second, seconds)
    if shares is not None:
        for name, key, limit, text, look in (
            (
                "io",
                "some_us",
                IO,
                "tasks waited for storage",
                "iostat -xz 1 3; grep -H . /proc/pressure/io",
            ),
            (
                "memory",
                "full_us",
                MEMORY,
                "all tasks waited for memory",
                "grep -H . /proc/pressure/memory; free -m",
            ),
            (
                "cpu",
                "some_us",
                CPU,
                "tasks waited for a processor",
                "pidstat -u 1 3; grep -H . /proc/pressure/cpu",
            ),
        ):
            share = shares.get((name, key))
            if share is None:
                unknown.append(f"the pressure of {name} is not known")
                continue
            parts.append(f"{name} {_percent(share)}")
            if share > limit:
                heavy = weight if name == "io" else weight - 4
                suspects.append(
                    Suspect(f"{text} {_percent(share)} of the time", INPUT, heavy, look)
                )
    waited = grown(get(first, "cpu_time", "iowait"), get(second, "cpu_time", "iowait"))
    total = grown(get(first, "cpu_time", "total"), get(second, "cpu_time", "total"))
    if waited is not None and total:
        parts.append(f"iowait {_percent(waited / total)}")
        if waited / total > IOWAIT and not suspects:
            suspects.append(
                Suspect(
                    f"processors waited for storage {_percent(waited / total)} of the time",
                    INPUT,
                    weight - 2,
                    "iostat -xz 1 3",
                )
            )
        if shares is None:
            unknown = []  # iowait answers instead, on kernels without PSI
    elif shares is None and first is None:
        unknown.append("waiting needs two samples of one boot")
    elif shares is None:
        unknown.append("the kernel reports neither pressure (PSI) nor iowait")
    stuck = _stuck(first, second)
    if stuck:
        texts = []
        for task in stuck[:4]:
            wait = f", {task['wait']}" if task.get("wait") else ""
            texts.append(f"{task['command']} (pid {task['pid']}{wait})")
        names = ", ".join(texts)
        more = and_more(len(stuck) - 4)
        suspects.append(
            Suspect(
                f"blocked in the kernel: {names}{more}",
                _blocked_kind(stuck),
                74,
                f"cat /proc/{word(stuck[0]['pid'])}/stack; dmesg | tail -50",
            )
        )
    elif not isinstance(second.get("blocked"), list):
        unknown.append("blocked tasks could not be listed")
    unseen = second.get("blocked_unseen")
    fine = "; nothing blocked"
    if _number(unseen) and unseen:
        fine += f" ({unseen} tasks not inspected)"
    return line_of("input", suspects, "waiting: " + (", ".join(parts) or "none") + fine, unknown)


def _stalls(
    first: Optional[Json], second: Json, seconds: Optional[float]
) -> Optional[Dict[Tuple[str, str], Optional[float]]]:
    """Return the share of the interval for each kind of pressure.

    Return None if there is only one sample, or if the kernel has no pressure information.
    """
    now = second.get("pressure")
    there = any(isinstance(get(now, name, "some_us"), int) for name in ("io", "memory", "cpu"))
    if first is None or not seconds or not there:
        return None
    result: Dict[Tuple[str, str], Optional[float]] = {}
    for name, key in (("io", "some_us"), ("memory", "full_us"), ("cpu", "some_us")):
        new = grown(get(first.get("pressure"), name, key), get(now, name, key))
        result[(name, key)] = None if new is None else min(new / 1e6 / seconds, 1.0)
    return result


def _stuck(first: Optional[Json], second: Json) -> List[Json]:
    """Return the tasks that are blocked in both samples; with a single sample, those in it."""
    before, now = (_tasks(sample) for sample in (first, second))
    if first is not None:
        # A process number may be another process by now; its command tells the two apart.
        earlier = {(row.get("pid"), row.get("command")) for row in before}
        now = [row for row in now if (row.get("pid"), row.get("command")) in earlier]
    return [
        {
            **row,
            "command": printable(str(row.get("command"))),
            "wait": printable(str(row["wait"])) if row.get("wait") else None,
        }
        for row in now
    ]


def _tasks(sample: Optional[Json]) -> List[Json]:
    return [row for row in as_list(get(sample, "blocked")) if isinstance(row, dict)]


def _blocked_kind(stuck: List[Json]) -> str:
    """Return the bottleneck of blocked tasks. A task that sleeps in the GPU driver waits for a GPU, not for
    data.
    """
    driver = any(
        str(task.get("wait")).startswith(("nv", "os_acquire", "uvm", "amdgpu", "kfd", "rm_"))
        for task in stuck
    )
    return COMPUTE if driver else INPUT


# -- 5: network


def joining(first: Optional[Json], second: Json, seconds: Optional[float]) -> Line:
    """Judge the network by the growth of its counters.

    This covers drops, errors and flaps of interfaces, errors and retransmissions of InfiniBand and RoCE
    ports, and NVLink errors.
    """
    suspects: List[Suspect] = []
    unknown: List[str] = []
    network, ports = second.get("network"), second.get("infiniband")
    busy = _utilization(second)
    # Drops and retransmissions weigh less while busy GPUs show that the data arrives in time.
    light = 20 if busy is not None and busy >= BUSY and not _spinning(second) else 0
    if not isinstance(network, dict) or is_fault(network):
        unknown.append("interfaces were not read")
        network = {}
    counted = 0
    for name, row in sorted(network.items()):
        earlier = get(first, "network", name)
        look = (
            f"ethtool -S {word(name)} | grep -iE 'drop|err|disc'; ip -s -s link show {word(name)}"
        )
        flaps = grown(get(earlier, "carrier_changes"), get(row, "carrier_changes"))
        if flaps:
            suspects.append(
                Suspect(
                    f"{name}: its link went {flaps} times up or down while it was watched",
                    COMMUNICATION,
                    82,
                    f"dmesg -T | grep -F {word(name)}",
                )
            )
        for key in (
            "rx_errors",
            "rx_crc_errors",
            "tx_errors",
            "rx_missed_errors",
            "rx_dropped",
            "tx_dropped",
        ):
            new = grown(get(earlier, "counters", key), get(row, "counters", key))
            counted += new is not None
            pace = new / seconds if new and seconds else 0.0
            if pace > (DROPS if key.endswith("dropped") else 0):
                kind = key.replace("rx_", "received ").replace("tx_", "sent ").replace("_", " ")
                text = f"{name}: {new} packets {kind}"
                if pace >= 1:
                    text = f"{name}: {pace:.0f} packets a second {kind}"
                suspects.append(Suspect(text, COMMUNICATION, 68 - light, look))
    for name, row in rows_of(ports):
        if is_fault(row):
            suspects.append(
                Suspect(
                    f"{name}: its firmware gave no answer ({printable(str(row.get('text')))})",
                    COMMUNICATION,
                    83,
                    f"dmesg -T | grep -F {word(name)}",
                )
            )
            continue
        for number, port in rows_of(row, "ports"):
            earlier = get(first, "infiniband", name, "ports", number)
            suspects += _port(
                f"{name} port {number}",
                path=f"{name}/{number}",
                first=earlier,
                port=port,
                seconds=seconds,
                light=light,
            )
    before = _by_address(first)
    for gpu in gpus_of(second):
        suspects += _nvlinks(gpu, before.get(str(gpu.get("address"))))
    if first is None:
        unknown.append("rates need two samples of one boot")
    elif not counted and not unknown:
        unknown.append("no interface could be watched")
    devices = len(ports) if isinstance(ports, dict) else 0
    fine = f"{len(network)} interfaces and {devices} InfiniBand or RoCE devices: no drops, errors or flaps"
    return line_of("network", suspects, fine, unknown)


def _port(
    name: str, path: str, first: Any, port: Any, seconds: Optional[float], *, light: int
) -> List[Suspect]:
    suspects = []
    look = f"perfquery -x; grep -H . /sys/class/infiniband/{word(path.replace('/', '/ports/'))}/counters/*err*"
    state, physical = get(port, "state"), get(port, "physical")
    # A subnet manager takes a port from init to active; without one it stays there.
    if physical == "linkup" and isinstance(state, str) and state != "active":
        suspects.append(
            Suspect(
                f"{name}: the link is up and the port is {state}: no subnet manager?",
                COMMUNICATION,
                81,
                "ibstat; sminfo",
            )
        )
    if get(first, "state") == "active" and isinstance(state, str) and state != "active":
        suspects.append(
            Suspect(
                f"{name} went from active to {state} while it was watched",
                COMMUNICATION,
                82,
                "ibstat; dmesg -T | tail -50",
            )
        )
    for group, names, text, weight in (
        ("counters", LINK_ERRORS, "", 78),
        ("hw_counters", RETRANSMITTED, " (packets are sent again)", 66 - light),
    ):
        for key in names:
            new = grown(get(first, group, key), get(port, group, key))
            if new:
                pace = f"{new / seconds:.0f} a second" if seconds else str(new)
                suspects.append(
                    Suspect(f"{name}: {key} grows by {pace}{text}", COMMUNICATION, weight, look)
                )
    return suspects


def _nvlinks(gpu: Json, first: Any) -> List[Suspect]:
    before, links = get(first, "nvlink", "links"), get(gpu, "nvlink", "links")
    earlier = {str(get(row, "link")): row for row in before} if isinstance(before, list) else {}
    suspects = []
    for row in as_list(links):
        number = str(get(row, "link"))
        if get(earlier.get(number), "active") is True and get(row, "active") is False:
            suspects.append(
                Suspect(
                    f"{_where(gpu)}: NVLink {number} went down while it was watched",
                    COMMUNICATION,
                    87,
                    "nvidia-smi nvlink -s",
                )
            )
        for key in ("replay", "recovery", "crc_flit", "crc_data"):
            new = grown(get(earlier.get(number), "errors", key), get(row, "errors", key))
            if new:
                suspects.append(
                    Suspect(
                        f"{_where(gpu)}: NVLink {number}: {new} {key.replace('_', ' ')} errors",
                        COMMUNICATION,
                        79,
                        "nvidia-smi nvlink -e",
                    )
                )
    return suspects


# -- conclusion


def _utilization(sample: Json) -> Optional[float]:
    """Return the lowest utilization among the GPUs with work; None if unknown."""
    # The slowest GPU of a job is the one that the others wait for.
    uses = [get(gpu, "utilization", "gpu") for gpu in gpus_of(sample) if _works(gpu)]
    return min([value for value in uses if _number(value)], default=None)


def _works(gpu: Json) -> bool:
    processes = gpu.get("processes")
    use = get(gpu, "utilization", "gpu")
    return bool(isinstance(processes, list) and processes) or (_number(use) and use > 0)


def _spinning(sample: Json) -> bool:
    """Return whether several GPUs count as busy but draw little power, as they do while waiting in a
    collective.
    """
    rows = []
    for gpu in gpus_of(sample):
        use, draw, limit = (
            get(gpu, "utilization", "gpu"),
            get(gpu, "power", "draw_w"),
            get(gpu, "power", "limit_w"),
        )
        if _works(gpu) and _number(use) and _number(draw) and _number(limit):
            rows.append(use >= BUSY and draw < IDLE_POWER * limit)
    return len(rows) > 1 and all(rows)


def without_fault(sample: Json, unknown: List[str]) -> Tuple[str, str, Optional[str]]:
    """Return bottleneck, verdict and next command if no check found a fault."""
    if unknown:
        return (
            "undetermined",
            f"nothing was found, and some could not be inspected: {', '.join(unknown)}",
            "goldnode-node check",
        )
    busy = _utilization(sample)
    if busy is None:
        return "none", "nothing is wrong, and nothing runs on the GPUs", None
    if _spinning(sample):
        text = "the GPUs count as busy and draw little: probably they wait for each other in a collective"
        return (
            COMMUNICATION,
            text,
            "NCCL_DEBUG=INFO on the job, or py-spy dump --pid PID on each rank: one of them is late",
        )
    if busy >= BUSY:
        return (
            COMPUTE,
            f"the GPUs are busy ({busy:.0f} %) and nothing holds them back: they are what limits the work",
            "nsys profile, for what they are busy with",
        )
    if busy < WAITING:
        text = f"a GPU waits ({busy:.0f} % busy), and neither storage nor network of this node says for what"
        return (
            "undetermined",
            text,
            "py-spy dump --pid PID, or nsys profile: what does the program do between two kernels?",
        )
    return "none", f"nothing is wrong; the GPUs are {busy:.0f} % busy", None
