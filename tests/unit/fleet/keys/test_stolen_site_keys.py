"""Each kind of key is stolen in turn: what its thief can do before and after the procedure of docs/how-to/keys.md.

Keys of channels (root, online) have their tests with the channels.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
from tests.unit.fleet.store.fleets import CLASS, fill

from goldnode.core.errors import ImageError, SigningKeyError
from goldnode.core.site import load_site
from goldnode.evidence.release_files import ReleaseError, verify
from goldnode.evidence.signatures import load_public, load_signer, open_envelope
from goldnode.fleet.events import hooks
from goldnode.fleet.keys import authority, making
from goldnode.fleet.service import server as service
from goldnode.fleet.service.server import Listen, server
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

    def ask(self, node: str, own: str, issuer: str = "ca") -> tuple[int, str]:
        """Ask for `node` with the certificate of `own`. Raises HTTPError if the connection is refused."""
        context = ssl.create_default_context(cafile=str(self.place / "web/authority.pem"))
        files = self.place / issuer / "nodes"
        context.load_cert_chain(files / f"{own}.pem", files / f"{own}.key")
        with urllib3.PoolManager(ssl_context=context, retries=False) as pool:
            answer = pool.request(
                "POST",
                f"https://localhost:{self.port}/v1/pre-reboot",
                body=json.dumps({"client_params": {"id": node, "group": CLASS}}),
                headers={"fleet-lock-protocol": "true"},
            )
        return answer.status, answer.json().get("kind", "")

    def refused(self, own: str, issuer: str = "ca") -> bool:
        """Return whether the service refuses connections with a certificate, soon."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                self.ask(own, own, issuer)
            except urllib3.exceptions.HTTPError:
                return True
            time.sleep(0.05)
        return False


@pytest.fixture
def lock_service(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setattr(service, "TICKS", 1)
    for name in ("web", "ca"):
        authority.create(tmp_path / name, name, NOW)
    authority.issue(tmp_path / "web", "localhost", tmp_path / "web", NOW, serves=True)
    for node in ("n00", "n01"):
        authority.issue(tmp_path / "ca", node, tmp_path / "ca/nodes", NOW)
    store = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(store)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    listen = Listen(
        "127.0.0.1",
        number,
        tmp_path / "web/localhost.pem",
        tmp_path / "web/localhost.key",
        tmp_path / "ca/authority.pem",
        client_crl=tmp_path / "ca/revoked.pem",
    )
    running = server(store, listen)
    thread = threading.Thread(target=running.run)
    thread.start()
    end = time.monotonic() + 30
    while not running.started and time.monotonic() < end:
        time.sleep(0.02)
    yield Service(number, tmp_path, tmp_path / "ca/authority.pem")
    running.should_exit = True
    thread.join()
    store.close()


def test_a_stolen_key_of_a_node_ends_with_its_revocation(lock_service: Service) -> None:
    assert lock_service.ask("n00", "n00") == (200, ""), "before: the thief asks for this node"
    assert lock_service.ask("n01", "n00") == (403, "wrong_node_certificate"), "and for no other"
    assert authority.revoke(lock_service.place / "ca", "n00", dt.datetime.now(dt.UTC)) == 1
    assert lock_service.refused("n00"), "after: no connection, without a restart of the service"
    # The first one took the only place of the buffer: an answer, and no refused connection.
    assert lock_service.ask("n01", "n01")[0] in (200, 409)
    for file in ("n00.pem", "n00.key"):
        (lock_service.place / "ca/nodes" / file).unlink()
    authority.issue(lock_service.place / "ca", "n00", lock_service.place / "ca/nodes", NOW)
    assert lock_service.ask("n00", "n00")[0] == 200, "the node itself goes on with a new one"


def test_certificates_of_another_authority_are_refused(lock_service: Service) -> None:
    """The thief of a withdrawn authority, which --client-ca names no more."""
    authority.create(lock_service.place / "old", "ca", NOW)
    authority.issue(lock_service.place / "old", "n00", lock_service.place / "old/nodes", NOW)
    assert lock_service.refused("n00", "old")


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
