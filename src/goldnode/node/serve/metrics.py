"""Metrics of a verdict and its capture in Prometheus' text format (version 0.0.4). Pure.

`goldnode_finding` is 0 for a match, 1 suppressed or deferred, 2 not exposed or not verified here, 3
could not read (and any outcome unknown to this program), 4 mismatch. Missing values and faults of
the capture have no sample.

The file has the time of the last check but not its age, because the content of a file does not age. Use
`time() - goldnode_last_run_timestamp_seconds`. Samples about simulated hardware have the label
`simulated="true"`.
"""

from __future__ import annotations

from ..ground import verdict_files
from ..ground.boot import seconds
from ..ground.json_lines import as_list, as_map
from ..ground.text import spaced
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

    Labels = Dict[str, Any]
    Sample = Tuple[str, Labels, Any]

LONGEST = 200  # maximum length of a label value
WORST = 3
OUTCOMES = {
    "match": 0,
    "suppressed": 1,
    "deferred": 1,
    "not_exposed": 2,
    "not_verified_here": 2,
    "could_not_read": WORST,
    "mismatch": 4,
}

# name -> (type, help), in the order of the output.
METRICS = {
    "goldnode_info": (
        "gauge",
        "Identity of the node: class and its digest, lock, stack, image, driver. Always 1.",
    ),
    "goldnode_simulated": ("gauge", "1 when any of the hardware is simulated."),
    "goldnode_last_run_timestamp_seconds": (
        "gauge",
        "When the last check was made, seconds since 1970.",
    ),
    "goldnode_verdict_limit_seconds": (
        "gauge",
        "For how long a verdict counts; an older one does not count.",
    ),
    "goldnode_verdict_holds": (
        "gauge",
        "1 when the verdict counts: of this boot, of the class of the node, and not too old.",
    ),
    "goldnode_verdict_age_seconds": (
        "gauge",
        "Age of the verdict when this was asked (on the endpoint only).",
    ),
    "goldnode_verdict_exit_code": (
        "gauge",
        "0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class.",
    ),
    "goldnode_findings": ("gauge", "Findings of the verdict by outcome."),
    "goldnode_finding": (
        "gauge",
        "0 match, 1 suppressed or deferred, 2 not exposed or not verified here, 3 could not read, 4 "
        "mismatch.",
    ),
    "goldnode_gate_open": ("gauge", "1 while the gate lets work start."),
    "goldnode_drained": (
        "gauge",
        "1 while this node is drained by goldnode, 0 while it is not or another party has drained it.",
    ),
    "goldnode_follow_root_expires_timestamp_seconds": (
        "gauge",
        "When the root of the channel that this node follows expires, seconds since 1970.",
    ),
    "goldnode_return_tests_outstanding": (
        "gauge",
        "Jobs that have to pass before the node returns, by cause; for classes that declare such tests.",
    ),
    "goldnode_gpu_info": ("gauge", "A GPU: its address, name, PCI id, VBIOS. Always 1."),
    "goldnode_gpu_lost": ("gauge", "1 when the GPU is listed and cannot be reached."),
    "goldnode_gpu_recovery_action_info": (
        "gauge",
        "The recovery that the driver asks for. Always 1.",
    ),
    "goldnode_gpu_ecc_errors_total": (
        "counter",
        "ECC errors; volatile ones since the driver was loaded.",
    ),
    "goldnode_gpu_remapped_rows": ("gauge", "Rows of memory that were remapped."),
    "goldnode_gpu_remap_pending": ("gauge", "1 when a remapping waits for a reset of the GPU."),
    "goldnode_gpu_remap_failed": ("gauge", "1 when a row could not be remapped."),
    "goldnode_gpu_retired_pages": ("gauge", "Pages of memory that were retired."),
    "goldnode_gpu_pcie_replays_total": ("counter", "Replays on the PCIe link of the GPU."),
    "goldnode_gpu_pcie_generation": (
        "gauge",
        "Generation of the PCIe link now; a GPU at rest lowers it.",
    ),
    "goldnode_gpu_pcie_lanes": ("gauge", "Lanes of the PCIe link now."),
    "goldnode_gpu_temperature_celsius": ("gauge", "Temperature by sensor."),
    "goldnode_gpu_power_watts": ("gauge", "Power drawn."),
    "goldnode_gpu_power_limit_watts": ("gauge", "Power limit that is set."),
    "goldnode_gpu_clock_hertz": ("gauge", "Clocks now."),
    "goldnode_gpu_memory_bytes": ("gauge", "Memory of the GPU, in all and in use."),
    "goldnode_gpu_utilization_ratio": (
        "gauge",
        "Share of time in which the GPU or its memory worked.",
    ),
    "goldnode_gpu_throttled": ("gauge", "1 for each reason for which clocks are lowered now."),
    "goldnode_gpu_violation_seconds_total": (
        "counter",
        "Time for which clocks were lowered, by reason.",
    ),
    "goldnode_gpu_nvlink_links": ("gauge", "NVLinks by state."),
    "goldnode_gpu_nvlink_errors_total": ("counter", "Errors of all NVLinks of the GPU, by kind."),
    "goldnode_pci_aer_errors_total": (
        "counter",
        "Errors that PCIe's advanced error reporting has counted, by function and severity.",
    ),
    "goldnode_memory_errors_total": (
        "counter",
        "Errors that the memory controllers have counted since boot (EDAC), corrected and uncorrected.",
    ),
    "goldnode_events_total": (
        "counter",
        "Events of the kernel's log since boot (Xid, bus errors …) by kind and code.",
    ),
}


