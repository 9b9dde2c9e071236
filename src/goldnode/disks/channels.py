"""Channels of disk images: the gates that a disk must pass, and the places that hold channels.

A place is a local store or a published directory. Histories, promotions and rollbacks are those of container
images (`goldnode.images.channels`). A line is a node class, an immutable tag is a build id, and a digest is
that of the build's manifest. Unlike a registry, a directory has a lock that excludes other writers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from goldnode.channels import moves as channels_moves
from goldnode.channels.history import CHANNELS, History, Line
from goldnode.channels.requirements import (
    Approval,
    Gate,
    Waiver,
)
from goldnode.core.errors import DiskError
from goldnode.disks import evidence
from goldnode.disks.lines import ClassLine
from goldnode.disks.model import BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace, StorePlace
from goldnode.disks.requirements import judge

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.channels.moves import Moved, Say
    from goldnode.evidence.signatures import Signer


# Gates


# Where channels are


# Moving


def promote(
    place: StorePlace | DirectoryPlace,
    store: ChannelStore,
    line: ClassLine,
    build_id: str,
    channel: str,
    signer: Signer,
    *,
    by: str,
    reason: str = "",
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[Waiver] = (),
    approvals: Sequence[Approval] = (),
    expect: str | None = None,
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel of a class to a build if every gate is open. See `goldnode.images.channels.advance`."""
    keys = (*trust, signer.public)

    def judging(history: History, digest: str, against: str | None) -> tuple[list[Gate], list[str]]:
        disk, before, lost = place.disk(line, digest), None, ""
        if against is not None and against != digest:
            try:
                before = place.disk(line, against)
            except DiskError as problem:
                lost = problem.message
        gates = judge(
            channel,
            disk,
            trust=keys,
            waivers=waivers,
            approvals=approvals,
            history=history,
            against=before,
            lost=lost,
        )
        return gates, _notes(before, disk)

    with _turn(place):
        # settle=0: the lock excludes other writers, so there is no need to wait for a concurrent promotion.
        return channels_moves.advance(
            place,
            store,
            line,
            build_id,
            channel,
            signer,
            judging,
            by=by,
            reason=reason,
            expect=expect,
            trust=trust,
            approvals=approvals,
            settle=0,
            say=say,
            now=now,
        )


def rollback(
    place: StorePlace | DirectoryPlace,
    store: ChannelStore,
    line: ClassLine,
    signer: Signer,
    *,
    by: str,
    reason: str,
    channel: str = "stable",
    to: str | None = None,
    trust: Sequence[SSlibKey] = (),
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel back to its previous build.

    `to` selects another one: for `known-good`, or a build id or digest of the history.
    """
    given: dict[str, Any] = {
        "by": by,
        "reason": reason,
        "channel": channel,
        "to": to,
        "trust": trust,
        "say": say,
        "now": now,
    }
    with _turn(place):
        return channels_moves.rollback(place, store, line, signer, settle=0, **given)


def repair(
    place: StorePlace | DirectoryPlace, store: ChannelStore, line: Line, trust: Sequence[SSlibKey], say: Say
) -> list[channels_moves.Stand]:
    """Point every channel to the target of the signed history again, and upload history entries that were
    added offline.
    """
    with _turn(place):
        return channels_moves.repair(place, store, line, trust, settle=0, say=say)


def _turn(place: StorePlace | DirectoryPlace) -> contextlib.AbstractContextManager[None]:
    return place.turn() if isinstance(place, DirectoryPlace) else contextlib.nullcontext()


def _notes(before: BuiltDisk | None, disk: BuiltDisk) -> list[str]:
    found = ["the class is simulated: no GPU was in it"] if disk.simulated else []
    if before is None:
        return found
    was, now = evidence.facts(before), evidence.facts(disk)
    found += [
        f"{name}: {was.get(name, 'none')} to {now.get(name, 'none')}"
        for name in ("kernel", "driver", "loader")
        if was.get(name) != now.get(name)
    ]
    old, new = ({row.name: row.version for row in one.packages} for one in (before, disk))
    moved = len([name for name in old.keys() | new.keys() if old.get(name) != new.get(name)])
    return [*found, f"{moved} packages differ"] if moved else found


def standing(store: ChannelStore, line: ClassLine, channel: str, place: str | None = None) -> BuiltDisk:
    """Return the build of the store that a channel points to, as the store last saw it.

    `place` selects the channel's location; the default is the only known one. Raises DiskError if there is no
    such build, or more than one.
    """
    if channel not in CHANNELS:
        from goldnode.core.errors import nearest

        raise DiskError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    places = (
        [place]
        if place
        else [name for name, one in channels_moves.local_places(store) if one.repository == line.repository]
    )
    digests = {name: store.named(channels_moves.local_name(name, line, channel)) for name in places}
    found = {digest for digest in digests.values() if digest is not None}
    if len(found) != 1:
        told = ", ".join(places) or "no place"
        what = "stands for nothing" if not found else f"stands for {len(found)} builds"
        raise DiskError(
            f"{channel} of {line} {what} in {store.root} (of {told})",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    disk = store.disk(found.pop(), line.repository)
    if disk is None:
        raise DiskError(
            f"what {channel} of {line} stands for is not in {store.root}",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    return disk
