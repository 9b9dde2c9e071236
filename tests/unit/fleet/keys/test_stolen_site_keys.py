"""Each kind of key is stolen in turn: what its thief can do before and after the procedure of docs/how-to/keys.md.

Keys of channels (root, online) have their tests with the channels.
"""

from __future__ import annotations

import datetime as dt
import http.server
import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.unit.evidence import proof_records
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import CLASS, fill

from goldnode.core.deny_list import DenyListPlace
from goldnode.core.errors import EvidenceError, ImageError, SigningKeyError
from goldnode.core.site import Site, load_site
from goldnode.evidence import statements
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.release_files import ReleaseError, verify
from goldnode.evidence.signatures import load_public, load_signer, open_envelope
from goldnode.fleet.control import document_files, requirements
from goldnode.fleet.events import hooks
from goldnode.fleet.keys import authority, making
from goldnode.fleet.keys.procedures import KeyPlaces, procedure
from goldnode.fleet.keys.rotation import RotationRequest, RotationState, carry_out
from goldnode.fleet.rollout.document import RolloutError
from goldnode.fleet.service import server as service
from goldnode.fleet.service.server import Listen, server
from goldnode.fleet.shared import denylist
from goldnode.fleet.store.database import StoreDatabase
from goldnode.lock import signing
from goldnode.lock.modpackage import MAGIC, Signing

NOW = dt.datetime.now(dt.UTC)


def made(kind: str, out: Path) -> list[Path]:
    return making.make(kind, out, "test", NOW)


@dataclass
class Service:
    """A running lock service with an authority of nodes."""

    port: int
    place: Path
    trusted: Path

    def ask(self, node: str, own: str) -> tuple[int, str]:
        """Ask for `node` with the certificate `own`. Raises HTTPError if the connection is refused."""
        context = ssl.create_default_context(cafile=str(self.place / "web/authority.pem"))
        own = own if "/" in own else f"ca/nodes/{own}"
        context.load_cert_chain(self.place / f"{own}.pem", self.place / f"{own}.key")
        with urllib3.PoolManager(ssl_context=context, retries=False) as pool:
            answer = pool.request(
                "POST",
                f"https://localhost:{self.port}/v1/pre-reboot",
                body=json.dumps({"client_params": {"id": node, "group": CLASS}}),
                headers={"fleet-lock-protocol": "true"},
            )
        return answer.status, answer.json().get("kind", "")

    def accepted(self, own: str) -> bool:
        """Return whether the service answers the node of a certificate."""
        return self.ask(own.rpartition("/")[2], own)[0] in (
            200,
            409,
        )  # 409: the buffer has no place

    def refused(self, own: str) -> bool:
        """Return whether the service refuses connections with a certificate, soon."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                self.ask(own.rpartition("/")[2], own)
            except urllib3.exceptions.HTTPError:
                return True
            time.sleep(0.05)
        return False


@contextmanager
def served(place: Path, own: StoreDatabase) -> Iterator[Service]:
    """Run the service with the files of `place`, as a start of it reads them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    listen = Listen(
        "127.0.0.1",
        number,
        place / "web/localhost.pem",
        place / "web/localhost.key",
        place / "ca/authority.pem",
        client_crl=place / "ca/revoked.pem",
    )
    running = server(own, listen)
    thread = threading.Thread(target=running.run)
    thread.start()
    end = time.monotonic() + 30
    while not running.started and time.monotonic() < end:
        time.sleep(0.02)
    try:
        yield Service(number, place, place / "ca/authority.pem")
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture
def place(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, StoreDatabase]]:
    """Make the authorities of the service and of nodes, which have one name, and a store."""
    monkeypatch.setattr(service, "TICKS", 1)
    for name in ("web", "ca"):
        authority.create(tmp_path / name, "goldnode", NOW)
    authority.issue(tmp_path / "web", "localhost", tmp_path / "web", NOW, serves=True)
    for node in ("n00", "n01"):
        authority.issue(tmp_path / "ca", node, tmp_path / "ca/nodes", NOW)
    store = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(store)
    yield tmp_path, store
    store.close()


