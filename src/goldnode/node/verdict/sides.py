"""Fault domain of a finding: the image that booted (software), or the machine (hardware).

A tried boot is good unless a *software* finding of severity `drain` is a mismatch: only that can be fixed by
going back to the previous image. A *hardware* finding drains the node and never takes an image back, because
the previous image would meet the same machine. `DRIVEN` is software that answers only if a GPU does: it
counts unless a GPU is missing. This table is the only source; tests/unit/node/test_sides.py fails for a
finding without a row.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..state.finding import MISMATCH, UNREAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Tuple

SOFTWARE, HARDWARE, DRIVEN = "software", "hardware", "driven"

# Id (with `*` and `?`), side, why. The first row that fits counts.
TABLE: Tuple[Tuple[str, str, str], ...] = (
    ("node.owner", HARDWARE, "it was changed on the node, and an earlier kernel or image leaves it as it is"),
    (
        "node.parents",
        HARDWARE,
        "it was changed on the node, and an earlier kernel or image leaves it as it is",
    ),
    ("node.*", SOFTWARE, "the release and goldnode's own files are what the image holds"),
    ("class.document", SOFTWARE, "the image brings the class document"),
    ("check", SOFTWARE, "a check that cannot be made is a program or a class document that does not work"),
    (
        "memory.state",
        HARDWARE,
        "what the last check kept belongs to the node, and is on a disk that may be full or worn",
    ),
    ("stack.*", SOFTWARE, "the packages are the image's"),
    ("apt.*", SOFTWARE, "the sources are the image's"),
    ("kernel.*", SOFTWARE, "the kernel is the image's"),
    (
        "boot.*",
        SOFTWARE,
        "kernel, initramfs and entry are the image's; what is tried is not the default yet, and is left out (slots.OWN)",
    ),
    ("slot.*", HARDWARE, "it tells of the other slot, which this image cannot change"),
    ("blacklist.*", SOFTWARE, "modules and initramfs are the image's"),
    ("driver.module_file", SOFTWARE, "the module is the image's"),
    ("driver.library", SOFTWARE, "the library is the image's"),
    ("driver.*", DRIVEN, "the driver loads only where a GPU answers, and then its version is the image's"),
    ("modules.*.loaded", DRIVEN, "a module may need the driver, which loads only where a GPU answers"),
    ("module.loaded", DRIVEN, "a module may need the driver, which loads only where a GPU answers"),
    ("modules.*", SOFTWARE, "the modules are the image's"),
    ("units.*", SOFTWARE, "the units are the image's"),
    ("service.*", SOFTWARE, "the units are the image's"),
    ("watch.*", SOFTWARE, "the units are the image's"),
    ("gate", HARDWARE, "it is a decision about the node, for information"),
    ("gate.hook", HARDWARE, "whoever is told of a drain is of the site, not of the image"),
    ("serve.*", SOFTWARE, "the units are the image's"),
    ("runtime.cdi", HARDWARE, "the specification is made on the node, from the GPUs that it has"),
    ("runtime.cdi_paths", HARDWARE, "the specification is made on the node, from the GPUs that it has"),
    ("runtime.*", SOFTWARE, "engine, toolkit and their configuration are the image's"),
    ("policy.host.*", SOFTWARE, "the files that set the host are the image's"),
    ("policy.*", HARDWARE, "it is set on the GPUs, which may refuse it"),
    ("baseline", HARDWARE, "it is about the machine"),
    ("baseline.*", HARDWARE, "it is about the machine"),
    ("capture.*", HARDWARE, "a reader that failed may have met a device that does"),
    ("changed.*", HARDWARE, "it is about the machine"),
    ("events.*", HARDWARE, "the kernel's log tells of devices"),
    ("xid.*", HARDWARE, "the driver tells of a GPU"),
    ("sxid.*", HARDWARE, "the driver tells of a switch"),
    ("gpu.library", DRIVEN, "the library finds no driver where no GPU answers, and else is the image's"),
    ("gpu.*", HARDWARE, "it is about a GPU"),
    (
        "fabric.*",
        HARDWARE,
        "the manager fails for a switch as for its version, and its version is held by stack.lock",
    ),
    ("nvlink.*", HARDWARE, "it is about a link"),
    ("pci.*", HARDWARE, "it is about the bus"),
    ("pcie.*", HARDWARE, "it is about a link"),
    ("cpu.*", HARDWARE, "it is about the machine"),
    ("memory.*", HARDWARE, "it is about the machine"),
    ("storage.*", HARDWARE, "it is about a device, or a server of the site"),
    ("net.*", HARDWARE, "it is about a card or the network"),
    ("ib.*", HARDWARE, "it is about a card or the fabric"),
    ("host.*", HARDWARE, "processes that hang hang on a device"),
    ("time.*", HARDWARE, "the clock's servers are of the site"),
)
# A GPU that does not answer: with one of these, findings of DRIVEN do not concern the image.
GONE = ("gpu.count", "gpu.lost", "gpu.bound", "gpu.ids")


def side(name: str) -> Optional[str]:
    """Return the fault domain of a finding; None without a row, which counts as hardware, so that an unknown
    finding takes no image back.
    """
    return next((where for pattern, where, _ in TABLE if fnmatchcase(name, pattern)), None)


def against(verdict: Mapping[str, Any], apart: Tuple[str, ...] = ()) -> List[str]:
    """Return the findings of a verdict against the image that booted, one text each; empty if there are none.

    :param apart: ids to leave out.
    """
    rows = [
        row
        for row in verdict["findings"]
        if row["outcome"] in (MISMATCH, UNREAD) and row["severity"] == "drain"
    ]
    gone = any(row["id"] in GONE for row in rows)
    sides = (SOFTWARE,) if gone else (SOFTWARE, DRIVEN)
    return [
        f"{row['id']}: {row['got'] or 'nothing'} (want {row['expected']})"
        for row in rows
        if row["id"] not in apart and side(row["id"]) in sides
    ]
