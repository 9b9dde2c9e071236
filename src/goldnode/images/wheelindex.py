"""Access to the package indexes that pip is configured with, for wheels of known name and version.

No resolution is needed for them, and pip's own dry run downloads every wheel before it prints its
URL: gigabytes for a CUDA release. The index format is that of PEP 503 and PEP 691. pip's
configuration and environment select the indexes: `index-url`, `extra-index-url`, `find-links`,
`no-index`, `cert`. Logins are those that pip sends.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from urllib3.exceptions import HTTPError

from goldnode.core.errors import ImageError
from goldnode.core.files import sha256_of
from goldnode.core.logins import masked
from goldnode.images.matrix import MatrixSystem
from goldnode.images.pip_login import pip_login
from goldnode.lock.transport import Transport
from goldnode.node.ground.optional import group
from goldnode.oci.model import MACHINES

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True)
class WheelFile:
    """One wheel of an index.

    `sha256` and `size` are None if the index does not state them. `metadata`: the index serves the
    wheel's metadata as a separate file.
    """

    file: str
    url: str
    sha256: str | None
    size: int | None
    metadata: bool = False


@cache
def pip_settings() -> dict[str, str]:
    """Return pip's options from its configuration and environment, by name.

    The environment overrides `install`, which overrides `global`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings: dict[str, str] = {}
    # In ascending priority: a later section overrides an earlier one.
    for section in ("global", "install", ":env:"):
        for key, value in re.findall(rf"^{re.escape(section)}\.(\S+?)='(.*)'$", done.stdout, re.M):
            settings[key] = value.replace("\\n", " ")
    return settings


class PipTransport(Transport):
    """apt's transport, with pip's certificates unless apt's configuration names its own.

    The addresses `only` (None: all) are requested with the login that pip would send, which may be
    that of one of `indexes`. Debian archives never get it.
    """

    def __init__(
        self, indexes: Sequence[str] = (), *, only: Set[str] | None = None, connections: int = 4
    ) -> None:
        super().__init__(connections=connections)
        self._indexes, self._only = indexes, only
        certificates = pip_settings().get("cert")
        if certificates:
            self._settings.setdefault("acquire::https::cainfo", certificates)

    def login(self, url: str) -> tuple[str, str] | None:
        login = pip_login(url, self._indexes) if self._only is None or url in self._only else None
        return login or super().login(url)


