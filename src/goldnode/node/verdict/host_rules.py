"""Rules about the host of the GPUs: processors, memory, network, storage, time, services. Most of them judge
only declared values.
"""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED, MATCH
from ..state.kinds import NOTHING
from ..state.remedy import COMMAND, PERSON, Remedy
from .hardware import in_driver
from .rules import Answer, Node, RuleResult, as_list, as_map, bad, equal, fetch, is_number, ok, rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, List, Optional


def _about(subject: str, result: Optional[RuleResult]) -> List[RuleResult]:
    return [] if result is None else [result._replace(subject=subject)]


def _all(found: List[RuleResult], expected: str) -> Answer:
    """Return the mismatches, or one match for all."""
    wrong = [result for result in found if result.outcome != MATCH]
    return wrong or (ok(expected, f"{len(found)} as declared") if found else None)


@rule("cpu.layout")
def cpu(node: Node) -> Answer:
    want = as_map(node.baseline.get("cpu"))
    if not want:
        return None
    text = ", ".join(f"{key} {_text(value)}" for key, value in sorted(want.items()))
    have, result = node.section("cpu", text)
    if result is not None:
        return result
    for key in want:
        if not isinstance(have.get(key), (int, bool)):
            return node.absent(have.get(key), text)
    return equal(text, ", ".join(f"{key} {_text(have[key])}" for key in sorted(want)))


