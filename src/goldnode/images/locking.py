"""What `goldnode images lock` does: rows in order, each on the locks of what it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from goldnode.errors import GoldnodeError, ImageError
from goldnode.images.imagelock import ImageLock, find_lock, load_lock, lock_directories, lock_file, write_lock
from goldnode.images.matrix import Row, load_matrix
from goldnode.images.resolve import Locked, Resolver
from goldnode.site import Site


def lock_images(
    patterns: Sequence[str],
    *,
    matrix_file: Path | None = None,
    upgrade: bool = False,
    offline: bool = False,
    out: Path | None = None,
    site: Site | None = None,
) -> Iterator[str]:
    """Lock what `patterns` select and all they stand on, parents first; yields one line per image.

    `upgrade` frees what the patterns name themselves (without patterns: all); what they stand on is kept. Raises GoldnodeError; the locks
    written until then stay.
    """
    matrix = load_matrix(matrix_file)
    rows = matrix.select(patterns, exercised=True)
    free = {row.name for row in rows if upgrade and (not patterns or _named(row, patterns))}
    done: dict[str, ImageLock] = {}
    with Resolver(offline=offline, site=site) as resolver:
        for row in rows:
            chain = [(below, done[below.name]) for below in matrix.chain(row.name)[:-1]]
            result = resolver.lock(row, chain, keep=None if row.name in free else _kept(row, out))
            done[row.name] = result.lock
            if row.name in free and not result.changed:
                pass
            place = out if out is not None else _place(row)
            if result.changed or not (place / f"{row.name}.lock.yml").is_file():
                write_lock(result.lock, place)
            yield _line(result)


def check_images(
    patterns: Sequence[str], *, matrix_file: Path | None = None, offline: bool = False, site: Site | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield every selected image with what is wrong with its lock: stale, edited, on another parent, vanished, other bytes."""
    matrix = load_matrix(matrix_file)
    with Resolver(offline=offline, site=site) as resolver:
        for row in matrix.select(patterns, exercised=True):
            try:
                lock = find_lock(row)
                parent = row.image.parent
                problems = []
                if parent is not None and (lock.parent is None or lock.parent.lock != find_lock(matrix.row(parent)).digest):
                    problems.append(f"it was made on an earlier lock of {parent}")
                problems += [f"{item.kind}: {item.message}" for item in resolver.check(row, lock)]
            except ImageError as error:
                problems = [str(error)]
            yield row.name, problems


def _named(row: Row, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(pattern == row.image.backend or fnmatchcase(row.name, pattern) for pattern in patterns)


def _kept(row: Row, out: Path | None) -> ImageLock | None:
    """The lock there is, whatever the matrix asks since; None for none, and for one that was edited."""
    path = out / f"{row.name}.lock.yml" if out is not None and (out / f"{row.name}.lock.yml").is_file() else lock_file(row)
    if path is None:
        return None
    try:
        return load_lock(path)
    except GoldnodeError:
        return None


def _place(row: Row) -> Path:
    path = lock_file(row)
    return path.parent if path is not None else lock_directories(row)[0]


def _line(result: Locked) -> str:
    lock = result.lock
    what = f"{len(lock.debs)} packages, {len(lock.wheels)} wheels, {lock.size / 1e6:.1f} MB"
    if not result.changed:
        return f"{lock.image}: kept as it is, resolved {lock.resolved}; {what}"
    moved = _moved(result.old, lock) if result.old is not None else ""
    return f"{lock.image}: {what}{moved}"


def _moved(old: ImageLock, new: ImageLock) -> str:
    """What differs between two locks, in one clause."""
    before = {item.name: item.version for item in (*old.debs, *old.wheels)}
    after = {item.name: item.version for item in (*new.debs, *new.wheels)}
    rows = [f"{name} {before[name]} -> {after[name]}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    rows += [f"+{name} {after[name]}" for name in sorted(after.keys() - before.keys())]
    rows += [f"-{name}" for name in sorted(before.keys() - after.keys())]
    if not rows:
        return "; the same packages, on another lock of what it stands on" if old.parent != new.parent else "; the same packages"
    return "; " + ", ".join(rows[:8]) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