class Index:
    """Client of the indexes that pip is configured with, or of `url` alone.

    Caches pages. Safe for several threads.
    """

    def __init__(self, url: str | None = None, *, settings: dict[str, str] | None = None) -> None:
        said = pip_settings() if settings is None else settings
        if url is not None:
            self.indexes, self.links = [url], []
        else:
            first = said.get("index-url") or _default_index()
            self.indexes = (
                [] if said.get("no-index", "").lower() in ("1", "true", "yes", "on") else [first]
            )
            # --no-index disables the extra indexes too, but not find-links.
            self.indexes += said.get("extra-index-url", "").split() if self.indexes else []
            self.links = said.get("find-links", "").split()
        self.addresses = [address for address in (*self.indexes, *self.links) if "://" in address]
        self._transport = PipTransport(self.addresses)
        self._pages: dict[str, list[WheelFile]] = {}
        self._lock = threading.Lock()

    def files(self, project: str) -> list[WheelFile]:
        """Return all wheels of `project`, those of the first index first.

        Raises ImageError if an index cannot be queried.
        """
        name = canonicalize_name(project)
        with self._lock:
            # Not held during the request: other projects are queried meanwhile.
            if name in self._pages:
                return self._pages[name]
        files = [
            item for index in self.indexes for item in self._page(f"{index.rstrip('/')}/{name}/")
        ]
        # A page of find-links lists wheels of many projects.
        for place in self.links:
            files += [item for item in self._page(place) if _project(item.file) == name]
        with self._lock:
            self._pages[name] = files
        return files

    def wheel(self, project: str, version: str, system: MatrixSystem) -> WheelFile | None:
        """Return the wheel of this version that fits `system` best, in pip's order of tags; None
        without any.
        """
        # Reversed, so that the better rank wins for a tag that occurs twice.
        rank = {tag: number for number, tag in reversed(list(enumerate(tags(system))))}
        best: tuple[int, WheelFile] | None = None
        for item in self.files(project):
            try:
                _, release, _, fitting = parse_wheel_filename(item.file)
            except InvalidWheelFilename:
                continue
            ranks = [rank[tag] for tag in fitting if tag in rank]
            if release == Version(version) and ranks and (best is None or min(ranks) < best[0]):
                best = (min(ranks), item)
        return best[1] if best is not None else None

    def versions(self, project: str, system: MatrixSystem) -> list[str]:
        """Return the versions of `project` that have a wheel for `system`, newest first."""
        accepted, versions = set(tags(system)), set[Version]()
        for item in self.files(project):
            try:
                _, version, _, fitting = parse_wheel_filename(item.file)
            except InvalidWheelFilename:
                continue
            if not accepted.isdisjoint(fitting):
                versions.add(version)
        return [str(version) for version in sorted(versions, reverse=True)]

    def has_page(self, project: str) -> bool:
        """Return whether an index has a page of `project`, also one without wheels."""
        pages = (f"{index.rstrip('/')}/{canonicalize_name(project)}/" for index in self.indexes)
        return any(
            self._get(page, _ACCEPT) is not None
            for page in pages
            # A directory of wheels has no page for each project.
            if urlsplit(page).scheme != "file"
        )

    def requires(self, item: WheelFile) -> list[str]:
        """Return the Requires-Dist lines of a wheel; empty unless the index serves its metadata
        separately.
        """
        # PEP 658: the index states whether it serves the metadata as a file of its own.
        if not item.metadata:
            return []
        text = self._get(f"{item.url}.metadata", "*/*")
        if text is None:
            return []
        head = text[0].decode("utf-8", "replace").partition("\n\n")[0]
        return [
            line.partition(":")[2].strip()
            for line in head.splitlines()
            if line.startswith("Requires-Dist:")
        ]

    def size(self, item: WheelFile) -> int:
        """Return the size of a wheel in bytes, without downloading it."""
        if item.size is not None:
            return item.size
        if urlsplit(item.url).scheme == "file":
            return _path(item.url).stat().st_size
        try:
            # The response to a one-byte range states the total size in Content-Range.
            answer = self._transport.get(item.url, {"Range": "bytes=0-0"})
        except HTTPError as error:
            raise ImageError(
                f"the index cannot be asked for the size of {masked(item.url)}", remedy="run again"
            ) from error
        try:
            key = "Content-Range" if answer.status == 206 else "Content-Length"
            total = answer.headers.get(key, "").rpartition("/")[2]
            if answer.status not in (200, 206) or not total.isdigit():
                raise _refused(
                    f"the index does not give the size of {masked(item.url)}", answer.status
                )
            return int(total)
        finally:
            answer.close()

    def part(self, item: WheelFile, start: int, end: int) -> bytes:
        """Return the bytes of a wheel from `start` up to `end`. Raises ImageError if the index serves no ranges."""
        if urlsplit(item.url).scheme == "file":
            with _path(item.url).open("rb") as opened:
                opened.seek(start)
                return opened.read(end - start)
        answer = self._transport.get(item.url, {"Range": f"bytes={start}-{end - 1}"})
        try:
            if answer.status != 206:
                raise _refused(
                    f"the index does not serve a part of {masked(item.url)}", answer.status
                )
            return answer.read()
        finally:
            answer.close()

    def sha256(self, item: WheelFile) -> str:
        """Return the hash of a wheel, from the index or of a local file.

        Raises ImageError if the index states none.
        """
        if item.sha256 is not None:
            return item.sha256
        if urlsplit(item.url).scheme != "file":
            raise ImageError(
                f"the index gives no SHA-256 of {masked(item.url)}", remedy="use an index that does"
            )
        return sha256_of(_path(item.url))

    def _page(self, url: str) -> list[WheelFile]:
        if "://" not in url:
            url = Path(url).expanduser().absolute().as_uri()
        if urlsplit(url).scheme == "file":
            return _directory(url)
        page = self._get(url, _ACCEPT)
        if page is None:
            return []
        body, kind = page
        if kind.startswith("application/vnd.pypi.simple"):
            return list(files_of_json(json.loads(body), url))
        return list(files_of_html(body.decode(), url))

    def _get(self, url: str, accept: str) -> tuple[bytes, str] | None:
        """Return the content of `url` and its content type; None if the page does not exist."""
        try:
            answer = self._transport.get(url, {"Accept": accept})
            try:
                if answer.status in (404, 410):
                    return None
                if answer.status != 200:
                    raise _refused(f"the index does not give {masked(url)}", answer.status)
                return answer.read(), answer.headers.get("Content-Type", "")
            finally:
                answer.close()
        except HTTPError as error:
            raise ImageError(
                f"the index cannot be reached: {masked(url)}",
                remedy="check pip's configuration and the network",
            ) from error


