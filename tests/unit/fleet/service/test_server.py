"""The server of the lock service, as a process: TLS with certificates of nodes, and its refusals to start."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from tests.unit.fleet.store.fleets import CLASS, fill, held

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.service.server import Listen, names_of, server
from goldnode.fleet.store.database import StoreDatabase


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, and certificates of localhost and of n00."""
    place = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)

    key = ("-newkey", "ed25519", "-nodes")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=fleet",
        "-days",
        "2",
    )
    for name in ("localhost", "n00"):
        (place / "ext").write_text(f"subjectAltName=DNS:{name}\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", "csr", "-subj", f"/CN={name}")
        signed = (
            "-req",
            "-in",
            "csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
        )
        openssl("x509", *signed, "-extfile", "ext", "-out", f"{name}.pem")
    return place


@pytest.fixture
def port(tmp_path: Path, migrated: Path, authority: Path) -> Iterator[int]:
    """The port of a running service that wants certificates."""
    store = StoreDatabase(str(shutil.copy(migrated, tmp_path / "fleet.db")))
    fill(store)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    own = (authority / "localhost.pem", authority / "localhost.key", authority / "ca.pem")
    running = server(store, Listen("127.0.0.1", number, *own))
    thread = threading.Thread(target=running.run)
    thread.start()
    end = time.monotonic() + 30
    while not running.started and time.monotonic() < end:
        time.sleep(0.02)
    yield number
    running.should_exit = True
    thread.join()
    store.close()


def ask(authority: Path, port: int, node: str, certificate: str | None) -> tuple[int, str]:
    """Return the status and the kind of an answer."""
    context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    if certificate:
        context.load_cert_chain(authority / f"{certificate}.pem", authority / f"{certificate}.key")
    with urllib3.PoolManager(ssl_context=context, retries=False) as pool:
        answer = pool.request(
            "POST",
            f"https://localhost:{port}/v1/pre-reboot",
            body=json.dumps({"client_params": {"id": node, "group": CLASS}}),
            headers={"fleet-lock-protocol": "true"},
        )
    return answer.status, answer.json().get("kind", "")


def test_node_asks_for_itself_only(port: int, authority: Path, tmp_path: Path) -> None:
    assert ask(authority, port, "n00", "n00") == (200, "")
    assert ask(authority, port, "n01", "n00") == (403, "wrong_node_certificate")
    with pytest.raises(urllib3.exceptions.HTTPError):
        ask(authority, port, "n01", None)
    store = StoreDatabase(str(tmp_path / "fleet.db"))
    assert held(store) == {"n00": "planned"}
    store.close()


def test_service_without_tls_listens_on_the_loopback_only() -> None:
    with pytest.raises(GoldnodeError, match="any machine that reaches"):
        Listen("192.0.2.1")
    assert Listen("192.0.2.1", plain=True).plain
    own = (Path("cert.pem"), Path("key.pem"))
    for plain in (False, True):
        with pytest.raises(
            GoldnodeError, match="without certificates of nodes, any machine that reaches"
        ):
            Listen("192.0.2.1", 9180, *own, plain=plain)
    assert Listen("192.0.2.1", 9180, *own, any_client=True).any_client
    assert Listen("192.0.2.1", 9180, *own, Path("ca.pem")).client_ca
    assert Listen("127.0.0.1", 9180, *own).certificate, "behind a proxy of this machine"
    with pytest.raises(GoldnodeError, match="a certificate and its key"):
        Listen(certificate=Path("x"))
    with pytest.raises(GoldnodeError, match="need TLS"):
        Listen(client_ca=Path("x"))


def test_dns_names_of_a_certificate_go_before_its_common_name() -> None:
    subject = ((("commonName", "a"),),)
    assert names_of({"subject": subject}) == {"a"}
    assert names_of(
        {"subject": subject, "subjectAltName": (("DNS", "b"), ("IP Address", "::1"))}
    ) == {"b"}
    assert names_of({}) == frozenset()
