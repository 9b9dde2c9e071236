"""Is a node slow? False flags and misses over populations, and results that are not judged. (c): the acceptance list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.floors.populations import (
    DISTURBED,
    GEMM,
    TIGHT,
    USUAL,
    WIDE,
    Circumstances,
    Population,
    document,
    documents,
    names,
)

from goldnode.documents.canary import CanaryDocument
from goldnode.floors import bounds
from goldnode.floors.baseline import FloorBaseline
from goldnode.floors.counting import RUNS
from goldnode.floors.dead_board import dead_board_floors
from goldnode.floors.learn import LearnSettings, floor_of, learn
from goldnode.floors.results import FloorsError
from goldnode.floors.slow import SlowQuestion, judge
from goldnode.floors.verdicts import SpeedAnswer, SpeedReport

FILE = Path("floors/h200.json")
POPULATIONS = {"tight": TIGHT, "gemm": GEMM, "wide": WIDE, "disturbed": DISTURBED}
# Population -> share of bad nodes that the study of the fleet missed with a bound below the floor, of its table.
MISSED = {"tight": 0.005, "gemm": 0.10, "wide": 0.42, "disturbed": 0.10}
SEEDS = 100


def flagged(population: Population, seed: int, learnt: int, judged: int) -> tuple[int, int]:
    """Return how many of `judged` healthy nodes are flagged, and how many of as many bad ones are not."""
    random = np.random.default_rng(seed)
    medians = bounds.quantile(population.runs(random, population.speeds(random, learnt), RUNS), 0.5)
    floor = floor_of(medians, population.margin)
    found = []
    for factor in (1.0, 1 - population.loss):
        runs = population.runs(random, factor * population.speeds(random, judged), RUNS)
        bound = bounds.upper_bound(runs)
        assert bound is not None
        found.append(int(np.sum(bound < floor)))
    return found[0], judged - found[1]


@pytest.mark.parametrize("name", POPULATIONS)
def test_false_flags_and_misses_over_a_population(name: str) -> None:
    """(c) 1: 100 seeds of a class of 10,000 nodes: at most 3 false flags, and no more misses than the study."""
    found = [flagged(POPULATIONS[name], seed, 10_000, 10_000) for seed in range(SEEDS)]
    flags, misses = np.mean(found, axis=0)
    assert flags <= 3.0
    assert misses / 10_000 <= MISSED[name]


def test_flagging_by_arrays_is_what_documents_get() -> None:
    """The figures above come from the functions that judge documents: the same nodes are flagged."""
    random = np.random.default_rng(1)
    found = documents(GEMM, random, 60, RUNS)
    factors = np.where(np.arange(40) % 2, 0.9, 1.0)
    runs = GEMM.runs(random, factors * GEMM.speeds(random, 40), RUNS)
    checked = [
        document(f"new{number:02d}", {"gemm_fp16": list(row)}) for number, row in enumerate(runs)
    ]
    baseline = FloorBaseline(learn(found, LearnSettings(margin=GEMM.margin)), FILE, None)
    report = judge(checked, baseline, SlowQuestion())
    medians = np.array([float(np.median(one.jobs[0].metrics[0].samples)) for one in found])
    bound = bounds.upper_bound(np.array([one.jobs[0].metrics[0].samples for one in checked]))
    assert bound is not None
    slow = bound < floor_of(medians, GEMM.margin)
    assert [one.answer is SpeedAnswer.FAILS for one in report.verdicts] == slow.tolist()
    assert 5 < slow.sum() <= 20


# Documents

RANDOM = np.random.default_rng(4)
BASELINE = FloorBaseline(learn(documents(TIGHT, RANDOM, 40), LearnSettings()), FILE, None)


def result(
    speed: float, runs: int = 20, given: Circumstances = USUAL, node: str = "gpu900"
) -> CanaryDocument:
    """Return a result of a node at a share of the speed of its class."""
    values = TIGHT.runs(np.random.default_rng(5), np.array(600 * speed), runs)
    return document(node, {"gemm_fp16": list(values)}, given)


ALL = SlowQuestion()


def judged(*found: CanaryDocument, question: SlowQuestion = ALL) -> SpeedReport:
    return judge(found, BASELINE, question)


def test_board_at_three_quarters_is_flagged_where_the_data_sheet_floor_passes() -> None:
    """(c) 12: 450 TFLOPS are above the 45 % of the data sheet that goldnode-smoke asks for."""
    assert dead_board_floors("NVIDIA H200 x 1")["fp16"] == pytest.approx(0.45 * 989, abs=0.1)
    found = judged(result(0.75))
    assert found.answer is SpeedAnswer.FAILS
    (verdict,) = found.verdicts
    assert verdict.median is not None
    assert verdict.median > dead_board_floors("NVIDIA H200 x 1")["fp16"]
    assert verdict.reason.startswith("slow: 75.")
    assert judged(result(1.0)).answer is SpeedAnswer.PASSES
    assert dead_board_floors("AMD EPYC x 1") == {}


def test_verdict_has_all_that_repeats_it() -> None:
    """(c) 15: metric, n, median, bound, floor, date of the baseline, command to repeat it."""
    question = SlowQuestion(paths=("results/today",))
    (verdict,) = judged(result(0.9), question=question).verdicts
    data = verdict.data()
    assert data["metric"] == "gemm_fp16"
    assert data["runs"] == 20
    assert data["median"] < data["bound"] < data["floor"] < data["class_median"]
    assert data["baseline"] == "2026-11-20"
    assert data["repeat"] == (
        "goldnode floors check results/today --baseline floors/h200.json --node gpu900 --metric gemm_fp16"
    )
    for part in (
        "gemm_fp16",
        "of 20 runs",
        "bound 5",
        "floor 5",
        "baseline of 2026-11-20",
        data["repeat"],
    ):
        assert part in verdict.sentence()


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_fewer_runs_than_needed_are_inconclusive_and_never_pass(speed: float) -> None:
    """(c) 6."""
    found = judged(result(speed, runs=RUNS - 1))
    assert found.answer is SpeedAnswer.INCONCLUSIVE
    assert found.verdicts[0].reason == "8 runs count, and 9 are needed"
    assert judged(result(speed, runs=RUNS)).answer is not SpeedAnswer.INCONCLUSIVE
    # Two results of four and five runs are nine runs.
    parts = result(speed, 4), result(speed, 5, replace(USUAL, started="2026-11-21T00:00:00Z"))
    assert judged(*parts).answer is judged(result(speed, RUNS)).answer


UNCOUNTED = {
    "throttled": (
        replace(USUAL, conditions={"throttled": ["hw_power_brake"]}),
        "the device was slowed from outside: hw_power_brake",
    ),
    "clock": (
        replace(USUAL, conditions={"sm_mhz": [900.0, 1300.0]}),
        "the SM clock rose to 1300 MHz, and to 1980 in the others",
    ),
    "runner": (
        replace(USUAL, runner=f"sha256:{'2' * 64}"),
        "the baseline does not fit: it is of runner sha256:2222",
    ),
    "stale": (
        replace(USUAL, digest=f"sha256:{'b' * 64}"),
        "the baseline does not fit: it is of class digest sha256:bbbb",
    ),
    "measured": (
        replace(USUAL, simulated=False),
        "the baseline does not fit: it is measured, and the others are simulated",
    ),
    "job": (
        replace(USUAL, job={"state": "not_counted", "why": "a job arrived"}),
        "job gemm is not counted: a job",
    ),
}


@pytest.mark.parametrize("kind", UNCOUNTED)
@pytest.mark.parametrize("speed", [0.5, 1.0])
def test_result_that_does_not_count_is_inconclusive_with_its_reason(
    kind: str, speed: float
) -> None:
    """(c) 7 and 8: neither slow nor well; another class digest makes the baseline stale."""
    given, why = UNCOUNTED[kind]
    found = judged(result(speed, given=given))
    assert found.answer is SpeedAnswer.INCONCLUSIVE
    (verdict,), (row,) = found.verdicts, found.uncounted
    assert why in row.why
    assert verdict.reason.startswith("no run counts (1 not counted: ")
    assert why in verdict.reason
    # Enough other runs decide, and the row is still reported.
    both = judged(result(0.5), result(2.0, given=given))
    assert both.answer is SpeedAnswer.FAILS
    assert why in both.uncounted[0].why


def test_board_that_throttles_by_itself_is_slow() -> None:
    """Its clock starts where the others' does, and sinks: that is no other setting."""
    hot = replace(USUAL, conditions={"sm_mhz": [600.0, 1965.0], "temperature_c": [60.0, 90.0]})
    assert judged(result(0.8, given=hot)).answer is SpeedAnswer.FAILS


