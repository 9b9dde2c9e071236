"""Locks of disk images: every Debian package of the whole root with version and hash, the stack's at the
versions of the stack lock.

apt resolves in a temporary root; this module drives apt and records the result. A lock contains no URLs:
archives are ids that the site resolves. Its packages are downloaded into a pool by hash, and a build uses
only the pool.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import NodeClass, Stack
from goldnode.classdoc.compile import class_document
from goldnode.core.errors import DiskError, UnsolvableError
from goldnode.core.files import cache_directory, sha256_of
from goldnode.core.site import Site, named_directories, own_lock_places
from goldnode.disks.definition import Definition, Disk
from goldnode.lock import pool as pools
from goldnode.lock.aptroot import AptRoot, apt_root
from goldnode.lock.archives import ArchivePlaces
from goldnode.lock.fetch import Fetcher, FetchProgress
from goldnode.lock.locked_files import (
    LockedDeb,
    MovedFile,
    first_fault,
    keeper,
    kept_versions,
    locked_debs,
    moved,
    pool_path,
    version_changes,
    wanted_debs,
    writing,
)
from goldnode.lock.mirror import Mirror
from goldnode.lock.model import (
    Digest,
    Lock,
    LockedArchive,
    LockedPackage,
    Sealed,
    digest_of,
    find_lock,
    flow,
    listed,
    load_sealed,
    lock_name,
    write_atomically,
)
from goldnode.lock.modulebuild import build_package
from goldnode.lock.modules import ARCHIVE as BUILT
from goldnode.lock.modules import BuiltModules, find_modules
from goldnode.lock.resolve import DependencyGraph, apt_sources
from goldnode.node.state.family import builds_modules

# Environment variable: directories searched for locks before those of the definition.
LOCKS = "GOLDNODE_DISK_LOCKS"

Say = Callable[[str], None]

_HEADER = "# Written by `goldnode disks lock {name}`. Not to be edited: run it again.\n"


class DiskLock(Sealed):
    """Result of resolving a disk image.

    `disk` is the class. `modules` are the modules built for it. Their package is in `debs`, from archive
    goldnode-mirror, and is rebuilt if no store has it. `resolved` is the date (UTC) of the image's files.
    """

    disk: str
    intent: Digest
    stack: str
    stack_lock: Digest
    modules: BuiltModules | None
    archives: list[LockedArchive]
    debs: list[LockedDeb]

    @property
    def size(self) -> int:
        """Return the download size of all packages in bytes."""
        return sum(item.size for item in self.debs)


class _DiskLockFile(DiskLock):
    stated: Digest | None = Field(default=None, alias="digest")


@dataclass(frozen=True)
class DiskTarget:
    """A class whose disk is to be locked or built, with everything required for that."""

    definition: Definition
    catalog: Catalog
    site: Site
    entry: CatalogEntry[NodeClass]
    stack: CatalogEntry[Stack]
    stack_lock: Lock
    disk: Disk

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return self.entry.item.class_

    @property
    def builds(self) -> bool:
        """Return whether the driver's modules have to be built."""
        driver = self.stack.item.driver
        return driver is not None and driver.dkms is not None

    @property
    def nvswitch(self) -> bool:
        """Return whether the class's platform has NVSwitch."""
        platform = self.entry.item.platform
        return platform is not None and self.catalog.platforms[platform].item.nvswitch

    def without(self, modules: BuiltModules | None) -> list[str]:
        """Return packages of the stack set that only serve to build modules. A disk image omits them."""
        rows = self.stack_lock.stack_set(nvswitch=self.nvswitch, options=self.entry.item.options)
        return sorted(
            {row.name for row in rows if builds_modules(row.name)}
            | set(modules.replaces if modules is not None else ())
        )

    def stack_set(self, modules: BuiltModules | None) -> list[LockedPackage]:
        """Return the stack's packages in the image by name, including that of the built modules."""
        left = set(self.without(modules))
        locked = self.stack_lock.stack_set(nvswitch=self.nvswitch, options=self.entry.item.options)
        rows = [row for row in locked if row.name not in left]
        return sorted(
            [*rows, *([modules.package] if modules is not None else [])], key=lambda row: row.name
        )

    def document(self, modules: BuiltModules | None) -> dict[str, Any]:
        """Return the class document of the image: with prebuilt modules, and without the packages that build
        them.
        """
        locks = {self.stack.name: self.stack_lock}
        return class_document(
            self.name,
            self.catalog,
            self.site,
            locks,
            modules=modules,
            without=self.without(modules),
        )

    @property
    def intent(self) -> str:
        """Return the digest of the request to apt."""
        asked = {
            "packages": list(self.disk.packages),
            "stack_lock": self.stack_lock.digest,
            "nvswitch": self.nvswitch,
            **({"options": sorted(options)} if (options := self.entry.item.options) else {}),
        }
        return digest_of({**asked, "prebuilt": self.builds})


