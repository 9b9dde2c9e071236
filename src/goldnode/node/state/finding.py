"""One declared item held against what was read: the outcomes, and how an item gets one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .model import Observed

MATCH, MISMATCH, NOT_EXPOSED, UNREAD, ELSEWHERE = (
    "match",
    "mismatch",
    "not_exposed",
    "could_not_read",
    "not_verified_here",
)


@dataclass(frozen=True)
class Finding:
    """One declared item: `outcome` is one of the five above; `severity` (degraded or drain) is what a mismatch means for the node."""

    id: str
    outcome: str
    severity: str
    expected: Optional[str]
    got: Optional[str]
    remedy: Optional[str] = None


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
