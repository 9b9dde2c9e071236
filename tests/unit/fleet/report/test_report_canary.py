"""Canary results in the report: slow nodes by floors and by their class, failed jobs, nodes that become slower."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulators.fleet import NOW, Json, canary, fleet, store, store_results

from goldnode.cli import main
from goldnode.commands.fleet.report_page import html
from goldnode.commands.fleet.report_text import as_text
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.fleet_report import FleetReportDocument
from goldnode.documents.floors import FloorsDocument
from goldnode.fleet.ingest import files
from goldnode.fleet.ingest.results import quantile_with_bound
from goldnode.fleet.report.anonymous import anonymous
from goldnode.fleet.report.build import report
from goldnode.fleet.report.engine import opened, rows
from goldnode.fleet.report.frame import ReportSettings, ReportSource
from goldnode.floors import baseline, bounds, learn, slow
from goldnode.floors.counting import RUNS, SHARES, runs_needed
from goldnode.floors.verdicts import SpeedAnswer

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DEVICES = ("0000:0a:00.0", "0000:0b:00.0")
NODES = fleet(10)


class Speeds:
    """Speeds of devices: 2 % between them, 1 % between runs; some nodes have lost a share."""

    def __init__(self, seed: int = 1, lost: dict[str, float] | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable
        self.lost = lost or {}
        self.speeds: dict[tuple[str, str], float] = {}

    def runs(self, node: str, device: str, factor: float = 1.0, count: int = 20) -> list[float]:
        speed = self.speeds.setdefault((node, device), 600 * self.random.gauss(1, 0.02))
        left = factor * (1 - self.lost.get(node, 0.0))
        return [speed * left * self.random.gauss(1, 0.01) for _ in range(count)]

    def result(
        self, node: str, time: datetime, factor: float = 1.0, count: int = 20, **more: Any
    ) -> Json:
        samples = {"gemm_fp16": {one: self.runs(node, one, factor, count) for one in DEVICES}}
        return canary(node, time, samples, **more)


def learned(found: Sequence[Json]) -> FloorsDocument:
    documents = [CanaryDocument.model_validate_json(json.dumps(one)) for one in found]
    return learn.learn(documents, learn.LearnSettings())


@cache
def usual_floors() -> FloorsDocument:
    """Return the baseline of 30 healthy nodes, measured 20 days ago."""
    return learned([Speeds(number).result(f"old{number}", NOW - 20 * DAY) for number in range(30)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return store(tmp_path / "data", NODES, gpus=1)


def reported(
    directory: Path, floors: Sequence[FloorsDocument] = (), at: datetime = NOW
) -> FleetReportDocument:
    return report(ReportSource(directory, floors=floors), ReportSettings(at))


def slow_nodes(found: FleetReportDocument) -> dict[str, set[str]]:
    shown: dict[str, set[str]] = {}
    for one in found.slow:
        shown.setdefault(one.node, set()).add(one.basis)
    return shown


# -- which nodes are slow


def test_without_a_baseline_a_slow_node_is_found_by_its_class_and_labelled_so(data: Path) -> None:
    speeds = Speeds(lost={"node1003": 0.15})
    store_results(data, [speeds.result(node.name, NOW - DAY) for node in NODES])
    found = reported(data)
    assert slow_nodes(found) == {"node1003": {"class"}}
    assert {one.part for one in found.slow} == set(DEVICES)
    [measured] = found.measured
    assert (measured.nodes, measured.floors, measured.by_class, measured.not_judged, measured.slow) == (
        10, 0, 10, 0, 1,
    )  # fmt: skip
    assert "no baseline" in as_text(found)
    assert as_text(found).count("node1003") == 1, (
        "one line for a node, whatever the number of its devices"
    )


def test_with_a_baseline_the_answers_are_those_of_floors_check(data: Path) -> None:
    floors = usual_floors()
    speeds = Speeds(3, {"node1002": 0.15, "node1007": 0.06})
    results = [speeds.result(node.name, NOW - DAY) for node in NODES]
    store_results(data, results)
    found = reported(data, [floors])
    documents = [CanaryDocument.model_validate_json(json.dumps(one)) for one in results]
    judged = slow.judge(
        documents, baseline.FloorBaseline(floors, Path("f"), None), slow.SlowQuestion()
    )
    expected = {one.subject for one in judged.verdicts if one.answer is SpeedAnswer.FAILS}
    assert {f"{one.node} {one.part}" for one in found.slow} == expected
    assert expected >= {f"node1002 {one}" for one in DEVICES}
    assert {one.basis for one in found.slow} == {"floors"}
    assert {one.baseline for one in found.slow} == {f"{NOW - 20 * DAY:%Y-%m-%d}"}
    assert found.measured[0].floors == 10


def test_a_baseline_judges_where_the_class_alone_cannot(data: Path) -> None:
    """All nodes of the class have lost speed: statistics within the class see nothing."""
    floors = usual_floors()
    lost = Speeds(4, {node.name: 0.15 for node in NODES})
    store_results(data, [lost.result(node.name, NOW - DAY) for node in NODES])
    assert slow_nodes(reported(data)) == {}
    assert slow_nodes(reported(data, [floors])) == {node.name: {"floors"} for node in NODES}


@pytest.mark.parametrize(
    "more",
    [
        {"class_digest": "sha256:" + "9" * 64},
        {"runner": "sha256:" + "9" * 64},
        {"platform": "NVIDIA H200 x 1"},
        {"simulated": False},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_baseline_of_other_circumstances_is_not_used(data: Path, more: Json) -> None:
    floors = usual_floors()
    speeds = Speeds(5, {"node1003": 0.15})
    store_results(data, [speeds.result(node.name, NOW - DAY, **more) for node in NODES])
    assert slow_nodes(reported(data, [floors])) == {"node1003": {"class"}}


@pytest.mark.parametrize(("count", "nodes"), [(RUNS - 1, 10), (20, 2), (20, 3)])
def test_too_few_runs_or_devices_name_no_node_and_are_counted_as_not_judged(
    data: Path, count: int, nodes: int
) -> None:
    speeds = Speeds(lost={"node1001": 0.5})
    store_results(
        data, [speeds.result(node.name, NOW - DAY, count=count) for node in NODES[:nodes]]
    )
    found = reported(data)
    assert found.slow == []
    assert [(one.nodes, one.not_judged) for one in found.measured] == [(nodes, nodes)]
    assert "not judged" in as_text(found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"conditions": {"sm_mhz": [1000.0, 1200.0], "temperature_c": None, "power_w": None, "throttled": []}}, "clock"),
        ({"conditions": {"sm_mhz": None, "temperature_c": None, "power_w": None, "throttled": ["hw_slowdown"]}}, "slowed"),
        ({"samples": [0.0] * 20}, "zero"),
    ],
)  # fmt: skip
def test_results_that_do_not_count_name_no_node(data: Path, change: Json, why: str) -> None:
    speeds = Speeds(lost={"node1003": 0.4})
    results = [speeds.result(node.name, NOW - DAY) for node in NODES]
    for metric in results[3]["jobs"][0]["metrics"]:
        metric |= change
    store_results(data, results)
    assert slow_nodes(reported(data)) == {}, why


def test_latency_is_slow_where_it_is_higher(data: Path) -> None:
    chosen = random.Random(3)  # noqa: S311 - repeatable
    results = [
        canary(node.name, NOW - DAY, {
            "step_ms": {one: [(9 if node.number == 1004 else 5) * chosen.gauss(1, 0.01) for _ in range(20)] for one in DEVICES}
        })
        for node in NODES
    ]  # fmt: skip
    store_results(data, results)
    found = reported(data)
    assert slow_nodes(found) == {"node1004": {"class"}}
    assert {round(one.loss, 1) for one in found.slow} == {0.4}


def test_the_newest_result_decides_and_old_ones_are_forgotten(data: Path) -> None:
    speeds = Speeds()
    store_results(data, [speeds.result(node.name, NOW - 2 * DAY) for node in NODES])
    store_results(
        data,
        [speeds.result("node1002", NOW - DAY, 0.8), speeds.result("node1003", NOW - 3 * DAY, 0.8)],
    )
    store_results(data, [speeds.result("node1004", NOW - 40 * DAY, 0.8)])
    assert slow_nodes(reported(data)) == {"node1002": {"class"}}
    assert slow_nodes(reported(data, at=NOW - 30 * HOUR)) == {}, "as it was before"


def test_a_result_that_arrives_late_changes_no_past_report(data: Path) -> None:
    speeds = Speeds(lost={"node1002": 0.2})
    store_results(data, [speeds.result(node.name, NOW - DAY) for node in NODES], NOW - HOUR)
    assert reported(data, at=NOW - 2 * HOUR).measured == []
    assert slow_nodes(reported(data)) == {"node1002": {"class"}}


def test_baseline_of_one_device_needs_five_results_before_it_calls_it_slow(data: Path) -> None:
    speeds = Speeds(7)
    for count, expected in ((4, {}), (6, {"node1000": {"floors"}})):
        directory = data.with_name(f"data{count}")
        store(directory, NODES[:1], gpus=1)
        floors = learned(
            [speeds.result("node1000", NOW - (20 - day) * DAY) for day in range(count)]
        )
        assert floors.scope == "nodes"
        store_results(directory, [speeds.result("node1000", NOW - DAY, 0.7)])
        found = reported(directory, [floors])
        assert slow_nodes(found) == expected
        assert found.measured[0].not_judged == (count == 4)


def test_node_with_a_result_and_without_a_capture_is_silent_and_listed(data: Path) -> None:
    speeds = Speeds(lost={"lonely": 0.3})
    store_results(
        data, [speeds.result(name, NOW - DAY) for name in ("lonely", *(one.name for one in NODES))]
    )
    found = reported(data)
    assert [one.node for one in found.not_known] == ["lonely"]
    assert slow_nodes(found) == {"lonely": {"class"}}
    assert "lonely" in html(found)


# -- jobs


def test_jobs_that_did_not_pass_are_one_line_for_each_reason(data: Path) -> None:
    job = {
        "name": "gemm",
        "state": "failed",
        "why": "wrong result",
        "seconds": 1.0,
        "verified": True,
        "metrics": [],
    }
    speeds = Speeds()
    results = [speeds.result(node.name, NOW - DAY) for node in NODES]
    for one in results[:2]:
        one["jobs"].append(job | {"name": "fft"})
    results[2]["jobs"].append(job | {"name": "disk", "state": "not_run", "why": "no disk"})
    results[3]["jobs"].append(
        job | {"name": "fft", "state": "could_not_check", "why": "no compiler"}
    )
    store_results(data, results)
    store_results(
        data,
        [speeds.result("node1001", NOW - HOUR, jobs=[job | {"name": "fft", "state": "passed"}])],
    )
    found = reported(data)
    assert [(one.job, one.state, one.why, one.nodes.names) for one in found.failed_jobs] == [
        ("fft", "could_not_check", "no compiler", ["node1003"]),
        ("fft", "failed", "wrong result", ["node1000"]),
    ]
    assert "wrong result" in as_text(found)


# -- trends


def series(
    factors: Sequence[float], seed: int = 1, noise: float = 1.0, node: str = "node1000"
) -> list[Json]:
    speeds = Speeds(seed)
    chosen = random.Random(seed)  # noqa: S311 - repeatable
    days = len(factors)
    return [
        speeds.result(node, NOW - (days - place) * DAY / 2, factor * chosen.gauss(1, 0.01 * noise))
        for place, factor in enumerate(factors)
    ]


def test_device_that_becomes_slower_is_named_once_for_each_device(data: Path) -> None:
    store_results(data, series([1 - 0.01 * place for place in range(14)]))
    found = reported(data).slowing
    assert sorted((one.node, one.part, one.results) for one in found) == [
        ("node1000", one, 14) for one in DEVICES
    ]
    assert all(0.08 < one.loss < 0.18 and 0.012 < one.a_day < 0.028 for one in found)


@pytest.mark.parametrize(
    ("factors", "noise"),
    [
        pytest.param([1.0] * 30, 1.0, id="steady"),
        pytest.param([1.0] * 30, 8.0, id="noisy"),
        pytest.param([1 + 0.01 * place for place in range(14)], 1.0, id="faster"),
        pytest.param([1 - 0.01 * place for place in range(8)], 1.0, id="too few results"),
        pytest.param(
            [1 - 0.002 * place for place in range(14)], 0.2, id="less than the least loss"
        ),
        pytest.param([1.0, 0.8] * 10, 1.0, id="alternating"),
    ],
)
def test_steady_noisy_or_short_series_is_not_slowing(
    data: Path, factors: Sequence[float], noise: float
) -> None:
    # Three nodes, each with a series of its own.
    for seed in range(3):
        store_results(data, series(factors, seed, noise, f"node{1000 + seed}"))
    assert reported(data).slowing == []


def test_another_runner_begins_another_series(data: Path) -> None:
    results = series([1.0] * 8 + [0.7] * 8)
    for one in results[8:]:
        one["runner"] = "sha256:" + "9" * 64
    store_results(data, results)
    assert reported(data).slowing == []


# -- ingest, and what leaves the report


def write(directory: Path, found: Sequence[Json]) -> Path:
    directory.mkdir()
    for place, one in enumerate(found):
        (directory / f"{place}.json").write_text(json.dumps(one), encoding="utf-8")
    return directory


def test_ingest_stores_a_result_once_and_refuses_a_broken_one_by_name(tmp_path: Path) -> None:
    speeds = Speeds()
    good = speeds.result("node1000", NOW - DAY)
    broken = {
        "samples": good | {"jobs": [good["jobs"][0] | {"metrics": [{"name": "x"}]}]},
        "name": good | {"node": "<b>"},
        "class": good | {"class": "../x"},
        "future": good | {"started": "2030-01-01T00:00:00Z"},
        "infinite": good | {"jobs": [good["jobs"][0] | {"seconds": float("nan")}]},
    }
    source = write(tmp_path / "in", [good, *broken.values()])
    request = files.IngestRequest(tmp_path / "data", (source,), NOW)
    result = files.ingest(request, NOW)
    assert (result.results, result.stored, len(result.refused)) == (1, 0, len(broken))
    assert all(one.remedy and one.message.isprintable() for one in result.refused)
    again = files.ingest(request, NOW)
    assert (again.results, again.known) == (0, 1)


def test_command_reads_results_and_baselines(tmp_path: Path, data: Path) -> None:
    floors = usual_floors()
    baseline.write(floors, tmp_path / "h100.json", None)
    speeds = Speeds(8, {"node1003": 0.2})
    source = write(tmp_path / "in", [speeds.result(node.name, NOW - DAY) for node in NODES])

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["fleet", *words, "--data", str(data)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "10 canary results stored" in run("ingest", str(source), "--backfill")
    at = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    text = run("report", "--at", at, "--floors", str(tmp_path / "h100.json"))
    assert "floor of the baseline of" in text
    assert "10 nodes with results of 30 days, 1 slow; judged 10 by floors" in text
    assert run("report", "--at", at, "--floors", str(tmp_path), "--format", "json") == run(
        "report", "--at", at, "--floors", str(tmp_path / "h100.json"), "--format", "json"
    )
    (tmp_path / "none").mkdir()
    wrong = CliRunner().invoke(
        main, ["fleet", "report", "--data", str(data), "--floors", str(tmp_path / "none")]
    )
    assert "there is no baseline in this directory" in (wrong.output + str(wrong.exception)).lower()


def test_page_has_the_slow_nodes_of_the_document(data: Path) -> None:
    speeds = Speeds(lost={"node1003": 0.15})
    store_results(data, [speeds.result(node.name, NOW - DAY) for node in NODES])
    page = html(reported(data))
    assert "Nodes with a metric below its floor" in page
    assert "gemm_fp16 on 2 parts" in page


def test_anonymous_report_has_no_name_and_still_its_slow_nodes(data: Path) -> None:
    speeds = Speeds(lost={"node1003": 0.15})
    store_results(data, [speeds.result(node.name, NOW - DAY) for node in NODES])
    text = anonymous(reported(data)).model_dump_json(by_alias=True)
    assert "node1003" not in text
    assert '"slow":[{"node":"node-' in text


def test_anonymous_results_have_the_nodes_of_anonymous_captures(tmp_path: Path) -> None:
    speeds = Speeds()
    source = write(
        tmp_path / "in",
        [speeds.result("node1000", NOW - DAY), NODES[0].report(NOW - DAY, 1)["capture"]],
    )
    data = tmp_path / "data"
    found = files.ingest(files.IngestRequest(data, (source,), NOW, anonymous=True), NOW)
    assert (found.results, found.stored) == (1, 1), found.refused
    with opened(ReportSource(data), ReportSettings(NOW)) as connection:
        nodes = {row["node"] for view in ("latest", "newest") for row in rows(connection, view)}
    assert len(nodes) == 1
    assert "node1000" not in next(iter(nodes))
    assert not [file for file in data.rglob("*.parquet") if b"node1000" in file.read_bytes()]


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.01, 1e6), min_size=1, max_size=200),
    st.sampled_from(["higher", "lower"]),
    st.sampled_from(sorted(SHARES)),
)
def test_stored_quantiles_and_bounds_are_those_of_the_floors(
    samples: list[float], better: str, quantile: Any
) -> None:
    import numpy as np

    document = canary("n1", NOW, {"gemm_ms" if better == "lower" else "gemm": {"": samples}})
    metric = CanaryDocument.model_validate_json(json.dumps(document)).jobs[0].metrics[0]
    share = SHARES[quantile]
    values = bounds.oriented(np.array(metric.samples), better)
    sign = 1 if better == "higher" else -1
    value, bound = quantile_with_bound(metric, share)
    expected = bounds.upper_bound(values, share)
    assert value == pytest.approx(sign * float(bounds.quantile(values, share)))
    assert (None if bound is None else sign * bound) == (
        None if expected is None else pytest.approx(float(expected))
    )
    assert runs_needed(share) > 1