def _refused(what: str, status: int) -> ImageError:
    """Return the error for a status that is no success."""
    remedy = "check pip's configuration and run again"
    if status in (401, 403):
        remedy = (
            "add the login to the address in pip's configuration, or to ~/.netrc (goldnode does not ask pip's keyring); "
            f"`{sys.executable} -m pip config list` shows the addresses"
        )
    return ImageError(f"{what}: status {status}", remedy=remedy)


@cache
def _default_index() -> str:
    """Return the index that pip uses without any configuration, as pip itself reports it."""
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise ImageError(
            "pip does not show which index it uses",
            remedy="name one in its configuration: pip config set global.index-url URL",
        )
    return done.stdout.strip()


def tags(system: MatrixSystem) -> Iterator[Tag]:
    """Yield the wheel tags that the Python of `system` accepts, best first."""
    python = tuple(int(part) for part in system.python.split("."))
    machines = platforms(system)
    yield from cpython_tags(python, platforms=machines)
    yield from compatible_tags(python, interpreter=f"cp{python[0]}{python[1]}", platforms=machines)


def platforms(system: MatrixSystem) -> list[str]:
    """Return the platform tags that `system` accepts, newest first."""
    machine = MACHINES[system.architectures[0]]
    newest = int(system.glibc.partition(".")[2])
    old = {17: "2014", 12: "2010", 5: "1"}  # glibc 2.x -> legacy manylinux alias (PEP 600)
    names = []
    for minor in range(newest, 4, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        if minor in old:
            names.append(f"manylinux{old[minor]}_{machine}")
    return [*names, f"linux_{machine}"]


def files_of_json(document: Any, url: str) -> Iterator[WheelFile]:
    """Yield the wheels of a project page in JSON (PEP 691)."""
    for item in document["files"]:
        if item["filename"].endswith(".whl"):
            # PEP 714 renamed the key; older indexes still use the others.
            apart = (
                item.get("core-metadata")
                or item.get("dist-info-metadata")
                or item.get("data-dist-info-metadata")
            )
            yield WheelFile(
                item["filename"],
                urljoin(url, item["url"]),
                item["hashes"].get("sha256"),
                item.get("size"),
                bool(apart),
            )


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))


def files_of_html(text: str, url: str) -> Iterator[WheelFile]:
    """Yield the wheels of a project page in HTML (PEP 503)."""
    parser = _Links()
    parser.feed(text)
    for link in parser.links:
        address, fragment = urldefrag(urljoin(url, link.get("href") or ""))
        file = unquote(urlsplit(address).path.rpartition("/")[2])
        if file.endswith(".whl"):
            said = re.search(r"(?:^|&)sha256=([0-9a-f]{64})", fragment)
            apart = link.get("data-core-metadata") or link.get("data-dist-info-metadata")
            yield WheelFile(
                file,
                address,
                group(said),
                None,
                bool(apart) and apart != "false",
            )


def _directory(url: str) -> list[WheelFile]:
    """Return the wheels of a directory: those that its index.html links to, otherwise the files in it."""
    place = _path(url)
    page = place / "index.html" if place.is_dir() else place
    if page.is_file():
        return list(files_of_html(page.read_text(encoding="utf-8"), page.as_uri()))
    if not place.is_dir():
        return []
    return [
        WheelFile(path.name, f"file://{quote(str(path))}", None, path.stat().st_size)
        for path in sorted(place.glob("*.whl"))
    ]


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _project(file: str) -> str:
    return canonicalize_name(file.partition("-")[0])


def pinned(requirements: Sequence[str]) -> dict[str, str]:
    """Return name -> version of requirements of the form NAME==VERSION."""
    return {
        canonicalize_name(name): version
        for name, _, version in (text.partition("==") for text in requirements)
    }