def text(
    verdict: Any,
    captured: Any = None,
    gate: Any = None,
    fault: Optional[str] = None,
    age: Optional[float] = None,
    *,
    root_expires: Optional[float] = None,
) -> str:
    """Return the metrics of one node.

    :param fault: why the verdict does not count (:func:`verdict.current.load`). Its findings then
        have no samples, and its exit code is 3.
    :param age: seconds since the check; only for the endpoint, which computes it per request.
    :param root_expires: when the root of the followed channel expires, seconds since 1970.
    """
    verdict = as_map(verdict)
    values: Dict[str, Dict[str, Any]] = {name: {} for name in METRICS}
    # cache of escaped labels: all samples of a GPU have the same ones
    written: Dict[Tuple[str, str], str] = {}
    samples = list(_samples(verdict, captured, gate, fault, age))
    samples.append(("goldnode_follow_root_expires_timestamp_seconds", {}, root_expires))
    for name, labels, value in samples:
        number = _number(value)
        if number is None:
            continue
        parts = []
        for label, content in labels.items():
            if content is not None:
                pair = (label, content if isinstance(content, str) else str(content))
                part = written.get(pair)
                if part is None:
                    part = written[pair] = f'{label}="{escaped(pair[1])}"'
                parts.append(part)
        key = ",".join(parts)
        # Prometheus rejects the whole file because of one duplicate sample. Keep the worse of two.
        values[name][key] = max(number, values[name].get(key, number))
    lines: List[str] = []
    for name, (kind, help_text) in METRICS.items():
        if values[name]:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{{{key}}} {value}" if key else f"{name} {value}"
                for key, value in values[name].items()
            ]
    return "\n".join(lines) + "\n"


def escaped(value: Any) -> str:
    """Return the value of a label: without control characters, truncated, and escaped for the format."""
    text = str(value)
    if len(text) <= LONGEST and text.isprintable() and "\\" not in text and '"' not in text:
        return text  # fast path for nearly all values
    # Cut first: a value may have megabytes. Twice and more of the limit, because the end is marked.
    shown = spaced(text[: 4 * LONGEST]).encode("utf-8", "replace").decode("utf-8")
    if len(shown) > LONGEST:
        shown = shown[: LONGEST - 1] + "…"
    return shown.replace("\\", "\\\\").replace('"', '\\"')


