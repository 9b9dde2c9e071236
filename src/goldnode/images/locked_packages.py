"""Packages of an image according to its locks, for the validation of the image's content."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from goldnode.core.errors import ImageError
from goldnode.evidence.contents import EvidenceLock
from goldnode.images.derived import lock_of_build
from goldnode.images.imagelock import DerivedLock, find_lock, load_derived_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.store import ImageStore
from goldnode.inspect.truth import LockedContents
from goldnode.oci.identity import identity
from goldnode.oci.layout import OciImage
from goldnode.oci.model import Built, ImageSpec

Locked = Callable[[str, str], LockedContents | None]


def locked_in(store: ImageStore | None) -> Locked:
    """Return a function from the name of an image and the digest of its lock to its packages.

    The locks are those of the matrix, and those of the derived builds of a store.
    """
    return functools.partial(locked, store)


def locked(store: ImageStore | None, image: str, digest: str) -> LockedContents | None:
    """Return the packages in the locks of `image` and its ancestors.

    Return None if a lock is missing or stale, or if neither the matrix nor the store has the image.
    """
    chain = locks_of(store, image, digest)
    if not chain:
        return None
    debs: dict[str, str] = {}
    wheels: dict[str, str] = {}
    for lock in chain:  # packages of a child replace those of its parent
        debs |= {item.name: item.version for item in lock.debs}
        wheels |= {item.name: item.version for item in lock.wheels}
    return LockedContents(chain[-1].digest, debs, wheels)


def locks_of(store: ImageStore | None, image: str, digest: str) -> list[EvidenceLock]:
    """Return the locks of an image and its ancestors, its own last; nothing if one of them is unknown."""
    try:
        matrix = load_matrix()
        if image in matrix.images:
            return [find_lock(row) for row in matrix.chain(image)]
        own = _derived(store, digest)
        if store is None or own is None or own.image != image:
            return []
        base = identity(OciImage(store.layout, own.base.digest).config)
        below = locks_of(store, base.name, own.base.lock)
    except ImageError:
        return []
    # A lock of the matrix may be another one by now.
    return [*below, own] if below and below[-1].digest == own.base.lock else []


def derived_builds(store: ImageStore) -> Iterator[tuple[ImageSpec, Built, list[EvidenceLock]]]:
    """Yield the derived builds of a store, oldest first, each with its image and the known locks, its own last.

    Without the locks of the base, evidence has no hashes of the base's packages.
    """
    for built in sorted(store.built().values(), key=store.recorded):
        lock = _derived(store, built.lock)
        if lock is None or lock.image != built.image:
            continue
        own = identity(OciImage(store.layout, built.digest).config)
        image = ImageSpec(
            own.repository,
            backend=own.backend,
            version=own.runtime,
            flavour=own.flavour,
            os=own.os,
            parent=own.base_name,
            repository=own.repository,
            release=own.version,
        )
        yield image, built, locks_of(store, built.image, built.lock) or [lock]


def _derived(store: ImageStore | None, digest: str) -> DerivedLock | None:
    """Return the lock with this digest that a build of the store was made from."""
    if store is None:
        return None
    for built in store.built().values():
        file = lock_of_build(store, built.build_id)
        if built.lock == digest and file.is_file():
            return load_derived_lock(file)
    return None
