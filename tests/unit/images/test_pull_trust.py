"""Pulls with trusted keys, and tags that were moved against the history of their line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.channels import signing
from tests.unit.images.registries import Simulated, make_image, make_key, prove, running

from goldnode.channels.lines import line_of
from goldnode.channels.promotion import Move
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.evidence.signatures import load_public
from goldnode.evidence.trust import TrustPolicy, load_trust
from goldnode.images.channels import RegistryPlace, promote
from goldnode.images.publish import ImagePublication, publish
from goldnode.images.pull import ImagePull, PulledImage, pull
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.registry import registry_address

pytestmark = pytest.mark.usefixtures("unsynced")
LINE = "12.4-runtime-debian12"


class PublishedImages:
    """Two builds of one line in a registry, signed, and the first one as its candidate."""

    def __init__(self, server: Simulated, store: Path, keys: tuple[Path, Path]) -> None:
        self.server, self.layout, self.keys = server, Layout(store / "own"), keys
        self.other = Layout(store / "other")
        self.place = registry_address(f"http://{server.host}/gpu")
        self.target = server.client().repository("gpu/cuda")
        self.tags, self.digests = {}, {}
        for letter in "ab":
            ref, digest = make_image(self.layout, build=letter * 12, content=letter.encode())
            prove(self.layout, digest, keys[0], papers=False)
            publish(
                self.layout,
                ref,
                self.place,
                server.client(),
                ImagePublication(load_public(keys[1]), settle=0),
            )
            self.tags[letter], self.digests[letter] = ref.partition(":")[2], digest
        self.folder = store / "keys"
        self.channels = RegistryPlace(self.place, server.client(), self.layout)
        self.trusted = signing.make_channels(self.channels, self.layout, self.folder, keys[0])
        self.promote("a")

    def promote(self, letter: str) -> None:
        line = line_of("cuda", self.tags[letter])
        signers = signing.signers(self.folder, self.keys[0])
        move = Move(line, "candidate", signers, "ana", to=self.tags[letter], settle=0)
        promote(self.channels, self.layout, move)

    def pull(self, reference: str, trust: TrustPolicy | None = None) -> PulledImage:
        return pull(self.other, self.target, reference, ImagePull(trust, [self.trusted]))


@pytest.fixture
def published(tmp_path: Path, keys: tuple[Path, Path]) -> Iterator[PublishedImages]:
    with running(Simulated()) as server:
        assert isinstance(server, Simulated)
        yield PublishedImages(server, tmp_path, keys)


class TestHistory:
    def test_channel_tag_pulls_the_promoted_image(self, published: PublishedImages) -> None:
        assert published.pull(f"{LINE}-candidate").digest == published.digests["a"]

    def test_the_tag_of_a_channel_that_others_moved_is_refused(
        self, published: PublishedImages
    ) -> None:
        published.server.named["gpu/cuda", f"{LINE}-candidate"] = published.digests["b"]
        with pytest.raises(
            ImageError, match=r"has sha256:\w+ as candidate: the tag was moved by something else"
        ):
            published.pull(f"{LINE}-candidate")

    def test_channels_that_were_seen_and_are_gone_are_missed(
        self, published: PublishedImages
    ) -> None:
        published.promote("b")
        published.pull(f"{LINE}-candidate")
        del published.server.named["gpu/goldnode-channels", "goldnode-channels"]
        published.server.named["gpu/cuda", f"{LINE}-candidate"] = published.digests["a"]
        for reference in (f"{LINE}-candidate", published.tags["a"]):
            with pytest.raises(GoldnodeError, match="lack moves that this store has seen"):
                published.pull(reference)

    def test_an_interrupted_move_still_gives_the_previous_image(
        self, published: PublishedImages
    ) -> None:
        published.promote("b")
        published.server.named["gpu/cuda", f"{LINE}-candidate"] = published.digests["a"]
        assert published.pull(f"{LINE}-candidate").digest == published.digests["a"]

    def test_an_immutable_tag_with_forged_labels_is_refused_by_its_history(
        self, published: PublishedImages
    ) -> None:
        forged = Layout(published.other.root.parent / "forged")
        _, digest = make_image(forged, build="a" * 12, content=b"forged")
        published.server.load(forged, digest, "gpu/cuda", published.tags["a"])
        with pytest.raises(
            ImageError, match=r"was sha256:\w+ when it was promoted to candidate: the tag was moved"
        ):
            published.pull(published.tags["a"])

    def test_a_promotion_of_a_tag_that_has_another_image_is_refused(
        self, published: PublishedImages
    ) -> None:
        published.server.named["gpu/cuda", published.tags["b"]] = published.digests["a"]
        with pytest.raises(ImageError, match=r"which is cuda:.*-aaaaaaaaaaaa: the tag was moved"):
            published.promote("b")


class TestKeys:
    def test_a_signed_image_is_pulled_with_its_key(self, published: PublishedImages) -> None:
        keys = load_public(published.keys[1])
        found = published.pull(published.tags["a"], TrustPolicy.of_keys(keys))
        assert found.signed_by == (keys[0].keyid[:12],)
        assert found.ref in published.other.refs()

    def test_without_a_key_nothing_is_called_signed(self, published: PublishedImages) -> None:
        assert published.pull(published.tags["a"]).signed_by == ()

    @pytest.mark.parametrize("how", ["other key", "unsigned", "document removed"])
    def test_untrusted_image_is_refused_before_any_layer_is_pulled(
        self, published: PublishedImages, tmp_path: Path, how: str
    ) -> None:
        trust = TrustPolicy.of_keys(load_public(published.keys[1]))
        reference = published.digests["a"]
        if how == "other key":
            trust = TrustPolicy.of_keys(load_public(make_key(tmp_path, "other")[1]))
        if how == "unsigned":
            _, reference = make_image(published.layout, build="c" * 12, content=b"c")
            published.server.load(published.layout, reference, "gpu/cuda", "x")
        if how == "document removed":
            row, _ = published.layout.attached(reference, "application/vnd.goldnode.smoke.v1+json")[
                0
            ]
            del published.server.manifests["gpu/cuda", row.digest]
        with pytest.raises(
            ImageError,
            match=r"is not trusted: (it is signed by a key|the image is not|smoke: sha256)",
        ):
            published.pull(reference, trust)
        image = OciImage(published.layout, reference)
        assert not any(published.other.has(row.digest) for row in image.layers)
        assert published.other.refs() == {}


def policy(directory: Path, key: Path, scopes: Mapping[str, Any]) -> TrustPolicy:
    """A policy with one key; `KEY` in a scope is a requirement of it."""
    signed = {"type": "sigstoreSigned", "keyPath": key.name}
    rows = {name: [signed if row == "KEY" else row] for name, row in scopes.items()}
    text = {"default": [{"type": "reject"}], "transports": {"docker": rows}}
    file = directory / "policy.json"
    file.write_text(json.dumps(text))
    return load_trust([file])


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)[1]


@pytest.mark.parametrize(
    ("scope", "trusted"),
    [
        ("r.example.net", True),
        ("r.example.net/gpu", True),
        ("r.example.net/gpu/cuda", True),
        ("r.example.net/gpu/cuda:1.0", True),
        ("*.example.net", True),
        ("r.example.net/gp", False),
        ("r.example.net/gpu/cud", False),
        ("r.example.net/gpu/cuda:1", False),
        ("example.net", False),
        ("gpu/cuda", False),
    ],
)
def test_a_scope_has_whole_components(tmp_path: Path, key: Path, scope: str, trusted: bool) -> None:
    found = policy(tmp_path, key, {scope: "KEY"})
    assert found.rules("r.example.net/gpu/cuda", "1.0")[0] == (scope if trusted else "")


def test_the_most_specific_scope_decides(tmp_path: Path, key: Path) -> None:
    found = policy(
        tmp_path,
        key,
        {
            "r.net": {"type": "reject"},
            "r.net/gpu": "KEY",
            "r.net/gpu/x": {"type": "insecureAcceptAnything"},
        },
    )
    assert [bool(found.keys(name)) for name in ("r.net/a", "r.net/gpu/cuda", "r.net/gpu/x")] == [
        False,
        True,
        False,
    ]
    assert found.check("r.net/gpu/x", "1", "sha256:0", []) == ()
    with pytest.raises(
        ImageError, match=r'r.net/a:1 is not trusted: the policy rejects.*scope "r.net"'
    ):
        found.check("r.net/a", "1", "sha256:0", [])
    with pytest.raises(ImageError, match=r'not trusted: the policy rejects.*scope "default"'):
        found.check("elsewhere.net/a", "1", "sha256:0", [])


@pytest.mark.parametrize(
    "requirement",
    [
        {"type": "signedBy", "keyType": "GPGKeys", "keyPath": "x.gpg"},
        {"type": "sigstoreSigned", "keyPath": "key.pub", "rekorPublicKeyPath": "rekor.pub"},
        {"type": "sigstoreSigned", "fulcio": {}},
        {"type": "a new one"},
    ],
)
def test_a_requirement_that_cannot_be_checked_is_never_met(
    tmp_path: Path, key: Path, requirement: dict[str, Any]
) -> None:
    found = policy(tmp_path, key, {"r.net": requirement})
    with pytest.raises(ImageError, match=r"goldnode cannot check the requirement .* not verified"):
        found.check("r.net/a", "1", "sha256:0", [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("{}", 'has no "default"'),
        ('{"default": []}', "has no list of requirements"),
        ('{"default": [{"type": "sigstoreSigned"}]}', "names no key"),
        ('{"default": [{"type": "sigstoreSigned", "keyPath": "gone.pub"}]}', "cannot be read"),
        ('{"default": [{"type": "sigstoreSigned", "keyData": "?"}]}', "not base64"),
    ],
)
def test_a_policy_that_cannot_be_read_names_the_file(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(GoldnodeError, match=why):
        load_trust([tmp_path / "policy.json"])
