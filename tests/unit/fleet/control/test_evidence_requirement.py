"""The requirement `evidence`: a wave waits for named statements, and its reason names how to make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence import proof_records as records
from tests.unit.fleet.rollout import documents
from tests.unit.images.registries import make_key

from goldnode.core.site import Site, SiteEvidence
from goldnode.evidence import proved
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope
from goldnode.fleet.control import evidence as control
from goldnode.fleet.control.requirements import RequirementEvaluator, RequirementSources
from goldnode.fleet.rollout.model import Answer, RequirementResult

NOW = 1_795_680_000.0  # 2026-11-26T08:00:00Z, an hour after the records
Json = dict[str, Any]


def target(**changes: Any) -> Json:
    """Return the class of the rollout, in the state that it goes to."""
    document = records.case_class()
    return records.sealed(
        {
            **document,
            "class": "l4",
            "lock": {**document["lock"], "digest": documents.NEW},
            **changes,
        }
    )


class Fleet:
    """A site with a key, and a class as its controller declares it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.document = directory, target()
        self.secret, _ = make_key(directory, "evidence")
        own = SiteEvidence(
            directory=str(directory / "e"), public_key=str(directory / "evidence.pub")
        )
        self.site = Site(evidence=own)
        monkeypatch.setattr(
            control, "present", lambda *_: proved.PresentClass(self.document, records.TOOLS)
        )

    def sign(self, **changes: Any) -> Path:
        """Sign a canary result about the class."""
        record = records.write(
            "canary", self.document, self.directory, **{"class": "l4", **changes}
        )
        proof = prove(ProofRequest("canary", record, self.document), DETAIL)
        path = self.directory / "e/l4/canary-1.dsse.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(envelope(proof, load_signer(self.secret)))
        return path

    def answer(self, kinds: str = "canary", options: str = "") -> RequirementResult:
        """Return the answer of the requirement after the first wave."""
        own = ("require:\n", f"require:\n- evidence: {{kinds: [{kinds}]{options}}}\n")
        reader = RequirementEvaluator(
            documents.settings(self.directory, own),
            RequirementSources(site=self.site),
            clock=lambda: NOW,
        )
        return reader.read("evidence", 0)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(tmp_path, monkeypatch)


def test_wave_passes_with_current_evidence_and_waits_without(fleet: Fleet) -> None:
    waiting = fleet.answer()
    assert waiting.answer is Answer.UNKNOWN
    assert waiting.reason.startswith(
        "waits for canary (missing): run `goldnode canary run --class l4 --out canary`, then "
        "`goldnode evidence sign canary canary/RESULT.json --class l4`"
    )
    fleet.sign()
    passed = fleet.answer()
    assert (passed.answer, passed.reason) == (Answer.PASSES, "proved: canary")
    both = fleet.answer("canary, boot")
    assert both.answer is Answer.UNKNOWN
    assert both.reason.startswith("waits for boot (missing): run `goldnode-node report")


def test_wave_waits_after_one_package_of_the_lock_changed(fleet: Fleet) -> None:
    fleet.sign()
    fleet.document["packages"][0]["version"] += "+1"
    fleet.document = records.sealed(fleet.document)
    waiting = fleet.answer()
    assert waiting.answer is Answer.UNKNOWN
    assert waiting.reason.startswith("waits for canary (stale): run `goldnode canary run")


def test_rollout_to_a_disk_waits_for_the_statement_about_its_boots(fleet: Fleet) -> None:
    own = (
        ("require:\n", "require:\n- evidence: {kinds: [canary]}\n"),
        (f'to: {{stack: debian12_r580, lock: "{documents.NEW}"}}', "to: {disk: b1}"),
    )
    reader = RequirementEvaluator(
        documents.settings(fleet.directory, *own),
        RequirementSources(site=fleet.site),
        clock=lambda: NOW,
    )
    fleet.sign()
    waiting = reader.read("evidence", 0)
    assert waiting.answer is Answer.UNKNOWN
    assert waiting.reason.startswith(
        "waits for disk (missing) of build b1: run `goldnode disks verify l4`"
    )
    for build, answer in (("b2", Answer.UNKNOWN), ("b1", Answer.PASSES)):
        record = records.write("disk", fleet.document, fleet.directory)
        for file in (record, record.with_name("disk.json")):
            content = json.loads(file.read_text()) | {"build_id": build}
            file.write_text(json.dumps(content | ({"class": "l4"} if file == record else {})))
        proof = prove(ProofRequest("disk", record, fleet.document), DETAIL)
        path = fleet.directory / "e/l4/disk-1.dsse.json"
        path.write_bytes(envelope(proof, load_signer(fleet.secret)))
        assert reader.read("evidence", 0).answer is answer


@pytest.mark.parametrize("case", ["tampered", "subject", "key", "simulated", "old", "lock"])
def test_statement_that_does_not_count_leaves_the_wave_waiting(fleet: Fleet, case: str) -> None:
    options = ""
    path = fleet.sign(simulated=case == "simulated")
    if case == "tampered":
        envelope_ = json.loads(path.read_text())
        envelope_["payload"] = "A" + envelope_["payload"][1:]
        path.write_text(json.dumps(envelope_))
    elif case == "subject":
        fleet.document = target(**{"class": "other"})
        path.write_bytes(fleet.sign(**{"class": "other"}).read_bytes())
        fleet.document = target()
    elif case == "key":
        make_key(fleet.directory, "evidence")
    elif case == "old":
        options = ", max_age: 30m"
    elif case == "lock":
        fleet.document = target(lock={**fleet.document["lock"], "digest": documents.OLD})
    waiting = fleet.answer(options=options)
    assert waiting.answer is Answer.UNKNOWN
    if case == "lock":
        assert "and the rollout goes to" in waiting.reason
    else:
        assert waiting.reason.startswith(
            f"waits for canary ({'stale' if case == 'old' else 'refused'})"
        )


def test_signed_failure_fails_the_wave(fleet: Fleet) -> None:
    record = json.loads(records.write("canary", fleet.document, fleet.directory).read_text())
    fleet.sign(jobs=[{**record["jobs"][0], "state": "failed", "why": "wrong result"}])
    failed = fleet.answer()
    assert (failed.answer, failed.reason) == (Answer.FAILS, "canary failed: 0 of 1 jobs passed")
