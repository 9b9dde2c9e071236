"""Content that channels still need, for the garbage collection of images and disks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels import signed
from goldnode.channels.promotion import ChannelPlace, HistoryStore, look
from goldnode.channels.signed import SignedChannels
from goldnode.core.errors import ImageError

if TYPE_CHECKING:
    from goldnode.lock.model import Sealed


GRACE_DAYS = 30.0  # so long, content stays that nothing needs


@dataclass
class NeededContent:
    """Content that must stay, each with its owner: digests of manifests, `REPOSITORY:TAG` or `CLASS:BUILDID`
    names, digests of locks.
    """

    digests: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Collection:
    """Options of a collection. Content younger than `days` stays. `dry_run` removes nothing."""

    days: float = GRACE_DAYS
    dry_run: bool = False
    now: dt.datetime | None = None

    @property
    def edge(self) -> dt.datetime:
        """Return the time after which everything stays."""
        return (self.now or dt.datetime.now(dt.UTC)) - dt.timedelta(days=self.days)

    def young(self, time: float) -> str | None:
        """Return why something written at `time` (seconds since the epoch) is too young; None if it is not."""
        return f"less than {self.days:g} days old" if time > self.edge.timestamp() else None

    def published(self, times: Iterable[str]) -> str | None:
        """Return why a publication is too young, by the times that its records state; None if it is not.

        An unknown age is a reason, too. Raises ValueError for a time in another format.
        """
        dates = [
            dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
            for text in times
        ]
        # Not a reason to remove it: it may be of this minute.
        if not dates:
            return "the time of its publication is not recorded"
        newest = max(dates)
        recent = f"published {newest:%Y-%m-%d}, less than {self.days:g} days ago"
        return recent if newest > self.edge else None


# Removed (or, in a dry run, removable) items, and the reason why each other item stays.
Collected = tuple[list["Gone"], dict[str, str]]
UNNEEDED = "no channel, move, class or lock names it"


@dataclass(frozen=True)
class Gone:
    """One removed or removable item: a name of the store, a blob, an image of a registry.

    `size` is the number of bytes that its removal frees here.
    """

    what: str
    why: str
    size: int = 0


def named_at(place: ChannelPlace, store: HistoryStore, roots: Sequence[Path]) -> dict[str, str]:
    """Return what the channels of a place name, and why. Raises GoldnodeError for channels that are not verified."""
    state = look(place.files(), place.name, store, roots)
    if state.there.files and not state.there.trusted:
        raise ImageError(
            f"{place.name} is collected only by verified channels",
            remedy="name the trusted root document with --root",
        )
    return _named(place.name, state.there) | (
        _named(place.name, state.ahead) if state.ahead else {}
    )


def named_here(keeper: HistoryStore) -> dict[str, str]:
    """Return what a store's copies of channels name, and why. Raises GoldnodeError for one that cannot be read."""
    # Places that cannot be reached now, too: their copies name what they need.
    seen = {place: signed.seen(keeper, place) for place in signed.seen_places(keeper)}
    named = [_named(place, signed.unverified(files)) for place, files in seen.items()]
    return {digest: why for row in named for digest, why in row.items()}


def _named(place: str, channels: SignedChannels) -> dict[str, str]:
    """Return what channels name, and why: all moves, because a rollback needs the earlier ones."""
    rows = [channels.history(line).digests() for line in channels.lines()]
    return {digest: f"{why} at {place}" for row in rows for digest, why in row.items()}


def lock_digests(
    files: Mapping[str, Path], load: Callable[[Path], Sealed], what: str
) -> dict[str, str]:
    """Return the digests of locks with their owners, so that the content they would build is retained.

    Raises GoldnodeError for an unreadable lock: its content is unknown and must not be removed.
    """
    return {load(path).digest: f"the {what} of {name}" for name, path in sorted(files.items())}
