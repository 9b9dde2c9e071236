"""Garbage collection of disks, in the store and in a published directory.

A build stays if a channel points to it, a history names it (those of the location, and the store's cached
ones), it belongs to the current lock of a class, the catalog names it, or it is younger than `days`. A build
that is unreadable or of unknown age stays too.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels.gc import (
    UNNEEDED,
    Collected,
    Collection,
    Gone,
    NeededContent,
    named_at,
    named_here,
)
from goldnode.channels.locks import lane
from goldnode.core.errors import DiskError, ImageError
from goldnode.disks.contents import digest_of
from goldnode.disks.directory import ENVELOPE, STAGING, full, refresh
from goldnode.disks.model import MANIFEST, BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace
from goldnode.evidence import signatures

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog


def needed(
    store: ChannelStore,
    catalog: Catalog | None = None,
    locks: Mapping[str, str] | None = None,
) -> NeededContent:
    """Collect what the store's copies of channels and the catalog's classes refer to.

    `locks` maps digests of disk locks to their owners. Raises GoldnodeError for an unreadable copy: an
    unknown reference must not lead to a deletion.
    """
    content = NeededContent(named_here(store), locks=dict(locks or {}))
    for path in sorted((store.root / "channels/names").glob("*")):
        content.digests.setdefault(
            path.read_text(encoding="ascii").strip(), "a channel that this store saw"
        )
    for name, entry in sorted(catalog.classes.items()) if catalog is not None else []:
        for image in entry.item.images:
            content.names.setdefault(image.ref.rpartition("/")[2], f"class {name}")
    return content


def _why(disk: BuiltDisk, keeps: NeededContent) -> str | None:
    names = (f"{disk.class_}:{disk.build_id}", disk.name)
    return (
        keeps.digests.get(digest_of(disk))
        or next((keeps.names[name] for name in names if name in keeps.names), None)
        or keeps.locks.get(disk.disk_lock)
    )


def collect(store: ChannelStore, keeps: NeededContent, how: Collection | None = None) -> Collected:
    """Remove unneeded builds and leftovers of interrupted pulls from the store."""
    how = how or Collection()
    gone: list[Gone] = []
    stays: dict[str, str] = {}
    with lane(store, "", name="gc"):
        # Read the histories again: a promotion may have happened while this waited for the lock.
        keeps = replace(keeps, digests=keeps.digests | named_here(store))
        for path in sorted((store.root / "built").glob(f"*/*/{MANIFEST}")):
            try:
                disk = BuiltDisk.load(path.parent)
            except DiskError as problem:
                stays[str(path.parent)] = f"it cannot be read: {problem.message}"
                continue
            why = _why(disk, keeps) or how.young(path.stat().st_mtime)
            if why is not None:
                stays[disk.name] = why
                continue
            gone.append(Gone(disk.name, UNNEEDED, _size(path.parent)))
            if not how.dry_run:
                _remove(path.parent, store.root)
        for path in sorted((store.root / "partial").glob("*")):
            if path.is_dir() and how.young(path.stat().st_mtime) is None:
                gone.append(Gone(str(path), "a pull that was not finished", _size(path)))
                if not how.dry_run:
                    shutil.rmtree(path)
    return gone, stays


def collect_place(
    place: DirectoryPlace,
    store: ChannelStore,
    keeps: NeededContent,
    roots: Sequence[Path] = (),
    how: Collection | None = None,
) -> Collected:
    """Remove unneeded builds and leftovers of interrupted runs from a published directory.

    Its channels are verified before anything is removed. Raises DiskError and ImageError.
    """
    how = how or Collection()
    gone: list[Gone] = []
    stays: dict[str, str] = {}
    with place.turn(), full(place.root):
        digests = keeps.digests | named_here(store) | named_at(place, store, roots)
        wanted = replace(keeps, digests=digests)
        for name in place.classes():
            for path in sorted((place.root / name).glob(f"*/{MANIFEST}")):
                label = f"{name}:{path.parent.name}"
                try:
                    why = _why(BuiltDisk.load(path.parent), wanted) or _published(path.parent, how)
                except DiskError as problem:
                    why = f"it cannot be read: {problem.message}"
                if why is not None:
                    stays[label] = why
                    continue
                gone.append(Gone(label, UNNEEDED, _size(path.parent)))
                if not how.dry_run:
                    _remove(path.parent, place.root / STAGING)
        for path in sorted((place.root / STAGING).glob("*")):
            if path.is_dir():  # abandoned: this run holds the directory's lock
                gone.append(Gone(str(path), "a publication that was not finished", _size(path)))
                if not how.dry_run:
                    shutil.rmtree(path)
        if not how.dry_run and gone:
            refresh(place.root)
    return gone, stays


def _published(directory: Path, how: Collection) -> str | None:
    """Return why a build is too young to be removed, or that its age is unknown; None if it is old enough."""
    try:
        document = json.loads(signatures.payload_of((directory / ENVELOPE).read_bytes()))
        return how.published([document["predicate"]["published"]])
    except (OSError, ValueError, KeyError, TypeError, ImageError):
        return how.published([])


def _size(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _remove(directory: Path, trash: Path) -> None:
    """Remove a build: rename it out of the way first, so that an interruption never leaves half a build."""
    trash.mkdir(parents=True, exist_ok=True)
    doomed = trash / f".gone-{directory.name}-{time.time_ns()}"
    directory.rename(doomed)
    shutil.rmtree(doomed)
