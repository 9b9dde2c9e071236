"""Channels of disk images: promotion by the requirements of a disk, and the build that a channel points to.

Signed channels, promotions and rollbacks are those of all images (`goldnode.channels.promotion`). A line is a node
class, an immutable tag is a build id, and a digest is that of the build's manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from goldnode.channels import promotion, signed
from goldnode.channels.lines import CHANNELS, History
from goldnode.channels.promotion import Move, MoveResult
from goldnode.channels.requirements import Requirement
from goldnode.core.errors import DiskError, nearest
from goldnode.disks import evidence
from goldnode.disks.lines import ClassLine
from goldnode.disks.model import BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace, DiskStorePlace
from goldnode.disks.requirements import judge


def promote(place: DiskStorePlace | DirectoryPlace, store: ChannelStore, move: Move) -> MoveResult:
    """Point a channel of a class to a build; see `goldnode.channels.promotion.promote`."""

    def judging(
        history: History, digest: str, against: str | None
    ) -> tuple[list[Requirement], list[str]]:
        disk, before, lost = place.disk(move.line, digest), None, ""
        if against is not None and against != digest:
            try:
                before = place.disk(move.line, against)
            except DiskError as problem:
                lost = problem.message
        results = judge(move.channel, disk, move.decisions(history), against=before, lost=lost)
        return results, _notes(before, disk)

    return promotion.promote(place, store, move, judging)


def _notes(before: BuiltDisk | None, disk: BuiltDisk) -> list[str]:
    notes = ["the class is simulated: no GPU was in it"] if disk.simulated else []
    if before is None:
        return notes
    was, now = evidence.facts(before), evidence.facts(disk)
    notes += [
        f"{name}: {was.get(name, 'none')} to {now.get(name, 'none')}"
        for name in ("kernel", "driver", "loader")
        if was.get(name) != now.get(name)
    ]
    old, new = ({row.name: row.version for row in one.packages} for one in (before, disk))
    moved = len([name for name in old.keys() | new.keys() if old.get(name) != new.get(name)])
    return [*notes, f"{moved} packages differ"] if moved else notes


def channel_head(
    store: ChannelStore,
    line: ClassLine,
    channel: str,
    place: str | None = None,
    *,
    roots: Sequence[Path] = (),
) -> BuiltDisk:
    """Return the build of the store that a channel points to, as the store last saw it.

    `place` selects the channel's location; the default is the only known one. With `roots` the channels are verified
    by these documents, and not by the root in the store. Raises DiskError if there is no such build, or more than
    one, and GoldnodeError for channels that are not signed.
    """
    if channel not in CHANNELS:
        raise DiskError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    places = [place] if place else signed.seen_places(store)
    digests = {name: _pointed(store, name, line, channel, roots) for name in places}
    promoted = {digest for digest in digests.values() if digest is not None}
    if len(promoted) != 1:
        listed = ", ".join(places) or "no place"
        what = "points to nothing" if not promoted else f"points to {len(promoted)} builds"
        raise DiskError(
            f"{channel} of {line} {what} in {store.root} (of {listed})",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    disk = store.disk(promoted.pop(), line.repository)
    if disk is None:
        raise DiskError(
            f"the disk of {channel} of {line} is not in {store.root}",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    return disk


def _pointed(
    store: ChannelStore, place: str, line: ClassLine, channel: str, roots: Sequence[Path]
) -> str | None:
    copy = signed.seen(store, place)
    # A place of another publisher, with other roots, does not matter unless it has this channel.
    if signed.unverified(copy).history(line).current(channel) is None:
        return None
    last = signed.verified(copy, place, roots, copy, older=True).history(line).current(channel)
    return last.now if last is not None else None
