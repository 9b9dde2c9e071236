"""Rules about links: PCIe to each GPU, hop by hop; NVLink and its fabric; and the NUMA node of a GPU."""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED, MATCH, UNREAD
from ..state.kinds import NOTHING
from ..state.remedy import PERSON, REPAIR, Remedy
from .hardware import gpu_key
from .rules import (
    BY_FACTS,
    Answer,
    Node,
    RuleResult,
    about,
    as_list,
    as_map,
    bad,
    equal,
    fetch,
    gpu_rule,
    is_guest,
    is_number,
    number_of,
    ok,
    ok_if,
    rows_of,
    rule,
    wrong_or_ok,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple, TypeAlias


# Address and link of each hop from a device to its root port.
Hops: TypeAlias = "List[Tuple[str, Dict[str, Any]]]"
# Widths that mean a link is down: zero, or a register that reads all ones.
DOWN = (0, 63, 255)
# A GPU in P5 or below, or used less than half, may have slowed its link down (field notes of the NVML field).
REST_PSTATE, REST_USE = 5, 50
UNKNOWN_PSTATE = 32  # NVML_PSTATE_UNKNOWN

HOSTED = Remedy(
    "The host of this virtual machine has the slot: compare with another machine of the same type, and have the "
    "provider replace this one if that has all lanes. Declare the link in the class if it is by design.",
    PERSON,
)


def wanted(node: Node, gpu: Mapping[str, Any], key: str) -> Tuple[Optional[int], str]:
    """Return the expected generation or width of a GPU, and its source: address, class or facts. (None, "")
    without a source.
    """
    for row, why in node.sources(gpu):
        value = as_map(row.get("pcie")).get(key)
        if is_number(value):
            return value, why
    return None, ""


OF_HOST = "x{}, which this virtual machine's host gives each GPU of the model"


def hosted(capture: Mapping[str, Any], gpu: Mapping[str, Any]) -> bool:
    """Return whether a virtual machine's host may have given a GPU its lanes by design.

    Many clouds pass a GPU through with eight of 16 lanes. One GPU that has fewer than its equals is a fault.
    """
    widths = {
        str(fetch(other, "pcie.width.current"))
        for other in as_list(capture.get("gpus"))
        if fetch(other, "pci_id") == gpu.get("pci_id")
    }
    return is_guest(capture) and len(widths) == 1


def hops(node: Node, address: str) -> Hops:
    """Return (address, link) from the device up to its root port, without links inside a package and, in a
    virtual machine, without its ports.
    """
    entry = as_map(node.pci.get(address))
    path = [str(item) for item in as_list(entry.get("path"))][::-1] or [address]
    if is_guest(node.capture):  # the ports above are the hypervisor's, and have no real lanes
        del path[1:]
    links = []
    for item in path:
        row = as_map(node.pci.get(item))
        link = as_map(row.get("link"))
        if link and row.get("on_package") is not True:
            links.append((item, link))
    return links


def readings(node: Node, gpu: Mapping[str, Any], rows: Hops, key: str) -> Tuple[List[Any], Any]:
    """Return the present values of a GPU's own link, as the driver and the bus report them, and what was read
    in place of a missing one.
    """
    entry = node.pci.get(str(gpu.get("address")))
    own = fetch(gpu, f"pcie.{key}.current")
    if as_map(entry).get("on_package") is True:  # that link is inside the package, and of no slot
        own = None
    values = [own, *(link.get(key) for _, link in rows[:1])]
    missing = fetch(entry, "link") if own is None else own
    return [value for value in values if is_number(value)], missing


def narrow(rows: Hops, key: str, want: int) -> List[str]:
    """Return the hops whose `key` is less than wanted, as texts."""
    return [
        f"{address} has {link[key]}"
        for address, link in rows
        if is_number(link.get(key)) and link[key] < want and link[key] not in DOWN
    ]


@gpu_rule("pcie.width")
def width(node: Node, gpu: Any) -> Answer:
    address = str(gpu.get("address"))
    want, why = wanted(node, gpu, "width")
    rows = hops(node, address)
    have, unread = readings(node, gpu, rows, "width")
    if want is None:
        return _trained(node, address, rows, "width")
    expected = f"x{want}"
    if not have:
        return node.absent(unread, expected)
    least = min(have)
    evidence = [why, *narrow(rows, "width", want)]
    if any(value in DOWN for value in have):
        return bad(expected, "the link is down", *evidence)
    if least < want and why.startswith(BY_FACTS) and hosted(node.capture, gpu):
        return ok(OF_HOST.format(least))
    if least < want:
        remedy = HOSTED if is_guest(node.capture) else None
        return bad(expected, f"x{least}", *evidence, *_ends(gpu, rows), remedy=remedy)
    above = narrow(rows[1:], "width", want)
    if above:
        text = f"x{least}, and the path above is narrower: {'; '.join(above)}"
        return bad(expected, text, *evidence)
    if least == want:
        return ok(expected)
    # More lanes than declared: the declaration is wrong, and the GPU is not.
    remedy = Remedy("Correct `pcie.width` in the baseline of the class.", PERSON)
    return bad(expected, f"x{least}", *evidence, severity="degraded", remedy=remedy)


def _ends(gpu: Any, rows: Hops) -> List[str]:
    """Return the maximum of each end of the GPU's own link. It distinguishes a bad contact from a slot with
    fewer lanes.
    """
    texts = [
        f"{address} can do gen {link.get('max_gen')} x{link.get('max_width')}"
        for address, link in rows[:2]
    ]
    most = fetch(gpu, "pcie.width.max")
    return [*texts, f"device and slot together can do x{most}"] if is_number(most) else texts


def _trained(node: Node, address: str, rows: Hops, key: str) -> Optional[RuleResult]:
    """Judge a link without a declaration: it must reach the values that both of its ends support."""
    if len(rows) < 2 or rows[0][0] != address:
        return None
    (_, link), (above, port) = rows[:2]
    now: Any = link.get(key)
    limits: List[Any] = [end.get(f"max_{key}") for end in (link, port)]
    if not all(map(is_number, (now, *limits))):
        return None
    mark = "x" if key == "width" else "generation "
    most = min(limits)
    expected = f"{mark}{most}, which both ends can do"
    return ok_if(now >= most, expected, f"{mark}{now}", f"{above} is the other end")


@gpu_rule("pcie.gen")
def generation(node: Node, gpu: Any) -> Answer:
    """Judge the generation. A slower link is a fault only under load, or if one end cannot do better."""
    address = str(gpu.get("address"))
    want, why = wanted(node, gpu, "gen")
    rows = hops(node, address)
    have, unread = readings(node, gpu, rows, "gen")
    have = [value for value in have if value > 0]  # 0 is a link that is down, as in DOWN
    rests, state = resting(gpu)
    if want is None:
        return None if rests else _trained(node, address, rows, "gen")
    expected = f"generation {want}"
    if not have:
        return node.absent(unread, expected)
    best = [fetch(gpu, "pcie.gen.max"), fetch(gpu, "pcie.gen.device_max")]
    best = [value for value in best if is_number(value) and value > 0]
    if as_map(node.pci.get(address)).get("on_package") is True:
        best = []
    caps = narrow(rows, "max_gen", want)
    now = max(have)  # two readings a moment apart: the link may wake up between them
    if caps or (best and min(best) < want):
        ends = [link["max_gen"] for _, link in rows if is_number(link.get("max_gen"))]
        text = f"generation {now}, and it can do no more than {min([*best, *ends])}"
        return bad(expected, text, why, *caps, *_limited(node), remedy=CAPPED)
    slow = narrow(rows[1:], "gen", want)
    if now >= want and not slow:
        return ok(expected)
    # A link that rests is slow to save power, so only a GPU at work shows a fault.
    if rests and now >= want:
        return _at_rest(expected, f"generation {now}, and above it {'; '.join(slow)}", state)
    if rests:
        most = f"both ends can do {min(best)}" if best else "nothing speaks against it"
        return _at_rest(expected, f"generation {now} while the GPU rests; {most}", state)
    if now >= want:
        text = f"generation {now}, and the path above is slower: {'; '.join(slow)}"
        return bad(expected, text, why, state)
    return bad(expected, f"generation {now} under load", why, state, *narrow(rows, "gen", want))


def _at_rest(expected: str, got: str, state: str) -> RuleResult:
    """Return that a link is judged later, when its GPU works."""
    return RuleResult(DEFERRED, expected, got, (state,), remedy=AT_NEXT_LOAD, blast=NOTHING)


CAPPED = Remedy(
    "Look in the firmware for a generation limit of the slot of SUBJECT, and for a riser or switch of an older generation above it.",
    REPAIR,
)
AT_NEXT_LOAD = Remedy(
    "Nothing to do: it is judged at the next check that finds SUBJECT at work.", PERSON
)


def resting(gpu: Any) -> Tuple[bool, str]:
    """Return whether a GPU may have slowed its link down to save power, with the readings as evidence.
    Without readings it may have.
    """
    pstate, use = number_of(fetch(gpu, "pstate")), number_of(fetch(gpu, "utilization.gpu"))
    if pstate == UNKNOWN_PSTATE:
        pstate = None
    known_pstate, known_use = ("?" if value is None else value for value in (pstate, use))
    rests = (pstate is not None and pstate >= REST_PSTATE) or use is None or use < REST_USE
    return rests, f"P{known_pstate}, {known_use} % used"


def _limited(node: Node) -> List[str]:
    """Return the kernel's own message about limited bandwidth from the device's detection."""
    rows = rows_of(as_map(node.capture.get("events")).get("rows"))
    return [str(row.get("text")) for row in rows if row.get("kind") == "bandwidth_limited"][:2]


@rule("pcie.link")
def others(node: Node) -> Answer:
    """Judge the width of network cards and disks. No class declares it, so both ends of the link decide."""
    results: List[RuleResult] = []
    if is_guest(node.capture):
        return None
    for address, row in sorted(node.pci.items()):
        if as_map(row).get("kind") in ("nic", "infiniband", "nvme"):
            results += about(address, _trained(node, address, hops(node, address), "width"))
    wrong = [result for result in results if result.outcome != MATCH]
    return wrong_or_ok(wrong, results, "all lanes that both ends have", f"{len(results)} links")


@gpu_rule("pcie.replay")
def replay(node: Node, gpu: Any) -> Answer:
    value, result = node.number(gpu, "pcie.replay")
    delta = node.counted("gpu", gpu_key(gpu), "pcie.replay")
    table = as_map(node.limit("replay_per_lane_minute"))
    # The declared generation, not the present one: a link at rest runs slower than it is judged for.
    gen = wanted(node, gpu, "gen")[0] or fetch(gpu, "pcie.gen.max")
    width = fetch(gpu, "pcie.width.current")
    if value is None:
        return result
    if not (is_number(gen) and is_number(width) and table.get(str(gen))):
        return None
    if delta is None or delta.per_minute is None:
        return None
    most = table[str(gen)] * max(width, 1)  # DCGM's limit is that of one lane
    got = f"{delta.per_minute:.0f} a minute, {delta.span}"
    limit = f"{most:g} a minute is DCGM's limit for generation {gen} x{width}"
    return ok_if(delta.per_minute <= most, "few replays", got, limit)


@rule("pcie.aer")
def aer(node: Node) -> Answer:
    results: List[RuleResult] = []
    total = 0
    for address, row in sorted(node.pci.items()):
        if not isinstance(row, dict) or is_fault(row):
            continue
        counts = row.get("aer")
        if counts is None or is_fault(counts):
            results += about(address, node.absent(counts, None))
        else:
            total += 1
            results += about(address, _errors(node, address, counts))
    return wrong_or_ok(results, total, "few errors", f"{total} functions")


def _errors(node: Node, address: str, counts: Any) -> Optional[RuleResult]:
    """Return the mismatch of a function's error counters; None if they are good."""
    counters = sorted(as_map(fetch(counts, "counters")).items())
    names = [f"{name} {number}" for name, number in counters][:4]
    for key in ("fatal", "nonfatal"):
        value = fetch(counts, key)
        delta = node.counted("pci", address, f"aer.{key}")
        # A fatal error is a fault at any time (deltas.FROM_ZERO), others only once they are counted.
        new = value if key == "fatal" else 0
        if delta is not None:
            new = delta.since_ack
        if is_number(value) and new and new > node.limit("aer_uncorrected", 0):
            text = f"{new:g} {key} errors"
            return bad("no uncorrected errors", text, *names, severity="drain")
    most = node.limit("aer_correctable_minute")
    fast = node.faster(most, "pci", address, "aer.correctable")
    if fast is None:
        return None
    text = f"{fast.per_minute:.0f} corrected errors a minute, {fast.span}"
    return bad(f"at most {most} corrected errors a minute", text, *names)


@gpu_rule("gpu.numa")
def numa(node: Node, gpu: Any) -> Answer:
    table = as_map(node.gpu_baseline.get("numa"))
    if not table:
        return None
    address = str(gpu.get("address"))
    if address not in table:
        return bad(
            "an address that the class names",
            "no NUMA node is declared for this address",
            f"declared: {', '.join(sorted(table))}",
        )
    expected = f"node {table[address]}"
    value = fetch(node.capture, "numa.affinity")
    if not is_fault(value):
        value = fetch(as_map(value).get(address), "node")
    if value is None:
        value = as_map(node.pci.get(address)).get("numa_node")
    return equal(expected, f"node {value}") if is_number(value) else node.absent(value, expected)


@gpu_rule("nvlink.active")
def nvlinks(node: Node, gpu: Any) -> Answer:
    """Judge the number of NVLinks.

    The facts give a model's number if its platform connects all of them. A platform with fewer by
    design is declared in the class, with a reason. Without either, all GPUs of a node must have the
    same number.
    """
    want, why = node.wants(gpu, "nvlinks")
    declared = any(row.get("nvlinks") is not None for row, _ in node.sources(gpu)[:2])
    if not declared and not as_map(node.document.get("platform")).get("nvswitch"):
        want = None
    stated = f"{want} active" if want else None
    links = fetch(gpu, "nvlink.links")
    if not isinstance(links, list):
        return node.absent(links, stated)
    states = [row if is_fault(row) else row.get("active") for row in rows_of(links)]
    unread = [state for state in states if not isinstance(state, bool)]
    result = node.absent(unread[0], stated) if unread else None
    if result is not None:
        return result
    active = _active(links)
    down = [str(row.get("link")) for row in rows_of(links) if row.get("active") is False]
    evidence = [f"links {', '.join(down[:18])} are down"] if down else []
    got = f"{active} active"
    if want is not None:
        source = str(why or "the class's baseline")
        return ok_if(active == want, f"{want} active", got, source, *evidence)
    most = max(
        _active(fetch(other, "nvlink.links"))
        for other in node.gpus
        if other.get("pci_id") == gpu.get("pci_id")
    )
    expected = f"{most} active, as on others of this node"
    if active < most:
        return bad(expected, got, *evidence)
    return ok(expected) if most else None


def _active(links: Any) -> int:
    return sum(row.get("active") is True for row in rows_of(links))


@gpu_rule("nvlink.errors")
def nvlink_errors(node: Node, gpu: Any) -> Answer:
    links = fetch(gpu, "nvlink.links")
    if not isinstance(links, list):
        return None
    texts, seen = [], False
    for name, limit in (
        ("replay", "nvlink_errors_minute"),
        ("recovery", "nvlink_errors_minute"),
        ("crc_flit", "nvlink_crc_minute"),
        ("crc_data", "nvlink_crc_minute"),
    ):
        delta, most = node.counted("gpu", gpu_key(gpu), f"nvlink.{name}"), node.limit(limit)
        if delta is None or delta.per_minute is None or not most:
            continue
        seen = True
        fast = delta.per_minute > most
        # A link that recovers again and again loses time at a rate at which replays are no fault.
        few = node.limit("nvlink_recoveries_minute")
        if name == "recovery" and few and (delta.value or 0) > 1 and not delta.first:
            fast = delta.per_minute > few
        if fast:
            texts.append(f"{name} {delta.per_minute:.0f} a minute, {delta.span}")
    worst = []
    for row in rows_of(links):
        errors = as_map(row.get("errors")).items()
        counts = [f"{key} {value}" for key, value in errors if is_number(value) and value]
        if counts:
            worst.append(f"link {row.get('link')}: {', '.join(counts)}")
    if texts:
        return bad("few errors", "; ".join(texts), *worst[:4])
    return ok("few errors") if seen else None


@gpu_rule("fabric.state")
def fabric(node: Node, gpu: Any) -> Answer:
    """Judge the fabric state. Generations before Hopper do not report it (nvml.h)."""
    state = fetch(gpu, "fabric.state")
    joined = bool(as_map(node.document.get("platform")).get("nvswitch"))
    if not isinstance(state, str):
        return node.absent(state, None)
    if not joined:
        return None
    if state == "not_supported":
        # A GPU that can report a fabric and reports none, on a board with NVSwitch, has no known state.
        if gpu.get("architecture") in BEFORE_FABRIC:
            return None
        return RuleResult(UNREAD, "completed", "not supported, on a board with NVSwitch")
    status = fetch(gpu, "fabric.status")
    if state != "completed":
        text = status["text"] if is_fault(status) else status
        return bad("completed", state, f"status {text}")
    # Each source of a capture has its own spelling of success.
    if isinstance(status, str) and status.lower() not in ("success", "nvml_success", "0", ""):
        return bad("completed, Success", f"completed, {status}")
    ill = [
        f"{name}: {text}"
        for name, text in sorted(as_map(fetch(gpu, "fabric.health")).items())
        if str(text).lower() in ILL
    ]
    if ill:
        return bad("a healthy fabric", "; ".join(ill), severity="degraded")
    return ok("completed")


# Generations that do not report the fabric (nvml.h: "For Hopper or newer"), and one that is not known.
BEFORE_FABRIC = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", None)
ILL = ("true", "yes", "degraded", "unhealthy", "incorrect", "1")
