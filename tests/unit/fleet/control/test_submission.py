"""Submission of rollouts, the loop of a run, and the sentences that it prints."""

from __future__ import annotations

import shutil
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.unit.fleet.control.controlled import START, TICK, controlled
from tests.unit.fleet.rollout import documents

from goldnode.commands.rollout.run import nodes_behind
from goldnode.fleet.control.run import RolloutRun
from goldnode.fleet.control.submission import fleet_limits, submit
from goldnode.fleet.rollout import model
from goldnode.fleet.rollout.lines import action_sentence, short
from goldnode.fleet.rollout.model import FleetNode, RolloutPhase
from goldnode.fleet.store import limits, log, nodes, orders, rollouts
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError, StoreUnavailableError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.orders import Scope

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
MEMBERS = [FleetNode(f"n{number}", "r1", "l1", tags=("lab",)) for number in range(12)]


@pytest.fixture
def where(tmp_path: Path, migrated: Path) -> str:
    path = tmp_path / "fleet.db"
    shutil.copy(migrated, path)
    return str(path)


# Submission


def test_submission_stores_document_nodes_and_the_person(tmp_path: Path, where: str) -> None:
    file = documents.written(tmp_path, ("timeout: 1h", "timeout: 1h\nauthor: ann"))
    store = StoreDatabase(where)
    done = store.run(lambda c: submit(c, file, MEMBERS, "bob@here", START))
    assert (done.new, done.replaced, len(done.nodes.added)) == (True, False, 12)
    with store.read() as connection:
        loaded = rollouts.load(connection, file.settings)
        lines = list(log.entries(connection, rollout="r1"))
        assert rollouts.document(connection, "r1") == (tmp_path / "rollout.yml").read_text(
            encoding="utf-8"
        )
        assert rollouts.ended(connection, "r1") is None
    assert {node.rack for node in loaded.state.nodes.values()} == {"r1"}
    assert loaded.state.nodes["n3"].tags == ("lab",)
    assert [line["who"] for line in lines] == ["bob@here"]  # who submitted it, not who wrote it
    store.close()


def test_same_document_changes_nothing_and_another_one_replaces_it(
    tmp_path: Path, where: str
) -> None:
    store = StoreDatabase(where)
    first = documents.written(tmp_path)
    store.run(lambda c: submit(c, first, MEMBERS, "bob@here", START))
    again = store.run(lambda c: submit(c, first, MEMBERS, "bob@here", START))
    assert not again.new
    assert not again.replaced
    assert not again.nodes
    longer = documents.written(tmp_path, ("timeout: 1h", "timeout: 2h"))
    assert store.run(lambda c: submit(c, longer, MEMBERS, "bob@here", START)).replaced
    other = documents.written(tmp_path, (f'lock: "{documents.NEW}"', f'lock: "sha256:{"2" * 64}"'))
    with pytest.raises(StoreError, match="another class or target"):
        store.run(lambda c: submit(c, other, MEMBERS, "bob@here", START))
    store.close()


def test_id_of_a_lock_client_survives_a_submission(tmp_path: Path, where: str) -> None:
    store = StoreDatabase(where)
    stored = [StoredNode("n1", "l4", machine="0123")]
    store.run(lambda c: nodes.put(c, stored, {}, "test", START))
    store.run(lambda c: submit(c, documents.written(tmp_path), MEMBERS, "bob@here", START))
    from sqlalchemy import select

    from goldnode.fleet.store import tables

    with store.read() as connection:
        query = select(tables.node.c.machine).where(tables.node.c.name == "n1")
        assert connection.scalar(query) == "0123"
    store.close()


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        ("planned: 4", "4"),
        ("planned: 2%", "2%"),
        ("planned: 0.07%", "0.07%"),
        ("planned: 33.3%", "33.3%"),
    ],
)
def test_limits_of_the_document_are_those_of_the_store(
    tmp_path: Path, written: str, planned: str
) -> None:
    found = documents.settings(tmp_path, ("planned: 4", written))
    own = fleet_limits(found)
    assert own.planned == planned
    for size in (1, 12, 50, 1000, 9999):
        assert limits.number(own.planned, size) == found.limits.planned.nodes(size)


# A run


def _run(
    found: Any, stay: bool = False, most: int = 3000
) -> tuple[RolloutPhase | None, list[str], RolloutRun]:
    store = found.store()
    controller = found.controller(store)
    tick = controller.tick
    lines: list[str] = []
    running = RolloutRun(controller, lines.append, stay, threading.Event())
    ticks = 0

    def timed() -> Any:
        nonlocal ticks
        found.world.now += TICK / 2
        ticks += 1
        if ticks > most:
            running.stop.set()
        return tick()

    controller.tick = timed
    running.stop.wait = lambda timeout=None: False  # type: ignore[method-assign]
    phase = running.run()
    store.close()
    return phase, lines, running


