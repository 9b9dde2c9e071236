"""Floors of a real H200: three recorded results of the canary suite on one node."""

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


@pytest.mark.parametrize("left", FILES, ids=lambda path: path.stem)
def test_each_result_passes_the_floors_of_the_others_and_a_tenth_less_fails(left: Path) -> None:
    baseline = learn(read([file for file in FILES if file != left]), LearnSettings())
    assert not baseline.simulated
    known = FloorBaseline(baseline, Path("h200.json"), None)
    (found,) = read([left])
    question = SlowQuestion(STEADY)
    assert {one.answer.value for one in judge([found], known, question).verdicts if one.runs} == {"passes"}
    answers = {one.metric: one.answer.value for one in judge([scaled(found, 0.9)], known, question).verdicts}
    assert answers == dict.fromkeys(STEADY, "fails")


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
