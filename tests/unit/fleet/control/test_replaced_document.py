"""A document is submitted while a controller works by an earlier one: that decides nothing more, and nodes in flight finish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import LIMITS, ControlledRollout, controlled, violations
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control import submission
from goldnode.fleet.rollout.model import RolloutPhase, StepPhase
from goldnode.fleet.rollout.plan import REPLACED
from goldnode.fleet.rollout.view import view
from goldnode.fleet.store import controllers
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.rollout_view import RolloutReader

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))


def first_document(directory: Path, migrated: Path) -> ControlledRollout:
    """Return a rollout of 12 nodes by its first document, in a copy of a store."""
    where = directory / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    return controlled(directory, str(where), 12, *FAST)


def resubmitted(found: ControlledRollout, directory: Path) -> ControlledRollout:
    """Submit a document with smaller waves, and return the rollout by it."""
    file = documents.written(directory, *FAST, ("nodes: 6", "nodes: 3"))
    given = Submission(
        file.settings.name,
        node_class=file.settings.class_,
        target=file.settings.target,
        document=file.text,
        limits=LIMITS,
        author="alice@c",
    )
    store = found.store()
    assert not store.run(lambda c: controllers.submit(c, given, found.world.now))
    store.close()
    return replace(found, settings=file.settings)


def test_controller_of_a_replaced_document_ends_its_steps_and_begins_none(
    tmp_path: Path, migrated: Path
) -> None:
    old = first_document(tmp_path, migrated)
    store = old.store()
    first = old.controller(store, "c/1")
    while not (report := first.tick()).active:
        old.world.now += 60
    new = resubmitted(old, tmp_path)
    for _ in range(60):
        old.world.now += 60
        report = first.tick()
    assert [wait.reason for wait in report.waits] == [REPLACED]
    assert report.active == 0, "nodes in flight have finished"
    moved = [name for name, node in old.world.nodes.items() if node.digest == documents.NEW]
    assert len(moved) <= 2, "no wave has begun by the old document"
    assert all(node.in_service for node in old.world.nodes.values())

    second = new.controller(store, "c/2")
    for _ in range(400):
        old.world.now += 60
        if (report := second.tick()).ended:
            break
    assert report.phase is RolloutPhase.COMPLETED
    first.close()
    second.close()
    facts = RolloutReader("r1").read(store)
    waves = [step.wave for step in facts.state.steps.values() if step.phase is StepPhase.DONE]
    assert (waves.count(0), waves.count(1)) == (2, 3), "by the new document"
    assert not view(facts, old.world.now).waits
    store.close()
    assert violations(new) == []


def test_document_that_is_submitted_back_goes_on(tmp_path: Path, migrated: Path) -> None:
    old = first_document(tmp_path, migrated)
    text = documents.written(tmp_path, *FAST).text
    resubmitted(old, tmp_path)
    store = old.store()
    given = Submission(
        "r1",
        node_class=old.settings.class_,
        target=old.settings.target,
        document=text,
        limits=LIMITS,
        author="alice@c",
    )
    store.run(lambda c: controllers.submit(c, given, old.world.now))
    store.close()
    report, _ = old.run(ticks=400)
    assert report.phase is RolloutPhase.COMPLETED


def test_controller_that_starts_again_with_an_old_file_does_not_undo_a_submission(
    tmp_path: Path, migrated: Path
) -> None:
    old = first_document(tmp_path, migrated)
    resubmitted(old, tmp_path)
    store = old.store()
    edited = documents.written(tmp_path, *FAST, ("nodes: 6", "nodes: 5"))
    store.run(lambda c: submission.refuse_replaced(c, edited))  # a new text may replace it
    again = documents.written(tmp_path, *FAST)
    with pytest.raises(
        StoreError, match="alice@c has submitted another document of rollout r1"
    ) as caught:
        store.run(lambda c: submission.refuse_replaced(c, again))
    assert "goldnode rollout submit" in (caught.value.remedy or "")
    given = Submission(
        "r1",
        node_class=old.settings.class_,
        target=old.settings.target,
        document=again.text,
        limits=LIMITS,
        author="alice@c",
    )
    store.run(lambda c: controllers.submit(c, given, old.world.now))
    store.run(lambda c: submission.refuse_replaced(c, again))  # a person has submitted it again
    store.close()
