"""The controller on a real store: whole rollouts, and rollouts whose controller dies at every statement."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import (
    START,
    ControlledRollout,
    Killed,
    StatementCounter,
    controlled,
    violations,
)
from tests.unit.fleet.rollout import documents

from goldnode.fleet.rollout.model import Answer, RequirementResult, RolloutPhase, StepPhase
from goldnode.fleet.store import observations, orders, status, tables
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.log import entries
from goldnode.fleet.store.orders import Scope

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
BAD = {f"n{number:02}": "module" for number in range(40)}


@pytest.fixture
def where(tmp_path: Path, migrated: Path) -> str:
    path = tmp_path / "fleet.db"
    shutil.copy(migrated, path)
    return str(path)


def test_good_change_reaches_every_node(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    report, _ = found.run()
    assert report.phase is RolloutPhase.COMPLETED
    assert {node.digest for node in found.world.nodes.values()} == {documents.NEW}
    assert all(node.in_service and not node.reason for node in found.world.nodes.values())
    assert violations(found) == []
    # The same trace under a document with lower limits is refused.
    strict = documents.settings(tmp_path, *FAST, ("planned: 4", "planned: 1"))
    assert any("more than limits.planned" in why for why in violations(found, strict))
    wanting = documents.settings(
        tmp_path, *FAST, ("- boot: {base_rate: 0.2%}", "- boot: {}\n- command: {run: [/x]}")
    )
    assert any("requirement command has not passed" in why for why in violations(found, wanting))


@pytest.mark.parametrize(
    ("fault", "cause"), [("module", "module nvidia does not build"), ("image", "driver.version")]
)
def test_bad_change_is_stopped_in_the_canary_wave_and_rolled_back(
    tmp_path: Path, where: str, fault: str, cause: str
) -> None:
    found = controlled(tmp_path, where, 12, *FAST, **dict.fromkeys(BAD, fault))
    report, _ = found.run()
    assert report.phase is RolloutPhase.ROLLED_BACK
    lines, end = found.history()
    assert any(cause in line[-1] for line in lines[""] if line[0] == "ChangePhase")
    assert len([name for name in lines if name]) == 2  # the canary pool
    assert {node.digest for node in found.world.nodes.values()} == {documents.OLD}
    assert all(node.in_service for node in found.world.nodes.values())
    assert end["out"] == 0
    assert violations(found) == []


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize(
    ("count", "share"), [(8, 23), pytest.param(40, 1, marks=pytest.mark.long, id="40-each")]
)
def test_controller_killed_at_any_statement_changes_nothing(
    tmp_path: Path, migrated: Path, bad: bool, count: int, share: int
) -> None:
    def fresh(name: str) -> ControlledRollout:
        place = tmp_path / name
        place.mkdir()
        shutil.copy(migrated, place / "fleet.db")
        return controlled(place, str(place / "fleet.db"), count, *FAST, **(BAD if bad else {}))

    whole = fresh("whole")
    report, statements = whole.run()
    assert report.ended
    assert statements > 100
    wanted = whole.history()
    for place in range(1, statements, share):
        cut = fresh(f"cut-{place}")
        cut.run(kill_at=place)
        assert cut.history() == wanted, f"killed before statement {place}"
        assert {name: node.digest for name, node in cut.world.nodes.items()} == {
            name: node.digest for name, node in whole.world.nodes.items()
        }
        assert all(node.in_service for node in cut.world.nodes.values())
        shutil.rmtree(tmp_path / f"cut-{place}")


def test_kill_is_noticed_by_the_test(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 8, *FAST)
    store = found.store()
    controller = found.controller(store)
    StatementCounter(5).watch(store)
    with pytest.raises(Killed):
        controller.tick()
    controller.close()
    store.close()


def test_freeze_stops_the_next_grant_and_its_end_continues(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    controller = found.controller(store)
    for _ in range(2):
        controller.tick()
    ann = PersonsOrder("ann@c", found.world.now, "a reason")
    store.run(lambda c: orders.freeze(c, Scope("rollout", found.settings.name), ann))
    for _ in range(40):
        report = controller.tick()
        assert not any(type(action).__name__ in ("Grant", "Promote") for action in report.actions)
        found.world.now += 600
    assert report.active == 0
    assert any("frozen by ann@c" in wait.reason for wait in report.waits)
    store.run(lambda c: orders.unfreeze(c, Scope("rollout", found.settings.name), ann))
    controller.close()
    store.close()
    assert found.run()[0].phase is RolloutPhase.COMPLETED


def test_second_controller_waits_and_the_first_one_stops_after_a_takeover(
    tmp_path: Path, where: str
) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    first, second = found.controller(store, "a/1", 600), found.controller(store, "b/1", 600)
    assert first.tick().holds
    assert not second.tick().holds
    found.world.now += 3600  # the first one gives no sign of life
    assert second.tick().holds
    report = first.tick()
    assert not report.holds
    assert "another controller" in str(report.problem)
    first.close()
    third = found.controller(store, "c/1", 600)
    assert not third.tick().holds
    second.close()
    assert third.tick().holds  # at once: the second one has said that it ends
    third.close()
    store.close()


def test_rollout_does_not_begin_before_any_node_is_known(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 4, *FAST)
    store = found.store()
    with store.write() as connection:
        connection.exec_driver_sql("DELETE FROM observation")
    controller = found.controller(store)
    report = controller.tick()
    assert not report.actions
    assert report.waits[0].reason == "no node of the class is known to be in service"
    controller.close()
    store.close()


class _Absent:
    def read(self, requirement: str, wave: int) -> RequirementResult:
        return RequirementResult(
            requirement, wave, Answer.UNKNOWN, START, "the query returned nothing"
        )

    def close(self) -> None:
        pass


def test_unanswered_requirement_freezes_and_is_named(tmp_path: Path, where: str) -> None:
    command = "require:\n- command: {run: [/bin/true]}\n"
    found = controlled(tmp_path, where, 8, *FAST, ("require:\n", command))
    found.requirements = _Absent()
    report, _ = found.run(ticks=400)
    assert report.phase is RolloutPhase.RUNNING
    assert any("frozen" in wait.reason and "command" in wait.reason for wait in report.waits)
    _, end = found.history()
    assert sum(step[0] is StepPhase.DONE for step in end["steps"].values()) == 2
    store = found.store()
    with store.read() as connection:
        answer, *more = observations.answers(connection, found.settings.name)
        lines = entries(
            connection, rollout=found.settings.name, where=tables.log.c.action == "Answer"
        )
    store.close()
    assert (answer.answer, answer.reason, more) == (
        Answer.UNKNOWN,
        "the query returned nothing",
        [],
    )
    assert len(lines) == 1  # it was asked many times, and never changed


def test_busy_and_silent_nodes_are_overdue_and_stay_with_a_person(
    tmp_path: Path, where: str
) -> None:
    found = controlled(tmp_path, where, 12, *FAST, n00="silent", n01="silent", n02="silent")
    report, _ = found.run(ticks=300)
    lines, end = found.history()
    late = {name for name, step in end["steps"].items() if step[0] is StepPhase.OVERDUE}
    assert late <= {"n00", "n01", "n02"}
    assert late
    assert report.phase is not RolloutPhase.QUEUED
    assert all(any(line[0] == "Overdue" for line in lines[name]) for name in late)


def test_nodes_in_service_have_an_arm_while_a_rollout_runs(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    controller = found.controller(store)
    seen: set[tuple[int, int]] = set()
    for _ in range(400):
        report = controller.tick()
        found.world.now += 60
        with store.read() as connection:
            rows = status.arms(connection)
        if report.ended:
            break
        for row in rows:
            node = found.world.nodes[row["node"]]
            assert (row["arm"] == "changed") is (node.digest == documents.NEW), row
        arms = [row["arm"] for row in rows]
        seen.add((arms.count("changed"), arms.count("control")))
    assert {(0, 10), (2, 10), (8, 4)} <= seen
    assert rows == []  # no rollout is active
    controller.close()
    store.close()
