"""Times of two records: quantiles with bounds from order statistics, and the ratio of the sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.stats import binom

from goldnode.documents.dual import DualAnswer, DualLatency, DualQuantile
from goldnode.documents.rollout import fraction
from goldnode.dual.tolerances import DualTolerances, TolerancesLatency

QUANTILES = (0.5, 0.95, 0.99)
CONFIDENCE = 0.95
_BINS = 40  # of the histogram in a report


def quantile(
    samples: Sequence[float], share: float, confidence: float
) -> tuple[float, float | None, float | None]:
    """Return a quantile of samples, and its lower and upper bound; None: too few samples for a bound.

    The number of samples below the true quantile is binomial. Each bound alone is wrong with
    probability (1 - confidence) / 2 at most.
    """
    ordered = sorted(samples)
    count = len(ordered)
    middle = float(np.quantile(ordered, share, method="inverted_cdf"))  # one of the samples
    tail = (1 - confidence) / 2
    # The l-th smallest (from 1) is above the quantile if fewer than l samples are below it.
    low = int(binom.ppf(tail, count, share))
    while low > 0 and binom.cdf(low - 1, count, share) > tail:
        low -= 1
    high = int(binom.ppf(1 - tail, count, share)) + 1
    lower = ordered[low - 1] if low >= 1 else None
    upper = ordered[high - 1] if high <= count else None
    return middle, lower, upper


def compared(
    phase: Literal["cold", "warm"],
    a: Sequence[float],
    b: Sequence[float],
    tolerances: DualTolerances,
    tests: int,
) -> DualLatency | None:
    """Return the comparison of one phase; None if a side has no times. `tests` is the number of declared bounds."""
    if not a or not b:
        return None
    declared = {row.quantile: row for row in tolerances.latency if row.phase == phase}
    rows = [
        _quantile(share, a, b, declared.get(share), tests)
        for share in sorted({*QUANTILES, *declared})
    ]
    edges = _edges(a, b)
    return DualLatency(
        phase=phase,
        runs_a=len(a),
        runs_b=len(b),
        confidence=CONFIDENCE,
        quantiles=rows,
        histogram_edges=[float(edge) for edge in edges],
        histogram_a=[
            int(number) for number in np.histogram(np.clip(a, edges[0], edges[-1]), edges)[0]
        ],
        histogram_b=[
            int(number) for number in np.histogram(np.clip(b, edges[0], edges[-1]), edges)[0]
        ],
    )


def _edges(a: Sequence[float], b: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the edges of a histogram of both sides. The last bin has the slowest percent too."""
    both = np.concatenate([a, b])
    low, high = float(np.min(both)), float(np.quantile(both, 0.99))
    if high <= low:
        high = low * 1.01 + 1e-9
    return np.linspace(low, high, _BINS + 1)


def _quantile(
    share: float,
    a: Sequence[float],
    b: Sequence[float],
    declared: TolerancesLatency | None,
    tests: int,
) -> DualQuantile:
    confidence = CONFIDENCE
    if declared is not None:  # Bonferroni: all declared bounds together are wrong this often
        confidence = 1 - (1 - fraction(declared.confidence)) / max(tests, 1)
    # Two bounds, one of each side, make one statement.
    each = 1 - (1 - confidence) / 2
    (middle_a, low_a, high_a), (middle_b, low_b, high_b) = (
        quantile(one, share, each) for one in (a, b)
    )
    ratio_low = None if low_b is None or not high_a else low_b / high_a
    ratio_high = None if high_b is None or not low_a else high_b / low_a
    margin = None if declared is None else fraction(declared.margin)
    answer, why = _answer(ratio_low, ratio_high, margin)
    return DualQuantile(
        quantile=share,
        a=middle_a,
        a_low=low_a,
        a_high=high_a,
        b=middle_b,
        b_low=low_b,
        b_high=high_b,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        margin=margin,
        answer=answer,
        why=why,
    )


def _answer(
    low: float | None, high: float | None, margin: float | None
) -> tuple[DualAnswer | None, str | None]:
    if margin is None:
        return None, None
    if low is not None and low > 1 + margin:
        return "fail", f"slower by at least {low - 1:.1%}, and {margin:.1%} is declared"
    if high is not None and high <= 1 + margin:
        if high > 1:
            return "pass", f"slower by at most {high - 1:.1%}"
        return "pass", f"faster by at least {1 - high:.1%}"
    if low is None or high is None:
        return "unknown", "inconclusive: too few runs for a bound"
    return "unknown", f"inconclusive: the ratio is between {low:.3f} and {high:.3f}"
