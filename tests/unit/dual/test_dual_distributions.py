"""Distributions of sampled outputs: the stated error rates, and what is found."""

from __future__ import annotations

import numpy as np
import pytest

from goldnode.dual.distributions import needed_draws, of_categories, of_values

SEED = 20261126
RUNS = 300


@pytest.mark.parametrize("kind", ["values", "categories"])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_has_the_true_distance_as_often_as_stated(
    kind: str, confidence: float
) -> None:
    """The bounds hold for any distribution, so they are wide: misses are rarer than stated."""
    random = np.random.default_rng(SEED)
    shares_a, shares_b = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.3])
    # Kolmogorov: the functions are 0.5, 0.8, 1 and 0.4, 0.7, 1. Total variation: (0.1 + 0 + 0.1) / 2.
    true = 0.1
    of = of_values if kind == "values" else of_categories
    missed = 0
    for _ in range(RUNS):
        a, b = (random.choice(3, 400, p=shares) for shares in (shares_a, shares_b))
        found = of(a, b, confidence)
        missed += not found.low <= true <= found.high
    assert missed <= RUNS * (1 - confidence)


@pytest.mark.parametrize("kind", ["values", "categories"])
def test_equal_distributions_never_fail_and_pass_with_enough_draws(kind: str) -> None:
    random = np.random.default_rng(SEED)
    of = of_values if kind == "values" else of_categories
    for draws, expected in ((100, "unknown"), (20_000, "pass")):
        answers = {
            of(random.integers(0, 5, draws), random.integers(0, 5, draws), 0.99).answer(0.05)
            for _ in range(50)
        }
        assert answers == {expected}


@pytest.mark.parametrize(("draws", "expected"), [(50, "unknown"), (4_000, "fail")])
def test_a_shift_is_found_with_enough_draws(draws: int, expected: str) -> None:
    random = np.random.default_rng(SEED)
    a, b = random.normal(0, 1, draws), random.normal(0.5, 1, draws)  # Kolmogorov distance 0.197
    assert of_values(a, b, 0.99).answer(0.05) == expected


def test_swapped_tokens_are_found_as_categories() -> None:
    random = np.random.default_rng(SEED)
    a = random.choice(4, 10_000, p=[0.4, 0.3, 0.2, 0.1])
    b = random.choice(4, 10_000, p=[0.3, 0.4, 0.2, 0.1])
    assert of_categories(a, b, 0.99).answer(0.05) == "fail"


def test_the_needed_draws_decide() -> None:
    random = np.random.default_rng(SEED)
    a, b = (random.integers(0, 5, 2_000) for _ in range(2))
    found = of_values(a, b, 0.99)
    assert found.answer(0.05) == "unknown"
    needed = needed_draws(found, 2_000, 0.05)
    assert needed is not None
    again = (
        np.tile(a, -(-needed // 2_000)),
        np.tile(b, -(-needed // 2_000)),
    )  # the same shares, more of them
    assert of_values(*again, 0.99).answer(0.05) == "pass"


def test_disjoint_draws_have_distance_one() -> None:
    a, b = np.zeros(50), np.ones(50)
    assert of_values(a, b, 0.99).distance == 1.0
    assert of_categories(a, b, 0.99).distance == 1.0
