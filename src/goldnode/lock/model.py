"""The lock document: read, write and find it, and detect whether it still fits its stack.

Locks of images and disks have the same form and the same seal, so their readers and writers are
here too.
"""

# No `from __future__ import annotations`: pydantic would compile the text of each annotation at each start.

import datetime as dt
import hashlib
import json
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from goldnode.catalog.load import LOCK_SUFFIX, CatalogEntry
from goldnode.catalog.models import KERNEL_HEADERS, Stack
from goldnode.core import parsed_files, yamlsource
from goldnode.core.errors import (
    EditedLockError,
    GoldnodeError,
    LockError,
    NewerLockError,
    NoLockError,
)
from goldnode.core.site import Site
from goldnode.documents.base import Digest as Digest  # exported: every lock has digests
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import phrase
from goldnode.node.state.family import headers_release

SCHEMA = 1
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_EDITED = (
    "this lock was edited after goldnode wrote it: its content does not have the digest it states"
)
_HEADER = "# Written by `goldnode lock {stack}`. Not to be edited: run it again.\n"
# Only what decides which packages a stack resolves to. Prose, dates and waivers can change without a new lock.
_INTENT: dict[str, Any] = {
    "os": True,
    "archives": True,
    "from_archives": True,
    "kernel": True,
    "packages": True,
    "options": {"__all__": {"packages", "archives", "follows"}},
    "runtime": {"engine", "package", "packages", "toolkit"},
    "modules": {"__all__": {"package", "dkms"}},
    "driver": {
        "vendor",
        "branch",
        "flavour",
        "version",
        "dkms",
        "packages",
        "lockstep",
        "family",
        "fabric_manager",
    },
}


class LockModel(BaseModel):
    """Part of a lock. An unknown key is an error."""

    # defer_build: a lock that has been read before needs no validator.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class LockedArchive(LockModel):
    """An archive the packages were resolved from."""

    id: str
    suite: str
    components: list[str]


class LockedPackage(LockModel):
    """One package of the closure. `path` is relative to its archive; `size` is in bytes.

    `set` is stack for what is pinned and held on a live node, base for what stays free to take
    updates. `when` names the conditions of which one must hold, joined by "|": nvswitch (a platform
    with NVSwitch), or an optional part of the stack.
    """

    name: str
    version: str
    architecture: str
    sha256: Sha256
    size: int
    path: str
    archive: str
    set: Literal["stack", "base"]
    part: Literal["kernel", "driver", "runtime", "module", "base"]
    requested: bool
    why: str
    when: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\|[a-z0-9-]+)*$")] | None = None

    def applies(self, conditions: Collection[str]) -> bool:
        """Return whether a node gets the package: it is unconditional, or one of its conditions is met."""
        return self.when is None or not set(self.when.split("|")).isdisjoint(conditions)


