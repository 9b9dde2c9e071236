"""Every rollout reaches an end, or waits for a person by name, within a bound that its document gives.

Schedules of faults, after which no person acts any more: some nodes are never drained, some never return.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.schedules import ENDED, Fleet
from tests.unit.fleet.rollout.test_rollout_invariants import SCHEDULES, VARIANTS, quick

from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import BackScope, RolloutPhase, StepPhase, gave_up
from goldnode.fleet.rollout.plan import SELF, plan
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.rollout.view import RolloutFacts, state_of, view

HOUR = 3600.0
DRAIN = ("timeout: 1h", "timeout: 1h\ndrain: {wait: 4h}")
# Of 4,000 nodes of the simulator 2.3 % are under repair: limits that a fleet has.
DEFAULT_LIMITS = ("limits: {planned: 4, failed: 8, total: 10}\n", "")
WAVES_OF_400 = (
    ("nodes: 2, spread: leaf", "nodes: 8"),
    (
        "{name: first, nodes: 6, soak: 4h}",
        "{name: first, nodes: 60, soak: 4h}\n- {name: second, nodes: 300, soak: 4h}",
    ),
)


def bound(settings: RolloutSettings, size: int) -> float:
    """Return the seconds after which a rollout without windows and approvals has ended, or waits for a person.

    Each node has its attempts, one node after the other, forward and back; each wave its soak and its
    wait for answers.
    """
    one = settings.drain_wait + 2 * settings.timeout
    waves = sum(wave.soak + settings.unknown_after for wave in settings.waves)
    return 2 * size * settings.drain_attempts * one + waves + settings.drain_late


def needs_person(fleet: Fleet) -> bool:
    """Return whether a person is named: by a freeze, an alarm, or as the owner of a wait."""
    decided = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    owners = {wait.owner for wait in decided.waits if wait.subject != "rack"} - {SELF}
    waits = any(code == "waits" for code, _ in fleet.state.alarms)
    return bool(fleet.state.freezes) or waits or bool(owners)


def end_alone(fleet: Fleet, dead: dict[str, StepPhase]) -> float:
    """Let time pass without any person. Return the seconds until an end or a named wait.

    :param dead: nodes that do nothing any more in a phase of their step.
    """
    began = fleet.now
    fleet.slow_until.clear()
    limit = bound(fleet.settings, len(fleet.names))
    while fleet.now - began <= limit:
        fleet.advance(HOUR / 2)
        for name, step in list(fleet.state.active.items()):
            if dead.get(name) is not step.phase:
                fleet.work(name)
        fleet.settle()
        assert not fleet.audit.violations, fleet.audit.violations
        at_rest = not fleet.state.active
        if at_rest and (fleet.state.record.phase in ENDED or needs_person(fleet)):
            return fleet.now - began
    decided = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    raise AssertionError(f"{fleet.state.record.phase} after {limit / HOUR:.0f} h: {decided.waits}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_rollout_ends_or_names_a_person_under_any_schedule(variant: str, tmp_path: Path) -> None:
    found = documents.settings(tmp_path, *VARIANTS[variant])

    @quick(6)
    @given(SCHEDULES, st.integers(0, 2**32))
    def check(schedule: list[int], seed: int) -> None:
        fleet = Fleet(found, cohorts="cohorts" in variant)
        fleet.settle()
        for number in schedule:
            fleet.operate(number)
        draw = random.Random(seed)  # noqa: S311 - the same nodes each time
        dead = {
            name: draw.choice((StepPhase.GRANTED, StepPhase.APPLYING))
            for name in fleet.names
            if draw.random() < 0.3
        }
        end_alone(fleet, dead)

    check()


def test_node_that_is_never_drained_gets_its_attempts_and_the_rollout_goes_on(
    tmp_path: Path,
) -> None:
    fleet = Fleet(documents.settings(tmp_path, DRAIN))
    fleet.settle()
    end_alone(fleet, {"n03": StepPhase.GRANTED})
    step = fleet.state.steps["n03"]
    assert fleet.state.record.phase is RolloutPhase.COMPLETED
    assert fleet.state.record.why == (
        "every wave has passed its requirements; 1 node is left (1 busy at each grant)"
    )
    assert (gave_up(step), step.attempt) == (True, 3)
    assert (fleet.digest["n03"], fleet.state.nodes["n03"].in_service) == (documents.OLD, True)
    assert not fleet.state.ledger.by_node
    facts = RolloutFacts(fleet.settings, fleet.state, fleet.observations, "ann")
    (line,) = view(facts, fleet.now).remains
    assert (line.node, line.remedy) == (
        "n03",
        "ansible-playbook -i INVENTORY site.yml --limit n03",
    )
    assert state_of(fleet.state, "n03") == "given-up"


def test_attempts_of_the_document_count(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path, (DRAIN[0], f"{DRAIN[1][:-1]}, attempts: 1}}")))
    fleet.settle()
    end_alone(fleet, {"n03": StepPhase.GRANTED})
    assert fleet.state.steps["n03"].cause == "was busy at each of 1 grant"


def test_rollback_ends_though_one_node_is_never_drained(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path, DRAIN))
    fleet.settle()
    end_alone(fleet, {})
    name = next(iter(fleet.state.steps))
    fleet.state.record = replace(fleet.state.record, phase=RolloutPhase.RUNNING)
    fleet.order_back(BackScope.ALL)
    end_alone(fleet, {name: StepPhase.GRANTED})
    assert fleet.state.record.phase is RolloutPhase.ROLLED_BACK
    facts = RolloutFacts(fleet.settings, fleet.state, fleet.observations, "ann")
    (line,) = view(facts, fleet.now).remains
    assert (line.node, line.remedy) == (
        name,
        f"ansible-playbook -i INVENTORY rollback.yml --limit {name}",
    )
    assert "was busy at each of" in line.reason


def test_last_wave_passes_on_the_nodes_that_could_answer(tmp_path: Path) -> None:
    """Nodes under repair are taken last, and gather in the last wave."""
    fleet = Fleet(documents.settings(tmp_path))
    for name in fleet.names[:6]:
        fleet.person[name] = "repair"
        fleet.scheduler(name, False)
    fleet.settle()
    waves = fleet.settings.waves
    first = replace(waves[1], nodes=14, soak=HOUR)
    fleet.settings = replace(fleet.settings, waves=(waves[0], first, waves[2]))
    end_alone(fleet, {})
    last = fleet.state.wave_size[2]
    assert (last, fleet.state.passed[2]) == (8, 2)  # 75 % of all eight would be six
    assert fleet.state.record.phase is RolloutPhase.COMPLETED
    assert fleet.state.record.why.endswith("6 nodes are left (6 out of service or busy)")


def test_first_wave_without_any_answer_does_not_pass(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path, ("nodes: 2, spread: leaf", "hosts: [n00, n01]")))
    for name in fleet.names:
        fleet.person[name] = "repair"
        fleet.scheduler(name, False)
    fleet.settle()
    end_alone(fleet, {})
    assert fleet.state.record.phase is not RolloutPhase.COMPLETED
    assert not fleet.state.passed


@pytest.mark.parametrize("seed", range(6))
def test_good_change_completes_beside_repairs_with_a_small_last_wave(
    seed: int, tmp_path: Path
) -> None:
    """The rates are those of a public trace of 400 servers; before, 7 of 12 runs with such waves froze."""
    found = documents.settings(tmp_path, DEFAULT_LIMITS, *WAVES_OF_400)
    run = Simulation(found, made_up(400, found.origin), parse(("hardware",)), seed=seed)
    run.run()
    assert run.state.record.phase is RolloutPhase.COMPLETED, run.state.freezes


def test_one_of_200_nodes_that_is_never_drained_costs_hours_and_not_months(tmp_path: Path) -> None:
    found = documents.settings(tmp_path, DEFAULT_LIMITS, DRAIN)
    run = Simulation(found, made_up(200, found.origin), parse(("busy=1%",)), seed=1)
    result = run.run()
    grants = max(step.attempt for step in run.state.steps.values())
    assert (run.state.record.phase, grants) == (RolloutPhase.COMPLETED, 3)
    assert (result.hours_completed or math.inf) < 96
    assert result.done >= 195


@pytest.mark.parametrize(("rate", "expected"), [("1%", 15), ("8%", 0)])
def test_base_rate_covers_failures_with_one_cause(rate: str, expected: int, tmp_path: Path) -> None:
    """A base rate of 1 % has two failures with one cause in 68 nodes in one of seven rollouts."""
    change = ("base_rate: 0.2%", "base_rate: 1%")
    found = documents.settings(tmp_path, DEFAULT_LIMITS, change, *WAVES_OF_400)
    completed = 0
    for seed in range(15):
        run = Simulation(found, made_up(500, found.origin), parse((f"image={rate}",)), seed=seed)
        run.run()
        completed += run.state.record.phase is RolloutPhase.COMPLETED
    assert completed == expected


def test_room_that_others_take_is_an_alarm_after_a_time(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path))
    fleet.settle()
    for name in fleet.names[12:]:
        fleet.person[name] = "repair"
        fleet.scheduler(name, False)
        fleet.settle()
    waited = end_alone(fleet, {})
    assert waited <= bound(fleet.settings, 24)
    text = fleet.state.alarms[("waits", "canary")]
    assert text == "wave canary cannot go on: 12 nodes are out of service, for all reasons"
