"""Which rung cured which finding: what counts as evidence, intervals, and rungs that never help."""

from __future__ import annotations

import pytest

from goldnode.core.binomial import wilson
from goldnode.fleet.rollout.ladder import (
    DAY,
    CasePhase,
    EndedCase,
    LadderState,
    RepairCase,
    RungRecord,
)
from goldnode.fleet.rollout.learning import NodeVersions, RungLesson, lessons

H100 = NodeVersions("H100", "96.00", "580.95")


def rung(node: str, name: str, at: float, outcome: str = "done", evidence: str = "e") -> RungRecord:
    return RungRecord(node, "gpu.lost", name, at, None, evidence, outcome, at + 1)


def ended(node: str, name: str, at: float, phase: CasePhase = CasePhase.CURED) -> EndedCase:
    return EndedCase(node, "gpu.lost", name, at, phase)


def ticket(node: str, at: float) -> RepairCase:
    return RepairCase(
        node, "gpu.lost", (), at, CasePhase.TICKET, rung="ticket", changed_at=at, deadline=0.0
    )


def learned(state: LadderState, together: bool = False) -> dict[str, RungLesson]:
    return {row.rung: row for row in lessons(state, {"e": H100}, together=together)}


def test_last_rung_of_a_cured_case_cured_it_and_those_before_did_not() -> None:
    state = LadderState(
        rungs=[rung("n1", "reboot", 1), rung("n1", "power-cycle", 5)],
        ended=[ended("n1", "power-cycle", 9)],
    )
    rows = learned(state)
    assert (rows["reboot"].cured, rows["reboot"].tries) == (0, 1)
    assert (rows["power-cycle"].cured, rows["power-cycle"].tries) == (1, 1)
    assert rows["reboot"].versions == H100


@pytest.mark.parametrize("outcome", ["", "failed: no answer", "interrupted", "no outcome in time"])
def test_rung_that_was_not_carried_out_is_no_evidence(outcome: str) -> None:
    state = LadderState(rungs=[rung("n1", "reboot", 1, outcome)], ended=[ended("n1", "reboot", 9)])
    assert learned(state) == {}


def test_case_that_a_person_took_over_is_no_evidence() -> None:
    state = LadderState(
        rungs=[rung("n1", "reboot", 1)], ended=[ended("n1", "reboot", 9, CasePhase.VOID)]
    )
    assert learned(state) == {}
    assert learned(LadderState(rungs=[rung("n1", "reboot", 1)])) == {}


def test_ticket_shows_that_the_rungs_before_it_did_not_help() -> None:
    state = LadderState(cases={"n1": ticket("n1", 0)}, rungs=[rung("n1", "reboot", 1)])
    assert (learned(state)["reboot"].cured, learned(state)["reboot"].tries) == (0, 1)


def test_finding_that_came_back_is_counted() -> None:
    state = LadderState(
        rungs=[rung("n1", "reboot", 1), rung("n1", "power-cycle", DAY)],
        ended=[ended("n1", "reboot", 9), ended("n1", "power-cycle", DAY + 9)],
    )
    rows = learned(state)
    assert (rows["reboot"].cured, rows["reboot"].came_back) == (1, 1)
    assert (rows["power-cycle"].cured, rows["power-cycle"].came_back) == (1, 0)


@pytest.mark.parametrize(("tries", "named"), [(1, False), (15, False), (16, True)])
def test_rung_never_helps_only_with_enough_tries(tries: int, named: bool) -> None:
    nodes = [f"n{number}" for number in range(tries)]
    state = LadderState(
        cases={node: ticket(node, 0) for node in nodes},
        rungs=[rung(node, "reboot", 1) for node in nodes],
    )
    assert learned(state)["reboot"].never_helps is named


def test_hardware_is_apart_unless_together() -> None:
    state = LadderState(
        cases={node: ticket(node, 0) for node in ("n1", "n2")},
        rungs=[rung("n1", "reboot", 1), rung("n2", "reboot", 1, evidence="other")],
    )
    assert [row.tries for row in lessons(state, {"e": H100})] == [1, 1]
    assert [row.tries for row in lessons(state, {"e": H100}, together=True)] == [2]


@pytest.mark.parametrize(
    ("count", "trials", "low", "high"),
    # As scipy.stats has it: binomtest(count, trials).proportion_ci(method='wilson').
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_interval_is_wilsons(count: int, trials: int, low: float, high: float) -> None:
    assert wilson(count, trials) == pytest.approx((low, high), abs=5e-5)