@pytest.fixture
def lock_service(place: tuple[Path, StoreDatabase]) -> Iterator[Service]:
    with served(*place) as running:
        yield running


def test_a_stolen_key_of_a_node_ends_with_its_revocation(lock_service: Service) -> None:
    assert lock_service.ask("n00", "n00") == (200, ""), "before: the thief asks for this node"
    assert lock_service.ask("n01", "n00") == (403, "wrong_node_certificate"), "and for no other"
    # In the second in which the first list was written: OpenSSL compares the times of lists to the second.
    assert authority.revoke(lock_service.place / "ca", "n00", NOW) == 1
    assert lock_service.refused("n00"), "after: no connection, without a restart of the service"
    # The first one took the only place of the buffer: an answer, and no refused connection.
    assert lock_service.ask("n01", "n01")[0] in (200, 409)
    for file in ("n00.pem", "n00.key"):
        (lock_service.place / "ca/nodes" / file).unlink()
    authority.issue(lock_service.place / "ca", "n00", lock_service.place / "ca/nodes", NOW)
    assert lock_service.ask("n00", "n00")[0] == 200, "the node itself goes on with a new one"


def test_a_stolen_authority_ends_when_the_service_trusts_another_one(
    place: tuple[Path, StoreDatabase],
) -> None:
    """The thief issues a certificate for any node. The service reads authorities when it starts."""
    directory, _ = place
    ca, stolen = directory / "ca", directory / "stolen"
    shutil.copytree(ca, stolen)
    authority.issue(stolen, "n01", stolen / "thief", NOW)
    with served(*place) as running:
        assert running.accepted("stolen/thief/n01"), "before: the thief asks for any node"
    rotate = partial(rotated, "authority", site=Site(), authority=ca)
    rotate(apply=True)
    with served(*place) as running:  # the overlap: nodes of either authority, also of one name
        assert running.accepted("stolen/thief/n01")
        assert running.accepted("ca/nodes/n00")
        rotate(confirmed="distribute")  # the nodes get their new certificates
        assert running.accepted("ca/rotation-authority/nodes/n00")
        authority.revoke(ca, "n00", dt.datetime.now(dt.UTC))
        for own in ("ca/nodes/n00", "ca/rotation-authority/nodes/n00"):
            assert running.refused(own), "a revocation counts for both authorities"
    rotate(apply=True, stolen=True)
    with served(*place) as running:
        assert running.refused("stolen/thief/n01"), "after: no connection"
        assert running.accepted("ca/rotation-authority/nodes/n01")


def test_a_list_of_one_authority_alone_stops_the_nodes_of_the_other(
    place: tuple[Path, StoreDatabase],
) -> None:
    """OpenSSL 3 refuses a certificate without a list of its authority: why the list has both during an overlap."""
    directory, _ = place
    ca = directory / "ca"
    rotated("authority", site=Site(), authority=ca, apply=True)
    shutil.copy(ca / "before/revoked.pem", ca / "revoked.pem")
    rotated("authority", site=Site(), authority=ca, confirmed="distribute")
    with served(*place) as running:
        assert running.accepted("ca/nodes/n00")
        assert running.refused("ca/rotation-authority/nodes/n00")


