"""Comparison of two distributions from independent draws, with three answers.

A confidence interval of the true distance decides: above the margin the distributions differ, below
it they do not, and anything else is inconclusive. With probability `confidence` the interval has
the true distance, so that neither error is more frequent than 1 - confidence, for any distribution
and any number of draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldnode.documents.dual import DualAnswer


@dataclass(frozen=True)
class DistributionBounds:
    """Distance between the draws, and bounds of the true distance."""

    distance: float
    low: float
    high: float

    def answer(self, margin: float) -> DualAnswer:
        """Return pass, fail or unknown (inconclusive)."""
        if self.low > margin:
            return "fail"
        return "pass" if self.high <= margin else "unknown"


def of_values(a: NDArray[Any], b: NDArray[Any], confidence: float) -> DistributionBounds:
    """Return bounds of the Kolmogorov distance: the largest difference of the two distribution functions.

    Each empirical function is within sqrt(ln(2 / e) / 2n) of its own with probability 1 - e
    (Dvoretzky, Kiefer, Wolfowitz; the constant by Massart, Annals of Probability 18, 1990).
    """
    places = np.unique(np.concatenate([a, b]))
    left = np.searchsorted(np.sort(a), places, side="right") / len(a)
    right = np.searchsorted(np.sort(b), places, side="right") / len(b)
    distance = float(np.max(np.abs(left - right)))
    each = (1 - confidence) / 2
    radius = sum(math.sqrt(math.log(2 / each) / (2 * len(one))) for one in (a, b))
    return _bounds(distance, radius)


def of_categories(a: NDArray[Any], b: NDArray[Any], confidence: float) -> DistributionBounds:
    """Return bounds of the total variation distance: half of the sum of the differences of all shares.

    With k categories, the distance of the shares of n draws from the true ones is at most sqrt(2
    ln((2 ** k - 2) / e) / n) in sum, with probability 1 - e (Weissman and others, HP Laboratories
    2003-97). Categories that were never drawn count as one.
    """
    places, numbers = np.unique(np.concatenate([a, b]), return_inverse=True)
    count = len(places)
    left = np.bincount(numbers[: len(a)], minlength=count) / len(a)
    right = np.bincount(numbers[len(a) :], minlength=count) / len(b)
    distance = float(np.sum(np.abs(left - right)) / 2)
    each = (1 - confidence) / 2
    classes = count + 1  # and all that were not drawn
    subsets = classes * math.log(2)  # ln(2 ** k - 2), from above
    radius = sum(math.sqrt(2 * (subsets - math.log(each)) / len(one)) / 2 for one in (a, b))
    return _bounds(distance, radius)


def _bounds(distance: float, radius: float) -> DistributionBounds:
    return DistributionBounds(distance, max(0.0, distance - radius), min(1.0, distance + radius))


def needed_draws(bounds: DistributionBounds, draws: int, margin: float) -> int | None:
    """Return the draws per side after which this distance would decide; None if it lies on the margin."""
    radius = bounds.high - bounds.distance if bounds.high < 1 else bounds.distance - bounds.low
    radius = max(radius, bounds.distance - bounds.low)
    gap = abs(margin - bounds.distance)
    return None if gap < 1e-9 else math.ceil(draws * (radius / gap) ** 2)
