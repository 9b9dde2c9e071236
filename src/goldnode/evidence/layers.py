"""Cached index of the files in an image: each layer is read once, and its index is cached by digest.

A layer never changes, so its index stays valid and is shared by all images with that layer. SBOM, size report
and image diff use these indexes and never read a layer again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import mmap
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from goldnode.core.elf import MAGIC, dynamic
from goldnode.evidence.licences import synopses
from goldnode.node.ground.optional import optional
from goldnode.oci.layout import OciImage, clean, follow, overlay, parents

# Part of the name of every cached index. Increase it when the content of an index changes.
_VERSION = 1
_BLOCK = 1 << 20  # bytes of one read
_KEPT_IN_MEMORY = 64 << 20  # bytes; a larger file is spooled to the disk
_TEXT_LIMIT = 32 << 20  # bytes of a file whose text is used; a larger one is only hashed

WHEELS = "usr/lib/goldnode/wheels/"
IMAGE = "usr/lib/goldnode/image.json"


@dataclass(frozen=True)
class FileEntry:
    """One path in a layer.

    `kind` is f (file), d (directory), l (symbolic link), h (hard link) or o (other). `size` is in bytes,
    hashes are in hex. A hard link has the content of the file it links to, and `link` names that file.
    """

    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    sha256: str = ""
    sha1: str = ""
    link: str = ""
    elf: bool = False
    soname: str = ""
    needed: tuple[str, ...] = ()
    layer: int = 0  # not cached: a layer's position differs from image to image

    def row(self) -> list[Any]:
        """Return the fields as a list, as stored in the cache."""
        fields = (
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.size,
            self.sha256,
            self.sha1,
            self.link,
            self.elf,
            self.soname,
        )
        return [*fields, list(self.needed)]


@dataclass(frozen=True)
class LayerIndex:
    """Paths of one layer, including whiteouts, and the few text files that evidence needs."""

    entries: dict[str, FileEntry]
    texts: dict[str, str]
    licences: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Files of an image after all layers are applied.

    `entries` are by path; `texts` and `licences` (of Debian copyright files) are by real path. `layer_bytes`
    is the size of all files of each layer, including those that a later layer replaces.
    """

    digest: str
    entries: dict[str, FileEntry]
    texts: dict[str, str]
    licences: dict[str, list[str]]
    layer_bytes: tuple[int, ...] = ()

    @cached_property
    def folders(self) -> set[str]:
        """Return the directories implied by the paths in them: a tar need not list its directories."""
        return parents(self.entries)

    def resolve(self, path: str) -> str | None:
        """Follow links and return the real path; None if it does not exist."""

        def link(here: str) -> str | None:
            entry = self.entries.get(here)
            if entry is None:
                return "" if here in self.folders else None
            return entry.link if entry.kind == "l" else ""

        return follow(path, link)

    def text(self, path: str) -> str | None:
        """Follow links and return the content of one of the indexed text files; None if there is no such
        text.
        """
        return optional(self.texts.get, self.resolve(path))

    def files(self) -> Iterator[tuple[str, FileEntry]]:
        """Return regular files and hard links, sorted by path."""
        for path in sorted(self.entries):
            if self.entries[path].kind in "fh":
                yield path, self.entries[path]


def snapshot(image: OciImage, cache: Path | None = None) -> Snapshot:
    """Read an image. `cache` is the directory for the indexes of layers."""
    layers, texts, licences = [], list[dict[str, str]](), list[dict[str, list[str]]]()
    for number in range(len(image.layers)):
        index = layer_index(image, number, cache)
        layers.append({path: replace(entry, layer=number) for path, entry in index.entries.items()})
        texts.append(index.texts)
        licences.append(index.licences)
    # Whiteouts applied: what a later layer removes is not part of the image's contents.
    entries = overlay(layers, lambda entry: entry.kind == "d")
    # Use the text of the layer the path comes from: a file replaced by one that is not indexed has no text.
    return Snapshot(
        image.digest,
        entries,
        {
            path: texts[entry.layer][path]
            for path, entry in entries.items()
            if path in texts[entry.layer]
        },
        {
            path: licences[entry.layer][path]
            for path, entry in entries.items()
            if path in licences[entry.layer]
        },
        tuple(sum(entry.size for entry in layer.values() if entry.kind == "f") for layer in layers),
    )


def layer_index(image: OciImage, number: int, cache: Path | None = None) -> LayerIndex:
    """Return the index of one layer, from the cache if a valid index is there."""
    digest = image.layers[number].digest

    def make() -> LayerIndex:
        with image.layer(number) as tar:
            return _read(tar)

    return kept_index(f"layer-{digest.removeprefix('sha256:')}", cache, make)


