"""Container images as a product of the channel commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from goldnode.channels.gc import Collected, Collection, NeededContent, lock_digests
from goldnode.channels.lines import ChannelLine, line_of, read_line
from goldnode.channels.migration import saved_lines
from goldnode.channels.product import Location
from goldnode.channels.promotion import Move, MoveResult
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import ImageError
from goldnode.images import channels, gc
from goldnode.images.channels import ImagePlace, ImageStorePlace, RegistryPlace
from goldnode.images.imagelock import find_lock, load_lock, lock_file
from goldnode.images.matrix import load_matrix
from goldnode.images.publish import find
from goldnode.images.requirements import REQUIREMENTS
from goldnode.images.store import open_store
from goldnode.oci.identity import REPOSITORY
from goldnode.oci.layout import Layout
from goldnode.oci.model import BUILD_ID_LENGTH
from goldnode.oci.registry import (
    Registry,
    RegistryAddress,
    RegistryOptions,
    reached,
    registry_address,
)

if TYPE_CHECKING:
    from goldnode.channels.signed import SignedChannels
    from goldnode.evidence.signatures import EnvelopeSigner

BACKENDS = ("cpu", "cuda", "oneapi", "rocm")


class ImageProduct:
    """Container images of a store, or of a registry of which the store has a copy.

    `repositories` are those whose images are collected; the default is every backend, and the
    derived images of the store.
    """

    requirements = REQUIREMENTS

    def __init__(self, location: Location, repositories: Sequence[str] = ()) -> None:
        self.location, self._named = location, tuple(repositories)

    @cached_property
    def store(self) -> Layout:
        """Return the layout of the store."""
        return open_store(self.location.store).layout

    @cached_property
    def repositories(self) -> tuple[str, ...]:
        """Return the repositories of the registry that are collected."""
        if self._named:
            return self._named
        # A derived image has a repository of its own, named in its label.
        images = (self.store.image(name) for name in self.store.refs())
        return (
            *BACKENDS,
            *sorted({image.labels[REPOSITORY] for image in images if REPOSITORY in image.labels}),
        )

    @contextmanager
    def registry(self) -> Iterator[tuple[RegistryAddress, Registry]]:
        """Connect to the registry. Raises ImageError if none is named."""
        if not self.location.to:
            raise ImageError(
                "no registry is named", remedy="name it with --to, or in GOLDNODE_REGISTRY"
            )
        # A local registry may answer over plain HTTP only: `reached` finds out.
        place = reached(registry_address(self.location.to))
        yield place, Registry(place.host, RegistryOptions(place.plain_http, self.location.ca))

    @contextmanager
    def place(self, signer: EnvelopeSigner | None = None) -> Iterator[ImagePlace]:
        """Open the registry, the store's copy of it, or the store itself."""
        if not self.location.to:
            yield ImageStorePlace(self.store)
        elif self.location.offline:
            yield ImageStorePlace(self.store, str(registry_address(self.location.to)))
        else:
            with self.registry() as (address, registry):
                yield RegistryPlace(address, registry, self.store)

    def line(self, text: str) -> ChannelLine:
        """Read a line of images."""
        return read_line(text)

    def builds(self, name: str) -> list[str]:
        """Return the refs of a name: itself, or the builds from the current locks of the rows it selects.

        Without such builds it is the only build of that name in the store.
        """
        layout = self.store
        if ":" in name:
            return [find(layout, name)[0]]
        matrix, built = load_matrix(), open_store(self.location.store).built().values()
        rows = {
            row.name
            for row in matrix.images.values()
            if name in (row.name, row.image.backend) or fnmatchcase(row.name, name)
        }
        refs: list[str] = []
        for row in (matrix.images[one] for one in sorted(rows)):
            # Its lock is read only where there is a build: a pattern also selects rows without a
            # lock.
            own = [item for item in built if item.image == row.name]
            if own:
                lock = find_lock(row).digest
                # A build of an earlier lock is no answer to the name of its row.
                refs += [row.image.ref(item.build_id) for item in own if item.lock == lock]
        return refs or [find(layout, name)[0]]

    def find(self, place: ImagePlace, text: str) -> tuple[ChannelLine, str]:
        """Return line and immutable tag of `REPOSITORY:TAG`, or of the only build that a name selects."""
        repository, _, tag = text.partition(":")
        if not tag:
            refs = self.builds(text)
            if len(refs) > 1:
                raise ImageError(
                    f"{text} means {len(refs)} builds: {', '.join(refs)}",
                    remedy="name one of them",
                )
            repository, _, tag = refs[0].partition(":")
        return line_of(repository, tag), tag

    def promote(self, place: ImagePlace, move: Move) -> MoveResult:
        """Point a channel to an image."""
        return channels.promote(place, self.store, move)

    def lines(self, place: ImagePlace, channels: SignedChannels) -> list[ChannelLine]:
        """Return the lines that have channels."""
        return channels.lines()

    def former_lines(self, place: ImagePlace) -> list[ChannelLine]:
        """Return the lines that have a history of the last release, at the place or in the store."""
        lines = place.former_lines(self.repositories) if isinstance(place, RegistryPlace) else []
        rows = saved_lines(self.store, place.name)
        return [*lines, *(line for line in rows if line not in lines)]

    def known(self) -> list[str]:
        """Return the lines of the matrix."""
        rows = load_matrix().images.values()
        return sorted(
            {
                # A line is read from a tag, so any build id will do.
                str(line_of(row.image.backend, row.image.immutable_tag("0" * BUILD_ID_LENGTH)))
                for row in rows
            }
        )

    def locks(self) -> Mapping[str, str]:
        """Return the digests of the locks of the matrix, including stale ones."""
        rows = load_matrix().images
        files = {name: path for name, row in rows.items() if (path := lock_file(row)) is not None}
        return lock_digests(files, load_lock, "lock")

    def needed(self) -> NeededContent:
        """Return what histories, classes and locks need."""
        return gc.needed(self.store, load_catalog().whole(), self.locks())

    def collect(self, keeps: NeededContent, how: Collection) -> Collected:
        """Clean the store, or the registry if one is named."""
        if self.location.to is None:
            return gc.collect(self.store, keeps, how)
        with self.registry() as (address, registry):
            place = RegistryPlace(address, registry, self.store)
            return gc.collect_registry(
                place,
                layout=self.store,
                repositories=self.repositories,
                keeps=keeps,
                roots=self.location.trusted_roots(),
                how=how,
            )
