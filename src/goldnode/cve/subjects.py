"""Carriers of packages, by their locks: stacks, disks, images, derived images of a store, and what channels point to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from goldnode.catalog.load import Catalog
from goldnode.channels import signed
from goldnode.channels.lines import CHANNELS, ChannelLine
from goldnode.channels.locks import StoreDirectory
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.cve.claims import TOOLKIT, OsRelease, upstream
from goldnode.disks.definition import load_definition
from goldnode.disks.locking import load_disk_lock
from goldnode.disks.locking import lock_file as disk_lock_file
from goldnode.disks.model import BuiltDisk
from goldnode.disks.places import ChannelStore
from goldnode.evidence.contents import EvidenceLock
from goldnode.evidence.sources import source_of_path
from goldnode.images.imagelock import find_lock as find_image_lock
from goldnode.images.imagelock import lock_file as image_lock_file
from goldnode.images.locked_packages import derived_builds, locks_of
from goldnode.images.matrix import ImageMatrix
from goldnode.images.store import ImageStore
from goldnode.lock.model import Lock
from goldnode.lock.model import load_lock as load_stack_lock
from goldnode.lock.model import lock_file as stack_lock_file
from goldnode.node.state.family import kernel_release

# Debian's linux and linux-6.12, Ubuntu's linux-hwe-6.8 and linux-nvidia; not linux-base or linux-firmware.
_KERNEL = re.compile(r"linux(-\d.*|-(aws|azure|gcp|hwe|kvm|lowlatency|nvidia|oem|oracle)\b.*)?")
_DRIVER_LIBRARY = re.compile(r"libcuda1|libnvidia-compute-\d+(-server)?")


def is_kernel(source: str) -> bool:
    """Return whether a source package is one of a kernel."""
    return _KERNEL.fullmatch(source) is not None


class _LockedFile(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CarriedPackage:
    """A package with its source package. `source_version` is None if it cannot be derived."""

    name: str
    version: str
    source: str
    source_version: str | None

    @property
    def kernel_part(self) -> bool:
        """Return whether it belongs to a kernel's source package without its code: headers, libc's, tools."""
        return is_kernel(self.source) and kernel_release(self.name) is None


@dataclass(frozen=True)
class CarrierContents:
    """A lock, disk or image with its packages. `unread` is why they are not known; `driver` is that of a stack."""

    kind: str
    name: str
    system: OsRelease | None
    packages: tuple[CarriedPackage, ...] = ()
    wheels: tuple[tuple[str, str], ...] = ()
    driver: str | None = None
    digest: str = ""
    unread: str = ""
    held: frozenset[str] = (
        frozenset()
    )  # packages that are held on nodes; they update the others by themselves

    @property
    def driver_version(self) -> str | None:
        """Return the version of the NVIDIA driver, by the stack or by its library; None without it."""
        if self.driver is not None:
            return self.driver
        library = (one.version for one in self.packages if _DRIVER_LIBRARY.fullmatch(one.name))
        return next((upstream(version) for version in library), None)

    @property
    def toolkit(self) -> str | None:
        """Return the version of the NVIDIA container toolkit, None without it."""
        return next((one.version for one in self.packages if one.name == TOOLKIT), None)


@dataclass
class Carriers:
    """All subjects, with the locks of stacks by digest and the versions of kernels by release."""

    subjects: list[CarrierContents] = field(default_factory=list)
    locks: dict[str, CarrierContents] = field(default_factory=dict)
    kernels: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # source and version

    def add(self, subject: CarrierContents) -> None:
        """Add a subject, and the kernels that it has."""
        self.subjects.append(subject)
        if subject.kind == "lock" and subject.digest:
            self.locks[subject.digest] = subject
        for item in subject.packages:
            release = kernel_release(item.name)
            if release is not None and item.source_version is not None:
                self.kernels.setdefault(release, set()).add((item.source, item.source_version))


def carried(items: Iterable[_LockedFile]) -> tuple[CarriedPackage, ...]:
    """Return locked packages with their source packages."""
    return tuple(
        CarriedPackage(item.name, item.version, *source_of_path(item.path, item.name, item.version))
        for item in items
    )


def of_lock(lock: Lock, system: OsRelease | None) -> CarrierContents:
    """Return the lock of a stack."""
    return CarrierContents(
        "lock",
        lock.stack,
        system,
        carried(lock.packages),
        driver=lock.driver_version,
        digest=lock.digest,
        held=frozenset(item.name for item in lock.packages if item.set == "stack"),
    )


def releases(catalog: Catalog) -> dict[str, OsRelease]:
    """Return the OS release of each stack of the catalog."""
    systems = ((name, entry.item.os) for name, entry in catalog.stacks.items())
    return {name: OsRelease(os.id, os.version, os.codename) for name, os in systems}


def stacks(catalog: Catalog, site: Site) -> Iterator[CarrierContents]:
    """Yield the locks of all stacks. A stack without a lock yields nothing: nothing is installed from it."""
    systems = releases(catalog)
    for name, entry in sorted(catalog.stacks.items()):
        try:
            path = stack_lock_file(entry, site)
            if path is not None:
                yield of_lock(load_stack_lock(path), systems[name])
        except GoldnodeError as error:
            yield CarrierContents("lock", name, systems[name], unread=error.message)


def disks(catalog: Catalog, built: Sequence[BuiltDisk]) -> Iterator[CarrierContents]:
    """Yield the locks of the disks of all classes, and the builds of a store that are of another lock."""
    definition, systems = load_definition(), releases(catalog)
    current: set[str] = set()
    sources: dict[str, str] = {}
    for name, entry in sorted(catalog.classes.items()):
        path = disk_lock_file(name, definition)
        if path is None:
            continue
        system = systems.get(entry.item.stack)
        try:
            lock = load_disk_lock(path)
        except GoldnodeError as error:
            yield CarrierContents("disk", name, system, unread=error.message)
            continue
        current.add(lock.digest)
        packages = carried(lock.debs)
        sources |= {item.name: item.source for item in packages}
        yield CarrierContents("disk", name, system, packages, digest=lock.digest)
    for disk in built:
        if disk.disk_lock not in current:
            yield _old_disk(disk, systems.get(disk.stack), sources)


def _old_disk(
    disk: BuiltDisk, system: OsRelease | None, sources: dict[str, str]
) -> CarrierContents:
    """Return a build whose lock is gone, by its manifest. It has no paths: sources are those of the locks."""
    packages = []
    for item in disk.packages:
        source = sources.get(item.name, item.name)
        path = f"pool/main/x/{source}/{item.name}.deb"
        packages.append(
            CarriedPackage(item.name, item.version, *source_of_path(path, item.name, item.version))
        )
    driver = disk.driver.version if disk.driver is not None else None
    return CarrierContents(
        "disk",
        f"{disk.class_} {disk.build_id}",
        system,
        tuple(packages),
        driver=driver,
        digest=disk.disk_lock,
    )


def images(matrix: ImageMatrix, store: ImageStore | None) -> Iterator[CarrierContents]:
    """Yield the images of the matrix by their locks, and the derived images of a store."""
    for name, row in sorted(matrix.images.items()):
        system = OsRelease(row.system.id, row.system.release, row.system.codename)
        try:
            chain = [
                find_image_lock(one)
                for one in matrix.chain(name)
                if image_lock_file(one) is not None
            ]
            if len(chain) < len(matrix.chain(name)):
                continue
            yield of_image("image", name, system, chain)
        except GoldnodeError as error:
            yield CarrierContents("image", name, system, unread=error.message)
    if store is None:
        return
    systems = {
        row.image.os: OsRelease(row.system.id, row.system.release, row.system.codename)
        for row in matrix.images.values()
    }
    for spec, built, locks in derived_builds(store):
        subject = of_image("derived", spec.ref(built.build_id), systems.get(spec.os), locks)
        if len(locks) < 2:
            yield CarrierContents(
                "derived", subject.name, subject.system, unread="the lock of its base is not known"
            )
        else:
            yield subject


def of_image(
    kind: str, name: str, system: OsRelease | None, locks: Sequence[EvidenceLock]
) -> CarrierContents:
    """Return an image by its locks: its own is the last."""
    debs = {item.name: item for lock in locks for item in lock.debs}
    wheels = {item.name: item.version for lock in locks for item in lock.wheels}
    return CarrierContents(
        kind,
        name,
        system,
        carried(debs.values()),
        wheels=tuple(sorted(wheels.items())),
        digest=locks[-1].digest,
    )


def _pointed(store: StoreDirectory) -> Iterator[tuple[str, str, ChannelLine, str]]:
    """Yield what the channels of a store and of the places that it has seen point to: channel, place, line, digest."""
    for place in signed.seen_places(store):
        channels = signed.unverified(signed.seen(store, place))
        for line in channels.lines():
            history = channels.history(line)
            for channel in CHANNELS:
                move = history.current(channel)
                if move is not None:
                    yield channel, place, line, move.now


def disk_channels(
    catalog: Catalog, store: ChannelStore, known: Carriers
) -> Iterator[CarrierContents]:
    """Yield the disk images that channels point to. Sources of their packages are those of `known`."""
    sources = {item.name: item.source for one in known.subjects for item in one.packages}
    systems = releases(catalog)
    for channel, place, line, digest in _pointed(store):
        name = f"{channel} of {line.repository} at {place}"
        disk = store.disk(digest)
        if disk is None:
            why = f"the disk is not in {store.root}: goldnode disks pull {line.repository}"
            yield CarrierContents("channel", name, None, digest=digest, unread=why)
            continue
        contents = _old_disk(disk, systems.get(disk.stack), sources)
        yield replace(contents, kind="channel", name=name)


def image_channels(matrix: ImageMatrix, store: ImageStore) -> Iterator[CarrierContents]:
    """Yield the images that channels point to, by the locks that they were built from."""
    systems = {row.name: row.system for row in matrix.images.values()}
    built = {one.digest: one for one in store.built().values()}
    for channel, place, line, digest in _pointed(store):
        name = f"{channel} of {line} at {place}"
        row = built.get(digest)
        locks = locks_of(store, row.image, row.lock) if row is not None else []
        if row is None or not locks or locks[-1].digest != row.lock:
            why = "the lock of what the channel points to is not known here"
            yield CarrierContents("channel", name, None, digest=digest, unread=why)
            continue
        system = systems.get(row.image)
        release = None
        if system is not None:
            release = OsRelease(system.id, system.release, system.codename)
        yield of_image("channel", name, release, locks)
