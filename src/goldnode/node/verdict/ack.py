"""Acknowledgement of counters and findings: what a check has stored counts as known from now on."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

from . import deltas, events
from .hardware import gpu_key
from .rules import as_list, as_map

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional


# Which counters belong to which finding.
COUNTED = {
    "gpu.ecc.aggregate": "/ecc.aggregate.uncorrected",
    "gpu.ecc.corrected": ".corrected",
    "pcie.aer": "/aer.",
    "storage.health": "/media_errors",
    "memory.edac": "/ce",
}
ALL = "*"


def timestamp() -> str:
    """Return the present time, as it is stored with an acknowledgement."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def settle(
    memory: Dict[str, Any],
    capture: Mapping[str, Any],
    name: str = ALL,
    subject: Optional[str] = None,
) -> Any:
    """Update `memory`, and return the names of the items that were open and are now settled.

    Changes `memory` only.
    """

    def about(text: Optional[str]) -> bool:
        return subject is None or fnmatchcase(text or "", subject)

    done = []
    lasting = as_map(memory.get("standing"))
    for key in list(lasting):
        identity, _, what = key.partition("|")
        if fnmatchcase(identity, name) and about(what):
            del lasting[key]
            done.append(f"{identity} {what}".strip())
    # A counter is stored by the GPU's UUID, and a person names the PCI address.
    owners = {f"gpu/{uuid}": address for uuid, address in _addresses(capture).items()}
    for key, row in as_map(memory.get("counters")).items():
        parts = key.split("/")
        what = owners.get("/".join(parts[:2]), "".join(parts[1:2]))
        if isinstance(row, dict) and row.get("last") != row.get("base") and about(what):
            names = [item for item, mark in COUNTED.items() if mark in key]
            if any(fnmatchcase(item, name) for item in names):
                done.append(f"{names[0]} {what}")
            if name == ALL or any(fnmatchcase(item, name) for item in names):
                row["base"], row["time"] = row.get("last"), timestamp()
                row.pop("day", None)
    if memory.get("jump") and fnmatchcase("time.sync", name) and subject is None:
        memory["jump"] = None
        done.append("time.sync")
    now, known = deltas.known(capture), as_map(memory.get("known"))
    for key, value in now.items():
        kind, _, rest = key.partition("/")
        what = rest.rpartition("/")[0]
        named = fnmatchcase(f"changed.{kind}", name) and about(what)
        if named and known.get(key) not in (None, value):
            known[key] = value
            done.append(f"changed.{kind} {what}".strip())
    memory["events"], logged = events.acknowledge(capture, memory, name, subject)
    done += logged
    return done


def _addresses(capture: Mapping[str, Any]) -> Dict[str, str]:
    """Return the PCI address of each GPU by its key in the state file."""
    return {
        gpu_key(gpu): str(gpu.get("address"))
        for gpu in as_list(capture.get("gpus"))
        if isinstance(gpu, dict)
    }
