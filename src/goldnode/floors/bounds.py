"""Bounds and tests that assume no distribution: order statistics, a robust spread, and Wilcoxon's tests.

All functions work along the last axis, so that a whole population is judged in one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from goldnode.floors.counting import CONFIDENCE
from goldnode.node.ground.optional import optional

Values = NDArray[np.float64]

NORMAL_MAD = 1.4826  # standard deviations of a normal distribution per median absolute deviation
_EXACT = 2500  # pairs of nodes up to which the distribution of the rank sum is computed
_TRIALS = 4000  # simulated comparisons behind a stated power
_SEED = 20261126  # of these: the same figures on each machine
_POWER = 0.9  # probability with which the stated loss is seen
_SPREAD = 0.8  # confidence of the upper bound on the spread that the stated power assumes


def oriented(values: Values, better: str) -> Values:
    """Return values for which more is better."""
    return values if better == "higher" else -values


@lru_cache(maxsize=4096)
def _rank(runs: int, share: float, confidence: float) -> int | None:
    """Return the place (from 0) of the order statistic that is an upper bound of a quantile; None if there is none."""
    place = int(stats.binom.ppf(confidence, runs, share))
    return place if place < runs else None


def upper_bound(
    values: Values, share: float = 0.5, confidence: float = CONFIDENCE
) -> Values | None:
    """Return an upper confidence bound of the quantile `share`; None if there are too few values for one."""
    place = _rank(values.shape[-1], share, confidence)
    return None if place is None else np.partition(values, place, axis=-1)[..., place]


def lower_bound(
    values: Values, share: float = 0.5, confidence: float = CONFIDENCE
) -> Values | None:
    """Return a lower confidence bound of the quantile `share`; None if there are too few values for one."""
    bound = upper_bound(-values, 1 - share, confidence)
    return None if bound is None else -bound


def quantile(values: Values, share: float) -> Values:
    """Return the quantile `share`: the median as usual, any other one as a value that was measured."""
    if share == 0.5:
        return np.asarray(np.median(values, axis=-1))
    return np.asarray(np.quantile(values, share, axis=-1, method="inverted_cdf"))


def robust_spread(values: Values) -> Values:
    """Return the standard deviation that the median absolute deviation gives, corrected for few values.

    The factor n / (n - 0.8) is that of Croux and Rousseeuw, Time-efficient algorithms for two
    highly robust estimators of scale (1992).
    """
    count = values.shape[-1]
    if count < 2:
        return np.zeros(values.shape[:-1])
    middle = np.median(values, axis=-1, keepdims=True)
    return np.asarray(
        np.median(np.abs(values - middle), axis=-1) * NORMAL_MAD * count / (count - 0.8)
    )


# Comparisons of two arms


def loss_p_value(changed: Values, control: Values | None) -> float:
    """Return the p-value of "the changed nodes lost nothing", against a loss.

    `changed` and `control` are losses of nodes, before against after. With a control arm the test
    is Wilcoxon's rank sum over both arms, so that the error of both counts; without one it is his
    signed rank.
    """
    if control is None:
        # Losses of exactly 0 count half for each side; scipy has no p-value where all are 0.
        if not changed.any():
            return 1.0
        return float(stats.wilcoxon(changed, alternative="greater", zero_method="zsplit").pvalue)
    return _rank_sum(changed, control)


def _rank_sum(changed: Values, control: Values) -> float:
    both = np.concatenate([changed, control])
    exact = len(changed) * len(control) <= _EXACT and len(np.unique(both)) == len(both)
    method = "exact" if exact else "asymptotic"
    return float(stats.mannwhitneyu(changed, control, alternative="greater", method=method).pvalue)


def _differences(changed: Values, control: Values | None) -> Values:
    """Return the sorted differences of the arms, or Walsh's averages of one arm, along the last axis."""
    if control is not None:
        pairs = changed[..., :, None] - control[..., None, :]
        return np.asarray(np.sort(pairs.reshape(*pairs.shape[:-2], -1), axis=-1))
    first, second = np.triu_indices(changed.shape[-1])
    return np.asarray(np.sort((changed[..., first] + changed[..., second]) / 2, axis=-1))