def test_a_stolen_key_of_the_service_ends_with_its_authority_on_nodes(tmp_path: Path) -> None:
    """A node asks no list of revoked certificates of the service."""
    own = tmp_path / "web"
    authority.create(own, "goldnode", NOW)
    authority.issue(own, "localhost", tmp_path / "stolen", NOW, serves=True)
    node = tmp_path / "ca.pem"  # follow.lock.ca
    node.write_bytes((own / "authority.pem").read_bytes())
    assert answers(tmp_path / "stolen", node), "before: the thief answers in place of the service"
    rotated("tls", "localhost", site=Site(), authority=own, apply=True, stolen=True)
    (row, new) = authority.issued(own)
    assert (bool(row["revoked"]), new["revoked"]) == (True, None)
    assert answers(own / "rotation-tls-localhost/new", node)
    assert answers(tmp_path / "stolen", node), "it is revoked, and a node does not see it"
    rotated("authority", site=Site(), authority=own, apply=True, stolen=True)
    rotated("authority", site=Site(), authority=own, confirmed="distribute")
    node.write_bytes((own / "authority.pem").read_bytes())
    assert not answers(tmp_path / "stolen", node), "after: it trusts another authority"
    assert answers(own / "rotation-authority/nodes", node)


def answers(service_files: Path, ca: Path) -> bool:
    """Return whether a node talks to a service with these files, by the context of `goldnode-node follow`."""
    client = ssl.create_default_context(cafile=str(ca))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(service_files / "localhost.pem", service_files / "localhost.key")
    near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(near, far, server_hostname="localhost")
    theirs = serving.wrap_bio(far, near, server_side=True)
    waiting: list[ssl.SSLObject] = [ours, theirs]
    for _ in range(9):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return not waiting


def rotated(kind: str, name: str | None = None, *, site: Site, **given: Any) -> RotationState:
    """Go on with a rotation. The fields of a request are given by name, the others are of the key."""
    fields = ("apply", "stolen", "confirmed", "days")
    request = RotationRequest(**{key: given.pop(key) for key in fields if key in given})
    now = dt.datetime.now(dt.UTC)
    return carry_out(procedure(kind, KeyPlaces(site, now, name, **given)), request, now)


def test_a_stolen_key_of_documents_ends_with_its_public_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, public = made("documents", tmp_path / "keys")
    (tmp_path / "site.yml").write_text("fleet: {document_key: keys/documents.pub}\n")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    document = tmp_path / "r1.yml"
    document.write_text(documents.TEXT)
    document_files.sign(document, secret)
    assert document_files.load(document, public).settings.name == "r1", "before: it is submitted"
    rotated("documents", site=load_site(), apply=True)
    assert document_files.load(document, public), "both are trusted while it is rotated"
    rotated("documents", site=load_site(), apply=True, stolen=True)
    with pytest.raises(RolloutError, match=r"the signature is wrong.*not known here"):
        document_files.load(document, public)
    document_files.sign(document, tmp_path / "keys/rotation-documents/new/documents.pem")
    assert document_files.load(document, public)


