"""`goldnode rollout simulate`: the same `plan`, faults that are stopped, labels, charts."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.documents import TEXT

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.rollout.audit import TraceAudit
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.simulate import SimulatedRun, Simulation, made_up

NODES = 60


def run(directory: Path, *faults: str, seed: int = 1) -> SimulatedRun:
    found = documents.settings(directory)
    return Simulation(found, made_up(NODES, found.origin), parse(faults), seed).run()


def test_good_change_completes(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.end, found.done, found.touched_at_stop) == ("completed", NODES, None)
    assert found.idle_median < 120
    assert found.peak_out <= 4


def test_seed_repeats_a_run(tmp_path: Path) -> None:
    assert run(tmp_path, "hardware=50") == run(tmp_path, "hardware=50")
    assert run(tmp_path) != run(tmp_path, seed=2)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("module", "module-build"), ("image", "boot-check"), ("late", "service-check")],
)
def test_bad_change_is_stopped_in_the_canary_wave(tmp_path: Path, fault: str, cause: str) -> None:
    found = run(tmp_path, fault)
    assert (found.end, found.wave, found.touched_at_stop) == ("rolled-back", "canary", 2)
    assert found.reason is not None
    assert found.reason.startswith(f"{cause}: on 2 nodes")


def test_loss_of_speed_is_not_seen_and_is_reported(tmp_path: Path) -> None:
    found = run(tmp_path, "slow")
    assert (found.end, found.slow) == ("completed", NODES)


def test_faults_around_a_good_change_do_not_stop_it(tmp_path: Path) -> None:
    found = run(tmp_path, "killed=20", "partition=5", "hardware=20")
    assert found.end == "completed"
    assert found.done + found.failed + found.overdue + found.deferred == NODES


def test_traces_of_simulated_runs_are_accepted(tmp_path: Path) -> None:
    """The audit reads states after each action; here through the log, which replays to them."""
    found = documents.settings(tmp_path)
    simulation = Simulation(
        found, made_up(NODES, found.origin), parse(["image=20%", "absent=5%"]), 3
    )
    audit = TraceAudit(simulation.settings)
    apply = simulation.state.apply

    def watched(action: object, at: float) -> None:
        audit.before(simulation.state, action)  # type: ignore[arg-type]
        apply(action, at)  # type: ignore[arg-type]
        audit.after(simulation.state, simulation.observations, action, at)  # type: ignore[arg-type]

    simulation.state.apply = watched  # type: ignore[method-assign]
    simulation.run()
    assert audit.violations == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("imag", 'Use "image"'),
        ("image=2", "expected a share of the nodes. Write image=5%"),
        ("hardware=x", "hardware=4.18"),
        ("killed=5%", "per day"),
    ],
)
def test_wrong_fault_is_refused(fault: str, says: str) -> None:
    with pytest.raises(GoldnodeError) as problem:
        parse([fault])
    assert says in str(problem.value)


def test_command_labels_its_figures_and_writes_charts(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yml"
    path.write_text(TEXT, encoding="utf-8")
    given = ["rollout", "simulate", str(path), "--nodes", "40", "--fault", "image", "--runs", "3"]
    found = CliRunner().invoke(main, [*given, "--chart", str(tmp_path / "chart.svg")])
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("simulated: ")
    assert "p50 2, p95 2 nodes" in found.stdout
    assert "(simulated)" in ElementTree.parse(tmp_path / "chart.svg").getroot()[1].text  # type: ignore[operator]  # noqa: S314
    found = CliRunner().invoke(
        main, [*given, "--format", "json", "--chart", str(tmp_path / "chart.html")]
    )
    document = json.loads(found.stdout)
    assert document["simulated"] is True
    assert document["summary"]["touched_at_stop"] == [2, 2]
    assert [one["seed"] for one in document["runs"]] == [1, 2, 3]
    assert "<svg" in (tmp_path / "chart.html").read_text(encoding="utf-8")
    assert CliRunner().invoke(main, [*given, "--chart", str(tmp_path / "chart.png")]).exit_code == 2