@lru_cache(maxsize=256)
def _critical(changed: int, control: int | None, alpha: float) -> int | None:
    """Return the place of the difference that bounds a loss at level `alpha`; None if no result is that extreme.

    The place depends on the numbers of nodes only. It is found by inverting the test on an example.
    """
    random = np.random.default_rng(_SEED)
    one = random.normal(size=changed)
    other = None if control is None else random.normal(size=control)
    ordered = _differences(one, other)

    def rejects(place: int) -> bool:
        """Return whether the loss is above 0 once all differences from `place` on are above 0."""
        below = ordered[place - 1] if place else ordered[0] - 1
        return loss_p_value(one - (below + ordered[place]) / 2, other) <= alpha

    low, high = 0, len(ordered)  # the greatest place that still rejects is low - 1
    while low < high:
        middle = (low + high) // 2
        if rejects(middle):
            low = middle + 1
        else:
            high = middle
    return low - 1 if low else None


@dataclass(frozen=True)
class LossBounds:
    """Bounds of the loss of a change, each at level alpha; None: too few nodes for a bound."""

    estimate: float
    low: float | None
    high: float | None


def loss_bounds(changed: Values, control: Values | None, alpha: float) -> LossBounds:
    """Return the Hodges-Lehmann estimate of the loss with its one-sided bounds, by inverting the test."""
    ordered = _differences(changed, control)
    place = _critical(len(changed), optional(len, control), alpha)
    estimate = float(np.median(ordered))
    if place is None:
        return LossBounds(estimate, None, None)
    return LossBounds(estimate, float(ordered[place]), float(ordered[len(ordered) - 1 - place]))


def holm(p_values: list[float], alpha: float) -> list[bool]:
    """Return which hypotheses Holm's procedure rejects, with a family-wise error of at most `alpha`."""
    rejected = [False] * len(p_values)
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        if p_values[place] > alpha / (len(p_values) - done):
            break
        rejected[place] = True
    return rejected


def pooled_spread(changed: Values, control: Values | None) -> float:
    """Return an upper bound (80 %) on the standard deviation of the losses of nodes, pooled over the arms."""
    arms = [changed] if control is None else [changed, control]
    freedom = sum(len(arm) - 1 for arm in arms)
    squares = sum(float(np.sum((arm - arm.mean()) ** 2)) for arm in arms)
    return math.sqrt(squares / float(stats.chi2.ppf(1 - _SPREAD, freedom)))


@dataclass(frozen=True)
class ComparisonSize:
    """Numbers of nodes of a comparison, and the levels of its bounds."""

    changed: int
    control: int | None
    alpha: float  # of the upper bound, which the margin is compared with
    alpha_loss: (
        float  # of the test of a loss: alpha over the number of metrics, the strictest step of Holm
    )


def smallest_loss_seen(size: ComparisonSize, spread: float, margin: float) -> float | None:
    """Return the smallest loss that is stopped with probability 90 %; None if no loss is.

    `spread` is the standard deviation of a node's loss, `margin` the accepted loss. Simulated with
    a fixed seed.
    """
    limits = _standard_limits(size)
    if limits is None or spread <= 0:
        return None if limits is None else margin
    significant, above = limits
    # A trial stops a loss once its lower bound is above 0 and its upper bound reaches the margin.
    needed = np.maximum(significant * spread, margin - above * spread)
    return float(np.quantile(needed, _POWER, method="higher"))


@lru_cache(maxsize=64)
def _standard_limits(size: ComparisonSize) -> tuple[Values, Values] | None:
    """Return, per simulated comparison without a loss and of spread 1, minus its lower bound, and its upper bound."""
    random = np.random.default_rng(_SEED)
    one = random.normal(size=(_TRIALS, size.changed))
    other = None if size.control is None else random.normal(size=(_TRIALS, size.control))
    low = _critical(size.changed, size.control, size.alpha_loss)
    high = _critical(size.changed, size.control, size.alpha)
    if low is None or high is None:
        return None
    ordered = _differences(one, other)
    return -ordered[:, low], ordered[:, ordered.shape[-1] - 1 - high]
