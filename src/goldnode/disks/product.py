"""Disk images as a product of the channel commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.catalog.load import LOCK_SUFFIX
from goldnode.channels.gc import Collected, Collection, NeededContent, lock_digests
from goldnode.channels.lines import CHANNELS
from goldnode.channels.migration import saved_lines
from goldnode.channels.product import Location
from goldnode.channels.promotion import Move, MoveResult
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import DiskError
from goldnode.disks import channels, gc
from goldnode.disks.definition import load_definition
from goldnode.disks.lines import CLASS_NAME, ClassLine, line_of
from goldnode.disks.locking import load_disk_lock, lock_directories
from goldnode.disks.model import MANIFEST, BuiltDisk, find, store_directory
from goldnode.disks.places import ChannelStore, DirectoryPlace, DiskStorePlace
from goldnode.disks.requirements import REQUIREMENTS

if TYPE_CHECKING:
    from goldnode.channels.signed import SignedChannels
    from goldnode.evidence.signatures import EnvelopeSigner

DiskPlace = DiskStorePlace | DirectoryPlace


class DiskProduct:
    """Disk images of a store, or of a published directory of which the store has a copy."""

    requirements = REQUIREMENTS

    def __init__(self, location: Location) -> None:
        self.location = location

    @cached_property
    def store(self) -> ChannelStore:
        """Return the store."""
        return ChannelStore(store_directory(self.location.store))

    def build(self, text: str) -> BuiltDisk:
        """Return a build of the store.

        `text` is a directory, a NAME, a CLASS (its newest build), CLASS:CHANNEL or CLASS:BUILDID.
        """
        class_, colon, rest = text.partition(":")
        if not colon or "/" in text:
            return find(text, self.store.root)
        if rest in CHANNELS:
            return channels.channel_head(self.store, line_of(class_), rest)
        return find(f"{class_}-{rest}", self.store.root)

    def directory(self, signer: EnvelopeSigner | None = None) -> DirectoryPlace:
        """Return the published directory. Raises DiskError if none is named."""
        if self.location.to is None:
            raise DiskError(
                "no directory to publish to is named",
                remedy="name it with --to, or in GOLDNODE_DISKS_PLACE",
            )
        return DirectoryPlace(Path(self.location.to), self.store, signer)

    @contextmanager
    def place(self, signer: EnvelopeSigner | None = None) -> Iterator[DiskPlace]:
        """Open the published directory, the store's copy of it, or the store itself."""
        if self.location.to is None:
            yield DiskStorePlace(self.store)
        elif self.location.offline:
            yield DiskStorePlace(self.store, str(Path(self.location.to).absolute()))
        else:
            yield self.directory(signer)

    def line(self, text: str) -> ClassLine:
        """Return the line of a class."""
        return line_of(text)

    def find(self, place: DiskPlace, text: str) -> tuple[ClassLine, str]:
        """Return class and build id of a name. A class alone means its only build.

        An existing class is matched by its complete name, whatever its ending.
        """
        root = place.root if isinstance(place, DirectoryPlace) else place.store.root / "built"
        match = re.fullmatch(r"(.+)[:-]([0-9a-f]{12})", text)
        if match is not None and not (CLASS_NAME.fullmatch(text) and (root / text).is_dir()):
            return line_of(match[1]), match[2]
        line = line_of(text)
        ids = sorted(path.parent.name for path in (root / text).glob(f"*/{MANIFEST}"))
        if len(ids) != 1:
            have, remedy = f"no build of {text}", "publish one: goldnode disks publish"
            if ids:
                have = f"{len(ids)} builds of {text}: {', '.join(ids)}"
                remedy = "name one as CLASS:BUILDID"
            raise DiskError(f"{place.name} has {have}", remedy=remedy)
        return line, ids[0]

    def promote(self, place: DiskPlace, move: Move) -> MoveResult:
        """Point a channel to a build."""
        return channels.promote(place, self.store, move)

    def lines(self, place: DiskPlace, channels: SignedChannels) -> list[ClassLine]:
        """Return the classes that have channels, or that the directory has."""
        names = {line.repository for line in channels.lines()}
        if isinstance(place, DirectoryPlace):
            names |= set(place.classes())
        return [line_of(name) for name in sorted(names)]

    def former_lines(self, place: DiskPlace) -> list[ClassLine]:
        """Return the classes that have a history of the last release, at the place or in the store."""
        names = {line.repository for line in saved_lines(self.store, place.name)}
        if isinstance(place, DirectoryPlace):
            names |= {name for name in place.classes() if place.former(line_of(name))}
        return [line_of(name) for name in sorted(names)]

    def known(self) -> list[str]:
        """Return the classes of the catalog."""
        return sorted(load_catalog().classes)

    def locks(self) -> Mapping[str, str]:
        """Return the digests of the current disk locks."""
        files = {
            path.name.removesuffix(LOCK_SUFFIX): path
            for directory in reversed(lock_directories(load_definition()))
            for path in directory.glob(f"*{LOCK_SUFFIX}")
        }
        return lock_digests(files, load_disk_lock, "disk lock")

    def needed(self) -> NeededContent:
        """Return what histories, classes and locks need."""
        return gc.needed(self.store, load_catalog().whole(), self.locks())

    def collect(self, keeps: NeededContent, how: Collection) -> Collected:
        """Clean the store, or the published directory if one is named."""
        if self.location.to is None:
            return gc.collect(self.store, keeps, how)
        roots = self.location.trusted_roots()
        return gc.collect_place(self.directory(), self.store, keeps, roots, how)
