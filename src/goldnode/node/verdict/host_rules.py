"""Rules about the host of the GPUs: processors, memory, network, storage, time, services. Most of them judge
only declared values.
"""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED, MATCH
from ..state.kinds import NOTHING
from ..state.remedy import ACKNOWLEDGE, COMMAND, PERSON, REPAIR, Remedy
from .hardware import in_driver
from .rules import (
    Answer,
    Node,
    RuleResult,
    about,
    as_list,
    as_map,
    bad,
    equal,
    fetch,
    is_guest,
    is_number,
    ok,
    ok_if,
    rows_of,
    rule,
    shown,
    text_of,
    wrong_or_ok,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, List, Optional


def _all(results: List[RuleResult], expected: str) -> Answer:
    """Return the mismatches, or one match for all."""
    wrong = [result for result in results if result.outcome != MATCH]
    return wrong_or_ok(wrong, results, expected, f"{len(results)} as declared")


@rule("cpu.layout")
def cpu(node: Node) -> Answer:
    want = as_map(node.baseline.get("cpu"))
    if not want:
        return None
    text = ", ".join(f"{key} {shown(value)}" for key, value in sorted(want.items()))
    have, result = node.section("cpu", text)
    if result is not None:
        return result
    for key in want:
        if not isinstance(have.get(key), (int, bool)):
            return node.absent(have.get(key), text)
    return equal(text, ", ".join(f"{key} {shown(have[key])}" for key in sorted(want)))


@rule("cpu.microcode")
def microcode(node: Node) -> Answer:
    """Judge whether all cores run one microcode. In a virtual machine it is the host's."""
    versions = [str(item) for item in as_list(as_map(node.capture.get("cpu")).get("microcode"))]
    if node.elsewhere() or is_guest(node.capture) or not versions:
        return None
    return ok_if(len(versions) == 1, "one version on all cores", ", ".join(versions))


@rule("memory.total")
def memory(node: Node) -> Answer:
    want = as_map(node.baseline.get("memory"))
    if not is_number(want.get("total_gib")):
        return None
    share: Any = want.get("tolerance")
    if not is_number(share):
        share = node.limit("memory_tolerance", 0)
    expected = f"{want['total_gib']} GiB, within {share:.1%}"
    have, result = node.section("memory", expected)
    if result is not None:
        return result
    total: Any = have.get("total_mib")
    if not is_number(total):
        return node.absent(total, expected)
    # Firmware and kernel reserve a part of the memory, so that the total is never the size of the modules.
    least, most = want["total_gib"] * 1024 * (1 - share), want["total_gib"] * 1024 * (1 + share)
    return ok_if(least <= total <= most, expected, f"{total / 1024:.1f} GiB")


@rule("memory.edac")
def edac(node: Node) -> Answer:
    rows = as_map(as_map(node.capture.get("memory")).get("edac"))
    if node.elsewhere() or not rows:
        return None
    most, daily = node.limit("edac_corrected_minute"), node.limit("edac_corrected_day")
    results: List[RuleResult] = []
    for name, row in sorted(rows.items()):
        faults = [item for item in (fetch(row, "ue"), fetch(row, "ce")) if is_fault(item)]
        if faults:
            results += about(name, node.absent(faults[0], None))
            continue
        wrong = fetch(row, "ue")
        fast = node.faster(most, "edac", name, "ce")
        if is_number(wrong) and wrong > node.limit("edac_uncorrected", 0):
            results.append(
                bad(
                    "no uncorrected errors",
                    f"{wrong} uncorrected since boot",
                    *_dimms(node, name),
                    subject=name,
                )
            )
        elif fast is not None:
            text = f"{fast.per_minute:.0f} corrected a minute, {fast.span}"
            results.append(_wears(text, "few corrected errors", name, *_dimms(node, name)))
        elif daily and node.day("edac", name, "ce") > daily:
            text = f"{node.day('edac', name, 'ce'):.0f} corrected within a day"
            expected = f"at most {daily} corrected errors a day"
            results.append(_wears(text, expected, name, *_dimms(node, name)))
    return results or ok("no memory errors", f"{len(rows)} memory controllers")


def _dimms(node: Node, name: str) -> List[str]:
    """Return the DIMMs that the kernel's log names for a memory controller, with the kind of their errors."""
    texts = []
    for row in rows_of(as_map(node.capture.get("events")).get("rows")):
        more = as_map(row.get("parameters"))
        if str(more.get("controller")).lower() == name and more.get("subject"):
            texts.append(f"{more['subject']}: {more.get('severity')}")
    return texts[:8]


def _wears(text: str, expected: str, name: str, *evidence: str) -> RuleResult:
    """Return the finding of a memory module that announces its end: maintenance, before it is a fault."""
    remedy = Remedy(
        "Find the DIMM with `dmesg | grep -i edac` and plan its exchange; then `goldnode-node ack`.",
        REPAIR,
        ACKNOWLEDGE,
    )
    return bad(expected, text, *evidence, severity="degraded", remedy=remedy, subject=name)


@rule("net.state")
def interfaces(node: Node) -> Answer:
    results: List[RuleResult] = []
    for name in sorted(as_map(node.baseline.get("network"))):
        rows, result = node.section("network", "up")
        state = fetch(rows.get(name), "state")
        if result is None and rows.get(name) is None:
            result = bad("up", "no such interface")
        elif result is None and not isinstance(state, str):
            result = node.absent(state, "up")
        elif result is None:
            # Drivers without a state of their own report "unknown" (RFC 2863 in the kernel's operstates.rst).
            result = ok_if(state in ("up", "unknown"), "up", state)
        results += about(name, result)
    return _all(results, "up")


@rule("net.speed")
def speed(node: Node) -> Answer:
    rows = as_map(node.capture.get("network"))
    # A link that is down has no speed; that it is down is a finding of `net.state`.
    down = {name for name, row in rows.items() if fetch(row, "state") == "down"}
    return _property(node, "speed_mbps", lambda value: f"{value} Mb/s", down)


@rule("net.mtu")
def mtu(node: Node) -> Answer:
    return _property(node, "mtu", lambda value: str(value))


@rule("net.numa")
def net_numa(node: Node) -> Answer:
    return _property(node, "numa_node", lambda value: f"node {value}")


def _property(node: Node, key: str, say: Any, but: Container[str] = ()) -> Answer:
    results: List[RuleResult] = []
    for name, want in sorted(as_map(node.baseline.get("network")).items()):
        if want.get(key) is None or name in but:
            continue
        expected = say(want[key])
        rows, result = node.section("network", expected)
        value = fetch(rows.get(name), key)
        if result is None and rows.get(name) is None:
            result = bad(expected, "no such interface")
        elif result is None and not is_number(value):
            result = node.absent(value, expected)
        elif result is None:
            result = equal(expected, say(value))
        results += about(name, result)
    return _all(results, "as declared")


@rule("net.firmware")
def firmware(node: Node) -> Answer:
    results: List[RuleResult] = []
    for section in ("network", "infiniband"):
        for name, want in sorted(as_map(node.baseline.get(section)).items()):
            if not want.get("firmware"):
                continue
            expected = " or ".join(want["firmware"])
            rows, result = node.section(section, expected)
            value = fetch(rows.get(name), "firmware")
            if result is None and rows.get(name) is None:
                result = bad(expected, "no such device")
            elif result is None and not (isinstance(value, str) and value.strip()):
                result = node.absent(value, expected)
            elif result is None:
                # Drivers add the board's id in brackets: "28.39.1002 (MT_0000000838)".
                good = value in want["firmware"] or value.split()[0] in want["firmware"]
                result = ok_if(good, expected, value)
            results += about(name, result)
    return _all(results + _mixed(node), "as declared")


def _mixed(node: Node) -> List[RuleResult]:
    """Compare the firmware of cards of one board id, where the class does not declare it.

    Only cards of NVIDIA (mlx4, mlx5) have such an id; one model of another vendor may be of several boards.
    """
    boards: Dict[str, Dict[str, str]] = {}
    if node.elsewhere() or is_guest(node.capture):
        return []
    for section in ("network", "infiniband"):
        declared = as_map(node.baseline.get(section))
        for name, row in sorted(as_map(node.capture.get(section)).items()):
            if not (name if section == "infiniband" else str(fetch(row, "driver"))).startswith(
                "mlx"
            ):
                continue
            # An interface has both in one text: "28.39.1002 (MT_0000000838)".
            version, _, rest = str(fetch(row, "firmware")).partition(" (")
            board = text_of(fetch(row, "board")) or rest.rstrip(")")
            address, stated = str(fetch(row, "address")), as_map(declared.get(name)).get("firmware")
            virtual = "virtual_of" in as_map(node.pci.get(address))
            if board and version[:1].isdigit() and not stated and not virtual:
                boards.setdefault(board, {}).setdefault(f"{version} {address}", name)
    results: List[RuleResult] = []
    for board, cards in boards.items():
        versions = [key.split()[0] for key in cards]
        usual = max(sorted(set(versions)), key=versions.count)
        results += [
            bad(f"{usual}, as others of {board}", key.split()[0], subject=name)
            for key, name in cards.items()
            if key.split()[0] != usual
        ]
    return results


def _real(node: Node) -> List[str]:
    """Return the interfaces that are hardware, or that the class names."""
    named = as_map(node.baseline.get("network"))
    return [
        name
        for name, row in sorted(as_map(node.capture.get("network")).items())
        if isinstance(row, dict) and not is_fault(row) and (row.get("address") or name in named)
    ]


@rule("net.drops")
def drops(node: Node) -> Answer:
    """Judge dropped frames by rate, never by total: frames of unknown protocols count as dropped."""
    if node.elsewhere():
        return None
    share, rate = node.limit("drops_share"), node.limit("drops_second")
    results: List[RuleResult] = []
    seen = 0
    for name in _real(node):
        packets = sum(
            delta.value
            for delta in (node.counted("net", name, key) for key in ("rx_packets", "tx_packets"))
            if delta is not None and delta.value
        )
        for key in (
            "rx_dropped",
            "rx_missed_errors",
            "rx_crc_errors",
            "rx_errors",
            "tx_dropped",
            "tx_errors",
        ):
            delta = node.counted("net", name, key)
            # The first reading has no time to divide by.
            if delta is None or delta.value is None or not delta.seconds or not share or not rate:
                continue
            seen += 1
            lost, sent = delta.value / delta.seconds, packets / delta.seconds
            # Both limits count: a quiet link loses a large share with a few frames.
            if delta.value > packets * share and lost > rate:
                text = f"{key} {lost:.0f} a second, of {sent:.0f} packets"
                results.append(
                    bad(f"at most {share:.1%} of the packets", text, delta.span, subject=name)
                )
                break
    return wrong_or_ok(results, seen, "few drops")


@rule("net.flaps")
def flaps(node: Node) -> Answer:
    if node.elsewhere():
        return None
    most = node.limit("flaps", 0)
    results: List[RuleResult] = []
    seen = 0
    for name in _real(node):
        delta = node.counted("net", name, "carrier_changes")
        # A counter that restarted belongs to a driver that was loaded again, which takes the link down.
        if delta is not None and delta.value is not None and not delta.reset:
            seen += 1
            if most and delta.value >= most:
                text = f"{delta.value:g} carrier changes, {delta.span}"
                results.append(bad("a steady link", text, subject=name))
    for name, port, row in _ports(node):
        about_port = f"{name}/{port}"
        downs = node.counted("ib", name, port, "link_downed")
        symbols = node.counted("ib", name, port, "symbol_error")
        # Symbol errors are noise of a healthy link up to a rate; a link that was down is a fault.
        noisy = node.faster(node.limit("symbol_errors_minute"), "ib", name, port, "symbol_error")
        for delta, what, wrong in (
            (downs, "times down", downs is not None and downs.value),
            (symbols, "symbol errors", noisy is not None and not noisy.first),
        ):
            if delta is not None and delta.value is not None:
                seen += 1
                if wrong:
                    text = f"{delta.value:g} {what}, {delta.span}"
                    remedy = Remedy(
                        f"Search dmesg for {name}, check `ibstat {name} {port}`, the cable and transceiver, then the switch port.",
                        PERSON,
                    )
                    results.append(bad("a steady link", text, remedy=remedy, subject=about_port))
                    break
        # Counters of InfiniBand stop at their maximum.
        counters = as_map(as_map(row).get("counters")).values()
        if any(is_number(value) and value == (1 << 32) - 1 for value in counters):
            text = "a counter is at its maximum (32 bits)"
            remedy = Remedy("Clear it: `perfquery -x -R` on the node.", COMMAND)
            results.append(bad("counters that count", text, remedy=remedy, subject=about_port))
    return wrong_or_ok(results, seen, "steady links")


def _ports(node: Node) -> List[Any]:
    rows = as_map(node.capture.get("infiniband"))
    return [
        (name, port, value)
        for name, row in sorted(rows.items())
        for port, value in sorted(as_map(fetch(row, "ports")).items())
    ]


@rule("ib.port")
def infiniband(node: Node) -> Answer:
    results: List[RuleResult] = []
    for name, want in sorted(as_map(node.baseline.get("infiniband")).items()):
        rate = want.get("rate_gbps")
        expected = f"{want['ports']} ports active" if want.get("ports") else "active"
        if rate:
            expected += f" at {rate} Gb/s"
        rows, result = node.section("infiniband", expected)
        ports = fetch(rows.get(name), "ports")
        if result is None and rows.get(name) is None:
            result = bad(expected, "no such device")
        elif result is None and (not isinstance(ports, dict) or is_fault(ports)):
            result = node.absent(ports, expected)
        elif result is None:
            result = _ports_as_declared(node, ports, want, expected)
        results += about(name, result)
    return _all(results, "active, at their rate")


def _ports_as_declared(node: Node, ports: Any, want: Any, expected: str) -> Optional[RuleResult]:
    """Judge the ports of one InfiniBand device."""
    rate = want.get("rate_gbps")
    texts, wrong = [], bool(want.get("ports") and len(ports) != want["ports"])
    for port, value in sorted(ports.items()):
        state, have = fetch(value, "state"), fetch(value, "rate_gbps")
        unread = None
        if not isinstance(state, str):
            unread = node.absent(state, expected)
        elif rate and not is_number(have):
            unread = node.absent(have, expected)
        # A port that is not active has no rate, and is wrong already.
        if unread is not None and (state is None or is_fault(state) or state == "active"):
            return unread
        wrong = wrong or state != "active" or bool(rate and have != rate)
        texts.append(f"port {port} {state}" + (f" at {have} Gb/s" if is_number(have) else ""))
    return ok_if(not wrong, expected, ", ".join(texts) or "no port")


@rule("storage.mount")
def mounts(node: Node) -> Answer:
    results: List[RuleResult] = []
    declared = as_map(as_map(node.baseline.get("storage")).get("mounts"))
    for path, want in sorted(declared.items()):
        expected = "mounted, writable"
        if want.get("type"):
            expected += f", {want['type']}"
        if want.get("free_gib"):
            expected += f", {want['free_gib']} GiB free"
        section, result = node.section("storage", expected)
        rows = fetch(section, "mounts")
        if result is None and (is_fault(rows) or not isinstance(rows, dict)):
            result = node.absent(rows, expected)
        elif result is None and rows.get(path) is None:
            result = bad(expected, "not mounted")
        elif result is None:
            result = _mounted(node, rows[path], want, expected)
        results += about(path, result)
    # Every node needs a root filesystem that can be written, declared or not.
    root = fetch(as_map(fetch(node.capture, "storage.mounts")), "/")
    there = isinstance(root, dict) and not is_fault(root)
    if there and "/" not in declared and not node.elsewhere():
        results += about("/", _mounted(node, root, {}, "writable, with room"))
    return _all(results, "mounted, writable, with room")


def _mounted(node: Node, row: Any, want: Any, expected: str) -> Optional[RuleResult]:
    if is_fault(row):
        return node.absent(row, expected)
    if want.get("type") and not isinstance(row.get("type"), str):
        return node.absent(row.get("type"), expected)
    if want.get("type") and row["type"] != want["type"]:
        return bad(expected, f"of type {row['type']}")
    if row.get("readonly") is True:
        return bad(expected, "read-only", f"options {row.get('options')}")
    free, inodes = row.get("free_mib"), row.get("inodes_free_percent")
    if want.get("free_gib"):
        if not is_number(free):
            return node.absent(free, expected)
        if free < want["free_gib"] * 1024:
            return bad(expected, f"{free / 1024:.1f} GiB free", severity="degraded")
    elif is_number(free) and free < node.limit("space_mib", 0):
        return bad(expected, f"{free} MiB free", severity="degraded")
    few = is_number(inodes) and inodes < node.limit("inodes_percent", 0)
    if few and is_number(row.get("size_mib")):
        return bad(expected, f"{inodes:g} % of the inodes free", severity="degraded")
    return ok(expected)


@rule("storage.devices")
def disks(node: Node) -> Answer:
    want = as_map(as_map(node.baseline.get("storage")).get("devices"))
    if not want:
        return None
    models = as_list(want.get("models"))
    expected = f"{want['count']} disks" if want.get("count") else "disks"
    if models:
        expected += f" of {' or '.join(models)}"
    section, result = node.section("storage", expected)
    rows = fetch(section, "devices")
    if result is not None or is_fault(rows) or not isinstance(rows, dict):
        return result or node.absent(rows, expected)
    # A foreign model is named before the number: it explains a wrong one.
    foreign = [
        f"{name} {fetch(row, 'model')}"
        for name, row in sorted(rows.items())
        if models and fetch(row, "model") not in models
    ]
    if foreign:
        return bad(expected, ", ".join(foreign[:4]))
    text = f"{len(rows)} disks: {', '.join(sorted(rows))}"
    return ok_if(want.get("count") in (None, len(rows)), expected, text)


@rule("storage.health")
def smart(node: Node) -> Answer:
    storage = as_map(node.capture.get("storage"))
    if node.elsewhere():
        return None
    results: List[RuleResult] = []
    seen = 0
    for name, row in sorted(as_map(storage.get("devices")).items()):
        seen += is_number(fetch(row, "smart.critical_warning"))
        results += about(name, _disk(node, name, row))
    for name, row in sorted(as_map(storage.get("raid")).items()):
        want, have = fetch(row, "devices"), fetch(row, "active")
        seen += 1
        if is_number(want) and is_number(have) and have < want:
            failed = [str(member) for member in as_list(fetch(row, "failed"))]
            slots = [str(slot) for slot in as_list(fetch(row, "missing"))]
            text = f"{have} of {want} disks"
            if slots or failed:
                text += f": slot {', '.join(slots) or '?'} is empty"
            if failed:
                text += f", {', '.join(failed)} has failed"
            recovering = fetch(row, "state") == "recovering"
            remedy = ARRAY_RECOVERS if recovering else _array_remedy(failed)
            results.append(bad("a whole array", text, remedy=remedy, subject=name))
    return wrong_or_ok(results, seen, "no warning", f"{seen} disks and arrays")


ARRAY_RECOVERS = Remedy(
    "Nothing to do but wait: the array takes a disk in, see /proc/mdstat and `mdadm --detail /dev/SUBJECT`.",
    PERSON,
)


def _array_remedy(failed: List[str]) -> Remedy:
    """Return how an array gets its missing disk back (mdadm(8), manage mode)."""
    old = f"`mdadm --manage /dev/SUBJECT --remove /dev/{failed[0]}`, " if failed else ""
    return Remedy(
        "Find the missing disk with `mdadm --detail /dev/SUBJECT` and dmesg. If it is sound, "
        f"{old}`mdadm --manage /dev/SUBJECT --re-add /dev/DISK`; otherwise replace it, copy the partition table of a disk that "
        "is left, and `mdadm --manage /dev/SUBJECT --add /dev/DISK`.",
        COMMAND,
        REPAIR,
    )


def _disk(node: Node, name: str, row: Any) -> Optional[RuleResult]:
    """Return what is wrong with one disk, or why it is unknown; None if nothing is."""
    expected = "no warning"
    smart, state = fetch(row, "smart"), fetch(row, "state")
    if fetch(row, "ro") is True and smart is not None:
        return bad(expected, "the disk is read-only", severity="drain")
    if isinstance(state, str) and state not in ("live", "running"):
        return bad(expected, f"state {state}", severity="drain")
    unknown = node.absent(smart, None) if is_fault(smart) else None
    if unknown is not None:  # a controller that does not answer is no healthy one
        return unknown._replace(expected=expected)
    warning, used = fetch(smart, "critical_warning"), fetch(smart, "percentage_used")
    if not is_number(warning):
        return None
    if warning:
        # Bits 2 and 3 of NVMe's critical warning: the device is unreliable, or its media are read-only.
        severity = "drain" if int(warning) & 0xC else None
        return bad(expected, f"critical warning {int(warning):#x}", severity=severity)
    errors, limit = node.counted("disk", name, "media_errors"), node.limit("nvme_used")
    if errors is not None and errors.since_ack:
        return bad(expected, f"{errors.since_ack:g} new media errors since {errors.base_time}")
    if is_number(used) and limit and used >= limit:
        return bad(expected, f"{used} % of its endurance used")
    return None


UNITS = (("latency_ms", "ms a read"), ("read_mb_s", "MB/s"))


@rule("storage.path")
def paths(node: Node) -> Answer:
    """Judge the speed of the declared paths. Passive checks do not measure it."""
    results: List[RuleResult] = []
    for path, want in sorted(as_map(as_map(node.baseline.get("storage")).get("paths")).items()):
        section, result = node.section("storage", _speed(want))
        row = fetch(section, "paths")
        if isinstance(row, dict) and not is_fault(row):
            row = row.get(path)
        results += about(path, result or _quick(node, row, want))
    return _all(results, "as quick as declared")


def _quick(node: Node, row: Any, want: Any) -> Optional[RuleResult]:
    """Judge the measured speed of one path."""
    expected = _speed(want)
    if row is None:
        remedy = Remedy("Nothing to do: a full check measures it.", PERSON)
        text = "not measured by a passive check"
        return RuleResult(DEFERRED, expected, text, remedy=remedy, blast=NOTHING)
    if is_fault(row) or not isinstance(row, dict):
        return node.absent(row, expected)
    for name, _ in UNITS:
        if want.get(name) and not is_number(row.get(name)):
            return node.absent(row.get(name), expected)
    late = want.get("latency_ms") and row["latency_ms"] > want["latency_ms"]
    slow = want.get("read_mb_s") and row["read_mb_s"] < want["read_mb_s"]
    have = [f"{row[name]:g} {unit}" for name, unit in UNITS if is_number(row.get(name))]
    return ok_if(not late and not slow, expected, " and ".join(have))


def _speed(want: Any) -> str:
    """Return the declared latency and throughput of a path as text."""
    return " and ".join(f"{want[name]} {unit}" for name, unit in UNITS if want.get(name)) or "read"


@rule("host.pressure")
def pressure(node: Node) -> Answer:
    rows = as_map(node.capture.get("pressure"))
    share = node.limit("psi_share")
    if node.elsewhere() or not rows or not share:
        return None
    expected = f"at most {share:.0%} of the time"
    results = []
    for name in ("io", "memory"):
        delta = node.counted("psi", name, "full_us")
        value = fetch(rows, f"{name}.full_avg10")
        # The counter covers the time since the last check; the kernel's own average only ten seconds.
        if delta is not None and delta.value is not None and delta.seconds and delta.seconds >= 30:
            waited, span = delta.value / 1e6 / delta.seconds, delta.span
        elif is_number(value):
            waited, span = value / 100, "in the last 10 s"
        else:
            continue
        if waited > share:
            tasks = [
                f"{row.get('command')} ({row.get('pid')}) in {row.get('wait')}"
                for row in rows_of(node.capture.get("blocked"))
            ]
            text = f"{waited:.0%} waiting for {name}, {span}"
            results.append(bad(expected, text, *tasks[:4], subject=name))
    return results or ok(expected)


@rule("host.blocked")
def blocked(node: Node) -> Answer:
    rows = node.capture.get("blocked")
    if node.elsewhere():
        return None
    if not isinstance(rows, list):
        return node.absent(rows, None)
    # A task may wait for a moment. One that also waited at the last check hangs.
    before = node.deltas.blocked if node.deltas is not None else ()
    texts = [
        f"pid {row.get('pid')} {row.get('command')} in {row.get('wait')}"
        for row in rows_of(rows)
        if in_driver(row) and row.get("pid") in before
    ]
    return ok_if(not texts, "none in the GPU driver", "; ".join(texts[:4]))


SETTLED = 900  # seconds after boot in which a clock may still be on its way


@rule("time.sync")
def clock(node: Node) -> Answer:
    if node.elsewhere() or not as_map(node.capture.get("time_sync")):
        return None
    jump = node.deltas.clock_jump if node.deltas is not None else None
    most = node.limit("clock_jump_s")
    if jump is not None and most and abs(jump) > most:
        way = "forward" if jump > 0 else "back"
        return bad("a steady clock", f"it was set {abs(jump):.0f} s {way} in the last day")
    value, result = node.flag(node.capture, "time_sync.synchronised")
    if value is None:
        return result
    if not value and (node.uptime is None or node.uptime < SETTLED):
        return None
    return ok_if(value, "synchronised", "not synchronised")


@rule("module.loaded")
def modules(node: Node) -> Answer:
    want = as_list(node.baseline.get("modules"))
    results: List[RuleResult] = []
    for name in want:
        section, result = node.section("os", "loaded")
        have = fetch(section, "modules")
        if result is None and not isinstance(have, list):
            result = node.absent(have, "loaded")
        elif result is None:
            # The kernel takes - and _ in names of modules for the same.
            loaded = {str(item).replace("-", "_") for item in have}
            result = ok_if(name.replace("-", "_") in loaded, "loaded", "not loaded")
        results += about(name, result)
    return _all(results, "loaded")


@rule("service.active")
def services(node: Node) -> Answer:
    results: List[RuleResult] = []
    for name in as_list(node.baseline.get("services")):
        rows, result = node.section("services", "active")
        if node.container:  # the services of a container are its own, and not those of the host
            rows, result = as_map(node.capture.get("services")), None
        row = rows.get(name)
        state = fetch(row, "active")
        if result is None and not isinstance(state, str):
            result = node.absent(state, "active")
        elif result is None:
            result = equal("active", state, f"result {fetch(row, 'result')}")
        results += about(name, result)
    return _all(results, "active")


@rule("runtime.cdi_paths")
def cdi(node: Node) -> Answer:
    # With a toolkit of the class, the runtime domain compares the whole spec.
    if as_map(node.document.get("runtime")).get("toolkit"):
        return None
    results: List[RuleResult] = []
    seen = 0
    for row in rows_of(fetch(node.capture, "runtime.cdi")):
        if not is_fault(row) and row.get("gpu"):  # a form that the reader does not know
            unread = node.absent(row.get("error"), "all paths are there")
            results += about(str(row.get("file")), unread)
        if is_fault(row) or "gpu" not in str(row.get("kind")):
            continue
        seen += 1
        missing = as_list(row.get("missing"))
        if missing:
            text = f"{len(missing)} missing: {', '.join(map(str, missing[:3]))}"
            results.append(bad("all paths are there", text, subject=str(row.get("file"))))
        elif row.get("wrong"):
            text = "; ".join(map(str, as_list(row["wrong"])[:3]))
            results.append(
                bad("the devices are as it has them", text, subject=str(row.get("file")))
            )
    return wrong_or_ok(results, seen, "all paths are there")