class Sealed(LockModel):
    """A lock of any kind. Its file also has a `digest`, which detects edits by hand. `resolved` is a day (UTC)."""

    lock: Literal[1]
    resolved: Annotated[
        str,
        BeforeValidator(lambda value: value.isoformat() if isinstance(value, dt.date) else value),
    ]

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the whole lock."""
        return digest_of(self.model_dump())

    @property
    def epoch(self) -> int:
        """SOURCE_DATE_EPOCH of everything built from the lock: `resolved` at 00:00 UTC, in seconds."""
        return int(dt.datetime.fromisoformat(self.resolved).replace(tzinfo=dt.UTC).timestamp())


class Lock(Sealed):
    """The resolution of a stack on one day."""

    stack: str
    intent: Digest
    kernel_release: str
    driver_version: str | None
    archives: list[LockedArchive]
    packages: list[LockedPackage]

    @property
    def options(self) -> set[str]:
        """Return the optional parts that were locked."""
        return {name for item in self.packages if item.when for name in item.when.split("|")} - {
            "nvswitch"
        }

    @property
    def headers(self) -> LockedPackage | None:
        """Return the headers that the stack requests for its kernel. `when` is set if only some nodes get them."""
        return next(
            (
                item
                for item in self.packages
                if item.requested and headers_release(item.name) == self.kernel_release
            ),
            None,
        )

    @property
    def has_dkms(self) -> bool:
        """Return whether a package has sources that DKMS builds on nodes (zfs-dkms); it only recommends headers."""
        return any(item.name == "dkms" or item.name.endswith("-dkms") for item in self.packages)

    def lacks(self, options: Collection[str]) -> list[str]:
        """Return the optional parts of `options` that the lock does not hold."""
        held = set(self.options)
        if self.headers is not None:
            held.add(KERNEL_HEADERS)  # those that every node gets too
        return [name for name in options if name not in held]

    def stack_set(self, *, nvswitch: bool, options: Collection[str] = ()) -> list[LockedPackage]:
        """Return the packages that are pinned and held on a node with these optional parts, by name."""
        conditions = {*options, *(["nvswitch"] if nvswitch else [])}
        return [item for item in self.packages if item.set == "stack" and item.applies(conditions)]

    def stack_hash(self, *, nvswitch: bool, options: Collection[str] = ()) -> str:
        """Return the sha256 of the stack set in the format of dpkg-query: one line "name version
        architecture" per package, sorted as bytes.

        On a node whose held packages are the stack set, this command prints it: `dpkg-query -W -f '${Package}
        ${Version} ${Architecture}\\n' $(apt-mark showhold) | LC_ALL=C sort | sha256sum`.
        """
        lines = sorted(
            f"{item.name} {item.version} {item.architecture}\n".encode()
            for item in self.stack_set(nvswitch=nvswitch, options=options)
        )
        return hashlib.sha256(b"".join(lines)).hexdigest()


class _WrittenLock(Lock):
    """A lock as its file has it: with the digest of all the rest."""

    stated: Digest | None = Field(default=None, alias="digest")


AnyLock = TypeVar("AnyLock", bound=Sealed)


def digest_of(document: Any) -> str:
    """Return `sha256:…` of the canonical JSON of `document`: sorted keys, no spaces, UTF-8."""
    # One form for one content, so that the digest does not depend on order or spacing.
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def intent_digest(stack: Stack) -> str:
    """Return the digest of what `stack` asks apt for."""
    asked = stack.model_dump(mode="json", include=_INTENT)
    asked["modules"] = [
        row for row in asked["modules"] if row["package"]
    ]  # the driver's own modules ask apt for nothing
    del asked["kernel"]["page_kib"]  # the kernel's name decides it
    # What a stack does not ask for leaves no trace, so that a lock made before the question existed stays good.
    return digest_of(
        {
            key: value
            for key, value in asked.items()
            if key not in ("runtime", "modules", "options", "from_archives") or value
        }
    )


def _cached_intent(stack: Stack) -> str:
    """Return `intent_digest` of a stack, from the cache if it was asked for before: its serializer takes long to build."""
    everything = repr(stack)
    stored: str | None = parsed_files.recall("intent of a stack", everything)
    if stored is not None:
        return stored
    digest = intent_digest(stack)
    parsed_files.remember("intent of a stack", everything, digest)
    parsed_files.save()
    return digest


def lock_name(name: str) -> str:
    """Return the file name of the lock of a stack, of an image, or of a class's disk."""
    return name + LOCK_SUFFIX


def load_lock(path: Path) -> Lock:
    """Read a lock file. Raises LockError with file and line, and EditedLockError for an edited one."""
    lock, fault = read_lock(path)
    if fault is not None:
        raise fault
    return lock


def read_lock(path: Path) -> tuple[Lock, EditedLockError | None]:
    """Read a lock file that may have been edited.

    Return the lock, and a fault if its digest is not that of its content.

    Raises LockError with file and line for an unreadable file.
    """
    try:
        text = yamlsource.read_text(path, error=LockError)
    except LockError as error:
        error.remedy = _restore(path)
        raise
    lock, fault = _read_lock(path, text)
    if fault is None:
        return lock, None
    message, line = fault
    return lock, EditedLockError(
        message,
        file=path,
        line=line,
        remedy=f"restore the file, or run `goldnode lock {_named(path)}`: it keeps the versions and takes the archives' hashes",
    )


