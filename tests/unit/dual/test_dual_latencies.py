"""Quantiles of times: the bounds hold as often as stated, and three answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.dual.latencies import compared, quantile
from goldnode.dual.tolerances import DualTolerances, TolerancesLatency

SEED = 7
TIMES = st.lists(st.floats(0, 100), min_size=1, max_size=60)


@pytest.mark.parametrize(("share", "count"), [(0.5, 9), (0.5, 200), (0.95, 200), (0.99, 1000)])
def test_each_bound_is_wrong_as_rarely_as_stated(share: float, count: int) -> None:
    random = np.random.default_rng(SEED)
    true, runs, wrong = -np.log(1 - share), 2000, [0, 0]
    for _ in range(runs):
        _, low, high = quantile(random.exponential(size=count).tolist(), share, 0.95)
        wrong[0] += low is not None and low > true
        wrong[1] += high is not None and high < true
    # 2.5 % each, and three standard deviations of 2,000 runs
    assert max(wrong) <= runs * 0.025 + 3 * (runs * 0.025 * 0.975) ** 0.5


def test_few_runs_have_no_bound() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.99, 0.95)[2] is None
    assert quantile([1.0], 0.5, 0.95)[1:] == (None, None)
    # 9 runs bound a median: the second and the eighth (binomial: 0.0195 in each tail)
    assert quantile([float(one) for one in range(1, 10)], 0.5, 0.95) == (5.0, 2.0, 8.0)


@given(samples=TIMES, share=st.sampled_from([0.01, 0.5, 0.95, 0.99]))
def test_bounds_enclose_the_quantile(samples: list[float], share: float) -> None:
    middle, low, high = quantile(samples, share, 0.95)
    assert low is None or low <= middle + 1e-9
    assert high is None or high >= middle - 1e-9


def tolerances(margin: str = "5%") -> DualTolerances:
    return DualTolerances(
        {}, latency=(TolerancesLatency(phase="warm", quantile=0.95, margin=margin),)
    )


@pytest.mark.parametrize(
    ("factor", "runs", "expected"),
    [
        (1.0, 4000, "pass"),
        (0.8, 400, "pass"),
        (1.3, 400, "fail"),
        (1.05, 400, "unknown"),
        (1.0, 10, "unknown"),
    ],
)
def test_a_declared_quantile_has_three_answers(factor: float, runs: int, expected: str) -> None:
    random = np.random.default_rng(SEED)
    a, b = (random.normal(1.0, 0.02, runs).tolist() for _ in range(2))
    found = compared("warm", a, [factor * one for one in b], tolerances(), 1)
    assert found is not None
    answers = {row.quantile: row.answer for row in found.quantiles}
    assert answers == {0.5: None, 0.95: expected, 0.99: None}


def test_an_equal_stack_is_rarely_called_slower() -> None:
    random = np.random.default_rng(SEED)
    wrong = 0
    for _ in range(300):
        a, b = (random.lognormal(0, 0.1, 100).tolist() for _ in range(2))
        found = compared("warm", a, b, tolerances("0%"), 1)
        assert found is not None
        wrong += found.quantiles[1].answer == "fail"
    assert wrong <= 300 * 0.05


def test_no_times_are_no_comparison() -> None:
    assert compared("cold", [], [1.0], tolerances(), 1) is None


def test_the_histogram_has_every_run() -> None:
    found = compared("cold", [1.0, 2.0, 900.0], [1.0] * 5, tolerances(), 1)
    assert found is not None
    assert (sum(found.histogram_a), sum(found.histogram_b)) == (3, 5)
