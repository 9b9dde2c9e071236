"""Rules about links: PCIe to each GPU, hop by hop; NVLink and its fabric; and the NUMA node of a GPU."""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED
from ..state.kinds import NOTHING
from ..state.remedy import PERSON, REPAIR, Remedy
from .hardware import _key
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
    is_number,
    ok,
    rule,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple


# Widths that mean a link is down: zero, or a register that reads all ones.
DOWN = (0, 63, 255)
REST_PSTATE, REST_USE = (
    5,
    50,
)  # a GPU in P5 or below, or used less than half, may have slowed its link down (field notes of the NVML field)


HOSTED = Remedy(
    "The host of this virtual machine has the slot: compare with another machine of the same type, and have the "
    "provider replace this one if that has all lanes. Declare the link in the class if it is by design.",
    PERSON,
)


def wanted(node: Node, gpu: Mapping[str, Any], key: str) -> Tuple[Optional[int], str]:
    """Return the expected generation or width of a GPU, and its source: address, class or facts. (None, "")
    without a source.
    """
    row = node.overrides.get(str(gpu.get("address")), {})
    for place, why in (
        (row.get("pcie"), f"by design here: {row.get('reason')}"),
        (
            node.gpu_baseline.get("pcie"),
            f"by design: {node.gpu_baseline.get('reason')}"
            if node.gpu_baseline.get("reason")
            else "the class's baseline",
        ),
        (node.facts_of(gpu).get("pcie"), f"the facts of {node.declared.get('model')}"),
    ):
        value = as_map(place).get(key)
        if is_number(value):
            return value, why
    return None, ""


def is_guest(capture: Mapping[str, Any]) -> bool:
    """Return whether the capture is of a virtual machine."""
    return as_map(capture.get("identity")).get("virtual") not in (None, "none")


def is_virtual(node: Node) -> bool:
    """Return whether a hypervisor shows virtual ports above the GPUs."""
    return is_guest(node.capture)


def hops(node: Node, address: str) -> List[Tuple[str, Dict[str, Any]]]:
    """Return (address, link) from the device up to its root port, without links inside a package and, in a
    virtual machine, without its ports.
    """
    entry = as_map(node.pci.get(address))
    path = [str(item) for item in as_list(entry.get("path"))][::-1] or [address]
    found = []
    for item in path[:1] if is_virtual(node) else path:
        row = as_map(node.pci.get(item))
        link = as_map(row.get("link"))
        if link and row.get("on_package") is not True:
            found.append((item, link))
    return found


def narrow(rows: List[Tuple[str, Dict[str, Any]]], key: str, want: int) -> List[str]:
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
    inside = as_map(node.pci.get(address)).get("on_package") is True
    read = [] if inside else [fetch(gpu, "pcie.width.current")]
    have = [
        value for value in [*read, *(link.get("width") for _, link in rows[:1])] if is_number(value)
    ]
    if want is None:
        return _trained(node, address, rows, "width")
    expected = f"x{want}"
    if not have:
        return node.absent(
            next(
                (
                    item
                    for item in [*read, fetch(node.pci.get(address), "link")]
                    if item is not None
                ),
                None,
            ),
            expected,
        )
    least = min(have)
    evidence = [why, *narrow(rows, "width", want)]
    if any(value in DOWN for value in have):
        return bad(expected, "the link is down", *evidence)
    if least < want:
        remedy = HOSTED if is_virtual(node) else None
        return bad(expected, f"x{least}", *evidence, *_ends(node, gpu, rows), remedy=remedy)
    above = narrow(rows[1:], "width", want)
    if above:
        return bad(
            expected, f"x{least}, and the path above is narrower: {'; '.join(above)}", *evidence
        )
    return (
        ok(expected)
        if least == want
        else bad(
            expected,
            f"x{least}",
            *evidence,
            severity="degraded",
            remedy=Remedy("Correct `pcie.width` in the baseline of the class.", PERSON),
        )
    )


