"""Storing results, and the quantiles with their bounds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.canary import results
from goldnode.canary.errors import CanaryError
from goldnode.documents.canary import CanaryDocument, CanaryMetric

RECORDED = Path(__file__).parent / "recorded/h200-2.json"


def metric(samples: list[float], better: str = "lower") -> CanaryMetric:
    conditions = {"sm_mhz": None, "temperature_c": None, "power_w": None, "throttled": None}
    return CanaryMetric.model_validate(
        {
            "name": "x",
            "unit": "ms",
            "better": better,
            "device": None,
            "phase": "warm",
            "samples": samples,
            "conditions": conditions,
        }
    )


@pytest.mark.parametrize(
    ("share", "fewest"),
    [(0.99, 299), (0.95, 59), (0.5, 5)],  # least n with share ** n <= 5 %
)
def test_too_few_samples_make_no_claim(share: float, fewest: int) -> None:
    assert results.bound_rank(fewest - 1, share) is None
    assert results.bound_rank(fewest, share) == fewest


def test_two_hundred_samples_have_no_bound_of_the_99th_percentile() -> None:
    p50, p95, p99 = results.quantiles(metric([float(number) for number in range(200)]))
    assert (p50.bound is None, p95.bound is None, p99.bound is None) == (False, False, True)


def test_the_bound_holds_as_often_as_stated() -> None:
    chance, count, held = random.Random(11), 600, 0  # noqa: S311
    for _ in range(400):
        found = results.quantiles(metric([chance.random() for _ in range(count)]))[2]
        held += found.bound is not None and found.bound >= 0.99
    assert held >= 0.92 * 400  # 95 % stated; below 92 % has a probability of about 0.5 %


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400), st.sampled_from(["lower", "higher"])
)
def test_quantiles_go_towards_the_bad_end(samples: list[float], better: str) -> None:
    found = results.quantiles(metric(samples, better))
    sign = 1 if better == "lower" else -1
    values = [sign * one.value for one in found]
    assert values == sorted(values)
    assert all(one.value in samples for one in found)
    assert all(one.bound is None or sign * one.bound >= sign * one.value for one in found)


def test_results_of_one_second_are_both_stored(tmp_path: Path) -> None:
    document = CanaryDocument.model_validate_json(RECORDED.read_text())
    first, second = (
        results.store(document.model_copy(update={"node": "../n1"}), tmp_path) for _ in range(2)
    )
    assert first != second
    assert {first.parent, second.parent} == {tmp_path / "_n1"}
    assert [results.load(path).platform for path in results.files([tmp_path])] == [
        "NVIDIA H200 x 1"
    ] * 2
    assert [path.name for path in first.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", RECORDED.read_text().replace("goldnode.canary/1", "goldnode.canary/2")]
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(CanaryError) as caught:
        results.load(path)
    assert caught.value.file == str(path)
