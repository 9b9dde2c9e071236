"""Two captures one second apart, reduced to the input of :mod:`checks`.

Each has GPUs, PCI errors, pressure, blocked tasks and network. Only the second has the kernel log.
"""

from __future__ import annotations

import re
import time

from ..effective import dpkg
from ..ground.boot import uptime
from ..ground.host import Host, Json
from ..ground.json_lines import as_text
from ..probe import Context, binding, events, gpus, machine, network, pci
from ..probe.values import Files, is_fault, unread
from ..state import family
from . import running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple


# Seconds between the samples.
INTERVAL = 1.0
# A driver that initialises eight GPUs again took 25 s (Azure/AgentBaker 2829). People do not wait much
# longer.
ANSWER = 40.0
TASK_SECONDS = 0.3  # seconds for the states of all tasks
GPU_SECTIONS = ("gpus", "binding", "gpu_error", "driver", "devices", "nvswitches", "simulated")


def take(host: Host, document: Optional[Mapping[str, Any]] = None) -> Tuple[Json, Json]:
    """Return the first and the second sample.

    Reads only. Takes about two seconds if the driver answers.
    """
    asked = _document(document or {})
    first = _sample(host, asked, None)
    at, begun = first.pop("at"), time.monotonic()
    workloads = running.read(Files(host.root))
    time.sleep(max(0.0, INTERVAL - (time.monotonic() - begun)))
    # Do not ask a driver again that failed to answer: it would only cost the time limit twice.
    second = _sample(host, asked, first if is_fault(first.get("gpu_error")) else None)
    later = second.pop("at") - at
    if first["uptime"] is not None:  # the monotonic clock is finer than /proc/uptime
        second["uptime"] = first["uptime"] + later
    second["workloads"] = workloads
    context = Context(host, asked, None, True)
    context.captured = second
    second.update(_safely("events", events.read, context))
    second.update(_safely("altered", altered, context))
    return first, second


def altered(context: Context) -> Json:
    """Return {altered: [{package, path, why}]}: files of the driver that are missing, or changed in this boot.

    `dpkg --verify` reads all files, which takes seconds; older changes are known to the check of the node.
    """
    names: Dict[str, List[str]] = {}
    for name in context.files.names(f"{dpkg.DATABASE}/info"):
        package, _, architecture = name[: -len(".md5sums")].partition(":")
        if name.endswith(".md5sums") and family.of_driver(package):
            names.setdefault(architecture, []).append(package)
    match = re.search(r"^btime (\d+)$", _text(context.files, "/proc/stat"), re.MULTILINE)
    since = float(match[1]) if match else 0.0
    rows = [
        row._asdict()
        for architecture, packages in names.items()
        for row in dpkg.altered(
            context.host, packages, architecture=architecture, known={}, since=since
        )
    ]
    return {"altered": rows}


def _document(document: Mapping[str, Any]) -> Json:
    """Return the class document for the readers: without a policy, so that they skip GPU settings.

    The time limit for the GPUs' answer is at most :data:`ANSWER`.
    """
    health = dict(document.get("health") or {})
    limits = dict(health.get("limits") or {})
    stated = limits.get("gpu_answer_s")
    limits["gpu_answer_s"] = ANSWER
    if isinstance(stated, (int, float)) and stated > 0:
        limits["gpu_answer_s"] = min(stated, ANSWER)
    return {
        **document,
        "class": document.get("class") or "none",
        "policy": None,
        "health": {**health, "limits": limits},
    }


def _sample(host: Host, document: Json, earlier: Optional[Json]) -> Json:
    context = Context(host, document, None, True)
    captured = context.captured
    if earlier is None:
        gpus.begin(context)
    captured.update(
        schema="goldnode.capture/1",
        source="live",
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    captured.update(_safely("pci", pci.read, context))
    if earlier is None:
        captured.update(_safely("gpus", gpus.read, context))
        captured.update(_safely("binding", binding.read, context))
    else:
        captured.update({name: earlier[name] for name in GPU_SECTIONS if name in earlier})
    # Read counters last, close together and right before the clock, so that rates are exact.
    captured.update(_safely("network", network.read, context))
    files = context.files
    tasks, unseen = machine.blocked(files, TASK_SECONDS)
    # Its first line is needed; the line of interrupts alone may have many kilobytes.
    stat = files.text("/proc/stat", 1 << 20)
    captured.update(
        blocked=tasks,
        blocked_unseen=unseen,
        pressure=machine.pressure(files),
        cpu_time=cpu_time(stat),
        uptime=uptime(_text(files, "/proc/uptime")),
        at=time.monotonic(),
    )
    captured["identity"] = {"boot_id": files.text("/proc/sys/kernel/random/boot_id")}
    return captured


def _text(files: Files, name: str) -> str:
    return as_text(files.text(name, 1 << 20)) or ""


def _safely(name: str, reader: Any, context: Context) -> Json:
    try:
        return dict(reader(context))
    # One failed reader must not take down the others.
    except Exception as problem:
        return {name: unread(f"the reader failed: {type(problem).__name__}: {problem}")}


def cpu_time(text: Any) -> Any:
    """Return {iowait, total} of all CPUs in ticks, from the first line of /proc/stat.

    The fifth value is the time spent waiting for storage (proc_stat(5)). Faults pass through.
    """
    if not isinstance(text, str):
        return text
    words = text.partition("\n")[0].split()
    values = [int(word) for word in words[1:9] if word.isdigit()]
    if len(values) < 8 or words[0] != "cpu":
        return unread("/proc/stat does not begin with the times of all CPUs")
    return {"iowait": values[4], "total": sum(values)}