def test_run_reports_each_step_and_ends_with_the_rollout(tmp_path: Path, where: str) -> None:
    phase, lines, _ = _run(controlled(tmp_path, where, 12, *FAST))
    assert phase is RolloutPhase.COMPLETED
    assert sum(line.startswith("wave ") for line in lines) == 3
    assert sum("back in service" in line for line in lines) == 12
    assert lines[-1].startswith("the rollout is completed: every wave")
    assert any(line.startswith("waits until ") and "soak" in line for line in lines)
    assert len(lines) == len(dict.fromkeys(lines)) or len(lines) < 200  # no line for each tick


def test_run_of_a_bad_change_names_the_cause(tmp_path: Path, where: str) -> None:
    bad = {f"n{number:02}": "module" for number in range(12)}
    phase, lines, _ = _run(controlled(tmp_path, where, 12, *FAST, **bad))
    assert phase is RolloutPhase.ROLLED_BACK
    assert any("rolls back" in line and "module nvidia does not build" in line for line in lines)
    assert any(line.startswith(short(documents.NEW)) and "denied" in line for line in lines)


def test_run_beside_another_controller_ends_when_that_one_has_ended_the_rollout(
    tmp_path: Path, where: str
) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    first = found.controller(store, "a/1", 10**9)
    assert first.tick().holds
    second = found.controller(store, "b/1", 10**9)
    lines: list[str] = []
    running = RolloutRun(second, lines.append)

    def wait(timeout: float | None = None) -> bool:
        found.world.now += TICK / 2
        first.tick()
        return False

    running.stop.wait = wait  # type: ignore[method-assign]
    assert running.run() is RolloutPhase.COMPLETED
    assert lines == ["another controller has this rollout; this one waits to take over"]
    first.close()
    store.close()


def test_waiting_controller_outlives_a_store_that_is_away_for_a_moment(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    first = found.controller(store, "a/1", 10**9)
    assert first.tick().holds
    running = RolloutRun(found.controller(store, "b/1", 10**9), lambda line: None)

    def ended(*_: Any) -> None:
        running.stop.set()
        raise StoreUnavailableError("the store cannot be reached")

    monkeypatch.setattr(rollouts, "ended", ended)
    assert running.run() is None
    first.close()
    store.close()


def test_stopped_run_has_no_end(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    running = RolloutRun(found.controller(store), lambda line: None)
    running.stop.set()
    assert running.run() is None
    store.close()


def test_reason_to_wait_is_printed_once(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST)
    store = found.store()
    ann = PersonsOrder("ann@c", found.world.now, "a reason")
    store.run(lambda c: orders.freeze(c, Scope("all"), ann))
    store.close()
    phase, lines, _ = _run(found, most=300)
    assert phase is None
    assert sum("frozen" in line for line in lines) == 1


def test_nodes_that_wait_for_a_person_are_named_at_the_end(tmp_path: Path, where: str) -> None:
    found = controlled(tmp_path, where, 12, *FAST, n00="silent", n01="image")
    found.run(ticks=300)
    store = found.store()
    assert nodes_behind(store, documents.written(tmp_path, *FAST)) == {
        "failed": ["n01"],
        "overdue": ["n00"],
    }
    store.close()


# Sentences


@pytest.mark.parametrize("kind", get_args(model.Action), ids=lambda kind: kind.__name__)
def test_every_action_has_a_sentence(kind: type[Any]) -> None:
    samples: dict[str, Any] = {
        "nodes": ("n1", "n2"),
        "direction": model.Direction.BACK,
        "prior": model.Prior(True, None, None),
        "scope": model.FreezeScope.RACK,
        "kind": model.HoldKind.PERSON,
        "deadline": 1.0,
        "wave": "canary" if kind is model.Approve else 0,
        "attempt": 1,
        "failed": False,
        "blame": None,
        "back": None,
        "phase": RolloutPhase.RUNNING if kind is model.ChangePhase else model.StepPhase.DONE,
    }
    values = {one.name: samples.get(one.name, f"<{one.name}>") for one in fields(kind)}
    found = action_sentence(kind(**values), ["canary"])
    if kind is model.Evaluate:
        assert found is None
        return
    assert found is not None
    for name in ("node", "cause", "why", "text"):
        assert str(values.get(name, "")) in found, name
    assert found != f"{kind.__name__} "  # the form of an unknown action


def test_sentences_name_waves_and_a_few_nodes() -> None:
    many = tuple(f"n{number}" for number in range(20))
    assert action_sentence(model.Promote(1, many), ["canary", "first"]) == (
        "wave first begins with 20 nodes: n0, n1, n2, n3, n4, n5, n6, n7 and 12 more"
    )
    assert action_sentence(model.Promote(1, ("n1",)), []) == "wave 2 begins with 1 node: n1"
