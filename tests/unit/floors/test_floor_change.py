"""Did a change cost speed? Error rates and power over seeds, and comparisons that cannot be made. (c): acceptance list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.unit.floors.populations import DIGEST, USUAL, Circumstances, document

from goldnode.documents.canary import CanaryDocument
from goldnode.floors import bounds
from goldnode.floors.bounds import ComparisonSize, Values
from goldnode.floors.change import ChangeMetric, ChangeQuestion, arms_of, judge, metric_of
from goldnode.floors.limits import ALPHA, MARGIN
from goldnode.floors.results import FloorsError
from goldnode.floors.verdicts import SpeedAnswer, SpeedReport, SpeedVerdict

BEFORE = replace(USUAL, started="2026-11-20T08:00:00Z")
AFTER = replace(USUAL, started="2026-11-21T08:00:00Z", digest=f"sha256:{'b' * 64}")
CONTROL = replace(AFTER, digest=DIGEST)
SPREAD, RUNS_SPREAD = 0.02, 0.01  # between nodes, and between runs of a node: the GEMM population


@dataclass(frozen=True)
class Fleet:
    """Two arms of made-up nodes."""

    changed: int = 8
    control: int = 8
    runs: int = 5
    metrics: int = 1
    drift: float = 0.0  # of both arms, after
    better: str = "higher"


def arms(
    fleet: Fleet, seed: int, losses: Mapping[int, float]
) -> tuple[list[CanaryDocument], list[CanaryDocument]]:
    """Return results before and after; `losses` are those of metrics of the changed nodes."""
    random = np.random.default_rng(seed)
    shape = (fleet.changed + fleet.control, fleet.metrics)
    speeds = 600 * (1 + SPREAD * random.normal(size=shape))
    sign = 1 if fleet.better == "higher" else -1
    found: tuple[list[CanaryDocument], list[CanaryDocument]] = ([], [])
    for time, group in enumerate(found):
        values = speeds[..., None] * (1 + RUNS_SPREAD * random.normal(size=(*shape, fleet.runs)))
        for node in range(shape[0]):
            changed = node < fleet.changed
            given = BEFORE if time == 0 else AFTER if changed else CONTROL
            given = replace(given, metric={"better": fleet.better})
            factors = [
                (1 - sign * (losses.get(metric, 0.0) if changed else 0.0)) * (1 + fleet.drift)
                if time
                else 1.0
                for metric in range(fleet.metrics)
            ]
            samples = {
                f"m{metric:02d}": list(values[node, metric] * factors[metric])
                for metric in range(fleet.metrics)
            }
            group.append(document(f"gpu{node:03d}", samples, given))
    return found


ALL = ChangeQuestion()


def answer(
    fleet: Fleet, seed: int, loss: float = 0.0, question: ChangeQuestion = ALL
) -> SpeedReport:
    before, after = arms(fleet, seed, dict.fromkeys(range(fleet.metrics), loss))
    return judge(arms_of(before, after), question)


# Rates, by arrays


def losses(
    seed: int, trials: int, nodes: int, loss: float, drift: Values | float = 0.0, runs: int = 5
) -> Values:
    """Return the losses of nodes in many trials, as `judge` computes them: ratios of medians, as logarithms."""
    random = np.random.default_rng(seed)
    shape = (trials, nodes)
    speeds = 600 * (1 + SPREAD * random.normal(size=shape))
    medians = [
        np.median(
            speeds[..., None] * (1 + RUNS_SPREAD * random.normal(size=(*shape, runs))), axis=-1
        )
        for _ in range(2)
    ]
    return np.asarray(np.log(medians[0] / (medians[1] * (1 - loss) * (1 + np.asarray(drift)))))


def outcomes(changed: Values, control: Values | None) -> list[str]:
    """Return the answer of each trial for one metric, by the rule of `judge`."""
    margin = -np.log(1 - MARGIN)
    found = []
    for place, row in enumerate(changed):
        other = None if control is None else control[place]
        high = bounds.loss_bounds(row, other, ALPHA).high
        assert high is not None
        lost = bounds.loss_p_value(row, other) <= ALPHA
        found.append("passes" if high < margin else "fails" if lost else "inconclusive")
    return found


def rate(found: Sequence[str], name: str) -> float:
    return float(np.mean([one == name for one in found]))


@pytest.mark.parametrize("control", [True, False])
def test_loss_of_five_percent_is_stopped_and_no_loss_is_not(control: bool) -> None:
    """(c) 2, over 1,000 trials: a drift of up to 3 % of all nodes is taken out by the control arm."""
    drift = np.random.default_rng(99).uniform(-0.03, 0.03, size=(1000, 1)) if control else 0.0
    other = losses(2, 1000, 8, 0.0, drift) if control else None
    slow = outcomes(losses(1, 1000, 8, 0.05, drift), other)
    good = outcomes(losses(3, 1000, 8, 0.0, drift), other)
    assert rate(slow, "fails") >= 0.99
    assert rate(slow, "passes") == 0.0
    assert rate(good, "fails") <= 0.025
    assert rate(good, "passes") >= 0.975


def test_loss_at_the_margin_passes_as_seldom_as_stated() -> None:
    """Non-inferiority at 2.5 %: a loss of exactly the margin passes in at most 2.5 % (and chance)."""
    for control in (None, losses(5, 2000, 8, 0.0)):
        found = outcomes(losses(4, 2000, 8, MARGIN), control)
        assert rate(found, "passes") <= 0.025 + 3 * 0.0035
        assert rate(found, "fails") >= 0.9


def test_drift_without_a_control_arm_would_mislead() -> None:
    """The reason for the control arm: cooler nodes hide a loss of 3 %, and hotter ones stop a good change."""
    assert rate(outcomes(losses(6, 200, 8, 0.03, 0.03), None), "passes") > 0.9
    assert rate(outcomes(losses(7, 200, 8, 0.0, -0.03), None), "fails") > 0.9
    other = losses(8, 200, 8, 0.0, 0.03)
    assert rate(outcomes(losses(6, 200, 8, 0.03, 0.03), other), "passes") < 0.05


def test_subtracting_the_control_median_would_stop_good_changes() -> None:
    """The signed rank of losses less the control's median takes the error of the control arm for a loss."""
    changed, control = losses(9, 1000, 8, 0.0), losses(10, 1000, 8, 0.0)
    naive = [
        bounds.loss_p_value(row - np.median(other), None) <= ALPHA
        for row, other in zip(changed, control, strict=True)
    ]
    assert np.mean(naive) > 0.05
    ranked = [
        bounds.loss_p_value(row, other) <= ALPHA
        for row, other in zip(changed, control, strict=True)
    ]
    assert np.mean(ranked) <= 0.025 + 3 * 0.005