def _ends(node: Node, gpu: Any, rows: List[Tuple[str, Dict[str, Any]]]) -> List[str]:
    """Return the maximum of each end of the GPU's own link. It distinguishes a bad contact from a slot with
    fewer lanes.
    """
    texts = [
        f"{address} can do gen {link.get('max_gen')} x{link.get('max_width')}"
        for address, link in rows[:2]
    ]
    most = fetch(gpu, "pcie.width.max")
    return [*texts, f"device and slot together can do x{most}"] if is_number(most) else texts


def _trained(node: Node, address: str, rows: List[Tuple[str, Dict[str, Any]]], key: str) -> Answer:
    """Judge a link without a declaration: it must reach the values that both of its ends support."""
    if len(rows) < 2 or rows[0][0] != address:
        return None
    now, most, other = (
        fetch(link, name)
        for link, name in (
            (rows[0][1], key),
            (rows[0][1], f"max_{key}"),
            (rows[1][1], f"max_{key}"),
        )
    )
    if not (is_number(now) and is_number(most) and is_number(other)):
        return None
    mark = "x" if key == "width" else "generation "
    expected = f"{mark}{min(most, other)}, which both ends can do"
    return (
        ok(expected)
        if now >= min(most, other)
        else bad(expected, f"{mark}{now}", f"{rows[1][0]} is the other end")
    )


@gpu_rule("pcie.gen")
def generation(node: Node, gpu: Any) -> Answer:
    """Judge the generation. A slower link is a fault only under load, or if one end cannot do better."""
    address = str(gpu.get("address"))
    want, why = wanted(node, gpu, "gen")
    rows = hops(node, address)
    inside = as_map(node.pci.get(address)).get("on_package") is True
    read = [] if inside else [fetch(gpu, "pcie.gen.current")]
    have = [
        value
        for value in [*read, *(link.get("gen") for _, link in rows[:1])]
        if is_number(value) and value > 0
    ]
    rests, state = resting(gpu)
    if want is None:
        return None if rests else _trained(node, address, rows, "gen")
    expected = f"generation {want}"
    if not have:
        return node.absent(
            next(
                (
                    item
                    for item in [*read, fetch(node.pci.get(address), "link")]
                    if item is not None
                ),
                None,
            ),
            expected,
        )
    best = (
        []
        if inside
        else [
            value
            for value in (fetch(gpu, "pcie.gen.max"), fetch(gpu, "pcie.gen.device_max"))
            if is_number(value) and value > 0
        ]
    )
    caps = narrow(rows, "max_gen", want)
    now = max(have)  # two readings a moment apart: the link may wake up between them
    if caps or (best and min(best) < want):
        text = f"generation {now}, and it can do no more than {min([*best, *(link['max_gen'] for _, link in rows if is_number(link.get('max_gen')))])}"
        return bad(
            expected,
            text,
            why,
            *caps,
            *_limited(node),
            remedy=CAPPED,
        )
    if now >= want:
        slow = narrow(rows[1:], "gen", want)
        if not slow:
            return ok(expected)
        if rests:
            return RuleResult(
                DEFERRED,
                expected,
                f"generation {now}, and above it {'; '.join(slow)}",
                (state,),
                blast=NOTHING,
                remedy=AT_NEXT_LOAD,
            )
        return bad(
            expected,
            f"generation {now}, and the path above is slower: {'; '.join(slow)}",
            why,
            state,
        )
    if rests:
        most = f"both ends can do {min(best)}" if best else "nothing speaks against it"
        return RuleResult(
            DEFERRED,
            expected,
            f"generation {now} while the GPU rests; {most}",
            (state,),
            blast=NOTHING,
            remedy=AT_NEXT_LOAD,
        )
    return bad(expected, f"generation {now} under load", why, state, *narrow(rows, "gen", want))


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
    pstate, use = fetch(gpu, "pstate"), fetch(gpu, "utilization.gpu")
    pstate = pstate if is_number(pstate) and pstate != 32 else None
    use = use if is_number(use) else None
    text = f"P{pstate if pstate is not None else '?'}, {use if use is not None else '?'} % used"
    return (pstate is not None and pstate >= REST_PSTATE) or use is None or use < REST_USE, text