def _samples(
    verdict: Mapping[str, Any], captured: Any, gate: Any, fault: Optional[str], age: Optional[float]
) -> Iterator[Sample]:
    capture = as_map(captured)
    simulated = verdict.get("simulated") is True or capture.get("simulated") is True
    mark: Labels = {"simulated": "true"} if simulated else {}
    driver = as_map(capture.get("driver"))
    identity = as_map(capture.get("identity"))
    info = {
        name: _text(verdict.get(name)) for name in ("class", "class_digest", "lock_digest", "stack")
    }
    more = {
        "image_id": _text(identity.get("image_id")),
        "driver": _text(driver.get("loaded")),
        "cuda": _text(driver.get("cuda")),
    }
    yield "goldnode_info", {**info, **more, **mark}, 1
    yield "goldnode_simulated", {}, simulated
    yield "goldnode_last_run_timestamp_seconds", {}, seconds(verdict.get("time"))
    yield "goldnode_verdict_limit_seconds", {}, verdict_files.LIMIT
    yield "goldnode_verdict_holds", {}, fault is None
    yield "goldnode_verdict_age_seconds", {}, age
    code = verdict.get("exit_code")
    yield (
        "goldnode_verdict_exit_code",
        mark,
        code if fault is None and code in (0, 1, 2, 3, 4) else current.UNKNOWN,
    )
    if fault is None:
        yield from _findings(verdict, mark)
    state = as_map(gate)
    yield (
        "goldnode_gate_open",
        {"mode": _text(state.get("mode"))},
        state.get("open") if isinstance(state.get("open"), bool) else None,
    )
    drain = state.get("told")
    if state:
        yield "goldnode_drained", {}, isinstance(drain, dict) and drain.get("ours") is True
    for row in as_list(as_map(state.get("tests")).get("causes")):
        row = as_map(row)
        yield (
            "goldnode_return_tests_outstanding",
            {"cause": _text(row.get("cause")), **mark},
            len(as_list(row.get("outstanding"))),
        )
    for gpu in as_list(capture.get("gpus")):
        if isinstance(gpu, dict):
            yield from _gpu(gpu, mark)
    for address, function in as_map(capture.get("pci")).items():
        aer = as_map(as_map(function).get("aer"))
        for severity in ("correctable", "nonfatal", "fatal"):
            yield (
                "goldnode_pci_aer_errors_total",
                {"address": address, "severity": severity, **mark},
                aer.get(severity),
            )
    for controller, row in as_map(as_map(capture.get("memory")).get("edac")).items():
        for kind, name in (("corrected", "ce"), ("uncorrected", "ue")):
            labels = {"controller": controller, "kind": kind, **mark}
            yield "goldnode_memory_errors_total", labels, as_map(row).get(name)
    events: Dict[Tuple[str, str], int] = {}
    for row in as_list(as_map(capture.get("events")).get("rows")):
        row = as_map(row)
        count = row.get("count", 1)
        if isinstance(row.get("kind"), str) and isinstance(count, int) and count > 0:
            code = row.get("code")
            key = (row["kind"], str(code) if isinstance(code, int) else "")
            events[key] = events.get(key, 0) + count
    for (kind, number), count in events.items():
        yield "goldnode_events_total", {"kind": kind, "code": number, **mark}, count


def _findings(verdict: Mapping[str, Any], mark: Labels) -> Iterator[Sample]:
    counts: Dict[str, int] = {}
    for finding in as_list(verdict.get("findings")):
        if not isinstance(finding, dict):
            continue
        outcome = str(finding.get("outcome"))
        counts[outcome] = counts.get(outcome, 0) + 1
        labels = {
            "id": finding.get("id"),
            "subject": finding.get("subject") or "",
            "severity": finding.get("severity"),
        }
        yield "goldnode_finding", {**labels, **mark}, OUTCOMES.get(outcome, WORST)
    for outcome in sorted({*OUTCOMES, *counts}):
        yield "goldnode_findings", {"outcome": outcome, **mark}, counts.get(outcome, 0)