@pytest.mark.parametrize(
    ("changed", "control", "metrics", "runs"),
    [(8, 8, 1, 5), (8, None, 1, 5), (8, 8, 3, 5), (12, 20, 6, 9), (8, 4, 1, 5)],
)
def test_stated_power_is_true(changed: int, control: int | None, metrics: int, runs: int) -> None:
    """(c) 3: the smallest loss that a comparison states to see is stopped in at least 90 % of 500 others."""
    margin = -np.log(1 - MARGIN)
    size = ComparisonSize(changed, control, ALPHA, ALPHA / metrics)
    pilot = losses(11, 500, changed, 0.0, runs=runs)
    pilot_control = None if control is None else losses(12, 500, control, 0.0, runs=runs)
    fresh = losses(13, 500, changed, 0.0, runs=runs)
    fresh_control = None if control is None else losses(14, 500, control, 0.0, runs=runs)
    stopped, stated = [], []
    for trial in range(500):
        other = None if pilot_control is None else pilot_control[trial]
        seen = bounds.smallest_loss_seen(size, bounds.pooled_spread(pilot[trial], other), margin)
        assert seen is not None
        stated.append(seen)
        other = None if fresh_control is None else fresh_control[trial]
        found = fresh[trial] + seen
        high = bounds.loss_bounds(found, other, ALPHA).high
        assert high is not None
        # The first step of Holm is the strictest: the other metrics have no loss.
        stopped.append(bounds.loss_p_value(found, other) <= ALPHA / metrics and high >= margin)
    assert np.mean(stopped) >= 0.9
    assert np.median(stated) < 0.04, "a statement that is always true because it is vague"


