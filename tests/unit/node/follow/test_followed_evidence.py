"""Evidence that a node verifies before it moves: the attacks, each refused with its kind, its reason and a command."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_ecdsa_key, make_key

from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope
from goldnode.node.follow import evidence
from goldnode.node.follow.channel import BACK, FORWARD, Wish
from goldnode.node.follow.settings import Settings
from goldnode.node.ground import boot
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host

Json = dict[str, Any]
NOW = (boot.seconds(records.TIME) or 0.0) + 3600.0
DAY = 86400.0


class FollowingNode:
    """A node with the key of who signs evidence, and the channel's document of its class."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.host = directory, Host(str(directory / "node"), live=True)
        self.class_ = records.case_class()
        self.wish = Wish("r1", FORWARD, self.class_["lock"]["digest"], "lock")
        self.given: Json = {}
        self.now, self.settings = NOW, self.asking("canary")
        self.key, public = make_key(directory, "evidence")
        self.trust(public)

    def asking(self, *kinds: str, **changes: Any) -> Settings:
        return Settings(
            "channel",
            service="http://x",
            node="n1",
            node_class=records.CLASS,
            lock=None,
            group="g",
            proofs=kinds,
            proof_days=14,
            **changes,
        )

    def trust(self, *publics: Path) -> Path:
        path = Path(self.host.located(evidence.KEYS))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(public.read_bytes() for public in publics))
        return path

    def publish(self, kind: EvidenceKind, document: Json | None = None, **changes: Any) -> None:
        """Sign a proof and put it into the channel's document."""
        about = document or self.class_
        record = records.write(kind, about, self.directory, **changes)
        data = envelope(prove(ProofRequest(kind, record, about), DETAIL), load_signer(self.key))
        self.given[kind] = json.loads(data)

    def refusal(self) -> str | None:
        return evidence.refusal(
            self.host, self.settings, {"evidence": self.given}, self.wish, self.now
        )


@pytest.fixture
def node(tmp_path: Path) -> FollowingNode:
    return FollowingNode(tmp_path)


def test_fresh_evidence_is_accepted(node: FollowingNode) -> None:
    node.publish("canary")
    assert node.refusal() is None


def test_key_of_another_algorithm_is_accepted(node: FollowingNode, tmp_path: Path) -> None:
    node.key, public = make_ecdsa_key(tmp_path, "other")
    node.trust(public)
    node.publish("canary")
    assert node.refusal() is None


def missing(node: FollowingNode) -> None:
    node.given = {}


def other_lock(node: FollowingNode) -> None:
    node.wish = node.wish._replace(digest=records.OLD)


def another_subject(node: FollowingNode) -> None:
    node.settings = node.settings._replace(node_class="case_other")


def old_key(node: FollowingNode) -> None:
    node.trust(make_key(node.directory, "new")[1])


def tampered(node: FollowingNode) -> None:
    content = json.loads(base64.b64decode(node.given["canary"]["payload"]))
    content["predicate"]["time"] = "2026-11-26T07:30:00Z"
    node.given["canary"]["payload"] = base64.b64encode(json.dumps(content).encode()).decode()


def simulated(node: FollowingNode) -> None:
    node.publish("canary", simulated=True)


def expired(node: FollowingNode) -> None:
    node.now = NOW + 15 * DAY


def from_the_future(node: FollowingNode) -> None:
    node.now = NOW - 2 * 3600.0


def failed(node: FollowingNode) -> None:
    record = json.loads(records.write("canary", node.class_, node.directory).read_text())
    job = {**record["jobs"][0], "state": "failed", "why": "wrong result"}
    node.publish("canary", jobs=[job])


def another_kind(node: FollowingNode) -> None:
    node.publish("floors")
    node.given["canary"] = node.given.pop("floors")


def without_signature(node: FollowingNode) -> None:
    node.given["canary"]["signatures"] = []


def of_another_form(node: FollowingNode) -> None:
    node.given["canary"] = {"payload": 1, "payloadType": evidence.DISK, "signatures": [2]}


ATTACKS: dict[Callable[[FollowingNode], None], str] = {
    missing: "the channel has none about this state",
    other_lock: "it is stale: it is about sha256:",
    another_subject: "its subject is class case_gpu, not case_other",
    old_key: f"no key of {evidence.KEYS} has signed it (its signatures: ",
    tampered: f"no key of {evidence.KEYS} has signed it (its signatures: ",
    simulated: "it was made on simulated hardware, which never proves the real class case_gpu",
    expired: "it is stale: it was made at 2026-11-26T07:00:00Z, and the class accepts 14 days",
    from_the_future: "it was made at 2026-11-26T07:00:00Z, in the future",
    failed: "its outcome is failed: 0 of 1 jobs passed",
    another_kind: "it is a statement of another kind: urn:goldnode:evidence:floors:1",
    without_signature: f"no key of {evidence.KEYS} has signed it (its signatures: none)",
    of_another_form: f"no key of {evidence.KEYS} has signed it (its signatures: none)",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_other_evidence_is_refused_with_kind_reason_and_command(
    node: FollowingNode, attack: Callable[[FollowingNode], None]
) -> None:
    node.publish("canary")
    attack(node)
    refused = node.refusal() or ""
    assert refused.startswith(f"evidence of kind canary does not count: {ATTACKS[attack]}")
    name = node.settings.node_class
    assert refused.endswith(
        f": run `goldnode canary run --class {name} --out canary`, then "
        f"`goldnode evidence sign canary canary/RESULT.json --class {name}`"
    )


def test_simulated_hardware_proves_a_simulated_class(node: FollowingNode) -> None:
    node.publish("canary", simulated=True)
    node.settings = node.asking("canary", simulated=True)
    assert node.refusal() is None


def test_each_kind_is_wanted(node: FollowingNode) -> None:
    node.settings = node.asking("canary", "floors")
    node.publish("canary")
    assert "of kind floors does not count: the channel has none" in (node.refusal() or "")
    node.publish("floors")
    assert node.refusal() is None


def test_way_back_and_class_without_evidence_need_none(node: FollowingNode) -> None:
    node.wish = node.wish._replace(direction=BACK)
    assert node.refusal() is None
    node.wish, node.settings = node.wish._replace(direction=FORWARD), node.asking()
    assert node.refusal() is None


def test_node_without_keys_refuses_and_names_their_file(node: FollowingNode) -> None:
    node.publish("canary")
    path = node.trust()
    with pytest.raises(NodeError, match="has no public key of ed25519"):
        node.refusal()
    path.unlink()
    assert f"keys of who signs it into {evidence.KEYS}" in (node.refusal() or "")
    node.trust(node.directory / "evidence.pub").chmod(0o666)
    with pytest.raises(NodeError, match="is not believed"):
        node.refusal()


def test_evidence_about_the_boots_of_a_disk_build_names_the_lock_of_the_others(
    node: FollowingNode,
) -> None:
    node.wish = Wish("r1", FORWARD, "b1", "disk")
    node.publish("canary")
    assert "of kind disk does not count: the channel has none" in (node.refusal() or "")
    node.now += 365 * DAY  # the records of disks have the time of their file
    node.settings = node.settings._replace(proof_days=None)
    node.publish("disk")
    assert node.refusal() is None
    other = records.sealed({**node.class_, "lock": {**node.class_["lock"], "digest": records.OLD}})
    node.publish("canary", other)
    assert "of kind canary does not count: it is stale" in (node.refusal() or "")
    node.publish("canary")
    node.wish = node.wish._replace(digest="b2")
    assert "of kind disk does not count: it is about build b1, not b2" in (node.refusal() or "")
