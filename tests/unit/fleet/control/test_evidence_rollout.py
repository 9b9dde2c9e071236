"""A class whose lock changes by one package: what goes stale, that nodes and waves wait, and what lets them go on.

Store, channel, lock service, controller and signatures are real. The machines and the class are simulated.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.evidence import proof_records as records
from tests.unit.fleet.control.followed import FollowedRollout, followed, served
from tests.unit.fleet.rollout import documents
from tests.unit.images.registries import make_key

from goldnode.catalog.models import EvidenceRule
from goldnode.channels.requirements import ChannelSubject
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.site import Site, SiteEvidence
from goldnode.evidence import proved
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope
from goldnode.fleet.control import evidence as control
from goldnode.fleet.control.channel import ChannelPublisher
from goldnode.fleet.control.controller import (
    ControllerParts,
    ControllerReport,
    ControllerSettings,
    RolloutController,
)
from goldnode.fleet.control.evidence import FollowedEvidence, PromotionEvidence
from goldnode.fleet.control.follow import FollowReader, FollowWorker
from goldnode.fleet.control.requirements import RequirementEvaluator, RequirementSources
from goldnode.fleet.rollout.model import BackScope, RolloutPhase
from goldnode.fleet.store import orders
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.node.follow import command
from goldnode.node.follow import evidence as followed_evidence
from goldnode.node.follow.loop import Follower
from goldnode.node.ground.host import Host

Json = dict[str, Any]
RULE = EvidenceRule(kinds=["canary", "module-build"], max_age_days=3650, follow=["module-build"])
ITEM = SimpleNamespace(evidence=RULE, images=[])
BUILDS = "run `goldnode modules build STACK`, then `goldnode evidence sign module-build RESULT.json --class l4`"
RUNS = "run `goldnode canary run --class l4 --out canary`, then `goldnode evidence sign canary canary/RESULT.json"


def of_lock(lock: str, **changes: Any) -> Json:
    """Return the class with a lock."""
    document = copy.deepcopy(records.case_class()) | {"class": "l4"} | changes
    return records.sealed({**document, "lock": {**document["lock"], "digest": lock}})


@dataclass
class ProvedRollout(FollowedRollout):
    """A rollout whose class asks for evidence."""

    site: Site = field(default_factory=Site)

    def controller(self, store: StoreDatabase, holder: str = "c/1") -> RolloutController:
        own = ControllerSettings(holder, nodes=0.0, quiet=0.0, clock=lambda: self.now)
        evidence = FollowedEvidence(self.site)
        parts = ControllerParts(
            FollowWorker(self.settings.name, clock=lambda: self.now),
            nodes=FollowReader(store, self.settings.class_, lambda: self.now),
            requirements=RequirementEvaluator(
                self.settings, RequirementSources(site=self.site), clock=lambda: self.now
            ),
            written=ChannelPublisher(store, self.channel, self.keys, evidence=evidence),
        )
        return RolloutController(store, self.settings, parts, own)

    def follower(
        self, name: str, service: str | None = None, channel: str | None = None
    ) -> Follower:
        own = super().follower(name, service, channel)
        own.settings = own.settings._replace(proofs=tuple(RULE.follow))
        keys = Path(own.host.located(followed_evidence.KEYS))
        keys.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.directory / "evidence.pub", keys)
        return own

    def moved(self) -> int:
        return sum(machine.digest == documents.NEW for machine in self.machines.values())


class World:
    """A site whose class has the old lock, and evidence of both kinds about it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.secret, _ = make_key(directory, "evidence")
        own = SiteEvidence(
            directory=str(directory / "e"), public_key=str(directory / "evidence.pub")
        )
        self.site = Site(evidence=own)
        self.document, self.signed = of_lock(documents.OLD), 0
        monkeypatch.setattr(
            control, "present", lambda *_: proved.PresentClass(self.document, records.TOOLS)
        )
        catalog = SimpleNamespace(
            classes={"l4": SimpleNamespace(item=ITEM)},
            node_class=lambda _: SimpleNamespace(item=ITEM),
        )
        monkeypatch.setattr(control, "load_catalog", lambda: catalog)

    def sign(self, kind: EvidenceKind) -> None:
        """Run the job that makes a proof, and sign it."""
        changes = {"class": "l4"} if kind == "canary" else {}
        record = records.write(kind, self.document, self.directory, **changes)
        proof = prove(ProofRequest(kind, record, self.document), DETAIL)
        self.signed += 1
        path = proved.directory(self.site, "l4") / f"{kind}-{self.signed}.dsse.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(envelope(proof, load_signer(self.secret)))

    def states(self) -> dict[str, str]:
        """Return the state of each kind that the class asks for."""
        rows = proved.statuses(
            proved.directory(self.site, "l4"),
            proved.PresentClass(self.document, records.TOOLS),
            proved.trust(self.site),
        )
        return {row.kind or "": f"{row.state}: {row.why}" for row in rows}