def test_family_of_twenty_metrics_is_stopped_no_more_often_than_one() -> None:
    """(c) 11: 1,000 trials without a loss. Without Holm's correction more than a tenth would be stopped."""
    trials, metrics, nodes = 1000, 20, 12
    changed = losses(15, trials * metrics, nodes, 0.0)
    control = losses(16, trials * metrics, nodes, 0.0)
    found = stats.mannwhitneyu(changed, control, alternative="greater", axis=-1, method="exact")
    p_values = found.pvalue.reshape(trials, metrics)
    for row in range(20):
        assert bounds.loss_p_value(changed[row], control[row]) == pytest.approx(found.pvalue[row])
    corrected = np.mean([any(bounds.holm(list(row), ALPHA)) for row in p_values])
    assert corrected <= 0.025
    assert np.mean((p_values <= ALPHA).any(axis=1)) > 0.1


# Documents


def test_arrays_above_give_the_answers_that_documents_get() -> None:
    for seed, loss, expected in ((1, 0.0, "passes"), (2, 0.1, "fails"), (3, 0.05, "fails")):
        found = answer(Fleet(), seed, loss)
        (verdict,) = found.verdicts
        assert verdict.answer.value == expected
        before, after = arms(Fleet(), seed, {0: loss})
        values = [
            np.array([np.median(one.jobs[0].metrics[0].samples) for one in group])
            for group in (before, after)
        ]
        ratios = np.log(values[0] / values[1])
        limits = bounds.loss_bounds(ratios[:8], ratios[8:], ALPHA)
        assert limits.high is not None
        assert dict(verdict.details)["loss_at_most"] == pytest.approx(
            1 - np.exp(-limits.high), rel=1e-5
        )
        assert dict(verdict.details)["loss"] == pytest.approx(loss, abs=0.015)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_verdict_on_a_change_has_all_that_repeats_it(better: str) -> None:
    """(c) 15."""
    question = ChangeQuestion(repeat=("goldnode", "floors", "check", "after", "--before", "before"))
    (verdict,) = answer(Fleet(better=better), 4, 0.1, question).verdicts
    data = verdict.data()
    assert data["answer"] == "fails"
    assert (data["metric"], data["runs"], data["changed_nodes"], data["control_nodes"]) == (
        "m00",
        40,
        8,
        8,
    )
    assert data["baseline"] == "2026-11-20"
    assert data["repeat"] == "goldnode floors check after --before before --metric m00"
    worse, better_ = (data["bound"], data["floor"])
    assert (
        (worse < better_ < data["median_before"])
        if better == "higher"
        else (worse > better_ > data["median_before"])
    )
    assert data["loss"] == pytest.approx(0.1, abs=0.015)
    assert "is stopped with 90 % probability" in data["reason"]
    assert 0.01 < data["loss_seen"] < 0.04


def test_common_drift_is_no_loss_and_no_alibi() -> None:
    assert answer(Fleet(drift=-0.03), 5).answer is SpeedAnswer.PASSES
    assert answer(Fleet(drift=0.03), 6, 0.05).answer is SpeedAnswer.FAILS


TOO_FEW = {
    "nodes": (Fleet(changed=7), "7 changed nodes have 5 runs before and after, and 8 are needed"),
    "runs": (Fleet(runs=4), "0 changed nodes have 5 runs before and after, and 8 are needed"),
    "control": (Fleet(control=3), "3 unchanged nodes have enough runs, and 4 are needed"),
}


@pytest.mark.parametrize("kind", TOO_FEW)
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_too_few_results_are_inconclusive_and_never_pass(kind: str, loss: float) -> None:
    """(c) 6."""
    fleet, reason = TOO_FEW[kind]
    found = answer(fleet, 7, loss)
    assert found.answer is SpeedAnswer.INCONCLUSIVE
    assert found.verdicts[0].reason.startswith(reason)


def test_many_metrics_on_few_nodes_state_that_no_loss_can_be_shown() -> None:
    """Without a control arm, 2 ** -8 is above 0.025 / 20: a real loss is inconclusive, with the nodes that it needs."""
    found = answer(Fleet(control=0, metrics=20), 8, 0.1)
    assert found.answer is SpeedAnswer.INCONCLUSIVE
    assert "no loss can be shown: 20 metrics need 10 changed nodes" in found.verdicts[0].reason
    assert answer(Fleet(control=0, metrics=20, changed=12), 8, 0.1).answer is SpeedAnswer.FAILS
    assert answer(Fleet(control=0, metrics=6), 8, 0.1).answer is SpeedAnswer.FAILS


