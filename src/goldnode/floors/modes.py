"""Populations with two modes, such as nodes of two firmware versions: they have no common floor.

The values are split in two where the parts are farthest apart, each with more than a fifth of the
values. The distance is compared with that of a uniform distribution, the flattest one with a single
mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from goldnode.floors.bounds import Values

SHARE = 0.2  # of the values, which a mode exceeds; fewer are nodes to leave out
LEVEL = 0.01  # probability of a refusal where all values are of one mode, for the flattest shape
_LARGEST = 200  # values for which the limit is simulated; more have the limit of these
_TRIALS = 4000  # samples of the simulation
_SEED = 20261126  # fixed, so that the same values always get the same answer


@dataclass(frozen=True)
class ValueModes:
    """Two modes: the places of the values in each, and their medians. The first has the lower values."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    medians: tuple[float, float]


def modes(values: Values) -> ValueModes | None:
    """Return the two modes of values; None if one mode explains them."""
    count = len(values)
    if count < 2 / SHARE:
        return None
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    distances, first = _distances(ordered[None, :])
    best = int(np.argmax(distances[0]))
    if distances[0, best] <= _limit(min(count, _LARGEST)):
        return None
    cut = first + best
    return ValueModes(
        tuple(int(one) for one in sorted(order[:cut])),
        tuple(int(one) for one in sorted(order[cut:])),
        (float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))),
    )


def _distances(ordered: Values) -> tuple[Values, int]:
    """Return the distance of the parts for each cut, in standard deviations of the wider part, and the first cut."""
    count = ordered.shape[-1]
    first = (
        int(SHARE * count + 1e-9) + 1
    )  # more than the share: exactly a fifth may leave a baseline
    cuts = np.arange(first, count - first + 1)
    centred = ordered - ordered.mean(axis=-1, keepdims=True)
    sums, squares = np.cumsum(centred, axis=-1), np.cumsum(centred**2, axis=-1)
    low, square = sums[:, cuts - 1], squares[:, cuts - 1]
    mean_low, mean_high = low / cuts, (sums[:, -1:] - low) / (count - cuts)
    low_spread = (square - cuts * mean_low**2) / (cuts - 1)
    high_spread = (squares[:, -1:] - square - (count - cuts) * mean_high**2) / (count - cuts - 1)
    # The wider part counts: slow nodes at all speeds are no mode. Equal values have a spread of
    # almost 0.
    least = 1e-24 * squares[:, -1:] + 1e-300
    spread = np.sqrt(np.maximum(np.maximum(low_spread, high_spread), least))
    return (mean_high - mean_low) / spread, first


@lru_cache(maxsize=256)
def _limit(count: int) -> float:
    """Return the distance that a uniform distribution exceeds with probability LEVEL."""
    random = np.random.default_rng(_SEED)
    sample = np.sort(random.random((_TRIALS, count)), axis=-1)
    return float(np.quantile(_distances(sample)[0].max(axis=-1), 1 - LEVEL))
