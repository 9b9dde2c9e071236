"""Learning of floors: what leaves a baseline, what is refused, and what a file has. Numbers (c) are the acceptance list."""

from __future__ import annotations

import random as shuffling
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.floors.populations import (
    DISTURBED,
    GEMM,
    RUNNER,
    TIGHT,
    USUAL,
    Circumstances,
    document,
    documents,
    names,
    write,
)

from goldnode.core.errors import GoldnodeError
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.floors import FloorsDocument
from goldnode.floors import baseline, results
from goldnode.floors.learn import LearnSettings, learn
from goldnode.floors.results import FloorsError

OWN = LearnSettings()


def learnt(*groups: list[CanaryDocument]) -> FloorsDocument:
    return learn([one for group in groups for one in group], OWN)


def scaled(factors: Mapping[str, float], seed: int = 1, nodes: int = 30) -> list[CanaryDocument]:
    """Return results of a tight population in which some nodes are slower."""
    random = np.random.default_rng(seed)
    return [
        document(
            name,
            {"gemm_fp16": list(TIGHT.runs(random, np.array(speed * factors.get(name, 1.0)), 20))},
        )
        for name, speed in zip(names(nodes), TIGHT.speeds(random, nodes), strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_floor_follows_the_margin_or_the_spread(seed: int) -> None:
    """min(median - margin, median - 3 sigma): the margin rules a tight metric, the spread a wide one."""
    random = np.random.default_rng(seed)
    (tight,) = learn(documents(TIGHT, random, 100), OWN).metrics
    statistic = tight.statistics[0]
    assert statistic.floor == pytest.approx(0.97 * statistic.median, rel=1e-6)
    (gemm,) = learn(documents(GEMM, random, 200), OWN).metrics
    statistic = gemm.statistics[0]
    assert statistic.floor == pytest.approx(statistic.median - 3 * statistic.sigma, rel=1e-6)
    assert statistic.sigma == pytest.approx(0.02 * 600, rel=0.25)
    assert statistic.low is not None
    assert statistic.high is not None
    assert statistic.low < 600 < statistic.high


def test_margin_of_one_metric_and_an_unknown_one() -> None:
    found = scaled({})
    (metric,) = learn(found, LearnSettings(margins={"gemm_fp16": 0.08})).metrics
    assert metric.statistics[0].floor == pytest.approx(0.92 * metric.statistics[0].median, rel=1e-6)
    with pytest.raises(FloorsError, match=r'there is no metric "gemm_fp61"\. Use "gemm_fp16"'):
        learn(found, LearnSettings(margins={"gemm_fp61": 0.08}))


def test_lower_is_better_has_a_ceiling_and_the_bad_side_is_the_upper_one() -> None:
    random = np.random.default_rng(3)
    given = replace(USUAL, metric={"better": "lower", "unit": "ms"})
    found = documents(GEMM, random, 20, runs=500, given=given)
    (metric,) = learn(found, LearnSettings(margin=0.05)).metrics
    by_name = {one.quantile: one for one in metric.statistics}
    assert by_name["p50"].floor > 1.05 * by_name["p50"].median - 1e-6
    assert by_name["p50"].median < by_name["p95"].median < by_name["p99"].median
    for one in metric.statistics:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.median <= one.high < one.floor


def test_200_runs_claim_no_p99_and_459_do() -> None:
    """(c) 9: p99 needs runs that bound it on both sides."""
    for runs, expected in (
        (89, ["p50"]),
        (90, ["p50", "p95"]),
        (200, ["p50", "p95"]),
        (458, ["p50", "p95"]),
        (459, ["p50", "p95", "p99"]),
    ):
        found = learn(documents(TIGHT, np.random.default_rng(4), 8, runs), OWN)
        assert [one.quantile for one in found.metrics[0].statistics] == expected, runs


@pytest.mark.parametrize("seed", range(20))
def test_heavy_tails_do_not_move_the_floor(seed: int) -> None:
    """(c) 5: the same population, with a run in 30 that takes twice as long: at most 0.5 %. Means would move by 1.7 %."""
    found = [
        documents(one, np.random.default_rng(seed), 200)
        for one in (replace(DISTURBED, disturbed=0.0), DISTURBED)
    ]
    means = [np.mean([one.jobs[0].metrics[0].samples for one in group]) for group in found]
    assert means[1] < 0.99 * means[0]
    floors = [learn(group, OWN).metrics[0].statistics[0].floor for group in found]
    assert floors[1] == pytest.approx(floors[0], rel=0.005)


@pytest.mark.parametrize("seed", range(10))
def test_two_firmware_versions_are_refused_and_both_modes_are_named(seed: int) -> None:
    """(c) 4: half of the nodes are 5 % slower."""
    found = scaled(dict.fromkeys(names(30)[:13], 0.95), seed)
    with pytest.raises(FloorsError) as caught:
        learn(found, OWN)
    text = caught.value.message
    assert text.startswith("gemm_fp16 has two modes, and no floor fits both: 5")
    assert "TFLOPS on 13 devices of 13 nodes (gpu000, gpu001, gpu002, gpu003, …)" in text
    assert "TFLOPS on 17 devices of 17 nodes (gpu013, gpu014, gpu015, gpu016, …)" in text


def test_modes_name_the_image_that_separates_them() -> None:
    slow = replace(USUAL, image="sha256:old")
    random = np.random.default_rng(5)
    found = [
        document(
            name,
            {"gemm_fp16": [speed * 0.9 if number < 10 else speed] * 9},
            slow if number < 10 else USUAL,
        )
        for number, (name, speed) in enumerate(
            zip(names(24), TIGHT.speeds(random, 24), strict=True)
        )
    ]
    with pytest.raises(
        FloorsError, match="the first were measured with image sha256:old, the second with none"
    ):
        learn(found, OWN)


def test_modes_within_half_of_the_margin_are_one_baseline() -> None:
    found = [
        document(name, {"x": [100.0 if number % 2 else 101.0] * 9})
        for number, name in enumerate(names(20))
    ]
    assert learn(found, OWN).metrics[0].statistics[0].floor == pytest.approx(100.5 * 0.97)


def test_devices_whose_place_explains_two_modes_get_a_floor_each() -> None:
    """Copies to the far NUMA node are slower on every node: that is the platform, not two classes."""
    random = np.random.default_rng(6)
    found = []
    for name in names(10):
        for device, speed in (("0000:0a:00.0", 50.0), ("0000:8a:00.0", 40.0)):
            runs = TIGHT.runs(random, np.array(speed), 9)
            found.append(
                document(name, {"h2d": list(runs)}, replace(USUAL, metric={"device": device}))
            )
    metrics = learn(found, OWN).metrics
    assert [(one.device, round(one.statistics[0].median)) for one in metrics] == [
        ("0000:0a:00.0", 50),
        ("0000:8a:00.0", 40),
    ]


@pytest.mark.parametrize("bad", [1, 3, 6])
def test_bad_nodes_leave_and_are_listed_with_the_reason(bad: int) -> None:
    factors = {name: 0.9 - 0.07 * number for number, name in enumerate(names(30)[:bad])}
    found = scaled(factors)
    document = learn(found, OWN)
    assert [one.node for one in document.left_out] == names(30)[:bad]
    assert all("below the floor of the others: bound" in one.why for one in document.left_out)
    assert document.nodes == names(30)[bad:]
    assert document.results == 30 - bad
    (metric,), (clean,) = document.metrics, learnt(scaled({})).metrics
    assert metric.statistics[0].floor == pytest.approx(clean.statistics[0].floor, rel=0.005)


def test_removal_goes_on_where_the_first_ones_hide_others() -> None:
    """Five nodes at a third widen the spread so far that the sixth, at 93 %, is seen only without them."""
    random = np.random.default_rng(8)
    wide = replace(TIGHT, spread=0.012)
    factors = dict.fromkeys(names(30)[:5], 0.3) | {"gpu005": 0.945}
    found = [
        document(name, {"m": list(wide.runs(random, np.array(speed * factors.get(name, 1.0)), 20))})
        for name, speed in zip(names(30), wide.speeds(random, 30), strict=True)
    ]
    assert {one.node for one in learn(found, OWN).left_out} == set(names(30)[:6])
    alone = learn([one for one in found if one.node not in names(30)[:5]], OWN)
    assert {one.node for one in alone.left_out} == {"gpu005"}


@pytest.mark.parametrize("bad", [7, 10])
def test_learning_is_refused_if_more_than_a_fifth_would_leave(bad: int) -> None:
    """(c) 14."""
    found = scaled({name: 0.9 - 0.07 * number for number, name in enumerate(names(30)[:bad])})
    with pytest.raises(
        FloorsError, match=rf"^{bad} of 30 nodes would leave \(gpu000, gpu001, gpu002, gpu003, …\)"
    ):
        learn(found, OWN)


def test_spread_without_a_meaning_gives_no_floor() -> None:
    random = np.random.default_rng(9)
    found = [
        document(name, {"m": [float(value)] * 9})
        for name, value in zip(names(40), random.uniform(10, 900, 40), strict=True)
    ]
    with pytest.raises(FloorsError, match="no metric has a floor: the devices differ so much"):
        learn(found, OWN)


# Results that do not count

UNCOUNTED: dict[str, tuple[Circumstances, str]] = {
    "throttled": (
        replace(USUAL, conditions={"throttled": ["hw_power_brake", "sw_thermal"]}),
        "the device was slowed from outside: hw_power_brake, sw_thermal",
    ),
    "clock": (
        replace(USUAL, conditions={"sm_mhz": [1100.0, 1500.0]}),
        "the SM clock rose to 1500 MHz, and to 1980 in the others",
    ),
    "runner": (
        replace(USUAL, runner=f"sha256:{'2' * 64}"),
        "it is of runner sha256:222222222222…, and not sha256:111111111111…",
    ),
    "measured": (replace(USUAL, simulated=False), "it is measured, and the others are simulated"),
    "digest": (
        replace(USUAL, digest=f"sha256:{'b' * 64}"),
        "it is of class digest sha256:bbbbbbbbbbbb…, and not sha256:aaaaaaaaaaaa…",
    ),
    "failed": (
        replace(USUAL, job={"state": "failed", "why": "wrong product"}),
        "job gemm is failed: wrong product",
    ),
    "arrived": (
        replace(USUAL, job={"state": "not_counted", "why": "a job arrived"}),
        "job gemm is not counted: a job arrived",
    ),
    "few": (USUAL, "4 runs count, and 9 are needed"),
    "zero": (USUAL, "a sample is 0, and only positive ones can be compared"),
}


def uncounted(kind: str) -> CanaryDocument:
    """Return a result far above all others, which must not be counted."""
    samples = {"few": [2000.0] * 4, "zero": [0.0] * 9}.get(kind, [2000.0] * 20)
    return document("gpu900", {"gemm_fp16": samples}, UNCOUNTED[kind][0])


@pytest.mark.parametrize("kind", [kind for kind in UNCOUNTED if kind != "measured"])
def test_result_that_does_not_count_is_reported_and_changes_nothing(kind: str) -> None:
    """(c) 7."""
    clean, found = learnt(scaled({})), learnt(scaled({}), [uncounted(kind)])
    (row,) = found.left_out
    assert (row.node, row.why, row.results) == ("gpu900", UNCOUNTED[kind][1], 1)
    assert found.model_copy(update={"left_out": []}) == clean


def test_simulated_and_measured_results_are_never_mixed() -> None:
    with pytest.raises(
        FloorsError, match="class h200 on NVIDIA H200 x 1; class h200 on NVIDIA H200 x 1, simulated"
    ):
        learnt(scaled({}), [uncounted("measured")])


def test_most_nodes_decide_which_runner_is_learnt() -> None:
    other = f"sha256:{'2' * 64}"
    late = replace(USUAL, runner=other, started="2026-11-25T00:00:00Z")
    few = [document(name, {"gemm_fp16": [900.0] * 9}, late) for name in names(10)]
    assert learnt(scaled({}), few).runner == RUNNER
    many = [document(name, {"gemm_fp16": [900.0] * 9}, late) for name in names(30)]
    assert learnt(scaled({}), many).runner == other, "of equally many, the newest"


def test_class_and_platform_select_the_results() -> None:
    far = [
        document(name, {"gemm_fp16": [900.0] * 9}, replace(USUAL, platform="NVIDIA H200 x 8"))
        for name in names(9)
    ]
    both = [*scaled({}), *far]
    with pytest.raises(FloorsError, match="several kinds"):
        learn(both, OWN)
    assert len(learn(both, LearnSettings(platform="NVIDIA H200 x 8")).nodes) == 9
    with pytest.raises(FloorsError, match="no result is of class l4 on platform any"):
        learn(both, LearnSettings(class_="l4"))


# Few nodes


def test_one_node_has_a_floor_of_its_own() -> None:
    random = np.random.default_rng(2)
    found = learn(documents(TIGHT, random, 1, runs=30), OWN)
    assert found.scope == "nodes"
    (metric,) = found.metrics
    assert (metric.node, metric.device, metric.nodes, metric.devices) == (
        "gpu000",
        "0000:0a:00.0",
        1,
        1,
    )
    assert metric.statistics[0].sigma > 0, "the spread of runs"


def test_repeats_of_one_node_give_the_spread_between_runs_of_the_suite() -> None:
    """Within each result the runs agree to 0.01 %; between results they differ by 2 %."""
    random = np.random.default_rng(2)
    found = [
        document(
            "gpu000",
            {"m": list(600 * (1 + 0.02 * random.normal()) * (1 + 1e-4 * random.normal(size=20)))},
            replace(USUAL, started=f"2026-11-{day:02d}T00:00:00Z"),
        )
        for day in range(1, 13)
    ]
    statistic = learn(found, OWN).metrics[0].statistics[0]
    assert 0.008 < statistic.sigma / statistic.median < 0.04
    assert learn(found, OWN).results == 12


def test_runs_of_one_node_that_differ_too_much_give_no_floor() -> None:
    runs = list(np.random.default_rng(3).uniform(100, 900, 30))
    found = [document("gpu000", {"wild": runs, "tame": [600.0 + place for place in range(30)]})]
    baseline = learn(found, OWN)
    assert [one.name for one in baseline.metrics] == ["tame"]
    (row,) = baseline.left_out
    assert row.metric == "wild"
    assert row.why.startswith("the runs differ so much that the floor would be")


# Files


def test_same_results_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    """(c) 8."""
    found = [*scaled({"gpu003": 0.8}), uncounted("clock"), uncounted("few"), uncounted("runner")]
    texts = set()
    for seed in range(3):
        shuffling.Random(seed).shuffle(found)  # noqa: S311
        read = results.read([write(tmp_path / str(seed), found)])
        texts.add(baseline.content(learn(read, OWN)))
    assert len(texts) == 1


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    found = {}
    for name, options in {
        "ed25519": ["-algorithm", "ed25519"],
        "ecdsa": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    }.items():
        secret, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        subprocess.run(
            ["openssl", "genpkey", *options, "-out", secret], check=True, capture_output=True
        )
        secret.chmod(0o600)
        subprocess.run(["openssl", "pkey", "-in", secret, "-pubout", "-out", public], check=True)
        found[name] = (secret, public)
    return found


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_baseline_is_signed_and_the_same_twice(tmp_path: Path, keys: Any, kind: str) -> None:
    secret, public = keys[kind]
    file, document = tmp_path / "h200.json", learnt(scaled({}))
    baseline.write(document, file, secret)
    first = file.read_bytes(), baseline.envelope_of(file).read_bytes()
    baseline.write(document, file, secret)
    assert (file.read_bytes(), baseline.envelope_of(file).read_bytes()) == first
    found = baseline.read(file, [public])
    assert found.document == document
    assert found.keyid
    assert baseline.read(file).keyid is None


def test_wrong_signatures_are_refused(tmp_path: Path, keys: Any) -> None:
    secret, public = keys["ed25519"]
    file, document = tmp_path / "h200.json", learnt(scaled({}))

    def refusal(*trusted: Path) -> str:
        with pytest.raises(GoldnodeError) as caught:
            baseline.read(file, trusted)
        return caught.value.message

    baseline.write(document, file, None)
    assert refusal(public) == "the baseline is not signed, and a public key is named"
    baseline.write(document, file, secret)
    assert "signed by a key that is not known" in refusal(keys["ecdsa"][1])
    file.write_bytes(file.read_bytes().replace(b'"floor": 5', b'"floor": 2', 1))
    assert refusal(public) == "the baseline differs from what was signed"
    envelope = baseline.envelope_of(file)
    envelope.write_bytes(envelope.read_bytes().replace(b'"payload":"e', b'"payload":"f', 1))
    assert refusal(public).startswith("the signature is wrong")
    baseline.write(document, file, None)
    assert not envelope.exists(), "an unsigned baseline has no signature of an earlier one"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", r"x\.json:1: the file is no JSON"),
        ("[" * 100_000, r"the file is no JSON"),
        ("[]", "the file has the schema None, and goldnode.canary/1 is expected"),
        ('{"schema": "goldnode.canary/2"}', "the file has the schema goldnode.canary/2"),
        ('{"schema": "goldnode.canary/1"}', "simulated: Field required"),
    ],
)
def test_files_that_are_no_results_are_errors_with_their_name(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(FloorsError, match=expected):
        results.read([file])


def test_directory_is_read_deep_and_other_documents_in_it_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a/b", scaled({}, nodes=9))
    (tmp_path / "verdict.json").write_text('{"schema": "goldnode.verdict/1"}')
    (tmp_path / "copy.json").write_bytes(next((tmp_path / "a/b").glob("*.json")).read_bytes())
    assert [one.node for one in results.read([tmp_path])] == names(9)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FloorsError, match="there are no canary results here"):
        results.read([tmp_path / "empty"])
