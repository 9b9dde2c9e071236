"""A built disk image: what `disk.json` says of it, and where its files lie.

A build is a directory `STORE/built/CLASS/BUILDID`. Its manifest is written last, and the directory renamed into place, so that a directory
with a manifest is a whole build.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from goldnode.errors import DiskError, GoldnodeError, nearest

SCHEMA = 1
MANIFEST = "disk.json"
BUILD_LOG = "build-log.json"  # what differs from one build to the next: how long each stage took, and when
SUMS = "SHA256SUMS"
VERIFIED = "verified.json"  # written by `goldnode disks verify`: how the disk booted
STORE = "GOLDNODE_DISKS"  # environment: directory of disk images

# Format -> what follows the name of the disk. `raw` stays in the store; what is published of it is compressed.
FORMATS: Mapping[str, str] = {
    "raw": ".raw",
    "raw.zst": ".raw.zst",
    "qcow2": ".qcow2",
    "tar": ".root.tar.zst",
    "vmlinuz": ".vmlinuz",
    "initrd": ".initrd.img",
}
DEFAULT_FORMATS = ("raw", "qcow2")

Loader = Literal["systemd-boot", "grub"]
Layout = Literal["ab", "single"]
Outcome = Literal["passed", "failed", "waived"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Partition:
    """One partition. `number` counts from 1; `name` is its PARTLABEL, `type` and `uuid` are GUIDs in lower case; `start` and `size` in bytes.

    `filesystem` is `vfat` or `ext4`, `filesystem_uuid` as blkid prints it (of vfat `XXXX-XXXX`).
    """

    number: int
    name: str
    type: str
    uuid: str
    start: int
    size: int
    filesystem: str
    filesystem_uuid: str


@dataclass(frozen=True)
class System:
    """The operating system: `id` and `version` as /etc/os-release has them (debian, 12), `architecture` as dpkg names it."""

    id: str
    version: str
    codename: str
    architecture: str


@dataclass(frozen=True)
class Driver:
    """The GPU driver: `module` is the name that modprobe takes (nvidia-current), `version` its own (535.309.01)."""

    module: str
    version: str


@dataclass(frozen=True)
class Raw:
    """The raw disk: `size` and `allocated` (what of it is not a hole) in bytes."""

    size: int
    sha256: str
    allocated: int


@dataclass(frozen=True)
class DiskFile:
    """One file of the build, beside the manifest. `format` is a key of `FORMATS`, `size` in bytes."""

    file: str
    format: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """One installed Debian package; `sha256` is that of its .deb."""

    name: str
    version: str
    architecture: str
    sha256: str


@dataclass(frozen=True)
class Pending:
    """Work that an image cannot hold: it is done, or found missing, at the first boot. `id` is the resource, `reason` why it waits."""

    id: str
    reason: str


@dataclass(frozen=True)
class Hygiene:
    """One check of the root filesystem. `detail` is one sentence: what was found, or for `waived` why it may stand."""

    check: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class BuiltDisk:
    """One built disk image. `directory` is where it lies, and no part of the manifest.

    Digests are `sha256:…`; the `sha256` of a file is hex alone. `kernel` is the release (6.1.0-53-cloud-amd64); `epoch` (seconds) is the date
    of every file that the build made.
    """

    directory: Path
    name: str
    class_: str
    build_id: str
    simulated: bool
    class_digest: str
    stack: str
    stack_lock: str
    disk_lock: str
    os: System
    kernel: str
    driver: Driver | None
    modules: tuple[str, ...]
    loader: Loader
    layout: Layout
    epoch: int
    partitions: tuple[Partition, ...]
    raw: Raw
    files: tuple[DiskFile, ...]
    packages: tuple[Package, ...]
    pending: tuple[Pending, ...]
    hygiene: tuple[Hygiene, ...]
    tools: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path) -> BuiltDisk:
        """Read the build in `directory`. Raises DiskError where there is none, or one that this goldnode does not read."""
        file = directory / MANIFEST
        remedy = "run `goldnode disks build` again"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as problem:
            known = (
                sorted(path.parent.name for path in directory.parent.glob(f"*/{MANIFEST}"))
                if directory.parent.is_dir()
                else []
            )
            raise DiskError(
                f"this is no built disk image: it has no {MANIFEST}",
                file=directory,
                remedy=nearest(directory.name, known) or "run `goldnode disks build`",
            ) from problem
        except (OSError, ValueError) as problem:
            raise DiskError(f"the manifest cannot be read: {problem}", file=file, remedy=remedy) from problem
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise DiskError(
                f"this is no manifest of a disk image: field `schema` is missing, expected {SCHEMA}",
                file=file,
                remedy=remedy,
            )
        if data["schema"] != SCHEMA:
            raise DiskError(
                f"this manifest has schema {data['schema']}, and this goldnode reads schema {SCHEMA}",
                file=file,
                remedy="install the goldnode that wrote it, or a later one",
            )
        try:
            return cls(
                directory=directory,
                name=_text(data, "name"),
                class_=_text(data, "class"),
                build_id=_text(data, "build_id"),
                simulated=bool(data["simulated"]),
                class_digest=_text(data, "class_digest"),
                stack=_text(data, "stack"),
                stack_lock=_text(data, "stack_lock"),
                disk_lock=_text(data, "disk_lock"),
                os=_row(System, data["os"]),
                kernel=str(data["kernel"]["release"]),
                driver=None if data["driver"] is None else _row(Driver, data["driver"]),
                modules=tuple(data["modules"]),
                loader=data["loader"],
                layout=data["layout"],
                epoch=int(data["epoch"]),
                partitions=tuple(_row(Partition, item) for item in data["partitions"]),
                raw=_row(Raw, data["raw"]),
                files=tuple(_row(DiskFile, item) for item in data["files"]),
                packages=tuple(_row(Package, item) for item in data["packages"]),
                pending=tuple(_row(Pending, item) for item in data["pending"]),
                hygiene=tuple(_row(Hygiene, item) for item in data["hygiene"]),
                tools=dict(data["tools"]),
            )
        except KeyError as problem:
            raise DiskError(
                f"the manifest lacks field `{problem.args[0]}`", file=file, remedy=remedy
            ) from problem
        except (TypeError, ValueError) as problem:
            raise DiskError(
                f"the manifest is not what it has to be: {problem}", file=file, remedy=remedy
            ) from problem

    def path(self, form: str) -> Path:
        """Return the file of this format (a key of `FORMATS`). Raises DiskError where the build has none."""
        if form not in FORMATS:
            raise DiskError(f'there is no format "{form}" of a disk image', remedy=nearest(form, FORMATS))
        for item in self.files:
            if item.format == form and (path := self.directory / item.file).is_file():
                return path
        raise DiskError(
            f"{self.name} has no file of format {form}",
            file=self.directory,
            remedy=f"run `goldnode disks build {self.class_} --format {form}`",
        )

    def manifest(self) -> dict[str, Any]:
        """What `disk.json` holds, as plain data."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "class": self.class_,
            "build_id": self.build_id,
            "simulated": self.simulated,
            "class_digest": self.class_digest,
            "stack": self.stack,
            "stack_lock": self.stack_lock,
            "disk_lock": self.disk_lock,
            "os": asdict(self.os),
            "kernel": {"release": self.kernel},
            "driver": None if self.driver is None else asdict(self.driver),
            "modules": list(self.modules),
            "loader": self.loader,
            "layout": self.layout,
            "epoch": self.epoch,
            "partitions": [asdict(item) for item in self.partitions],
            "raw": asdict(self.raw),
            "files": [asdict(item) for item in self.files],
            "packages": [asdict(item) for item in self.packages],
            "pending": [asdict(item) for item in self.pending],
            "hygiene": [asdict(item) for item in self.hygiene],
            "tools": dict(self.tools),
        }

    def text(self) -> str:
        """The manifest as the text of its file: canonical JSON, so that equal builds have equal manifests."""
        return json.dumps(self.manifest(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _row(kind: type[Row], data: Any) -> Row:
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, got {data!r}")
    if missing := sorted(names - data.keys()):
        raise KeyError(missing[0])
    return kind(**{name: data[name] for name in names})


def _text(data: Mapping[str, Any], name: str) -> str:
    if not isinstance(data[name], str):
        raise TypeError(f"`{name}` is {data[name]!r}, expected text")
    return str(data[name])


def store_directory(named: Path | None = None) -> Path:
    """Return the directory of disk images: `named`, else $GOLDNODE_DISKS, else .goldnode/disks."""
    return named or Path(os.environ.get(STORE) or ".goldnode/disks").expanduser()


_ID = re.compile(r"[0-9a-f]{12}")


def builds(store: Path, name: str | None = None) -> list[BuiltDisk]:
    """Return the whole builds of class `name` (without it: of all) in `store`, the newest first."""
    place = store / "built"
    found = [
        file.parent for file in place.glob(f"{name or '*'}/*/{MANIFEST}") if _ID.fullmatch(file.parent.name)
    ]
    found.sort(key=lambda path: ((path / MANIFEST).stat().st_mtime, path.name), reverse=True)
    return [BuiltDisk.load(path) for path in found]


def find(text: str, store: Path) -> BuiltDisk:
    """Return the build that `text` names: a directory, a NAME, or a class (its newest build). Raises DiskError."""
    path = Path(text)
    if (path / MANIFEST).is_file() or os.sep in text:
        return BuiltDisk.load(path)
    known = builds(store)
    for disk in known:
        if text in (disk.name, disk.build_id, disk.class_):
            return disk
    names = {item for disk in known for item in (disk.name, disk.class_)}
    classes = _classes()
    remedy = f"run `goldnode disks build {text}`" if text in classes else nearest(text, names | classes)
    raise DiskError(f'there is no built disk image "{text}" in {store}', remedy=remedy)


def _classes() -> set[str]:
    """The classes that a disk can be built of; none where the catalog has a fault, which is another matter."""
    from goldnode.catalog.load import load_catalog

    try:
        return set(load_catalog().classes)
    except GoldnodeError:
        return set()