def _limited(node: Node) -> List[str]:
    """Return the kernel's own message about limited bandwidth from the device's detection."""
    rows = as_list(as_map(node.capture.get("events")).get("rows"))
    return [
        str(row.get("text"))
        for row in rows
        if isinstance(row, dict) and row.get("kind") == "bandwidth_limited"
    ][:2]


@rule("pcie.link")
def others(node: Node) -> Answer:
    found = []
    total = 0
    for address, row in sorted(node.pci.items()):
        if (
            isinstance(row, dict)
            and row.get("kind") in ("nic", "infiniband", "nvme")
            and not is_virtual(node)
        ):
            result = _trained(node, address, hops(node, address), "width")
            if isinstance(result, RuleResult):
                total += 1
                if result.outcome != "match":
                    found.append(result._replace(subject=address))
    return found or (ok("all lanes that both ends have", f"{total} links") if total else None)


@gpu_rule("pcie.replay")
def replay(node: Node, gpu: Any) -> Answer:
    value, result = node.number(gpu, "pcie.replay")
    delta = node.counted("gpu", _key(gpu), "pcie.replay")
    table = as_map(node.limit("replay_per_lane_minute"))
    gen = wanted(node, gpu, "gen")[0] or fetch(gpu, "pcie.gen.max")
    width = fetch(gpu, "pcie.width.current")
    if value is None:
        return result
    if (
        delta is None
        or delta.per_minute is None
        or not is_number(gen)
        or not is_number(width)
        or not table.get(str(gen))
    ):
        return None
    most = table[str(gen)] * max(width, 1)
    expected = "few replays"
    return (
        ok(expected)
        if delta.per_minute <= most
        else bad(
            expected,
            f"{delta.per_minute:.0f} a minute, {delta.span}",
            f"{most:g} a minute is DCGM's limit for generation {gen} x{width}",
        )
    )


@rule("pcie.aer")
def aer(node: Node) -> Answer:
    most = node.limit("aer_correctable_minute")
    found, total = [], 0
    for address, row in sorted(node.pci.items()):
        if not isinstance(row, dict) or is_fault(row):
            continue
        counts = row.get("aer")
        if counts is None or is_fault(counts):
            result = node.absent(counts, None)
            if result is not None:
                found.append(result._replace(subject=address))
            continue
        total += 1
        names = [
            f"{name} {number}" for name, number in sorted(as_map(fetch(counts, "counters")).items())
        ][:4]
        corrected = node.counted("pci", address, "aer.correctable")
        for key in ("fatal", "nonfatal"):
            value = fetch(counts, key)
            delta = node.counted("pci", address, f"aer.{key}")
            new = delta.since_ack if delta is not None else value if key == "fatal" else 0
            if is_number(value) and new and new > node.limit("aer_uncorrected", 0):
                found.append(
                    bad(
                        "no uncorrected errors",
                        f"{new:g} {key} errors",
                        *names,
                        severity="drain",
                        subject=address,
                    )
                )
                break
        else:
            if (
                most
                and corrected is not None
                and corrected.per_minute is not None
                and corrected.per_minute > most
            ):
                text = f"{corrected.per_minute:.0f} corrected errors a minute, {corrected.span}"
                found.append(
                    bad(f"at most {most} corrected errors a minute", text, *names, subject=address)
                )
    return found or (ok("few errors", f"{total} functions") if total else None)


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
    value = fetch(as_map(value).get(address), "node") if not is_fault(value) else value
    if value is None:
        value = as_map(node.pci.get(address)).get("numa_node")
    return equal(expected, f"node {value}") if is_number(value) else node.absent(value, expected)


