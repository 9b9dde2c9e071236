"""The lock of a container image: every package and wheel that it adds to its parent, with hashes.

An image is a function of its lock and its parent's lock. A lock contains no URLs: archives are ids
that a site resolves, and pip's own configuration finds wheels by name, version and hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from goldnode.core.errors import ImageError
from goldnode.core.site import named_directories, own_lock_places
from goldnode.images.matrix import MatrixRow
from goldnode.lock.locked_files import LockedDeb, LockedWheel
from goldnode.lock.model import (
    Digest,
    LockedArchive,
    LockModel,
    Sealed,
    digest_of,
    flow,
    listed,
    load_sealed,
    lock_name,
    write_atomically,
)
from goldnode.oci.model import AMD64, Architecture

LOCKS = "GOLDNODE_IMAGE_LOCKS"  # environment variable: lock directories searched before the matrix's own

_HEADER = "# Written by `goldnode images lock {image}`. Not to be edited: run it again.\n"


class _Parent(LockModel):
    """The lock of the parent image."""

    image: str
    lock: Digest


class ImageLock(Sealed):
    """The resolution of an image.

    `debs` and `wheels` are the packages that the image adds; `parent` is the lock of its parent.
    `tools` are the versions of the programs that determine the image's bytes. `resolved` is the day
    (UTC) of the files' dates.
    """

    image: str
    intent: Digest
    parent: _Parent | None
    vendor: str | None = None
    architecture: Architecture = AMD64
    tools: dict[str, str] = Field(default_factory=dict)
    archives: list[LockedArchive]
    debs: list[LockedDeb]
    wheels: list[LockedWheel]

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the whole lock."""
        # Locks of amd64 are older than their architecture.
        return digest_of(
            self.model_dump(exclude={"architecture"} if self.architecture == AMD64 else None)
        )

    @property
    def size(self) -> int:
        """Download size of all packages and wheels in bytes."""
        return sum(item.size for item in self.debs) + sum(item.size for item in self.wheels)


class _ImageLockFile(ImageLock):
    stated: Digest | None = Field(default=None, alias="digest")


class LockedBase(LockModel):
    """The base of a derived image: its reference and digest, and the digest of its lock."""

    ref: str
    digest: Digest
    lock: Digest


def wheel_rows(wheels: Iterable[LockedWheel]) -> list[dict[str, str]]:
    """Return wheels as an image's identity document lists them."""
    return [
        {"name": item.name, "version": item.version, "file": item.file, "sha256": item.sha256}
        for item in wheels
    ]


