"""One declared item held against what was read: the outcomes, and how an item gets one."""

from __future__ import annotations

from ..plain import dataclass
from .model import Observed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


MATCH, MISMATCH, NOT_EXPOSED, UNREAD, ELSEWHERE, DEFERRED, SUPPRESSED = (
    "match",
    "mismatch",
    "not_exposed",
    "could_not_read",
    "not_verified_here",
    "deferred",  # cannot be told while the GPU rests, and nothing speaks against it: it is judged at the next check under load
    "suppressed",  # differs, and somebody has said why that is accepted, and until when
)
# Outcomes that speak against no node, whatever the severity: the gate and the trial of a kernel go by them.
FINE = (MATCH, NOT_EXPOSED, ELSEWHERE, DEFERRED, SUPPRESSED)

# What a remedy takes along: nothing, what one process does, one GPU with its jobs, the node, hardware that somebody has to touch.
NOTHING, PROCESS, GPU, NODE, HARDWARE = "nothing", "process", "gpu", "node", "hardware"


@dataclass(frozen=True)
class Finding:
    """One declared item: `outcome` is one of those above; `severity` (degraded or drain) is what a mismatch means for the node.

    `subject` is what it is about where that is not the whole node (a PCI address, an interface, a mount); `evidence` are the readings behind it;
    `blast` is what following the remedy takes along.
    """

    id: str
    outcome: str
    severity: str
    expected: Optional[str]
    got: Optional[str]
    remedy: Optional[str] = None
    subject: Optional[str] = None
    evidence: Tuple[str, ...] = ()
    blast: Optional[str] = None


def judge_item(
    name: str, expected: Optional[str], got: Optional[str], severity: str, remedy: str, elsewhere: Optional[str] = None
) -> Finding:
    """match, mismatch, or not_verified_here when `elsewhere` says why this place cannot show it."""
    if elsewhere:
        return Finding(name, ELSEWHERE, severity, expected, elsewhere)
    if expected == got:
        return Finding(name, MATCH, severity, expected, got)
    return Finding(name, MISMATCH, severity, expected, got, remedy)


def place(seen: Observed) -> Optional[str]:
    """Why kernel and devices cannot be judged from here; None where they are this node's own."""
    if not seen.live:
        return "an image does not run"
    return "a container shows the kernel and devices of its host" if seen.container else None
