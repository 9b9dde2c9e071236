"""Client for registries of the OCI distribution specification 1.1: blobs, manifests, tags and referrers,
validated in both directions.

The digest of everything is known before it moves, so every request can be repeated, and an interrupted
transfer resumes. A registry has no compare-and-set: callers that need one read back
(`goldnode.images.publish`, `goldnode.images.channels`).
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from goldnode.core.errors import ImageError
from goldnode.core.files import sha256_of
from goldnode.node.ground.optional import group
from goldnode.node.ground.text import phrase
from goldnode.oci.auth import Login, login
from goldnode.oci.layout import (
    EMPTY,
    INDEX,
    MANIFEST,
    Descriptor,
    Layout,
    canonical,
    digest_of,
    read_manifest,
)

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = (INDEX, DOCKER_LIST)
ACCEPT = ", ".join((MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_LIST))

CHUNK = 32 << 20  # bytes of a blob sent at once; what is larger is sent in such pieces
BLOCK = 1 << 18  # bytes of one read
MANIFEST_LIMIT = 4 << 20  # bytes; the specification lets registries refuse more
TRIES = 5  # of a request
PAUSE = 1.0  # seconds before the second try; doubled before each further one
PATIENCE = 60.0  # the longest Retry-After that is waited for, in seconds
DOCKER_CERTS = (
    "/etc/docker/certs.d",
    "~/.config/docker/certs.d",
    "/etc/containers/certs.d",
    "~/.config/containers/certs.d",
)

# Statuses of a registry that is busy or restarting: the same request may succeed later.
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_NAME = re.compile(
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9A-Fa-f:]+\](?::[0-9]+)?")

Transferred = Callable[[int], None]


class UnreachableError(ImageError):
    """The registry does not answer, or gives an answer that cannot be used."""


class RefusedError(ImageError):
    """The registry refuses a request."""

    status = 0


@dataclass(frozen=True)
class RegistryAddress:
    """Address of a registry, with the prefix of its repositories: `registry.example.net:5000/gpu`."""

    host: str
    prefix: str = ""
    plain_http: bool = False

    def __str__(self) -> str:
        return "/".join(part for part in (self.host, self.prefix) if part)

    def repository(self, name: str) -> str:
        """Return the full name of a repository at this address."""
        return "/".join(part for part in (self.prefix, name) if part)


def registry_address(text: str) -> RegistryAddress:
    """Read `HOST[:PORT][/PREFIX]`; `http://` before it means a registry without TLS. Raises ImageError."""
    plain = text.startswith("http://")
    bare = re.sub(r"^https?://", "", text).rstrip("/")
    host, _, prefix = bare.partition("/")
    if not _HOST.fullmatch(host) or (prefix and not _NAME.fullmatch(prefix)):
        raise ImageError(
            f'"{text}" names no registry',
            remedy="write it as HOST[:PORT][/PREFIX], in lower case and without a user or password",
        )
    return RegistryAddress(host, prefix, plain)


def reached(place: RegistryAddress) -> RegistryAddress:
    """Return the address, over plain HTTP if the registry is on this machine and answers so.

    docker treats the loopback addresses in the same way. The only request is `GET /v2/`, without a login.
    """
    if place.plain_http or not _loopback(place.host):
        return place
    try:
        answer = urllib3.PoolManager(retries=False, timeout=5).request(
            "GET", f"http://{place.host}/v2/", headers={"User-Agent": "goldnode"}
        )
    except HTTPError:
        return place
    return RegistryAddress(place.host, place.prefix, answer.status in (200, 401, 404))


@dataclass(frozen=True)
class Manifest:
    """A manifest or index as the registry has it: its bytes are what the digest is of."""

    data: bytes
    media_type: str
    digest: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the content as a JSON object. Raises ImageError if it is none."""
        content = json.loads(self.data)
        if not isinstance(content, dict):
            raise ImageError(f"manifest {self.digest} is no JSON object")
        return content

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor of this manifest, as an index lists it."""
        return Descriptor(self.media_type, self.digest, len(self.data))


def referrers_tag(digest: str) -> str:
    """Return the tag that lists the referrers of a digest in a registry without the Referrers API (OCI distribution 1.1)."""
    return digest.replace(":", "-", 1)[:128]


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach a registry.

    `ca` is the certificate of its authority, `timeout` and `pause` are in seconds. `chunk` is the number of
    bytes of a blob that are sent at once. `logins` finds the login of a host and repository. `moved` is called
    with the number of bytes transferred.
    """

    plain_http: bool = False
    ca: Path | None = None
    connections: int = 4
    timeout: float = 60
    tries: int = TRIES
    pause: float = PAUSE
    chunk: int = CHUNK
    logins: Callable[[str, str], Login | None] = login
    moved: Transferred | None = None


