"""Rollouts at fleet size, in the simulator: how long a good change takes, and where a bad one stops.

Everything here is simulated: the same `plan` as in production, with drawn jobs, boots and faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.unit.fleet.rollout import documents

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import Action, Finish, Proceed, StepPhase
from goldnode.fleet.rollout.simulate import SimulatedRun, Simulation, made_up, percentile
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.rollout.statistics import at_least

WAVES = """\
waves:
- {name: canary, pool: canary}
- {name: first, nodes: 60}
- {name: third, nodes: 300}
- {name: half, percent: 50%}
- {name: all, percent: 100%}
"""
TEXT = f"""\
{documents.TEXT.partition("pools:")[0]}pools:
  canary: {{nodes: 8, spread: leaf}}
{WAVES}limits: {{planned: 2%, failed: 8%, total: 10%, per: {{rack: 1, leaf: 2}}}}
require:
- boot: {{base_rate: 0.2%}}
drain: {{wait: 30m}}
"""
Watch = Callable[[RolloutState, Action, float], None]


def settings(directory: Path) -> RolloutSettings:
    return documents.written(directory, text=TEXT).settings


def simulated(
    found: RolloutSettings,
    faults: tuple[str, ...],
    nodes: int,
    seed: int,
    watch: Watch | None = None,
) -> SimulatedRun:
    return Simulation(found, made_up(nodes, found.origin), parse(faults), seed, watch).run()


def many(
    found: RolloutSettings, faults: tuple[str, ...], nodes: int, runs: int
) -> list[SimulatedRun]:
    with ProcessPoolExecutor(4) as pool:
        return list(
            pool.map(partial(simulated, found, faults, nodes), range(1, runs + 1), chunksize=4)
        )


# A good change (soak and windows are the site's choice, and left out)


class _Converged:
    """Watches that a node which was deferred serves again only after its step."""

    def __init__(self) -> None:
        self.deferred: set[str] = set()
        self.converged: set[str] = set()

    def __call__(self, state: RolloutState, action: Action, now: float) -> None:
        if isinstance(action, Finish) and action.phase is StepPhase.DEFERRED:
            self.deferred.add(action.node)
        elif isinstance(action, Finish) and action.node in self.deferred:
            self.converged.add(action.node)
        elif isinstance(action, Proceed) and action.node in self.deferred and not action.cause:
            report = state.nodes[action.node]
            if action.phase is StepPhase.RETURNING:
                assert report.digest == state.record.target


@pytest.mark.long
def test_good_change_moves_the_fleet_within_a_day_under_the_fault_trace(tmp_path: Path) -> None:
    """Nodes that are still busy twelve hours after the last wave began are deferred, and move when they are free."""
    text = TEXT.replace("{wait: 30m}", "{wait: 30m, late: 12h}")
    found = documents.written(tmp_path, text=text).settings
    for seed in range(1, 6):
        watch = _Converged()
        run = simulated(found, ("hardware", "absent"), 10_000, seed, watch)
        assert run.end == "completed", run.reason
        assert run.hours_completed is not None
        assert run.hours_completed <= 24, (run.hours_completed, run.hours)
        then = max(row[1] for row in run.timeline if row[0] <= run.hours_completed)
        assert then >= 9_300, "the others were deferred"
        assert run.hours <= 48
        assert run.done + run.failed + run.overdue + run.deferred == 10_000
        assert run.deferred > 0
        assert watch.converged  # nodes that returned while the rollout ran


def test_good_change_completes_under_the_fault_trace_sample(tmp_path: Path) -> None:
    watch = _Converged()
    run = simulated(settings(tmp_path), ("hardware",), 600, 1, watch)
    assert run.end == "completed"
    assert run.done + run.failed + run.overdue + run.deferred == 600
    assert watch.deferred


# A bad change

STOPS = {"100%": 8, "30%": 68, "10%": 300, "5%": 400}


@pytest.mark.long
@pytest.mark.parametrize("share", STOPS)
def test_bad_change_is_stopped_after_few_nodes(tmp_path: Path, share: str) -> None:
    runs = many(settings(tmp_path), (f"image={share}", "absent=0.2%"), 10_000, 200)
    assert all(run.touched_at_stop is not None for run in runs)
    touched = [run.touched_at_stop or 0 for run in runs]
    assert percentile(touched, 0.95) <= STOPS[share], (
        percentile(touched, 0.5),
        percentile(touched, 0.95),
    )
    assert all((run.reason or "").startswith("boot-check: ") for run in runs)


def test_bad_change_is_stopped_sample(tmp_path: Path) -> None:
    run = simulated(settings(tmp_path), ("image=30%",), 1000, 1)
    assert (run.touched_at_stop or 0) <= STOPS["30%"]
    assert (run.reason or "").startswith("boot-check: on 2 nodes")


# Good changes at the base rate


@pytest.mark.long
def test_good_changes_at_the_assumed_rate_are_not_stopped(tmp_path: Path) -> None:
    runs = many(settings(tmp_path), ("absent=0.2%",), 1000, 1000)
    stopped = [run for run in runs if run.end != "completed"]
    assert len(stopped) <= 5, [run.reason for run in stopped]


def test_rule_alone_stops_few_good_changes_over_a_whole_fleet(tmp_path: Path) -> None:
    """Look after each of 10,000 nodes; the answer can change only where one fails."""
    boot = settings(tmp_path).boot
    assert boot is not None
    chance, stopped = random.Random(1), 0  # noqa: S311 - a drawn schedule
    for _ in range(1000):
        judged = failures = 0
        while True:
            judged += 1 + int(chance.expovariate(boot.base_rate))
            if judged > 10_000:
                break
            failures += 1
            if failures >= 2 and at_least(failures, judged, boot.base_rate) < 1 - boot.confidence:
                stopped += 1
                break
    assert stopped <= 5
