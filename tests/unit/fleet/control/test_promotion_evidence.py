"""Promotions to `stable`: what the node classes that run an image ask for, and the attacks on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_key

from goldnode.catalog.models import EvidenceRule, WorkloadImage
from goldnode.channels.requirements import ChannelSubject, Requirement, refuse
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import CatalogError, ImageError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.site import Site, SiteEvidence
from goldnode.evidence import proved
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope
from goldnode.fleet.control import evidence as control
from goldnode.fleet.control.evidence import PromotionEvidence

Json = dict[str, Any]
RAW = f"sha256:{'5' * 64}"  # of the disk in the records


@dataclass
class Classes:
    """The part of a catalog that a promotion reads: one class with evidence, by its model."""

    item: Any
    broken: CatalogError | None = None

    @property
    def classes(self) -> Json:
        return {records.CLASS: self}

    def node_class(self, name: str) -> Classes:
        if name != records.CLASS:
            raise CatalogError(f'there is no class "{name}"', remedy="correct its name")
        return self

    def whole(self) -> Classes:
        if self.broken is not None:
            raise self.broken
        return self


@dataclass
class World:
    """A site with evidence about a class that asks for it, a disk of the class, and an image that it runs."""

    directory: Path
    document: Json = field(default_factory=records.case_class)

    def __post_init__(self) -> None:
        self.secret, _ = make_key(self.directory, "evidence")
        own = SiteEvidence(
            directory=str(self.directory / "e"),
            public_key=str(self.directory / "evidence.pub"),
        )
        self.judge = PromotionEvidence(Site(evidence=own))
        model = load_catalog().node_class("demo_disk_r550").item
        self.catalog = Classes(model)
        self.ask("canary", "disk")
        lock = self.document["lock"]["digest"]
        self.disk = ChannelSubject(RAW, "disk", class_=records.CLASS, lock=lock)
        tags = ("12.4.1-runtime-debian12-aaaaaaaaaaaa", "12.4-runtime-debian12")
        self.image = ChannelSubject(records.IMAGE, "smoke", "cuda", tags)

    def ask(self, *kinds: EvidenceKind, age: int | None = None, ref: str = "") -> None:
        """Let the class ask for evidence, and run an image."""
        images = [WorkloadImage(ref=ref)] if ref else []
        rule = EvidenceRule(kinds=list(kinds), max_age_days=age)
        self.catalog.item = self.catalog.item.model_copy(
            update={"evidence": rule, "images": images}
        )

    def sign(self, kind: EvidenceKind, **changes: Any) -> Path:
        record = records.write(kind, self.document, self.directory, **changes)
        proof = prove(ProofRequest(kind, record, self.document), DETAIL)
        path = self.directory / f"e/{records.CLASS}/{kind}-1.dsse.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(envelope(proof, load_signer(self.secret)))
        return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    own = World(tmp_path)
    monkeypatch.setattr(control, "load_catalog", lambda: own.catalog)
    monkeypatch.setattr(
        control, "present", lambda *_: proved.PresentClass(own.document, records.TOOLS)
    )
    return own


def test_disk_is_promoted_with_fresh_evidence_and_refused_without(world: World) -> None:
    world.sign("canary")
    missing = world.judge(world.disk)
    assert (missing.state, missing.why) == (
        "missing",
        "disk of class case_gpu is missing: no statement of this kind",
    )
    with pytest.raises(ImageError, match="is not promoted to stable: evidence: disk") as refused:
        refuse("stable", "case_gpu:b1", [missing])
    assert str(refused.value).count("`goldnode disks verify case_gpu`") == 1
    world.sign("disk")
    passed = world.judge(world.disk)
    assert (passed.state, passed.why) == ("passed", "proved for case_gpu (canary, disk)")
    assert len(passed.evidence) == 2


def lock_changed(world: World) -> None:
    world.document["packages"][0]["version"] += "+1"
    world.document = records.sealed(world.document)


def another_disk(world: World) -> None:
    world.disk = ChannelSubject(records.OLD, "disk", class_=records.CLASS, lock=world.disk.lock)


def another_subject(world: World) -> None:
    world.document = records.sealed({**world.document, "class": "other"})
    folder = world.directory / "e"
    shutil.copytree(folder / records.CLASS, folder / "other", dirs_exist_ok=True)


def old_key(world: World) -> None:
    make_key(world.directory, "evidence")


def tampered(world: World) -> None:
    path = world.directory / f"e/{records.CLASS}/canary-1.dsse.json"
    content = json.loads(path.read_text())
    content["payload"] = "A" + content["payload"][1:]
    path.write_text(json.dumps(content))


def simulated(world: World) -> None:
    world.sign("canary", simulated=True)


def expired(world: World) -> None:
    world.sign("canary", started="2024-01-01T00:00:00Z")
    world.ask("canary", "disk", age=14)


ATTACKS: dict[Callable[[World], None], str] = {
    lock_changed: "canary of class case_gpu is stale: package ",
    another_disk: f"disk of class case_gpu is refused: it is about {RAW}, not {records.OLD}",
    another_subject: "canary of class case_gpu is refused: its subject is class case_gpu, not other",
    old_key: "canary of class case_gpu is refused: the signature is refused",
    tampered: "canary of class case_gpu is refused: the signature is refused",
    simulated: "canary of class case_gpu is refused: it was made on simulated hardware",
    expired: "canary of class case_gpu is stale: it was made at 2024-01-01T00:00:00Z, longer ago",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_disk_is_refused_with_kind_reason_and_command(
    world: World, attack: Callable[[World], None]
) -> None:
    world.sign("canary")
    world.sign("disk")
    attack(world)
    refused = world.judge(world.disk)
    assert (refused.state, refused.met) == ("failed", False)
    assert refused.why.startswith(ATTACKS[attack])
    assert "then `goldnode evidence sign " in refused.remedy


def test_disk_of_another_lock_is_not_verified(world: World) -> None:
    lock = {**world.document["lock"], "digest": records.OLD}
    world.document = records.sealed({**world.document, "lock": lock})
    row = world.judge(world.disk)
    assert row.state == "not_verified"
    assert f"and class case_gpu has {records.OLD}" in row.why
    assert row.remedy == "build it again: `goldnode disks build case_gpu`"


def test_class_without_evidence_asks_for_none_and_an_unknown_one_is_not_verified(
    world: World,
) -> None:
    world.catalog.item = world.catalog.item.model_copy(update={"evidence": None})
    row = world.judge(world.disk)
    assert (row.state, row.why) == ("passed", "class case_gpu asks for none")
    row = world.judge(ChannelSubject(RAW, "disk", class_="gone", lock=world.disk.lock))
    assert (row.state, row.remedy) == ("not_verified", "correct its name")


@pytest.mark.parametrize(
    ("ref", "asked"),
    [
        ("registry.example/gpu/cuda:12.4-runtime-debian12", True),
        ("cuda:12.4.1-runtime-debian12-aaaaaaaaaaaa", True),
        (f"registry.example/gpu/cuda@{records.IMAGE}", True),
        ("registry.example/gpu/cuda:12.6-runtime-debian12", False),
        (f"registry.example/gpu/cuda@{records.OLD}", False),
        ("registry.example/gpu/notcuda:12.4-runtime-debian12", False),
    ],
)
def test_image_needs_what_the_classes_ask_for_that_run_it(
    world: World, ref: str, asked: bool
) -> None:
    world.ask("smoke", ref=ref)
    row = world.judge(world.image)
    if not asked:
        assert (row.state, row.why) == ("passed", "no class that runs it asks for any")
        return
    assert (row.state, row.why) == (
        "missing",
        "smoke of class case_gpu is missing: no statement of this kind",
    )
    world.sign("smoke")
    assert world.judge(world.image) == Requirement(
        "evidence", "passed", "proved for case_gpu (smoke)", world.judge(world.image).evidence
    )
    other = ChannelSubject(records.OLD, "smoke", "cuda", world.image.tags)
    refused = world.judge(other)
    assert refused.met == ("@" in ref)
    if "@" not in ref:
        assert f"it is about {records.IMAGE}, not {records.OLD}" in refused.why


def test_image_is_not_verified_where_a_class_cannot_be_read(world: World) -> None:
    world.catalog.broken = CatalogError("a.yml is no class", remedy="correct it")
    row = world.judge(world.image)
    assert (row.state, row.why, row.remedy) == ("not_verified", "a.yml is no class", "correct it")
