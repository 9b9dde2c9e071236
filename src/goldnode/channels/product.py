"""The interface between the channel commands and one kind of image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from goldnode.channels.gc import Collected, Collection, NeededContent
    from goldnode.channels.lines import ChannelLine
    from goldnode.channels.promotion import ChannelPlace, HistoryStore, Move, MoveResult
    from goldnode.channels.requirements import Requirements
    from goldnode.channels.signed import SignedChannels
    from goldnode.evidence.signatures import EnvelopeSigner

PlaceT = TypeVar("PlaceT", bound="ChannelPlace")


@dataclass(frozen=True)
class Location:
    """Place of the channels of a product: a store, or a published place of which the store has a copy.

    `to` is a registry or a directory; None for the store itself. `offline` selects the store's copy of it. `roots` are
    trusted root documents of its channels.
    """

    store: Path | None
    to: str | None = None
    ca: Path | None = None
    offline: bool = False
    roots: tuple[Path, ...] = ()

    def trusted_roots(self) -> list[Path]:
        """Return `roots`, else those of the site file."""
        from goldnode.core.site import load_site  # start-up time: it loads pydantic

        site = load_site()
        return list(self.roots) or [site.resolve(path) for path in site.images.roots]


class ChannelProduct(Protocol[PlaceT]):
    """One kind of image: container images or disk images, at a location."""

    @property
    def location(self) -> Location:
        """Return the location of the product."""

    @property
    def requirements(self) -> Requirements:
        """Return the requirements of each step."""

    @property
    def store(self) -> HistoryStore:
        """Return the store."""

    def place(self, signer: EnvelopeSigner | None = None) -> AbstractContextManager[PlaceT]:
        """Open the place that holds the channels. With `signer`, a lost image can be uploaded again."""

    def line(self, text: str) -> ChannelLine:
        """Read the name of a line. Raises GoldnodeError."""

    def find(self, place: PlaceT, text: str) -> tuple[ChannelLine, str]:
        """Return line and immutable tag of the only image that a name identifies. Raises GoldnodeError."""

    def promote(self, place: PlaceT, move: Move) -> MoveResult:
        """Point a channel to an image that meets its requirements."""

    def lines(self, place: PlaceT, channels: SignedChannels) -> Sequence[ChannelLine]:
        """Return all lines that may have channels at a place, besides those that have."""

    def known(self) -> Sequence[str]:
        """Return the names of the lines that may exist, by the matrix or the catalog."""

    def needed(self) -> NeededContent:
        """Return the content that the store's histories, the catalog and current locks need."""

    def collect(self, keeps: NeededContent, how: Collection) -> Collected:
        """Remove the other images from the location. Return what was removed, and why the rest stays."""

    def locks(self) -> Mapping[str, str]:
        """Return the digests of the current locks with their owners. Raises GoldnodeError."""
