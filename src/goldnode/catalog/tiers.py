"""Rules of each tier of a class: driver branches, waves without a soak, and how long findings may be accepted.

The kinds of branches are NVIDIA's (facts/nvidia_drivers.yml, `type`): LTSB long-term support, PB production,
NFB new feature, and developer. A class without a tier is judged as before there were tiers.
"""

from __future__ import annotations

from typing import Literal

from goldnode.core.dataclass import dataclass

Tier = Literal["production", "development"]
PRODUCTION, DEVELOPMENT = "production", "development"

BRANCH_KINDS = {
    "LTSB": "a long-term support branch",
    "PB": "a production branch",
    "NFB": "a new feature branch",
    "developer": "a developer branch",
}


@dataclass(frozen=True)
class TierRules:
    """`branches` are the kinds of driver branches that are allowed.

    `soak`: each wave of a rollout that another follows needs one. `waiver_days`: the most days for which
    a finding is accepted; None: any. `unknown`: what `compat.unknown` may be.
    """

    branches: frozenset[str]
    soak: bool
    waiver_days: int | None
    unknown: frozenset[str]


# The limits are goldnode's own: a quarter is the time in which NVIDIA publishes a bulletin for each branch.
TIERS: dict[str, TierRules] = {
    PRODUCTION: TierRules(
        branches=frozenset({"LTSB", "PB"}),
        soak=True,
        waiver_days=92,
        unknown=frozenset({"block", "warn"}),
    ),
    DEVELOPMENT: TierRules(
        branches=frozenset(BRANCH_KINDS),
        soak=False,
        waiver_days=None,
        unknown=frozenset({"block", "warn", "accept"}),
    ),
}