@dataclass(frozen=True)
class RegistryRequest:
    """One request to a registry.

    `what` states in an error what could not be done. `push`: it needs the right to write. Without `again` it is
    sent once only.
    """

    method: str
    url: str
    expected: Sequence[int]
    what: str
    repository: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    push: bool = False
    again: bool = True

    @property
    def actions(self) -> str:
        """Return the rights that it needs, as a token service names them."""
        if not self.push:
            return "pull"
        return "pull,push,delete" if self.method == "DELETE" else "pull,push"


class Registry:
    """One registry. Safe for several threads; `moved` is called with the bytes transferred."""

    def __init__(self, host: str, options: RegistryOptions | None = None) -> None:
        given = options or RegistryOptions()
        plain_http, ca = given.plain_http, given.ca
        self.host, self.plain_http, self.timeout = host, plain_http, given.timeout
        self.tries, self.pause, self.chunk = given.tries, given.pause, given.chunk
        self.base = f"{'http' if plain_http else 'https'}://{host}"
        self.moved: Transferred = given.moved or (lambda size: None)
        self._logins, self._found = given.logins, dict[str, Login | None]()
        self._tokens: dict[str, str] = {}
        self._basic = False
        self._lock = Lock()
        shape: dict[str, Any] = {"num_pools": 4, "maxsize": given.connections, "block": False}
        if not plain_http:
            shape["ssl_context"] = _context(host, ca)
        bare = urlsplit(self.base).hostname or host
        if urllib.request.proxy_bypass(bare):
            proxy = ""
        else:
            proxy = urllib.request.getproxies().get(urlsplit(self.base).scheme, "")
        self._pool = urllib3.ProxyManager(proxy, **shape) if proxy else urllib3.PoolManager(**shape)

    def repository(self, name: str) -> Repository:
        """Return a repository of the registry. Raises ImageError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise ImageError(
                f'"{name}" is no name of a repository',
                remedy="write it in lower-case words joined by /",
            )
        return Repository(self, name)

    # Requests

    def ask(self, request: RegistryRequest) -> RegistryAnswer:
        """Send a request and return its whole answer. It is repeated if that is safe."""
        with self.open(request, whole=True) as answer:
            return answer

    @contextmanager
    def open(self, request: RegistryRequest, *, whole: bool = False) -> Iterator[RegistryAnswer]:
        """Send a request and yield its answer, whose body is still to be read unless `whole` is set.

        Raises UnreachableError and RefusedError.
        """
        what, body = request.what, request.body
        # An upload continues at the address of a Location header, which may be absolute or relative.
        full = urljoin(self.base + "/", request.url)
        left, fresh = self.tries if request.again else 1, True
        while True:
            left -= 1
            try:
                raw, place = self._send(request, full)
                answer = RegistryAnswer(
                    raw.status, {key.lower(): value for key, value in raw.headers.items()}, raw
                )
                # Only the registry itself may ask for its login, and say where a token is had for it.
                if (
                    answer.status == 401
                    and fresh
                    and self._own(place)
                    and self._authenticate(answer, request.repository, request.actions)
                ):
                    fresh, left = False, left + 1
                    raw.close()
                    if hasattr(body, "seek"):
                        body.seek(0)
                    continue
                # The registry is overloaded or restarting. It may say for how long (Retry-After).
                if answer.status in _AGAIN and left > 0:
                    raw.close()
                    self._wait(left, answer.headers.get("retry-after", ""))
                    if hasattr(body, "seek"):
                        body.seek(0)
                    continue
                if answer.status not in request.expected or whole:
                    answer.data = raw.read(MANIFEST_LIMIT + 1)
            except HTTPError as problem:
                # Another try meets the same certificate.
                if _certificate(problem):
                    raise UnreachableError(
                        f"{self.host} shows a certificate that is not trusted here: {_why(problem)}",
                        remedy=f"put the certificate of its authority into /etc/docker/certs.d/{self.host}/ca.crt, or name it with --ca",
                    ) from None
                if left > 0:
                    self._wait(left, "")
                    if hasattr(body, "seek"):
                        body.seek(0)
                    continue
                raise UnreachableError(
                    f"{what}: {self.host} cannot be reached: {_why(problem)}",
                    remedy="run it again when the registry answers: what is there already is not sent again",
                ) from None
            try:
                if answer.status not in request.expected:
                    raise self._refusal(answer, what, place)
                yield answer
            finally:
                # A body that was not read to its end would be taken for the next answer, so that connection
                # is closed.
                raw.close() if not whole else raw.release_conn()
            return

    def _send(self, request: RegistryRequest, url: str) -> tuple[Any, str]:
        """Return the answer, redirects followed, and the address that gave it."""
        # A proxy that compresses a blob would change the bytes that have the digest.
        sent = {"User-Agent": "goldnode", "Accept-Encoding": "identity", **request.headers}
        # Registries redirect blobs to object storage, usually once.
        for _ in range(6):
            if self._own(url):
                sent |= self._authorization(request.repository, request.actions)
            else:  # the registry redirects to another host, which gets no login of ours
                sent.pop("Authorization", None)
            answer = self._pool.request(
                request.method,
                url,
                headers=sent,
                body=request.body,
                preload_content=False,
                decode_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=min(20, self.timeout), read=self.timeout),
            )
            target = answer.headers.get("Location")
            if (
                request.method not in ("GET", "HEAD")
                or answer.status not in (301, 302, 303, 307, 308)
                or not target
            ):
                return answer, url
            answer.close()
            url = urljoin(url, target)
            if urlsplit(url).scheme != "https" and not self.plain_http:
                raise ImageError(
                    f"{self.host} sends to an address without TLS, which is not followed"
                )
        raise ImageError(f"{self.host} sends from address to address without end")

    def _own(self, url: str) -> bool:
        asked, own = urlsplit(url), urlsplit(self.base)
        return (asked.scheme, asked.netloc) == (own.scheme, own.netloc)

    def _wait(self, left: int, said: str) -> None:
        seconds = self.pause * 2 ** max(0, self.tries - left - 1)
        if said.isdigit():
            seconds = min(float(said), PATIENCE)
        time.sleep(seconds)

    def _refusal(self, answer: RegistryAnswer, what: str, place: str) -> ImageError:
        reason = f"{answer.status} {_told(answer.data)}".rstrip()
        if self._own(place):
            who = self.host
        else:
            who = f"{urlsplit(place).netloc.rpartition('@')[2]}, where {self.host} sends,"
        if answer.status in _AGAIN:
            return UnreachableError(
                f"{what}: {who} answers {reason}", remedy="run it again when the registry is well"
            )
        remedy = {
            401: f"log in with `docker login {self.host}`",
            403: f"ask for the right to do this, or log in as another user with `docker login {self.host}`",
            405: "let the registry's configuration allow it",
            413: "let the registry, or the proxy before it, take larger requests",
        }.get(answer.status)
        if answer.status in (401, 403) and not self._own(place):
            remedy = (
                f"let {self.host} send to addresses that ask for no login, or give out blobs itself"
            )
        error = RefusedError(f"{what}: {who} answers {reason}", remedy=remedy)
        error.status = answer.status
        return error

    # Logins

    def _login(self, repository: str) -> Login | None:
        with self._lock:
            if repository not in self._found:
                self._found[repository] = self._logins(self.host, repository)
            own = self._found[repository]
        if own is not None and self.plain_http and not _loopback(self.host):
            raise ImageError(
                f"{self.host} is asked without TLS, and a login is not sent that way",
                remedy="give the registry a certificate, and leave out http://",
            )
        return own

    def _authorization(self, repository: str, actions: str) -> dict[str, str]:
        token = self._tokens.get(f"{repository}:{actions}")
        if token is not None:
            return {"Authorization": f"Bearer {token}"}
        # A registry without a token service asks for the password with each request.
        if self._basic and (own := self._login(repository)) is not None:
            return {"Authorization": _basic(own)}
        return {}

    def _authenticate(self, answer: RegistryAnswer, repository: str, actions: str) -> bool:
        """Get the authorization that a 401 asks for. Return whether to repeat the request."""
        kind, _, rest = answer.headers.get("www-authenticate", "").partition(" ")
        own = self._login(repository)
        if kind.lower() == "basic":
            if own is None or own.kind != "password":
                return False
            self._basic = True
            return True
        if kind.lower() != "bearer":
            return False
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = asked.get("realm", "")
        # The credential helper has a token for the registry itself, so that no token service is asked.
        if own is not None and own.kind == "token":
            self._tokens[f"{repository}:{actions}"] = own.secret
            return True
        if urlsplit(realm).scheme != "https" and not (
            self.plain_http and urlsplit(realm).scheme == "http"
        ):
            raise ImageError(
                f"{self.host} sends for a token to an address without TLS, where a login is not sent"
            )
        scope = asked.get("scope") or (f"repository:{repository}:{actions}" if repository else "")
        fields = {"service": asked.get("service", ""), **({"scope": scope} if scope else {})}
        headers = {"User-Agent": "goldnode"}
        # An identity token is an OAuth 2.0 refresh token, which is sent in the body of a POST.
        if own is not None and own.kind == "identity":
            form = {
                **fields,
                "grant_type": "refresh_token",
                "client_id": "goldnode",
                "refresh_token": own.secret,
            }
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            method, url, body = "POST", realm, urlencode(form).encode()
        else:
            if own is not None:
                headers["Authorization"] = _basic(own)
            method, url, body = (
                "GET",
                f"{realm}{'&' if '?' in realm else '?'}{urlencode(fields)}",
                b"",
            )
        raw = self._pool.request(
            method,
            url,
            headers=headers,
            body=body or None,
            redirect=False,
            retries=False,
            timeout=self.timeout,
        )
        if raw.status in (401, 403):
            return False
        try:
            said = json.loads(raw.data)
            token = said.get("token") or said["access_token"]
        except (ValueError, KeyError, AttributeError):
            raise UnreachableError(
                f"{self.host}'s token service answers {raw.status} without a token",
                remedy="run it again",
            ) from None
        self._tokens[f"{repository}:{actions}"] = token
        return True


@dataclass
class RegistryAnswer:
    """Status, headers by lower-case name, and the body: `data`, or to be read with `blocks`."""

    status: int
    headers: dict[str, str]
    raw: Any
    data: bytes = b""

    def blocks(self) -> Iterator[bytes]:
        """Yield the body in blocks, as it arrives."""
        while block := self.raw.read(BLOCK):
            yield block


class Repository:
    """One repository. Content is read and written by digest, and all digests are computed here."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry, self.name = registry, name

    def __str__(self) -> str:
        return f"{self.registry.host}/{self.name}"

    # Manifests and tags

    def manifest(self, reference: str) -> Manifest | None:
        """Return the manifest or index of a tag or digest; None if there is none. Raises ImageError if its
        bytes do not have the requested digest, or the one that the registry states.
        """
        answer = self._ask(
            RegistryRequest(
                "GET",
                f"manifests/{reference}",
                (200, 404),
                headers={"Accept": ACCEPT},
                what=f"{self}:{reference} cannot be read",
            )
        )
        if answer.status == 404:
            return None
        digest = digest_of(answer.data)
        if reference.startswith("sha256:"):
            stated = reference
        else:
            stated = answer.headers.get("docker-content-digest", digest)
        if stated.startswith("sha256:") and stated != digest:
            raise ImageError(
                f"{self}:{reference} is altered: the registry gives bytes with digest {digest} for {stated}",
                remedy="publish the image again, and look at the registry's storage",
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        kind = read_manifest(answer.data, f"{self}:{reference}").get("mediaType") or kind
        return Manifest(answer.data, kind, digest)

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag points to, or None without that tag. The manifest is read: the header
        alone is not trusted.
        """
        manifest = self.manifest(tag)
        return None if manifest is None else manifest.digest

    def put_manifest(self, reference: str, data: bytes, media_type: str) -> bool:
        """Write a manifest under a tag or its digest. Return whether the registry has processed its `subject`."""
        if not reference.startswith("sha256:") and not _TAG.fullmatch(reference):
            raise ImageError(
                f'"{reference}" is no tag',
                remedy='use at most 128 letters, digits, "_", "." and "-"',
            )
        answer = self._ask(
            RegistryRequest(
                "PUT",
                f"manifests/{reference}",
                (201,),
                headers={"Content-Type": media_type},
                body=data,
                push=True,
                what=f"{self}:{reference} cannot be written",
            )
        )
        # A registry with the Referrers API confirms the subject by this header (OCI distribution 1.1).
        return "oci-subject" in answer.headers

    def delete(self, digest: str) -> bool:
        """Delete a manifest, and with it every tag that points to it. Return False if there was none. Raises
        RefusedError.
        """
        what = f"{self}@{digest} cannot be deleted"
        return (
            self._ask(
                RegistryRequest("DELETE", f"manifests/{digest}", (202, 404), push=True, what=what)
            ).status
            == 202
        )

    def tags(self) -> list[str]:
        """Return all tags, sorted; empty without the repository."""
        names: list[str] = []
        url: str | None = f"/v2/{self.name}/tags/list?n=1000"
        while url is not None:
            answer = self._ask(
                RegistryRequest("GET", url, (200, 404), what=f"the tags of {self} cannot be read")
            )
            if answer.status == 404:
                break
            names += json.loads(answer.data).get("tags") or []
            url = group(
                re.match(r'\s*<([^>]*)>\s*;\s*rel="?next"?', answer.headers.get("link", ""))
            )
        return sorted(set(names))

    # Blobs

    def blob_size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes as the registry states it; None without that blob."""
        answer = self._ask(
            RegistryRequest(
                "HEAD",
                f"blobs/{digest}",
                (200, 404),
                what=f"blob {digest} of {self} cannot be checked",
            )
        )
        said = answer.headers.get("content-length", "")
        if answer.status != 200:
            return None
        return int(said) if said.isdigit() else -1

    def push_blob(self, descriptor: Descriptor, source: Path, mounts: Iterable[str] = ()) -> bool:
        """Upload a blob. Return False if the registry had it already. `mounts`: repositories of the registry
        that have it.

        The registry hashes the data on arrival (the digest is part of the last request). An interrupted
        transfer resumes behind the last byte that the registry has, and starts again if the registry no
        longer knows it.
        """
        size = self.blob_size(descriptor.digest)
        if size is not None:
            if size not in (-1, descriptor.size):
                raise ImageError(
                    f"blob {descriptor.digest} has {size} bytes in {self}, expected {descriptor.size}",
                    remedy="delete it from the registry's storage and publish again",
                )
            return False
        if (
            source.stat().st_size != descriptor.size
            or "sha256:" + sha256_of(source) != descriptor.digest
        ):
            raise ImageError(
                f"blob {descriptor.digest} in the store is altered",
                file=source,
                remedy="delete that file and build or pull again",
            )
        for other in mounts:
            if self._mount(descriptor, other):
                return True
        for turn in range(self.registry.tries):
            try:
                self._upload(descriptor, source)
            except _LostError as lost:
                if turn + 1 == self.registry.tries:
                    raise UnreachableError(
                        f"blob {descriptor.digest} cannot be sent to {self}: {lost}",
                        remedy="run it again when the registry answers: what is there already is not sent again",
                    ) from None
                time.sleep(self.registry.pause * 2**turn)
                continue
            return True
        return True

    def _mount(self, descriptor: Descriptor, other: str) -> bool:
        url = f"/v2/{self.name}/blobs/uploads/?{urlencode({'mount': descriptor.digest, 'from': other})}"
        try:
            answer = self._ask(
                RegistryRequest(
                    "POST",
                    url,
                    (201, 202),
                    push=True,
                    body=b"",
                    what=f"{self} cannot mount a blob of {other}",
                )
            )
        except RefusedError:
            return False
        # Only 201 is a mount.
        if answer.status == 202:  # it offers an upload instead
            self._cancel(answer)
            return False
        return True

    def _cancel(self, answer: RegistryAnswer) -> None:
        try:
            self._ask(
                RegistryRequest(
                    "DELETE",
                    self._location(answer),
                    tuple(range(200, 500)),
                    push=True,
                    what="an upload cannot be given up",
                )
            )
        except ImageError:
            return  # the registry forgets it by itself

    def _location(self, answer: RegistryAnswer) -> str:
        location = answer.headers.get("location")
        if not location:
            raise UnreachableError(
                f"{self} does not say where to send a blob",
                remedy="look at the registry, and at the proxy before it",
            )
        return urljoin(self.registry.base + "/", location)

    def _begin(self) -> RegistryAnswer:
        """Begin an upload. The answer has the location of the blob's bytes."""
        return self._ask(
            RegistryRequest(
                "POST",
                "blobs/uploads/",
                (202,),
                push=True,
                body=b"",
                what=f"{self} takes no upload",
            )
        )

    def _upload(self, descriptor: Descriptor, source: Path) -> None:
        answer = self._begin()
        location = self._location(answer)
        # Some registries refuse chunks below a size, such as the 5 MiB of S3.
        least = answer.headers.get("oci-chunk-min-length", "")
        chunk = max(self.registry.chunk, int(least) if least.isdigit() else 0)
        with source.open("rb") as file:
            # A blob of one chunk needs no PATCH: POST, then PUT with the content.
            if descriptor.size <= chunk:
                self._finish(location, descriptor, file.read())
                self.registry.moved(descriptor.size)
                return
            done, idle = 0, 0
            while done < descriptor.size:
                file.seek(done)
                data = file.read(chunk)
                headers = {
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{done}-{done + len(data) - 1}",
                }
                try:
                    answer = self._ask(
                        RegistryRequest(
                            "PATCH",
                            location,
                            (202, 201, 204),
                            headers=headers,
                            body=data,
                            push=True,
                            what="a part cannot be sent",
                            again=False,
                        )
                    )
                except RefusedError as refused:
                    if done == 0 and refused.status in (
                        400,
                        404,
                        405,
                        415,
                        501,
                    ):  # it takes a blob only whole
                        self._whole(descriptor, source)
                        return
                    if refused.status not in (400, 404, 416):
                        raise
                    had, location = self._resumed(location, str(refused))
                except UnreachableError as cut:
                    time.sleep(self.registry.pause * 2**idle)
                    had, location = self._resumed(location, cut.message)
                else:
                    location, idle = self._location(answer), 0
                    had = _end(answer) or done + len(data)
                if had <= done:
                    idle += 1
                    # A registry that has less than it confirmed before has lost the upload.
                    if idle >= self.registry.tries or had < done:
                        raise _LostError(
                            f"it has {had} of {descriptor.size} bytes and takes no more"
                        )
                self.registry.moved(had - done)
                done = had
        self._finish(location, descriptor, b"")

    def _resumed(self, location: str, why: str) -> tuple[int, str]:
        """Return how much of an interrupted upload the registry has, and the address that continues it."""
        try:
            answer = self._ask(
                RegistryRequest(
                    "GET",
                    location,
                    (204, 202, 200),
                    push=True,
                    what="an upload cannot be taken up again",
                    again=False,
                )
            )
        except ImageError:
            raise _LostError(why) from None
        return _end(answer) or 0, self._location(answer)

    def _finish(self, location: str, descriptor: Descriptor, data: bytes) -> None:
        url = (
            f"{location}{'&' if '?' in location else '?'}{urlencode({'digest': descriptor.digest})}"
        )
        headers = {"Content-Type": "application/octet-stream"}
        what = f"blob {descriptor.digest} cannot be sent to {self}"
        try:
            self._ask(
                RegistryRequest(
                    "PUT",
                    url,
                    (201, 204),
                    headers=headers,
                    body=data,
                    push=True,
                    what=what,
                    again=False,
                )
            )
        except UnreachableError as cut:
            if self.blob_size(descriptor.digest) is None:  # the answer alone may have been lost
                raise _LostError(cut.message) from None
        except RefusedError as refused:
            if refused.status not in (400, 404, 416):
                raise
            raise _LostError(refused.message) from None

    def _whole(self, descriptor: Descriptor, source: Path) -> None:
        location = self._location(self._begin())
        url = (
            f"{location}{'&' if '?' in location else '?'}{urlencode({'digest': descriptor.digest})}"
        )
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(descriptor.size),
        }
        what = f"blob {descriptor.digest} cannot be sent to {self}"
        with source.open("rb") as file:
            put = RegistryRequest(
                "PUT",
                url,
                (201, 204),
                headers=headers,
                body=file,
                push=True,
                what=what,
                again=False,
            )
            self.registry.ask(replace(put, repository=self.name))
            self.registry.moved(descriptor.size)

    def read_blob(self, descriptor: Descriptor, limit: int = 256 << 20) -> bytes:
        """Return a blob, read into memory and verified. Raises ImageError if it is absent, cut or altered."""
        if descriptor.size > limit:
            raise ImageError(
                f"blob {descriptor.digest} of {self} has {descriptor.size} bytes, more than the {limit} that are read at once"
            )
        what = f"blob {descriptor.digest} of {self} cannot be read"
        with self._open(f"blobs/{descriptor.digest}", what) as answer:
            if answer.status == 404:
                raise _missing(self, descriptor)
            try:
                data = b"".join(answer.blocks())
            except HTTPError as problem:
                raise UnreachableError(
                    f"{what}: the connection broke: {_why(problem)}", remedy="run it again"
                ) from None
        if digest_of(data) != descriptor.digest:
            raise _altered(self, descriptor, digest_of(data), len(data))
        return data

    def check_blob(self, descriptor: Descriptor) -> None:
        """Read a blob and validate its digest, without storing it. Raises ImageError."""
        hasher, size = hashlib.sha256(), 0
        what = f"blob {descriptor.digest} of {self} cannot be read back"
        with self._open(f"blobs/{descriptor.digest}", what) as answer:
            if answer.status == 404:
                raise _missing(self, descriptor)
            try:
                for block in answer.blocks():
                    hasher.update(block)
                    size += len(block)
                    self.registry.moved(len(block))
            except HTTPError as problem:
                raise UnreachableError(
                    f"{what}: it ends after {size} of {descriptor.size} bytes: {_why(problem)}",
                    remedy="run it again; if it ends there again, delete it from the registry's storage",
                ) from None
        received = "sha256:" + hasher.hexdigest()
        if received != descriptor.digest:
            raise _altered(self, descriptor, received, size)

    @contextmanager
    def stream_blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        """Yield the blocks of a blob, without storing it; its digest is validated where they are read to their end.

        Raises ImageError if it is absent, cut or altered.
        """
        what = f"blob {descriptor.digest} of {self} cannot be read"
        with self._open(f"blobs/{descriptor.digest}", what) as answer:
            if answer.status == 404:
                raise _missing(self, descriptor)
            yield self._validated(descriptor, answer, what)

    def _validated(
        self, descriptor: Descriptor, answer: RegistryAnswer, what: str
    ) -> Iterator[bytes]:
        hasher, size = hashlib.sha256(), 0
        try:
            for block in answer.blocks():
                hasher.update(block)
                size += len(block)
                self.registry.moved(len(block))
                yield block
        except HTTPError as problem:
            raise UnreachableError(
                f"{what}: it ends after {size} of {descriptor.size} bytes: {_why(problem)}",
                remedy="run it again",
            ) from None
        received = "sha256:" + hasher.hexdigest()
        if received != descriptor.digest:
            raise _altered(self, descriptor, received, size)

    def pull_blob(self, descriptor: Descriptor, layout: Layout) -> bool:
        """Download a blob into a layout and validate every byte. Return False if it was there, unaltered.

        An interrupted transfer resumes. Raises ImageError for bytes that do not have the digest, and for a
        full disk.
        """
        path = layout.path(descriptor.digest)
        if path.is_file():
            if (
                path.stat().st_size == descriptor.size
                and "sha256:" + sha256_of(path) == descriptor.digest
            ):
                return False
            path.unlink()  # an altered copy is useless
        # One name for each digest: the next run continues it, and two processes wait for each other.
        partial = layout.root / "partial" / path.name
        try:
            partial.parent.mkdir(exist_ok=True)
            with partial.open("a+b") as out:
                fcntl.flock(out, fcntl.LOCK_EX)
                if path.is_file():  # another process was quicker
                    return False
                self._fill(descriptor, out)
                out.flush()
                os.fsync(out.fileno())
                partial.chmod(0o644)
                partial.replace(path)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ImageError(
                f"the disk of {layout.root} is full: blob {descriptor.digest} of {descriptor.size} bytes has no room",
                remedy="free space (`goldnode images gc`) and run it again: what came is kept",
            ) from None
        return True

    def _fill(self, descriptor: Descriptor, out: Any) -> None:
        left, began_anew = self.registry.tries, False
        while True:
            out.seek(0)
            hasher = hashlib.sha256()
            while block := out.read(BLOCK):
                hasher.update(block)
            have = out.tell()
            if have > descriptor.size:
                out.truncate(0)
                continue
            kept = have
            cut = ""
            if have < descriptor.size:
                try:
                    have, hasher = self._receive(descriptor, out, have, hasher)
                except HTTPError as problem:
                    cut = _why(problem)
                    have = out.tell()
            if have == descriptor.size and not cut:
                received = "sha256:" + hasher.hexdigest()
                if received == descriptor.digest:
                    return
                out.truncate(0)
                if kept and not began_anew:  # what an earlier run left may have been the fault
                    began_anew = True
                    continue
                raise _altered(self, descriptor, received, have)
            # A transfer that makes progress may be cut any number of times.
            left = self.registry.tries if have - kept >= BLOCK else left - 1
            if left <= 0:
                raise UnreachableError(
                    f"blob {descriptor.digest} of {self} ends after {have} of {descriptor.size} bytes{phrase(': {}', cut)}",
                    remedy="run it again: what came is kept",
                )
            time.sleep(self.registry.pause)

    def _receive(self, descriptor: Descriptor, out: Any, have: int, hasher: Any) -> tuple[int, Any]:
        what = f"blob {descriptor.digest} of {self} cannot be read"
        with self._open(
            f"blobs/{descriptor.digest}", what, {"Range": f"bytes={have}-"} if have else {}
        ) as answer:
            if answer.status == 404:
                raise _missing(self, descriptor)
            said = re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
            # The registry ignores the range and sends all of it, or another part.
            if answer.status != 206 or said is None or int(said.group(1)) != have:
                out.truncate(0)
                have, hasher = 0, hashlib.sha256()
                if answer.status != 200:
                    return have, hasher
            for block in answer.blocks():
                have += len(block)
                if have > descriptor.size:
                    out.truncate(0)
                    raise _altered(self, descriptor, "more bytes", have)
                out.write(block)
                hasher.update(block)
                self.registry.moved(len(block))
        return have, hasher

    # Referrers

    def referrers(self, digest: str) -> tuple[list[dict[str, Any]], bool]:
        """Return the referrers of a manifest as rows of an index, and whether the registry's Referrers API
        answered. Without that API it is the index under the tag `sha256-…` (the specification's fallback).
        """
        rows: list[dict[str, Any]] = []
        url: str | None = f"/v2/{self.name}/referrers/{digest}"
        while url is not None:
            answer = self._ask(
                RegistryRequest(
                    "GET",
                    url,
                    (200, 404),
                    headers={"Accept": INDEX},
                    what=f"the referrers of {self}@{digest} cannot be read",
                )
            )
            kind = answer.headers.get("content-type", "").partition(";")[0].strip()
            # A registry without the API answers 404, or treats the path as that of something else.
            if answer.status == 404 or kind != INDEX:
                return self._fallback(digest), False
            rows += json.loads(answer.data).get("manifests") or []
            url = group(
                re.match(r'\s*<([^>]*)>\s*;\s*rel="?next"?', answer.headers.get("link", ""))
            )
        return rows, True

    def _fallback(self, digest: str) -> list[dict[str, Any]]:
        index = self.manifest(referrers_tag(digest))
        if index is None:
            return []
        rows = index.document.get("manifests")
        if index.media_type != INDEX or not isinstance(rows, list):
            raise ImageError(
                f"{self}:{referrers_tag(digest)} is no index of referrers",
                remedy="delete that tag, and publish again",
            )
        return rows

    def refer(self, digest: str, rows: Sequence[Mapping[str, Any]], *, minded: bool) -> None:
        """Ensure that `rows` are among the referrers of a manifest, and read that back.

        `minded`: the registry confirmed the subject of each (put_manifest). Otherwise the index is read,
        completed, written, and read again, because two writers may remove each other's rows; missing rows are
        added again.
        """
        wanted = {row["digest"]: dict(row) for row in rows}
        for turn in range(self.registry.tries):
            have = self.referrers(digest)[0] if minded else self._fallback(digest)
            missing = set(wanted) - {row.get("digest") for row in have}
            if not missing:
                return
            if minded:
                time.sleep(self.registry.pause * (turn + 1))  # some registries index a little later
                continue
            merged = [*have, *(wanted[one] for one in sorted(missing))]
            # Two writers with equal rows write equal bytes.
            merged.sort(key=lambda row: str(row.get("digest")))
            self.put_manifest(
                referrers_tag(digest),
                canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": merged}),
                INDEX,
            )
        have = self.referrers(digest)[0]
        if missing := set(wanted) - {row.get("digest") for row in have}:
            raise ImageError(
                f"{len(missing)} of {len(wanted)} documents about {self}@{digest} are not listed as its referrers",
                remedy="publish again when no other process publishes this image",
            )

    # Plumbing

    def _ask(self, request: RegistryRequest) -> RegistryAnswer:
        path = request.url
        url = (
            path if path.startswith(("/", "http")) else f"/v2/{self.name}/{quote(path, safe='/:@')}"
        )
        answer = self.registry.ask(replace(request, url=url, repository=self.name))
        if len(answer.data) > MANIFEST_LIMIT:
            raise ImageError(f"{request.what}: the answer is larger than {MANIFEST_LIMIT} bytes")
        return answer

    @contextmanager
    def _open(
        self, path: str, what: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[RegistryAnswer]:
        request = RegistryRequest(
            "GET",
            f"/v2/{self.name}/{path}",
            (200, 206, 404, 416),
            what,
            self.name,
            headers=headers or {},
        )
        with self.registry.open(request) as answer:
            yield answer


class _LostError(Exception):
    """An upload that the registry does not continue; the blob is sent again."""


def artifact_manifest(
    artifact_type: str, blobs: Sequence[Descriptor], annotations: Mapping[str, str]
) -> bytes:
    """Return the manifest of an artefact without a subject: documents under a tag of their own."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact_type,
            "config": Descriptor(EMPTY, digest_of(b"{}"), 2).document(),
            "layers": [blob.document() for blob in blobs],
            "annotations": dict(annotations),
        }
    )


def _context(host: str, ca: Path | None) -> ssl.SSLContext:
    """Trust of the system (and $SSL_CERT_FILE), what docker's certs.d has for the host, and `ca`; a client certificate where there is one."""
    # Same places as docker: a registry that docker reaches is reached here too.
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(cafile=str(ca))
        except (OSError, ssl.SSLError) as problem:
            raise ImageError(
                f"this is no certificate: {problem}",
                file=ca,
                remedy="name a PEM file with the authority's certificate",
            ) from None
    for base in DOCKER_CERTS:
        place = Path(base).expanduser() / host
        for file in sorted(place.glob("*.crt")):
            try:
                context.load_verify_locations(cafile=str(file))
            except (OSError, ssl.SSLError) as problem:
                raise ImageError(
                    f"this is no certificate: {problem}",
                    file=file,
                    remedy="fix or remove it; docker reads it too",
                ) from None
        for file in sorted(place.glob("*.cert")):
            key = file.with_suffix(".key")
            if not key.is_file():
                raise ImageError(
                    "the key of this client certificate is not beside it",
                    file=file,
                    remedy=f"put it into {key.name}",
                )
            context.load_cert_chain(str(file), str(key))
    return context


def _basic(known: Login) -> str:
    return "Basic " + base64.b64encode(f"{known.user}:{known.secret}".encode()).decode()


def _loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _end(answer: RegistryAnswer) -> int | None:
    """Return how many bytes of an upload the registry has; None if it does not state that."""
    said = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("range", ""))
    if said is None:
        return None
    # An upload without data is reported as 0-0, like one of a single byte: no chunk is that small.
    return int(said.group(1)) + 1 if said.group(1) != "0" else 0