def test_board_at_its_power_limit_is_slow_if_other_jobs_show_the_usual_clock() -> None:
    """In products the clock of a leaky board is 10 % lower; its setting shows in a job that needs less power."""
    limited = result(0.9, given=replace(USUAL, conditions={"sm_mhz": [1200.0, 1300.0]}))
    idle = result(1.0, given=replace(USUAL, metric={"name": "launch"})).jobs[0]
    assert judged(limited).answer is SpeedAnswer.INCONCLUSIVE
    whole = limited.model_copy(update={"jobs": [*limited.jobs, idle]})
    assert judged(whole).answer is SpeedAnswer.FAILS


def test_one_slow_device_fails_a_node_and_a_missing_metric_is_inconclusive() -> None:
    other = replace(USUAL, metric={"device": "0000:8a:00.0"})
    found = judged(result(1.0), result(0.8, given=other))
    assert [(one.subject, one.answer.value) for one in found.verdicts] == [
        ("gpu900 0000:0a:00.0", "passes"),
        ("gpu900 0000:8a:00.0", "fails"),
    ]
    assert found.answer is SpeedAnswer.FAILS
    renamed = replace(USUAL, metric={"name": "gemm_bf16"})
    assert judged(result(1.0, given=renamed)).answer is SpeedAnswer.INCONCLUSIVE
    with pytest.raises(FloorsError, match='no result of node "gpu901"'):
        judged(result(1.0), question=SlowQuestion(nodes=("gpu901",)))


