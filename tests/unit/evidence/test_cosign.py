"""Signatures and attestations in the forms of cosign: written, published as referrers and tags, and judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.images.registries import (
    Simulated,
    before,
    make_ecdsa_key,
    make_image,
    make_key,
    prove,
    running,
)

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.evidence import cosign, verify
from goldnode.evidence.signatures import (
    EnvelopeSigner,
    load_public,
    load_signer,
    open_envelope,
    subjects,
)
from goldnode.evidence.trust import TrustPolicy, TrustRule, identity_matches
from goldnode.images.cosign_tags import layers, push_tags, simple_signatures
from goldnode.images.publish import PublishedImage, push, push_evidence
from goldnode.images.pull import ImagePull, pull
from goldnode.oci.layout import Layout, canonical
from goldnode.oci.registry import Repository, referrers_tag

pytestmark = pytest.mark.usefixtures("unsynced")
REPOSITORY, NAME = "r.example.net/gpu/cuda", "cuda:12.4.1-runtime-debian12-0123456789ab"


@pytest.fixture(params=["ed25519", "ecdsa"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    return make_key(tmp_path) if request.param == "ed25519" else make_ecdsa_key(tmp_path)


class SignedImage:
    """An image of a layout with evidence, and signatures of both forms."""

    def __init__(self, directory: Path, pair: tuple[Path, Path]) -> None:
        self.layout = Layout(directory / "store")
        _, self.digest = make_image(self.layout)
        self.signer: EnvelopeSigner = load_signer(pair[0])
        self.keys = load_public(pair[1])
        prove(self.layout, self.digest, pair[0])
        self.new = self.attach()

    def attach(self, repository: str = REPOSITORY) -> int:
        return cosign.attach(self.layout, self.digest, repository, NAME, self.signer)

    def attached(self, kind: str) -> list[verify.AttachedDocument]:
        return [row for row in verify.documents(self.layout, self.digest) if row.type == kind]

    def push(self, target: Repository) -> None:
        found = PublishedImage("", self.digest)
        push(self.layout, self.digest, target, found)
        push_evidence(self.layout, self.digest, target, found)


@pytest.fixture
def signed(tmp_path: Path, pair: tuple[Path, Path]) -> SignedImage:
    return SignedImage(tmp_path, pair)


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def server(request: pytest.FixtureRequest) -> Iterator[Simulated]:
    with running(Simulated(api=request.param)) as found:
        assert isinstance(found, Simulated)
        yield found


def test_the_payload_states_digest_and_repository(signed: SignedImage) -> None:
    (row,) = signed.attached(cosign.SIGNATURE)
    assert json.loads(row.data) == {
        "critical": {
            "identity": {"docker-reference": REPOSITORY},
            "image": {"docker-manifest-digest": signed.digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    assert cosign.signed_by(row.data, row.signature, signed.keys) == signed.keys[0].keyid
    assert cosign.signed_by(row.data + b" ", row.signature, signed.keys) is None
    assert cosign.signed_by(row.data, "?", signed.keys) is None


def test_each_statement_has_a_bundle(signed: SignedImage) -> None:
    rows = signed.attached(cosign.BUNDLE)
    statements = [json.loads(cosign.open_bundle(row.data, signed.keys)) for row in rows]
    assert {row["predicateType"] for row in statements} >= {
        "https://cyclonedx.org/bom",
        "https://spdx.dev/Document",
        "urn:goldnode:image-evidence:1",
    }
    assert all(
        subjects(canonical(row)) == [signed.digest] for row in statements if row.get("subject")
    )
    envelope = json.loads(rows[0].data)["dsseEnvelope"]
    assert [row["keyid"] for row in envelope["signatures"]] == [""], (
        "cosign 2.5 refuses another one"
    )
    assert open_envelope(canonical(envelope), signed.keys).keyid == signed.keys[0].keyid


def test_a_second_run_writes_nothing_and_a_new_document_one_attestation(
    signed: SignedImage,
) -> None:
    before_ = {row.artefact for row in verify.documents(signed.layout, signed.digest)}
    assert signed.new > 3
    assert signed.attach() == 0
    assert {row.artefact for row in verify.documents(signed.layout, signed.digest)} == before_
    (old, _) = signed.layout.attached(signed.digest, evidence.CYCLONEDX)[0]
    signed.layout.detach(old.digest)
    signed.layout.attach(signed.digest, evidence.CYCLONEDX, canonical({"bomFormat": "CycloneDX"}))
    assert signed.attach() == 1
    kinds = [
        json.loads(cosign.open_bundle(row.data, signed.keys))["predicateType"]
        for row in signed.attached(cosign.BUNDLE)
    ]
    assert len(kinds) == len(set(kinds))
    assert signed.attach("other.example.net/cuda") == 1, "a signature for a further repository"


def test_cosign_signature_is_ok_with_its_key_and_a_note_with_another(
    signed: SignedImage, tmp_path: Path
) -> None:
    rows = verify.signed(verify.documents(signed.layout, signed.digest), signed.digest, signed.keys)
    mine = [row for row in rows if row.what in ("cosign signature", "attestation")]
    assert {row.state for row in mine} == {"ok"}
    (tmp_path / "b").mkdir()
    other = load_public(make_key(tmp_path / "b")[1])
    rows = verify.signed(
        verify.documents(signed.layout, signed.digest), signed.digest, [*other, *signed.keys]
    )
    assert {row.state for row in rows if row.what == "cosign signature"} == {"ok"}
    (row,) = signed.attached(cosign.SIGNATURE)
    assert verify.checked_cosign(row, other).state == "note"


def test_a_signature_of_another_image_is_refused(signed: SignedImage) -> None:
    _, other = make_image(signed.layout, build="ba9876543210", content=b"two")
    (row,) = signed.attached(cosign.SIGNATURE)
    noted = {cosign.ANNOTATION: row.signature}
    signed.layout.attach(
        other, cosign.SIGNATURE, row.data, media_type=cosign.PAYLOAD, layer_annotations=noted
    )
    found = verify.verify(signed.layout, other, signed.keys)
    assert ("cosign signature", f"it is about {signed.digest}") in {
        (row.what, row.detail) for row in found.rows if row.state == "refused"
    }


def test_the_tags_of_cosign_have_both(server: Simulated, signed: SignedImage) -> None:
    target = server.client().repository("gpu/cuda")
    signed.push(target)
    tag = referrers_tag(signed.digest)
    assert simple_signatures(target, signed.digest) == [
        (row.data, row.signature) for row in signed.attached(cosign.SIGNATURE)
    ]
    rows = layers(target, f"{tag}.att")
    assert {row["mediaType"] for row in rows} == {cosign.ENVELOPE}
    assert {row["annotations"]["predicateType"] for row in rows} >= {"https://cyclonedx.org/bom"}
    writes = len(server.writes())
    push_tags(signed.layout, signed.digest, target)
    assert len(server.writes()) == writes
    listed, api = target.referrers(signed.digest)
    assert api is server.api
    assert {row["artifactType"] for row in listed} >= {cosign.SIGNATURE, cosign.BUNDLE}


def test_signatures_of_others_stay(server: Simulated, signed: SignedImage, tmp_path: Path) -> None:
    target, tag = server.client().repository("gpu/cuda"), f"{referrers_tag(signed.digest)}.sig"
    (tmp_path / "b").mkdir()
    other = SignedImage(tmp_path / "b", make_key(tmp_path / "b"))
    assert other.digest == signed.digest
    # The other signer writes between the read and the write of the first one.
    server.rules.append(before(f"^PUT .*{tag}", lambda: other.push(target)))
    signed.push(target)
    signed.push(target)
    other.push(target)
    assert {row["annotations"][cosign.ANNOTATION] for row in layers(target, tag)} == {
        one.attached(cosign.SIGNATURE)[0].signature for one in (signed, other)
    }


def test_a_pull_gets_them_unchanged(server: Simulated, signed: SignedImage, tmp_path: Path) -> None:
    target = server.client().repository("gpu/cuda")
    signed.push(target)
    other = Layout(tmp_path / "other")
    pull(other, target, signed.digest, ImagePull(TrustPolicy.of_keys(signed.keys)))
    assert {row.digest for row, _ in other.attached(signed.digest)} == {
        row.digest for row, _ in signed.layout.attached(signed.digest)
    }


class TestTrustInCosign:
    """An image that only cosign signed."""

    @pytest.fixture
    def target(self, server: Simulated, signed: SignedImage) -> Repository:
        for row in verify.documents(signed.layout, signed.digest):
            if row.type != cosign.SIGNATURE:
                signed.layout.detach(row.artefact)
        signed.attach(f"{server.host}/gpu/cuda")
        target = server.client().repository("gpu/cuda")
        signed.push(target)
        # cosign itself writes the tag alone.
        for descriptor, _ in signed.layout.attached(signed.digest, cosign.SIGNATURE):
            target.delete(descriptor.digest)
        if (listed := target.digest(referrers_tag(signed.digest))) is not None:
            target.delete(listed)
        return target

    def pull(
        self, target: Repository, signed: SignedImage, tmp_path: Path, *rules: TrustRule
    ) -> tuple[str, ...]:
        return pull(
            Layout(tmp_path / "other"), target, signed.digest, ImagePull(TrustPolicy({"": rules}))
        ).signed_by

    def test_its_key_is_enough(
        self, target: Repository, signed: SignedImage, tmp_path: Path
    ) -> None:
        assert self.pull(target, signed, tmp_path, TrustRule(tuple(signed.keys))) == (
            signed.keys[0].keyid[:12],
        )

    def test_another_key_is_not(
        self, target: Repository, signed: SignedImage, tmp_path: Path
    ) -> None:
        (tmp_path / "b").mkdir()
        other = load_public(make_key(tmp_path / "b")[1])
        with pytest.raises(
            ImageError, match=r"no signature of cosign is valid and made by a trusted key"
        ):
            self.pull(target, signed, tmp_path, TrustRule(tuple(other)))

    def test_a_signature_for_another_repository_is_not(
        self, target: Repository, signed: SignedImage, tmp_path: Path
    ) -> None:
        rule = TrustRule(
            tuple(signed.keys), identity={"type": "exactRepository", "dockerRepository": "r.net/x"}
        )
        with pytest.raises(ImageError, match=r"its signature is for (127\.0\.0\.1|r\.example)"):
            self.pull(target, signed, tmp_path, rule)


@pytest.mark.parametrize(
    ("named", "signed", "identity", "right"),
    [
        ("r:5000/a:1", "r:5000/a", {"type": "matchRepository"}, True),
        ("r:5000/a:1", "r:5000/a:2", {"type": "matchRepository"}, True),
        ("r:5000/a:1", "r:5000/b", {"type": "matchRepository"}, False),
        ("r:5000/a:1", "r:5000/a", {}, False),
        ("r:5000/a:1", "r:5000/a:1", {}, True),
        ("r:5000/a@sha256:0", "r:5000/a", {}, True),
        ("r:5000/a@sha256:0", "r:5000/b", {}, False),
        ("r:5000/a:1", "r:5000/a:1", {"type": "matchExact"}, True),
        ("r:5000/a@sha256:0", "r:5000/a", {"type": "matchExact"}, True),
        ("r:5000/a:1", "q/b", {"type": "exactRepository", "dockerRepository": "q/b"}, True),
        ("r:5000/a:1", "q/b:3", {"type": "exactReference", "dockerReference": "q/b:3"}, True),
        ("m/p/a:1", "r/a:1", {"type": "remapIdentity", "prefix": "m/p", "signedPrefix": "r"}, True),
        (
            "m/pp/a:1",
            "r/a:1",
            {"type": "remapIdentity", "prefix": "m/p", "signedPrefix": "r"},
            False,
        ),
        ("r:5000/a:1", "r:5000/a:1", {"type": "a new one"}, False),
    ],
)
def test_the_identity_of_a_signature(
    named: str, signed: str, identity: dict[str, Any], right: bool
) -> None:
    assert identity_matches(named, signed, identity) is right
