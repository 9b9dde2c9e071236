"""The error budget of a class: node-hours that planned work may have out of service in a sliding period.

The budget and its sliding period follow the Site Reliability Workbook (chapter "Implementing SLOs": a
rolling window of four weeks). There, and in Kubernetes' PodDisruptionBudget, failures use the budget as
well. Here they do so only with `failures: true`: of a public trace of 400 GPU servers several percent are
under repair at any time, and a fix must not wait for hardware.

A grant is set aside at its longest, so that no grant that was given can exceed the budget later.
"""

from __future__ import annotations

from dataclasses import dataclass

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import HoldKind
from goldnode.fleet.rollout.state import RolloutState

HOUR = 3600.0
BUDGET = "the error budget has"  # the beginning of a reason to wait


@dataclass(frozen=True)
class BudgetUse:
    """Use of a budget at one moment, in node-seconds. `again` is when one more node fits, where that is known."""

    total: float
    used: float
    reserved: float  # for nodes that are out now
    longest: float  # that one node may take
    period: float
    again: float | None

    @property
    def room(self) -> int:
        """Return how many more nodes may go out."""
        left = self.total - self.used - self.reserved
        return max(0, int((left + 1e-6) // self.longest))

    def text(self) -> str:
        """Return the use in one sentence."""
        aside = ""
        if self.reserved:
            aside = f", {self.reserved / HOUR:.1f} are set aside for nodes that are out"
        return (
            f"{BUDGET} {self.total / HOUR:.1f} node-hours in {self.period / 86400:g} days: "
            f"{self.used / HOUR:.1f} are used{aside}, and a node may take {self.longest / HOUR:.1f}"
        )


def longest_leave(settings: RolloutSettings) -> float:
    """Return the seconds that one grant may have a node out: its drain, change, way back and return.

    A node that is out for longer is overdue, and from then on paid by the failed buffer.
    """
    return settings.drain_wait + 3 * settings.timeout


def use(settings: RolloutSettings, state: RolloutState, now: float) -> BudgetUse | None:
    """Return the use of the budget of a rollout's class; None for a document without one.

    An outage counts whole until its end is a period old. Planned outages of all rollouts, and of the
    lock service, count.
    """
    budget = settings.budget
    if budget is None:
        return None
    longest, since = longest_leave(settings), now - budget.period
    kinds = (HoldKind.PLANNED, HoldKind.FAILED) if budget.failures else (HoldKind.PLANNED,)
    used = sum(state.ledger.used(kind, since) for kind in kinds)
    aside = 0.0
    for holds in state.ledger.by_node.values():
        counted = [hold for hold in holds.values() if hold.kind in kinds]
        if any(hold.kind is HoldKind.PLANNED for hold in counted):
            aside += longest
        elif counted:
            used += now - min(hold.since for hold in counted)
    total = budget.seconds(len(state.nodes))
    missing = used + aside + longest - total
    again = None
    for item in state.ledger.ended if missing > 0 else ():
        if item.kind in kinds and item.end > since and missing > 0:
            missing -= item.end - item.begin
            again = item.end + budget.period
    return BudgetUse(
        total=total,
        used=used,
        reserved=aside,
        longest=longest,
        period=budget.period,
        again=again if missing <= 0 else None,
    )
