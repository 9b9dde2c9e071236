"""The requirement `floors`: canary results before and after, in a real store and in the simulator.

The nodes are simulated; results, comparison, store and controller are the product's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.fleet.control.controlled import START, ControlledRollout, controlled
from tests.unit.fleet.rollout import documents
from tests.unit.floors.populations import GEMM, USUAL, document, write

from goldnode.core.site import load_site
from goldnode.fleet.control import floors
from goldnode.fleet.control.requirements import RequirementEvaluator, RequirementSources, sources
from goldnode.fleet.rollout import floors_requirement
from goldnode.fleet.rollout.check import check
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import (
    Answer,
    Direction,
    Prior,
    RequirementResult,
    RolloutPhase,
    Step,
    StepPhase,
)
from goldnode.fleet.rollout.simulate import SimulatedRun, Simulation, made_up
from goldnode.fleet.rollout.simulated_floors import SLOW
from goldnode.floors import results

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
EIGHT = ("nodes: 2, spread: leaf", "nodes: 8")
SOON = ("timeout: 1h\n", "timeout: 1h\non_unknown: {after: 1h}\n")
FLOORS = ("require:\n", "require:\n- floors: {metrics: [gemm_fp16]}\n")
SEEDS = 20


# The simulator


def simulated(
    directory: Path, faults: tuple[str, ...], seed: int, *changes: tuple[str, str]
) -> SimulatedRun:
    settings = documents.settings(
        directory, EIGHT, FLOORS, ("planned: 4", "planned: 8"), ("total: 10", "total: 16"), *changes
    )
    return Simulation(settings, made_up(200, settings.origin), parse(faults), seed).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_loss_of_ten_percent_is_stopped_after_eight_canaries(tmp_path: Path, seed: int) -> None:
    """All nodes boot well and are 10 % slower: the paired test of 8 canaries and 8 others stops the change."""
    assert SLOW == 0.10
    run = simulated(tmp_path, ("slow",), seed)
    assert (run.end, run.rule, run.wave) == ("rolled-back", "requirement floors", "canary")
    assert run.touched == run.touched_at_stop == 8
    assert run.slow == 0, "all are back"
    assert run.reason is not None
    assert "8 changed nodes (8 unchanged): gemm_fp16: the change costs: loss" in run.reason


def test_without_the_requirement_the_loss_goes_through(tmp_path: Path) -> None:
    run = simulated(tmp_path, ("slow",), 1, ("- floors: {metrics: [gemm_fp16]}\n", ""))
    assert (run.end, run.slow) == ("completed", 200)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_good_change_completes_with_floors(tmp_path: Path, seed: int) -> None:
    """With a drift of all nodes, other for each seed, and with faults of hardware and controllers."""
    run = simulated(tmp_path, ("hardware", "killed") if seed % 2 else (), seed)
    assert (run.end, run.rule) == ("completed", None), run.reason


def test_metrics_with_phase_and_quantile_are_simulated(tmp_path: Path) -> None:
    names = ("metrics: [gemm_fp16]", "metrics: [a, 'b/cold', 'c:p99']")
    assert simulated(tmp_path, (), 3, names).end == "completed"
    run = simulated(tmp_path, ("slow",), 3, names)
    assert (run.end, run.rule, run.touched) == ("rolled-back", "requirement floors", 8)


# A store


class MeasuredSite:
    """Requirements of a site that measures its nodes right before each question."""

    def __init__(
        self, found: ControlledRollout, directory: Path, losses: Mapping[str, float], control: int
    ) -> None:
        self.found, self.directory, self.losses = found, directory, losses
        self.random = np.random.default_rng(1)
        self.speeds = dict(
            zip(found.world.names, GEMM.speeds(self.random, len(found.world.names)), strict=True)
        )
        self.measured: set[str] = set()
        self.control = control
        store = found.store()
        self.evaluator = RequirementEvaluator(
            found.settings,
            RequirementSources(canary=directory),
            lambda: found.world.now,
            partial(floors.stored_moves, store, found.settings),
        )
        for name in found.world.names:
            self.measure(name, START - 3600)

    def measure(self, name: str, at: float) -> None:
        node = self.found.world.nodes[name]
        changed = node.digest == documents.NEW
        speed = self.speeds[name] * (1 - self.losses.get(name, 0.0) * changed)
        started = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        runs = GEMM.runs(self.random, np.array(speed), 5)
        found = document(name, {"gemm_fp16": list(runs)})
        given = {"started": started, "boot_id": node.boot_id, "class_digest": node.digest}
        write(self.directory / f"{name}-{at:.0f}", [found.model_copy(update=given)])

    def read(self, requirement: str, wave: int) -> RequirementResult:
        if requirement == "floors":
            world = self.found.world
            changed = [name for name in world.names if world.nodes[name].digest == documents.NEW]
            others = [name for name in world.names if name not in changed][: self.control]
            for name in (*changed, *others):
                if name not in self.measured:
                    self.measured.add(name)
                    self.measure(name, world.now)
        return self.evaluator.read(requirement, wave)

    def close(self) -> None:
        self.evaluator.close()


Build = Callable[..., ControlledRollout]


@pytest.fixture
def measured(tmp_path: Path, migrated: str) -> Build:
    def build(losses: float, *changes: tuple[str, str], control: int = 8) -> ControlledRollout:
        own = tmp_path / f"site-{losses}"
        own.mkdir()
        shutil.copy(migrated, own / "fleet.db")
        wide = (EIGHT, ("planned: 4", "planned: 8"), ("total: 10", "total: 16"))
        found = controlled(own, str(own / "fleet.db"), 24, *FAST, *wide, FLOORS, SOON, *changes)
        every = dict.fromkeys(found.world.names, losses)
        found.requirements = MeasuredSite(found, own / "results", every, control)
        return found

    return build


def test_controller_promotes_a_change_that_costs_nothing(measured: Build) -> None:
    found = measured(0.0)
    report, _ = found.run()
    assert report.phase is RolloutPhase.COMPLETED
    _, end = found.history()
    assert all(step[0] is StepPhase.DONE for step in end["steps"].values())


def test_controller_rolls_a_slow_change_back_after_its_canaries(measured: Build) -> None:
    found = measured(0.10)
    report, _ = found.run()
    assert report.phase is RolloutPhase.ROLLED_BACK
    _, end = found.history()
    assert len(end["steps"]) == 8
    assert {found.world.nodes[name].digest for name in found.world.names} == {documents.OLD}


@pytest.mark.parametrize(
    ("changes", "control", "reason"),
    [
        (
            (),
            3,
            "8 changed nodes (3 unchanged): gemm_fp16: 3 unchanged nodes have enough runs, and 4 are needed",
        ),
        (
            (("[gemm_fp16]", "[gemm_fp61]"),),
            8,
            "gemm_fp61: 0 changed nodes have 5 runs before and after",
        ),
        (
            (("[gemm_fp16]", "['gemm_fp16:p99']"),),
            8,
            "gemm_fp16 p99: 0 changed nodes have 459 runs",
        ),
        (
            (("[gemm_fp16]", "['gemm_fp16:p90']"),),
            8,
            'the metric "gemm_fp16:p90" has the quantile "p90"',
        ),
    ],
)
def test_results_that_do_not_suffice_never_promote(
    measured: Build, changes: tuple[tuple[str, str], ...], control: int, reason: str
) -> None:
    """Neither a good change nor a bad one: after `on_unknown` the rollout freezes, with the reason."""
    for losses in (0.0, 0.3):
        found = measured(losses, *changes, control=control)
        report, _ = found.run(ticks=120)
        assert report.phase is RolloutPhase.RUNNING
        frozen = next(
            wait.reason for wait in report.waits if wait.reason.startswith("frozen by goldnode")
        )
        assert reason in frozen
        assert sum(node.digest == documents.NEW for node in found.world.nodes.values()) == 8


def test_without_control_the_signed_rank_decides(measured: Build) -> None:
    alone = ("[gemm_fp16]}", "[gemm_fp16], control: false}")
    assert measured(0.0, alone, control=0).run()[0].phase is RolloutPhase.COMPLETED
    found = measured(0.10, alone, control=0)
    assert found.run()[0].phase is RolloutPhase.ROLLED_BACK


# What is unknown


def evaluator(
    directory: Path, given: RequirementSources, moved: floors_requirement.RolloutMoves
) -> RequirementEvaluator:
    return RequirementEvaluator(
        documents.settings(directory, EIGHT, FLOORS), given, lambda: 7.0, lambda: moved
    )


NOTHING = floors_requirement.RolloutMoves(None, {}, {}, frozenset({"gpu000"}), frozenset())


def test_missing_directory_and_broken_results_are_unknown(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "x.json").write_text('{"schema": "goldnode.canary/1"}')
    for place, reason in (
        (None, "the site file names no directory of canary results (fleet.canary)"),
        (tmp_path / "none", "the file cannot be read: No such file or directory"),
        (broken, "simulated: Field required"),
    ):
        found = evaluator(tmp_path, RequirementSources(canary=place), NOTHING).read("floors", 0)
        assert found.answer is Answer.UNKNOWN
        assert reason in found.reason


def test_results_that_have_not_changed_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [document(f"gpu{number:03}", {"gemm_fp16": [1.0] * 9}, USUAL) for number in range(3)]
    place, read = write(tmp_path / "results", rows[:2]), list[str]()
    load = results.read_result

    def counted(path: Path, named: bool) -> Any:
        read.append(path.name)
        return load(path, named)

    monkeypatch.setattr(results, "read_result", counted)
    stored = floors.StoredResults()
    assert [one.node for one in stored.read(place)] == ["gpu000", "gpu001"]
    assert [one.node for one in stored.read(place)] == ["gpu000", "gpu001"]
    assert len(read) == 2
    write(tmp_path / "more", rows[2:])
    for path in (tmp_path / "more").rglob("*.json"):
        path.rename(place / f"new-{path.name}")
    assert [one.node for one in stored.read(place)] == ["gpu000", "gpu001", "gpu002"]
    assert len(read) == 3


@pytest.mark.parametrize(
    ("boot", "at", "after"),
    [("k1", 150.0, False), ("k2", 150.0, True), ("k2", 50.0, False), ("k1", 250.0, True)],
)
def test_a_result_of_the_boot_before_the_step_is_not_from_after_it(
    boot: str, at: float, after: bool
) -> None:
    """A node names its boot with the kernel's id, and the start of its first process after a slash."""
    prior = Prior(True, documents.OLD, "k1/7")
    step = Step(
        "n",
        wave=0,
        direction=Direction.FORWARD,
        phase=StepPhase.DONE,
        epoch=1,
        attempt=1,
        granted_at=100.0,
        changed_at=200.0,
        deadline=900.0,
        prior=prior,
    )
    one = document("n", {"gemm_fp16": [1.0]}, USUAL).model_copy(update={"boot_id": boot})
    assert floors_requirement.is_after(one, step, at) is after


