"""Signed updates over python-tuf: what a client accepts, and each attack that TUF names."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from goldnode.channels import updates
from goldnode.channels.updates import RootKeys, UpdateError
from goldnode.evidence.signatures import EnvelopeSigner, load_signer


def key(folder: Path, name: str) -> Path:
    """Write a secret key."""
    path = folder / f"{name}.pem"
    secret = Ed25519PrivateKey.generate()
    path.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


class Publisher:
    """A repository with two root keys, of which one must sign, and one key for the rest."""

    def __init__(self, folder: Path, threshold: int = 1) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.a, self.b, self.online = (self.signer(name) for name in ("a", "b", "online"))
        self.root = updates.create(
            self.repository, RootKeys([self.a, self.b], threshold), [self.online]
        )

    def signer(self, name: str) -> EnvelopeSigner:
        return load_signer(key(self.folder, name))

    def publish(self, days: int = 30, **files: str) -> int:
        named = {f"{name}.yml": text.encode() for name, text in files.items()}
        return updates.publish(self.repository, named, [self.online], days)


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


def test_older_metadata_is_refused_after_an_interrupted_rename(
    publisher: Publisher, client: Client
) -> None:
    """A run that ended between the two renames leaves the metadata under its other name."""
    publisher.publish(x="1")
    old = publisher.folder / "old"
    shutil.copytree(publisher.repository, old)
    publisher.publish(x="2")
    client.fetch()
    client.state.rename(updates.replaced_metadata(client.state))
    client.source = old
    with pytest.raises(UpdateError, match="older than what was seen before"):
        client.fetch()
    client.source = publisher.repository
    assert client.fetch() == {"x.yml": "2"}


def test_expired_metadata_is_refused(
    publisher: Publisher, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A freeze: somebody keeps serving a state that was right once."""
    past = dt.datetime.now(tz=dt.UTC).replace(microsecond=0) - dt.timedelta(days=1)
    monkeypatch.setattr(updates, "_in_days", lambda _: past)
    publisher.publish(x="1")
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
    c, online = publisher.signer("c"), publisher.signer("online2")
    updates.rotate(publisher.repository, RootKeys([publisher.b, c], 2, [publisher.a]), [online])
    publisher.online = online
    publisher.publish(x="2")
    assert client.fetch() == {"x.yml": "2"}
    with pytest.raises(UpdateError, match="not signed by 2 keys"):  # the threshold has risen
        updates.rotate(
            publisher.repository, RootKeys([publisher.signer("d")], 1, [publisher.b]), [online]
        )
    assert client.fetch() == {"x.yml": "2"}
    late = Client(publisher)
    late.state = publisher.folder / "late"
    assert late.fetch() == {"x.yml": "2"}, (
        "a client that has the first root alone follows the chain"
    )


def test_a_rotation_keeps_the_number_of_keys_that_must_sign(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, threshold=2)
    c, both = publisher.signer("c"), [publisher.a, publisher.b]

    def rotated(
        signers: list[EnvelopeSigner], threshold: int | None, before: list[EnvelopeSigner]
    ) -> int:
        keys = RootKeys(signers, threshold, before)
        return updates.threshold_of(updates.rotate(publisher.repository, keys, [publisher.online]))

    for few in ([c], [c, c]):
        with pytest.raises(UpdateError, match="2 keys of the root must sign"):
            rotated(few, None, both)
    assert rotated([publisher.a, c], None, both) == 2
    assert rotated([c], 1, [publisher.a, c]) == 1


def test_a_root_warns_before_its_end_and_refuses_after_it(
    publisher: Publisher, client: Client
) -> None:
    found = updates.root_state(publisher.repository, "rotate it")
    assert (found.path, found.threshold) == (publisher.root, 1)
    for left, warns in ((31, False), (29, True), (0.5, True)):
        warning = found.warning("rotate it", found.expires - dt.timedelta(days=left))
        assert bool(warning) is warns
        assert not warns or (f"in {int(left)} days" in warning and "`rotate it`" in warning)
    with pytest.raises(UpdateError, match=r"the root expired on .*") as refusal:
        updates.root_state(publisher.repository, "rotate it", found.expires)
    assert "`rotate it`" in str(refusal.value)
    keys = RootKeys([publisher.a], 1, [publisher.a])
    updates.rotate(publisher.repository, keys, [publisher.online], days=-1)
    publisher.publish(x="1")
    refused(client, "its root has expired .*goldnode facts rotate")
    updates.rotate(
        publisher.repository, keys, [publisher.online]
    )  # what has expired can sign the next one
    assert client.fetch() == {"x.yml": "1"}


def test_keys_that_were_replaced_are_not_trusted_any_more(
    publisher: Publisher, client: Client
) -> None:
    stolen = publisher.online
    publisher.publish(x="1")
    online = publisher.signer("online2")
    updates.rotate(publisher.repository, RootKeys([publisher.a], 1, [publisher.a]), [online])
    with pytest.raises(UpdateError, match="does not name the given key"):
        updates.publish(publisher.repository, {"x.yml": b"2"}, [stolen])
    publisher.online = online
    publisher.publish(x="2")
    assert client.fetch() == {"x.yml": "2"}


def test_root_signed_by_unknown_keys_is_refused(publisher: Publisher, client: Client) -> None:
    """Keys that the present root does not name sign the next root."""
    publisher.publish(x="1")
    other = publisher.signer("other")
    with pytest.raises(UpdateError, match="not signed by 1 keys of the root before"):
        updates.rotate(publisher.repository, RootKeys([other]), [other])
    updates.write_root(publisher.repository, updates.signed_root(2, RootKeys([other]), [other], 30))
    refused(client, "not enough of the trusted keys have signed it")


@pytest.mark.parametrize(
    ("source", "says"),
    [("nothing", "neither a directory nor a zip"), ("http://127.0.0.1:9/", "cannot be read from")],
)
def test_a_source_that_does_not_answer(
    publisher: Publisher, client: Client, source: str, says: str
) -> None:
    publisher.publish(x="1")
    client.source = source
    refused(client, says)


def test_an_empty_repository_and_a_missing_root(publisher: Publisher, client: Client) -> None:
    refused(client, "cannot be read from")
    publisher.publish(z="1")
    refused(client, "has none of x.yml, y.yml")
    client.root.unlink()
    refused(client, "the trusted root document cannot be read")


def test_create_and_publish_refuse_wrong_keys_and_roots(
    publisher: Publisher, tmp_path: Path
) -> None:
    with pytest.raises(UpdateError, match="has a root document already"):
        updates.create(publisher.repository, RootKeys([publisher.a]), [publisher.online])
    with pytest.raises(UpdateError, match="2 keys of the root must sign, and 1 are given"):
        updates.create(tmp_path / "new", RootKeys([publisher.a], 2), [publisher.online])
    with pytest.raises(UpdateError, match="does not name the given key"):
        updates.publish(publisher.repository, {"x.yml": b""}, [publisher.a])
    with pytest.raises(UpdateError, match="has no root document"):
        updates.publish(tmp_path / "new", {"x.yml": b""}, [publisher.a])