def _text(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


@rule("memory.total")
def memory(node: Node) -> Answer:
    want = as_map(node.baseline.get("memory"))
    if not is_number(want.get("total_gib")):
        return None
    share = (
        want["tolerance"] if is_number(want.get("tolerance")) else node.limit("memory_tolerance", 0)
    )
    expected = f"{want['total_gib']} GiB, within {share:.1%}"
    have, result = node.section("memory", expected)
    if result is not None:
        return result
    total: Any = have.get("total_mib")
    if not is_number(total):
        return node.absent(total, expected)
    least, most = want["total_gib"] * 1024 * (1 - share), want["total_gib"] * 1024 * (1 + share)
    return ok(expected) if least <= total <= most else bad(expected, f"{total / 1024:.1f} GiB")


@rule("memory.edac")
def edac(node: Node) -> Answer:
    rows = as_map(as_map(node.capture.get("memory")).get("edac"))
    if node.elsewhere() or not rows:
        return None
    most = node.limit("edac_corrected_minute")
    found: List[RuleResult] = []
    for name, row in sorted(rows.items()):
        fault = (
            row
            if is_fault(row)
            else next(
                (item for item in (fetch(row, "ue"), fetch(row, "ce")) if is_fault(item)), None
            )
        )
        if fault is not None:
            found += _about(name, node.absent(fault, None))
            continue
        wrong = fetch(row, "ue")
        corrected = node.counted("edac", name, "ce")
        if is_number(wrong) and wrong > node.limit("edac_uncorrected", 0):
            found.append(
                bad("no uncorrected errors", f"{wrong} uncorrected since boot", subject=name)
            )
        elif (
            most
            and corrected is not None
            and corrected.per_minute is not None
            and corrected.per_minute > most
        ):
            found.append(
                bad(
                    "few corrected errors",
                    f"{corrected.per_minute:.0f} corrected a minute, {corrected.span}",
                    severity="degraded",
                    subject=name,
                )
            )
    return found or ok("no memory errors", f"{len(rows)} memory controllers")


@rule("net.state")
def interfaces(node: Node) -> Answer:
    found: List[RuleResult] = []
    for name in sorted(as_map(node.baseline.get("network"))):
        rows, result = node.section("network", "up")
        row = rows.get(name)
        if result is None and row is None:
            result = bad("up", "no such interface")
        if result is None and (is_fault(row) or not isinstance(fetch(row, "state"), str)):
            result = node.absent(row if is_fault(row) else fetch(row, "state"), "up")
        elif result is None:
            result = (
                ok("up")
                if fetch(row, "state") in ("up", "unknown")
                else bad("up", fetch(row, "state"))
            )
        found += _about(name, result)
    return _all(found, "up")


@rule("net.speed")
def speed(node: Node) -> Answer:
    rows = as_map(node.capture.get("network"))
    return _property(
        node,
        "speed_mbps",
        lambda value: f"{value} Mb/s",
        {name for name, row in rows.items() if fetch(row, "state") == "down"},
    )


@rule("net.mtu")
def mtu(node: Node) -> Answer:
    return _property(node, "mtu", lambda value: str(value))


@rule("net.numa")
def net_numa(node: Node) -> Answer:
    return _property(node, "numa_node", lambda value: f"node {value}")


def _property(node: Node, key: str, say: Any, but: Container[str] = ()) -> Answer:
    found: List[RuleResult] = []
    for name, want in sorted(as_map(node.baseline.get("network")).items()):
        if want.get(key) is None or name in but:
            continue
        expected = say(want[key])
        rows, result = node.section("network", expected)
        if result is None and rows.get(name) is None:
            result = bad(expected, "no such interface")
        value = fetch(rows.get(name), key)
        if result is None:
            result = (
                equal(expected, say(value)) if is_number(value) else node.absent(value, expected)
            )
        found += _about(name, result)
    return _all(found, "as declared")


@rule("net.firmware")
def firmware(node: Node) -> Answer:
    found: List[RuleResult] = []
    for section in ("network", "infiniband"):
        for name, want in sorted(as_map(node.baseline.get(section)).items()):
            if not want.get("firmware"):
                continue
            expected = " or ".join(want["firmware"])
            rows, result = node.section(section, expected)
            value = fetch(rows.get(name), "firmware")
            if result is None and rows.get(name) is None:
                result = bad(expected, "no such device")
            if result is None:
                text = str(value).split()[0] if isinstance(value, str) and value.strip() else None
                known = want["firmware"]
                result = (
                    node.absent(value, expected)
                    if text is None
                    else ok(expected)
                    if value in known or text in known
                    else bad(expected, value)
                )
            found += _about(name, result)
    return _all(found, "as declared")


def _real(node: Node) -> List[Any]:
    """Return (name, row) of interfaces that are hardware, or that the class names."""
    rows = as_map(node.capture.get("network"))
    named = as_map(node.baseline.get("network"))
    return [
        (name, row)
        for name, row in sorted(rows.items())
        if isinstance(row, dict) and not is_fault(row) and (row.get("address") or name in named)
    ]


@rule("net.drops")
def drops(node: Node) -> Answer:
    """Judge dropped frames by rate, never by total: frames of unknown protocols count as dropped."""
    if node.elsewhere():
        return None
    share, rate = node.limit("drops_share"), node.limit("drops_second")
    found, seen = [], 0
    for name, _ in _real(node):
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
            if delta is None or delta.value is None or not delta.seconds or not share or not rate:
                continue
            seen += 1
            if delta.value > packets * share and delta.value / delta.seconds > rate:
                text = f"{key} {delta.value / delta.seconds:.0f} a second, of {packets / delta.seconds:.0f} packets"
                found.append(
                    bad(f"at most {share:.1%} of the packets", text, delta.span, subject=name)
                )
                break
    return found or (ok("few drops") if seen else None)


@rule("net.flaps")
def flaps(node: Node) -> Answer:
    if node.elsewhere():
        return None
    most = node.limit("flaps", 0)
    found, seen = [], 0
    for name, _ in _real(node):
        delta = node.counted("net", name, "carrier_changes")
        if delta is not None and delta.value is not None and not delta.reset:
            seen += 1
            if most and delta.value >= most:
                found.append(
                    bad(
                        "a steady link",
                        f"{delta.value:g} carrier changes, {delta.span}",
                        subject=name,
                    )
                )
    for name, port, row in _ports(node):
        down, symbols = (
            node.counted("ib", name, port, "link_downed"),
            node.counted("ib", name, port, "symbol_error"),
        )
        limit = node.limit("symbol_errors_minute")
        for delta, what, wrong in (
            (down, "times down", bool(down and down.value)),
            (
                symbols,
                "symbol errors",
                bool(
                    symbols
                    and limit
                    and symbols.per_minute
                    and not symbols.first
                    and symbols.per_minute > limit
                ),
            ),
        ):
            if delta is not None and delta.value is not None:
                seen += 1
                if wrong:
                    found.append(
                        bad(
                            "a steady link",
                            f"{delta.value:g} {what}, {delta.span}",
                            subject=f"{name}/{port}",
                        )
                    )
                    break
        if isinstance(row, dict) and any(
            value == (1 << 32) - 1
            for value in as_map(row.get("counters")).values()
            if is_number(value)
        ):
            found.append(
                bad(
                    "counters that count",
                    "a counter is at its maximum (32 bits)",
                    remedy=Remedy("Clear it: `perfquery -x -R` on the node.", COMMAND),
                    subject=f"{name}/{port}",
                )
            )
    return found or (ok("steady links") if seen else None)


def _ports(node: Node) -> List[Any]:
    rows = as_map(node.capture.get("infiniband"))
    return [
        (name, port, value)
        for name, row in sorted(rows.items())
        for port, value in sorted(as_map(fetch(row, "ports")).items())
    ]


@rule("ib.port")
def infiniband(node: Node) -> Answer:
    found: List[RuleResult] = []
    for name, want in sorted(as_map(node.baseline.get("infiniband")).items()):
        rate = want.get("rate_gbps")
        expected = (
            (f"{want['ports']} ports " if want.get("ports") else "")
            + "active"
            + (f" at {rate} Gb/s" if rate else "")
        )
        rows, result = node.section("infiniband", expected)
        if result is not None:
            found += _about(name, result)
            continue
        row = rows.get(name)
        ports = fetch(row, "ports")
        if row is None:
            found.append(bad(expected, "no such device", subject=name))
            continue
        if not isinstance(ports, dict) or is_fault(ports):
            found += _about(name, node.absent(ports, expected))
            continue
        texts, wrong = [], bool(want.get("ports") and len(ports) != want["ports"])
        for port, value in sorted(ports.items()):
            state, have = fetch(value, "state"), fetch(value, "rate_gbps")
            unread = (
                node.absent(state, expected)
                if not isinstance(state, str)
                else node.absent(have, expected)
                if rate and not is_number(have)
                else None
            )
            if unread is not None and (state is None or is_fault(state) or state == "active"):
                found += _about(name, unread)
                break
            wrong = wrong or state != "active" or bool(rate and have != rate)
            texts.append(f"port {port} {state}" + (f" at {have} Gb/s" if is_number(have) else ""))
        else:
            found.append(
                (bad(expected, ", ".join(texts) or "no port") if wrong else ok(expected))._replace(
                    subject=name
                )
            )
    return _all(found, "active, at their rate")


@rule("storage.mount")
def mounts(node: Node) -> Answer:
    found: List[RuleResult] = []
    declared = as_map(as_map(node.baseline.get("storage")).get("mounts"))
    for path, want in sorted(declared.items()):
        expected = (
            "mounted, writable"
            + (f", {want['type']}" if want.get("type") else "")
            + (f", {want['free_gib']} GiB free" if want.get("free_gib") else "")
        )
        section, result = node.section("storage", expected)
        rows = fetch(section, "mounts")
        if result is None and (is_fault(rows) or not isinstance(rows, dict)):
            result = node.absent(rows, expected)
        if result is None:
            row = rows.get(path)
            result = (
                bad(expected, "not mounted") if row is None else _mounted(node, row, want, expected)
            )
        found += _about(path, result)
    root = fetch(as_map(fetch(node.capture, "storage.mounts")), "/")
    if (
        "/" not in declared
        and isinstance(root, dict)
        and not is_fault(root)
        and not node.elsewhere()
    ):
        found += _about("/", _mounted(node, root, {}, "writable, with room"))
    return _all(found, "mounted, writable, with room")


def _mounted(node: Node, row: Any, want: Any, expected: str) -> Optional[RuleResult]:
    if is_fault(row):
        return node.absent(row, expected)
    if want.get("type") and row.get("type") != want["type"]:
        return (
            bad(expected, f"of type {row.get('type')}")
            if isinstance(row.get("type"), str)
            else node.absent(row.get("type"), expected)
        )
    if row.get("readonly") is True:
        return bad(expected, "read-only", f"options {row.get('options')}")
    free, inodes = row.get("free_mib"), row.get("inodes_free_percent")
    if want.get("free_gib"):
        if not is_number(free):
            return node.absent(free, expected)
        if free < want["free_gib"] * 1024:
            return bad(expected, f"{free / 1024:.1f} GiB free", severity="degraded")
    elif is_number(free) and node.limit("space_mib") and free < node.limit("space_mib"):
        return bad(expected, f"{free} MiB free", severity="degraded")
    if (
        is_number(inodes)
        and node.limit("inodes_percent")
        and inodes < node.limit("inodes_percent")
        and is_number(row.get("size_mib"))
    ):
        return bad(expected, f"{inodes:g} % of the inodes free", severity="degraded")
    return ok(expected)


@rule("storage.devices")
def disks(node: Node) -> Answer:
    want = as_map(as_map(node.baseline.get("storage")).get("devices"))
    if not want:
        return None
    models = as_list(want.get("models"))
    expected = (f"{want['count']} disks" if want.get("count") else "disks") + (
        f" of {' or '.join(models)}" if models else ""
    )
    section, result = node.section("storage", expected)
    rows = fetch(section, "devices")
    if result is not None or is_fault(rows) or not isinstance(rows, dict):
        return result or node.absent(rows, expected)
    foreign = [
        f"{name} {fetch(row, 'model')}"
        for name, row in sorted(rows.items())
        if models and fetch(row, "model") not in models
    ]
    if foreign:
        return bad(expected, ", ".join(foreign[:4]))
    return (
        ok(expected)
        if want.get("count") in (None, len(rows))
        else bad(expected, f"{len(rows)} disks: {', '.join(sorted(rows))}")
    )


@rule("storage.health")
def smart(node: Node) -> Answer:
    storage = as_map(node.capture.get("storage"))
    if node.elsewhere():
        return None
    found, seen = [], 0
    for name, row in sorted(as_map(storage.get("devices")).items()):
        warning, used = fetch(row, "smart.critical_warning"), fetch(row, "smart.percentage_used")
        if fetch(row, "ro") is True and fetch(row, "smart") is not None:
            found.append(bad("no warning", "the disk is read-only", severity="drain", subject=name))
            continue
        if isinstance(fetch(row, "state"), str) and fetch(row, "state") not in ("live", "running"):
            found.append(
                bad("no warning", f"state {fetch(row, 'state')}", severity="drain", subject=name)
            )
            continue
        unknown = node.absent(fetch(row, "smart"), None) if is_fault(fetch(row, "smart")) else None
        if unknown is not None:  # a controller that does not answer is no healthy one
            found.append(unknown._replace(expected="no warning", subject=name))
            continue
        errors = node.counted("disk", name, "media_errors")
        limit = node.limit("nvme_used")
        if is_number(warning):
            seen += 1
            if warning:
                found.append(
                    bad(
                        "no warning",
                        f"critical warning {int(warning):#x}",
                        severity="drain" if int(warning) & 0xC else None,
                        subject=name,
                    )
                )
            elif errors is not None and errors.since_ack:
                found.append(
                    bad(
                        "no warning",
                        f"{errors.since_ack:g} new media errors since {errors.base_time}",
                        subject=name,
                    )
                )
            elif is_number(used) and limit and used >= limit:
                found.append(bad("no warning", f"{used} % of its endurance used", subject=name))
    for name, row in sorted(as_map(storage.get("raid")).items()):
        want, have = fetch(row, "devices"), fetch(row, "active")
        seen += 1
        if is_number(want) and is_number(have) and have < want:
            found.append(bad("a whole array", f"{have} of {want} disks", subject=name))
    return found or (ok("no warning", f"{seen} disks and arrays") if seen else None)


@rule("storage.path")
def paths(node: Node) -> Answer:
    """Judge the speed of the declared paths. Passive checks do not measure it."""
    found: List[RuleResult] = []
    for path, want in sorted(as_map(as_map(node.baseline.get("storage")).get("paths")).items()):
        parts = [f"{want['latency_ms']} ms a read"] if want.get("latency_ms") else []
        parts += [f"{want['read_mb_s']} MB/s"] if want.get("read_mb_s") else []
        expected = " and ".join(parts) or "read"
        section, result = node.section("storage", expected)
        row = fetch(section, "paths")
        row = row.get(path) if isinstance(row, dict) and not is_fault(row) else row
        if result is None and row is None:
            result = RuleResult(
                DEFERRED,
                expected,
                "not measured by a passive check",
                blast=NOTHING,
                remedy=Remedy("Nothing to do: a full check measures it.", PERSON),
            )
        if result is None and (is_fault(row) or not isinstance(row, dict)):
            result = node.absent(row, expected)
        if result is None:
            latency, speed = row.get("latency_ms"), row.get("read_mb_s")
            for value, name in ((latency, "latency_ms"), (speed, "read_mb_s")):
                if want.get(name) and not is_number(value):
                    result = result or node.absent(value, expected)
            if result is None:
                slow = bool(want.get("latency_ms") and latency > want["latency_ms"]) or bool(
                    want.get("read_mb_s") and speed < want["read_mb_s"]
                )
                text = " and ".join(
                    [f"{latency:g} ms a read"] * is_number(latency)
                    + [f"{speed:g} MB/s"] * is_number(speed)
                )
                result = bad(expected, text) if slow else ok(expected)
        found += _about(path, result)
    return _all(found, "as quick as declared")


@rule("host.pressure")
def pressure(node: Node) -> Answer:
    rows = as_map(node.capture.get("pressure"))
    share = node.limit("psi_share")
    if node.elsewhere() or not rows or not share:
        return None
    found = []
    for name in ("io", "memory"):
        delta = node.counted("psi", name, "full_us")
        value = fetch(rows, f"{name}.full_avg10")
        if delta is not None and delta.value is not None and delta.seconds and delta.seconds >= 30:
            waited, span = delta.value / 1e6 / delta.seconds, delta.span
        elif is_number(value):
            waited, span = value / 100, "in the last 10 s"
        else:
            continue
        if waited > share:
            tasks = [
                f"{row.get('command')} ({row.get('pid')}) in {row.get('wait')}"
                for row in as_list(node.capture.get("blocked"))
                if isinstance(row, dict)
            ]
            found.append(
                bad(
                    f"at most {share:.0%} of the time",
                    f"{waited:.0%} waiting for {name}, {span}",
                    *tasks[:4],
                    subject=name,
                )
            )
    return found or ok(f"at most {share:.0%} of the time")


@rule("host.blocked")
def blocked(node: Node) -> Answer:
    rows = node.capture.get("blocked")
    if node.elsewhere() or not isinstance(rows, list):
        return None if node.elsewhere() else node.absent(rows, None)
    before = node.deltas.blocked if node.deltas is not None else ()
    stuck = [
        row for row in rows if isinstance(row, dict) and in_driver(row) and row.get("pid") in before
    ]
    texts = [f"pid {row.get('pid')} {row.get('command')} in {row.get('wait')}" for row in stuck]
    return (
        bad("none in the GPU driver", "; ".join(texts[:4]))
        if stuck
        else ok("none in the GPU driver")
    )


SETTLED = 900  # seconds after boot in which a clock may still be on its way


@rule("time.sync")
def clock(node: Node) -> Answer:
    if node.elsewhere() or not as_map(node.capture.get("time_sync")):
        return None
    jump, most = (
        (node.deltas.clock_jump if node.deltas is not None else None),
        node.limit("clock_jump_s"),
    )
    if jump is not None and most and abs(jump) > most:
        return bad(
            "a steady clock",
            f"it was set {abs(jump):.0f} s {'forward' if jump > 0 else 'back'} in the last day",
        )
    value, result = node.flag(node.capture, "time_sync.synchronised")
    if value is None:
        return result
    if not value and (node.uptime is None or node.uptime < SETTLED):
        return None
    return ok("synchronised") if value else bad("synchronised", "not synchronised")


@rule("module.loaded")
def modules(node: Node) -> Answer:
    want = as_list(node.baseline.get("modules"))
    found: List[RuleResult] = []
    for name in want:
        section, result = node.section("os", "loaded")
        have = fetch(section, "modules")
        if result is None and not isinstance(have, list):
            result = node.absent(have, "loaded")
        if result is None:
            result = (
                ok("loaded")
                if name.replace("-", "_") in {str(item).replace("-", "_") for item in have}
                else bad("loaded", "not loaded")
            )
        found += _about(name, result)
    return _all(found, "loaded")


@rule("service.active")
def services(node: Node) -> Answer:
    found: List[RuleResult] = []
    for name in as_list(node.baseline.get("services")):
        rows, result = (
            (as_map(node.capture.get("services")), None)
            if node.container
            else node.section("services", "active")
        )
        row = rows.get(name)
        if result is None:
            state = fetch(row, "active")
            result = (
                equal("active", state, f"result {fetch(row, 'result')}")
                if isinstance(state, str)
                else node.absent(state, "active")
            )
        found += _about(name, result)
    return _all(found, "active")


@rule("runtime.cdi_paths")
def cdi(node: Node) -> Answer:
    if as_map(node.document.get("runtime")).get("toolkit"):
        return None
    rows = as_list(fetch(node.capture, "runtime.cdi"))
    found, seen = [], 0
    for row in rows:
        if not isinstance(row, dict) or is_fault(row) or "gpu" not in str(row.get("kind")):
            continue
        seen += 1
        missing = as_list(row.get("missing"))
        if missing:
            found.append(
                bad(
                    "all paths are there",
                    f"{len(missing)} missing: {', '.join(str(item) for item in missing[:3])}",
                    subject=str(row.get("file")),
                )
            )
    return found or (ok("all paths are there") if seen else None)