@lru_cache(maxsize=32)  # a command reads the lock of a stack for each of its classes
def _read_lock(path: Path, text: str) -> tuple[Lock, tuple[str, int] | None]:
    """Return the lock, and message and line of its fault. A lock without fault comes from the cache if it was read before."""
    stored: Lock | None = parsed_files.recall(_KIND, text)
    if stored is not None:
        return stored, None
    lock, fault = _parsed_lock(path, text)
    if fault is None:
        parsed_files.remember(_KIND, text, lock)
        parsed_files.save()
    return lock, fault


_KIND = "sealed lock of a stack"


def _parsed_lock(path: Path, text: str) -> tuple[Lock, tuple[str, int] | None]:
    try:
        source = yamlsource.parse(text, path, error=LockError)
    except LockError as error:
        if _conflicts(text):
            error.message = "this lock has the conflict markers of a merge"
            error.remedy = (
                f"take one side whole, or delete the file and run `goldnode lock {_named(path)}`"
            )
        else:
            error.remedy = _restore(path)
        raise
    # Before validation: a later schema would fail with errors about fields that this goldnode does
    # not know.
    _refuse_newer(source, NewerLockError)
    try:
        lock, stated = _parts(source, Lock, _WrittenLock, LockError)
    except LockError as error:
        error.remedy = f"{_before(error.remedy)}{_restore(path)}"
        raise
    if stated is None:
        return lock, (
            "this lock has no `digest`, so nothing shows that it is as goldnode wrote it",
            source.line(("lock",)),
        )
    return lock, None if stated == lock.digest else (_EDITED, source.line(("digest",)))


def _named(path: Path) -> str:
    return path.name.removesuffix(LOCK_SUFFIX)


def _restore(path: Path) -> str:
    return f"restore the file as goldnode wrote it, or run `goldnode lock {_named(path)} --upgrade`"


def _conflicts(text: str) -> bool:
    """Return whether a text has the conflict markers of git."""
    return any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines())


def load_sealed(
    path: Path, kind: type[AnyLock], written: type[Sealed], error: type[GoldnodeError], command: str
) -> AnyLock:
    """Read a lock file of another kind than a stack's.

    `written` is `kind` with the digest that the file states; `command` is the command that writes
    it. Raises `error` with file and line, also if the digest is not that of the content.
    """
    source = yamlsource.read(path, error=error)
    _refuse_newer(source, error)
    lock, stated = _parts(source, kind, written, error)
    if stated != lock.digest:
        raise error(
            _EDITED,
            file=path,
            line=source.line(("digest",)),
            remedy=f"restore the file, or run `{command} {path.name.removesuffix(LOCK_SUFFIX)}`",
        )
    return lock


def _refuse_newer(source: yamlsource.YamlSource, error: type[GoldnodeError]) -> None:
    schema = as_dict(source.data).get("lock")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
        raise error(
            f"this lock has schema {schema}, and this goldnode reads schema {SCHEMA}",
            file=source.file,
            line=source.line(("lock",)),
            remedy="install the goldnode that wrote it, or a later one",
        )


def _parts(
    source: yamlsource.YamlSource,
    kind: type[AnyLock],
    written: type[Sealed],
    error: type[GoldnodeError],
) -> tuple[AnyLock, str | None]:
    """Return a lock, and the digest that its file states."""
    content = yamlsource.validate(written, source, error=error).model_dump()
    stated = content.pop("stated")
    return kind.model_validate(content), stated


def _before(remedy: str | None) -> str:
    return phrase("{}, ", remedy)


def find_lock(stack: CatalogEntry[Stack], site: Site) -> tuple[Lock, Path]:
    """Return the lock of `stack` and its file: from $GOLDNODE_LOCKS, the site's `locks`, or next to the
    stack. The first file found decides.

    Raises NoLockError if there is none, or if it was made for another intent, and another LockError
    for a file that is not a lock of this stack as goldnode wrote it.
    """
    remedy = f"run `goldnode lock {stack.name}`"
    path = lock_file(stack, site)
    if path is None:
        why = " (it was never resolved against its real archives)"
        if stack.item.exercised == "debian-archive":
            why = ""
        raise NoLockError(f'stack "{stack.name}" has no lock{why}', file=stack.file, remedy=remedy)
    lock = load_lock(path)
    check_intent(lock, path, stack)
    return lock, path


