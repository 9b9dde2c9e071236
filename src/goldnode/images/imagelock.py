"""The lock of a container image: every Debian package and every wheel it adds to its parent, each with its hash.

An image is a function of its lock and its parent's. A lock names no address: archives are ids that a site resolves, and wheels are found
through pip's own configuration by name, version and hash.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from goldnode import yamlsource
from goldnode.catalog.load import LOCK_SUFFIX
from goldnode.errors import ImageError
from goldnode.images.matrix import Row
from goldnode.lock.model import Digest, LockedArchive, Sha256, _flow, digest_of, write_whole

SCHEMA = 1
MADE = "goldnode"  # in place of an archive's id: this package is made, not fetched
LOCKS = "GOLDNODE_IMAGE_LOCKS"  # environment: directories searched for locks before the matrix's own

_HEADER = "# Written by `goldnode images lock {image}`. Not to be edited: run it again.\n"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LockedDeb(_Model):
    """One Debian package. `path` is relative to its archive, `size` in bytes, `why` the package that needs it.

    `provides` is given for one that goldnode makes itself (archive MADE, see `hostpackage`): all that its file is made of.
    """

    name: str
    version: str
    architecture: str
    sha256: Sha256
    size: int
    path: str
    archive: str
    why: str
    provides: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        # Locks without such a package keep their digests.
        plain: dict[str, object] = handler(self)
        provides = plain.pop("provides", ())
        return {**plain, "provides": [*self.provides]} if provides else plain

    @property
    def made(self) -> bool:
        """Whether goldnode makes it; no archive has it."""
        return self.archive == MADE

    @property
    def file(self) -> str:
        """The file's name, in the archive and in a pool."""
        return self.path.rpartition("/")[2]


class LockedWheel(_Model):
    """One wheel, by the name of its file; `size` in bytes, `why` the wheel that needs it."""

    name: str
    version: str
    file: Annotated[str, Field(pattern=r"^[^/]+\.whl$")]
    sha256: Sha256
    size: int
    why: str


class _Parent(_Model):
    """The lock of the image this one stands on."""

    image: str
    lock: Digest


class _Content(_Model):
    lock: Literal[1]
    image: str
    intent: Digest
    resolved: Annotated[str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, dt.date) else value)]
    parent: _Parent | None
    vendor: str | None = None
    tools: dict[str, str] = {}
    archives: list[LockedArchive]
    debs: list[LockedDeb]
    wheels: list[LockedWheel]


class _Written(_Content):
    digest: Digest | None = None


class ImageLock(_Content):
    """What an image resolved to. Its file carries `digest` as well, by which an edit by hand is seen.

    `debs` and `wheels` are what the image adds; `parent` is the lock of what it stands on. `tools` are the versions of the programs that shape
    the image's bytes. `resolved` is the day (UTC) that its files are dated.
    """

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the whole lock."""
        return digest_of(self.model_dump())

    @property
    def epoch(self) -> int:
        """SOURCE_DATE_EPOCH of the image: `resolved` at 00:00 UTC, in seconds."""
        return int(dt.datetime.fromisoformat(self.resolved).replace(tzinfo=dt.UTC).timestamp())

    @property
    def size(self) -> int:
        """Bytes of all packages and wheels as they are fetched."""
        return sum(item.size for item in self.debs) + sum(item.size for item in self.wheels)


def intent_digest(row: Row) -> str:
    """Return the digest of what `row` asks apt and pip for."""
    return digest_of(
        {
            "system": row.system.model_dump(mode="json"),
            "debs": list(row.debs),
            "wheels": list(row.wheels),
            "layout": row.layout,
            "index": row.index,
            "vendor": row.vendor,
            "parent": row.image.parent,
            **({"from_host": list(row.from_host)} if row.from_host else {}),
        }
    )


def lock_name(image: str) -> str:
    """Return the file name of an image's lock."""
    return image + LOCK_SUFFIX


def lock_directories(row: Row) -> list[Path]:
    """Return where the lock of `row` is searched, in order: $GOLDNODE_IMAGE_LOCKS, then `locks` beside the matrix."""
    named = [Path(part).expanduser() for part in os.environ.get(LOCKS, "").split(os.pathsep) if part]
    return [*named, row.locks]


def lock_file(row: Row) -> Path | None:
    """Return the file that `find_lock` reads, or None where there is none."""
    return next((path for place in lock_directories(row) if (path := place / lock_name(row.name)).is_file()), None)


def find_lock(row: Row) -> ImageLock:
    """Return the lock of `row`. Raises ImageError where there is none, or where it was made for something else."""
    path = lock_file(row)
    if path is None:
        why = "" if row.exercised else " (it is declared, and was never built by this project)"
        raise row.error(f'image "{row.name}" has no lock{why}', remedy=f"run `goldnode images lock {row.name}`")
    lock = load_lock(path)
    if lock.image != row.name:
        raise ImageError(f'this is the lock of "{lock.image}", not of "{row.name}"', file=path, remedy="rename the file")
    if lock.intent != intent_digest(row):
        raise ImageError(
            f"this lock is stale: the matrix asks for something else since {lock.resolved}",
            file=path,
            remedy=f"run `goldnode images lock {row.name}`",
        )
    return lock


def load_lock(path: Path) -> ImageLock:
    """Read a lock file. Raises ImageError naming file and line, also where its content does not have the digest it states."""
    source = yamlsource.read(path, error=ImageError)
    remedy = f"restore the file, or run `goldnode images lock {path.name.removesuffix(LOCK_SUFFIX)}`"
    data = source.data if isinstance(source.data, dict) else {}
    schema = data.get("lock")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
        raise ImageError(
            f"this lock has schema {schema}, and this goldnode reads schema {SCHEMA}",
            file=path,
            line=source.line(("lock",)),
            remedy="install the goldnode that wrote it, or a later one",
        )
    written = yamlsource.validate(_Written, source, error=ImageError)
    lock = ImageLock.model_validate(written.model_dump(exclude={"digest"}))
    if written.digest != lock.digest:
        raise ImageError(
            "this lock was edited after goldnode wrote it: its content does not have the digest it states",
            file=path,
            line=source.line(("digest",)),
            remedy=remedy,
        )
    return lock


def dump_lock(lock: ImageLock) -> str:
    """Return the lock as the text of its file: fixed order, one line per package."""
    lines = [
        _HEADER.format(image=lock.image) + f"lock: {lock.lock}",
        f"image: {lock.image}",
        f"digest: {lock.digest}",
        f"intent: {lock.intent}",
        f"resolved: {_flow(lock.resolved)}",
        f"parent: {_flow(lock.parent.model_dump() if lock.parent is not None else None)}",
        *([f"vendor: {_flow(lock.vendor)}"] if lock.vendor is not None else []),
        f"tools: {_flow(lock.tools)}",
    ]
    for key in ("archives", "debs", "wheels"):
        items = getattr(lock, key)
        lines.append(f"{key}:" if items else f"{key}: []")
        lines += [f"  - {_flow(item.model_dump())}" for item in items]
    return "\n".join(lines) + "\n"


def write_lock(lock: ImageLock, directory: Path) -> Path:
    """Write the lock into `directory`, whole or not at all, and return its file. Raises ImageError."""
    return write_whole(directory / lock_name(lock.image), dump_lock(lock), ImageError)
