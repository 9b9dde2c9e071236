"""Implementation of `goldnode images lock`: lock rows in order, each on top of its parent's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.core.site import Site, own_lock_places
from goldnode.images.imagelock import (
    ImageLock,
    find_lock,
    intent_digest,
    load_lock,
    lock_directories,
    lock_file,
    write_lock,
)
from goldnode.images.matrix import MatrixRow, load_matrix
from goldnode.images.resolve import ImageLockResult, Resolver
from goldnode.lock.locked_files import version_changes
from goldnode.lock.model import lock_name


def lock_images(
    patterns: Sequence[str],
    *,
    matrix_file: Path | None = None,
    upgrade: bool = False,
    offline: bool = False,
    out: Path | None = None,
    site: Site | None = None,
) -> Iterator[ImageLockResult]:
    """Lock the images that `patterns` match and their ancestors, parents first; yield the result of each.

    `upgrade` allows new versions for the images that the patterns name (all images without
    patterns). Their ancestors keep their locks. Raises GoldnodeError; locks written before the
    error remain.
    """
    matrix = load_matrix(matrix_file)
    rows = matrix.select(patterns, exercised=True)
    free = {row.name for row in rows if upgrade and (not patterns or _named(row, patterns))}
    # Also locks of another intent: their versions are the ones to keep when it is resolved again.
    kept = {row.name: _kept(row, out) for row in rows}
    done: dict[str, ImageLock] = {}
    with Resolver(offline=offline, site=site, tools=_tools()) as resolver:
        # Check all locks that may stay in one batch: it queries the indexes in parallel.
        asked = [
            (row, lock)
            for row in rows
            if row.name not in free
            and (lock := kept[row.name]) is not None
            and lock.intent == intent_digest(row)
        ]
        good = {
            row.name
            for (row, _), moved in zip(asked, resolver.check_all(asked), strict=True)
            if not moved
        }
        for row in rows:
            chain = [(below, done[below.name]) for below in matrix.chain(row.name)[:-1]]
            lock = kept[row.name]
            # A lock stays only if its parent's lock did not change in this run either.
            if (
                lock is not None
                and row.name in good
                and _stands_on(lock, chain[-1][1] if chain else None)
            ):
                result = ImageLockResult(row, lock, lock, False)
            else:
                result = resolver.lock(row, chain, keep=None if row.name in free else lock)
                if lock is not None and result.changed:
                    # Only a new date is no change: a lock must not differ in every run.
                    result = _same(result, lock, tools=row.name in free)
            done[row.name] = result.lock
            place = out or _place(row)
            # With `out`, unchanged locks are written too, so that the directory is complete.
            if result.changed or not (place / lock_name(row.name)).is_file():
                write_lock(result.lock, place)
            yield result


def check_images(
    patterns: Sequence[str],
    *,
    matrix_file: Path | None = None,
    offline: bool = False,
    site: Site | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Yield each selected image with the problems of its lock.

    A lock may be stale or edited, or made on another lock of its parent. A package may have
    vanished from its archive, or have different content there.
    """
    matrix = load_matrix(matrix_file)
    rows = matrix.select(patterns, exercised=True)
    # Each image has an entry, also one without a problem.
    problems: dict[str, list[str]] = {row.name: [] for row in rows}
    locks: dict[str, ImageLock] = {}
    for row in rows:
        try:
            lock = locks[row.name] = find_lock(row)
        except ImageError as error:
            problems[row.name].append(str(error))
            continue
        parent = row.image.parent
        if not _stands_on(lock, locks.get(parent or "")):
            problems[row.name].append(f"it was made on an earlier lock of {parent}")
    with Resolver(offline=offline, site=site) as resolver:
        asked = [(row, locks[row.name]) for row in rows if row.name in locks]
        for (row, _), moved in zip(asked, resolver.check_all(asked), strict=True):
            problems[row.name] += [f"{item.kind}: {item.message}" for item in moved]
    yield from problems.items()


def _stands_on(lock: ImageLock, parent: ImageLock | None) -> bool:
    """Return whether `lock` was made on this lock of its parent."""
    if lock.parent is None or parent is None:
        return lock.parent is None and parent is None
    return lock.parent.lock == parent.digest


def _same(result: ImageLockResult, old: ImageLock, *, tools: bool) -> ImageLockResult:
    """Return the old lock as unchanged if only the date of resolution differs.

    A difference in the recorded versions of tools counts only with `tools`.
    """
    update: dict[str, object] = {"resolved": result.lock.resolved}
    if not tools:
        update["tools"] = result.lock.tools
    if old.model_copy(update=update) == result.lock:
        return ImageLockResult(result.row, old, old, False)
    return ImageLockResult(result.row, result.lock, old, True)


def _tools() -> dict[str, str]:
    """Return the versions of this machine's engine, compressor and installers.

    Return nothing if they are not installed: locking does not need them.
    """
    from goldnode.oci import engines

    try:
        return engines.tools(engines.choose())
    except ImageError:
        return {}


def _named(row: MatrixRow, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase  # start-up time

    return any(
        pattern == row.image.backend or fnmatchcase(row.name, pattern) for pattern in patterns
    )


def _kept(row: MatrixRow, out: Path | None) -> ImageLock | None:
    """Return the existing lock even if the matrix has changed since.

    Return None for a missing or edited lock.
    """
    path = out / lock_name(row.name) if out is not None else None
    if path is None or not path.is_file():
        path = lock_file(row, to_write=True)
    if path is None:
        return None
    try:
        return load_lock(path)
    except GoldnodeError:
        return None


def _place(row: MatrixRow) -> Path:
    path = lock_file(row, to_write=True)
    if path is None:
        return lock_directories(row, to_write=True)[0]
    return own_lock_places(path.parent, "containers")[0]


def line(result: ImageLockResult) -> str:
    """Return a one-line summary."""
    lock = result.lock
    what = f"{len(lock.debs)} packages, {len(lock.wheels)} wheels, {lock.size / 1e6:.1f} MB"
    if not result.changed:
        return f"{lock.image}: kept as it is, resolved {lock.resolved}; {what}"
    moved = _moved(result.old, lock) if result.old is not None else ""
    return f"{lock.image}: {what}{moved}"


def _moved(old: ImageLock, new: ImageLock) -> str:
    """Return the differences between two locks as one clause."""
    changes = version_changes(_versions(old), _versions(new))
    if not changes and old.parent != new.parent:
        changes = "the same packages, on another lock of its parent"
    return f"; {changes or 'the same packages'}"


def _versions(lock: ImageLock) -> dict[str, str]:
    return {item.name: item.version for item in lock.debs} | {
        item.name: item.version for item in lock.wheels
    }
