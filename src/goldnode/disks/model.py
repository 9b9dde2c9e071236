"""Model of a built disk image: the content of `disk.json` and the location of its files.

A build is a directory `STORE/built/CLASS/BUILDID`. The build writes its manifest last and then renames the
directory into place. A directory with a manifest is therefore a complete build.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from goldnode.core.errors import DiskError, GoldnodeError, nearest
from goldnode.node.ground.optional import optional

SCHEMA = 1
MANIFEST = "disk.json"
# Data that varies between two builds of the same disk: duration of each stage, date.
BUILD_LOG = "build-log.json"
SUMS = "SHA256SUMS"
VERIFIED = "verified.json"  # boot record, written by `goldnode disks verify`
STORE = "GOLDNODE_DISKS"  # environment variable: directory of disk images

# Format -> suffix of the disk's name. `raw` never leaves the store; a publication contains `raw.zst` instead.
FORMATS: Mapping[str, str] = {
    "raw": ".raw",
    "raw.zst": ".raw.zst",
    "qcow2": ".qcow2",
    "tar": ".root.tar.zst",
    "vmlinuz": ".vmlinuz",
    "initrd": ".initrd.img",
    "vhd": ".vhd",
    "vmdk": ".vmdk",
    "gce": ".gce.tar.gz",
    "squashfs": ".squashfs",
    "oci": ".oci.tar",
    "containerdisk": ".containerdisk.tar",
}
DEFAULT_FORMATS = ("raw", "qcow2")

Loader = Literal["systemd-boot", "grub"]
Layout = Literal["ab", "single"]
Outcome = Literal["passed", "failed", "waived"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Partition:
    """One partition of a disk.

    `number` counts from 1. `name` is the PARTLABEL; `type` and `uuid` are GUIDs in lower case. `start` and
    `size` are in bytes. `filesystem` is `vfat` or `ext4`. `filesystem_uuid` is formatted as blkid prints it
    (`XXXX-XXXX` for vfat).
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
class DiskSystem:
    """Operating system of an image.

    `id` and `version` are those of /etc/os-release (debian, 12). `architecture` is dpkg's name for it.
    """

    id: str
    version: str
    codename: str
    architecture: str


@dataclass(frozen=True)
class DiskDriver:
    """GPU driver of an image: `module` is the name modprobe takes (nvidia-current), `version` the driver
    version (535.309.01).
    """

    module: str
    version: str


@dataclass(frozen=True)
class Raw:
    """The raw disk: `size` is the file size, `allocated` the part that is not holes. Both in bytes."""

    size: int
    sha256: str
    allocated: int


@dataclass(frozen=True)
class DiskFile:
    """One file of a build, stored next to the manifest.

    `format` is a key of `FORMATS`, `size` is in bytes.
    """

    file: str
    format: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DiskPackage:
    """One installed Debian package; `sha256` is the digest of its .deb file."""

    name: str
    version: str
    architecture: str
    sha256: str


@dataclass(frozen=True)
class PendingWork:
    """Work that an image cannot contain. The first boot does it, or finds it missing.

    `id` names the resource, `reason` explains why it has to wait.
    """

    id: str
    reason: str


