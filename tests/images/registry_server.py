"""Debian's own registry as a process of the test: TLS, a password file, and a proxy of ours before it that injures what passes."""

from __future__ import annotations

import datetime as dt
import http.client
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.unit.images.registries import Request, Response, Server

from goldnode.oci.auth import Login
from goldnode.oci.registry import Registry, RegistryOptions

USER, PASSWORD = "publisher", "not-a-secret"
# The password file's line for it (bcrypt, cost 5: the registry takes no other kind).
HTPASSWD = USER + ":$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G\n"


def certificate(directory: Path) -> tuple[Path, Path, Path]:
    """An authority and a certificate of it for 127.0.0.1: authority, certificate and key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = dt.datetime.now(dt.UTC)
    secret, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        x509.CertificateBuilder()
        .subject_name(name("goldnode test authority"))
        .issuer_name(name("goldnode test authority"))
        .public_key(secret.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False
        )
        .sign(secret, hashes.SHA256())
    )
    leaf = (
        x509.CertificateBuilder()
        .subject_name(name("127.0.0.1"))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(2)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key()), critical=False
        )
        .sign(secret, hashes.SHA256())
    )
    files = directory / "ca.crt", directory / "registry.crt", directory / "registry.key"
    files[0].write_bytes(authority.public_bytes(Encoding.PEM))
    files[1].write_bytes(leaf.public_bytes(Encoding.PEM))
    files[2].write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


class DockerRegistry:
    """Debian's docker-registry on a free port of this machine; `storage` is its directory."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("docker-registry")
        assert program is not None, (
            "docker-registry is not on this machine: apt-get install docker-registry"
        )
        self.directory, self.program = directory, program
        self.storage = directory / "storage"
        self.ca, self.certificate, self.key = certificate(directory)
        (directory / "htpasswd").write_text(HTPASSWD)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{probe.getsockname()[1]}"
        (directory / "config.yml").write_text(
            f"""version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {self.storage}}}, delete: {{enabled: true}}}}
http: {{addr: "{self.host}", secret: test, tls: {{certificate: {self.certificate}, key: {self.key}}}}}
auth: {{htpasswd: {{realm: test, path: {directory / "htpasswd"}}}}}
"""
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", str(self.directory / "config.yml")],
                stdout=log,
                stderr=log,
                env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
            )
        host, _, port = self.host.partition(":")
        for _ in range(300):
            assert self.process.poll() is None, (self.directory / "log").read_text()
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                time.sleep(0.05)
                continue
            return
        raise AssertionError("the registry does not start")

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        value = digest.removeprefix("sha256:")
        return self.storage / "docker/registry/v2/blobs/sha256" / value[:2] / value / "data"

    def client(self, host: str | None = None, **settings: Any) -> Registry:
        """A client with the right login that does not wait long."""
        given = {
            "ca": self.ca,
            "tries": 3,
            "pause": 0.01,
            "logins": lambda host, name: Login(USER, PASSWORD),
            **settings,
        }
        return Registry(host or self.host, RegistryOptions(**given))


class Proxy(Server):
    """Hands every request on to the registry, and the answer back, but for the faults it is told of."""

    def __init__(self, registry: DockerRegistry) -> None:
        self.registry = registry
        self.context = ssl.create_default_context(cafile=str(registry.ca))
        super().__init__((registry.certificate, registry.key))

    def _connect(self, request: Request, size: int) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(
            self.registry.host, context=self.context, timeout=20
        )
        connection.putrequest(
            request.method, request.target, skip_host=True, skip_accept_encoding=True
        )
        for key, value in request.headers.items():
            if key not in ("content-length", "connection"):
                connection.putheader(
                    key, value
                )  # with the proxy's own Host, so that the registry sends to the proxy
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        return connection

    def answer(self, request: Request) -> Response:
        try:
            connection = self._connect(request, len(request.body))
            connection.send(request.body)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            return Response(502)
        headers = {
            key: value
            for key, value in answer.getheaders()
            if key.lower() not in ("content-length", "transfer-encoding", "date")
        }
        length = (
            int(answer.headers.get("Content-Length") or 0) if request.method == "HEAD" else None
        )
        connection.close()
        return Response(answer.status, headers, data, length)

    def half(self, request: Request, size: int) -> None:
        connection = self._connect(request, size)
        connection.send(request.body)
        connection.close()
