"""Invariants of a rollout under generated schedules of crashes, partitions, stale controllers and lying nodes.

The same schedules run each time (tests/suite/properties.py), so a failure repeats. `--all` runs more of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.schedules import ENDED, Fleet

from goldnode.fleet.rollout.model import (
    BackScope,
    Blame,
    Direction,
    RolloutPhase,
    StepPhase,
    gave_up,
)
from goldnode.fleet.rollout.view import RolloutFacts, view

COHORTS = ("total: 10}", "total: 10, per: {rack: 2, leaf: 4, cohort: all-or-none}}")
VARIANTS = {
    "rollback of the wave": (),
    "rollback of all": (("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: all}"),),
    "rollback of failed nodes, cohorts": (
        COHORTS,
        ("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: failed}"),
    ),
    "freeze, with a command": (
        ("0.2%}", "0.2%}\n- command: {run: [/bin/accept]}"),
        ("timeout: 1h", "timeout: 1h\non_fail: {do: freeze}"),
    ),
    "rollback of all, cohorts": (
        COHORTS,
        ("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: all}\ndrain: {wait: 2h}"),
    ),
}
SCHEDULES = st.lists(st.integers(0, 2**14 - 1), max_size=80)
Test = Callable[..., None]


def quick(examples: int) -> Callable[[Test], Test]:
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def obey(directory: Path, variant: str, schedule: list[int]) -> None:
    """Run a schedule, then let everything end; check the invariants throughout."""
    found = documents.settings(directory, *VARIANTS[variant])
    fleet = Fleet(found, cohorts="cohorts" in variant)
    fleet.settle()
    for number in schedule:
        fleet.operate(number)
    assert fleet.obeyed_stale == 0, "a controller of an earlier epoch was obeyed"
    assert fleet.indexes() == fleet.rebuilt()
    assert fleet.rows() == fleet.replayed()
    fleet.finish()
    assert fleet.state.record.phase in ENDED
    assert fleet.indexes() == fleet.rebuilt()


@pytest.mark.parametrize("variant", VARIANTS)
def test_invariants_hold_under_any_schedule(variant: str, tmp_path: Path) -> None:
    @quick(8)
    @given(SCHEDULES)
    def check(schedule: list[int]) -> None:
        obey(tmp_path, variant, schedule)

    check()


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_invariants_hold_under_a_thousand_schedules(variant: str, tmp_path: Path) -> None:
    @quick(250)
    @given(SCHEDULES)
    def check(schedule: list[int]) -> None:
        obey(tmp_path, variant, schedule)

    check()


def leave_nothing_unnamed(directory: Path, scope: BackScope, seed: int) -> None:
    """Roll back after a schedule. Check what remains by the nodes themselves, then carry out what `status` names.

    Schedules that break nodes in two waves are long; those that hypothesis draws first are short.
    """
    draw = random.Random(seed)  # noqa: S311 - the same schedules each time
    schedule = [draw.randrange(2**14) for _ in range(draw.randrange(80))]
    names = [f"n{number:02}" for number in range(24)]
    cohorts = scope is BackScope.FAILED
    changes = (
        ("boot: {base_rate: 0.2%}", "boot: {base_rate: 20%, judged: 25%}"),
    )  # some failures go on
    fleet = Fleet(
        documents.settings(directory, *changes, *((COHORTS,) if cohorts else ())), cohorts=cohorts
    )
    fleet.broken_by = frozenset(draw.sample(names, draw.randrange(8)))
    fleet.settle()
    for number in schedule:
        fleet.operate(number)
    if fleet.state.record.phase is RolloutPhase.QUEUED:
        return
    fleet.order_back(scope)
    fleet.finish(release=False)
    fleet.survey()
    fleet.finish(release=False)
    facts = RolloutFacts(fleet.settings, fleet.state, fleet.observations, "ann")
    lines = {item.node: item for item in view(facts, fleet.now).remains}
    for name in fleet.names:
        own = fleet.state.ledger.of(name, fleet.state.record.name)
        bad = fleet.digest[name] == fleet.settings.target or own is not None
        step, held = (
            fleet.state.steps.get(name),
            fleet.state.ledger.others(name, fleet.state.record.name),
        )
        by_change = (
            step is not None and step.phase is StepPhase.FAILED and step.blame is Blame.SOFTWARE
        )
        if by_change and step is not None and step.direction is Direction.FORWARD:
            assert held or fleet.stands_still(), (name, step)
        if fleet.stands_still() and fleet.state.waits(name):
            continue  # it goes back when a person has made room
        assert bad == (name in lines), (
            name,
            fleet.digest[name],
            fleet.state.steps.get(name),
            lines,
        )

    fleet.order_back(BackScope.ALL)
    fleet.finish()
    carry_out_rollbacks(fleet)
    moved = {name: step for name, step in fleet.state.steps.items() if step.prior is not None}
    left = [name for name in moved if fleet.digest[name] == fleet.settings.target]
    assert fleet.state.record.phase is RolloutPhase.ROLLED_BACK
    assert not left, [moved[name] for name in left]
    assert not fleet.state.ledger.by_node


def carry_out_rollbacks(fleet: Fleet) -> None:
    """Carry out the rollbacks by hand that `status` names for nodes that were busy at each grant."""
    facts = RolloutFacts(fleet.settings, fleet.state, fleet.observations, "ann")
    for item in view(facts, fleet.now).remains:
        if f"rollback.yml --limit {item.node}" in item.remedy:
            assert gave_up(fleet.state.steps[item.node]), item
            fleet.digest[item.node] = documents.OLD
    fleet.survey()


@pytest.mark.parametrize("scope", BackScope)
def test_rollback_leaves_no_node_bad_that_status_does_not_name(
    scope: BackScope, tmp_path: Path
) -> None:
    for seed in range(25):
        leave_nothing_unnamed(tmp_path, scope, seed)


@pytest.mark.long
@pytest.mark.parametrize("scope", BackScope)
def test_a_thousand_rollbacks_leave_no_node_bad_that_status_does_not_name(
    scope: BackScope, tmp_path: Path
) -> None:
    for seed in range(350):
        leave_nothing_unnamed(tmp_path, scope, seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_good_change_completes_without_faults(variant: str, tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path, *VARIANTS[variant]), cohorts="cohorts" in variant)
    fleet.settle()
    fleet.finish()
    assert fleet.state.record.phase is RolloutPhase.COMPLETED
    assert set(fleet.digest.values()) == {fleet.settings.target}
