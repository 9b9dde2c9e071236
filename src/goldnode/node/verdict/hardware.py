"""Rules about GPUs: identity, memory, errors, heat. Settings of a class's `policy` are judged by the policy
domain.
"""

from __future__ import annotations

from ..probe.values import is_fault
from ..state import gpumodel
from ..state.domains import policy
from ..state.finding import DEFERRED, ELSEWHERE, NOT_EXPOSED, UNREAD
from ..state.kinds import GPU, NODE, NOTHING, PROCESS, RESET, RMA, SILENT_LIBRARY, VISIT
from ..state.modes import Mode, open_remedy
from ..state.remedy import COMMAND, GPU_RESET, PERSON, REBOOT, REPAIR, SITE, Remedy
from .rules import (
    Answer,
    Node,
    RuleResult,
    as_list,
    as_map,
    bad,
    equal,
    fetch,
    gpu_rule,
    is_guest,
    is_number,
    ok,
    ok_if,
    rows_of,
    rule,
    sanitized,
    shown,
    wrong_or_ok,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple


# The action that the driver requests (NVML field 230), and what the action disrupts.
ACTIONS = {
    "gpu_reset": (RESET, GPU),
    "drain_and_reset": (RESET, GPU),
    "bus_reset": (
        Remedy(
            "Drain the node, then reset the GPU through its bus (`echo 1 > /sys/bus/pci/devices/SUBJECT/reset`), or reboot.",
            GPU_RESET,
        ),
        GPU,
    ),
    "drain_p2p": (
        Remedy(
            "Drain the jobs that use peer-to-peer traffic of this GPU, then look at `nvidia-smi nvlink -s`.",
            PERSON,
        ),
        PROCESS,
    ),
    "recover_imex": (
        Remedy("Restart the IMEX service: `systemctl restart nvidia-imex`.", COMMAND),
        PROCESS,
    ),
    "node_reboot": (Remedy("Drain the node and reboot it.", REBOOT), NODE),
    "system_reboot": (Remedy("Drain the node and reboot it.", REBOOT), NODE),
}
# NVML's return codes for a fault of the whole library.
NO_DRIVER = {
    9: Remedy(
        "Load the driver: `modprobe nvidia`, and see dmesg for why it is not loaded.", COMMAND
    ),
    12: Remedy("Run site.yml: the driver's library is not installed.", SITE),
    18: Remedy("Reboot the node: library and loaded module are of different versions.", REBOOT),
}


@rule("gpu.library")
def library(node: Node) -> Answer:
    """Judge the GPU library.

    NVML's codes 9, 12 and 18 name the fault; after any other (a driver that hangs) the GPUs are
    unknown.
    """
    if not node.declared or (node.container and not node.simulated):
        return None
    error = node.capture.get("gpu_error")
    expected = "the GPU library answers"
    gpus = node.capture.get("gpus")
    if error is None and isinstance(gpus, list):
        return ok(expected)
    fault: Any = error if error is not None else gpus
    if is_fault(fault) and fault.get("rc") in NO_DRIVER and fault.get("rc") is not True:
        text = f"{fault.get('text')} (return code {fault['rc']})"
        return bad(expected, text, remedy=NO_DRIVER[fault["rc"]])
    if is_fault(fault):
        text = str(fault.get("text"))
    elif fault is None:
        text = "the capture has no GPUs"
    else:
        text = repr(fault)[:80]
    # A task that hangs in the driver is the usual reason of a library that does not return.
    hung = tuple(
        f"pid {row.get('pid')} {row.get('command')} waits in {row.get('wait')}"
        for row in rows_of(node.capture.get("blocked"))
        if in_driver(row)
    )
    return RuleResult(UNREAD, expected, text, hung[:4], remedy=SILENT_LIBRARY, blast=NODE)


def in_driver(row: Mapping[str, Any]) -> bool:
    """Return whether a task in uninterruptible sleep waits in a GPU driver."""
    return str(row.get("wait")).startswith(
        ("nv", "_nv", "uvm", "rm_", "os_acquire", "amdgpu", "kfd", "drm_sched", "xe_", "i915")
    )


@rule("gpu.lost")
def answers(node: Node) -> Answer:
    if not node.declared:
        return None
    results: List[RuleResult] = []
    for row in node.listed:
        address = str(row.get("address") or row.get("index"))
        if is_fault(row):
            results.append(RuleResult(UNREAD, "answers", str(row.get("text")), subject=address))
        elif row.get("lost") is True:
            results.append(bad("answers", "lost", *_last_events(node, address), subject=address))
    seen = {str(row.get("address")) for row in node.listed if row.get("lost") is True}
    # The bus also shows a GPU that the library no longer lists.
    for address, entry in sorted(node.pci.items()):
        gone = as_map(entry).get("kind") == "gpu" and entry.get("gone") is True
        if gone and address not in seen:
            text = "its PCI configuration space reads all ones"
            results.append(bad("answers", text, subject=address))
    return wrong_or_ok(results, node.gpus, "answers", f"{len(node.gpus)} answer")


def _last_events(node: Node, address: str) -> List[str]:
    """Return the last two lines of the kernel's log about a device."""
    device = address.split(".")[0]  # Xids name the device, without its function
    return [
        str(row.get("text"))
        for row in rows_of(as_map(node.capture.get("events")).get("rows"))
        if str(row.get("address") or "").split(".")[0] == device
    ][-2:]


@rule("gpu.visible")
def visible(node: Node) -> Answer:
    if (
        not node.declared
        or not isinstance(node.capture.get("gpus"), list)
        or (node.container and not node.simulated)
    ):
        return None
    # Library, bus and device nodes are counted each by itself: a GPU may be missing from any one of them.
    want = node.declared.get("count")
    addresses = {str(row.get("address")) for row in node.listed if row.get("index") is not None}
    if node.partial and is_number(node.capture.get("gpu_count")):
        return _recorded(node, want)
    counts = {"library": len([row for row in node.listed if row.get("index") is not None])}
    evidence: List[str] = []
    on_bus = {
        address
        for address, row in node.pci.items()
        if isinstance(row, dict)
        and row.get("kind") == "gpu"
        and gpumodel.own(node.declared, row.get("pci_id"))  # type: ignore[arg-type]
    }
    if on_bus:
        counts["PCI bus"] = len(on_bus)
        missing = sorted(on_bus - addresses)
        if missing and counts["library"]:
            evidence.append(f"on the bus and not in the library: {', '.join(missing[:8])}")
    devices = as_map(node.capture.get("devices"))
    if node.vendor == "nvidia" and devices:
        counts["/dev"] = sum(name[len("/dev/nvidia") :].isdigit() for name in devices)
    if node.vendor != "nvidia" and not counts["library"]:
        counts.pop("library")
        counts["driver"] = len(node.listed)
    if node.vendor == "intel" and devices:
        nodes = sum(name.startswith("/dev/dri/renderD") for name in devices)
        # The processor's own graphics has a render node too, so that there may be more.
        if isinstance(want, int) and nodes < want:
            counts["/dev/dri"] = nodes
    text = ", ".join(f"{name} {number}" for name, number in counts.items())
    if not all(number == want for number in counts.values()):
        return bad(f"{want} each", text, *evidence)
    # The numbers agree, and the GPUs may be others all the same.
    differ = [
        f"{row.get('address')}: library {row.get('pci_id')}, PCI bus {bus.get('pci_id') or 'nothing'}"
        for row in node.listed
        if on_bus and row.get("index") is not None and not is_fault(row.get("address"))
        for bus in [as_map(node.pci.get(str(row.get("address"))))]
        if bus.get("pci_id") != row.get("pci_id")
    ]
    if differ:
        return bad("the same GPUs by library and PCI bus", "; ".join(differ[:4]), *evidence)
    return ok(f"{want} each", text)


def _recorded(node: Node, want: Any) -> RuleResult:
    """Judge the number of GPUs of a record that lists only some of them (nvidia-smi with -i)."""
    attached, listed = node.capture["gpu_count"], len(node.listed)
    if attached != want:
        return bad(f"{want} each", f"library {attached}")
    text = f"the record lists {listed} of {attached} attached GPUs"
    return RuleResult(ELSEWHERE, f"{want} each", text)


@rule("gpu.uuid")
def uuids(node: Node) -> Answer:
    seen: Any = {}
    for row in node.gpus:
        if isinstance(row.get("uuid"), str):
            seen.setdefault(row["uuid"], []).append(str(row.get("address")))
    twice = [
        bad("a UUID of its own", f"{uuid} is also that of {', '.join(rest)}", subject=first)
        for uuid, (first, *rest) in seen.items()
        if rest
    ]
    return wrong_or_ok(twice, len(seen) > 1, "a UUID each", f"{len(seen)} UUIDs")


# Models with several GPUs on a board, also for a driver or simulator that does not report it. Of Grace's boards it is not known.
TOGETHER = {"K10", "K80", "M10", "M60", "A16", "GB200", "GB300"}


@rule("gpu.serial")
def serials(node: Node) -> Answer:
    """Judge the serial numbers. The GPUs of one board have one (nvmlDeviceGetMultiGpuBoard)."""
    seen: Any = {}
    for row in node.gpus:
        # Reports are posted with a serial number that was made unreadable.
        text = str(row.get("serial"))
        if text.isdigit() and len(set(text)) > 1:
            seen.setdefault(text, []).append(row)
    twice = []
    for text, rows in seen.items():
        together = any(
            row.get("multi_gpu_board") is True or set(str(row.get("name")).split()) & TOGETHER
            for row in rows
        )
        if len(rows) < 2 or together or (node.partial and len(rows) == len(node.gpus)):
            continue
        first, *rest = (str(row.get("address")) for row in rows)
        text = f"{text} is also that of {', '.join(rest)}"
        twice.append(bad("a serial number of its own", text, subject=first))
    return wrong_or_ok(twice, len(seen) > 1, "a serial number each", f"{len(seen)} serial numbers")


@gpu_rule("gpu.uuid_known")
def uuid_known(node: Node, gpu: Any) -> Answer:
    value = gpu.get("uuid")
    if not isinstance(value, str):
        return node.absent(value, None)
    # The driver writes question marks for a GPU that it never initialised.
    return bad("a UUID", value) if "?" in value else None


@gpu_rule("gpu.recovery_action")
def recovery(node: Node, gpu: Any) -> Answer:
    value = gpu.get("recovery_action")
    if not isinstance(value, str):
        return node.absent(value, None)
    if value == "none":
        return ok("none")
    # The action has no reason with it; the counters that may be one are its evidence.
    details = []
    for path, what in (
        ("ecc.volatile.uncorrected", "uncorrected errors since the driver was loaded"),
        ("remapped_rows.pending", "row remap pending"),
        ("remapped_rows.failure", "row remap failed"),
        ("ecc.sram.threshold_exceeded", "SRAM error threshold exceeded"),
        ("repair.channel_pending", "memory channel repair pending"),
        ("repair.tpc_pending", "TPC repair pending"),
        ("unrepairable_memory", "unrepairable memory"),
    ):
        reading = fetch(gpu, path)
        if reading is True or (is_number(reading) and reading > 0):
            details.append(what if reading is True else f"{reading} {what}")
    remedy, blast = ACTIONS.get(
        value, (Remedy(f"Do what the driver asks for: {sanitized(value, 40)}.", PERSON), NODE)
    )
    return bad(
        "none",
        value,
        *details,
        *_last_events(node, str(gpu.get("address"))),
        remedy=remedy,
        blast=blast,
    )


@gpu_rule("gpu.board")
def board(node: Node, gpu: Any) -> Answer:
    want, _ = node.wants(gpu, "subsystem_ids")
    if not want:
        return None
    expected = " or ".join(want)
    value = gpu.get("subsystem_id")
    if not isinstance(value, str):
        return node.absent(value, expected)
    return ok_if(value in want, expected, value)


@gpu_rule("gpu.memory")
def vram(node: Node, gpu: Any) -> Answer:
    want, why = node.wants(gpu, "memory_mib")
    expected = " or ".join(str(size) for size in want) + " MiB" if want else None
    value, result = node.number(gpu, "memory.total_mib", expected)
    if value is None:
        return result
    own = node.overrides.get(str(gpu.get("address")), {})
    if node.gpu_baseline.get("memory_mib") or own.get("memory_mib"):
        remedy = VARIANT if value > max(want) else None
        return ok_if(value in want, expected, f"{value} MiB", str(why), remedy=remedy)
    # The data sheet has the memory of the board, of which ECC and firmware reserve a part.
    share = node.limit("memory_reserved", 0)
    if want and (value < min(want) * (1 - share) or value > max(want) * (1 + share)):
        remedy = VARIANT if value > max(want) else None
        return bad(expected, f"{value} MiB", str(why), remedy=remedy)
    alike = [
        fetch(other, "memory.total_mib")
        for other in node.gpus
        if other.get("pci_id") == gpu.get("pci_id")
        and fetch(other, "ecc.current") == fetch(gpu, "ecc.current")
    ]
    alike = [size for size in alike if is_number(size)]
    # One board that differs from the others is the odd one, whether it has less or more. Of two halves, the smaller.
    usual = max(sorted(set(alike), reverse=True), key=alike.count)
    # Without ECC no cell is taken out of use. A display takes some MiB.
    if is_number(fetch(gpu, "ecc.volatile.uncorrected")) or _remaps(gpu):
        share = 0
    if value < usual * (1 - share):
        return bad(f"{usual} MiB, as others of this node", f"{value} MiB")
    if value > usual * (1 + share):
        text, part = f"{usual} MiB, as others of this node", gpu.get("board_part")
        return bad(text, f"{value} MiB", f"board part {part}", remedy=VARIANT)
    return ok(expected or f"{usual} MiB")


VARIANT = Remedy(
    "SUBJECT has more memory than expected, so it is another board variant: compare its part number in `nvidia-smi -q -i "
    "SUBJECT` with that of its neighbours. Replace it by one of their kind, or declare its memory in the class.",
    PERSON,
    REPAIR,
)


def _remaps(gpu: Any) -> bool:
    """Return whether the GPU can take rows or pages of its memory out of use."""
    return any(
        is_number(fetch(gpu, path))
        for path in ("remapped_rows.uncorrectable", "retired_pages.double_bit")
    )


@gpu_rule("gpu.vbios")
def vbios(node: Node, gpu: Any) -> Answer:
    want, _ = node.wants(gpu, "vbios")
    expected = " or ".join(want) if want else None
    value = gpu.get("vbios")
    if not isinstance(value, str):
        return node.absent(value, expected)
    if want:
        return ok_if(value.lower() in [item.lower() for item in want], expected, value)
    if _pairs(node, gpu):
        return ok("the same versions on each board")
    same: List[str] = [
        other["vbios"]
        for other in node.gpus
        if isinstance(other.get("vbios"), str)
        and all(other.get(key) == gpu.get(key) for key in ("pci_id", "subsystem_id"))
    ]
    # Of versions that are equally frequent, the first by name: the answer must not depend on the order of GPUs.
    usual = max(sorted(set(same)), key=same.count)
    if value == usual:
        return ok("one version on all")
    return bad(f"{usual}, as others of this node", value)


def _pairs(node: Node, gpu: Any) -> bool:
    """Return whether the model has several GPUs on a board, each with its own VBIOS, and the boards are alike.

    The GPUs of a board have one serial number.
    """
    boards: Dict[str, List[str]] = {}
    for other in node.gpus:
        if other.get("pci_id") == gpu.get("pci_id") and isinstance(other.get("serial"), str):
            boards.setdefault(other["serial"], []).append(str(other.get("vbios")))
    versions = {tuple(sorted(own)) for own in boards.values()}
    return len(boards) > 1 and len(versions) == 1 and len(set(next(iter(versions)))) > 1


@gpu_rule("gpu.bar1")
def bar1(node: Node, gpu: Any) -> Answer:
    want, _ = node.wants(gpu, "bar1_mib")
    if want is None:
        return None
    value, result = node.number(gpu, "memory.bar1_mib", f"{want} MiB")
    return result if value is None else equal(f"{want} MiB", f"{value} MiB")


@gpu_rule("gpu.max_clocks")
def max_clocks(node: Node, gpu: Any) -> Answer:
    want, _ = node.wants(gpu, "max_clocks")
    if not want:
        return _as_peers(node, gpu)
    text = _clocks(want)
    have = {}
    for key in sorted(want):
        value, result = node.number(gpu, f"clocks.max.{key}", text)
        if value is None:
            return result
        have[key] = value
    return ok_if(have == want, text, _clocks(have))


def _as_peers(node: Node, gpu: Any) -> Optional[RuleResult]:
    """Judge the maximum SM clock by the equal boards of the node; None where the majority has the same."""
    own = fetch(gpu, "clocks.max.sm_mhz")
    alike = [
        fetch(other, "clocks.max.sm_mhz")
        for other in node.gpus
        if all(other.get(key) == gpu.get(key) for key in ("pci_id", "subsystem_id"))
    ]
    if not is_number(own) or alike.count(own) * 2 >= len(alike):
        return None
    usual = max(sorted(filter(is_number, alike)), key=alike.count)
    return (
        bad(f"sm {usual} MHz, as others of this board", f"sm {own} MHz") if own != usual else None
    )


def _clocks(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key[:-4]} {value} MHz" for key, value in sorted(values.items()))


@gpu_rule("gpu.inforom")
def inforom(node: Node, gpu: Any) -> Answer:
    value, result = node.flag(gpu, "inforom.valid")
    return result if value is None else ok_if(value, "valid", "corrupted")


NO_ERRORS = "0 since the driver was loaded"


def _ecc_on(node: Node, gpu: Any) -> Optional[str]:
    """Return the expected value of ECC counters: "0" if the model has ECC according to the facts, unless ECC
    is off.
    """
    if fetch(gpu, "ecc.current") is False or not node.facts_of(gpu).get("ecc"):
        return None
    return NO_ERRORS


@gpu_rule("gpu.ecc.uncorrected")
def volatile(node: Node, gpu: Any) -> Answer:
    value, result = node.number(gpu, "ecc.volatile.uncorrected", _ecc_on(node, gpu))
    if value is None:
        return _hidden_by_mig(gpu, "ecc.volatile.uncorrected", NO_ERRORS, "ECC") or result
    good = value <= node.limit("volatile_uncorrected", 0)
    return ok_if(good, NO_ERRORS, f"{value} uncorrected errors", *_ecc_evidence(gpu))


def _ecc_evidence(gpu: Any) -> List[str]:
    texts = []
    for path, what in (
        ("ecc.aggregate.uncorrected", "uncorrected in the card's life"),
        ("ecc.dram.volatile_uncorrected", "of them in DRAM"),
        ("remapped_rows.uncorrectable", "rows remapped for uncorrectable errors"),
        ("serial", "is its serial number"),
    ):
        value = fetch(gpu, path)
        if value is not None and not is_fault(value):
            texts.append(f"{value} {what}")
    return texts


@gpu_rule("gpu.ecc.aggregate")
def aggregate(node: Node, gpu: Any) -> Answer:
    """Judge uncorrected errors over the card's life. Only those since the last acknowledgement count."""
    value, result = node.number(gpu, "ecc.aggregate.uncorrected", None)
    # The facts state no such counter for a model, so that a GPU without it is no finding.
    if value is None:
        return result if result is not None and result.outcome == UNREAD else None
    delta = node.counted("gpu", gpu_key(gpu), "ecc.aggregate.uncorrected")
    if delta is None or not delta.since_ack:
        return ok("none new")
    text = f"{delta.since_ack} uncorrected since {delta.base_time}"
    return bad("none new", text, *_ecc_evidence(gpu))


@gpu_rule("gpu.ecc.corrected")
def corrected(node: Node, gpu: Any) -> Answer:
    """Judge corrected errors by their number in a day: single ones are what ECC is for."""
    most = node.limit("ecc_corrected_day")
    key = gpu_key(gpu)
    count = max(node.day("gpu", key, f"ecc.{name}.corrected") for name in ("aggregate", "volatile"))
    if not most or not count:
        return None
    text = f"{count:.0f} corrected within a day"
    return ok_if(count <= most, f"at most {most} corrected errors a day", text, *_ecc_evidence(gpu))


def gpu_key(gpu: Mapping[str, Any]) -> str:
    """Return the key of a GPU across boots and slots."""
    for name in ("uuid", "serial", "address"):
        if isinstance(gpu.get(name), str):
            return str(gpu[name])
    return str(gpu.get("index"))


@gpu_rule("gpu.sram")
def sram(node: Node, gpu: Any) -> Answer:
    value, result = node.flag(gpu, "ecc.sram.threshold_exceeded")
    if value is None:
        return result
    return ok_if(not value, "within the threshold", "exceeded", *_ecc_evidence(gpu))


@gpu_rule("gpu.remap.failure")
def remap_failure(node: Node, gpu: Any) -> Answer:
    return _remap(node, gpu, "failure", "no failed row remap", "a row remap has failed")


@gpu_rule("gpu.remap.pending")
def remap_pending(node: Node, gpu: Any) -> Answer:
    return _remap(node, gpu, "pending", "no row remap pending", "a row remap is pending")


def _remap(node: Node, gpu: Any, key: str, good: str, wrong: str) -> Answer:
    value, result = node.flag(gpu, f"remapped_rows.{key}")
    if value is None:
        return result or _hidden_by_mig(gpu, f"remapped_rows.{key}", good, "ROW_REMAPPER")
    return ok_if(not value, good, wrong, *_ecc_evidence(gpu))


def _hidden_by_mig(gpu: Any, path: str, good: str, section: str) -> Answer:
    """Return the answer for a value that the driver does not report while MIG is on; None otherwise.

    If the driver reports a recovery action, that covers the value. Nothing else does.
    """
    value = fetch(gpu, path)
    hidden = is_fault(value) and value["fault"] == NOT_EXPOSED
    if fetch(gpu, "mig.current") is not True or not hidden:
        return None
    expected: Optional[str] = good
    text = "hidden while MIG is on"
    if gpu.get("recovery_action") == "none":
        expected, text = None, f"{text}; the driver itself asks for nothing"
    remedy = Remedy(f"Check it when MIG is off: `nvidia-smi -q -d {section}`.", PERSON)
    return RuleResult(NOT_EXPOSED, expected, text, remedy=remedy, blast=NOTHING)


@gpu_rule("gpu.remap.spare")
def remap_spare(node: Node, gpu: Any) -> Answer:
    """Judge the spare rows. Remaps themselves are not a fault."""
    none, result = node.number(gpu, "remapped_rows.histogram.none")
    count, counted = node.number(gpu, "remapped_rows.uncorrectable")
    if none is None and count is None:
        return result or counted
    # The histogram has the number of banks by spare rows that are left; without it the number of remaps counts.
    most = node.limit("remap_uncorrectable")
    expected = "spare rows in each bank"
    if none:
        return bad(expected, f"{none} banks have none")
    used_up = count and most and count >= most
    return ok_if(not used_up, expected, f"{count} rows remapped (limit {most})")


@gpu_rule("gpu.retired_pages")
def retired(node: Node, gpu: Any) -> Answer:
    # Boards before Ampere retire pages; later ones remap rows.
    pages = gpu.get("retired_pages")
    if is_fault(pages) or pages is None:
        return node.absent(pages, None)
    pending, result = node.flag(gpu, "retired_pages.pending")
    if pending:
        return bad("none pending", "a page waits to be retired")
    counts = [fetch(pages, key) for key in ("single_bit", "double_bit")]
    total = sum(item for item in counts if is_number(item))
    if any(is_fault(item) for item in counts) or pending is None:
        return result or next((node.absent(item, None) for item in counts if is_fault(item)), None)
    most, warn = node.limit("retired_pages"), node.limit("retired_pages_warn")
    if most and total >= most:
        return bad(f"fewer than {most}", f"{total} pages retired", remedy=RMA, blast=VISIT)
    expected = f"fewer than {warn or most or 'the limit'}"
    plan = Remedy("Plan the replacement of SUBJECT.", REPAIR)
    few = not warn or total < warn
    return ok_if(
        few, expected, f"{total} pages retired", severity="degraded", remedy=plan, blast=VISIT
    )


@gpu_rule("gpu.repair")
def repair(node: Node, gpu: Any) -> Answer:
    beyond, beyond_result = node.flag(gpu, "unrepairable_memory")
    if beyond:
        return bad("none", "memory that cannot be repaired", remedy=RMA, blast=VISIT)
    flags = [node.flag(gpu, f"repair.{key}") for key in ("channel_pending", "tpc_pending")]
    waits = [name for name, (value, _) in zip(("a memory channel", "a TPC"), flags) if value]
    if waits:
        return bad("none pending", f"{' and '.join(waits)} waits for its repair")
    answers = [*flags, (beyond, beyond_result)]
    for _, result in answers:
        if result is not None:
            return result
    return wrong_or_ok([], any(value is not None for value, _ in answers), "none pending")


@gpu_rule("gpu.modes")
def modes(node: Node, gpu: Any) -> Answer:
    # Declared modes are judged by the policy domain, which also plans them.
    declared = policy.effective(node.document, gpu) if as_map(node.document.get("policy")) else {}
    for key in ("ecc", "mig"):
        now, later = fetch(gpu, f"{key}.current"), fetch(gpu, f"{key}.pending")
        if key in declared or not isinstance(now, bool):
            continue
        name = key.upper()
        if isinstance(later, bool) and later != now:
            remedy = open_remedy(key, Mode(str(gpu.get("index")), now, later, None))
            return bad(
                f"{name} as it stays",
                f"{name} is {shown(now)}, and {shown(later)} after the next reset",
                remedy=remedy,
            )
        alike = [
            fetch(other, f"{key}.current")
            for other in node.gpus
            if other.get("pci_id") == gpu.get("pci_id")
        ]
        # Without a declaration the majority decides. Of two halves, both are reported.
        differs = any(isinstance(item, bool) and item != now for item in alike)
        if differs and alike.count(now) * 2 <= len(alike):
            return bad(
                f"{name} {shown(not now)}, as on others of this node", f"{name} is {shown(now)}"
            )
    return None


@gpu_rule("gpu.ras")
def ras(node: Node, gpu: Any) -> Answer:
    blocks = as_map(gpu.get("ras"))
    wrong = [
        f"{name}: {fetch(row, 'ue')} uncorrected"
        for name, row in sorted(blocks.items())
        if is_number(fetch(row, "ue")) and fetch(row, "ue") > 0
    ]
    pages = as_map(gpu.get("bad_pages"))
    wrong += [
        f"{pages[key]} pages {key}"
        for key in ("pending", "unreservable")
        if is_number(pages.get(key)) and pages[key] > 0
    ]
    xgmi = fetch(gpu, "xgmi.error")
    if is_number(xgmi) and xgmi > 0:
        wrong.append(f"xGMI error {xgmi}")
    if wrong:
        return bad("no uncorrected errors", "; ".join(wrong))
    for row in (gpu.get("ras"), *blocks.values()):
        result = node.absent(row, None) if is_fault(row) else None
        if result is not None:
            return result
    return wrong_or_ok([], blocks, "no uncorrected errors")


# The faults among NVML's bits of clocks event reasons: bit, its counter, what it is.
SLOWDOWNS = (
    (0x8, "hw_slowdown", "HW slowdown"),
    (0x40, "thermal", "HW thermal slowdown"),
    (0x20, "sw_thermal", "SW thermal slowdown"),
)
# nvml.h: HW slowdown (0x8) is heat, an external power brake, or too high a power draw. 0x40 and 0x80 tell the first two.
NOT_HEAT = Remedy(
    "The board slows SUBJECT down and reports no heat: check its power connectors, the power supplies and feeds, then "
    "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i SUBJECT`.",
    PERSON,
)
BRAKE = (0x80, "hw_power_brake", "HW power brake")


@gpu_rule("gpu.throttle")
def throttle(node: Node, gpu: Any) -> Answer:
    """Judge the throttle reasons. Idle, and the software power cap under load, are normal (nvml.h,
    nvmlClocksEventReason).

    AMD's cards name the kinds of throttling (gpu_metrics).
    """
    kinds = fetch(gpu, "throttle.kinds")
    if isinstance(kinds, list):
        active = ", ".join(sanitized(name, 40) for name in as_list(fetch(gpu, "throttle.active")))
        hot = "thermal" in kinds
        return ok_if(not hot, "no slowdown", active or "thermal", *_heat(gpu))
    slowed, result = _slowed(node, gpu, SLOWDOWNS)
    if slowed is None:
        return result
    remedy = None
    if slowed and all(text.startswith("HW slowdown") for text in slowed):
        # The brake alone is `gpu.throttle.brake`; what is neither brake nor heat has no known cause.
        if _slowed(node, gpu, (BRAKE,))[0]:
            return ok("no slowdown", "none but the power brake")
        remedy = NOT_HEAT
    # Software slows a GPU down before the hardware has to: the node works, with less speed.
    soft = all(text.startswith("SW") for text in slowed)
    severity = "degraded" if soft else None
    text = "; ".join(slowed)
    return ok_if(not slowed, "no slowdown", text, *_heat(gpu), severity=severity, remedy=remedy)


@gpu_rule("gpu.throttle.brake")
def brake(node: Node, gpu: Any) -> Answer:
    slowed, result = _slowed(node, gpu, (BRAKE,))
    if slowed is None:
        return result
    # With the bit of a HW slowdown the clocks are down now, as `gpu.throttle` judges it.
    severity = "drain" if slowed and _slowed(node, gpu, SLOWDOWNS[:1])[0] else None
    return ok_if(not slowed, "no power brake", "; ".join(slowed), severity=severity)


def _slowed(
    node: Node, gpu: Any, kinds: Sequence[Tuple[int, str, str]]
) -> Tuple[Optional[List[str]], Optional[RuleResult]]:
    """Return the reasons that slow a GPU down as texts. Without them return the answer: None if this GPU
    does not expose them.
    """
    mask, result = node.number(gpu, "throttle.mask")
    counters = fetch(gpu, "throttle.violation_ns")
    if result is not None:
        return None, result
    if mask is None and not as_map(counters):
        return None, node.absent(counters, None)
    faults = int(node.limit("throttle_mask", 0)) or 0
    most = node.limit("throttle_ms")
    texts = []
    for bit, name, text in kinds:
        delta = node.counted("gpu", gpu_key(gpu), f"throttle.{name}")
        # The driver counts nanoseconds.
        spent = delta.per_minute / 1e6 if delta is not None and delta.per_minute else 0
        if mask is not None and int(mask) & bit & faults:
            texts.append(f"{text} is active")
        elif most and spent > most:
            texts.append(f"{text} for {spent:.0f} ms a minute, {delta.span}")
    return texts, None


@gpu_rule("gpu.clock")
def clock(node: Node, gpu: Any) -> Answer:
    """Judge the clock of a GPU under full load that reports no reason to run slower.

    Without a bit set the clocks are as high as they can be (nvml.h, nvmlClocksEventReasonNone).
    """
    now = _loaded(node, gpu)
    if now is None or fetch(gpu, "throttle.mask") != 0:
        return None
    peers = [
        speed
        for other in node.gpus
        if other is not gpu and other.get("pci_id") == gpu.get("pci_id")
        for speed in [_loaded(node, other)]
        if speed is not None
    ]
    if len(peers) > 1:
        usual, share, who = (
            sorted(peers)[len(peers) // 2],
            "clock_of_peers",
            "its peers under load have",
        )
    else:
        usual, share, who = fetch(gpu, "clocks.max.graphics_mhz"), "clock_of_max", "its maximum is"
        set_to = fetch(gpu, "clocks.application.graphics_mhz")
        if is_number(set_to) and is_number(usual):
            usual = min(usual, set_to)
    least = node.limit(share)
    if least is None or not is_number(usual):
        return None
    expected, use = f"at least {usual * least:.0f} MHz", fetch(gpu, "utilization.gpu")
    text = f"{now} MHz at {use} % use without a throttle reason; {who} {usual} MHz"
    return ok_if(now >= usual * least, expected, text, *_heat(gpu))


def _loaded(node: Node, gpu: Any) -> Any:
    """Return the clock of a GPU under load in MHz; None for one at rest or without readings."""
    use, pstate = fetch(gpu, "utilization.gpu"), fetch(gpu, "pstate")
    now = fetch(gpu, "clocks.current.graphics_mhz")
    busy = is_number(use) and use >= node.limit("clock_load", 101)
    # A display's card at rest counts its use by its low clock, in P5 or P8.
    working = is_number(pstate) and pstate <= WORKING_PSTATE
    return now if busy and working and is_number(now) else None


WORKING_PSTATE = 2  # CUDA programs run in P0, or in P2 on GeForce


def _heat(gpu: Any) -> List[str]:
    texts = []
    for path, what in (
        ("temperature.gpu_c", "°C"),
        ("temperature.margin_c", "°C to its limit"),
        ("power.draw_w", "W"),
    ):
        value = fetch(gpu, path)
        if is_number(value):
            texts.append(f"{value} {what}")
    return texts


@gpu_rule("gpu.temperature")
def temperature(node: Node, gpu: Any) -> Answer:
    """Judge temperature by margins, not degrees: the limits differ from model to model."""
    margin, result = node.number(gpu, "temperature.margin_c")
    # A laptop is built to run at its limit.
    least = 0 if str(gpu.get("name")).endswith(LAPTOPS) else node.limit("margin_c", 0)
    if margin is not None:
        expected = f"more than {least} °C to its limit"
        return ok_if(margin > least, expected, f"{margin} °C", *_heat(gpu))
    if result is not None:
        return result
    now, result = node.number(gpu, "temperature.gpu_c")
    most, _ = node.number(gpu, "temperature.slowdown_c")
    if now is None or most is None:
        return result
    if now < most - least:
        return ok("below its limit")
    return bad(f"below {most - least} °C", f"{now} °C", *_heat(gpu))


# Names of GPUs whose board, lanes and cooling are those of a laptop.
LAPTOPS = ("Laptop GPU", "with Max-Q Design")


@gpu_rule("gpu.power.enforced")
def enforced(node: Node, gpu: Any) -> Answer:
    limit, result = node.number(gpu, "power.limit_w")
    have, other = node.number(gpu, "power.enforced_w")
    if limit is None or have is None:
        return result or other
    if have >= limit - 1:
        return ok("as set")
    return bad(f"{limit:g} W as set", f"{have:g} W")


@rule("gpu.processes")
def processes(node: Node) -> Answer:
    # Before the first check of a boot no job may run; later, processes are what the node is for.
    if node.deltas is None or not node.deltas.first_of_boot or node.partial or not node.gpus:
        return None
    own = [
        f"pid {row.get('pid')} on {gpu.get('address')}"
        for gpu in node.gpus
        for row in rows_of(gpu.get("processes"))
    ]
    return ok_if(not own, "none at boot", ", ".join(own[:6]))


@gpu_rule("gpu.held")
def held(node: Node, gpu: Any) -> Answer:
    """Judge whether memory and use of a GPU belong to living processes.

    A container sees numbers of processes that are not its own. A process that ends may give its memory back
    a moment later, so that what has no process at all is judged at the second check.
    """
    listed = gpu.get("processes")
    if node.partial or node.container or not isinstance(listed, list):
        return node.absent(listed, None) if is_fault(listed) and not node.partial else None
    total = fetch(gpu, "memory.total_mib")
    dead = [row for row in rows_of(listed) if row.get("state") in ("gone", "zombie")]
    if dead:
        size = sum(row["memory_mib"] for row in dead if is_number(row.get("memory_mib")))
        texts = [f"pid {row.get('pid')} ({row['state']})" for row in dead]
        few = is_number(total) and size < total * node.limit("held_share", 0)
        severity = "degraded" if few else "drain"
        return bad(LIVING, f"{size} MiB held by {', '.join(texts[:4])}", severity=severity)
    text = _unexplained(node, gpu, total) if without_process(gpu) else None
    vgpus = "nvidia_vgpu_vfio" in as_list(fetch(node.capture, "os.modules"))
    if text is None or is_guest(node.capture) or vgpus:
        return ok(LIVING)
    if node.deltas is None or gpu_key(gpu) not in node.deltas.held:
        remedy = Remedy("Nothing to do: the next check sees whether it is still held.", PERSON)
        return RuleResult(DEFERRED, LIVING, text, remedy=remedy, blast=NOTHING)
    return bad(LIVING, f"{text}, at two checks", severity="degraded")


LIVING = "used by living processes only"


def without_process(gpu: Mapping[str, Any]) -> bool:
    """Return whether a GPU is in use and has no process of any kind.

    With MIG the list is another one. The memory of Grace's GPUs is also the kernel's, which caches files there.
    """
    shared = str(gpu.get("name")).startswith(("NVIDIA GH", "NVIDIA GB"))
    alone = gpu.get("processes") == [] and gpu.get("other_processes") == 0
    return alone and not shared and fetch(gpu, "mig.current") is not True


def _unexplained(node: Node, gpu: Mapping[str, Any], total: Any) -> Optional[str]:
    """Return the memory or use of a GPU beyond what the driver itself may have; None without any."""
    used, use = fetch(gpu, "memory.used_mib"), fetch(gpu, "utilization.gpu")
    share, most = node.limit("unexplained_share"), node.limit("unexplained_use")
    if share and is_number(used) and is_number(total) and used > total * share:
        return f"{used} MiB without a process"
    draw, limit = fetch(gpu, "power.draw_w"), fetch(gpu, "power.limit_w")
    works = is_number(draw) and is_number(limit) and draw > limit / 2
    # Without persistence the question itself starts the GPU, and scrubbing its memory counts as use.
    lasting = gpu.get("persistence_mode") is True and not works
    if most and is_number(use) and use > most and lasting:
        return f"{use} % used without a process"
    return None


@rule("driver.agree")
def agree(node: Node) -> Answer:
    driver = as_map(node.capture.get("driver"))
    if not driver or node.vendor != "nvidia" or (node.container and not node.simulated):
        return None
    # An update without a reboot leaves the old module loaded and installs a new library.
    names = {"loaded": "module", "proc": "/proc", "library": "library", "reported": "NVML"}
    have = {text: driver[key] for key, text in names.items() if isinstance(driver.get(key), str)}
    if len(set(have.values())) > 1:
        return bad("one version", ", ".join(f"{text} {version}" for text, version in have.items()))
    for key in names:
        result = node.absent(driver.get(key), None) if is_fault(driver.get(key)) else None
        if result is not None:
            return result
    return ok("one version", next(iter(have.values()))) if len(have) > 1 else None


@rule("fabric.manager")
def fabric_manager(node: Node) -> Answer:
    # A simulator has no NVSwitch that a fabric manager could start.
    switched = as_map(node.document.get("platform")).get("nvswitch") and not node.simulated
    if not switched or node.elsewhere() or node.vendor != "nvidia":
        return None
    active, result = node.flag(node.capture, "fabric_manager.active")
    return result if active is None else ok_if(active, "active", "not active")
