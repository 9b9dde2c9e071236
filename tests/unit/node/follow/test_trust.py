"""A node's verification of a channel, against python-tuf's repositories, its canonical JSON, and its own client."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import SSlibKey
from tests.unit.node.follow.channels import ECDSA, ED25519, NOW, PAST, ROLES, Channel, Clients
from tuf.api.exceptions import DownloadError, RepositoryError
from tuf.api.metadata import Metadata

from goldnode.node.follow import canonical
from goldnode.node.follow.repository import (
    ChannelAwayError,
    ChannelSource,
    ChannelTooLongError,
    download,
)
from goldnode.node.follow.trust import ChannelExpiredError, ChannelRefusedError
from goldnode.node.ground import signature
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300)
@given(DOCUMENTS)
def test_canonical_json_equals_that_of_python_tuf(document: Any) -> None:
    assert canonical.encoded(document) == str(encode_canonical(document)).encode()


@pytest.mark.parametrize("value", [1.5, float("nan"), "\ud800", {"a": [0.1]}])
def test_value_without_a_canonical_form_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical.encoded(value)


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    found = Channel(tmp_path / "channel")
    found.write()
    return found


@pytest.fixture
def clients(channel: Channel, tmp_path: Path) -> Clients:
    return Clients(channel, tmp_path / "state")


def both_accept(clients: Clients) -> None:
    clients.reference()
    clients.refresh()


def both_refuse(clients: Clients, why: str) -> None:
    with pytest.raises((RepositoryError, DownloadError, ValueError)):
        clients.reference()
    with pytest.raises((ChannelRefusedError, ChannelTooLongError), match=why):
        clients.refresh()


@pytest.mark.parametrize("consistent", [True, False])
def test_channel_of_python_tuf_is_accepted_and_its_files_are_read(
    tmp_path: Path, consistent: bool
) -> None:
    channel = Channel(tmp_path / "channel", consistent=consistent)
    channel.write()
    clients = Clients(channel, tmp_path)
    both_accept(clients)
    node = clients.node()
    assert node.target(node.refresh(), "gpu.json") == channel.files["gpu.json"]
    assert node.target(node.refresh(), "other.json") is None


def test_ecdsa_keys_are_verified(channel: Channel, clients: Clients) -> None:
    channel.keys = {**{key: [ECDSA] for key in ROLES}}
    channel.versions["root"] = 2
    channel.write_root(also=ED25519[:2])
    channel.next()
    both_accept(clients)


def test_documents_seen_before_are_not_fetched_again(channel: Channel, clients: Clients) -> None:
    clients.refresh()
    channel.file("1.snapshot.json").unlink()
    channel.file("1.targets.json").unlink()
    both = clients.refresh()
    assert list(both.targets["targets"]) == ["gpu.json"]


def test_rotated_root_is_followed_and_its_old_keys_count_no_more(
    channel: Channel, clients: Clients
) -> None:
    both_accept(clients)
    channel.keys = {"root": ED25519[3:5], **{key: [ED25519[5]] for key in ROLES[1:]}}
    channel.versions["root"] = 2
    channel.write_root(threshold=2, also=ED25519[:2])
    channel.next()
    both_accept(clients)
    channel.keys.update({key: [ED25519[2]] for key in ROLES[1:]})
    channel.next()
    both_refuse(clients, "timestamp has 0 good signatures")


def test_rotation_ends_a_version_that_was_set_far_ahead(channel: Channel, clients: Clients) -> None:
    for role in ROLES[1:]:
        channel.versions[role] = 2**31
    channel.write()
    both_accept(clients)
    channel.versions.update(dict.fromkeys(ROLES[1:], 2))
    channel.write()
    both_refuse(clients, "this node has seen version 2147483648")
    channel.keys.update({key: [ED25519[5]] for key in ROLES[1:]})
    channel.versions["root"] = 2
    channel.write_root(threshold=2)
    channel.write()
    both_accept(clients)


def rollback(role: str) -> Callable[[Channel], None]:
    def attack(channel: Channel) -> None:
        channel.versions[role] -= 1
        if role != "timestamp":  # a fresh timestamp over an older state
            channel.versions["timestamp"] += 1
        if role == "targets":
            channel.versions["snapshot"] += 1
        channel.write()

    return attack


def signs_with(role: str) -> Callable[[Channel], None]:
    def attack(channel: Channel) -> None:
        channel.keys[role] = [ED25519[5]]
        channel.next()

    return attack


def expired(role: str) -> Callable[[Channel], None]:
    def attack(channel: Channel) -> None:
        channel.expires[role] = PAST
        if role == "root":
            channel.versions["root"] += 1
            channel.write_root(threshold=2)
        channel.next()

    return attack


def root_with_one_signature(channel: Channel) -> None:
    channel.versions["root"] = 2
    channel.write_root(threshold=2)
    document = json.loads(channel.file("2.root.json").read_text())
    document["signatures"] = document["signatures"][:1]
    channel.file("2.root.json").write_text(json.dumps(document))


def root_signed_by_the_new_keys_only(channel: Channel) -> None:
    channel.keys["root"] = ED25519[3:5]
    channel.versions["root"] = 2
    channel.write_root(threshold=2)


def root_with_a_gap(channel: Channel) -> None:
    channel.versions["root"] = 3
    channel.write_root(threshold=2)
    channel.file("3.root.json").rename(channel.file("2.root.json"))


def mixed_snapshot(channel: Channel) -> None:
    """The snapshot of the version before, under the name of the new one."""
    old = channel.file("2.snapshot.json").read_bytes()
    channel.hashes = False
    channel.next()
    channel.file("3.snapshot.json").write_bytes(old)


def mixed_targets(channel: Channel) -> None:
    old = channel.file("2.targets.json").read_bytes()
    channel.hashes = False
    channel.next()
    channel.file("3.targets.json").write_bytes(old)


def bad_hash_of_snapshot(channel: Channel) -> None:
    channel.next()
    path = channel.file("3.snapshot.json")
    path.write_bytes(path.read_bytes() + b" ")


def bad_hash_of_targets(channel: Channel) -> None:
    channel.next()
    path = channel.file("3.targets.json")
    path.write_bytes(
        path.read_bytes().replace(b'"targets"', b'"targets" ', 1)[: path.stat().st_size]
    )


def altered(channel: Channel) -> None:
    channel.hashes = False
    channel.next()
    path = channel.file("timestamp.json")
    path.write_text(path.read_text().replace('"version":3', '"version":4'))


def another_role(channel: Channel) -> None:
    channel.next()
    channel.file("timestamp.json").write_bytes(channel.file("3.snapshot.json").read_bytes())


def no_metadata(channel: Channel) -> None:
    channel.file("timestamp.json").write_text("<html>502</html>")


def signature_twice(channel: Channel) -> None:
    channel.next()
    document = json.loads(channel.file("timestamp.json").read_text())
    document["signatures"] *= 2
    channel.file("timestamp.json").write_text(json.dumps(document))


def missing_snapshot(channel: Channel) -> None:
    channel.next()
    channel.file("3.snapshot.json").unlink()


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        *(
            (rollback(role), "this node has seen version 2")
            for role in ("timestamp", "snapshot", "targets")
        ),
        *((signs_with(role), f"{role} has 0 good signatures") for role in ROLES[1:]),
        *(
            (expired(role), f"{role} of .* has expired.* Publish the channel again")
            for role in ROLES[1:]
        ),
        (expired("root"), "root of .* has expired.* `goldnode rollout rotate-keys`"),
        (root_with_one_signature, "root has 1 good signatures .* needs 2"),
        (root_signed_by_the_new_keys_only, "root has 0 good signatures"),
        (root_with_a_gap, "has version 3"),
        (mixed_snapshot, "snapshot has version 2, and timestamp names 3"),
        (mixed_targets, "targets has version 2, and snapshot names 3"),
        (bad_hash_of_snapshot, "longer than|bytes were signed|bytes, and"),
        (bad_hash_of_targets, "not what was signed"),
        (altered, "timestamp has 0 good signatures"),
        (another_role, "timestamp is no metadata"),
        (no_metadata, "timestamp is no metadata"),
        (signature_twice, "timestamp is no metadata"),
        (missing_snapshot, "has no metadata/3.snapshot.json"),
    ],
)
def test_attack_is_refused_as_by_python_tuf_and_a_good_state_is_accepted_later(
    channel: Channel, clients: Clients, attack: Callable[[Channel], None], why: str
) -> None:
    channel.next()
    both_accept(clients)
    good = {path: path.read_bytes() for path in channel.place.rglob("*.json")}
    attack(channel)
    both_refuse(clients, why)
    if attack.__qualname__.startswith("expired") and channel.versions["root"] == 2:
        return  # the keys of the root have signed that they are to expire
    for path in channel.place.rglob("*.json"):
        path.unlink()
    for path, data in good.items():
        path.write_bytes(data)
    channel.versions = dict.fromkeys(ROLES, 2)
    channel.keys = {"root": ED25519[:2], **{key: [ED25519[2]] for key in ROLES[1:]}}
    channel.expires = dict.fromkeys(ROLES, NOW + dt.timedelta(days=1))
    channel.versions.update(dict.fromkeys(ROLES[1:], 9))
    channel.write()
    assert clients.refresh().version == 9


def test_one_key_under_two_ids_counts_once(channel: Channel, tmp_path: Path) -> None:
    """Stricter than python-tuf, which counts ids."""
    key = ED25519[2].public_key
    root = channel.root
    root.keys["again"] = SSlibKey("again", key.keytype, key.scheme, key.keyval)
    root.roles["timestamp"].keyids.append("again")
    root.roles["timestamp"].threshold = 2
    channel.save("root", root, ED25519[:2])
    document = json.loads(channel.file("timestamp.json").read_text())
    (row,) = document["signatures"]
    document["signatures"].append({**row, "keyid": "again"})
    channel.file("timestamp.json").write_text(json.dumps(document))
    with pytest.raises(ChannelRefusedError, match="timestamp has 1 good signatures"):
        Clients(channel, tmp_path).refresh()


def test_clock_decides_about_expiry(channel: Channel, clients: Clients) -> None:
    clients.refresh()
    with pytest.raises(ChannelExpiredError, match="check the clock"):
        clients.node(NOW + dt.timedelta(days=366)).refresh()


def test_endless_document_is_cut(channel: Channel, clients: Clients) -> None:
    with channel.file("timestamp.json").open("ab") as out:
        out.write(b" " * 20_000)
    with pytest.raises(ChannelTooLongError, match="longer than 16384 bytes"):
        clients.refresh()


def test_target_that_is_another_file_is_refused(channel: Channel, clients: Clients) -> None:
    node = clients.node()
    trusted = node.refresh()
    path = channel.place / trusted.path_of("gpu.json", node.find(trusted, "gpu.json") or {})
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(ChannelRefusedError, match="not what was signed"):
        node.target(trusted, "gpu.json")
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ChannelTooLongError):
        node.target(trusted, "gpu.json")


def test_target_name_that_leaves_the_channel_is_refused(channel: Channel, clients: Clients) -> None:
    channel.files["../x"] = b""
    channel.next()
    with pytest.raises(ChannelRefusedError, match="describes"):
        clients.refresh()


def test_newer_root_of_the_trusted_place_replaces_the_stored_one(
    channel: Channel, clients: Clients
) -> None:
    """After all keys were lost, a person puts a new root on the nodes."""
    clients.refresh()
    channel.keys = {key: [ED25519[4]] for key in ROLES}
    channel.versions["root"] = 7
    channel.write_root()
    channel.next()
    clients.first = channel.file("7.root.json").read_bytes()
    assert clients.refresh().version == 2


def test_damaged_files_of_the_node_are_fetched_again(channel: Channel, clients: Clients) -> None:
    clients.refresh()
    for path in (clients.state / "node/seen").iterdir():
        path.write_bytes(b"torn")
    assert clients.refresh().version == 1


def test_channel_that_is_away_is_no_refusal(clients: Clients, tmp_path: Path) -> None:
    clients.channel.place.rename(tmp_path / "moved")
    with pytest.raises(ChannelAwayError, match="does not exist"):
        clients.refresh()


def test_missing_openssl_is_named(monkeypatch: pytest.MonkeyPatch, clients: Clients) -> None:
    signature.is_signed.cache_clear()
    monkeypatch.setattr(signature, "OPENSSL", "no-such-openssl")
    with pytest.raises(NodeError, match=r"Install openssl 3\.0"):
        clients.refresh()


def test_old_openssl_is_named(monkeypatch: pytest.MonkeyPatch, clients: Clients) -> None:
    signature.is_signed.cache_clear()
    answer = Result(("openssl",), 1, "", "pkeyutl: Unknown option: -rawin")
    monkeypatch.setattr(Host, "run", lambda *words, **more: answer)
    with pytest.raises(NodeError, match=r"Install openssl 3\.0"):
        clients.refresh()


def test_other_kinds_of_keys_verify_nothing() -> None:
    for key in (
        {"keytype": "rsa", "scheme": "rsassa-pss-sha256", "keyval": {"public": "x"}},
        {"keytype": "rsa", "scheme": "ed25519", "keyval": {"public": "0" * 64}},
        {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": "zz"}},
        {"keytype": "ecdsa", "scheme": "ecdsa-sha2-nistp256", "keyval": {}},
        {},
    ):
        assert signature.public_pem(key) is None
        assert not signature.verified(key, "00", b"")


def test_download_continues_and_verifies(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "image").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "got.part").write_bytes(data[:100_000])
    download(ChannelSource(str(tmp_path)), "image", str(tmp_path / "got"), len(data), digest)
    assert (tmp_path / "got").read_bytes() == data
    (tmp_path / "bad.part").write_bytes(b"x" * 100_000)
    with pytest.raises(NodeError, match="not what was signed"):
        download(ChannelSource(str(tmp_path)), "image", str(tmp_path / "bad"), len(data), digest)
    assert not (tmp_path / "bad.part").exists()
    (tmp_path / "image").write_bytes(data[:5])
    with pytest.raises(ChannelAwayError, match="ended after 5 of"):
        download(ChannelSource(str(tmp_path)), "image", str(tmp_path / "short"), len(data), digest)


def test_documents_of_python_tuf_have_the_bytes_that_are_signed(channel: Channel) -> None:
    for path in channel.place.glob("metadata/*.json"):
        signed = json.loads(path.read_text())["signed"]
        assert canonical.encoded(signed) == Metadata.from_bytes(path.read_bytes()).signed_bytes
