"""Reader of an image in a registry for a check: its configuration, and NVIDIA's forward-compatibility library in its layers.

A layer is compressed as a whole, so that it is read from its start and never stored. The bytes that are read are bounded: layers whose build
step names the package go first, then the smallest ones. Each layer that is read is validated by its digest.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from goldnode.core.errors import ImageError
from goldnode.inspect.cuda_compat import compat_drivers
from goldnode.oci.layout import Descriptor, clean, unpacked_layer
from goldnode.oci.registry import (
    INDEXES,
    Manifest,
    Registry,
    RegistryOptions,
    Repository,
    reached,
    registry_address,
)

HUB = "registry-1.docker.io"  # the registry of Docker Hub
BUDGET = 1 << 30  # compressed bytes of layers that are read of one image
_CONFIG_LIMIT = 8 << 20
_LIBRARY_LIMIT = 512 << 20  # bytes of a library; a libcuda has about 100 MB
_LIBRARY = re.compile(
    r"usr/local/cuda[^/]*/compat/(?:lib\.real/)?libcuda\.so\.(\d+\.\d+(?:\.\d+)?)"
)
_STATUS = re.compile(r"var/lib/dpkg/status(?:\.d/[^/]+)?")
_PACKAGE = re.compile(r"^Package: (cuda-compat-[\d-]+)\n(?:.+\n)*?Version: (\S+)$", re.MULTILINE)
_HINT = re.compile(r"cuda[-_]compat", re.IGNORECASE)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True)
class CompatLibrary:
    """A forward-compatibility library in an image: its version, and the driver branches in its note."""

    version: str
    drivers: tuple[int, ...] = ()


@dataclass(frozen=True)
class RemoteImage:
    """An image as a registry has it.

    `config` is its configuration. `library` is its forward-compatibility library. `unread` are the layers that were
    left out, with their compressed bytes: without a library, and with unread layers, it may have one.
    """

    digest: str
    config: bytes
    library: CompatLibrary | None
    packages: Mapping[str, str]
    read: int
    unread: Sequence[int]


@dataclass
class _LayerFindings:
    libraries: dict[str, CompatLibrary] = field(default_factory=dict)
    packages: dict[str, str] | None = None  # None: the layer has no list of packages
    removed: list[str] = field(default_factory=list)


def read_image(
    repository: Repository, reference: str, architecture: str = "amd64", budget: int = BUDGET
) -> RemoteImage:
    """Return the configuration of an image, and what its layers have of the package. Raises ImageError."""
    manifest = _of_architecture(repository, reference, architecture)
    document = manifest.document
    if "layers" not in document or "config" not in document:
        raise ImageError(f"{repository}@{manifest.digest} is no image", remedy="name an image")
    config = repository.read_blob(Descriptor.of(document["config"]), _CONFIG_LIMIT)
    layers = [Descriptor.of(row) for row in document["layers"]]
    findings: dict[int, _LayerFindings] = {}
    read = 0
    for number in _order(layers, config):
        if read + layers[number].size > budget:
            continue
        read += layers[number].size
        findings[number] = _layer(repository, layers[number])
    unread = [row.size for number, row in enumerate(layers) if number not in findings]
    library, packages = _overlaid(findings)
    return RemoteImage(
        manifest.digest, config, library=library, packages=packages, read=read, unread=unread
    )


def _of_architecture(repository: Repository, reference: str, architecture: str) -> Manifest:
    """Return the manifest of the image for `architecture`."""
    manifest = repository.manifest(reference)
    if manifest is None:
        raise ImageError(
            f"{repository} has no image {reference}", remedy="correct the name or the tag"
        )
    if manifest.media_type not in INDEXES:
        return manifest
    rows = manifest.document.get("manifests") or []
    fitting = [
        row["digest"]
        for row in rows
        if (row.get("platform") or {}).get("architecture") == architecture
        and (row.get("platform") or {}).get("os") == "linux"
    ]
    chosen = repository.manifest(fitting[0]) if fitting else None
    if chosen is None:
        names = sorted({str((row.get("platform") or {}).get("architecture")) for row in rows})
        raise ImageError(
            f"{repository}:{reference} has no image for {architecture}, only for {', '.join(names)}",
            remedy="name an image for this architecture",
        )
    return chosen


def _order(layers: Sequence[Descriptor], config: bytes) -> list[int]:
    """Return the numbers of the layers: those whose build step names the package, then the smallest first."""
    history = json.loads(config).get("history") or []
    steps = [str(row.get("created_by")) for row in history if not row.get("empty_layer")]
    hinted = [
        number
        for number in range(len(layers))
        if len(steps) == len(layers) and _HINT.search(steps[number])
    ]
    rest = sorted(set(range(len(layers))) - set(hinted), key=lambda number: layers[number].size)
    return [*hinted, *rest]


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file that is read once."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _layer(repository: Repository, descriptor: Descriptor) -> _LayerFindings:
    findings = _LayerFindings()
    with repository.stream_blob(descriptor) as blocks:
        raw: IO[bytes] = io.BufferedReader(_Blocks(blocks), 1 << 18)
        try:
            with (
                unpacked_layer(raw, descriptor.media_type) as plain,
                tarfile.open(fileobj=plain, mode="r|") as archive,
            ):
                for member in archive:
                    _member(archive, member, findings)
        except (tarfile.TarError, EOFError, OSError) as problem:
            raise ImageError(
                f"layer {descriptor.digest} of {repository} cannot be unpacked: {problem}",
                remedy="push the image again",
            ) from problem
        while raw.read(1 << 18):  # up to the end, where the digest is validated
            pass
    return findings


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, findings: _LayerFindings) -> None:
    """Add what a file of a layer contributes."""
    path = clean(member.name)
    folder, name = posixpath.split(path)
    if name.startswith(_WHITEOUT):
        if name != _OPAQUE:
            folder = f"{folder}/{name[len(_WHITEOUT) :]}"
        findings.removed.append(folder)
        return
    library = _LIBRARY.fullmatch(path)
    if library is not None and member.isfile() and member.size <= _LIBRARY_LIMIT:
        note = compat_drivers(_content(archive, member))
        findings.libraries[path] = CompatLibrary(library[1], note)
    elif _STATUS.fullmatch(path) and member.isfile() and member.size <= _CONFIG_LIMIT * 8:
        text = _content(archive, member).decode("utf-8", "replace")
        findings.packages = {**(findings.packages or {}), **dict(_PACKAGE.findall(text))}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    if stream is None:  # not a regular file
        return b""
    return stream.read()


def _overlaid(
    findings: Mapping[int, _LayerFindings],
) -> tuple[CompatLibrary | None, Mapping[str, str]]:
    """Return library and packages as a container has them: a later layer replaces and removes files."""
    libraries: dict[str, CompatLibrary] = {}
    packages: dict[str, str] = {}
    for number in sorted(findings):
        row = findings[number]
        for gone in row.removed:
            libraries = {
                path: item
                for path, item in libraries.items()
                if path != gone and not path.startswith(f"{gone}/")
            }
        libraries |= row.libraries
        if row.packages is not None:
            packages = row.packages
    newest = max(libraries.values(), key=lambda item: _numbers(item.version), default=None)
    return newest, packages


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def open_repository(
    registry: str | None, name: str, options: RegistryOptions | None = None
) -> Repository:
    """Return the repository of an image's name, as Docker takes it. Raises ImageError.

    A name without a registry is of Docker Hub, one without a folder is in its library.
    """
    if registry in (None, "docker.io", "index.docker.io"):
        registry, name = HUB, name if "/" in name else f"library/{name}"
    place = reached(registry_address(str(registry)))
    given = replace(options or RegistryOptions(), plain_http=place.plain_http)
    return Registry(place.host, given).repository(name)
