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


def wilson(count: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the interval of a rate by `count` of `trials` (Wilson, JASA 22, 1927); 95 % with the default `z`.

    It has a sensible width for few trials, and for none and all of them. Without a trial it is 0 to 1.
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = count / trials, z * z
    middle = share + square / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