def test_before_any_move_floors_are_unknown(tmp_path: Path) -> None:
    place = write(tmp_path / "results", [document("gpu000", {"gemm_fp16": [1.0] * 9}, USUAL)])
    found = evaluator(tmp_path, RequirementSources(canary=place), NOTHING).read("floors", 0)
    assert (found.answer, found.reason) == (Answer.UNKNOWN, "no node has changed yet")


def test_missing_packages_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldnode.core.extras.is_installed", lambda module: module != "scipy")
    found = evaluator(tmp_path, RequirementSources(canary=tmp_path), NOTHING).read("floors", 0)
    assert found.answer is Answer.UNKNOWN
    assert "goldnode[floors]" in found.reason


def test_site_file_names_the_directory(tmp_path: Path) -> None:
    site = tmp_path / "goldnode-site.yml"
    site.write_text("fleet: {canary: results}\n")
    loaded = load_site(site)
    assert sources(loaded) == RequirementSources(canary=tmp_path / "results", site=loaded)


def test_check_accepts_floors_with_enough_canaries_and_warns_of_many_metrics(
    tmp_path: Path,
) -> None:
    file = documents.written(tmp_path, EIGHT, FLOORS, ("planned: 4", "planned: 8"))
    assert not [one for one in check(file).findings if one.code == "requirement"]
    many = ", ".join(f"m{number}" for number in range(20))
    file = documents.written(
        tmp_path, EIGHT, (FLOORS[0], f"require:\n- floors: {{metrics: [{many}], control: false}}\n")
    )
    (found,) = [one for one in check(file).findings if one.code == "requirement"]
    assert found.severity == "warning"
    assert (
        "20 metrics need 10 changed nodes to show a loss, and the first wave has 8" in found.message
    )
