"""Forms of kernel messages that report a fault, and those that are known to be harmless. The table is generated from facts/log_lines.yml."""

from __future__ import annotations

import json
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence


class Form(NamedTuple):
    """One form of a message. `drivers`: who writes it, words separated by spaces. `form` matches the message after its head.

    `severity` is none, degraded or drain. `limit` names a limit in lines per minute, below which it is a note.
    """

    id: str
    drivers: str
    mark: str
    form: str
    finding: str
    severity: str
    means: str
    remedy: Optional[str]
    settled_by: str
    limit: Optional[str]


_table: Dict[str, Any] = {}


def _load() -> Dict[str, Any]:
    if not _table:
        data = json.loads(TEXT)
        by_driver: Dict[str, List[Form]] = {}
        rows = [Form(*row) for row in data["rows"]]
        for row in rows:
            for driver in row.drivers.split(" "):
                by_driver.setdefault(driver, []).append(row)
        by_id = {row.id: row for row in rows}
        _table.update(remedies=data["remedies"], by_driver=by_driver, by_id=by_id)
    return _table


def of(name: str) -> Sequence[Form]:
    """Return the forms of a driver or first word; a number at its end may count devices (`md0`, `nvidia-nvswitch1`)."""
    if name not in WRITERS and name.rstrip("0123456789") not in WRITERS:
        return ()
    by_driver = _load()["by_driver"]
    return by_driver.get(name) or by_driver.get(name.rstrip("0123456789")) or ()


def form(name: str) -> Optional[Form]:
    """Return the form of an id; None for one of another version of the program."""
    row: Optional[Form] = _load()["by_id"].get(name)
    return row


def remedy(name: str) -> List[str]:
    """Return text, blast radius and steps of a remedy."""
    row: List[str] = _load()["remedies"][name]
    return row


# fmt: off
WRITERS = frozenset(["NVRM","amdgpu"])
TEXT = r"""
{"remedies":{
"amd_reset":["Drain the node, then reset the GPU (`amd-smi reset --gpureset`, or restart the node).","gpu","gpu_reset"],
"restart":["Drain the node and restart it; where SUBJECT stays faulty, have it inspected.","node","reboot","repair"],
"flavour":["Install the other flavour of the kernel modules: the class's `flavour` (open or proprietary) must fit SUBJECT; then site.yml and a restart.","node","site","reboot"],
"unblock":["Keep the other driver out (`blacklist nouveau`, which site.yml writes), rebuild the initramfs and restart the node.","node","site","reboot"]
},"rows":[
["amd.ring_timeout","amdgpu"," timeout, ","ring (?P<ring>[\\w.]+) timeout, (?:but soft recovered|signaled seq)","gpu.driver_fault","degraded","a ring of the GPU did not end its work in time","amd_reset","amd.reset_succeeded",null],
["amd.reset_succeeded","amdgpu","succeeded!","GPU reset\\(\\d+\\) succeeded!","gpu.program_fault","none","the driver has reset the GPU, and it works again",null,"",null],
["amd.reset_failed","amdgpu",") failed","GPU reset\\(\\d+\\) failed","gpu.driver_fault","drain","the driver could not reset the GPU","restart","amd.reset_succeeded",null],
["nvidia.open_unsupported","NVRM","is not supported by open","installed in this (?:vGPU host )?system is not supported by open","driver.refused","drain","the open kernel modules do not support this GPU, which has no GSP","flavour","",null],
["nvidia.conflicting_driver","NVRM","already bound","GPU (?P<address>\\S+) is already bound to (?P<driver>\\w+)","driver.conflict","drain","another driver has this GPU","unblock","",null],
["nvidia.nvlink_post_rx","NVRM","DetLinkMask failed","knvlinkDiscoverPostRxDetLinks\\w*: Getting peer\\d+(?:'s)? postRxDetLinkMask failed","nvlink.driver_fault","drain","an NVLink did not come up between this GPU and a peer","restart","",null]
]}
"""