def _gpu(gpu: Mapping[str, Any], mark: Labels) -> Iterator[Sample]:
    own: Labels = {
        "gpu": _text(gpu.get("address")) or _text(gpu.get("index")) or "unknown",
        "uuid": _text(gpu.get("uuid")),
        **mark,
    }

    def one(metric: str, value: Any, /, **labels: str) -> Sample:
        return f"goldnode_gpu_{metric}", {**own, **labels}, value

    names = ("name", "pci_id", "vbios", "vendor")
    yield one(
        "info", 1, **{name: str(gpu[name]) for name in names if _text(gpu.get(name)) is not None}
    )
    yield one("lost", gpu.get("lost") if isinstance(gpu.get("lost"), bool) else None)
    if _text(gpu.get("recovery_action")) is not None:
        yield one("recovery_action_info", 1, action=str(gpu["recovery_action"]))
    ecc = as_map(gpu.get("ecc"))
    for scope in ("volatile", "aggregate"):
        for kind in ("corrected", "uncorrected"):
            yield one("ecc_errors_total", as_map(ecc.get(scope)).get(kind), scope=scope, kind=kind)
    rows = as_map(gpu.get("remapped_rows"))
    for kind in ("correctable", "uncorrectable"):
        yield one("remapped_rows", rows.get(kind), kind=kind)
    yield one("remap_pending", rows.get("pending"))
    yield one("remap_failed", rows.get("failure"))
    pages = as_map(gpu.get("retired_pages"))
    for kind in ("single_bit", "double_bit"):
        yield one("retired_pages", pages.get(kind), kind=kind)
    pcie = as_map(gpu.get("pcie"))
    yield one("pcie_replays_total", pcie.get("replay"))
    yield one("pcie_generation", as_map(pcie.get("gen")).get("current"))
    yield one("pcie_lanes", as_map(pcie.get("width")).get("current"))
    temperature = as_map(gpu.get("temperature"))
    for sensor in ("gpu", "memory"):
        yield one("temperature_celsius", temperature.get(f"{sensor}_c"), sensor=sensor)
    power = as_map(gpu.get("power"))
    yield one("power_watts", power.get("draw_w"))
    yield one("power_limit_watts", power.get("limit_w"))
    for clock in ("graphics", "sm", "memory"):
        yield one(
            "clock_hertz",
            _times(as_map(as_map(gpu.get("clocks")).get("current")).get(f"{clock}_mhz"), 10**6),
            clock=clock,
        )
    for kind in ("total", "used"):
        yield one(
            "memory_bytes", _times(as_map(gpu.get("memory")).get(f"{kind}_mib"), 1 << 20), kind=kind
        )
    for kind in ("gpu", "memory"):
        yield one(
            "utilization_ratio", _times(as_map(gpu.get("utilization")).get(kind), 0.01), kind=kind
        )
    throttle = as_map(gpu.get("throttle"))
    for reason in as_list(throttle.get("active")):
        yield one("throttled", 1, reason=str(reason))
    for reason, value in as_map(throttle.get("violation_ns")).items():
        yield one("violation_seconds_total", _times(value, 1e-9), reason=str(reason))
    yield from _nvlink(as_list(as_map(gpu.get("nvlink")).get("links")), one)


def _nvlink(links: List[Any], one: Any) -> Iterator[Sample]:
    states: Dict[str, int] = {}
    errors: Dict[str, int] = {}
    for link in links:
        link = as_map(link)
        if isinstance(link.get("active"), bool):
            state = "active" if link["active"] else "inactive"
            states[state] = states.get(state, 0) + 1
        for kind, value in as_map(link.get("errors")).items():
            if isinstance(value, int):
                errors[str(kind)] = errors.get(str(kind), 0) + value
    for state in ("active", "inactive") if states else ():
        yield one("nvlink_links", states.get(state, 0), state=state)
    for kind, value in errors.items():
        yield one("nvlink_errors_total", value, kind=kind)


def _number(value: Any) -> Any:
    """Return a value as it is printed; None if it is not a number."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 64 else None
    return round(value, 9) if isinstance(value, float) and abs(value) < 1e300 else None


def _times(value: Any, factor: float) -> Any:
    return (
        value * factor if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    )


def _text(value: Any) -> Optional[str]:
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
