"""Metrics of a report: figures equal the document's, promtool accepts them, anonymous reports have no names."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.simulators.fleet import NOW, finding, fleet, put, store

from goldnode.cli import main
from goldnode.documents.fleet_report import (
    FleetReportDocument,
    ReportFailedJob,
    ReportSlow,
    ReportSlowing,
)
from goldnode.fleet.report import metrics
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ExpectedNode, ReportSettings, ReportSource

DAY = timedelta(days=1)
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FleetReportDocument:
    nodes = fleet(6, cohort_size=3)
    for node in nodes[:2]:
        node.change(put("driver/loaded", '570"\\1'), NOW - 3 * DAY)
        node.find(finding("driver.loaded", "580", '570"\\1', severity="drain"), NOW - 3 * DAY)
    nodes[4].find(finding("net.mtu", "9000", "1500", subject="eth0"), NOW - 3 * DAY)
    times = [NOW - 8 * DAY, NOW - DAY / 24, NOW - DAY / 48]
    source = ReportSource(
        store(tmp_path_factory.mktemp("captures"), nodes, times),
        [ExpectedNode("spare1", "h100", None)],
    )
    return report(source, ReportSettings(NOW))


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in lines}) == len(lines)
    return {name: float(value) for name, _, value in lines}


def test_figures_are_those_of_the_document(found: FleetReportDocument) -> None:
    read = samples(metrics.text(found))
    assert read['goldnode_report_timestamp_seconds{simulated="true"}'] == NOW.timestamp()
    for one in found.classes:
        for state, count in one.states.items():
            labels = f'class="{one.class_}",state="{state}",simulated="true"'
            assert read[f"goldnode_report_nodes{{{labels}}}"] == count
    assert any('state="silent"' in name for name in read), "a node without a capture is counted"
    causes = [
        value for name, value in read.items() if name.startswith("goldnode_report_cause_nodes{")
    ]
    assert sum(causes) == sum(cause.nodes.count for cause in found.causes) > 0
    mixed = {
        name: value
        for name, value in read.items()
        if name.startswith("goldnode_report_mixed_values{")
    }
    assert len(mixed) == len(found.mixed) > 0
    assert set(mixed.values()) == {2.0}


def test_two_causes_with_the_same_labels_are_one_sample(found: FleetReportDocument) -> None:
    cause = found.causes[0]
    twice = found.model_copy(update={"causes": [cause, cause]})
    [value] = [v for name, v in samples(metrics.text(twice)).items() if "cause_nodes{" in name]
    assert value == 2 * cause.nodes.count


def test_nodes_that_are_slow_or_failed_have_samples(found: FleetReportDocument) -> None:
    one: dict[str, Any] = {"node": "n3", "class": "h100", "metric": "gemm", "part": None}
    slow = {
        "source": "canary",
        "basis": "class",
        "unit": "TFLOP/s",
        "samples": 9,
        "median": 88.0,
        "bound": 90.0,
    }
    slow |= {
        "floor": 95.0,
        "usual": 100.0,
        "loss": 0.1,
        "nodes": 6,
        "baseline": None,
        "at": found.at,
    }
    job = {"class": "h100", "job": "gemm", "state": "failed", "why": "exit status 1"}
    some = {"count": 2, "folded": "n[2-3]", "names": ["n2", "n3"]}
    update = {
        "slow": [ReportSlow.model_validate({**one, **slow, "verified": False})],
        "slowing": [
            ReportSlowing.model_validate(
                {**one, "results": 9, "days": 20.0, "a_day": 0.01, "loss": 0.1}
            )
        ],
        "failed_jobs": [ReportFailedJob.model_validate({**job, "nodes": some})],
    }
    read = samples(metrics.text(found.model_copy(update=update)))
    where = 'node="n3",class="h100",metric="gemm"'
    unverified = 'source="canary",verified="false",simulated="true"'
    assert read[f"goldnode_report_slow_loss_ratio{{{where},{unverified}}}"] == 0.1
    assert read[f'goldnode_report_slowing_per_day{{{where},simulated="true"}}'] == 0.01
    labels = 'class="h100",job_name="gemm",state="failed",simulated="true"'
    assert read[f"goldnode_report_failed_job_nodes{{{labels}}}"] == 2


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_metrics(found: FleetReportDocument) -> None:
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=metrics.text(found),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_command_writes_them_for_the_textfile_collector(tmp_path: Path) -> None:
    data = store(tmp_path / "data", fleet(2), [NOW - DAY / 24])
    words = [
        "fleet",
        "report",
        "--data",
        str(data),
        "--at",
        f"{NOW:%Y-%m-%dT%H:%MZ}",
        "--format",
        "prometheus",
    ]
    out = tmp_path / "collector/goldnode-report.prom"
    done = CliRunner().invoke(main, [*words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.stat().st_mode & 0o777 == 0o644
    assert samples(out.read_text()) == samples(CliRunner().invoke(main, words).stdout)
    nameless = CliRunner().invoke(main, [*words, "--anonymous"]).stdout
    assert not re.search(r"node10\d\d", nameless)
