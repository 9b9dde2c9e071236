"""Nodes that a rollback leaves behind: which nodes it takes, and what `status`, `explain` and the orders have for the others.

Real stores, with simulated nodes, and the simulator by command.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import update
from tests.unit.fleet.control.controlled import ControlledRollout, controlled, violations
from tests.unit.fleet.rollout import documents

from goldnode.cli import main
from goldnode.commands.rollout import text as rollout_text
from goldnode.documents.rollout_status import RolloutStatusDocument
from goldnode.fleet.rollout import model, steps
from goldnode.fleet.rollout.document import RolloutSettings, loads
from goldnode.fleet.rollout.explain import explain
from goldnode.fleet.rollout.model import (
    BackScope,
    Blame,
    Direction,
    FleetNode,
    Prior,
    RolloutPhase,
    StepPhase,
)
from goldnode.fleet.rollout.remains import STAY
from goldnode.fleet.rollout.state import Observations, RolloutState
from goldnode.fleet.rollout.view import RolloutFacts, view
from goldnode.fleet.store import controllers, orders, rollouts, tables
from goldnode.fleet.store.controllers import Controller
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.rollout_view import RolloutReader
from goldnode.node.ground.drained import reason

OLD, NEW = documents.OLD, documents.NEW
JUDGED = ("base_rate: 0.2%}", "base_rate: 0.2%, judged: 50%}")  # one of two canaries is enough
ALL_BACK = "goldnode rollout rollback r1 --what all --reason REASON"


class RolledBack:
    """A rollout of twelve nodes whose second wave stopped it: canary n06 failed too, canary n07 did not."""

    def __init__(self, directory: Path, migrated: Path) -> None:
        where = str(shutil.copy(migrated, directory / "fleet.db"))
        self.found: ControlledRollout = controlled(
            directory, where, 12, JUDGED, n06="image", n04="image"
        )
        document = (directory / "rollout.yml").read_text(encoding="utf-8")
        self.store = self.found.store()
        with self.store.write() as connection:
            connection.execute(update(tables.rollout).values(document=document))
        self.nodes = self.found.world.nodes

    def run(self) -> None:
        report, _ = self.found.run()
        assert report.phase is RolloutPhase.ROLLED_BACK
        assert not violations(self.found)

    def facts(self) -> RolloutFacts:
        return RolloutReader("r1").read(self.store)

    def document(self) -> RolloutStatusDocument:
        return view(self.facts(), self.found.world.now)

    def order(self, scope: BackScope) -> bool:
        own = PersonsOrder("bob@login1", self.found.world.now, "seen")
        return self.store.run(lambda c: orders.roll_back(c, "r1", scope, own))


@pytest.fixture
def rolled_back(tmp_path: Path, migrated: Path) -> RolledBack:
    found = RolledBack(tmp_path, migrated)
    found.run()
    return found


def test_rollback_of_the_wave_takes_the_canary_that_failed(rolled_back: RolledBack) -> None:
    assert (rolled_back.nodes["n06"].digest, rolled_back.nodes["n06"].in_service) == (OLD, True)
    assert rolled_back.facts().state.ledger.out == 0


def test_status_and_explain_name_the_node_that_serves_the_denied_state(
    rolled_back: RolledBack,
) -> None:
    assert (rolled_back.nodes["n07"].digest, rolled_back.nodes["n07"].in_service) == (NEW, True)
    (left,) = rolled_back.document().remains
    assert (left.node, left.remedy) == ("n07", ALL_BACK)
    assert left.reason == "has the denied state: the rollback (wave) leaves it there"
    shown = rollout_text.text(rolled_back.document())
    assert f"left by the rollback:\n- n07: {left.reason}\n  `{ALL_BACK}`\n" in shown
    reasons = explain(rolled_back.facts(), "n07", rolled_back.found.world.now).reasons
    assert (f"it {left.reason}", ALL_BACK) in [(one.text, one.remedy) for one in reasons]
    assert not [one for one in explain(rolled_back.facts(), "n06", 0.0).reasons if one.remedy]
    alarms = [item.text for item in rolled_back.document().alarms if item.code == "remains"]
    assert alarms == [f"n07 {left.reason}. `goldnode rollout status r1` has the commands"]


def test_the_named_command_ends_it(rolled_back: RolledBack) -> None:
    assert not rolled_back.order(BackScope.FAILED)  # all of these are back
    assert rolled_back.order(BackScope.ALL)
    rolled_back.run()
    assert {node.digest for node in rolled_back.nodes.values()} == {OLD}
    assert all(node.in_service for node in rolled_back.nodes.values())
    assert not rolled_back.document().remains


def test_order_failed_takes_a_node_that_fails_after_the_rollback(rolled_back: RolledBack) -> None:
    """It served the denied state and fails a day later; the controller ends before it acts on that."""
    world, store = rolled_back.found.world, rolled_back.store
    world.now += 86400.0
    epoch = store.run(lambda c: controllers.take_over(c, "r1", "c/9", world.now))
    failed = model.Finish("n07", StepPhase.FAILED, 0, "driver.version", Blame.SOFTWARE, failed=True)
    own = Controller("r1", epoch or 0, "c/9")
    store.run(lambda c: rollouts.write(c, own, [failed], world.now))
    store.run(lambda c: own.change(c, holder=None))
    (left,) = rolled_back.document().remains
    assert (left.node, left.reason, left.remedy) == (
        "n07",
        "goes back while a controller runs",
        STAY,
    )
    assert rolled_back.order(BackScope.FAILED)
    rolled_back.run()
    assert world.nodes["n07"].digest == OLD
    assert not rolled_back.document().remains
    assert not [item for item in rolled_back.document().alarms if item.code == "remains"]


@pytest.mark.parametrize("scope", BackScope)
def test_simulated_rollback_leaves_no_failed_node(scope: BackScope, tmp_path: Path) -> None:
    """Eight of a hundred nodes fail: a canary often does, and the second wave stops."""
    text = documents.TEXT.replace("canary: {nodes: 2, spread: leaf}", "canary: {nodes: 8}")
    text = text.replace("nodes: 6, ", "nodes: 60, ").replace(
        "{planned: 4, failed: 8, total: 10}", "{planned: 10}"
    )
    text += f"on_fail: {{do: rollback, what: {scope.value}}}\n"
    path = tmp_path / "rollout.yml"
    path.write_text(text, encoding="utf-8")
    words = [
        "rollout",
        "simulate",
        str(path),
        "--nodes",
        "200",
        "--fault",
        "image=8%",
        "--runs",
        "12",
    ]
    done = CliRunner().invoke(main, [*words, "--format", "json"], catch_exceptions=False)
    runs = json.loads(done.stdout)["runs"]
    rolled = [run for run in runs if run["end"] == "rolled-back"]
    assert len(rolled) >= 8
    assert [run["failed"] for run in rolled] == [0] * len(rolled)
    left = [run["denied"] for run in rolled]
    assert not any(left) if scope is BackScope.ALL else any(left)


# Single rules of the scope


def settings() -> RolloutSettings:
    return loads(documents.TEXT, "the document of these tests").settings


def state_with(
    *given: model.Step, cohort: str | None = None, back: BackScope = BackScope.FAILED
) -> RolloutState:
    nodes = [
        FleetNode(name, cohort=cohort, digest=NEW, boot_id="2", in_service=True)
        for name in (one.node for one in given)
    ]
    record = model.RolloutRecord("r1", "l4", OLD, NEW, RolloutPhase.ROLLING_BACK, wave=1, back=back)
    found = RolloutState(record, nodes, whole_cohorts=True)
    for one in given:
        found.wave_of[one.node] = one.wave
        found._set_step(one)
    found._index()
    return found


def step(node: str, phase: StepPhase, **more: object) -> model.Step:
    prior = Prior(in_service=True, digest=OLD, boot_id="1")
    first = model.Step(
        node,
        wave=0,
        direction=Direction.FORWARD,
        phase=phase,
        epoch=1,
        attempt=1,
        granted_at=0.0,
        changed_at=0.0,
        deadline=0.0,
        prior=prior,
    )
    return replace(first, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("back", BackScope)
def test_every_scope_takes_the_nodes_that_the_change_broke(back: BackScope) -> None:
    broken = step("a", StepPhase.FAILED, blame=Blame.SOFTWARE)
    assert state_with(broken, back=back).waits("a")
    of_hardware = step("a", StepPhase.FAILED, blame=Blame.HARDWARE)
    assert not state_with(of_hardware, back=back).waits("a")  # a person repairs it, and releases it


def test_node_that_a_person_released_for_another_try_goes_back() -> None:
    released = step("a", StepPhase.DEFERRED, late=True)
    assert state_with(released).waits("a")
    state = state_with(released)
    state.nodes["a"] = replace(state.nodes["a"], digest=OLD)
    state._index()
    assert not state.waits("a")  # it fell back, or was never changed


def test_node_on_another_try_is_turned_back_and_does_not_serve_the_denied_state() -> None:
    """Found by a schedule: its step was given up before the second application, so it returned as it was."""
    again = step("a", StepPhase.GRANTED, attempt=2, changed_at=10.0, deadline=100.0)
    state, seen = state_with(again), Observations()
    drained = reason(state.run, "c", "2026-11-02T08:00:00Z", "rollout")
    assert not steps.decide(settings(), state, seen, 20.0).actions  # until its drain is seen
    state.record_observation(seen, model.SchedulerObservation("a", 15.0, False, 0.0, drained))
    (action,) = steps.decide(settings(), state, seen, 20.0).actions
    assert isinstance(action, model.Turn)
    state.nodes["a"] = replace(
        state.nodes["a"], digest=OLD
    )  # the first try: it has nothing to go back from
    (action,) = steps.decide(settings(), state, seen, 20.0).actions
    assert isinstance(action, model.Proceed)
    passed = step("a", StepPhase.PASSED, attempt=2)
    assert state_with(passed).waits("a")


def test_rest_of_a_cohort_goes_back_after_the_member_that_failed() -> None:
    """A member that a person held while the others went back must not serve beside them in the denied state."""
    gone = step("a", StepPhase.DONE, direction=Direction.BACK)
    assert state_with(gone, step("b", StepPhase.DONE), cohort="c").waits("b")
    assert not state_with(step("a", StepPhase.DONE), step("b", StepPhase.DONE), cohort="c").waits(
        "b"
    )
