"""Order statistics, the robust spread, and the bounds of a loss, against their definitions and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from goldnode.floors import bounds, counting
from goldnode.floors.bounds import ComparisonSize, Values
from goldnode.floors.limits import nodes_needed

LOSSES = st.floats(-0.2, 0.2, allow_nan=False).map(lambda value: round(value, 9))


@pytest.mark.parametrize(
    ("runs", "share", "place"),
    [
        # P(all n runs are below the median) = 2 ** -n: seven runs are the first of which the largest bounds it.
        (6, 0.5, None),
        (7, 0.5, 6),
        (9, 0.5, 8),
        (10, 0.5, 9),
        (11, 0.5, 9),  # P(at most 9 of 11 are below) = 1 - 12 / 2048
        (200, 0.99, None),  # 0.99 ** 200 = 0.13: no bound of p99 from 200 runs
        (458, 0.99, None),
        (459, 0.99, 458),
        (1000, 0.99, 997),
        (89, 0.95, None),
        (90, 0.95, 89),
    ],
)
def test_bound_is_the_order_statistic_that_the_binomial_distribution_gives(
    runs: int, share: float, place: int | None
) -> None:
    values = np.random.default_rng(1).permutation(np.arange(float(runs)))
    found = bounds.upper_bound(values, share)
    assert (None if found is None else int(found)) == place


def test_runs_needed_are_the_fewest_with_both_bounds() -> None:
    for share in (0.5, 0.05, 0.01, 0.2):
        needed = counting.runs_needed(share)
        for runs, enough in ((needed - 1, False), (needed, True)):
            found = [
                bound(np.arange(float(runs)), share)
                for bound in (bounds.upper_bound, bounds.lower_bound)
            ]
            assert all(one is not None for one in found) is enough, (share, runs)


@pytest.mark.parametrize("share", [0.5, 0.05, 0.95])
def test_bound_holds_as_often_as_it_states(share: float) -> None:
    """Of 20,000 samples of a skewed distribution, at most 1 % (and a little) have their quantile above the bound."""
    values = np.random.default_rng(7).exponential(size=(20_000, 100))
    true = -np.log(1 - share)
    upper, lower = bounds.upper_bound(values, share), bounds.lower_bound(values, share)
    assert upper is not None
    assert lower is not None
    assert np.mean(upper < true) <= 0.012
    assert np.mean(lower > true) <= 0.012
    assert np.mean(upper < true) > 0.001, "the bound is wider than it needs to be"


@given(
    st.integers(7, 60).flatmap(lambda count: arrays(float, count, elements=st.floats(-1e6, 1e6)))
)
def test_upper_bound_mirrors_the_lower_bound_and_contains_the_median(values: Values) -> None:
    upper, lower = bounds.upper_bound(values), bounds.lower_bound(values)
    assert upper is not None
    assert lower is not None
    assert lower <= np.median(values) <= upper
    mirrored = bounds.upper_bound(-values)
    assert mirrored is not None
    assert -mirrored == lower


def test_robust_spread_is_the_standard_deviation_of_a_normal_sample_of_any_size() -> None:
    random = np.random.default_rng(3)
    for count in (8, 20, 100):
        found = bounds.robust_spread(random.normal(size=(20_000, count)))
        assert np.mean(found) == pytest.approx(1.0, abs=0.04), count
    assert float(bounds.robust_spread(np.array([5.0]))) == 0.0
    disturbed = np.concatenate([np.full(30, 1.0), np.arange(30) / 100 + 1, np.full(9, 1e9)])
    assert float(bounds.robust_spread(disturbed)) < 1, "a few wild values do not move it"


def arms(count: int) -> st.SearchStrategy[tuple[Values, Values]]:
    lists = st.lists(LOSSES, min_size=2 * count, max_size=2 * count, unique=True)
    return lists.map(lambda found: (np.array(found[:count]), np.array(found[count:])))


@settings(max_examples=200)
@given(arms(8), st.sampled_from([0.025, 0.025 / 3, 0.001]))
def test_lower_bound_of_a_loss_is_above_zero_exactly_where_the_test_rejects(
    both: tuple[Values, Values], alpha: float
) -> None:
    changed, control = both
    p_value = stats.mannwhitneyu(changed, control, alternative="greater", method="exact").pvalue
    found = bounds.loss_bounds(changed, control, alpha)
    assert found.low is not None
    assert (found.low > 0) == (p_value <= alpha)
    assert bounds.loss_p_value(changed, control) == pytest.approx(p_value)


@settings(max_examples=200)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=8, max_size=8, unique_by=abs).filter(all))
def test_lower_bound_without_control_agrees_with_the_signed_rank(losses: list[int]) -> None:
    values = np.array(losses) * 1e-7
    p_value = stats.wilcoxon(values, alternative="greater", method="exact").pvalue
    found = bounds.loss_bounds(values, None, 0.025)
    assert found.low is not None
    assert found.high is not None
    averages = (values[:, None] + values[None, :])[np.triu_indices(8)]
    if not np.any(np.abs(averages) < 1e-12):  # a Walsh average of 0 is a tie
        assert (found.low > 0) == (p_value <= 0.025)
    assert found.low <= found.estimate <= found.high


def test_too_few_nodes_have_no_bound() -> None:
    found = bounds.loss_bounds(np.array([0.1, 0.2, 0.3]), None, 0.025)
    assert (found.low, found.high) == (None, None)
    assert nodes_needed(None, 0.025) == 6
    assert nodes_needed(None, 0.025 / 20) == 10
    assert nodes_needed(8, 0.025 / 20) == 5  # 1 of 1287


def test_losses_that_are_all_zero_or_tied_are_no_loss() -> None:
    zeros = np.zeros(8)
    assert bounds.loss_p_value(zeros, None) == 1.0
    assert bounds.loss_p_value(zeros, zeros) >= 0.4
    assert bounds.loss_p_value(np.array([0.0] * 6 + [0.01, -0.01]), None) > 0.4
    assert bounds.loss_p_value(np.full(8, 0.05), None) < 0.025
    assert bounds.loss_p_value(np.full(8, 0.05), zeros) < 0.025


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.001, 0.01, 0.02], [True, True, True]),  # 0.025 / 3, / 2, / 1
        ([0.009, 0.001, 0.013], [True, True, True]),
        ([0.009, 0.01, 0.02], [False, False, False]),  # the smallest is above 0.025 / 3
        ([0.013, 0.001, 0.5], [False, True, False]),
        ([], []),
    ],
)
def test_holm_steps_down(p_values: list[float], expected: list[bool]) -> None:
    assert bounds.holm(p_values, 0.025) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_rejects_at_least_what_bonferroni_does_and_never_a_larger_one_alone(
    p_values: list[float],
) -> None:
    found = bounds.holm(p_values, 0.025)
    assert all(
        one for one, value in zip(found, p_values, strict=True) if value <= 0.025 / len(p_values)
    )
    left = [value for one, value in zip(found, p_values, strict=True) if not one]
    assert all(value <= 0.025 for one, value in zip(found, p_values, strict=True) if one)
    assert not left or all(
        value <= min(left) for one, value in zip(found, p_values, strict=True) if one
    )


def test_smallest_loss_seen_is_repeatable_and_grows_with_spread_and_metrics() -> None:
    one = ComparisonSize(8, 8, 0.025, 0.025)
    found = bounds.smallest_loss_seen(one, 0.008, 0.02)
    assert found == bounds.smallest_loss_seen(one, 0.008, 0.02)
    assert found is not None
    wide = bounds.smallest_loss_seen(one, 0.016, 0.02)
    many = bounds.smallest_loss_seen(ComparisonSize(8, 8, 0.025, 0.025 / 10), 0.016, 0.02)
    assert wide is not None
    assert many is not None
    assert found < wide < many
    assert (
        bounds.smallest_loss_seen(ComparisonSize(8, None, 0.025, 0.025 / 20), 0.008, 0.02) is None
    )
