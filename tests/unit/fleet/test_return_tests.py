"""Tests before a return: which results decide, and that a rollout holds the node until they have passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from goldnode.canary import results
from goldnode.catalog.models import NodeClass
from goldnode.documents.canary import CanaryDocument
from goldnode.fleet.drain import DrainCaller, DrainOutcome, DrainSettings, DrainState, SchedulerDrainer
from goldnode.fleet.drain_record import DrainRecords
from goldnode.fleet.identity import rollout_actor
from goldnode.fleet.return_tests import CAUSES, OutstandingTests, jobs_of, stored
from goldnode.fleet.rollout.drains import RolloutDrains
from goldnode.fleet.rollout.model import Prior
from goldnode.node.drained import reason

RECORDED = CanaryDocument.model_validate_json(
    (Path(__file__).parents[1] / "canary/recorded/h200-2.json").read_text()
)
SINCE = "2026-11-26T08:00:00Z"


def document(started: str, boot: str = "b1", **states: str) -> CanaryDocument:
    row = RECORDED.jobs[0]
    jobs = [
        row.model_copy(update={"name": name, "state": state, "why": "w"}) for name, state in states.items()
    ]
    return RECORDED.model_copy(update={"node": "n1", "started": started, "boot_id": boot, "jobs": jobs})


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
    ([document(AFTER, gemm="passed"), document(LATER, "b2", storage="passed")], "gemm has not run since"),
]


@pytest.mark.parametrize(("documents", "wanted"), CASES)
def test_results_since_the_drain_and_of_the_latest_boot_decide(
    documents: list[CanaryDocument], wanted: str
) -> None:
    found = OutstandingTests("repair", ["gemm"], lambda _: documents).outstanding("n1", SINCE)
    assert (wanted in found) if wanted else found == ""
    assert not wanted or "goldnode canary run n1 --before-return repair" in found


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
    assert "has not run" in OutstandingTests("rollout", ["gemm"], stored(tmp_path / "none")).outstanding(
        "n1", SINCE
    )


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
        return DrainState(False, "DRAINED", reason(actor.run, actor.controller, SINCE, "rollout r1"))

    def resume(
        self, node: str, caller: DrainCaller, records: DrainRecords | None = None, before: bool | None = None
    ) -> DrainOutcome:
        self.resumed.append(node)
        return DrainOutcome(changed=True, in_service=True)


def test_a_rollout_holds_a_node_until_its_tests_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, documents = Recorded(), [document(BEFORE, gemm="passed")]
    monkeypatch.setattr(DrainSettings, "drainer", lambda _: scheduler)
    asked: Sequence[CanaryDocument] = documents
    tests = OutstandingTests("rollout", ["gemm"], lambda _: asked)
    drains = RolloutDrains("r1", {"n1": DrainSettings("slurm", "n1")}, tests=tests.outstanding)
    prior = Prior(True, "sha256:0", "")
    held = drains.resume("n1", prior)
    assert (held.in_service, scheduler.resumed) == (False, [])
    assert "gemm has not run since" in held.reason
    documents.append(document(AFTER, gemm="passed"))
    assert drains.resume("n1", prior).in_service
    assert scheduler.resumed == ["n1"]