def test_device_whose_runs_do_not_count_is_inconclusive_though_the_others_of_its_node_pass() -> (
    None
):
    conditions = {"throttled": ["hw_slowdown"]}
    slowed = replace(USUAL, conditions=conditions, metric={"device": "0000:8a:00.0"})
    found = judged(result(1.0), result(0.5, given=slowed))
    assert [(one.subject, one.answer.value) for one in found.verdicts] == [
        ("gpu900 0000:0a:00.0", "passes"),
        ("gpu900 0000:8a:00.0", "inconclusive"),
    ]
    assert "slowed from outside: hw_slowdown" in found.verdicts[1].reason
    assert found.answer is SpeedAnswer.INCONCLUSIVE


def test_cold_and_warm_have_floors_of_their_own() -> None:
    cold = replace(USUAL, metric={"phase": "cold"})
    random = np.random.default_rng(6)
    slow = replace(TIGHT, median=300.0)
    baseline = FloorBaseline(
        learn(
            [*documents(TIGHT, random, 20), *documents(slow, random, 20, given=cold)],
            LearnSettings(),
        ),
        FILE,
        None,
    )
    found = judge([result(0.5, given=cold), result(1.0)], baseline, SlowQuestion())
    assert [(one.metric, one.answer.value) for one in found.verdicts] == [
        ("gemm_fp16", "passes"),
        ("gemm_fp16/cold", "passes"),
    ]


def test_p99_is_judged_by_bounds_and_only_with_enough_runs() -> None:
    """(c) 9: a node whose tail alone is bad passes p50 and fails p99; with 200 runs there is no verdict on p99."""
    random = np.random.default_rng(7)
    latency = replace(USUAL, metric={"better": "lower", "unit": "ms"})
    baseline = FloorBaseline(
        learn(documents(TIGHT, random, 12, 1000, latency), LearnSettings()), FILE, None
    )

    def tail(runs: int) -> dict[str, str]:
        values = TIGHT.runs(random, np.array(600.0), runs)
        values[: runs // 20] *= 1.5
        found = judge(
            [document("gpu900", {"gemm_fp16": list(values)}, latency)], baseline, SlowQuestion()
        )
        return {one.metric: one.answer.value for one in found.verdicts}

    assert tail(1000) == {
        "gemm_fp16": "passes",
        "gemm_fp16 p95": "passes",
        "gemm_fp16 p99": "fails",
    }
    assert tail(200) == {"gemm_fp16": "passes", "gemm_fp16 p95": "passes"}
    assert tail(50) == {"gemm_fp16": "passes"}


# Baselines of few nodes


def test_baseline_of_one_node_judges_this_node_alone() -> None:
    random = np.random.default_rng(8)
    results = [one for _ in range(5) for one in documents(TIGHT, random, 1, 30)]
    own = FloorBaseline(learn(results, LearnSettings()), FILE, None)
    few = FloorBaseline(learn(results[:4], LearnSettings()), FILE, None)
    later = replace(USUAL, started="2026-11-22T00:00:00Z")
    for speed, answer in ((1.0, "passes"), (0.9, "fails")):
        values = TIGHT.runs(random, 600 * speed * np.ones(1), 20)[0]
        slower = [document("gpu000", {"gemm_fp16": list(values)}, later)]
        assert judge(slower, own, SlowQuestion()).answer.value == answer
    (unsure,) = judge(slower, few, SlowQuestion()).verdicts
    assert unsure.answer is SpeedAnswer.INCONCLUSIVE
    assert "the baseline has 4 results of this device, and 5 are needed" in unsure.reason
    found = judge([result(0.5)], own, SlowQuestion())
    assert found.answer is SpeedAnswer.INCONCLUSIVE
    assert (
        found.verdicts[0].reason
        == "the baseline is of gpu000 alone, and has too few nodes to judge others"
    )


@pytest.mark.parametrize("seed", range(50))
def test_clean_repeats_of_one_node_are_never_flagged(seed: int) -> None:
    """A real process has no normal runs: log-normal with a disturbed run in 30, and 1 % between runs of the suite."""
    random = np.random.default_rng(seed)

    def repeat(factor: float = 1.0) -> CanaryDocument:
        level = 600 * factor * (1 + 0.01 * random.normal())
        values = level / np.exp(0.01 * np.abs(random.normal(size=20)))
        values = np.where(random.random(20) < 1 / 30, values / 2, values)
        return document(
            "gpu000",
            {"gemm_fp16": list(values)},
            replace(USUAL, started=f"2026-11-20T08:00:{random.integers(60):02d}Z"),
        )

    baseline = FloorBaseline(learn([repeat() for _ in range(9)], LearnSettings()), FILE, None)
    assert all(
        judge([repeat()], baseline, SlowQuestion()).answer is SpeedAnswer.PASSES for _ in range(5)
    )
    assert names(1) == baseline.document.nodes