def target(name: str, definition: Definition, catalog: Catalog, site: Site) -> DiskTarget:
    """Return the target for the disk of class `name`.

    Raises GoldnodeError if its class, stack lock or OS cannot be used.
    """
    definition.check(catalog)
    entry = catalog.node_class(name)
    stack = catalog.stacks[entry.item.stack]
    selected = DiskTarget(
        definition,
        catalog=catalog,
        site=site,
        entry=entry,
        stack=stack,
        stack_lock=find_lock(stack, site)[0],
        disk=definition.disk(name, stack.item.os),
    )
    if (
        selected.builds
        and site.modules != "prebuilt"
        and site.mirror is not None
        and site.mirror.url is not None
    ):
        raise DiskError(
            f'the site\'s nodes build the modules of stack "{stack.name}" themselves, and a disk image '
            "holds no compiler",
            file=site.file,
            remedy="write modules: prebuilt, and run `goldnode modules build` for the stack",
        )
    return selected


# -- the file


def lock_directories(definition: Definition, *, to_write: bool = False) -> list[Path]:
    """Return the search path of locks: $GOLDNODE_DISK_LOCKS, then `locks` next to the definition.

    Raises SiteError for a missing directory of the variable, unless `to_write`.
    """
    return [
        *named_directories(LOCKS, to_write=to_write),
        *own_lock_places(definition.locks, "disks"),
    ]


def lock_file(name: str, definition: Definition, *, to_write: bool = False) -> Path | None:
    """Return the file that `find_disk_lock` reads, or None.

    For `to_write` and errors see `lock_directories`.
    """
    return next(
        (
            path
            for place in lock_directories(definition, to_write=to_write)
            if (path := place / lock_name(name)).is_file()
        ),
        None,
    )


def find_disk_lock(item: DiskTarget) -> DiskLock:
    """Return the lock of the disk of `item`.

    Raises DiskError if it is missing, stale, or of another class.
    """
    path = lock_file(item.name, item.definition)
    remedy = f"run `goldnode disks lock {item.name}`"
    if path is None:
        raise DiskError(
            f'the disk image of class "{item.name}" has no lock',
            file=item.definition.locks,
            remedy=remedy,
        )
    lock = load_disk_lock(path)
    if lock.disk != item.name:
        raise DiskError(
            f'this is the lock of the disk of "{lock.disk}", not of "{item.name}"',
            file=path,
            remedy="rename the file",
        )
    if lock.intent != item.intent:
        what = "the definition asks for others"
        if lock.stack_lock != item.stack_lock.digest:
            what = f"stack {item.stack.name} has another lock"
        raise DiskError(
            f"this lock is stale: {what} since {lock.resolved}", file=path, remedy=remedy
        )
    return lock


def load_disk_lock(path: Path) -> DiskLock:
    """Read a lock file.

    Raises DiskError with file and line if it is invalid or does not match the digest it states.
    """
    return load_sealed(path, DiskLock, _DiskLockFile, DiskError, "goldnode disks lock")


