"""Signed updates over python-tuf: what a client accepts, and each attack that TUF names."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from goldnode.channels import keys, updates
from goldnode.channels.keys import RepositoryKeys
from goldnode.channels.updates import ROOT, TARGETS, RoleKeys, UpdateError
from goldnode.core.files import replace_file
from goldnode.evidence.signatures import load_signer


def key(folder: Path, name: str) -> Path:
    """Write a secret key."""
    path = folder / f"{name}.pem"
    secret = Ed25519PrivateKey.generate()
    path.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


class Publisher:
    """A repository with two root keys, of which one must sign, a key of targets and an online key."""

    def __init__(self, folder: Path, threshold: int = 1) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.a, self.b, self.targets, self.online = (
            self.key(name) for name in ("a", "b", "targets", "online")
        )
        RepositoryKeys([self.online], [self.targets], [self.a, self.b], threshold).create(
            self.repository
        )
        self.root = self.repository / "metadata/1.root.json"

    def key(self, name: str) -> Path:
        return key(self.folder, name)

    def publish(self, days: int = 30, **files: str) -> int:
        self.release(days, None, **files)
        return self.refresh(days)

    def release(self, days: int = 30, by: Path | None = None, **files: str) -> None:
        release = updates.next_release(self.repository, days=days)
        release.signed.targets.clear()
        for name, text in files.items():
            updates.add_file(self.repository, release.signed, f"{name}.yml", text.encode())
        signed = updates.sign(release, [load_signer(by or self.targets)])
        updates.accept(self.repository, TARGETS, signed)

    def refresh(self, days: int = 30, by: Path | None = None) -> int:
        return updates.refresh(self.repository, [load_signer(by or self.online)], days)

    def rotate(self, *present: Path, days: int = 365, **change: Any) -> keys.RootRotation:
        return keys.rotate(self.repository, RepositoryKeys(**change), present, days)


class Client:
    """A machine that trusts the first root document of a publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self.source: Path | str = publisher.repository
        self.root = publisher.folder / "trusted-root.json"
        shutil.copy(publisher.root, self.root)
        self.state = publisher.folder / "state"

    def fetch(self, *names: str) -> dict[str, str]:
        found = updates.fetch(str(self.source), self.root, self.state, names or ("x.yml", "y.yml"))
        return {name: data.decode() for name, data in found.files.items()}


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


@pytest.fixture
def client(publisher: Publisher) -> Client:
    return Client(publisher)


@pytest.fixture
def served(publisher: Publisher) -> Iterator[str]:
    publisher.repository.mkdir(exist_ok=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(publisher.repository))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def test_a_client_gets_the_newest_files(publisher: Publisher, client: Client) -> None:
    assert publisher.publish(x="1") == 1
    assert client.fetch() == {"x.yml": "1"}
    assert publisher.publish(x="2", y="new") == 2
    assert client.fetch() == {"x.yml": "2", "y.yml": "new"}
    assert client.fetch("y.yml") == {"y.yml": "new"}


def test_a_web_server_and_a_bundle_serve_the_same(
    publisher: Publisher, client: Client, served: str
) -> None:
    publisher.publish(x="1")
    client.source = served
    assert client.fetch() == {"x.yml": "1"}
    bundle = publisher.folder / "facts.zip"
    updates.bundle(publisher.repository, bundle)
    same = bundle.read_bytes()
    updates.bundle(publisher.repository, bundle)
    assert bundle.read_bytes() == same
    client.source = bundle
    assert client.fetch() == {"x.yml": "1"}


def seen(client: Client) -> list[tuple[str, bytes]]:
    """The metadata that a client has stored."""
    return sorted(
        (str(path), path.read_bytes()) for path in client.state.rglob("*") if path.is_file()
    )


def refused(client: Client, says: str) -> None:
    """The update is refused with this reason, and what was seen before is not forgotten."""
    before = seen(client)
    with pytest.raises(UpdateError, match=says) as caught:
        client.fetch()
    assert caught.value.remedy
    assert seen(client) == before


