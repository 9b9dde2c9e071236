"""Orders of persons about rollouts, on both engines: who may approve, and what may be rolled back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import (
    ALICE,
    BOB,
    CLASS,
    LIMITS,
    NEW,
    NOW,
    fill,
    refusal,
    rollout,
)

from goldnode.fleet.rollout.model import (
    Action,
    Answer,
    BackScope,
    ChangePhase,
    Finish,
    Grant,
    NodeObservation,
    Prior,
    RequirementResult,
    RolloutPhase,
    StepPhase,
)
from goldnode.fleet.rollout.model import Direction as To
from goldnode.fleet.rollout.view import view
from goldnode.fleet.shared.person import same_person
from goldnode.fleet.store import (
    controllers,
    limits,
    log,
    observations,
    orders,
    rollout_view,
    rollouts,
    tables,
)
from goldnode.fleet.store.controllers import Controller, Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.rollout_view import RolloutReader
from goldnode.fleet.store.status import status


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ann", "ann@login1", True),
        ("ann@login1", "ann@login2", True),
        ("Ann@example.com", "ann@login1", True),
        (" ann\t", "ann @login1", True),
        ("EXAMPLE\\ann", "ann@login1", True),
        ("EXAMPLE\\Ann@login1", "ann", True),
        ("JÖRG", "jörg@login1", True),
        ("ann", "anna@login1", False),
        ("ann", "example@ann", False),
        ("bob@login1", "ann@login1", False),
        (None, "ann@login1", False),
    ],
)
def test_same_person_ignores_case_domain_and_host(
    one: str | None, other: str | None, same: bool
) -> None:
    assert same_person(one, other) is same


AUTHOR_FORMS = [
    "alice@controller",
    "alice@another",
    "Alice",
    " ALICE\n@x",
    "EXAMPLE\\alice@controller",
]


def test_author_approves_from_no_machine(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)  # by alice@controller
    for who in AUTHOR_FORMS:
        order = PersonsOrder(who, NOW, "a reason")
        with pytest.raises(StoreError, match="is the author of rollout kernel"):
            store.run(lambda c: orders.approve(c, "kernel", "first", "oncall", order))  # noqa: B023


class UndoneError(Exception):
    """Undoes a transaction."""


def guarded(
    store: StoreDatabase, author: str, who: str, table: str = "document_approval", **more: str
) -> bool:
    """Return whether the trigger alone refuses an approval. Nothing is left in the store."""
    values = {"rollout": "kernel", "wave": "first", "role": "oncall", "who": who, "at": NOW, **more}
    if table == "document_approval":
        values["document"] = "0" * 64

    def attempt(connection: Connection) -> None:
        rollouts_ = tables.rollout
        connection.execute(
            rollouts_.update().where(rollouts_.c.name == "kernel").values(author=author)
        )
        connection.execute(tables.metadata.tables[table].insert().values(**values))
        raise UndoneError

    with pytest.raises((UndoneError, StoreError)) as caught:
        store.run(attempt)
    refused = isinstance(caught.value, StoreError)
    assert not refused or "goldnode:author" in str(caught.value.__cause__)
    return refused


@pytest.mark.parametrize("table", ["approval", "document_approval"])
def test_trigger_knows_the_author_in_each_form(store: StoreDatabase, table: str) -> None:
    fill(store)
    rollout(store)
    for who in AUTHOR_FORMS:
        assert guarded(store, "alice@controller", who, table), who
        assert not guarded(store, "bob@controller", who, table), who


def test_trigger_and_code_take_the_same_identities_for_one_person(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    forms = st.text(st.sampled_from("aA@\\ \tb'öÖKß"), max_size=6)

    @settings(max_examples=80)
    @given(forms, forms, st.booleans())
    def compare(author: str, who: str, ascii_only: bool) -> None:
        if ascii_only:
            author, who = (text.encode("ascii", "ignore").decode() for text in (author, who))
        refused = guarded(store, author, who)
        # Letters beyond ASCII are the code's: the trigger may let through what the code refuses, and never the reverse.
        assert refused == same_person(author, who) or not (refused or (author + who).isascii()), (
            author,
            who,
        )

    compare()


def test_two_roles_are_two_persons_on_any_machine(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    again = PersonsOrder("bob@another", NOW, "a reason")
    assert store.run(lambda c: orders.approve(c, "kernel", "first", "oncall", BOB))
    with pytest.raises(StoreError, match="has approved wave first as oncall already"):
        store.run(lambda c: orders.approve(c, "kernel", "first", "capacity", again))


def resubmitted(store: StoreDatabase, text: str) -> None:
    given = Submission("kernel", CLASS, NEW, text, LIMITS, author="alice@controller", separate=True)
    store.run(lambda c: controllers.submit(c, given, NOW))


def approved(store: StoreDatabase, order: PersonsOrder = BOB, role: str = "oncall") -> bool:
    return store.run(lambda c: orders.approve(c, "kernel", "first", role, order))


def test_document_that_replaces_an_approved_one_is_approved_again(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    assert [approved(store), approved(store)] == [True, False]
    resubmitted(store, "rollout: kernel # with other waves")
    assert [approved(store), approved(store)] == [True, False]
    with store.read() as connection:
        lines = [json.loads(row["content"]) for row in log.entries(connection, rollout="kernel")]
    texts = ("rollout: kernel", "rollout: kernel # with other waves")
    found = [line["document"] for line in lines if line["action"] == "Approve"]
    assert found == [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def test_two_roles_are_two_persons_for_each_document(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    assert approved(store)
    resubmitted(store, "rollout: kernel # with other waves")
    assert approved(store, role="capacity")
    with pytest.raises(StoreError, match="has approved wave first as capacity already"):
        approved(store)


def state(store: StoreDatabase, name: str = "kernel") -> tuple[str, str | None, bool]:
    """Return phase, scope of the rollback, and whether the rollout has ended."""
    table = tables.rollout
    with store.read() as connection:
        row = connection.execute(select(table).where(table.c.name == name)).one()
    return row.phase, row.back, row.ended_at is not None


def complete(store: StoreDatabase, controller: Controller, node: str = "n00") -> None:
    """Move one node, and complete the rollout."""
    prior = Prior(True, "sha256:old", "boot-1")
    actions: list[Action] = [
        Grant(node, To.FORWARD, 1, NOW + 60, prior),
        Finish(node, StepPhase.DONE, 0),
        ChangePhase(RolloutPhase.COMPLETED, "done"),
    ]
    store.run(lambda c: rollouts.write(c, controller, actions, NOW))


def test_completed_rollout_is_rolled_back_widened_and_logged(store: StoreDatabase) -> None:
    fill(store)
    complete(store, rollout(store))
    assert state(store) == ("completed", None, True)
    assert store.run(lambda c: orders.roll_back(c, "kernel", BackScope.WAVE, BOB))
    assert state(store) == ("rolling-back", "wave", False)
    assert not store.run(lambda c: orders.roll_back(c, "kernel", BackScope.FAILED, BOB))
    assert store.run(lambda c: orders.roll_back(c, "kernel", BackScope.ALL, BOB))
    assert state(store) == ("rolling-back", "all", False)
    with store.read() as connection:
        denied = connection.execute(select(tables.denied.c.digest, tables.denied.c.who)).all()
        rows = connection.execute(
            select(tables.log.c.action, tables.log.c.who, tables.log.c.content)
            .where(tables.log.c.who == BOB.who)
            .order_by(tables.log.c.seq)
        ).all()
    assert [tuple(row) for row in denied] == [(NEW, BOB.who)]
    assert [row.action for row in rows] == ["Deny", "ChangePhase", "ChangePhase"]
    assert json.loads(rows[-1].content)["before"] == {"phase": "rolling-back", "back": "wave"}
    assert refusal(store, 1, rollout="kernel", wants=NEW) == "not_your_turn"


def test_lifted_target_is_granted_again(store: StoreDatabase) -> None:
    fill(store)
    rollout(store)
    store.run(lambda c: orders.deny(c, CLASS, NEW, BOB))
    assert refusal(store, 0, rollout="kernel", wants=NEW) == "digest_denied"
    assert store.run(lambda c: orders.lift_denial(c, CLASS, NEW, ALICE))
    assert refusal(store, 0, rollout="kernel", wants=NEW) == "granted"


@pytest.mark.parametrize("later", [1.0, -3600.0], ids=["later", "by a clock that was set back"])
def test_rollout_that_another_one_follows_is_not_rolled_back(
    store: StoreDatabase, later: float
) -> None:
    fill(store)
    complete(store, rollout(store))
    second = rollout(store, name="second")
    with pytest.raises(StoreError, match="rollout second of class h100 is active"):
        store.run(lambda c: orders.roll_back(c, "kernel", BackScope.ALL, BOB))
    moved: list[Action] = [
        Grant("n01", To.FORWARD, 1, NOW + 60, Prior(True, NEW, "b")),
        Finish("n01", StepPhase.DONE, 0),
    ]
    ended: list[Action] = [*moved, ChangePhase(RolloutPhase.COMPLETED, "done")]
    store.run(lambda c: rollouts.write(c, second, ended, NOW + later))
    with pytest.raises(StoreError, match="rollout second has moved nodes of class h100"):
        store.run(lambda c: orders.roll_back(c, "kernel", BackScope.ALL, BOB))
    assert state(store) == ("completed", None, True)


def test_limits_are_those_of_the_last_rollout_whatever_the_clock_was(store: StoreDatabase) -> None:
    fill(store)
    for name, planned, now in (
        ("one", "3", NOW),
        ("two", "2", NOW - 3600),
        ("three", "1", NOW - 7200),
    ):
        given = Submission(
            name,
            node_class=CLASS,
            target=NEW,
            document=f"rollout: {name}",
            limits=FleetLimits(planned, "2", "3"),
            author="ann",
        )
        store.run(lambda c: controllers.submit(c, given, now))  # noqa: B023
        epoch = store.run(lambda c: controllers.take_over(c, name, "c", now))  # noqa: B023
        end = [ChangePhase(RolloutPhase.COMPLETED, "done")]
        store.run(lambda c: rollouts.write(c, Controller(name, epoch or 0, "c"), end, now))  # noqa: B023
        with store.read() as connection:
            text = connection.scalar(select(limits.of_nodes()).where(tables.node.c.name == "n00"))
            assert text is not None
            found = FleetLimits.read(text)
            assert found.planned == limits.in_force(connection)[CLASS].planned == planned


def test_rollout_that_has_not_begun_is_not_rolled_back(store: StoreDatabase) -> None:
    fill(store)
    controller = rollout(store)
    store.run(lambda c: controller.change(c, phase="queued"))
    with pytest.raises(StoreError, match="is queued: it has nothing to roll back"):
        store.run(lambda c: orders.roll_back(c, "kernel", BackScope.ALL, BOB))
    with pytest.raises(StoreError, match='no rollout "other"'):
        store.run(lambda c: orders.roll_back(c, "other", BackScope.ALL, BOB))


def test_views_read_both_engines(store: StoreDatabase, tmp_path: Path) -> None:
    fill(store)
    controller = rollout(store, name="r1")
    file = documents.written(tmp_path, ("class: l4", f"class: {CLASS}"))
    store.run(
        lambda c: controller.change(
            c, document=(tmp_path / "rollout.yml").read_text(encoding="utf-8")
        )
    )
    moves: list[Action] = [Grant("n01", To.FORWARD, 1, NOW + 60, Prior(True, "sha256:old", "b"))]
    store.run(lambda c: rollouts.write(c, controller, moves, NOW))
    answer = RequirementResult("command", 0, Answer.UNKNOWN, NOW, "no data")
    seen = NodeObservation("n01", NOW, "b2", file.settings.target, Answer.PASSES)
    reader = RolloutReader("r1")
    assert reader.read(store).observations.requirements == {}
    store.run(lambda c: observations.record_answers(c, [answer], "r1", "c/1", controller.epoch))
    store.run(lambda c: observations.record(c, [seen], "test"))
    facts = reader.read(store)
    assert facts.observations.requirements == {("command", 0): answer}
    assert facts.observations.nodes == {"n01": seen}
    document = view(facts, NOW)
    assert document.states == {"granted": 1, "waiting": 7}
    assert [
        (item.kind, item.used, item.limit) for item in document.buffers if item.scope == "class"
    ] == [
        ("planned", 1, 2),
        ("failed", 0, 2),
        ("total", 1, 3),
    ]
    with store.read() as connection:
        assert [row["action"] for row in rollout_view.lines(connection, "r1", limit=2)] == [
            "Grant",
            "Answer",
        ]
        assert [row["subject"] for row in rollout_view.lines(connection, "r1", node="n01")] == [
            "n01"
        ]
        assert status(connection)["steps"] == [
            {"rollout": "r1", "direction": "forward", "phase": "granted", "nodes": 1}
        ]
