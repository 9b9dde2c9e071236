"""`plan`: failure rules, requirements, rollback, freeze, cohorts, persons' drains, queueing of rollouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.documents import NEW, OLD
from tests.unit.fleet.rollout.schedules import Fleet, approve_all

from goldnode.fleet.rollout.model import (
    Answer,
    Approve,
    Blame,
    Deny,
    Direction,
    Freeze,
    FreezeScope,
    OtherRollout,
    RolloutPhase,
    StepPhase,
    action_from_json,
    action_to_json,
)
from goldnode.fleet.rollout.plan import plan
from goldnode.fleet.rollout.waves import assign

COHORTS = ("total: 10}", "total: 10, per: {cohort: all-or-none}}")


def started(directory: Path, *changes: tuple[str, str], cohorts: bool = False) -> Fleet:
    """Return a fleet whose first wave has its grants."""
    fleet = Fleet(documents.settings(directory, *changes), cohorts=cohorts)
    approve_all(fleet)
    fleet.settle()
    return fleet


def turn(fleet: Fleet, **outcomes: int) -> None:
    """Let 60 seconds pass, and each active node do what its step asks for."""
    fleet.advance(60)
    for name in list(fleet.state.active):
        fleet.work(name, outcomes.get(name, outcomes.get("rest", 0)))
    fleet.settle()
    assert not fleet.audit.violations, fleet.audit.violations


def to_wave(fleet: Fleet, wave: int) -> None:
    """Let everything be good until a wave has begun."""
    for _ in range(200):
        if fleet.state.record.wave == wave:
            return
        fleet.advance(3600)
        turn(fleet)
    raise AssertionError(f"wave {wave} does not begin: {fleet.state.record}")


def phase(fleet: Fleet) -> str:
    return fleet.state.record.phase.value


def waits(fleet: Fleet) -> str:
    return "; ".join(
        wait.reason
        for wait in plan(fleet.settings, fleet.state, fleet.observations, fleet.now).waits
    )


def test_canaries_have_grants_and_nothing_else(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    assert len(fleet.state.active) == 2
    leaves = {fleet.state.nodes[name].leaf for name in fleet.state.active}
    assert len(leaves) == 2, "the pool spreads over leaves"


def test_order_differs_between_rollouts(tmp_path: Path) -> None:
    found = documents.settings(tmp_path)
    nodes = list(Fleet(found).state.nodes.values())
    assert assign(found, nodes)[1] != assign(replace(found, name="r2"), nodes)[1]


def test_idle_nodes_go_first_and_lemons_last(tmp_path: Path) -> None:
    found = documents.settings(tmp_path)
    nodes = [
        replace(node, free_at=0.0 if number % 2 else 50000.0, lemon=number == 1)
        for number, node in enumerate(Fleet(found).state.nodes.values())
    ]
    waves = assign(found, nodes)
    assert all(int(name[1:]) % 2 for wave in waves[:2] for name in wave)
    assert waves[2][-1] == "n01"


def test_same_cause_twice_stops_and_rolls_back_to_the_earlier_state(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    turn(fleet, rest=3)  # both fall back
    assert fleet.state.record.phase is RolloutPhase.ROLLING_BACK
    assert fleet.state.denied[NEW].startswith("fell back to the earlier state: on 2 nodes")
    for _ in range(4):
        turn(fleet)
    assert phase(fleet) == "rolled-back"
    assert set(fleet.digest.values()) == {OLD}
    assert all(node.in_service for node in fleet.state.nodes.values())


def test_one_failure_does_not_stop(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    first, second = fleet.state.active
    turn(fleet, **{first: 1})
    assert fleet.state.steps[first].blame is Blame.SOFTWARE
    turn(fleet)
    assert fleet.state.record.phase is RolloutPhase.RUNNING
    assert fleet.state.steps[second].phase is StepPhase.DONE


def test_hardware_finding_counts_against_the_node(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    turn(fleet, **{next(iter(fleet.state.active)): 2})
    assert fleet.state.record.phase is RolloutPhase.RUNNING
    assert fleet.state.ledger.failed == 1
    assert fleet.state.record.tally.hardware == 1


def test_good_node_is_turned_back_where_the_change_was_denied(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    fleet.commit(1, Deny(NEW, "a person knows better"))
    turn(fleet)
    assert {step.direction for step in fleet.state.active.values()} == {Direction.BACK}
    turn(fleet)
    turn(fleet)
    assert set(fleet.digest.values()) == {OLD}


def test_report_of_the_boot_before_the_step_does_not_count(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    turn(fleet, rest=4)
    assert {step.phase for step in fleet.state.active.values()} == {StepPhase.APPLYING}
    assert {code for code, _ in fleet.state.alarms} == {"boot-id"}
    fleet.advance(4000)
    fleet.settle()
    assert {step.phase for step in fleet.state.steps.values()} == {StepPhase.OVERDUE}
    assert fleet.state.ledger.planned == 0
    assert fleet.state.ledger.failed >= 2


def test_reports_are_acted_on_at_once(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    assert {step.phase for step in fleet.state.active.values()} == {StepPhase.APPLYING}
    turn(fleet)
    assert {step.phase for step in fleet.state.active.values()} == {StepPhase.RETURNING}


def test_cohort_returns_whole(tmp_path: Path) -> None:
    fleet = started(tmp_path, COHORTS, cohorts=True)
    pair = [name for name, node in fleet.state.nodes.items() if node.cohort == "c0"]
    for _ in range(200):
        active = [name for name in pair if name in fleet.state.active]
        if active and all(fleet.state.steps[name].phase is StepPhase.APPLYING for name in pair):
            break
        assert len(active) in (0, 2), "a cohort moves whole"
        fleet.advance(3600 * 5)
        turn(fleet)
    fleet.advance(60)
    fleet.work(pair[0])
    fleet.settle()
    assert fleet.state.steps[pair[0]].phase is StepPhase.APPLYING, "it waits for the other"
    fleet.work(pair[1])
    fleet.settle()
    assert {fleet.state.steps[name].phase for name in pair} == {StepPhase.RETURNING}


@pytest.mark.parametrize("answer", [Answer.UNKNOWN, None])
def test_requirement_without_an_answer_never_promotes_and_freezes(
    tmp_path: Path, answer: Answer | None
) -> None:
    fleet = started(tmp_path, ("0.2%}", "0.2%}\n- prometheus: {query: up, max: 1}"))
    for _ in range(3):
        turn(fleet)
    for _ in range(30):
        fleet.advance(1800)
        if answer is not None:
            fleet.answer(answer)
        fleet.settle()
        assert fleet.state.record.wave == 0
    assert [item.id for item in fleet.state.freezes.values()] == ["r1:unknown-canary"]
    assert "prometheus" in next(iter(fleet.state.freezes.values())).reason


def test_failed_requirement_stops_with_its_name(tmp_path: Path) -> None:
    fleet = started(tmp_path, ("0.2%}", "0.2%}\n- command: {run: [/bin/accept]}"))
    for _ in range(3):
        turn(fleet)
    fleet.answer(Answer.FAILS)
    fleet.settle()
    assert fleet.state.record.phase is RolloutPhase.ROLLING_BACK
    assert fleet.state.record.why == "command: asked"


def test_freeze_stops_grants_and_not_returns(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    to_wave(fleet, 1)
    fleet.commit(1, Freeze("f", FreezeScope.CLASS, "l4", "incident", "ann"))
    before = dict(fleet.state.active)
    assert before
    for _ in range(4):
        turn(fleet)
    assert not fleet.state.active
    assert {fleet.state.steps[name].phase for name in before} == {StepPhase.DONE}
    assert "frozen by ann: incident" in waits(fleet)


def test_frozen_rack_is_named_as_the_reason(tmp_path: Path) -> None:
    fleet = started(
        tmp_path,
        ("pool: canary", "nodes: 4"),
        ("pools:", "pools: {}"),
        ("  canary: {nodes: 2, spread: leaf}\n", ""),
    )
    for rack in range(6):
        fleet.commit(1, Freeze(f"f{rack}", FreezeScope.RACK, f"r{rack}", "a leak", "ann"))
    for _ in range(4):
        turn(fleet)
    fleet.advance(5 * 3600)
    for _ in range(2):
        turn(fleet)
    assert fleet.state.record.wave == 1
    assert not fleet.state.active
    assert "frozen by ann: a leak" in waits(fleet)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_drain_of_a_person_survives(tmp_path: Path, moment: str) -> None:
    fleet = started(tmp_path)
    to_wave(fleet, 1)
    name = next(iter(fleet.state.active)) if moment == "during" else "n05"
    if moment == "after":
        fleet.finish()
    fleet.advance(10)
    fleet.person[name] = "maintenance of a fan"
    fleet.scheduler(name, False)
    fleet.settle()
    if moment != "after":
        for _ in range(40):
            fleet.advance(3600)
            turn(fleet)
    seen = fleet.observations.scheduler[name]
    assert (seen.in_service, seen.reason) == (False, "maintenance of a fan")
    assert fleet.state.ledger.of(name, "outside") is not None
    assert fleet.state.record.phase is RolloutPhase.COMPLETED


@pytest.mark.parametrize("author", ["bob", "bob@login1", "Bob@example.com"])
def test_author_does_not_approve(tmp_path: Path, author: str) -> None:
    text = f"author: {author}\napprove: {{canary: [oncall]}}"
    fleet = Fleet(documents.settings(tmp_path, ("timeout: 1h", text)))
    approve_all(fleet)  # by bob
    fleet.settle()
    assert fleet.state.record.phase is RolloutPhase.QUEUED
    assert "approval by oncall is missing" in waits(fleet)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("0" * 64, "carol has approved an earlier document. Read this one, then"),
        ("", "carol has approved a document that its goldnode did not record. Read this one, then"),
    ],
)
def test_approval_of_another_document_does_not_count(
    tmp_path: Path, document: str, reason: str
) -> None:
    changes = ("timeout: 1h", "timeout: 1h\nauthor: bob\napprove: {canary: [oncall]}")
    fleet = Fleet(documents.settings(tmp_path, changes))
    fleet.commit(fleet.state.record.epoch, Approve("canary", "oncall", "carol", document))
    fleet.settle()
    assert fleet.state.record.phase is RolloutPhase.QUEUED
    command = "goldnode rollout approve r1 canary --role oncall --reason REASON"
    assert f"approval by oncall is missing: {reason} `{command}`" in waits(fleet)
    fleet.commit(
        fleet.state.record.epoch, Approve("canary", "oncall", "carol", fleet.settings.digest)
    )
    fleet.settle()
    assert phase(fleet) == "running"


def test_window_stops_grants(tmp_path: Path) -> None:
    window = 'windows: [{days: [mon], from: "08:00", to: "16:00", zone: UTC}]'
    fleet = Fleet(documents.settings(tmp_path, ("timeout: 1h", f"timeout: 1h\n{window}")))
    fleet.settle()  # at the epoch, a Thursday
    assert not fleet.state.active
    found = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    assert found.wake_at == 4 * 86400 + 8 * 3600
    fleet.now = found.wake_at
    fleet.settle()
    assert fleet.state.active


def test_second_rollout_waits_and_the_security_lane_supersedes(tmp_path: Path) -> None:
    fleet = Fleet(documents.settings(tmp_path))
    fleet.state.others = (OtherRollout("r0", False, -1.0, busy=False),)
    fleet.settle()
    assert fleet.state.record.phase is RolloutPhase.QUEUED
    fleet.state.others = ()
    fleet.settle()
    fleet.state.others = (OtherRollout("cve", True, 10.0, busy=False),)
    fleet.settle()
    assert phase(fleet) == "superseded"
    for _ in range(4):
        turn(fleet)
    assert not fleet.state.active, "nodes in flight have finished"
    assert len(fleet.state.steps) == 2


def test_actions_survive_json(tmp_path: Path) -> None:
    fleet = started(tmp_path)
    turn(fleet)
    turn(fleet, rest=1)
    fleet.finish()
    for entry in fleet.log:
        assert action_from_json(action_to_json(entry.action)) == entry.action
