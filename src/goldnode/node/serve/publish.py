"""Publication of each check: the metrics file for node_exporter's textfile collector and other readers, and
the public part of the capture, which itself is root's.
"""

from __future__ import annotations

import os

from .. import boot
from .. import quickjson as json
from ..host import boot_identity
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

    from ..host import Host

METRICS = "/run/goldnode/metrics.prom"
PUBLIC = "/run/goldnode/public.json"  # schema goldnode.public/1: see :func:`public`
SCHEMA = "goldnode.public/1"
GATE = "/run/goldnode/gate.json"
NAME = "goldnode.prom"  # in the collector's directory
MEMORY = "/var/lib/goldnode/textfile"  # where the last one was written, so that it goes when the class names another place
BIGGEST = 64 << 20  # bytes of a file that is read here


def publish(host: Host, document: Optional[Mapping[str, Any]], verdict: Any, captured: Any) -> List[str]:
    """Write the metrics of a verdict that was just made. Returns what there is to tell; never raises for what the node is like.

    :param document: the node's class document, None where it cannot be read: then the places stay what they were.
    :param captured: the capture it was made from; None where none could be made: then nothing is told of the hardware.
    """
    from . import metrics

    try:
        fault = current.fault(verdict, boot_identity(host), boot.uptime(host.text("/proc/uptime") or ""))
        content = metrics.text(verdict, captured, load(host, GATE), fault).encode("utf-8", "replace")
        host.write(PUBLIC, json.dumps(public(captured), separators=(",", ":")).encode())
        host.write(METRICS, content)
    except (
        Exception
    ) as problem:  # whatever is wrong with the numbers, the verdict stands; and a file that grows old is seen
        return [f"metrics: {METRICS} cannot be written: {type(problem).__name__}: {problem}"]
    try:
        return _collected(host, document, content)
    except OSError as problem:
        return [f"metrics: the textfile cannot be written: {problem}"]


def _collected(host: Host, document: Optional[Mapping[str, Any]], content: bytes) -> List[str]:
    """The copy in the collector's directory, and none where an earlier class wanted one."""
    before = (host.text(MEMORY) or "").strip()
    if document is None:
        wanted = before
    else:
        folder = (document.get("serve") or {}).get("textfile")
        wanted = f"{str(folder).rstrip('/')}/{NAME}" if folder else ""
    if before and before != wanted and os.path.basename(before) == NAME:
        host.remove(before)
        host.remove(MEMORY)
    if not wanted:
        return []
    if not host.is_dir(os.path.dirname(wanted)):
        return [
            f"metrics: there is no directory {os.path.dirname(wanted)}; node_exporter's textfile collector reads nothing of this node"
        ]
    if before != wanted:
        host.write(MEMORY, f"{wanted}\n".encode())
    host.write(wanted, content)
    return []


def public(captured: Any) -> Dict[str, Any]:
    """Return the public part of a capture: without serial numbers, machine ids, network addresses, processes,
    command lines, and lines of a log.
    """
    capture = captured if isinstance(captured, dict) else {}
    found = {
        name: capture[name]
        for name in ("time", "source", "simulated", "driver", "gpu_error", "devices")
        if name in capture
    }
    found["schema"] = SCHEMA
    found["identity"] = _picked(capture.get("identity"), ("hostname", "class", "image_id"))
    kernel = capture["os"].get("kernel") if isinstance(capture.get("os"), dict) else None
    found["os"] = {"kernel": _picked(kernel, ("running",))}
    gpus = capture.get("gpus")
    if isinstance(gpus, list):
        gpus = [
            {key: value for key, value in gpu.items() if key not in PRIVATE}
            for gpu in gpus
            if isinstance(gpu, dict)
        ]
    if gpus is not None:
        found["gpus"] = gpus
    pci = capture.get("pci")
    found["pci"] = (
        {address: _picked(row, ("aer",)) for address, row in pci.items()}
        if isinstance(pci, dict) and "fault" not in pci
        else {}
    )
    rows = capture["events"].get("rows") if isinstance(capture.get("events"), dict) else None
    found["events"] = {
        "rows": [_picked(row, ("kind", "code", "count")) for row in rows] if isinstance(rows, list) else []
    }
    return found


PRIVATE = ("serial", "board_part", "processes", "settings")


def _picked(value: Any, names: Sequence[str]) -> Dict[str, Any]:
    return {name: value[name] for name in names if name in value} if isinstance(value, dict) else {}


def load(host: Host, name: str) -> Any:
    """Return one of our JSON files; None if it is missing, torn, or larger than any we write."""
    try:
        if os.stat(host.located(name)).st_size > BIGGEST:
            return None
        return json.loads(host.text(name) or "null")
    except (OSError, ValueError, RecursionError):
        return None
