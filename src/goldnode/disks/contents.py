"""Content of a raw disk: packages and files of its root, kernel modules built by goldnode, and the EFI system
partition.

The root is read from its partition without mounting and without root privileges, the EFI system partition
with mtools. Results are cached by the disk's sha256, since a disk never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from goldnode.core.errors import DiskError
from goldnode.disks.model import MANIFEST, BuiltDisk, Partition
from goldnode.evidence.contents import Contents, describe
from goldnode.evidence.layers import (
    FileEntry,
    LayerIndex,
    Snapshot,
    keep_text,
    kept_index,
    read_file,
)
from goldnode.inspect.disk import read_partition
from goldnode.node.ground.json_lines import as_dict, as_text

CLASS = "etc/goldnode/class.json"
# depmod prefers modules in updates/. Those of goldnode and DKMS are installed there.
_MODULE = re.compile(
    r"usr/lib/modules/[^/]+/updates/(?P<how>[^/]+)/(?:.*/)?(?P<name>[^/]+)\.ko(?:\.[a-z]+)?"
)
_ORIGIN = re.compile(r"usr/share/doc/[^/]+-modules-[^/]+/goldnode\.json")


@dataclass(frozen=True)
class Module:
    """A kernel module that does not come from the distribution.

    `how` is goldnode (prebuilt) or dkms. `origin` is the key of its package, or None. `built` is the
    package's build record: kernel, driver, source trees, and the packages of the root it was built in.
    """

    name: str
    path: str
    entry: FileEntry
    how: str
    origin: str | None
    built: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EspFile:
    """A file of the EFI system partition.

    `origin` is the key of the package that installed a file of the same content in the root, or None.
    """

    path: str
    entry: FileEntry
    origin: str | None


@dataclass(frozen=True)
class DiskContents:
    """Content of a disk as its evidence describes it. `document` is the class document in its root."""

    disk: BuiltDisk
    root: Contents
    modules: tuple[Module, ...]
    esp: tuple[EspFile, ...]
    document: dict[str, Any]

    @property
    def backend(self) -> str:
        """Return the backend of the class, or an empty string if the disk does not state it."""
        return as_text(self.document.get("backend")) or ""


@dataclass(frozen=True)
class _Deb:
    """A package of the manifest in the form of a lock entry, as the evidence code reads it."""

    name: str
    version: str
    architecture: str
    sha256: str
    made: bool  # built by goldnode: the package of the driver's modules
    path: str = ""


@dataclass(frozen=True)
class _Lock:
    image: str
    digest: str
    debs: Sequence[Any]  # of _Deb
    wheels: Sequence[Any] = ()
    tools: Any = None


def digest_of(disk: BuiltDisk) -> str:
    """Return the digest that identifies a build: `sha256:…` of its manifest, which lists the hash of every
    file.

    Raises DiskError if the manifest cannot be read.
    """
    try:
        return "sha256:" + hashlib.sha256((disk.directory / MANIFEST).read_bytes()).hexdigest()
    except OSError as problem:
        raise DiskError(
            f"the manifest cannot be read: {problem.strerror}",
            file=disk.directory,
            remedy="build or pull it again",
        ) from problem


def read(disk: BuiltDisk, cache: Path | None = None) -> DiskContents:
    """Read a build's raw disk. `cache` is a directory for cached results. Raises DiskError and ImageError."""
    raw = disk.directory / f"{disk.name}.raw"
    root, esp = (
        root_of(disk),
        next((row for row in disk.partitions if row.filesystem == "vfat"), None),
    )
    if not raw.is_file():
        raise DiskError(
            f"{raw.name} is not beside its manifest",
            file=disk.directory,
            remedy="build it again, or `goldnode disks pull` it",
        )
    if raw.stat().st_size != disk.raw.size:
        raise DiskError(
            f"{raw.name} has {raw.stat().st_size} bytes, the manifest says {disk.raw.size}",
            file=raw,
            remedy="build or pull it again",
        )
    index = kept_index(f"root-{disk.raw.sha256}", cache, lambda: _root(raw, root))
    if esp is None:
        files = {}
    else:
        files = kept_index(f"esp-{disk.raw.sha256}", cache, lambda: _esp(raw, esp)).entries
    snapshot = Snapshot(digest_of(disk), index.entries, index.texts, index.licences)
    debs = [
        _Deb(row.name, row.version, row.architecture, row.sha256, row.name.startswith("goldnode-"))
        for row in disk.packages
    ]
    contents = describe(snapshot, _stated_by(disk), [_Lock(disk.class_, disk.disk_lock, debs)])
    return DiskContents(
        disk,
        contents,
        tuple(_modules(contents, disk)),
        tuple(_origins(files, contents)),
        _class(index),
    )