def test_an_older_state_is_refused(publisher: Publisher, client: Client) -> None:
    """A rollback: somebody serves last week's copy."""
    publisher.publish(x="1")
    old = publisher.folder / "old"
    shutil.copytree(publisher.repository, old)
    publisher.publish(x="2")
    client.fetch()
    client.source = old
    refused(client, "older than what was seen before")


@pytest.mark.parametrize("writes", range(6))
def test_older_metadata_is_refused_after_a_run_that_was_cut_off(
    publisher: Publisher, client: Client, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Whatever a cut run has written, nothing older than before it is accepted after it."""
    publisher.publish(x="1")
    old = publisher.folder / "old"
    shutil.copytree(publisher.repository, old)
    publisher.publish(x="2")
    client.fetch()
    publisher.publish(x="3")
    left = [writes]

    def cut(path: Path, data: bytes) -> None:
        if client.state in path.parents:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        replace_file(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(updates, "replace_file", cut)
        with suppress(KeyboardInterrupt):
            client.fetch()
    client.source = old
    with pytest.raises(UpdateError, match="older than what was seen before"):
        client.fetch()
    client.source = publisher.repository
    assert client.fetch() == {"x.yml": "3"}


def test_a_given_root_that_is_newer_than_the_stored_one_is_the_first(
    publisher: Publisher, client: Client
) -> None:
    """A person gave the root after a rotation. A server that still has the state before it is refused."""
    publisher.publish(x="1")
    client.fetch()
    old = publisher.folder / "old"
    shutil.copytree(publisher.repository, old)
    online = publisher.key("online2")
    client.root = publisher.rotate(publisher.a, online=[online]).root
    publisher.online = online
    publisher.refresh()
    client.source = old
    refused(client, "not enough of the trusted keys have signed it")
    client.source = publisher.repository
    assert client.fetch() == {"x.yml": "1"}


def test_expired_metadata_is_refused(publisher: Publisher, client: Client) -> None:
    """A freeze: somebody keeps serving a state that was right once."""
    publisher.release(x="1")
    publisher.refresh(days=-1)
    refused(client, "has expired")


def test_a_file_that_was_changed_is_refused(publisher: Publisher, client: Client) -> None:
    publisher.publish(x="1")
    (file,) = (publisher.repository / "targets").iterdir()
    file.write_text("2")
    refused(client, "not the one that was signed")


@pytest.mark.parametrize("role", ["timestamp", "1.snapshot", "1.targets"])
def test_metadata_of_another_key_is_refused(
    publisher: Publisher, client: Client, role: str
) -> None:
    publisher.publish(x="1")
    folder = publisher.folder / "other"
    folder.mkdir()
    other = Publisher(folder)
    other.publish(x="evil")
    shutil.copy(
        other.repository / f"metadata/{role}.json", publisher.repository / f"metadata/{role}.json"
    )
    refused(client, "not enough of the trusted keys have signed it|not the one that was signed")


def test_metadata_that_was_edited_is_refused(publisher: Publisher, client: Client) -> None:
    publisher.publish(x="1")
    path = publisher.repository / "metadata/timestamp.json"
    document = json.loads(path.read_text())
    document["signed"]["expires"] = "2099-01-01T00:00:00Z"
    path.write_text(json.dumps(document))
    refused(client, "not enough of the trusted keys have signed it")


def test_a_key_of_the_root_is_replaced_and_clients_follow(
    publisher: Publisher, client: Client
) -> None:
    publisher.publish(x="1")
    client.fetch()
    c, online = publisher.key("c"), publisher.key("online2")
    publisher.rotate(publisher.a, root=[publisher.b, c], root_threshold=2, online=[online])
    publisher.online = online
    publisher.publish(x="2")
    assert client.fetch() == {"x.yml": "2"}
    with pytest.raises(UpdateError, match=r"root has 1 signatures .* and needs 2"):
        publisher.rotate(publisher.b, root=[publisher.key("d")], root_threshold=1)
    assert client.fetch() == {"x.yml": "2"}
    late = Client(publisher)
    late.state = publisher.folder / "late"
    assert late.fetch() == {"x.yml": "2"}, (
        "a client that has the first root alone follows the chain"
    )


def test_a_rotation_keeps_the_keys_and_thresholds_that_are_not_given(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threshold=2)
    c, both = publisher.key("c"), [publisher.a, publisher.b]
    for few in ([c], [c, c]):
        with pytest.raises(UpdateError, match="2 keys of root must sign"):
            publisher.rotate(*both, root=few)
    kept = publisher.rotate(*both)
    assert kept.now == kept.before == {ROOT: 2, TARGETS: 1}
    assert "2 keys must sign as before" in kept.thresholds()
    assert publisher.rotate(*both, root=[publisher.a, c]).now[ROOT] == 2
    lowered = publisher.rotate(publisher.a, c, root=[c], root_threshold=1)
    assert "threshold of root LOWERED from 2 to 1" in lowered.thresholds()
    other = publisher.key("targets2")
    raised = publisher.rotate(c, targets=[publisher.targets, other], targets_threshold=2)
    assert "threshold of targets raised from 1 to 2" in raised.thresholds()
    with pytest.raises(UpdateError, match=r"targets has 1 signatures .* and needs 2"):
        publisher.publish(x="1")


def test_a_root_warns_before_its_end_and_refuses_after_it(
    publisher: Publisher, client: Client
) -> None:
    found = updates.root_state(publisher.repository, "rotate it")
    assert found.path == publisher.root
    for left, warns in ((31, False), (29, True), (0.5, True)):
        warning = found.warning("rotate it", found.expires - dt.timedelta(days=left))
        assert bool(warning) is warns
        assert not warns or (f"in {int(left)} days" in warning and "`rotate it`" in warning)
    with pytest.raises(UpdateError, match=r"the root expired on .*") as refusal:
        updates.root_state(publisher.repository, "rotate it", found.expires)
    assert "`rotate it`" in str(refusal.value)
    publisher.rotate(publisher.a, days=-1)
    publisher.publish(x="1")
    refused(client, "its root has expired.*goldnode facts rotate")
    publisher.rotate(publisher.a)  # what has expired can sign the next one
    assert client.fetch() == {"x.yml": "1"}


def test_keys_that_were_replaced_are_not_trusted_any_more(
    publisher: Publisher, client: Client
) -> None:
    stolen, stolen_targets = publisher.online, publisher.targets
    publisher.publish(x="1")
    publisher.rotate(
        publisher.a, online=[publisher.key("online2")], targets=[publisher.key("targets2")]
    )
    with pytest.raises(UpdateError, match=r"the release of .* not signed by the keys of targets"):
        publisher.refresh(by=stolen)
    with pytest.raises(UpdateError, match=r"targets has 0 signatures .* and needs 1"):
        publisher.release(by=stolen_targets, x="2")
    publisher.targets, publisher.online = (
        publisher.folder / f"{name}2.pem" for name in ("targets", "online")
    )
    publisher.release(x="2")
    with pytest.raises(UpdateError, match="snapshot has 0 signatures"):
        publisher.refresh(by=stolen)
    publisher.refresh()
    assert client.fetch() == {"x.yml": "2"}


def test_files_that_the_keys_of_today_have_not_signed_are_not_carried_over(
    publisher: Publisher,
) -> None:
    publisher.publish(x="1")
    assert list(updates.next_release(publisher.repository).signed.targets) == ["x.yml"]
    publisher.rotate(publisher.a, targets=[publisher.key("targets2")])
    assert not updates.next_release(publisher.repository).signed.targets


def test_root_signed_by_unknown_keys_is_refused(publisher: Publisher, client: Client) -> None:
    """Keys that the present root does not name sign the next root."""
    publisher.publish(x="1")
    other = publisher.key("other")
    with pytest.raises(UpdateError, match=r"root has 0 signatures .* needs 1"):
        publisher.rotate(other, root=[other])
    root = updates.next_root(publisher.repository, {ROOT: RoleKeys(keys.publics([other]))})
    updates.sign(root, keys.signers([other]))
    updates.write_document(publisher.repository / "metadata/2.root.json", root)
    refused(client, "not enough of the trusted keys have signed it")


def test_a_key_that_is_online_cannot_sign_a_release_or_a_root(
    publisher: Publisher, tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [{"targets": [publisher.online]}, {"root": [publisher.online]}]
    for change in changes:
        with pytest.raises(UpdateError, match="its thief chooses what is installed"):
            publisher.rotate(publisher.a, days=365, **change)
    with pytest.raises(UpdateError, match="its thief chooses what is installed"):
        RepositoryKeys([publisher.a], [publisher.a], [publisher.b]).create(tmp_path / "new")


def test_a_release_and_a_root_can_be_signed_on_other_machines(
    publisher: Publisher, client: Client
) -> None:
    """The threshold of two keys on two machines: each adds its signature to the file."""
    second, draft = publisher.key("targets2"), publisher.folder / "draft.json"
    root = updates.next_root(
        publisher.repository, {TARGETS: RoleKeys(keys.publics([publisher.targets, second]), 2)}
    )
    updates.write_document(draft, root)
    updates.write_document(
        draft, updates.sign(updates.read_document(draft), keys.signers([publisher.a]))
    )
    keys.accept_root(publisher.repository, updates.read_document(draft))
    release = updates.next_release(publisher.repository)
    updates.add_file(publisher.repository, release.signed, "x.yml", b"1")
    updates.write_document(draft, release)
    for number, key_ in enumerate((publisher.targets, second)):
        with pytest.raises(UpdateError, match=f"has {number} signatures"):
            updates.accept(publisher.repository, TARGETS, updates.read_document(draft))
        updates.write_document(
            draft, updates.sign(updates.read_document(draft), keys.signers([key_]))
        )
    updates.accept(publisher.repository, TARGETS, updates.read_document(draft))
    with pytest.raises(UpdateError, match="is version 1, and the next one is 2"):
        updates.accept(publisher.repository, TARGETS, updates.read_document(draft))
    publisher.refresh()
    assert client.fetch() == {"x.yml": "1"}


def test_a_release_that_has_expired_is_not_refreshed(publisher: Publisher) -> None:
    publisher.release(days=-1, x="1")
    with pytest.raises(UpdateError, match=r"the release of .* has expired"):
        publisher.refresh()


@pytest.mark.parametrize(
    ("source", "says"),
    [("nothing", "neither a directory nor a zip"), ("http://127.0.0.1:9/", "cannot be read")],
)
def test_a_source_that_does_not_answer(
    publisher: Publisher, client: Client, source: str, says: str
) -> None:
    publisher.publish(x="1")
    client.source = source
    refused(client, says)


def test_an_empty_repository_and_a_missing_root(publisher: Publisher, client: Client) -> None:
    refused(client, "cannot be read")
    publisher.publish(z="1")
    refused(client, "has none of x.yml, y.yml")
    client.root.unlink()
    refused(client, "the trusted root document cannot be read")


def test_create_and_publish_refuse_wrong_keys_and_roots(
    publisher: Publisher, tmp_path: Path
) -> None:
    given = [publisher.online], [publisher.targets], [publisher.a]
    with pytest.raises(UpdateError, match="2 keys of root must sign, and 1 are given"):
        RepositoryKeys(*given, 2).create(tmp_path / "new")
    with pytest.raises(UpdateError, match=r"targets has 0 signatures"):
        publisher.release(by=publisher.a, x="")
    with pytest.raises(UpdateError, match="no keys are given for root, snapshot, timestamp"):
        updates.next_root(tmp_path / "new", {TARGETS: RoleKeys(keys.publics([publisher.a]))})
    with pytest.raises(UpdateError, match="has no root document"):
        updates.refresh(tmp_path / "new", keys.signers([publisher.a]))
