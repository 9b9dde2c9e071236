"""Channels of disk images: promotion by the requirements of a disk, and the build that a channel points to.

Histories, promotions and rollbacks are those of all images (`goldnode.channels.moves`). A line is a node
class, an immutable tag is a build id, and a digest is that of the build's manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from goldnode.channels import moves
from goldnode.channels.history import CHANNELS, History, read
from goldnode.channels.moves import Move, MoveResult
from goldnode.channels.requirements import Requirement
from goldnode.core.errors import DiskError, nearest
from goldnode.disks import evidence
from goldnode.disks.lines import ClassLine
from goldnode.disks.model import BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace, DiskStorePlace
from goldnode.disks.requirements import judge

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


def promote(place: DiskStorePlace | DirectoryPlace, store: ChannelStore, move: Move) -> MoveResult:
    """Point a channel of a class to a build; see `goldnode.channels.moves.promote`."""

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

    return moves.promote(place, store, move, judging)


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
    trust: Sequence[SSlibKey] = (),
) -> BuiltDisk:
    """Return the build of the store that a channel points to, as the store last saw it.

    `place` selects the channel's location; the default is the only known one. With `trust` the signed history
    decides, and not the name that the store has for it. Raises DiskError if there is no such build, or more than one,
    and ImageError for a history that is not signed.
    """
    if channel not in CHANNELS:
        raise DiskError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    if place:
        places = [place]
    else:
        places = [
            name for name, one in moves.saved_places(store) if one.repository == line.repository
        ]
    digests = {name: _pointed(store, name, line, channel, trust) for name in places}
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
    store: ChannelStore, place: str, line: ClassLine, channel: str, trust: Sequence[SSlibKey]
) -> str | None:
    if not trust:
        return store.named(moves.local_name(place, line, channel))
    text = moves.saved_history(store, place, line)
    last = read(text, line, trust, where=f"{place}/{line}").current(channel)
    return last.now if last is not None else None