def checked(rollout: ProvedRollout, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `goldnode-node follow --check` prints on a node of the first wave."""
    root = rollout.directory / "nodes/checked"
    name = next(name for name, said in rollout.said.items() if "evidence" in said[-1])
    follow = {
        "channel": str(rollout.channel),
        "service": "http://s",
        "apply": ["true"],
        "evidence": {"kinds": RULE.follow, "max_age_days": RULE.max_age_days},
    }
    files = {
        "/etc/goldnode/class.json": json.dumps({"class": "l4", "follow": follow}).encode(),
        "/etc/goldnode/follow/root.json": rollout.first_root,
        followed_evidence.KEYS: (rollout.directory / "evidence.pub").read_bytes(),
    }
    for path, data in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    options = SimpleNamespace(
        channel=None,
        service=None,
        node=name,
        root_document=None,
        check=True,
        apart=False,
        fetch=False,
        format="text",
    )
    assert command.run(Host(str(root), live=True), options) == 0
    return capsys.readouterr().out


def waits(report: ControllerReport) -> str:
    return " | ".join(wait.reason for wait in report.waits)


def test_one_package_makes_evidence_stale_and_the_wave_goes_on_when_it_is_renewed(
    tmp_path: Path,
    migrated: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(tmp_path, monkeypatch)
    world.sign("canary")
    world.sign("module-build")
    assert {state.partition(":")[0] for state in world.states().values()} == {"current"}

    # One package of the lock changes, a library of the driver: no module is built from it.
    world.document = of_lock(documents.NEW)
    row = next(row for row in world.document["packages"] if row["name"] == "libcuda1")
    old, row["version"] = row["version"], f"{row['version']}+1"
    world.document = records.sealed(world.document)
    states = world.states()
    assert states["canary"].startswith(f"stale: package libcuda1: {old} ")
    assert states["module-build"].startswith("current: ")
    lock = world.document["lock"]["digest"]
    promoted = PromotionEvidence(world.site)(
        ChannelSubject(records.OLD, "disk", class_="l4", lock=lock)
    )
    assert promoted.why.startswith("canary of class l4 is stale: package libcuda1")

    where = f"sqlite:///{shutil.copy(migrated, tmp_path / 'fleet.db')}"
    asked = "require:\n- evidence: {kinds: [canary, module-build], max_age: 3650d}\n"
    given = followed(tmp_path, where, ("require:\n", asked))
    rollout = ProvedRollout(**{**vars(given), "site": world.site})
    store = rollout.store()
    with served(rollout):
        # A node takes a statement about its target alone.
        rollout.run(store, rounds=5)
        first = {said[-1] for said in rollout.said.values() if "evidence" in said[-1]}
        assert first == {
            "waits: evidence of kind module-build does not count: the channel has none about this state: "
            f"{BUILDS}"
        }
        assert rollout.moved() == 0
        monkeypatch.setattr(command, "time", SimpleNamespace(time=lambda: rollout.now))
        assert BUILDS in checked(rollout, capsys)

        world.sign("module-build")
        report = rollout.run(store, rounds=15)
        assert rollout.moved() == 2, rollout.said
        assert f"waits for canary (stale): {RUNS}" in waits(report), report
        assert report.phase is RolloutPhase.RUNNING

        world.sign("canary")
        report = rollout.run(store)
        assert (report.phase, rollout.moved()) == (RolloutPhase.COMPLETED, 6), rollout.said

        # The way back is not blocked: no statement is left, about either state.
        shutil.rmtree(proved.directory(world.site, "l4"))
        order = PersonsOrder("bob@login1", rollout.now, "too slow")
        assert store.run(lambda c: orders.roll_back(c, rollout.settings.name, BackScope.ALL, order))
        report = rollout.run(store)
        assert (report.phase, rollout.moved()) == (RolloutPhase.ROLLED_BACK, 0), rollout.said
    store.close()