@dataclass(frozen=True)
class Hygiene:
    """Result of one check of the root filesystem.

    `detail` is one sentence: the findings of a failed check, the findings and reasons of a waived one, or the
    rule that a passed one verifies.
    """

    check: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class BuiltDisk:
    """One built disk image. `directory` is its location and not part of the manifest.

    Digests are `sha256:…`; the `sha256` field of a file is plain hex. `kernel` is the kernel release
    (6.1.0-53-cloud-amd64). `epoch` (seconds) is the date of every file that the build created.
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
    os: DiskSystem
    kernel: str
    driver: DiskDriver | None
    modules: tuple[str, ...]
    loader: Loader
    layout: Layout
    epoch: int
    partitions: tuple[Partition, ...]
    raw: Raw
    files: tuple[DiskFile, ...]
    packages: tuple[DiskPackage, ...]
    pending: tuple[PendingWork, ...]
    hygiene: tuple[Hygiene, ...]
    tools: Mapping[str, str] = field(default_factory=dict)
    listen: tuple[str, ...] = ()  # ports beside ssh's: 9100/tcp

    @classmethod
    def load(cls, directory: Path) -> BuiltDisk:
        """Read the build in `directory`.

        Raises DiskError if it has no manifest, or one of an unsupported schema.
        """
        file = directory / MANIFEST
        remedy = "run `goldnode disks build` again"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as problem:
            if directory.parent.is_dir():
                known = sorted(path.parent.name for path in directory.parent.glob(f"*/{MANIFEST}"))
            else:
                known = []
            raise DiskError(
                f"this is no built disk image: it has no {MANIFEST}",
                file=directory,
                remedy=nearest(directory.name, known) or "run `goldnode disks build`",
            ) from problem
        except (OSError, ValueError) as problem:
            raise DiskError(
                f"the manifest cannot be read: {problem}", file=file, remedy=remedy
            ) from problem
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
                os=_row(DiskSystem, data["os"]),
                kernel=str(data["kernel"]["release"]),
                driver=None if data["driver"] is None else _row(DiskDriver, data["driver"]),
                modules=tuple(data["modules"]),
                loader=data["loader"],
                layout=data["layout"],
                epoch=int(data["epoch"]),
                partitions=tuple(_row(Partition, item) for item in data["partitions"]),
                raw=_row(Raw, data["raw"]),
                files=tuple(_row(DiskFile, item) for item in data["files"]),
                packages=tuple(_row(DiskPackage, item) for item in data["packages"]),
                pending=tuple(_row(PendingWork, item) for item in data["pending"]),
                hygiene=tuple(_row(Hygiene, item) for item in data["hygiene"]),
                tools=dict(data["tools"]),
                listen=tuple(data.get("listen", ())),  # not in manifests of 0.2.0
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
        """Return the file of a format (a key of `FORMATS`).

        Raises DiskError if the build has no such file.
        """
        if form not in FORMATS:
            raise DiskError(
                f'there is no format "{form}" of a disk image', remedy=nearest(form, FORMATS)
            )
        for item in self.files:
            if item.format == form and (path := self.directory / item.file).is_file():
                return path
        raise DiskError(
            f"{self.name} has no file of format {form}",
            file=self.directory,
            remedy=f"run `goldnode disks build {self.class_} --image-format {form}`",
        )

    def manifest(self) -> dict[str, Any]:
        """Return the content of `disk.json` as JSON-compatible data."""
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
            "driver": optional(asdict, self.driver),
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
            "listen": list(self.listen),
        }

    def text(self) -> str:
        """Return the manifest as text: canonical JSON, so that equal builds have equal manifests."""
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
    """Return the directory of disk images: `named`, otherwise $GOLDNODE_DISKS, otherwise .goldnode/disks."""
    return named or Path(os.environ.get(STORE) or ".goldnode/disks").expanduser()


_ID = re.compile(r"[0-9a-f]{12}")


def builds(store: Path, name: str | None = None) -> list[BuiltDisk]:
    """Return the complete builds in `store`, newest first: those of class `name`, or all without it."""
    place = store / "built"
    disks = [
        file.parent
        for file in place.glob(f"{name or '*'}/*/{MANIFEST}")
        if _ID.fullmatch(file.parent.name)
    ]
    disks.sort(key=lambda path: ((path / MANIFEST).stat().st_mtime, path.name), reverse=True)
    return [BuiltDisk.load(path) for path in disks]


def find(text: str, store: Path) -> BuiltDisk:
    """Return the build that `text` refers to: a directory, a name, a build id, or a class (its newest build).

    Raises DiskError if the store has no such build.
    """
    path = Path(text)
    if (path / MANIFEST).is_file() or os.sep in text:
        return BuiltDisk.load(path)
    known = builds(store)
    for disk in known:
        if text in (disk.name, disk.build_id, disk.class_):
            return disk
    names = {item for disk in known for item in (disk.name, disk.class_)}
    classes = _classes()
    remedy = (
        f"run `goldnode disks build {text}`" if text in classes else nearest(text, names | classes)
    )
    raise DiskError(f'there is no built disk image "{text}" in {store}', remedy=remedy)


def _classes() -> set[str]:
    """Return the classes that a disk can be built from.

    Return none if the catalog has errors: other commands report those.
    """
    from goldnode.classdoc.load import load_catalog

    try:
        return set(load_catalog().classes)
    except GoldnodeError:
        return set()
