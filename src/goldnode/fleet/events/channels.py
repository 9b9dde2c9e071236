"""Events of channels: histories of image and disk channels, and versions of channels that nodes follow.

A history is an append-only file, and each entry names the one before it, so its digest is the
identity of the event.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from goldnode.channels.history import HistoryEntry
from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import payload_of
from goldnode.fleet.events.event import FleetEvent, identity
from goldnode.node.ground.text import phrase


def places(directory: Path) -> dict[str, int]:
    """Return the histories and the published channel in a directory, each with the number of its last entry."""
    lines = {str(file): file.read_bytes().count(b"\n") for file in _histories(directory)}
    versions = _versions(directory)
    if versions:
        lines[str(directory / "metadata")] = versions[-1]
    return lines


def read(name: str, after: int) -> tuple[list[FleetEvent], int]:
    """Return the events of a history or a published channel after a number, and the last number."""
    path = Path(name)
    if path.name == "metadata":
        versions = [one for one in _versions(path.parent) if one > after]
        return [_published(path.parent, one) for one in versions], max([after, *versions])
    rows = path.read_bytes().splitlines(keepends=True)
    whole = [row for row in rows if row.endswith(b"\n")]
    return [_moved(path, row) for row in whole[after:]], max(after, len(whole))


def _histories(directory: Path) -> Iterator[Path]:
    yield from sorted((directory / "channels").glob("*/*/*.jsonl"))


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


def _moved(file: Path, row: bytes) -> FleetEvent:
    """Return the event of an entry. Signatures are verified where a channel is used, not here."""
    digest = hashlib.sha256(row).hexdigest()
    place, repository, line = (unquote(part) for part in (*file.parts[-3:-1], file.stem))
    try:
        entry = HistoryEntry.of(json.loads(payload_of(row)))
        at = datetime.fromisoformat(entry.date)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    except (ImageError, ValueError, KeyError, TypeError, AttributeError):
        return FleetEvent(
            id=identity("moved", digest),
            at=file.stat().st_mtime,
            kind="channel.moved",
            severity="warning",
            source="channel",
            subject=f"{repository}:{line}",
            text=f"the history of {repository}:{line} at {place} has an entry that cannot be read",
            details={"file": str(file)},
        )
    back = entry.action == "rollback"
    reason = phrase(": {}", entry.reason)
    return FleetEvent(
        id=identity("moved", digest),
        at=at.timestamp(),
        kind="channel.moved",
        severity="warning" if back else "info",
        source="channel",
        subject=entry.line,
        text=f"{entry.channel} of {entry.line} is {'rolled back' if back else 'moved'} to {entry.tag}{reason}",
        details={
            "action": entry.action,
            "from": entry.was,
            "to": entry.now,
            "tag": entry.tag,
            "by": entry.by,
            "reason": entry.reason,
            "place": place,
        },
        channel=entry.channel,
    )
