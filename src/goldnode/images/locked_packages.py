"""Packages of an image according to its locks, for the validation of the image's content."""

from __future__ import annotations

from goldnode.core.errors import ImageError
from goldnode.images.imagelock import find_lock
from goldnode.images.matrix import load_matrix
from goldnode.inspect.truth import LockedContents


def locked(image: str) -> LockedContents | None:
    """Return the packages in the locks of `image` and its ancestors.

    Return None if the matrix does not have the image, or if a lock is missing or stale.
    """
    try:
        rows = load_matrix().images
        debs: dict[str, str] = {}
        wheels: dict[str, str] = {}
        digest, name = "", image if image in rows else None
        if name is None:
            return None
        while name is not None:
            lock = find_lock(rows[name])
            digest = digest or lock.digest
            # Packages of a child replace those of its parent.
            debs = {**{item.name: item.version for item in lock.debs}, **debs}
            wheels = {**{item.name: item.version for item in lock.wheels}, **wheels}
            name = rows[name].image.parent
    except ImageError:
        return None
    return LockedContents(digest, debs, wheels)