class DerivedLock(Sealed):
    """The resolution of a derived image: its base, and every package and wheel that it adds, with hashes."""

    image: str
    intent: Digest
    base: LockedBase
    archives: list[LockedArchive] = Field(default_factory=list)
    debs: list[LockedDeb] = Field(default_factory=list)
    wheels: list[LockedWheel]

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the whole lock."""
        # Locks without packages are older than these keys.
        return digest_of(self.model_dump(exclude=None if self.debs else {"archives", "debs"}))

    @property
    def tools(self) -> dict[str, str]:
        """Return no tool: the recipe has those that determine the bytes."""
        return {}

    @property
    def size(self) -> int:
        """Download size of all packages and wheels in bytes."""
        return sum(item.size for item in self.debs) + sum(item.size for item in self.wheels)


class _DerivedLockFile(DerivedLock):
    stated: Digest | None = Field(default=None, alias="digest")


def intent_digest(row: MatrixRow) -> str:
    """Return the digest of the requests of `row` to apt and pip."""
    return digest_of(
        {
            "system": row.system.model_dump(mode="json"),
            "debs": list(row.debs),
            "wheels": list(row.wheels),
            "layout": row.layout,
            "index": row.index,
            "vendor": row.vendor,
            "parent": row.image.parent,
            # Only if set: locks made before this key existed stay valid.
            **({"from_host": list(row.from_host)} if row.from_host else {}),
        }
    )


def lock_directories(row: MatrixRow, *, to_write: bool = False) -> list[Path]:
    """Return the directories to search for the lock of `row`, in order.

    These are the directories of $GOLDNODE_IMAGE_LOCKS, then `locks` next to the matrix. Raises
    SiteError if a directory of the variable does not exist, unless `to_write`.
    """
    return [*named_directories(LOCKS, to_write=to_write), *own_lock_places(row.locks, "containers")]


def lock_file(row: MatrixRow, *, to_write: bool = False) -> Path | None:
    """Return the file that `find_lock` reads; None if no lock exists.

    For `to_write` and errors see `lock_directories`.
    """
    return next(
        (
            path
            for place in lock_directories(row, to_write=to_write)
            if (path := place / lock_name(row.name)).is_file()
        ),
        None,
    )


def find_lock(row: MatrixRow) -> ImageLock:
    """Return the lock of `row`. Raises ImageError if it is missing or was made for another intent."""
    path = lock_file(row)
    if path is None:
        why = "" if row.exercised else " (it is declared, and was never built by this project)"
        raise row.error(
            f'image "{row.name}" has no lock{why}', remedy=f"run `goldnode images lock {row.name}`"
        )
    lock = load_lock(path)
    # A copied file would else lock another image than its name states.
    if lock.image != row.name:
        raise ImageError(
            f'this is the lock of "{lock.image}", not of "{row.name}"',
            file=path,
            remedy="rename the file",
        )
    # The matrix has changed since: the lock answers another question.
    if lock.intent != intent_digest(row):
        raise ImageError(
            f"this lock is stale: the matrix asks for something else since {lock.resolved}",
            file=path,
            remedy=f"run `goldnode images lock {row.name}`",
        )
    return lock


def load_lock(path: Path) -> ImageLock:
    """Read a lock file.

    Raises ImageError with file and line, also if the content does not match the digest that it
    states.
    """
    return load_sealed(path, ImageLock, _ImageLockFile, ImageError, "goldnode images lock")


def dump_lock(lock: ImageLock) -> str:
    """Return the text of a lock file: fixed order, one line per package."""
    lines = [
        _HEADER.format(image=lock.image) + f"lock: {lock.lock}",
        f"image: {lock.image}",
        f"digest: {lock.digest}",
        f"intent: {lock.intent}",
        f"resolved: {flow(lock.resolved)}",
        f"parent: {flow(lock.parent.model_dump() if lock.parent is not None else None)}",
        *([f"vendor: {flow(lock.vendor)}"] if lock.vendor is not None else []),
        *([f"architecture: {lock.architecture}"] if lock.architecture != AMD64 else []),
        f"tools: {flow(lock.tools)}",
    ]
    return "\n".join([*lines, *listed(lock, "archives", "debs", "wheels")]) + "\n"


def load_derived_lock(path: Path) -> DerivedLock:
    """Read the lock of a derived image. Raises ImageError with file and line."""
    return load_sealed(path, DerivedLock, _DerivedLockFile, ImageError, "goldnode images derive")


def dump_derived_lock(lock: DerivedLock) -> str:
    """Return the text of the lock of a derived image."""
    lines = [
        f"# Written by `goldnode images derive`. Not to be edited: run it again.\nlock: {lock.lock}",
        f"image: {lock.image}",
        f"digest: {lock.digest}",
        f"intent: {lock.intent}",
        f"resolved: {flow(lock.resolved)}",
        f"base: {flow(lock.base.model_dump())}",
    ]
    keys = ("archives", "debs", "wheels") if lock.debs else ("wheels",)
    return "\n".join([*lines, *listed(lock, *keys)]) + "\n"


def write_lock(lock: ImageLock, directory: Path) -> Path:
    """Write the lock into `directory` atomically, and return its file. Raises ImageError."""
    return write_atomically(directory / lock_name(lock.image), dump_lock(lock), ImageError)