def dump_disk_lock(lock: DiskLock) -> str:
    """Return the text of a lock file: fixed order, one line per package."""
    lines = [
        _HEADER.format(name=lock.disk) + f"lock: {lock.lock}",
        f"disk: {lock.disk}",
        f"digest: {lock.digest}",
        f"intent: {lock.intent}",
    ]
    lines += [
        f"resolved: {flow(lock.resolved)}",
        f"stack: {lock.stack}",
        f"stack_lock: {lock.stack_lock}",
    ]
    if lock.modules is None:
        lines.append("modules: null")
    else:
        lines.append("modules:")
        for key, value in lock.modules.model_dump().items():
            if key != "builder":
                lines.append(f"  {key}: {flow(value)}")
        lines.append("  builder:" if lock.modules.builder else "  builder: []")
        lines += [f"    - {flow(item.model_dump())}" for item in lock.modules.builder]
    return "\n".join([*lines, *listed(lock, "archives", "debs")]) + "\n"


def write_disk_lock(lock: DiskLock, directory: Path) -> Path:
    """Write the lock into `directory`, atomically, and return its file. Raises DiskError on failure."""
    return write_atomically(directory / lock_name(lock.disk), dump_disk_lock(lock), DiskError)


# -- resolving


def resolve(
    item: DiskTarget,
    pool: Path,
    *,
    keep: DiskLock | None = None,
    offline: bool = False,
    today: dt.date | None = None,
    cache: Path | None = None,
) -> DiskLock:
    """Resolve the disk of `item`. With `keep`, versions stay as far as the archives still have them.

    Builds the modules if necessary (minutes; goldnode caches builds by their inputs) and puts their package
    into `pool`. Raises DiskError if apt finds no solution or the archives lack packages of the stack lock,
    ModulesError if a driver does not build, and LockError.
    """
    modules = built_modules(item, pool, offline=offline) if item.builds else None
    rows = {row.name: row for row in item.stack_set(modules)}
    with apt_root(
        apt_sources(item.stack, item.catalog, item.site), item.stack.item.os.architecture, cache
    ) as root:
        if modules is not None:
            _offer(root, pool, modules)
        root.refresh(offline)
        _refuse_vanished(item, root, rows, modules)
        pins = kept_versions(keep.debs, root) if keep is not None else {}
        stack = {row.name: row.version for row in rows.values()}
        requests = [
            "?essential",
            *item.disk.packages,
            *(f"{name}={version}" for name, version in stack.items()),
        ]
        root.pin({**pins, **stack})
        try:
            downloads = root.resolve(requests)
        except UnsolvableError as error:
            # The old pins may conflict with the request: resolve again without them.
            if pins:
                return resolve(item, pool, offline=offline, today=today, cache=cache)
            raise item.definition.error(
                f'apt cannot install the disk image of class "{item.name}": '
                f"{error.message.partition(': ')[2]}",
                "systems",
                item.disk.system,
                "packages",
                remedy="correct its packages, or lock its stack again",
            ) from error
        stanzas = root.records(downloads)
        graph = DependencyGraph(stanzas)
        essential = [name for name, stanza in stanzas.items() if stanza.get("Essential") == "yes"]
        asked = [name for name in (*item.disk.packages, *rows) if name in stanzas]
        reasons = {**graph.reached([*asked, *essential]), **dict.fromkeys(essential, "essential")}
        reasons |= dict.fromkeys(
            (name for name in item.disk.packages if name in stanzas), "requested"
        )
        reasons |= dict.fromkeys(rows, f"of stack {item.stack.name}")
        built = {} if modules is None else {modules.package.name: (BUILT, modules.package.path)}
        debs = locked_debs(
            root, sorted(downloads, key=lambda entry: entry.name), stanzas, reasons, built
        )
        return DiskLock(
            lock=1,
            disk=item.name,
            intent=item.intent,
            resolved=(today or dt.datetime.now(tz=dt.UTC).date()).isoformat(),
            stack=item.stack.name,
            stack_lock=item.stack_lock.digest,
            modules=modules,
            archives=[
                LockedArchive(id=source.id, suite=source.suite, components=list(source.components))
                for source in root.sources
            ],
            debs=debs,
        )


