"""Content that channels still need, for the garbage collection of images and disks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels.history import ChannelLine, read
from goldnode.channels.moves import (
    ChannelPlace,
    HistoryStore,
    save_history,
    saved_history,
    saved_places,
)

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

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
        if newest > self.edge:
            return f"published {newest:%Y-%m-%d}, less than {self.days:g} days ago"
        return None


# Removed (or, in a dry run, removable) items, and the reason why each other item stays.
Collected = tuple[list["Gone"], dict[str, str]]
UNNEEDED = "no channel, history, class or lock names it"


@dataclass(frozen=True)
class Gone:
    """One removed or removable item: a name of the store, a blob, an image of a registry.

    `size` is the number of bytes that its removal frees here.
    """

    what: str
    why: str
    size: int = 0


def named_at(
    place: ChannelPlace,
    store: HistoryStore,
    lines: Iterable[ChannelLine],
    trust: Sequence[SSlibKey],
) -> dict[str, str]:
    """Return what the histories of a place name, and why. Update the store's copies of them.

    Raises GoldnodeError for an unreadable history.
    """
    digests: dict[str, str] = {}
    for line in lines:
        text = place.text(line)
        # All entries, not only the present targets: a rollback needs the earlier ones.
        digests |= named(place.name, line, text, trust)
        # Leave the store's copy alone if the history of the place does not continue it.
        if text.startswith(saved_history(store, place.name, line)):
            save_history(store, place.name, line, text)
    return digests


def named_here(
    keeper: HistoryStore,
    trust: Sequence[SSlibKey] = (),
    as_line: Callable[[ChannelLine], ChannelLine] = lambda line: line,
) -> dict[str, str]:
    """Return what a store's copies of histories name, and why. Raises GoldnodeError for an unreadable one."""
    digests: dict[str, str] = {}
    # Places that cannot be reached now, too: their copies name what they need.
    for place, one in saved_places(keeper):
        digests |= named(place, as_line(one), saved_history(keeper, place, one), trust)
    return digests


def named(place: str, line: ChannelLine, text: bytes, trust: Sequence[SSlibKey]) -> dict[str, str]:
    """Return what one history names, and why."""
    history = read(text, line, trust, where=f"{place}/{line}")
    return {digest: f"{why} at {place}" for digest, why in history.digests().items()}


def lock_digests(
    files: Mapping[str, Path], load: Callable[[Path], Sealed], what: str
) -> dict[str, str]:
    """Return the digests of locks with their owners, so that the content they would build is retained.

    Raises GoldnodeError for an unreadable lock: its content is unknown and must not be removed.
    """
    return {load(path).digest: f"the {what} of {name}" for name, path in sorted(files.items())}
