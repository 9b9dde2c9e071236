"""The 35 scenarios of an independent trial of rollouts, each with the end that was derived before it was run. Simulated.

`--all` runs more seeds, and the fault trace of 400 GPU servers itself where a copy is named; the default has its rates.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.test_acceptance import TEXT

from goldnode.fleet.rollout.audit import TraceAudit
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import (
    Answer,
    FleetNode,
    SchedulerObservation,
)
from goldnode.fleet.rollout.simulate import SimulatedRun, Simulation, made_up

Changes = tuple[tuple[str, str], ...]
ONE_PERCENT = ("base_rate: 0.2%", "base_rate: 1%")
SAME_CAUSE = ("base_rate: 0.2%", "base_rate: 1%, same_cause: 8")
SOAK = ("name: canary, pool: canary", "name: canary, pool: canary, soak: 12h")
SMALL_LAST = ("- {name: half, percent: 50%}\n", "")
NINE = ("limits: {planned: 2%, failed: 8%, total: 10%, per: {rack: 1, leaf: 2}}\n", "")
NO_WAIT = ("drain: {wait: 30m}\n", "")  # a job that lasts longer would defer the only node
FLOORS = ("- boot: {base_rate: 0.2%}", "- boot: {base_rate: 0.2%}\n- floors: {metrics: [gemm]}")


@dataclass(frozen=True)
class Special:
    """What the simulator's own faults do not have. Shares are of the nodes.

    :param own_cause: each failure has a cause of its own.
    :param board: share of the nodes of a board, and the share of them that the change breaks.
    :param hardware: boots that end with a hardware finding.
    :param out, silent, drained: nodes out of service, never heard of, and drained by a person.
    """

    own_cause: bool = False
    board: tuple[float, float] = (0.0, 0.0)
    hardware: float = 0.0
    out: float = 0.0
    silent: float = 0.0
    drained: float = 0.0


class Trial(Simulation):
    """A simulation with what a scenario needs beside the faults of `simulate`, and the audit of its trace."""

    special = Special()
    events_of_trace: Sequence[tuple[float, float, str]] = ()
    untouched: frozenset[str] = frozenset()

    def _begin(self, nodes: Sequence[FleetNode]) -> None:
        super()._begin(nodes)
        draw, special = random.Random(7), self.special  # noqa: S311 - repeatable
        names = [node.name for node in nodes]
        self.board = set(draw.sample(names, round(special.board[0] * len(names))))
        out = draw.sample(names, round(special.out * len(names)))
        for name in out:
            self._on_breaks(0.0, name, 0)
        self.untouched = frozenset(draw.sample(names, round(special.drained * len(names))))
        for name in self.untouched:
            item = SchedulerObservation(name, 0.0, False, 0.0, "disk, ann")
            self.state.record_observation(self.observations, item)
        for begin, _, name in self.events_of_trace:
            self._at(max(0.0, begin), "traced", name)
        for _, end, name in self.events_of_trace:
            self._at(end, "repaired", name, 1)

    def _on_traced(self, time: float, node: str, number: int) -> None:
        self._on_breaks(time, node, number)

    def _on_repaired(self, time: float, node: str, number: int) -> None:
        if not self.events_of_trace or number:  # a trace has its own repairs
            super()._on_repaired(time, node, number)

    def _scheduler(self, node: str, time: float, in_service: bool, free_at: float = 0.0) -> None:
        if node not in self.untouched:
            super()._scheduler(node, time, in_service, free_at)

    def _boot_forward(self, node: str, time: float) -> None:
        chance = self.world.random.random
        broken = node in self.board and chance() < self.special.board[1]
        hardware = self.special.hardware and chance() < self.special.hardware
        if not broken and not hardware:
            super()._boot_forward(node, time)
            return
        self.world.boots[node] += 1
        self.world.digest[node] = self.settings.target
        if broken:
            self._report(node, time, Answer.FAILS, software=("boot-check",))
        else:
            self._report(node, time, Answer.FAILS, hardware=("ecc",))

    def _report(self, node: str, time: float, verdict: Answer, **findings: tuple[str, ...]) -> None:
        if self.special.own_cause and findings.get("software"):
            findings = {"software": (f"cause-{node}",)}
        super()._report(node, time, verdict, **findings)


def tried(
    settings: RolloutSettings,
    nodes: Sequence[FleetNode],
    faults: Sequence[str],
    seed: int,
    special: Special,
    trace: Sequence[tuple[float, float, str]] = (),
) -> tuple[Trial, SimulatedRun]:
    """Run a scenario with the audit of each action."""
    own = type("Own", (Trial,), {"special": special, "events_of_trace": trace})
    run = own(settings, nodes, parse(faults), seed)
    audit = TraceAudit(run.settings)
    apply = run.state.apply

    def watched(action: Any, at: float) -> None:
        audit.before(run.state, action)
        apply(action, at)
        audit.after(run.state, run.observations, action, at)

    if "killed" not in " ".join(faults):
        run.state.apply = watched
    result = run.run()
    assert audit.violations == []
    for name in run.untouched:
        assert name not in run.state.steps or not run.state.steps[name].attempt, name
    return run, result


def stops_by(most: int) -> Callable[[SimulatedRun], bool]:
    """Return a judge: the change is stopped, or waits for a person, with at most so many nodes touched."""
    return lambda run: run.end in ("rolled-back", "frozen") and run.touched <= most


def completes(run: SimulatedRun) -> bool:
    return run.end == "completed"


def not_completed(run: SimulatedRun) -> bool:
    return run.end in ("rolled-back", "frozen")


@dataclass(frozen=True)
class Scenario:
    """One scenario: what was tried, and the end that follows from the document."""

    name: str
    ends: Callable[[SimulatedRun], bool]
    faults: tuple[str, ...] = ()
    nodes: int = 500
    changes: Changes = ()
    special: Special = Special()
    cohort: int = 0


SCENARIOS = (
    Scenario("8 % broken, one cause", stops_by(368), ("image=8%",)),
    Scenario("8 % broken, a cause each", stops_by(368), ("image=8%",), special=Special(own_cause=True)),
    Scenario("1 % absent, base 1 %", completes, ("absent=1%",), changes=(ONE_PERCENT,)),
    Scenario("1 % fail with one cause, base 1 %", completes, ("image=1%",), changes=(ONE_PERCENT,)),
    Scenario("the same, same_cause 8", completes, ("image=1%",), changes=(SAME_CAUSE,)),
    Scenario("board of 10 %, 60 % break", stops_by(68), special=Special(board=(0.1, 0.6))),
    Scenario("board of 1 %, all break", not_completed, special=Special(board=(0.01, 1.0)), nodes=2000),
    Scenario("hardware findings 5 %", not_completed, special=Special(hardware=0.05)),
    Scenario("hardware findings 0.5 %", completes, special=Special(hardware=0.005)),
    *(
        Scenario(f"cohorts, back {scope}", not_completed, ("image=8%",), changes=(("drain:", f"on_fail: {{do: rollback, what: {scope}}}\ndrain:"),), cohort=8)
        for scope in ("wave", "failed", "all")
    ),
    Scenario("cohorts of 8, good", completes, cohort=8),
    Scenario("5 % never drained", completes, ("busy=5%",), nodes=200),
    Scenario("half out of service", completes, special=Special(out=0.5)),
    Scenario("nodes never heard of", lambda run: run.done <= 450, special=Special(silent=0.1)),
    Scenario("30 kills a day, partitions, lies, hardware", completes, ("killed=30", "partition=5", "lying=1%", "hardware=4"), nodes=150),
    Scenario("3 % drained by persons, bad", stops_by(8), ("image",), special=Special(drained=0.03)),
    *(Scenario(f"{count} nodes, good", completes, nodes=count, changes=(NINE, NO_WAIT)) for count in (1, 2, 3, 9)),
    *(Scenario(f"{count} nodes, all break", not_completed, ("image",), nodes=count, changes=(NINE,)) for count in (1, 2, 3, 9)),
    Scenario("nobody returns from boot", stops_by(8), ("absent=100%",)),
    *(Scenario(f"10 % slower on {share} %", not_completed, (f"slow={share}%",), changes=(FLOORS,)) for share in (100, 50, 20)),
    Scenario("fails late in service", stops_by(68), ("late",), changes=(SOAK,)),
    Scenario("rates of the trace, 4,000 nodes", completes, ("hardware",), nodes=4000),
    Scenario("rates of the trace, 400 nodes, fitting waves", completes, ("hardware",), nodes=400),
    Scenario("rates of the trace, 400 nodes, small last wave", completes, ("hardware",), nodes=400, changes=(SMALL_LAST,)),
    Scenario("the same, without the third wave", completes, ("hardware",), nodes=400, changes=(("third, nodes: 300", "third, nodes: 320"), SMALL_LAST)),
)  # fmt: skip


def fleet(scenario: Scenario, origin: str) -> list[FleetNode]:
    """Return the nodes of a scenario."""
    nodes = made_up(scenario.nodes, origin)
    if scenario.cohort:
        nodes = [
            replace(node, cohort=f"c{number // scenario.cohort:04d}")
            for number, node in enumerate(nodes)
        ]
    draw = random.Random(3)  # noqa: S311 - repeatable
    silent = set(draw.sample(range(len(nodes)), round(scenario.special.silent * len(nodes))))
    return [
        replace(node, digest=None, in_service=None) if number in silent else node
        for number, node in enumerate(nodes)
    ]


def test_trial_has_35_scenarios() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS) == 35


def ends_as_derived(scenario: Scenario, directory: Path, seeds: Sequence[int]) -> None:
    found = documents.written(directory, *scenario.changes, text=TEXT).settings
    nodes = fleet(scenario, found.origin)
    for seed in seeds:
        _, run = tried(found, nodes, scenario.faults, seed, scenario.special)
        assert scenario.ends(run), (seed, run.end, run.touched, run.done, run.reason)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_ends_as_derived(scenario: Scenario, tmp_path: Path) -> None:
    ends_as_derived(scenario, tmp_path, [1])


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_ends_as_derived_in_ten_runs(scenario: Scenario, tmp_path: Path) -> None:
    ends_as_derived(scenario, tmp_path, range(2, 12))


# A public trace: 400 GPU servers in 348 days, stepfun-ai/InfiniteHBD-Trace at 7aacdc8, Apache-2.0
TRACE = "https://raw.githubusercontent.com/stepfun-ai/InfiniteHBD-Trace/7aacdc8/fault_trace.json"
TRACE_SHA256 = "5871b881b341c9526223c025eda3a9bd2f0f875cf8d53441688ccd953e11b80d"
DAY = 86400.0
# Twelve runs begin 28 days apart in the trace.
BEGINS = tuple(14.0 + 28.0 * number for number in range(12))
WAVE_LISTS: Mapping[str, Changes] = {
    "8, 60, 50 %, 100 %": (("- {name: third, nodes: 300}\n", ""),),
    "8, 60, 300, 100 %": (SMALL_LAST,),
}


def trace() -> list[dict[str, Any]]:
    """Return the events of the trace: of the file that GOLDNODE_TEST_TRACE names, or of its public copy."""
    named = os.environ.get("GOLDNODE_TEST_TRACE")
    try:
        data = (
            Path(named).read_bytes() if named else urllib.request.urlopen(TRACE, timeout=30).read()
        )
    except OSError as problem:
        pytest.skip(f"the trace cannot be read: {problem}; GOLDNODE_TEST_TRACE names a copy")
    assert hashlib.sha256(data).hexdigest() == TRACE_SHA256
    events: list[dict[str, Any]] = json.loads(data)
    return events


def outages(events: Sequence[Mapping[str, Any]], begin: float) -> list[tuple[float, float, str]]:
    """Return begin, end (seconds since `begin`, in days) and node of the faults that last or begin after it."""
    numbers: dict[str, int] = {}
    since: dict[str, float] = {}
    found: list[tuple[float, float, str]] = []
    for event in events:
        number = numbers.setdefault(event["node_id"], len(numbers))
        name, at = f"sim{number:03d}", (event["event_time"] - begin) * DAY
        if event["event_type"] == "fault_start":
            since.setdefault(name, at)
        elif (first := since.pop(name, None)) is not None and at > 0:
            found.append((first, at, name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("waves", WAVE_LISTS)
def test_good_change_completes_beside_the_faults_of_the_trace(waves: str, tmp_path: Path) -> None:
    found = documents.written(tmp_path, *WAVE_LISTS[waves], text=TEXT).settings
    events = trace()
    for seed, begin in enumerate(BEGINS):
        given = outages(events, begin)
        nodes = made_up(400, found.origin)
        _, run = tried(found, nodes, (), seed, Special(), given)
        assert run.end == "completed", (begin, run.reason)
        assert run.done > 360, (begin, run.done)


@pytest.mark.long
@pytest.mark.parametrize("waves", WAVE_LISTS)
def test_good_change_completes_beside_faults_at_the_rates_of_the_trace(
    waves: str, tmp_path: Path
) -> None:
    found = documents.written(tmp_path, *WAVE_LISTS[waves], text=TEXT).settings
    for seed in range(1, 13):
        _, run = tried(found, made_up(400, found.origin), ("hardware",), seed, Special())
        assert run.end == "completed", run.reason
