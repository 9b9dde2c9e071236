"""Publication of each check: the metrics file, and the public part of the capture.

node_exporter's textfile collector and other readers use the metrics file. Only root can read the full
capture.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from ..ground import boot, gate_files, verdict_files
from ..ground.host import boot_identity
from ..ground.json_lines import as_list, as_map
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

    from ..ground.host import Host

METRICS = "/run/goldnode/metrics.prom"
PUBLIC = "/run/goldnode/public.json"  # schema goldnode.public/1, see :func:`public`
SCHEMA = "goldnode.public/1"
# Metadata that passes of `goldnode-node follow` have verified, and the root of a trusted place.
FOLLOWED, FIRST_ROOT = "/var/lib/goldnode/follow/metadata", "/etc/goldnode/follow/root.json"
BIGGEST = 64 << 20  # maximum size of a file to read


def publish(
    host: Host, document: Optional[Mapping[str, Any]], verdict: Any, captured: Any
) -> List[str]:
    """Write the metrics of a new verdict. Return messages about problems; never raises.

    :param document: class document of the node; None if it is unreadable, then the paths do not change.
    :param captured: the capture behind the verdict; None if it failed, then hardware has no metrics.
    """
    from . import metrics  # start-up time: a node without metrics does not need it

    try:
        fault = current.fault(
            verdict, boot_identity(host), boot.uptime(host.text("/proc/uptime") or "")
        )
        content = metrics.text(
            verdict,
            captured,
            gate=load(host, gate_files.STATE),
            fault=fault,
            root_expires=root_expires(host),
        ).encode("utf-8", "replace")
    # The verdict counts even without metrics; monitoring notices a stale file by its time.
    except Exception as problem:
        return [f"metrics: they cannot be made: {type(problem).__name__}: {problem}"]
    messages = []
    try:
        host.write(PUBLIC, json.dumps(public(captured), separators=(",", ":")).encode())
        host.write(METRICS, content)
    except OSError as problem:
        messages = [f"metrics: {METRICS} cannot be written: {problem.strerror}"]
        for name in (PUBLIC, METRICS):  # those of an earlier check must not outlive its verdict
            with suppress(OSError):
                host.remove(name)
    try:
        return messages + _collected(host, document, content)
    except OSError as problem:
        return [*messages, f"metrics: the textfile cannot be written: {problem}"]


def root_expires(host: Host) -> Optional[float]:
    """Return when the root of the followed channel expires, seconds since 1970; None for a node
    that follows none.

    A pass stores the newest root that it has verified. Before the first pass, the site's own file
    counts.
    """
    root = load(host, f"{FOLLOWED}/root.json") or load(host, FIRST_ROOT)
    return boot.seconds(as_map(as_map(root).get("signed")).get("expires"))


def _collected(host: Host, document: Optional[Mapping[str, Any]], content: bytes) -> List[str]:
    """Write the copy in the collector's directory. Remove the one that an earlier class has requested."""
    before = (host.text(verdict_files.LAST_TEXTFILE) or "").strip()
    folder = ((document or {}).get("serve") or {}).get("textfile")
    wanted = f"{str(folder).rstrip('/')}/{verdict_files.TEXTFILE}" if folder else ""
    if document is None:  # a class that cannot be read has not changed its mind
        wanted = before
    if before and before != wanted and os.path.basename(before) == verdict_files.TEXTFILE:
        host.remove(before)
        host.remove(verdict_files.LAST_TEXTFILE)
    if not wanted:
        return []
    if not host.is_dir(os.path.dirname(wanted)):
        return [
            f"metrics: there is no directory {os.path.dirname(wanted)}; node_exporter's textfile collector "
            "reads nothing of this node"
        ]
    if before != wanted:
        host.write(verdict_files.LAST_TEXTFILE, f"{wanted}\n".encode())
    host.write(wanted, content)
    return []


def public(captured: Any) -> Dict[str, Any]:
    """Return the public part of a capture.

    It has no serial numbers, machine ids, network addresses, processes, command lines, or log lines.
    """
    capture = as_map(captured)
    names = ("time", "source", "simulated", "driver", "gpu_error", "devices")
    shown = _picked(capture, names)
    shown["schema"] = SCHEMA
    shown["identity"] = _picked(capture.get("identity"), ("hostname", "class", "image_id"))
    shown["os"] = {"kernel": _picked(as_map(capture.get("os")).get("kernel"), ("running",))}
    shown["cpu"] = _picked(capture.get("cpu"), ("architecture", "model", "flags"))
    shown["infiniband"] = _rows(capture.get("infiniband"), "firmware")
    gpus = capture.get("gpus")
    if isinstance(gpus, list):
        gpus = [
            {key: value for key, value in gpu.items() if key not in PRIVATE}
            for gpu in gpus
            if isinstance(gpu, dict)
        ]
    if gpus is not None:
        shown["gpus"] = gpus
    shown["pci"] = _rows(capture.get("pci"), "aer")
    shown["memory"] = _picked(capture.get("memory"), ("edac",))
    rows = as_list(as_map(capture.get("events")).get("rows"))
    shown["events"] = {"rows": [_picked(row, ("kind", "code", "count")) for row in rows]}
    return shown


PRIVATE = ("serial", "board_part", "processes", "settings")


def _picked(value: Any, names: Sequence[str]) -> Dict[str, Any]:
    """Return these keys of an object; empty for anything else."""
    row = as_map(value)
    return {name: row[name] for name in names if name in row}


def _rows(section: Any, name: str) -> Dict[str, Any]:
    """Return one key of each object in a section of the capture; empty for one that was not read."""
    return {key: _picked(row, (name,)) for key, row in as_map(section).items()}


def load(host: Host, name: str) -> Any:
    """Return one of our JSON files; None if it is missing, damaged, or larger than any we write."""
    try:
        if os.stat(host.located(name)).st_size > BIGGEST:
            return None
        return json.loads(host.text(name) or "null")
    except (OSError, ValueError, RecursionError):
        return None