def _refuse_vanished(
    item: DiskTarget, root: AptRoot, rows: Mapping[str, LockedPackage], modules: BuiltModules | None
) -> None:
    """Raise DiskError if an archive lost a package of the stack lock, or has it with other content."""
    offered = root.offered(rows)
    remedy = f"run `goldnode lock {item.stack.name}`, then lock the disk"
    for name, row in sorted(rows.items()):
        hashes = offered.get(name, {}).get(row.version)
        if hashes is None:
            raise DiskError(
                f'{name} {row.version}, which the lock of stack "{item.stack.name}" names, has left its '
                "archive",
                file=item.stack.file,
                remedy=remedy,
            )
        if row.sha256 not in hashes:
            raise DiskError(
                f"{name} {row.version} has other bytes in its archive than the lock of stack "
                f'"{item.stack.name}" says',
                file=item.stack.file,
                remedy="do not use it before the archive's owner has explained that",
            )


def _offer(root: AptRoot, pool: Path, modules: BuiltModules) -> None:
    """Offer the package of the built modules to apt in a local flat archive."""
    place = root.directory / "built"
    place.mkdir()
    row = modules.package
    file = row.path.rpartition("/")[2]
    shutil.copyfile(pool / row.sha256 / file, place / file)
    (place / "Packages").write_text(
        pools.stanza(place / file, row.sha256, DiskError), encoding="utf-8"
    )
    (root.directory / "etc/sources.list.d/built.list").write_text(
        f"{pools.source_line(place, 'file')}\n", encoding="utf-8"
    )


# -- modules


def built_modules(item: DiskTarget, pool: Path, *, offline: bool = False) -> BuiltModules:
    """Return the modules of the stack's lock, from the site's mirror or built here.

    Put their package into `pool`.

    Raises ModulesError with the compiler's error line if they do not build.
    """
    if item.site.modules == "prebuilt" and item.site.mirror is not None:
        modules = find_modules(item.stack, item.stack_lock, item.site)
        file = pool / modules.package.sha256 / modules.package.path.rpartition("/")[2]
        if not file.is_file():
            _take(Mirror.of(item.site).path(modules.package.sha256), file)
        return modules
    pool.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".modules-", dir=pool) as name:
        modules, package = build_package(
            item.stack, item.catalog, item.site, item.stack_lock, Path(name), offline=offline
        )
        place = pool / modules.package.sha256
        place.mkdir(parents=True, exist_ok=True)
        package.chmod(0o644)
        package.replace(place / package.name)
    return modules


# -- checking and fetching


def check(
    item: DiskTarget, lock: DiskLock, *, offline: bool = False, cache: Path | None = None
) -> list[MovedFile]:
    """Return the packages of `lock` that their archives no longer have, or have with other content."""
    with apt_root(
        apt_sources(item.stack, item.catalog, item.site), item.stack.item.os.architecture, cache
    ) as root:
        root.refresh(offline)
        offered = root.offered(deb.name for deb in lock.debs)
    return [row for deb in lock.debs if deb.archive != BUILT for row in moved(deb, offered)]


def fetch(
    item: DiskTarget,
    lock: DiskLock,
    pool: Path,
    *,
    progress: FetchProgress | None = None,
    say: Say = lambda text: None,
) -> int:
    """Put every file of `lock` into `pool`, and return the number of bytes downloaded.

    Files come from the site's mirror or goldnode's cache if available, otherwise from the archives. A package
    of built modules that is nowhere available is rebuilt, and must be identical.

    Raises DiskError if a file is not available as locked, and ModulesError.
    """
    missing = [deb for deb in lock.debs if not there(pool, deb)]
    stores: list[Callable[[str], Path]] = [lambda sha: cache_directory() / "debs" / f"{sha}.deb"]
    if item.site.mirror is not None:
        stores.append(Mirror.of(item.site).path)
    with writing(pool, DiskError):
        for deb in list(missing):
            known = next(
                (
                    path
                    for store in stores
                    if (path := store(deb.sha256)).is_file() and path.stat().st_size == deb.size
                ),
                None,
            )
            if known is not None and sha256_of(known) == deb.sha256:
                _take(known, pool_path(pool, deb))
                missing.remove(deb)
        for deb in [row for row in missing if row.archive == BUILT]:
            say(f"building {deb.name}, which takes minutes")
            modules = built_modules(item, pool)
            if modules.package.sha256 != deb.sha256:
                raise DiskError(
                    f"{deb.name} {deb.version} was built again and is not the same: "
                    f"{modules.package.sha256} instead of {deb.sha256}",
                    remedy="keep the package with the lock (a mirror does), or run `goldnode disks lock "
                    f"{item.name} --upgrade`",
                )
            missing.remove(deb)
        if not missing:
            return 0
        keep = keeper(pool, {deb.sha256: deb.file for deb in missing})
        places = ArchivePlaces(item.catalog, item.site, item.stack.item.os)
        faults = Fetcher(pool / "partial", keep, progress=progress).fetch(
            wanted_debs(
                missing,
                item.site,
                lambda deb: places.snapshot(deb.archive, lock.resolved),
                places.address,
            )
        )
    if faults:
        raise DiskError(
            first_fault(faults),
            remedy=f"run `goldnode disks lock {item.name} --check` to see what moved, or fetch again if it "
            "was the network",
        )
    return sum(deb.size for deb in missing)


