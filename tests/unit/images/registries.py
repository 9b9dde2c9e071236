"""What tests of registries need: a small simulated registry with faults, small images, and what is attached to them.

The simulated registry keeps everything in memory and says so in its header; it has the Referrers API (or not), logins, and uploads that
can be taken up again. Faults are functions that see each request first.
"""

from __future__ import annotations

import base64
import gzip
import http.server
import io
import json
import re
import ssl
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.vulnerability_samples import vulnerability_report

from goldnode import evidence
from goldnode.evidence import signatures
from goldnode.oci.identity import step_of
from goldnode.oci.layout import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    Descriptor,
    Layout,
    canonical,
    digest_of,
)
from goldnode.oci.registry import Registry, RegistryOptions

BUILD = "0123456789ab"


# Images


def make_image(
    layout: Layout,
    *,
    backend: str = "cuda",
    version: str = "12.4.1",
    flavour: str = "runtime",
    system: str = "debian12",
    build: str = BUILD,
    content: bytes = b"one",
    parts: str | None = "cudnn=9.1.0,nccl=2.21.5",
    labels: Mapping[str, str] | None = None,
    bulk: int = 0,
) -> tuple[str, str]:
    """Put a small image into the layout; returns its ref and digest. `bulk` bytes that do not compress make a layer with a middle."""
    layers, diffs = [], []
    shared = {"etc/os-release": b"ID=debian\n"}
    noise = b"".join(digest_of(b"%d" % number)[7:39].encode() for number in range(bulk // 32))
    for files in (shared, {"opt/content": content, "opt/bulk": noise}):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for folder in dict.fromkeys(name.rpartition("/")[0] for name in files):
                info = tarfile.TarInfo(folder)
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        diffs.append(digest_of(raw.getvalue()))
        layers.append(
            layout.put(gzip.compress(raw.getvalue(), compresslevel=0, mtime=0), f"{LAYER}+gzip")
        )
    own = {
        "backend": backend,
        "runtime": version,
        "flavour": flavour,
        "os": system,
        "build-id": build,
        "redistribution": "free",
    }
    if parts is not None:
        own["parts"] = parts
    own |= dict(labels or {})
    found = {f"io.goldnode.{key}": value for key, value in own.items()}
    name = "-".join(own[key] for key in ("backend", "runtime", "flavour", "os"))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": found},
        "rootfs": {"type": "layers", "diff_ids": diffs},
        "history": [{"created_by": "goldnode root"}, {"created_by": step_of(name)}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [layer.document() for layer in layers],
        "annotations": found,
    }
    descriptor = layout.put(canonical(manifest), MANIFEST)
    ref = f"{backend}:{version}-{flavour}-{system}-{build}"
    layout.set_ref(ref, descriptor)
    return ref, descriptor.digest


def prove(
    layout: Layout,
    digest: str,
    key: Path,
    *,
    inspection: Any = True,
    truth: Any = True,
    cpu: str = "passed",
    gpu: str = "not_run",
    simulated: bool = False,
    signed: bool = True,
    papers: bool = True,
    vulnerabilities: str = "checked",
) -> None:
    """Attach to an image what the gates read, and sign it. None leaves a document out."""
    if inspection is not None:
        found = (
            []
            if inspection
            else [{"severity": "refuse", "message": "libcudart.so.12 is foreign", "waived": None}]
        )
        layout.attach(
            digest, evidence.INSPECTION, canonical({"passed": inspection, "findings": found})
        )
    if truth is not None:
        claims = (
            []
            if truth
            else [{"claim": "runtime", "expected": "12.4", "got": "12.1", "result": "differs"}]
        )
        layout.attach(digest, evidence.TRUTH, canonical({"passed": truth, "claims": claims}))
    tiers = {
        "cpu": {"state": cpu, "why": "", "tests": []},
        "gpu": {"state": gpu, "why": "no GPU here", "tests": []},
    }
    layout.attach(digest, evidence.SMOKE, canonical({"tiers": tiers, "simulated": simulated}))
    if papers:
        for kind in (evidence.CYCLONEDX, evidence.SPDX, evidence.PROVENANCE):
            layout.attach(digest, kind, canonical({"about": digest, "kind": kind}))
        report = vulnerability_report(digest, vulnerabilities)
        layout.attach(digest, evidence.VULNERABILITIES, canonical(report))
    if signed:
        sign(layout, digest, key)


def sign(layout: Layout, digest: str, key: Path) -> None:
    """Sign an image with all that is attached now, in place of an earlier signature."""
    for descriptor, _ in layout.attached(digest, evidence.SIGNATURE):
        layout.detach(descriptor.digest)
    rows = []
    for _, manifest in layout.attached(digest):
        if manifest["artifactType"] in evidence.SIGNED:
            rows.append(
                {
                    "type": manifest["artifactType"],
                    "digest": manifest["layers"][0]["digest"],
                    "size": manifest["layers"][0]["size"],
                }
            )
    payload = signatures.statement(
        "image", digest, "urn:goldnode:image-evidence:1", {"documents": rows}
    )
    layout.attach(digest, evidence.SIGNATURE, signatures.load_signer(key).sign(payload))


def make_key(directory: Path, name: str = "key") -> tuple[Path, Path]:
    """A new ed25519 key: secret and public file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return _write_key(directory, name, Ed25519PrivateKey.generate())


def make_ecdsa_key(directory: Path, name: str = "key") -> tuple[Path, Path]:
    """A new ECDSA P-256 key: secret and public file."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return _write_key(directory, name, generate_private_key(SECP256R1()))


def _write_key(directory: Path, name: str, key: Any) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    secret, public = directory / f"{name}.pem", directory / f"{name}.pub"
    secret.touch(0o600)
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return secret, public


# A server with faults


@dataclass
class Request:
    """What came: `path` without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    target: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Response:
    """What goes back. `length` is what Content-Length says where that is not the body's own."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None


@dataclass(frozen=True)
class Fault:
    """What befalls a request: `drop` (closed unread by the registry), `lost` (done, and no answer), `half` (half of its body arrives), `cut`
    (`number` bytes of the answer's body), `status` (`number`), `dead` (this and every later one is dropped)."""

    kind: str
    number: int = 0


Rule = Callable[[Request], Fault | None]


class Server:
    """An HTTP server in threads; `answer` does the work. Every request is in `log`."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.log: list[Request] = []
        self.rules: list[Rule] = []
        self.dead = False
        self.lock = threading.RLock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 20
            # An answer in two small pieces would wait for the other side's acknowledgement.
            wbufsize = -1
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, ssl.SSLError):
                    self.close_connection = True

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                request = Request(
                    self.command,
                    parts.path,
                    query,
                    {key.lower(): value for key, value in self.headers.items()},
                    target=self.path,
                )
                size = int(self.headers.get("Content-Length") or 0)
                with owner.lock:
                    owner.log.append(request)
                # Rules may ask the server themselves.
                fault = (
                    Fault("drop")
                    if owner.dead
                    else next((found for rule in owner.rules if (found := rule(request))), None)
                )
                if fault is not None and fault.kind == "dead":
                    owner.dead = True
                if fault is not None and fault.kind in ("drop", "dead"):
                    self.close_connection = True
                    return
                if fault is not None and fault.kind == "half":
                    request.body = self.rfile.read(size // 2)
                    owner.half(request, size)
                    self.close_connection = True
                    return
                request.body = self.rfile.read(size)
                if fault is not None and fault.kind == "status":
                    response = Response(
                        fault.number,
                        {"Retry-After": "0"},
                        b'{"errors":[{"code":"INJECTED","message":"a fault"}]}',
                    )
                else:
                    response = owner.answer(request)
                if fault is not None and fault.kind == "lost":
                    self.close_connection = True
                    return
                self.send_response_only(response.status)
                for key, value in response.headers.items():
                    self.send_header(key, value)
                if response.status >= 200 and response.status != 204:
                    self.send_header(
                        "Content-Length",
                        str(len(response.body) if response.length is None else response.length),
                    )
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(
                        response.body[: fault.number]
                        if fault is not None and fault.kind == "cut"
                        else response.body
                    )
                if fault is not None and fault.kind == "cut":
                    self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(str(tls[0]), str(tls[1]))
            self.http.socket = context.wrap_socket(
                self.http.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host = f"127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def answer(self, request: Request) -> Response:
        """Do what is asked."""
        raise NotImplementedError

    def half(self, request: Request, size: int) -> None:
        """Half of a body came."""

    def close(self) -> None:
        """End it."""
        self.http.shutdown()
        self.http.server_close()

    def writes(self) -> list[str]:
        """The requests that change something."""
        return [
            str(request)
            for request in self.log
            if request.method in ("PUT", "POST", "PATCH", "DELETE")
        ]


class Simulated(Server):
    """A registry in memory."""

    def __init__(
        self, *, api: bool = True, login: tuple[str, str] | None = None, token: bool = False
    ) -> None:
        self.api, self.login, self.token = api, login, token
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.named: dict[tuple[str, str], str] = {}
        self.uploads: dict[str, bytearray] = {}
        self.tampered: dict[str, bytes] = {}
        self.numbers = count()
        super().__init__()

    def client(self, **settings: Any) -> Registry:
        """A client for it that does not wait."""
        settings = {
            "plain_http": True,
            "tries": 3,
            "pause": 0,
            "logins": lambda host, repository: None,
            **settings,
        }
        return Registry(self.host, RegistryOptions(**settings))

    def tag(self, repository: str, tag: str) -> str | None:
        """What a tag stands for."""
        return self.named.get((repository, tag))

    def load(self, layout: Layout, digest: str, repo: str, tag: str) -> None:
        """Have an image with its evidence, as if it had been published."""
        self.named[repo, tag] = digest
        for name in (digest, *(row.digest for row, _ in layout.attached(digest))):
            data = layout.read(name)
            self.manifests[repo, name] = (data, MANIFEST)
            document = json.loads(data)
            for row in (document["config"], *document["layers"]):
                self.blobs[repo, row["digest"]] = layout.read(row["digest"])

    def half(self, request: Request, size: int) -> None:
        found = re.fullmatch(r"/v2/(.+)/blobs/uploads/(\w+)", request.path)
        if found and request.method == "PATCH":
            self.uploads[found[2]] += request.body

    def answer(self, request: Request) -> Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        with self.lock:
            for pattern, do in (
                (r"/v2/(?P<repo>.+)/blobs/uploads/(?P<id>\w*)", self._upload),
                (r"/v2/(?P<repo>.+)/blobs/(?P<digest>sha256:\w+)", self._blob),
                (r"/v2/(?P<repo>.+)/manifests/(?P<ref>[^/]+)", self._manifest),
                (r"/v2/(?P<repo>.+)/referrers/(?P<digest>sha256:\w+)", self._referrers),
                (r"/v2/(?P<repo>.+)/tags/list", self._tags),
            ):
                found = re.fullmatch(pattern, request.path)
                if found:
                    return do(request, **found.groupdict())
        return Response(404)

    def _refused(self, request: Request) -> Response | None:
        if request.path == "/token":
            good = self.login is None or request.headers.get("authorization") == _basic(self.login)
            return (
                Response(200, {}, json.dumps({"token": "t0"}).encode()) if good else Response(401)
            )
        if self.login is None:
            return None
        if self.token:
            if request.headers.get("authorization") == "Bearer t0":
                return None
            name = request.path.removeprefix("/v2/").split("/blobs/")[0].split("/manifests/")[0]
            challenge = f'Bearer realm="http://{self.host}/token",service="simulated",scope="repository:{name}:pull,push"'
            return Response(401, {"WWW-Authenticate": challenge})
        if request.headers.get("authorization") == _basic(self.login):
            return None
        return Response(401, {"WWW-Authenticate": 'Basic realm="simulated"'})

    def _upload(self, request: Request, repo: str, id: str) -> Response:
        if request.method == "POST":
            digest, source = request.query.get("mount"), request.query.get("from")
            if digest and (source, digest) in self.blobs:
                self.blobs[repo, digest] = self.blobs[str(source), digest]
                return Response(201)
            id = f"u{next(self.numbers)}"
            self.uploads[id] = bytearray()
            return Response(202, {"Location": f"/v2/{repo}/blobs/uploads/{id}?_state=x"})
        if id not in self.uploads:
            return Response(
                404, {}, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN","message":"gone"}]}'
            )
        have = self.uploads[id]
        told = {
            "Location": f"/v2/{repo}/blobs/uploads/{id}?_state=x",
            "Range": f"0-{max(0, len(have) - 1)}",
        }
        if request.method == "GET":
            return Response(204, told)
        if request.method == "DELETE":
            del self.uploads[id]
            return Response(204)
        if request.method == "PATCH":
            start = int(request.headers["content-range"].partition("-")[0])
            if start != len(have):
                return Response(416, told)
            have += request.body
            return Response(202, told | {"Range": f"0-{len(have) - 1}"})
        data = bytes(have) + request.body
        if digest_of(data) != request.query.get("digest"):
            return Response(
                400, {}, b'{"errors":[{"code":"DIGEST_INVALID","message":"other bytes"}]}'
            )
        self.blobs[repo, request.query["digest"]] = data
        del self.uploads[id]
        return Response(201)

    def _blob(self, request: Request, repo: str, digest: str) -> Response:
        data = self.blobs.get((repo, digest))
        if data is None:
            return Response(404)
        data = self.tampered.get(digest, data)
        if request.method == "HEAD":
            return Response(200, {}, b"", len(data))
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if asked:
            start = int(asked[1])
            return Response(
                206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]
            )
        return Response(200, {}, data)

    def _manifest(self, request: Request, repo: str, ref: str) -> Response:
        if request.method == "PUT":
            digest = digest_of(request.body)
            document = json.loads(request.body)
            for row in (document.get("config"), *document.get("layers", [])):
                if row and (repo, row["digest"]) not in self.blobs:
                    return Response(
                        404,
                        {},
                        b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"a blob is missing"}]}',
                    )
            self.manifests[repo, digest] = (request.body, request.headers["content-type"])
            if not ref.startswith("sha256:"):
                self.named[repo, ref] = digest
            told = (
                {"OCI-Subject": document["subject"]["digest"]}
                if self.api and "subject" in document
                else {}
            )
            return Response(201, {"Docker-Content-Digest": digest, **told})
        digest = ref if ref.startswith("sha256:") else self.named.get((repo, ref), "")
        found = self.manifests.get((repo, digest))
        if found is None:
            return Response(
                404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown"}]}'
            )
        if request.method == "DELETE":
            del self.manifests[repo, digest]
            self.named = {
                key: value for key, value in self.named.items() if (key[0], value) != (repo, digest)
            }
            return Response(202)
        data = self.tampered.get(digest, found[0])
        return Response(200, {"Content-Type": found[1], "Docker-Content-Digest": digest}, data)

    def _referrers(self, request: Request, repo: str, digest: str) -> Response:
        if not self.api:
            return Response(404, {"Content-Type": "text/plain"}, b"404 page not found\n")
        rows = []
        for (where, name), (data, kind) in sorted(self.manifests.items()):
            document = json.loads(data)
            if where == repo and document.get("subject", {}).get("digest") == digest:
                rows.append(
                    {
                        **Descriptor(kind, name, len(data)).document(),
                        "artifactType": document.get("artifactType", ""),
                    }
                )
        return Response(
            200,
            {"Content-Type": INDEX},
            canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}),
        )

    def _tags(self, request: Request, repo: str) -> Response:
        tags = sorted(tag for where, tag in self.named if where == repo)
        if not tags:
            return Response(404)
        after = request.query.get("last", "")
        page = [tag for tag in tags if tag > after][
            :2
        ]  # small pages, so that the next one is asked for
        more = (
            {"Link": f'</v2/{repo}/tags/list?n=2&last={page[-1]}>; rel="next"'}
            if page and page[-1] != tags[-1]
            else {}
        )
        return Response(200, more, json.dumps({"name": repo, "tags": page}).encode())


def _basic(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server for the length of a test."""
    try:
        yield server
    finally:
        server.close()


def once(kind: str, pattern: str, number: int = 0, skip: int = 0) -> Rule:
    """A fault for one request whose `METHOD /path` fits, after `skip` that fit as well."""
    left = [skip + 1]

    def rule(request: Request) -> Fault | None:
        if left[0] and re.search(pattern, str(request)):
            left[0] -= 1
            return None if left[0] else Fault(kind, number)
        return None

    return rule


def always(kind: str, pattern: str, number: int = 0) -> Rule:
    """A fault for every request whose `METHOD /path` fits."""
    return lambda request: Fault(kind, number) if re.search(pattern, str(request)) else None


def before(pattern: str, do: Callable[[], object], skip: int = 0) -> Rule:
    """Do something else, once, right before a request that fits is served: what another writer does meanwhile."""
    left = [skip + 1]

    def rule(request: Request) -> Fault | None:
        if left[0] and re.search(pattern, str(request)):
            left[0] -= 1
            if not left[0]:
                do()
        return None

    return rule


def dies_at_write(number: int) -> Rule:
    """The registry is gone from its `number`-th write on (from 0), that one undone."""
    count = [0]

    def rule(request: Request) -> Fault | None:
        if request.method in ("PUT", "POST", "PATCH", "DELETE"):
            count[0] += 1
            if count[0] > number:
                return Fault("dead")
        return None

    return rule
