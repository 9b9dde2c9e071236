"""Events of channels: moves of image and disk channels, and versions of channels that nodes follow.

The moves are those of a store's copy of the signed channels of a place, and have numbers there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from goldnode.channels import signed
from goldnode.channels.lines import ChannelLine, RecordedMove
from goldnode.channels.updates import UpdateError
from goldnode.disks.lines import DISK
from goldnode.fleet.events.event import FleetEvent, identity
from goldnode.node.ground.text import phrase

LOGGER = logging.getLogger("goldnode.events")


def places(directory: Path) -> dict[str, int]:
    """Return the channels in a directory, each with the number of its last move or version."""
    places = {str(folder): _moves(folder)[-1][1].number for folder in _copies(directory)}
    versions = _versions(directory)
    if versions:
        places[str(directory / "metadata")] = versions[-1]
    return places


def read(name: str, after: int) -> tuple[list[FleetEvent], int]:
    """Return the events of a store's copy or a published channel after a number, and the last number."""
    path = Path(name)
    if path.parent.parent.name != "channels":
        versions = [one for one in _versions(path.parent) if one > after]
        return [_published(path.parent, one) for one in versions], max([after, *versions])
    rows = [(line, move) for line, move in _moves(path) if move.number > after]
    return [_moved(path, line, move) for line, move in rows], max(
        [after, *(move.number for _, move in rows)]
    )


def _copies(directory: Path) -> Iterator[Path]:
    yield from (
        path for path in sorted((directory / "channels").glob("*/metadata")) if _moves(path)
    )


def _moves(folder: Path) -> list[tuple[ChannelLine, RecordedMove]]:
    """Return the moves of a store's copy of channels in order; none of a copy that cannot be read."""
    try:
        channels = signed.unverified(signed.read_folder(folder))
    except UpdateError as problem:
        LOGGER.warning("%s: %s", folder, problem)
        return []
    rows = [(line, move) for line in channels.lines() for move in channels.history(line).entries]
    return sorted(rows, key=lambda row: row[1].number)


def _versions(directory: Path) -> list[int]:
    """Return the versions of a published channel: each publication has a snapshot, of a release or of orders alone."""
    names = (path.name.split(".")[0] for path in (directory / "metadata").glob("*.snapshot.json"))
    return sorted(int(name) for name in names if name.isdigit())


def _published(directory: Path, version: int) -> FleetEvent:
    file = directory / "metadata" / f"{version}.snapshot.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return FleetEvent(
        id=identity("published", digest),
        at=file.stat().st_mtime,
        kind="channel.published",
        severity="info",
        source="channel",
        subject=directory.name,
        text=f"channel {directory.name} has version {version}",
        details={"version": version, "directory": str(directory)},
        channel=directory.name,
    )


def _moved(folder: Path, line: ChannelLine, move: RecordedMove) -> FleetEvent:
    """Return the event of a move. Signatures are verified where a channel is used, not here."""
    place, target = unquote(folder.parent.name), line.target(move.channel)
    name = line.repository if line.name == DISK else str(line)
    at = datetime.fromisoformat(move.date)
    back = move.action == "rollback"
    reason = phrase(": {}", move.reason)
    return FleetEvent(
        id=identity("moved", f"{place} {target} {move.number} {move.now}"),
        at=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(),
        kind="channel.moved",
        severity="warning" if back else "info",
        source="channel",
        subject=name,
        text=f"{move.channel} of {name} is {'rolled back' if back else 'moved'} to {move.tag}{reason}",
        details={
            "action": move.action,
            "from": move.was,
            "to": move.now,
            "tag": move.tag,
            "by": move.by,
            "reason": move.reason,
            "place": place,
        },
        channel=move.channel,
    )
