"""The binomial distribution, for numbers of trials whose coefficients no float can hold."""

from __future__ import annotations

import math


def term(count: int, trials: int, rate: float) -> float:
    """Return the probability of exactly `count` of `trials`, each with probability `rate` (0 < rate < 1)."""
    return math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(count + 1)
        - math.lgamma(trials - count + 1)
        + count * math.log(rate)
        + (trials - count) * math.log1p(-rate)
    )