def test_one_lost_metric_of_many_is_named() -> None:
    before, after = arms(Fleet(metrics=5), 9, {3: 0.06})
    found = judge(arms_of(before, after), ChangeQuestion())
    assert {one.metric: one.answer.value for one in found.verdicts} == {
        "m00": "passes",
        "m01": "passes",
        "m02": "passes",
        "m03": "fails",
        "m04": "passes",
    }
    assert found.answer is SpeedAnswer.FAILS
    alone = judge(arms_of(before, after), ChangeQuestion((metric_of("m01"),)))
    assert alone.answer is SpeedAnswer.PASSES


UNCOUNTED: dict[str, dict[str, Any]] = {
    "throttled": {"conditions": {"throttled": ["hw_power_brake"]}},
    "clock": {"conditions": {"sm_mhz": [900.0, 1300.0]}},
    "runner": {"runner": f"sha256:{'2' * 64}"},
    "measured": {"simulated": False},
    "digest": {"digest": f"sha256:{'c' * 64}"},
}


@pytest.mark.parametrize("kind", UNCOUNTED)
def test_results_of_another_kind_are_not_counted_and_reported(kind: str) -> None:
    """(c) 7: one changed node of nine was measured otherwise, and shows a large loss: eight are left."""
    fleet = Fleet(changed=9)
    before, after = arms(fleet, 10, {})
    other = replace(AFTER, **UNCOUNTED[kind])
    after[0] = document("gpu000", {"m00": [100.0] * 5}, other)
    found = judge(arms_of(before, after), ChangeQuestion())
    assert found.answer is SpeedAnswer.PASSES
    assert dict(found.verdicts[0].details)["changed_nodes"] == 8
    assert found.uncounted[0].node == "gpu000"
    # All of them: nothing is left, and nothing passes.
    given = replace(AFTER, **UNCOUNTED[kind])
    all_after = [
        *(document(one.node, {"m00": [600.0] * 5}, given) for one in after[:9]),
        *after[9:],
    ]
    whole = judge(arms_of(before, all_after), ChangeQuestion((ChangeMetric("m00"),)))
    assert whole.answer is SpeedAnswer.INCONCLUSIVE or kind == "digest"


def test_control_arm_is_named_or_found_by_digest_and_image() -> None:
    before, after = arms(Fleet(changed=8, control=5), 11, {})
    found = arms_of(before, after)
    assert (len(found.changed), found.control) == (
        8,
        frozenset(f"gpu{node:03d}" for node in range(8, 13)),
    )
    named = arms_of(before, after, ["gpu012"])
    assert named.control == frozenset({"gpu012"})
    image = replace(CONTROL, image="sha256:new")
    moved = [document(one.node, {"m00": [600.0] * 5}, image) for one in before]
    assert arms_of(before, moved).control is None
    with pytest.raises(FloorsError, match="no node changed"):
        arms_of(before, before)
    with pytest.raises(FloorsError, match="no node has results before and after"):
        arms_of(before[:3], after[4:])


def test_quantile_of_a_change_needs_its_runs() -> None:
    assert metric_of("decode/cold:p99") == ChangeMetric("decode/cold", "p99")
    with pytest.raises(FloorsError, match='the quantile "p90"'):
        metric_of("decode:p90")
    question = ChangeQuestion((metric_of("m00:p95"),))
    few = answer(Fleet(runs=60), 12, 0.1, question)
    assert few.verdicts[0].reason.startswith("0 changed nodes have 90 runs before and after")
    enough: SpeedVerdict = answer(Fleet(runs=90), 12, 0.1, question).verdicts[0]
    assert (enough.answer, enough.metric) == (SpeedAnswer.FAILS, "m00 p95")


def test_devices_of_a_node_are_one_value() -> None:
    """Eight GPUs of one node are no eight nodes."""
    given: list[tuple[list[CanaryDocument], Circumstances]] = []
    before: list[CanaryDocument] = []
    after: list[CanaryDocument] = []
    given = [(before, BEFORE), (after, AFTER)]
    for group, one in given:
        for device in range(8):
            address = replace(one, metric={"device": f"0000:{device:02x}:00.0"})
            group.append(document("gpu000", {"m00": [600.0 + device] * 5}, address))
    found = judge(arms_of(before, after), ChangeQuestion())
    assert found.verdicts[0].reason.startswith("1 changed nodes have 5 runs")
