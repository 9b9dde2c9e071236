"""Populations of two modes are found, and those of one are not."""

from __future__ import annotations

import numpy as np
import pytest

from goldnode.floors import modes
from goldnode.floors.bounds import Values

SEEDS = 500


def refused(values: Values) -> float:
    """Return the share of the samples that are taken for two modes."""
    return float(np.mean([modes.modes(one) is not None for one in values]))


@pytest.mark.parametrize("count", [10, 20, 60, 300])
@pytest.mark.parametrize("shape", ["normal", "uniform", "laplace", "exponential", "t"])
def test_one_mode_is_not_refused(shape: str, count: int) -> None:
    """The uniform shape is the flattest; skewed and heavy tails are no second mode."""
    random = np.random.default_rng(11)
    size = (SEEDS, count)
    values = {
        "normal": random.normal(size=size),
        "uniform": random.random(size),
        "laplace": random.laplace(size=size),
        "exponential": random.exponential(size=size),
        "t": random.standard_t(3, size=size),
    }[shape]
    assert refused(values) <= 3 * modes.LEVEL


@pytest.mark.parametrize(
    ("count", "apart", "share"), [(12, 14, 0.5), (20, 10, 0.5), (50, 7, 0.3), (200, 6, 0.5)]
)
def test_two_modes_are_found_with_their_members(count: int, apart: float, share: float) -> None:
    random = np.random.default_rng(12)
    second = int(share * count)
    values = random.normal(size=(100, count))
    values[:, :second] -= apart
    found = [modes.modes(one) for one in values]
    assert np.mean([one is not None for one in found]) >= 0.95
    sure = next(one for one in found if one is not None)
    assert set(sure.low) == set(range(second))
    assert set(sure.high) == set(range(second, count))
    assert sure.medians[0] < -apart / 2 < sure.medians[1]


def test_few_bad_values_are_no_mode() -> None:
    values = np.random.default_rng(13).normal(size=50)
    values[:5] -= 20
    assert modes.modes(values) is None


def test_equal_values_and_few_values_have_one_mode() -> None:
    assert modes.modes(np.full(20, 3.0)) is None
    assert modes.modes(np.arange(9.0)) is None
    found = modes.modes(np.repeat([1.0, 2.0], 10))
    assert found is not None
    assert found.medians == (1.0, 2.0)
