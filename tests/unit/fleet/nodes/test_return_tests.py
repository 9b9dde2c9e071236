"""Tests before a return: which results decide, and that a rollout holds the node until they have passed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.rollout.documents import settings
from tests.unit.fleet.rollout.schedules import Fleet, approve_all

from goldnode.canary import results
from goldnode.catalog.models import NodeClass
from goldnode.documents.canary import CanaryDocument
from goldnode.fleet.control.drains import RolloutDrains
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.drain.command import CommandDrainer
from goldnode.fleet.drain.protocol import (
    DrainCaller,
    DrainOutcome,
    DrainState,
    NoDrainer,
    SchedulerDrainer,
)
from goldnode.fleet.drain.record import DrainRecord, DrainRecords
from goldnode.fleet.nodes.return_tests import (
    CAUSES,
    DAY,
    OutstandingTests,
    drained_at,
    jobs_of,
    stored,
)
from goldnode.fleet.rollout.explain import explain
from goldnode.fleet.rollout.floors_requirement import seconds_of
from goldnode.fleet.rollout.model import HoldKind, Prior, StepPhase
from goldnode.fleet.rollout.view import RolloutFacts
from goldnode.fleet.shared.identity import rollout_actor, rollout_run
from goldnode.node.ground.drained import mark, reason

RECORDED = CanaryDocument.model_validate_json(
    (Path(__file__).parents[2] / "canary/recorded/h200-2.json").read_text()
)
SINCE = "2026-11-26T08:00:00Z"


def document(started: str, boot: str = "b1", **states: str) -> CanaryDocument:
    row = RECORDED.jobs[0]
    jobs = [
        row.model_copy(update={"name": name, "state": state, "why": "w"})
        for name, state in states.items()
    ]
    return RECORDED.model_copy(
        update={"node": "n1", "started": started, "boot_id": boot, "jobs": jobs}
    )


BEFORE, AFTER, LATER = "2026-11-26T07:59:59Z", "2026-11-26T08:10:00Z", "2026-11-26T09:00:00Z"
CASES: list[tuple[list[CanaryDocument], str]] = [
    ([], "gemm has not run since"),
    ([document(BEFORE, gemm="passed")], "gemm has not run since"),
    ([document(AFTER, gemm="passed")], ""),
    ([document(AFTER, gemm="failed")], "gemm is failed (w)"),
    ([document(AFTER, gemm="not_counted")], "gemm is not counted (w)"),
    ([document(AFTER, gemm="could_not_check")], "gemm is could not check (w)"),
    ([document(AFTER, gemm="not_run")], "gemm is not run (w)"),
    ([document(AFTER, storage="passed")], "gemm has not run since"),
    # The latest result decides, wherever it is in the list.
    ([document(LATER, gemm="failed"), document(AFTER, gemm="passed")], "gemm is failed (w)"),
    ([document(AFTER, gemm="failed"), document(LATER, gemm="passed")], ""),
    # Two runs of one boot complete each other; a boot since then voids what was before it.
    ([document(AFTER, gemm="passed"), document(LATER, storage="passed")], ""),
    (
        [document(AFTER, gemm="passed"), document(LATER, "b2", storage="passed")],
        "gemm has not run since",
    ),
]


@pytest.mark.parametrize(("documents", "wanted"), CASES)
def test_results_since_the_drain_and_of_the_latest_boot_decide(
    documents: list[CanaryDocument], wanted: str
) -> None:
    found = OutstandingTests("repair", ["gemm"], lambda _: documents).outstanding("n1", SINCE)
    assert (wanted in found) if wanted else found == ""
    assert (
        not wanted
        or "goldnode canary run n1 --how ssh -i INVENTORY --class CLASS --before-return repair"
        in found
    )


def test_without_jobs_nothing_is_asked() -> None:
    def read(_: str) -> Iterable[CanaryDocument]:
        raise AssertionError

    assert OutstandingTests("xid", (), read).outstanding("n1", SINCE) == ""


def test_results_that_cannot_be_read_are_no_pass(tmp_path: Path) -> None:
    results.store(document(AFTER, gemm="passed"), tmp_path)
    results.store(document(AFTER, gemm="failed").model_copy(update={"node": "n2"}), tmp_path)
    tests = OutstandingTests("rollout", ["gemm"], stored(tmp_path))
    assert tests.outstanding("n1", SINCE) == ""
    assert "gemm is failed" in tests.outstanding("n2", SINCE)
    assert "has not run" in tests.outstanding("n3", SINCE)
    (tmp_path / "broken.json").write_text("{")
    assert "cannot be read" in tests.outstanding("n1", SINCE)
    assert "has not run" in OutstandingTests(
        "rollout", ["gemm"], stored(tmp_path / "none")
    ).outstanding("n1", SINCE)


def test_results_of_other_nodes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        results.store(
            document(AFTER, gemm="passed").model_copy(update={"node": f"n{number}"}), tmp_path
        )
    (tmp_path / "n7" / "broken.json").write_text("{")
    seen: list[Path] = []
    load, stat = results.load, Path.stat

    def noted_load(path: Path) -> CanaryDocument:
        seen.append(path)
        return load(path)

    def noted_stat(path: Path, **more: bool) -> os.stat_result:
        seen.append(path)
        return stat(path, **more)

    monkeypatch.setattr(results, "load", noted_load)
    monkeypatch.setattr(Path, "stat", noted_stat)
    read = stored(tmp_path)
    for _ in range(3):
        assert [found.node for found in read("n1")] == ["n1"]
    assert {path.name for path in seen if path.parent.parent == tmp_path} == {
        "20261126T081000Z.json"
    }
    assert {path.parent.name for path in seen if path.suffix == ".json"} == {"n1"}


@pytest.mark.parametrize("node", ["n1", "rack 1/n1", ".n1", "n_1"])
def test_results_directly_in_the_directory_are_read_too(tmp_path: Path, node: str) -> None:
    """A job of a scheduler, or a person, has put them there; odd names share a directory."""
    for started, name in ((AFTER, node), (LATER, "rack_1_n1")):
        results.store(document(started, gemm="passed").model_copy(update={"node": name}), tmp_path)
    flat = document(BEFORE, gemm="passed").model_copy(update={"node": node})
    (tmp_path / "copied.json").write_text(flat.model_dump_json(by_alias=True))
    assert [(found.node, found.started) for found in stored(tmp_path)(node)] == [
        (node, AFTER),
        (node, BEFORE),
    ]


def test_a_class_names_the_jobs_of_each_cause() -> None:
    class_: dict[str, Any] = {"class": "x", "backend": "cuda", "stack": "debian12_r580"}
    assert [jobs_of(NodeClass.model_validate(class_), cause) for cause in CAUSES] == [()] * 4
    declared = {
        **class_,
        "return_tests": {"after_xid": ["memory_bandwidth", "gemm"], "after_rollout": ["gemm"]},
    }
    found = NodeClass.model_validate(declared)
    assert {cause: jobs_of(found, cause) for cause in CAUSES} == {
        "repair": (),
        "xid": ("memory_bandwidth", "gemm"),
        "rollout": ("gemm",),
        "absence": (),
    }


@dataclass
class Recorded(SchedulerDrainer):
    """A scheduler with one node that this rollout drained at SINCE."""

    resumed: list[str] = field(default_factory=list)

    def state_of(self, node: str) -> DrainState:
        actor = rollout_actor("r1")
        if self.resumed:
            return DrainState(True, "IDLE", "")
        return DrainState(
            False, "DRAINED", reason(actor.run, actor.controller, SINCE, "rollout r1")
        )

    def marked(self) -> dict[str, str]:
        return {}

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        self.resumed.append(node)
        return DrainOutcome(changed=True, in_service=True)


def holding(
    monkeypatch: pytest.MonkeyPatch, documents: Sequence[CanaryDocument]
) -> tuple[Recorded, RolloutDrains]:
    scheduler = Recorded()
    monkeypatch.setattr(DrainSettings, "drainer", lambda _: scheduler)
    tests = OutstandingTests("rollout", ["gemm"], lambda _: documents)
    return scheduler, RolloutDrains(
        "r1", {"n1": DrainSettings("slurm", "n1")}, tests=tests.outstanding
    )


PRIOR = Prior(True, "sha256:0", "")


def test_a_rollout_holds_a_node_until_its_tests_have_passed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [document(BEFORE, gemm="passed")]
    scheduler, drains = holding(monkeypatch, documents)
    for _ in range(2):
        held = drains.resume("n1", PRIOR, 0.0)
        assert (held.in_service, scheduler.resumed) == (False, [])
    assert caplog.text.count("gemm has not run since") == 1, "the reason is logged once"
    found = mark(held.reason)
    assert found is not None, "the node is not taken for one that a person has drained"
    assert found.run == rollout_run("r1")
    documents.append(document(AFTER, gemm="passed"))
    assert drains.resume("n1", PRIOR, 0.0).in_service
    assert scheduler.resumed == ["n1"]


def test_results_from_before_the_change_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, drains = holding(monkeypatch, [document(AFTER, gemm="passed")])
    assert not drains.resume("n1", PRIOR, seconds_of(AFTER) + 1).in_service
    assert drains.resume("n1", PRIOR, seconds_of(AFTER)).in_service
    assert scheduler.resumed == ["n1"]


def test_a_node_that_was_only_drained_returns_without_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, drains = holding(monkeypatch, [])
    assert drains.resume("n1", PRIOR, None).in_service
    assert scheduler.resumed == ["n1"]


def test_results_of_another_boot_than_the_present_one_do_not_count() -> None:
    tests = OutstandingTests("rollout", ["gemm"], lambda _: [document(AFTER, "b1", gemm="passed")])
    assert tests.outstanding("n1", SINCE, "b1") == ""
    assert "gemm has not run since" in tests.outstanding("n1", SINCE, "b2")


OWN = reason("0011-223344", "c", SINCE, "kernel")


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (DrainState(False, "DRAINED", OWN), SINCE),
        (DrainState(True, "IDLE", ""), None),
        (DrainState(False, "DRAINED", "fan broken"), None),
    ],
)
def test_tests_are_asked_of_a_node_that_a_run_holds(
    monkeypatch: pytest.MonkeyPatch, state: DrainState, wanted: str | None
) -> None:
    monkeypatch.setattr(Recorded, "state_of", lambda *_: state)
    assert drained_at(Recorded(), "n1", None) == wanted


RECORD = DrainRecord(
    "command",
    node="n1",
    run="0011-223344",
    controller="c",
    since=AFTER,
    reason=OWN,
    in_service=True,
)


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (RECORD, AFTER),
        (replace(RECORD, in_service=None), AFTER),
        (replace(RECORD, in_service=False), None),
        (None, SINCE),
    ],
)
def test_a_command_shows_its_drain_by_the_record(
    record: DrainRecord | None, wanted: str | None
) -> None:
    text = "" if record is None else f"there\n{record.text()}"
    records = DrainRecords(lambda _: text)
    drainer = CommandDrainer(["drain"], ["resume"])
    assert drained_at(drainer, "n1", records, lambda: seconds_of(SINCE) + DAY) == wanted
    assert drained_at(NoDrainer(), "n1", records) is None


def test_a_node_that_waits_for_its_tests_stays_in_its_step(tmp_path: Path) -> None:
    """The observation of a held node neither ends the step nor counts as a person's drain."""
    fleet = Fleet(settings(tmp_path))
    approve_all(fleet)
    fleet.settle()
    for _ in range(4):
        fleet.advance(60)
        for name, step in list(fleet.state.active.items()):
            if step.phase is StepPhase.RETURNING:
                fleet.scheduler(name, False)
            else:
                fleet.work(name)
        fleet.settle()
    assert {step.phase for step in fleet.state.active.values()} == {StepPhase.RETURNING}
    name = next(iter(fleet.state.active))
    assert HoldKind.PERSON not in {hold.kind for hold in fleet.state.ledger.by_node[name].values()}
    facts = RolloutFacts(fleet.settings, fleet.state, fleet.observations, "a")
    shown = explain(
        facts, name, fleet.now, lambda node, since: f"tests before its return of {node}"
    )
    assert f"tests before its return of {name}" in [one.text for one in shown.reasons]