def _told(data: bytes) -> str:
    """Return a registry's error message in one short line."""
    try:
        rows = json.loads(data)["errors"]
        text = "; ".join(f"{row.get('code', '')} {row.get('message', '')}".strip() for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = data[:200].decode("utf-8", "replace")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>|[^\x20-\x7e]", " ", text)).strip()[:200]


def _certificate(problem: BaseException) -> bool:
    text = str(problem).lower()
    return isinstance(getattr(problem, "reason", problem), SSLError | ssl.SSLError) and (
        "certificate" in text or "hostname" in text
    )


def _why(problem: BaseException) -> str:
    """Return the innermost reason on one line, without an address, which may be confidential."""
    inner = getattr(problem, "reason", None) or problem
    text = re.sub(
        r"^<[^>]*>:\s*|HTTPS?Connection(?:Pool)?\([^)]*\):\s*", "", str(inner)
    ).splitlines()[0]
    return re.sub(r"\w+://\S+", "…", text)


def _missing(repository: Repository, descriptor: Descriptor) -> ImageError:
    return ImageError(
        f"blob {descriptor.digest} is not in {repository}", remedy="publish the image again"
    )


def _altered(
    repository: Repository, descriptor: Descriptor, received: str, size: int
) -> ImageError:
    return ImageError(
        f"blob {descriptor.digest} of {repository} is altered: expected {descriptor.size} bytes with that digest, got {size} with {received}",
        remedy="delete it from the registry's storage and publish the image again",
    )