@gpu_rule("nvlink.active")
def nvlinks(node: Node, gpu: Any) -> Answer:
    """Judge the number of NVLinks.

    The facts give a model's number if its platform connects all of them. A platform with fewer by design is
    declared in the class, with a reason. Without either, all GPUs of a node must have the same number.
    """
    want, why = node.wants(gpu, "nvlinks")
    declared = (
        as_map(node.overrides.get(str(gpu.get("address")))).get("nvlinks") is not None
        or node.gpu_baseline.get("nvlinks") is not None
    )
    if declared:
        row = as_map(node.overrides.get(str(gpu.get("address"))))
        want = row["nvlinks"] if row.get("nvlinks") is not None else node.gpu_baseline["nvlinks"]
    elif not as_map(node.document.get("platform")).get("nvswitch"):
        want = None
    links = fetch(gpu, "nvlink.links")
    if not isinstance(links, list):
        return node.absent(links, f"{want} active" if want else None)
    unread = [
        row
        for row in links
        if is_fault(row) or (isinstance(row, dict) and not isinstance(row.get("active"), bool))
    ]
    active = _active(links)
    down = [
        str(row.get("link"))
        for row in links
        if isinstance(row, dict) and row.get("active") is False
    ]
    evidence = [f"links {', '.join(down[:18])} are down"] if down else []
    if unread:
        first = unread[0] if is_fault(unread[0]) else as_map(unread[0]).get("active")
        result = node.absent(first, f"{want} active" if want else None)
        if result is not None:
            return result
    if want is not None:
        expected = f"{want} active"
        return (
            ok(expected)
            if active == want
            else bad(expected, f"{active} active", str(why or "the class's baseline"), *evidence)
        )
    most = max(
        _active(as_list(fetch(other, "nvlink.links")))
        for other in node.gpus
        if other.get("pci_id") == gpu.get("pci_id")
    )
    expected = f"{most} active, as on others of this node"
    return (
        bad(expected, f"{active} active", *evidence)
        if active < most
        else ok(expected)
        if most
        else None
    )


def _active(links: List[Any]) -> int:
    return sum(1 for row in links if isinstance(row, dict) and row.get("active") is True)


@gpu_rule("nvlink.errors")
def nvlink_errors(node: Node, gpu: Any) -> Answer:
    if not isinstance(fetch(gpu, "nvlink.links"), list):
        return None
    found, seen = [], False
    for name, limit in (
        ("replay", "nvlink_errors_minute"),
        ("recovery", "nvlink_errors_minute"),
        ("crc_flit", "nvlink_crc_minute"),
        ("crc_data", "nvlink_crc_minute"),
    ):
        delta, most = node.counted("gpu", _key(gpu), f"nvlink.{name}"), node.limit(limit)
        if delta is None or delta.per_minute is None or not most:
            continue
        seen = True
        if delta.per_minute > most:
            found.append(f"{name} {delta.per_minute:.0f} a minute, {delta.span}")
    worst = [
        f"link {row.get('link')}: {', '.join(f'{key} {value}' for key, value in as_map(row.get('errors')).items() if is_number(value) and value)}"
        for row in as_list(fetch(gpu, "nvlink.links"))
        if isinstance(row, dict)
        and any(is_number(value) and value for value in as_map(row.get("errors")).values())
    ]
    return (
        bad("few errors", "; ".join(found), *worst[:4])
        if found
        else ok("few errors")
        if seen
        else None
    )


@gpu_rule("fabric.state")
def fabric(node: Node, gpu: Any) -> Answer:
    """Judge the fabric state. Generations before Hopper do not report it."""
    state = fetch(gpu, "fabric.state")
    joined = bool(as_map(node.document.get("platform")).get("nvswitch"))
    if not isinstance(state, str):
        return node.absent(state, None)
    if state == "not_supported" or not joined:
        return None
    status = fetch(gpu, "fabric.status")
    if state != "completed":
        return bad("completed", state, f"status {status['text'] if is_fault(status) else status}")
    if isinstance(status, str) and status.lower() not in ("success", "nvml_success", "0", ""):
        return bad("completed, Success", f"completed, {status}")
    ill = [
        f"{name}: {text}"
        for name, text in sorted(as_map(fetch(gpu, "fabric.health")).items())
        if str(text).lower() in ILL
    ]
    return bad("a healthy fabric", "; ".join(ill), severity="degraded") if ill else ok("completed")


ILL = ("true", "yes", "degraded", "unhealthy", "incorrect", "1")