def there(pool: Path, deb: LockedDeb) -> bool:
    """Return whether the pool has a file of this hash and size. Its content is validated when it is used."""
    try:
        return pool_path(pool, deb).stat().st_size == deb.size
    except FileNotFoundError:
        return False


def checked(pool: Path, debs: Iterable[LockedDeb]) -> dict[str, Path]:
    """Return the file of each package after validating its hash.

    Raises DiskError if one is missing or differs.
    """
    return {deb.name: pools.checked(pool, deb.file, deb.sha256, DiskError) for deb in debs}


def _take(source: Path, to: Path) -> None:
    """Put a file of another store into the pool, as a hard link if possible."""
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


# -- what the command does


@dataclass(frozen=True)
class DiskLockResult:
    """Result of locking one disk: the lock, the previous one, and whether they differ."""

    lock: DiskLock
    old: DiskLock | None
    changed: bool


def relock(
    item: DiskTarget,
    pool: Path,
    *,
    upgrade: bool = False,
    offline: bool = False,
    out: Path | None = None,
) -> DiskLockResult:
    """Lock the disk of `item` and write the file.

    A lock that is still valid is not changed, unless `upgrade`.
    """
    path = lock_file(item.name, item.definition, to_write=True)
    if out is not None and (out / lock_name(item.name)).is_file():
        path = out / lock_name(item.name)
    old = None
    if path is not None:
        try:
            old = load_disk_lock(path)
        except DiskError:
            old = None
    if (
        old is not None
        and old.intent == item.intent
        and not upgrade
        and not check(item, old, offline=offline)
    ):
        result = DiskLockResult(old, old, False)
    else:
        lock = resolve(item, pool, keep=None if upgrade else old, offline=offline)
        # Equal except for the date: return the old lock.
        same = old is not None and old.model_copy(update={"resolved": lock.resolved}) == lock
        result = DiskLockResult(old if same and old is not None else lock, old, not same)
    if out is not None:
        place = out
    elif path is not None:
        place = own_lock_places(path.parent, "disks")[0]
    else:
        place = lock_directories(item.definition, to_write=True)[0]
    if result.changed or not (place / lock_name(item.name)).is_file():
        write_disk_lock(result.lock, place)
    return result


def line(result: DiskLockResult) -> str:
    """Return a one-line summary."""
    lock = result.lock
    what = f"{len(lock.debs)} packages, {lock.size / 1e6:.1f} MB"
    if not result.changed:
        return f"{lock.disk}: kept as it is, resolved {lock.resolved}; {what}"
    return f"{lock.disk}: {what}{_moved(result.old, lock) if result.old is not None else ''}"


def _moved(old: DiskLock, new: DiskLock) -> str:
    before, after = ({deb.name: deb.version for deb in lock.debs} for lock in (old, new))
    return f"; {version_changes(before, after) or 'the same packages'}"


def inputs_digest(parts: Sequence[Any]) -> str:
    """Return the hex SHA-256 of the canonical JSON of `parts`."""
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()