def test_a_stolen_key_of_the_log_ends_with_its_public_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deny list of a thief stops rollouts. The log itself: test_rotation.py."""
    secret, public = made("log", tmp_path / "keys")
    site = "fleet: {signing_key: keys/log.pem, public_key: keys/log.pub, store: fleet.db}\n"
    (tmp_path / "site.yml").write_text(site)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    monkeypatch.delenv("GOLDNODE_FLEET_STORE", raising=False)
    row = {"class": "l4", "digest": "sha256:" + "e" * 64, "rollout": None, "reason": "evil"}
    row |= {"who": "thief", "at": "2026-11-28T00:00:00Z"}
    content = {"schema": denylist.SCHEMA, "number": 1, "denied": [row]}
    payload = json.dumps(content).encode()
    forged = tmp_path / "denied.json"
    forged.write_bytes(load_signer(secret).sign(payload, denylist.PAYLOAD_TYPE))
    place = DenyListPlace(str(forged), True, str(public), str(tmp_path / "seen"))
    assert [row.who for row in denylist.read(place)] == ["thief"], "before: it is obeyed"
    rotated("log", site=load_site(), apply=True, stolen=True)
    with pytest.raises(denylist.DenyListError, match="not known here"):
        denylist.read(place)


def test_a_stolen_token_ends_when_the_server_withdraws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = {"old"}

    class Prometheus(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] in {f"Bearer {one}" for one in accepted}
            data = {"status": "success", "data": {"resultType": "vector", "result": []}}
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(data if known else {"status": "error"}).encode())

        do_POST = do_GET  # noqa: N815 - a name of the library

        def log_message(self, *_: Any) -> None:
            pass

    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    with http.server.HTTPServer(("127.0.0.1", 0), Prometheus) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_port}"
        for name in ("site", "thief"):
            shutil.copy(tmp_path / "old", tmp_path / f"{name}.token")
            text = f"fleet: {{prometheus: {{url: '{address}', token: {name}.token}}}}\n"
            (tmp_path / f"{name}.yml").write_text(text)

        def asks(name: str) -> object:
            monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / f"{name}.yml"))
            try:
                return requirements.query(requirements.sources(load_site()), "up")
            except Exception as problem:
                return str(problem)

        assert asks("thief") == asks("site") == [], "before: the thief reads metrics"
        accepted.add("new")
        rotated("token", site=load_site(), apply=True, new=tmp_path / "new")
        assert (tmp_path / "site.token").read_text() == "new"
        assert asks("site") == asks("thief") == [], "both are accepted while it is rotated"
        accepted.remove("old")
        assert "401" in str(asks("thief")), "after: the server refuses it"
        assert asks("site") == []
        serving.shutdown()


def test_a_damaged_list_leaves_the_former_one_in_force(lock_service: Service) -> None:
    authority.revoke(lock_service.place / "ca", "n00", dt.datetime.now(dt.UTC))
    assert lock_service.refused("n00")
    (lock_service.place / "ca/revoked.pem").write_text("damaged")
    time.sleep(0.5)
    assert lock_service.refused("n00")
    assert lock_service.ask("n01", "n01")[0] in (200, 409)


def test_a_stolen_key_of_images_ends_with_its_public_key(tmp_path: Path) -> None:
    old, new = made("images", tmp_path / "old"), made("images", tmp_path / "new")
    stolen = load_signer(old[0]).sign(b"an image of the thief")
    site = tmp_path / "images.pub"
    site.write_bytes(old[1].read_bytes())
    assert open_envelope(stolen, load_public(site)).payload == b"an image of the thief"
    site.write_bytes(old[1].read_bytes() + new[1].read_bytes())
    good = load_signer(new[0]).sign(b"an image of the site")
    assert open_envelope(good, load_public(site)).payload, "both are trusted while it is rotated"
    site.write_bytes(new[1].read_bytes())
    assert open_envelope(good, load_public(site)).payload
    with pytest.raises(ImageError, match="signed by a key that is not known here"):
        open_envelope(stolen, load_public(site))


def test_a_stolen_key_of_evidence_ends_with_its_public_key(tmp_path: Path) -> None:
    """The thief states that a canary has passed."""
    old, new = made("evidence", tmp_path / "old"), made("evidence", tmp_path / "new")
    document = proof_records.case_class()
    record = proof_records.write("canary", document, tmp_path)
    proof = prove(ProofRequest("canary", record, document), DETAIL)
    stolen, trusted = tmp_path / f"canary-1{statements.SUFFIX}", tmp_path / "evidence.pub"
    stolen.write_bytes(statements.envelope(proof, load_signer(old[0])))
    trusted.write_bytes(old[1].read_bytes() + new[1].read_bytes())
    assert statements.read(stolen, load_public(trusted)).kind == "canary"
    with pytest.raises(EvidenceError, match="a key that was withdrawn"):
        statements.read(stolen, load_public(trusted), load_public(old[1]))
    trusted.write_bytes(new[1].read_bytes())
    with pytest.raises(EvidenceError, match="signed by a key that is not known here"):
        statements.read(stolen, load_public(trusted))


def test_a_stolen_secret_of_a_webhook_ends_with_its_line(tmp_path: Path) -> None:
    """The receiver accepts any signature of the header by a secret that it has."""
    file = made("webhook", tmp_path / "old")[0]
    (stolen,) = hooks.secrets(file)
    forged = hooks.signature([stolen], "id", 1, b"event")
    assert forged in hooks.signature(hooks.secrets(file), "id", 1, b"event").split()
    new = made("webhook", tmp_path / "new")[0].read_text()
    file.write_text(file.read_text() + new)
    both = hooks.signature(hooks.secrets(file), "id", 1, b"event").split()
    assert len(both) == 2, "while it is rotated, a receiver of either secret accepts events"
    assert forged in both
    file.write_text(new)
    assert forged not in hooks.signature(hooks.secrets(file), "id", 1, b"event").split()


@pytest.mark.skipif(shutil.which("gpg") is None, reason="GnuPG is not installed")
def test_a_stolen_key_of_a_mirror_ends_with_its_public_key(tmp_path: Path) -> None:
    old, new = made("mirror", tmp_path / "old"), made("mirror", tmp_path / "new")
    release, signed = tmp_path / "Release", tmp_path / "InRelease"
    release.write_text("Origin: the thief\n")
    with signing.open_signer(str(old[0]), tmp_path) as stolen:
        stolen.sign(release, signed)
    assert signing.check_signature(signed, old[1].read_bytes())[0], "before: nodes accept it"
    assert signing.check_signature(signed, new[1].read_bytes())[0] is None, "after: they do not"


def module_is_accepted(module: bytes, certificate: Path, place: Path) -> bool:
    """Verify a module as a kernel with this certificate does: its CMS signature over all before it."""
    body = module.removesuffix(MAGIC)
    size = struct.unpack(">BBBBB3xI", body[-12:])[-1]
    (place / "signature").write_bytes(body[-12 - size : -12])
    (place / "module").write_bytes(body[: -12 - size])
    words = ("-inform", "DER", "-in", "signature", "-content", "module", "-certfile")
    command = ["openssl", "cms", "-verify", "-binary", *words, str(certificate)]
    command += ["-nointern", "-noverify", "-out", "/dev/null"]
    return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0


def test_a_stolen_key_of_modules_ends_with_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = {}
    for name in ("old", "new"):
        key, certificate, _ = made("modules", tmp_path / name)
        site = tmp_path / f"{name}.yml"
        site.write_text(f"module_signing: {{key: {key}, certificate: {certificate}}}\n")
        monkeypatch.setenv("GOLDNODE_SITE", str(site))
        signed[name] = Signing.of(load_site()).sign(b"a module")
    old, new = tmp_path / "old/modules.pem", tmp_path / "new/modules.pem"
    assert module_is_accepted(signed["old"], old, tmp_path), "before: the kernel loads it"
    assert not module_is_accepted(signed["old"], new, tmp_path), "after: it does not"
    assert module_is_accepted(signed["new"], new, tmp_path)


def test_a_stolen_key_of_releases_ends_with_its_public_key(tmp_path: Path) -> None:
    from release import provenance

    old, new = made("release", tmp_path / "old"), made("release", tmp_path / "new")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  goldnode.whl\n")
    provenance.sign(tmp_path, provenance.signer(old[0]))
    assert verify(tmp_path, old[1]).files
    with pytest.raises(ReleaseError, match="the signature does not hold"):
        verify(tmp_path, new[1])


@pytest.mark.parametrize("kind", ["authority", "images", "mirror", "modules", "release", "webhook"])
def test_a_key_that_is_there_is_not_replaced(kind: str, tmp_path: Path) -> None:
    if kind == "mirror" and shutil.which("gpg") is None:
        pytest.skip("GnuPG is not installed")
    secret = made(kind, tmp_path)[0]
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    with pytest.raises(SigningKeyError, match="there is a"):
        made(kind, tmp_path)
    assert secret.read_bytes() == before