def lock_file(stack: CatalogEntry[Stack], site: Site, *, to_write: bool = False) -> Path | None:
    """Return the file that `find_lock` reads, or None if there is none; `to_write` as for
    `Site.lock_directories`. Raises GoldnodeError.
    """
    name, catalog = lock_name(stack.name), stack.file.parent
    places = site.lock_directories(to_write=to_write)
    for place in (*places, *site.lock_places(catalog, "stacks")):
        path = place / name
        # Passed over, it would let another lock decide, further down the list of places.
        if path.is_symlink() and not path.exists():
            raise LockError("this link points to nothing", file=path, remedy="correct or remove it")
        if path.is_dir():
            raise LockError(
                "this is a directory, expected a lock", file=path, remedy="move it away"
            )
        if path.is_file():
            return path
    return None


def check_intent(lock: Lock, path: Path, stack: CatalogEntry[Stack]) -> None:
    """Refuse a lock of another stack, or of an earlier intent of this one. Raises LockError."""
    check_stack(lock, path, stack)
    if lock.intent != _cached_intent(stack.item):
        raise NoLockError(
            f"this lock is stale: {stack.file} asks for something else since {lock.resolved}",
            file=path,
            remedy=f"run `goldnode lock {stack.name}`",
        )


def check_stack(lock: Lock, path: Path, stack: CatalogEntry[Stack]) -> None:
    """Refuse a lock of another stack. Raises LockError."""
    if lock.stack != stack.name:
        line = yamlsource.read(path, error=LockError).line(("stack",)) if path.is_file() else None
        raise LockError(
            f'this is the lock of stack "{lock.stack}", not of "{stack.name}"',
            file=path,
            line=line,
            remedy="rename the file",
        )


def dump_lock(lock: Lock) -> str:
    """Return the lock as the text of its file: fixed order, one line per package."""
    lines = [
        _HEADER.format(stack=lock.stack) + f"lock: {lock.lock}",
        f"stack: {lock.stack}",
        f"digest: {lock.digest}",
        f"intent: {lock.intent}",
        f"resolved: {flow(lock.resolved)}",
        f"kernel_release: {flow(lock.kernel_release)}",
        f"driver_version: {flow(lock.driver_version)}",
        "archives:",
        *(f"  - {flow(item.model_dump())}" for item in lock.archives),
        "packages:",
        *(f"  - {flow(item.model_dump(exclude_none=True))}" for item in lock.packages),
    ]
    return "\n".join(lines) + "\n"


def write_lock(lock: Lock, directory: Path) -> Path:
    """Write the lock into `directory`, whole or not at all, and return its file. Raises LockError."""
    return write_atomically(directory / lock_name(lock.stack), dump_lock(lock), LockError)


def write_atomically(path: Path, text: str, error: type[GoldnodeError]) -> Path:
    """Write a lock of any kind atomically, with its directory, and return its file. Raises `error`."""
    from goldnode.core.files import replace_file  # here, since most that reads locks writes none

    try:
        replace_file(path, text.encode())
    except OSError as problem:
        raise error(
            f"the lock cannot be written: {problem.strerror}",
            file=path,
            remedy="name another directory with --out",
        ) from problem
    return path


def listed(lock: Sealed, *keys: str) -> list[str]:
    """Return the lines of lists of a lock, one per item."""
    lines = []
    for key in keys:
        items = getattr(lock, key)
        lines.append(f"{key}:" if items else f"{key}: []")
        lines += [f"  - {flow(item.model_dump())}" for item in items]
    return lines


_UNQUOTED = re.compile(r"^[A-Za-z][A-Za-z0-9_./+~-]*$")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def flow(value: Any) -> str:
    """Return `value` in YAML's flow style; text is quoted unless it cannot be read as anything else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    text = str(value)
    if _UNQUOTED.match(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