def kept_index(name: str, cache: Path | None, make: Callable[[], LayerIndex]) -> LayerIndex:
    """Return the result of `make`, cached in `cache` under `name` (`KIND-DIGEST`)."""
    kind, _, digest = name.partition("-")
    # The version of the format is in the name: an index of another version is not read.
    kept = None if cache is None else cache / f"{kind}-{_VERSION}-{digest}.json.gz"
    if kept is not None:
        try:
            return _load(json.loads(gzip.decompress(kept.read_bytes())))
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            pass  # absent, truncated or of another format: read the layer
    index = make()
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=".new-", delete=False) as file:
            # mtime=0 makes the compressed bytes reproducible. The rename lets concurrent readers see whole
            # files only.
            file.write(
                gzip.compress(json.dumps(_document(index), sort_keys=True).encode(), 1, mtime=0)
            )
        Path(file.name).replace(kept)
    return index


def _document(index: LayerIndex) -> dict[str, Any]:
    return {
        "entries": {path: entry.row() for path, entry in index.entries.items()},
        "texts": index.texts,
        "licences": index.licences,
    }


def _load(document: dict[str, Any]) -> LayerIndex:
    entries = {path: _entry(row) for path, row in document["entries"].items()}
    return LayerIndex(entries, dict(document["texts"]), dict(document["licences"]))


def _entry(row: list[Any]) -> FileEntry:
    kind, mode, uid, gid, size, sha256, sha1, link, elf, soname, needed = row
    return FileEntry(
        kind,
        mode=mode,
        uid=uid,
        gid=gid,
        size=size,
        sha256=sha256,
        sha1=sha1,
        link=link,
        elf=elf,
        soname=soname,
        needed=tuple(needed),
    )


def _read(tar: tarfile.TarFile) -> LayerIndex:
    entries: dict[str, FileEntry] = {}
    texts: dict[str, str] = {}
    licences: dict[str, list[str]] = {}
    hard: list[tuple[str, str]] = []
    for info in tar:
        path = clean(info.name)
        if not path:
            continue
        mode, uid, gid = info.mode & 0o7777, info.uid, info.gid
        if info.isdir():
            entries[path] = FileEntry("d", mode, uid, gid)
        elif info.issym():
            entries[path] = FileEntry("l", mode, uid, gid, link=info.linkname)
        elif info.islnk():
            hard.append((path, clean(info.linkname)))
        elif info.isreg():
            entry, data = read_file(tar.extractfile(info), info.size, path)
            entries[path] = replace(entry, mode=mode, uid=uid, gid=gid)
            keep_text(path, data, texts, licences)
        else:
            entries[path] = FileEntry("o", mode, uid, gid)
    # Hard links come last: the entry of their target must exist first.
    for path, target in hard:
        origin = entries.get(target)
        entries[path] = FileEntry("o") if origin is None else replace(origin, kind="h", link=target)
    return LayerIndex(entries, texts, licences)


def keep_text(
    path: str, data: bytes | None, texts: dict[str, str], licences: dict[str, list[str]]
) -> None:
    """Store the text returned by `read_file`. Of a copyright file, store only the licence lines."""
    if data is not None:
        text = data.decode("utf-8", "replace")
        if path.startswith("usr/share/doc/"):
            licences[path] = synopses(text)
        else:
            texts[path] = text


def read_file(
    stream: IO[bytes] | None, size: int, path: str, *, keep: bool = False
) -> tuple[FileEntry, bytes | None]:
    """Hash a file while streaming it.

    Return its content too if it is one of the indexed texts, or if `keep` is set.
    """
    # SPDX 2.3 requires a SHA1 of each file.
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    wanted = size <= _TEXT_LIMIT and (keep or _is_text(path))
    block = stream.read(_BLOCK) if stream is not None else b""
    is_elf = block[:4] == MAGIC
    kept: list[bytes] = []
    with tempfile.SpooledTemporaryFile(max_size=_KEPT_IN_MEMORY) as whole:
        while block:
            sha256.update(block)
            sha1.update(block)
            if is_elf:
                whole.write(block)
            if wanted:
                kept.append(block)
            block = stream.read(_BLOCK) if stream is not None else b""
        linked = None
        if is_elf:
            whole.seek(0)
            # Large libraries (hundreds of MB for CUDA) are mapped from a temporary file instead of held in
            # memory.
            if size <= _KEPT_IN_MEMORY:
                linked = dynamic(whole.read())
            else:
                whole.rollover()
                whole.flush()
                with mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    linked = dynamic(mapped)
    entry = FileEntry("f", size=size, sha256=sha256.hexdigest(), sha1=sha1.hexdigest(), elf=is_elf)
    if linked is not None:
        entry = replace(entry, soname=linked.soname, needed=linked.needed)
    return entry, b"".join(kept) if wanted else None


def _is_text(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if path in (IMAGE, "etc/os-release", "usr/lib/os-release", "var/lib/dpkg/status"):
        return True
    if folder.startswith("usr/share/doc/"):
        return name == "copyright"
    if folder.startswith("var/lib/dpkg/"):
        return folder.endswith("/status.d") or (
            folder == "var/lib/dpkg/info" and name.endswith(".list")
        )
    return folder.endswith(".dist-info") and name in ("METADATA", "RECORD")
