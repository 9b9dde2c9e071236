"""Findings of a verdict that blame the image that booted.

A tried boot is good unless a finding of severity `drain` and fault domain *software* is a mismatch:
only that can be fixed by going back to the previous image. Findings of the domain *driver* count
unless a GPU is missing. A *hardware* finding drains the node and never takes an image back, because
the previous image would meet the same machine. The domains are in :mod:`..state.kinds`.
"""

from __future__ import annotations

from ..state.finding import MISMATCH, UNREAD
from ..state.kinds import DRIVER, SOFTWARE, kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Tuple

# A GPU that does not answer: with one of these, findings of the domain `driver` do not blame the image.
GONE = ("gpu.count", "gpu.lost", "gpu.bound", "gpu.ids")


def causes(verdict: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """Return the ids of the findings that count against the software, and those that count against the node; severe
    ones first.

    The rules are those of :func:`against`, for findings of any severity.
    """
    rows = [row for row in verdict["findings"] if row["outcome"] in (MISMATCH, UNREAD)]
    # A value that could not be read is blamed only if nothing is known to be wrong.
    bad = [row for row in rows if row["outcome"] == MISMATCH] or rows
    domains = (SOFTWARE,) if any(row["id"] in GONE for row in bad) else (SOFTWARE, DRIVER)
    software: List[str] = []
    hardware: List[str] = []
    for row in sorted(bad, key=lambda row: row["severity"] != "drain"):
        ids = software if getattr(kind(row["id"]), "domain", None) in domains else hardware
        ids.append(row["id"])
    return list(dict.fromkeys(software)), list(dict.fromkeys(hardware))


def against(verdict: Mapping[str, Any], apart: Tuple[str, ...] = ()) -> List[str]:
    """Return the findings of a verdict against the image that booted, one text each; empty if there are none.

    A finding without a row in the table counts as hardware, so that an unknown finding takes no
    image back.

    :param apart: ids to leave out.
    """
    rows = [
        row
        for row in verdict["findings"]
        if row["outcome"] in (MISMATCH, UNREAD) and row["severity"] == "drain"
    ]
    # A missing GPU takes the driver's findings with it, whichever image runs.
    gone = any(row["id"] in GONE for row in rows)
    domains = (SOFTWARE,) if gone else (SOFTWARE, DRIVER)
    return [
        f"{row['id']}: {row['got'] or 'nothing'} (want {row['expected']})"
        for row in rows
        if row["id"] not in apart and getattr(kind(row["id"]), "domain", None) in domains
    ]
