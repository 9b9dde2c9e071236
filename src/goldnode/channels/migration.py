"""Histories of the last release become signed targets, with their whole past.

A history was a text with one DSSE envelope per line, each with the sha256 of the previous one, in the form
`goldnode.history/1`. A key that a person trusts has to have signed its last entry, which covers all before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from goldnode.channels import signed
from goldnode.channels.lines import CHANNELS, ChannelLine, RecordedMove
from goldnode.channels.promotion import ChannelPlace, HistoryStore, alone, commit, look
from goldnode.channels.signed import ChannelSigners
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.evidence import signatures

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

SCHEMA = "goldnode.history/1"
ENTRY = "application/vnd.goldnode.history-entry.v1+json"
TYPE = "application/vnd.goldnode.history.v1+jsonl"


class FormerPlace(ChannelPlace, Protocol):
    """A place that may have histories of an earlier version."""

    def former(self, line: ChannelLine) -> bytes:
        """Return the history of a line; empty without one."""

    def retire(self, line: ChannelLine) -> None:
        """Put the history of a line aside, where the place can do that."""


@dataclass(frozen=True)
class Migration:
    """The moves of each line that have to be, or were, added to the signed channels of a place."""

    place: str
    moves: Mapping[str, int]
    signed_by: tuple[str, ...]
    applied: bool


def read(
    text: bytes, line: ChannelLine, trust: Sequence[SSlibKey], where: str
) -> list[RecordedMove]:
    """Read a history, and verify its chain and the signature of its last entry. Raises ImageError."""

    def wrong(number: int, why: str) -> ImageError:
        return ImageError(
            f"the history of {line} is not what was signed: entry {number} {why}",
            file=where,
            line=number,
            remedy="find out who changed it; a store that saw it earlier has an unaltered copy",
        )

    moves: list[RecordedMove] = []
    previous: str | None = None
    unsigned = "is missing"
    for number, row in enumerate(text.splitlines(keepends=True), start=1):
        try:
            kind = json.loads(row)["payloadType"]
            document = json.loads(signatures.payload_of(row))
            moves.append(RecordedMove(**document))
            follows = document["number"] == number and document["previous"] == previous
            right = kind == ENTRY and document["schema"] == SCHEMA and row.endswith(b"\n")
            own = document["line"] == str(line)
        except (ImageError, ValueError, KeyError, TypeError, AttributeError):
            raise wrong(number, "cannot be read") from None
        if not (follows and right and own):
            raise wrong(number, "does not follow the one before it in this line")
        previous = "sha256:" + hashlib.sha256(row).hexdigest()
        try:
            signatures.open_envelope(row, trust)
            unsigned = ""
        except ImageError as problem:
            unsigned = unsigned or problem.message
    if unsigned:
        raise wrong(len(moves), f"has no good signature: {unsigned}")
    return moves


def saved(store: HistoryStore, place: str, line: ChannelLine) -> Path:
    """Return the file with a store's copy of the history of a line."""
    folder = store.root / "channels" / quote(place, safe="") / quote(line.repository, safe="")
    return folder / f"{quote(line.name, safe='')}.jsonl"


def saved_lines(store: HistoryStore, place: str) -> list[ChannelLine]:
    """Return the lines of which a store has a copy of the history at a place."""
    folder = store.root / "channels" / quote(place, safe="")
    return [
        ChannelLine(unquote(path.parent.name), unquote(path.stem))
        for path in sorted(folder.glob("*/*.jsonl"))
    ]


def migrate(
    place: FormerPlace,
    store: HistoryStore,
    lines: Sequence[ChannelLine],
    trust: Sequence[SSlibKey],
    *,
    signers: ChannelSigners | None,
    roots: Sequence[Path] = (),
) -> Migration:
    """Add the moves of former histories to the signed channels of a place, in one write.

    Without `signers` nothing is changed. It can be repeated: moves that are there already are not added again.
    Raises GoldnodeError.
    """
    with alone(place, store):
        channels = look(place.files(), place.name, store, roots).there
        if not channels.files:
            raise ImageError(
                f"{place.name} has no signed channels yet",
                remedy=f"make them first: `{signed.KEYS}`",
            )
        moves: dict[str, list[RecordedMove]] = {}
        fresh: dict[str, int] = {}
        number = channels.next
        for line in lines:
            text = _text(place, store, line)
            past = read(text, line, trust, f"{place.name}/{line}") if text else []
            present = channels.history(line).entries
            there = {_identity(move) for move in present}
            if past:
                fresh[str(line)] = len([move for move in past if _identity(move) not in there])
            if not fresh.get(str(line)):
                continue
            rows: list[RecordedMove] = []
            # The past comes first. Numbers grow within a line, also where it was moved since.
            for move in (*(row for row in past if _identity(row) not in there), *present):
                rows.append(replace(move, number=number))
                number += 1
            moves |= _by_target(place, line, rows)
        names = tuple(sorted(key.keyid[:16] for key in trust))
        if signers is None:
            return Migration(place.name, fresh, names, False)
        if moves:
            with signed.opened(channels.files) as repository:
                signed.release(repository, {**channels.moves, **moves}, signers)
                after = signed.read_folder(repository / signed.FOLDER)
            commit(place, store, channels.files, after)
        # Only now: an interrupted run finds the histories again.
        for line in lines:
            place.retire(line)
            copy = saved(store, place.name, line)
            if copy.is_file():
                copy.rename(copy.with_suffix(".migrated"))
        return Migration(place.name, fresh, names, True)


def _text(place: FormerPlace, store: HistoryStore, line: ChannelLine) -> bytes:
    """Return the longer one of a place's history and the store's copy of it."""
    there, copy = place.former(line), saved(store, place.name, line)
    here = copy.read_bytes() if copy.is_file() else b""
    longer = max(there, here, key=len)
    if not (longer.startswith(there) and longer.startswith(here)):
        raise ImageError(
            f"the history of {line} at {place.name} and this store's copy of it went different ways",
            file=copy,
            remedy="give one up: move the store's copy away, or restore the other",
        )
    return longer


def _by_target(
    place: ChannelPlace, line: ChannelLine, rows: Sequence[RecordedMove]
) -> dict[str, list[RecordedMove]]:
    targets = {}
    for channel in CHANNELS:
        moves = [move for move in rows if move.channel == channel]
        if moves:
            moves[-1] = replace(moves[-1], size=_size(place, line, moves[-1].now))
            targets[line.target(channel)] = moves
    return targets


def _identity(move: RecordedMove) -> tuple[str, ...]:
    return move.channel, move.date, move.action, move.now, move.by


def _size(place: ChannelPlace, line: ChannelLine, digest: str) -> int:
    try:
        return place.whole(line, digest)
    except GoldnodeError:
        return 0  # an image that is gone stays in the past
