"""Learning from repairs: which rung cured which finding, per model, firmware and driver. Pure.

A rung counts if it was carried out and judged: one that was refused, failed to run or is not judged yet is no
evidence about it. A cure whose finding came back within the window counts as a cure, and as one that came back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from goldnode.core import binomial
from goldnode.fleet.rollout.ladder import DAY, CasePhase, LadderState, RungRecord

# A rung without a cure is named when even the upper bound of its rate of cures is below this: 16 tries and more.
NEVER_HELPS = 0.2
CAME_BACK = 30 * DAY


@dataclass(frozen=True, order=True, slots=True)
class NodeVersions:
    """GPU model, VBIOS and loaded driver before a rung; empty where the evidence lacks it."""

    model: str = ""
    firmware: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class RungLesson:
    """Counts of one rung for one finding and hardware. `low`, `high`: 95 % interval of the rate of cures (Wilson)."""

    rung: str
    finding: str
    versions: NodeVersions
    tries: int
    cured: int
    came_back: int
    low: float
    high: float

    @property
    def never_helps(self) -> bool:
        """Return whether the data suffice to call it useless."""
        return self.cured == 0 and self.high < NEVER_HELPS


@dataclass
class _Counts:
    tries: int = 0
    cured: int = 0
    came_back: int = 0


def lessons(
    state: LadderState,
    versions: Mapping[str, NodeVersions],
    since: float = 0.0,
    *,
    together: bool = False,
) -> list[RungLesson]:
    """Return what the rungs since a time did, sorted by finding and rung.

    :param versions: digest of the evidence before a rung -> versions of its node.
    :param together: all hardware in one row.
    """
    counts: dict[tuple[str, str, NodeVersions], _Counts] = defaultdict(_Counts)
    for row in state.rungs:
        cured = _cured(state, row)
        if cured is None or row.at < since:
            continue
        own = NodeVersions() if together else versions.get(row.evidence, NodeVersions())
        one = counts[row.finding, row.rung, own]
        one.tries += 1
        one.cured += cured
        one.came_back += cured and _came_back(state, row)
    return [
        _lesson(rung, finding, own, counted)
        for (finding, rung, own), counted in sorted(counts.items())
    ]


def _lesson(rung: str, finding: str, versions: NodeVersions, counted: _Counts) -> RungLesson:
    low, high = binomial.wilson(counted.cured, counted.tries)
    return RungLesson(
        rung,
        finding,
        versions,
        tries=counted.tries,
        cured=counted.cured,
        came_back=counted.came_back,
        low=low,
        high=high,
    )


def _cured(state: LadderState, row: RungRecord) -> bool | None:
    """Return whether a rung cured its finding; None for one that is no evidence."""
    if not row.outcome or row.outcome.startswith(("failed", "interrupted", "no outcome")):
        return None
    later = any(
        other.node == row.node and other.finding == row.finding and other.at > row.at
        for other in state.rungs
    )
    ended = min(
        (one for one in state.ended if one.node == row.node and one.at > row.at),
        key=lambda one: one.at,
        default=None,
    )
    if ended is not None and ended.finding == row.finding:
        following = any(
            other.node == row.node and row.at < other.at < ended.at for other in state.rungs
        )
        if following:
            return False
        if ended.phase is CasePhase.CURED and ended.rung == row.rung:
            return True
        return None  # a person took over: unknown
    case = state.cases.get(row.node)
    if later or (case is not None and case.phase is CasePhase.TICKET):
        return False
    return None


def _came_back(state: LadderState, row: RungRecord) -> bool:
    ended = next((one for one in state.ended if one.node == row.node and one.at > row.at), None)
    if ended is None:
        return False
    opened = [case.opened_at for case in state.cases.values() if case.node == row.node]
    again = [
        other.at for other in state.rungs if other.node == row.node and other.finding == row.finding
    ]
    return any(ended.at < at <= ended.at + CAME_BACK for at in (*opened, *again))
