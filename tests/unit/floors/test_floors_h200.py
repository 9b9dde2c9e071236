"""Floors of a real H200: six recorded results of the canary suite, three of each of two releases of its runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.documents.canary import CanaryDocument
from goldnode.floors.baseline import FloorBaseline
from goldnode.floors.dead_board import dead_board_floors
from goldnode.floors.learn import LearnSettings, learn
from goldnode.floors.results import read
from goldnode.floors.slow import SlowQuestion, judge

RECORDED = Path(__file__).parents[1] / "canary/recorded"
FILES = [RECORDED / f"h200-{number}.json" for number in (1, 2, 3)]
LATER = [RECORDED / f"h200-{number}.json" for number in (4, 5, 6)]
STEADY = (
    "gemm_fp16",
    "gemm_bf16",
    "gemm_fp8",
    "gemm_tf32",
    "memory_copy_kernel",
    "memory_triad",
    "h2d_node0",
    "d2h_node0",
)


def scaled(document: CanaryDocument, factor: float) -> CanaryDocument:
    """Return the result of a device that is slower by a factor."""
    content = document.model_dump(by_alias=True)
    for job in content["jobs"]:
        for metric in job["metrics"]:
            own = factor if metric["better"] == "higher" else 1 / factor
            metric["samples"] = [own * value for value in metric["samples"]]
    return CanaryDocument.model_validate(content)


def six() -> list[CanaryDocument]:
    """Return all results as those of one runner: the two releases differ in the warm-up before the samples."""
    return [
        one.model_copy(update={"runner": f"sha256:{'0' * 64}"}) for one in read([*FILES, *LATER])
    ]


def answers(
    learnt: list[CanaryDocument], judged: CanaryDocument, metrics: tuple[str, ...]
) -> dict[str, str]:
    baseline = FloorBaseline(learn(learnt, LearnSettings()), Path("h200.json"), None)
    found = judge([judged], baseline, SlowQuestion(metrics)).verdicts
    return {one.metric: one.answer.value for one in found if one.runs}


@pytest.mark.parametrize("left", range(6))
def test_each_result_passes_the_floors_of_the_other_five_and_a_tenth_less_fails(left: int) -> None:
    results = six()
    judged = results.pop(left)
    assert set(answers(results, judged, STEADY).values()) == {"passes"}
    assert answers(results, scaled(judged, 0.9), STEADY) == dict.fromkeys(STEADY, "fails")


@pytest.mark.parametrize("files", [FILES, LATER], ids=["first runner", "second runner"])
@pytest.mark.parametrize("left", range(3))
def test_two_results_of_a_device_call_nothing_slow(files: list[Path], left: int) -> None:
    """Three healthy results in a row: without this rule, the last one had ten slow metrics by the other two."""
    results = read(files)
    judged = results.pop(left)
    assert set(answers(results, judged, STEADY).values()) == {"passes"}
    assert "fails" not in answers(results, judged, ()).values()
    slower = list(answers(results, scaled(judged, 0.9), STEADY).values())
    assert slower.count("inconclusive") >= len(STEADY) - 1
    assert "fails" not in slower


def test_p99_of_a_real_device_is_bounded_by_more_than_a_thousand_runs() -> None:
    baseline = learn(read(FILES), LearnSettings())
    rows = {one.name: one for one in baseline.metrics if one.phase == "warm"}
    for name in ("inference", "launch"):
        p99 = next(one for one in rows[name].statistics if one.quantile == "p99")
        assert rows[name].runs >= 1000
        assert p99.low is not None
        assert p99.high is not None
        assert p99.low <= p99.median <= p99.high < p99.floor


def test_real_gemm_is_far_above_the_dead_board_floor() -> None:
    baseline = learn(read(FILES), LearnSettings())
    floor = next(one for one in baseline.metrics if one.name == "gemm_fp16").statistics[0].floor
    assert floor > 1.3 * dead_board_floors(baseline.platform)["fp16"]
