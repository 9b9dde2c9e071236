"""Tails of the binomial distribution, and the failure rates that a clean wave excludes.

Plain sums, since the counts are small: at most some hundred failures in some ten thousand nodes.
"""

from __future__ import annotations

import math
from functools import lru_cache

from goldnode.core import binomial


@lru_cache(maxsize=65536)
def at_least(failures: int, trials: int, rate: float) -> float:
    """Return the probability of `failures` or more in `trials`, where each fails with probability `rate`."""
    if failures <= 0:
        return 1.0
    if failures > trials or rate <= 0:
        return 0.0
    if rate >= 1:
        return 1.0
    # The upper tail is the smaller one: sum it, so that nothing cancels.
    if failures > trials * rate:
        term = binomial.term(failures, trials, rate)
        total, odds = 0.0, rate / (1 - rate)
        for count in range(failures, trials + 1):
            total += term
            if term < total * 1e-17:
                break
            term *= (trials - count) / (count + 1) * odds
        return min(total, 1.0)
    return max(
        0.0, 1.0 - math.fsum(binomial.term(count, trials, rate) for count in range(failures))
    )


@lru_cache(maxsize=16384)
def stopping_failures(trials: int, rate: float, confidence: float) -> int:
    """Return the fewest failures of `trials` that stop: at least two, and too many for `rate`."""
    failures = 2
    while at_least(failures, trials, rate) >= 1 - confidence and failures <= trials:
        failures += 1
    return failures


# Probability under which failures with one cause are no chance: with the defaults, two in the first
# 75 nodes. One cause is more evidence than any failures, so that it needs less certainty than they.
ONE_CAUSE_CHANCE = 0.01


@lru_cache(maxsize=16384)
def one_cause_failures(trials: int, rate: float, least: int) -> int:
    """Return the fewest failures with one cause, of `trials`, that stop: `least`, and too many for `rate`."""
    failures = least
    while at_least(failures, trials, rate) >= ONE_CAUSE_CHANCE and failures <= trials:
        failures += 1
    return failures


def excluded_rate(trials: int, confidence: float) -> float:
    """Return the failure rate that no failure in `trials` excludes (about 3 / trials at 95 %)."""
    return 1.0 if trials == 0 else 1 - (1 - confidence) ** (1 / trials)


def detected_rate(trials: int, failures: int, confidence: float) -> float | None:
    """Return the least rate that has `failures` in `trials` with this confidence; None if there are too few trials."""
    if failures > trials:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        rate = (low + high) / 2
        low, high = (rate, high) if at_least(failures, trials, rate) < confidence else (low, rate)
    return high


def more_frequent(
    changed: tuple[int, float], control: tuple[int, float], confidence: float
) -> bool:
    """Return whether events are more frequent in one arm than in the control arm, given (events, exposure) of both.

    Under equal rates the events of the changed arm, of all events, are binomial by the share of
    exposure.
    """
    events = changed[0] + control[0]
    exposure = changed[1] + control[1]
    if changed[0] < 2 or exposure <= 0:
        return False
    return at_least(changed[0], events, changed[1] / exposure) < 1 - confidence