def root_of(disk: BuiltDisk) -> Partition:
    """Return the root partition that boots first. Raises DiskError if the disk lacks one."""
    partition = next((row for row in disk.partitions if row.filesystem == "ext4"), None)
    if partition is None:
        names = ", ".join(f"{row.name} ({row.filesystem})" for row in disk.partitions) or "none"
        raise DiskError(
            f"{disk.name} has no root of ext4 among its partitions: {names}",
            file=disk.directory,
            remedy="build it again",
        )
    return partition


def _root(raw: Path, partition: Partition) -> LayerIndex:
    entries: dict[str, FileEntry] = {}
    texts: dict[str, str] = {}
    licences: dict[str, list[str]] = {}
    seen: dict[int, str] = {}
    for row in read_partition(raw, partition.start, partition.size):
        if row.path == "lost+found":
            continue
        entry = FileEntry(row.kind, row.mode, row.uid, row.gid, link=row.link)
        if row.kind == "f":
            # Paths that share an inode are hard links to the first one.
            first = seen.setdefault(row.inode, row.path)
            if first != row.path:
                entries[row.path] = replace(entries[first], kind="h", link=first)
                continue
            own = row.path == CLASS or _ORIGIN.fullmatch(row.path) is not None
            linked, data = read_file(row.open(), row.size, row.path, keep=own)
            entry = replace(linked, mode=row.mode, uid=row.uid, gid=row.gid)
            if own and data is not None:
                texts[row.path] = data.decode("utf-8", "replace")
            else:
                keep_text(row.path, data, texts, licences)
        entries[row.path] = entry
    return LayerIndex(entries, texts, licences)


def _esp(raw: Path, partition: Partition) -> LayerIndex:
    image = f"{raw}@@{partition.start}"
    listed = _mtools("mdir", "-/", "-b", "-i", image, "::/").decode("utf-8", "replace")
    entries: dict[str, FileEntry] = {}
    for line in sorted(listed.splitlines()):
        path = line.removeprefix("::").strip("/")
        if not path or line.endswith("/"):
            continue
        data = _mtools("mtype", "-i", image, f"::/{path}")
        # SPDX requires SHA-1.
        sha1 = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        entries[path] = FileEntry(
            "f", size=len(data), sha256=hashlib.sha256(data).hexdigest(), sha1=sha1
        )
    return LayerIndex(entries, {})


def _mtools(*words: str) -> bytes:
    try:
        done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as problem:
        raise DiskError(
            f"{words[0]} is not on this machine", remedy="install it: apt-get install mtools"
        ) from problem
    if done.returncode:
        reported = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DiskError(
            f"the EFI system partition cannot be read: {reported[-1] if reported else words[0] + ' gives no reason'}",
            remedy="build the disk again",
        )
    return done.stdout


def _stated_by(disk: BuiltDisk) -> dict[str, Any]:
    driver = f"{disk.driver.module} {disk.driver.version}" if disk.driver is not None else ""
    facts = {
        "name": disk.name,
        "class": disk.class_,
        "build_id": disk.build_id,
        "kernel": disk.kernel,
        "driver": driver,
    }
    return facts | ({"simulated": "true"} if disk.simulated else {})


def _class(index: LayerIndex) -> dict[str, Any]:
    try:
        document = json.loads(index.texts.get(CLASS, "{}"))
    except ValueError:
        return {}
    return as_dict(document)


def _modules(contents: Contents, disk: BuiltDisk) -> list[Module]:
    modules = []
    for path, entry in contents.snapshot.files():
        match = _MODULE.fullmatch(path)
        if match is None or match["how"] == "modules.order":
            continue
        origin = contents.owners.get(path)
        text = "{}"
        if origin:
            text = contents.snapshot.texts.get(
                f"usr/share/doc/{origin.split(':')[1]}/goldnode.json", "{}"
            )
        try:
            built = json.loads(text)
        except ValueError:
            built = {}
        modules.append(
            Module(
                match["name"],
                path=path,
                entry=entry,
                how=match["how"],
                origin=origin,
                built=as_dict(built),
            )
        )
    return modules


def _origins(files: dict[str, FileEntry], contents: Contents) -> list[EspFile]:
    by_content: dict[str, str] = {}
    for path, owner in sorted(contents.owners.items()):
        entry = contents.snapshot.entries.get(path)
        if entry is not None and entry.size and entry.kind == "f":
            by_content.setdefault(entry.sha256, owner)
    return [
        EspFile(path, entry, by_content.get(entry.sha256)) for path, entry in sorted(files.items())
    ]
