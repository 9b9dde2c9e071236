"""Channels: candidate, canary, stable and known-good, moved one at a time; each move is recorded before it
becomes visible.

A channel consists of the line's signed history, which is the authority, and a tag, which users pull. A move
writes the history first and the channel's tag second, one write each. A run that ends before the first write
leaves the old state. A run that ends between them leaves users at the old image, and the same command
completes it. No other state is visible.

A registry has no compare-and-set. So a writer reads the history again right before it writes, waits `settle`
seconds, reads it back, and touches the tag only if the history is still its own. Of two writers the later one
wins, and the earlier one gets an error.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from goldnode.channels.history import CHANNELS, Entry, History, Line, add, read
from goldnode.channels.locks import disk, lane, using
from goldnode.channels.requirements import NO_SOAK, Approval, Gate, refuse
from goldnode.core.errors import GoldnodeError, ImageError, nearest
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import Signer


SETTLE = 1.0
Say = Callable[[str], None]


class Place(Protocol):
    """Where channels are: a registry, or a store by itself."""

    name: str
    command: str  # what publishes to it and shows it
    settles: bool  # whether another writer could have written meanwhile

    @property
    def copy(self) -> bool:
        """Return whether it is a copy of another place."""

    def text(self, line: Line) -> bytes:
        """Return the history, empty if there is none."""

    def commit(self, line: Line, text: bytes) -> None:
        """Let the history be `text`: one write that is seen whole or not at all."""

    def pointer(self, line: Line, channel: str) -> str | None:
        """Return the digest that a channel's tag points to."""

    def point(self, line: Line, channel: str, digest: str) -> None:
        """Point a channel's tag to an image."""

    def published(self, line: Line, tag: str) -> str | None:
        """The digest of an immutable tag."""

    def whole(self, line: Line, digest: str) -> None:
        """Raise ImageError where the image is not there with all its blobs."""

    def lines(self, repository: str) -> list[Line]:
        """The lines that have a history there."""

    def send_again(self, line: Line, digest: str) -> bool:
        """Bring an image that the place lost there again. False where that cannot be done."""


class Keeper(Protocol):
    """A store that caches channel histories and has local names for the targets of channels."""

    @property
    def root(self) -> Path:
        """Its directory."""

    def name_as(self, name: str, digest: str) -> None:
        """Point `name` to an image of this store. Without that image, remove the name rather than leave it on
        the wrong one.
        """


class KeptPlace:
    """Common base of places that are local stores. With the `name` of another place it is this store's copy
    of that place, for when that is unreachable.
    """

    settles = False

    def __init__(self, keeper: Keeper, name: str = "store") -> None:
        self.keeper, self.name = keeper, name

    @property
    def copy(self) -> bool:
        """Whether it is a copy of another place."""
        return self.name != "store"

    def text(self, line: Line) -> bytes:
        return local_text(self.keeper, self.name, line)

    def commit(self, line: Line, text: bytes) -> None:
        keep(self.keeper, self.name, line, text)

    def point(self, line: Line, channel: str, digest: str) -> None:
        _local_point(self.keeper, self.name, line, channel, digest)

    def lines(self, repository: str) -> list[Line]:
        return local_lines(self.keeper, self.name, repository)

    def send_again(self, line: Line, digest: str) -> bool:
        return False


@dataclass
class Moved:
    """Result of a promotion or a rollback. `entry` is None if there was nothing to do, or only the move of an
    earlier run to complete.
    """

    line: Line
    channel: str
    now: str
    tag: str
    was: str | None = None
    entry: Entry | None = None
    gates: list[Gate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _file(layout: Keeper, place: str, line: Line) -> Path:
    return (
        layout.root
        / "channels"
        / quote(place, safe="")
        / quote(line.repository, safe="")
        / f"{quote(line.name, safe='')}.jsonl"
    )


def local_text(layout: Keeper, place: str, line: Line) -> bytes:
    """The history of a line as this store last saw it, with what was added to it offline."""
    try:
        return _file(layout, place, line).read_bytes()
    except FileNotFoundError:
        return b""


def local_lines(layout: Keeper, place: str, repository: str) -> list[Line]:
    """The lines of a repository of which the store has a copy of the history."""
    folder = layout.root / "channels" / quote(place, safe="") / quote(repository, safe="")
    return [Line(repository, unquote(path.stem)) for path in sorted(folder.glob("*.jsonl"))]


def local_places(layout: Keeper) -> list[tuple[str, Line]]:
    """Every place and line of which the store has a history."""
    found: list[tuple[str, Line]] = []
    for path in sorted((layout.root / "channels").glob("*/*/*.jsonl")):
        place, repository = unquote(path.parent.parent.name), unquote(path.parent.name)
        found.append((place, Line(repository, unquote(path.stem))))
    return found


def keep(layout: Keeper, place: str, line: Line, text: bytes) -> None:
    """Write the store's copy of a history, whole or not at all. Raises ImageError where it would not go on from the one that is there."""
    path = _file(layout, place, line)
    have = local_text(layout, place, line)
    if have == text:
        return
    if not text.startswith(have):
        raise _diverged(place, line)
    with disk(layout):
        replace_file(path, text)


def _diverged(place: str, line: Line) -> ImageError:
    return ImageError(
        f"the history of {line} at {place} and this store's copy of it went different ways",
        remedy="see what each says (`status --history`); then give one up: move the store's copy away, or restore the other",
    )


def advance(
    place: Place,
    layout: Keeper,
    line: Line,
    tag: str,
    channel: str,
    signer: Signer,
    judging: Callable[[History, str, str | None], tuple[list[Gate], list[str]]],
    *,
    by: str | None,
    reason: str | None = "",
    expect: str | None = None,
    trust: Sequence[SSlibKey] = (),
    approvals: Sequence[Approval] = (),
    settle: float = SETTLE,
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel to the item with an immutable tag if every requirement is met. Pointers move; nothing
    is copied.

    `judging` gets the history, the item's digest and that of its predecessor (None: none), and returns the
    requirements and notes. `trust` verifies histories, in addition to the signer's own key; `expect` is the
    (beginning of the) expected current digest of the channel. Raises ImageError if a requirement is not met,
    if others moved a tag, and if another writer moves the same line.
    """
    if channel not in CHANNELS:
        raise ImageError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    keys = (*trust, signer.public)
    with using(layout), lane(layout, f"{place.name}/{line}"):
        history = _load(place, layout, line, keys, settle, say)
        digest = place.published(line, tag)
        if digest is None:
            raise ImageError(
                f"{place.name}/{line.repository}:{tag} is not there",
                remedy=f"publish it first: {place.command} publish",
            )
        for entry in history.entries:
            if entry.tag == tag and entry.now != digest:
                raise ImageError(
                    f"{place.name}/{line.repository}:{tag} is {digest}, and was {entry.now} when it was promoted to {entry.channel}: the tag was moved",
                    remedy="find out who did; put it back with the image of that digest",
                )
        last = history.current(channel)
        was = last.now if last else None
        if expect is not None and not (was or "none").removeprefix("sha256:").startswith(
            expect.removeprefix("sha256:")
        ):
            raise ImageError(
                f"{channel} of {line} is {was or 'none'}, expected {expect}",
                remedy=f"look at `{place.command} status`",
            )
        found = place.pointer(line, channel)
        _foreign(place, line, channel, history, found)
        moved = Moved(line, channel, digest, tag, was)
        place.whole(line, digest)
        if was == digest:
            if found == digest:
                moved.notes.append(f"{channel} of {line} is {tag} already")
            else:
                _point(place, layout, line, channel, digest, history)
                moved.notes.append(
                    f"{channel} of {line}: the promotion of {last.date if last else ''} was not finished, and is now"
                )
            keep(layout, place.name, line, history.text)
            return moved
        base = last or history.current("stable")
        gates, notes = judging(history, digest, base.now if base is not None else None)
        moved.gates = gates
        refuse(channel, f"{line.repository}:{tag}", gates)
        moved.notes += notes
        if channel in ("canary", "stable", "known-good"):
            moved.notes.append(NO_SOAK)
        _others(place, line, channel, history, moved)
        entry = Entry(
            str(line),
            len(history.entries) + 1,
            history.head,
            "promote",
            channel,
            was,
            digest,
            tag,
            str(by),
            _stamp(now),
            reason or "",
            tuple(gate.document() for gate in gates),
            tuple({"part": one.part, "by": one.by, "reason": one.reason} for one in approvals),
            tuple(moved.notes),
        )
        moved.entry = entry
        _move(place, layout, history, entry, signer, keys, settle)
    return moved


def rollback(
    place: Place,
    layout: Keeper,
    line: Line,
    signer: Signer,
    *,
    by: str,
    reason: str,
    channel: str = "stable",
    to: str | None = None,
    trust: Sequence[SSlibKey] = (),
    settle: float = SETTLE,
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel to its previous item; `to`: to `known-good`, or to an item that the history names
    (digest or immutable tag).

    The rollback of an earlier run is completed first, and then this one goes no further. At a store's copy of
    a registry (`StorePlace`), only this store is used and changed; the next promotion or rollback that
    reaches the registry updates it. Raises ImageError.
    """
    if channel not in CHANNELS:
        raise ImageError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    keys = (*trust, signer.public)
    with using(layout), lane(layout, f"{place.name}/{line}"):
        history = _load(place, layout, line, keys, settle, say)
        last = history.current(channel)
        if last is None:
            known = ", ".join(one for one in CHANNELS if history.current(one)) or "none"
            raise ImageError(
                f"{channel} of {line} never stood for anything (of its channels: {known})",
                remedy=f"look at `{place.command} status`",
            )
        moved = Moved(line, channel, "", "", last.now)
        found = place.pointer(line, channel)
        if last.action == "rollback" and found != last.now and found == last.was and to is None:
            moved.now, moved.tag = last.now, last.tag
            _present(place, line, last.now)
            _point(place, layout, line, channel, last.now, history)
            moved.notes.append(
                f"the rollback of {last.date} was not finished, and is now; run it again to go further back"
            )
            keep(layout, place.name, line, history.text)
            return moved
        target = _way_back(history, channel, to, place.command)
        moved.now, moved.tag = target.now, target.tag
        if found not in (last.now, None):
            moved.notes.append(f"the tag of {channel} stood for {found}, where the history says {last.now}")
        _present(place, line, target.now)
        if place.copy:
            moved.notes.append(
                f"{place.name} has not seen this yet: the next promotion or rollback that reaches it brings it there"
            )
        else:
            _others(place, line, channel, history, moved)
        entry = Entry(
            str(line),
            len(history.entries) + 1,
            history.head,
            "rollback",
            channel,
            last.now,
            target.now,
            target.tag,
            by,
            _stamp(now),
            reason,
            (),
            (),
            tuple(moved.notes),
        )
        moved.entry = entry
        _move(place, layout, history, entry, signer, keys, settle)
    return moved


def _way_back(history: History, channel: str, to: str | None, command: str) -> Entry:
    """Where a rollback leads. Raises ImageError where there is nothing to go back to."""
    last = history.current(channel)
    if to in CHANNELS:
        found = history.current(to)
        if found is None:
            raise ImageError(
                f"{to} of {history.line} stands for nothing",
                remedy="name a digest of the history instead; `status --history` lists them",
            )
    elif to is not None:
        fits = {
            entry.now: entry
            for entry in history.entries
            if entry.tag == to
            or (len(to) >= 12 and entry.now.removeprefix("sha256:").startswith(to.removeprefix("sha256:")))
        }
        if len(fits) != 1:
            raise ImageError(
                f'the history of {history.line} names {len(fits) or "no"} images "{to}"',
                remedy=nearest(to, [entry.tag for entry in history.entries]),
            )
        found = next(iter(fits.values()))
    else:
        stack = [entry for entry in history.stack(channel) if last is None or entry.now != last.now]
        found = stack[-1] if stack else None
        good = history.current("known-good")
        if found is None and good is not None and last is not None and good.now != last.now:
            found = good
        if found is None:
            raise ImageError(
                f"{channel} of {history.line} stood for nothing before",
                remedy="promote an image that is known to work",
            )
    if last is not None and found.now == last.now:
        raise ImageError(
            f"{channel} of {history.line} is {found.tag} already",
            remedy=f"look at `{command} status --history`",
        )
    return found


def _present(place: Place, line: Line, digest: str) -> None:
    """See to it that an image is whole at a place; a registry that lost it gets it from the store."""
    try:
        place.whole(line, digest)
    except GoldnodeError:
        if not place.send_again(line, digest):
            raise
        place.whole(line, digest)


def _load(
    place: Place, layout: Keeper, line: Line, keys: Sequence[SSlibKey], settle: float, say: Say
) -> History:
    """Return the verified history of a place, joined with the store's copy: the longer one if it begins with
    the other.
    """
    there, here = place.text(line), local_text(layout, place.name, line)
    if there == here or there.startswith(here):
        return read(there, line, keys, where=f"{place.name}/{line}")
    if not here.startswith(there):
        raise _diverged(place.name, line)
    known = read(there, line, keys, where=f"{place.name}/{line}")
    history = read(here, line, keys, where=str(_file(layout, place.name, line)))
    pending = history.entries[len(known.entries) :]
    for entry in pending:
        _present(place, line, entry.now)
    place.commit(line, here)
    time.sleep(settle)
    if place.text(line) != here:
        raise _raced(place, line)
    for channel in dict.fromkeys(entry.channel for entry in pending):
        current = history.current(channel)
        if current is not None:
            place.point(line, channel, current.now)
            say(
                f"{place.name}: {channel} of {line} is {current.tag}, as was decided in this store on {current.date}"
            )
    return history


def _move(
    place: Place,
    layout: Keeper,
    history: History,
    entry: Entry,
    signer: Signer,
    keys: Sequence[SSlibKey],
    settle: float,
) -> None:
    line, after = history.line, add(history, entry, signer)
    if place.text(line) != history.text:
        raise _raced(place, line)
    place.commit(line, after.text)  # from here on the move is decided
    time.sleep(settle if place.settles else 0)
    if not place.text(line).startswith(after.text):
        raise _raced(place, line)
    place.point(line, entry.channel, entry.now)
    there = place.text(line)
    if not there.startswith(after.text):
        # Another writer overwrote it after all: the tag follows the current history, by any writer.
        other = read(there, line, keys, where=f"{place.name}/{line}").current(entry.channel)
        if other is not None:
            place.point(line, entry.channel, other.now)
        raise _raced(place, line)
    found = place.pointer(line, entry.channel)
    if there == after.text and found != entry.now:
        raise ImageError(
            f"the tag of {entry.channel} of {line} is {found or 'none'} after it was given to {entry.now}: somebody else moves it",
            remedy="run the same command again when nobody else does",
        )
    keep(layout, place.name, line, there)
    _local_point(layout, place.name, line, entry.channel, entry.now)


def _raced(place: Place, line: Line) -> ImageError:
    return ImageError(
        f"somebody else changed the channels of {line} at {place.name} meanwhile, and what they wrote stands",
        remedy=f"look at `{place.command} status`, and run it again if it is still wanted",
    )


def _point(place: Place, layout: Keeper, line: Line, channel: str, digest: str, history: History) -> None:
    place.point(line, channel, digest)
    if place.pointer(line, channel) != digest or not place.text(line).startswith(history.text):
        raise _raced(place, line)
    _local_point(layout, place.name, line, channel, digest)


def local_name(place: str, line: Line, channel: str) -> str:
    """Return the store's name of a channel: `cuda:12.4-runtime-debian12`, prefixed with the name of the
    registry if it belongs to one.
    """
    return f"{'' if place == 'store' else place + '/'}{line.repository}:{line.pointer(channel)}"


def _local_point(layout: Keeper, place: str, line: Line, channel: str, digest: str) -> None:
    """Point the store's own name of the channel to the image, if the store has it."""
    layout.name_as(local_name(place, line, channel), digest)


def _foreign(place: Place, line: Line, channel: str, history: History, found: str | None) -> None:
    """Refuse to move a tag that points to an image unknown to the channel's history."""
    if found is not None and not history.was_in(channel, found):
        last = history.current(channel)
        raise ImageError(
            f"the tag {line.pointer(channel)} at {place.name} was moved to {found}, the history says {last.now if last else 'nothing of it'}",
            remedy=f"find out who did; `{place.command} status --repair` gives it back to what the history says, and deletes nothing",
        )


def _others(place: Place, line: Line, channel: str, history: History, moved: Moved) -> None:
    for other in CHANNELS:
        last = history.current(other)
        if other != channel and last is not None and (found := place.pointer(line, other)) != last.now:
            moved.notes.append(
                f"the tag of {other} is {found or 'gone'}, the history says {last.now}: see `{place.command} status`"
            )


def _stamp(now: dt.datetime | None) -> str:
    return (now or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Stand:
    """State of a channel. `state`: ok, unfinished (the tag still points to the previous item), moved (another
    writer moved it), absent.
    """

    line: Line
    channel: str
    digest: str
    tag: str
    date: str
    by: str
    state: str
    found: str | None


@dataclass
class Status:
    """How a line stands. `verified`: the history's signatures hold against keys that were given; `pending` entries wait in this store."""

    line: Line
    history: History
    stands: list[Stand]
    verified: bool
    pending: int = 0


def status(place: Place, layout: Keeper, line: Line, trust: Sequence[SSlibKey] = ()) -> Status:
    """Return the state of the channels of a line, with the tags validated against the history. Raises
    ImageError for a history with wrong signatures.
    """
    there, here = place.text(line), local_text(layout, place.name, line)
    if not there.startswith(here) and not here.startswith(there):
        raise _diverged(place.name, line)
    history = read(there, line, trust, where=f"{place.name}/{line}")
    stands: list[Stand] = []
    for channel in CHANNELS:
        last = history.current(channel)
        found = place.pointer(line, channel)
        if last is None:
            if found is not None:
                stands.append(Stand(line, channel, "", "", "", "", "moved", found))
            continue
        if found == last.now:
            state = "ok"
        elif found is None and last.was is not None:
            state = "absent"
        else:
            state = (
                "unfinished"
                if found == last.was or (found is not None and history.was_in(channel, found))
                else "moved"
            )
        stands.append(Stand(line, channel, last.now, last.tag, last.date, last.by, state, found))
    pending = (
        len(read(here, line, trust, where=str(_file(layout, place.name, line))).entries)
        - len(history.entries)
        if len(here) > len(there)
        else 0
    )
    return Status(line, history, stands, bool(trust) and bool(history.entries), pending)


def repair(
    place: Place,
    layout: Keeper,
    line: Line,
    trust: Sequence[SSlibKey],
    *,
    settle: float = SETTLE,
    say: Say = lambda text: None,
) -> list[Stand]:
    """Point every channel's tag to the target in the signed history, and upload decisions that were made
    offline. Return what was repaired.

    `trust` is required: only a verified history is acted on. A channel tag without history is left alone.
    """
    if not trust:
        raise ImageError(
            "tags are given back only to what a verified history says",
            remedy="name the public key with --trust",
        )
    with using(layout), lane(layout, f"{place.name}/{line}"):
        history = _load(place, layout, line, trust, settle, say)
        found = [
            stand
            for stand in status(place, layout, line, trust).stands
            if stand.state != "ok" and stand.digest
        ]
        for stand in found:
            _present(place, line, stand.digest)
            _point(place, layout, line, stand.channel, stand.digest, history)
        keep(layout, place.name, line, history.text)
    return found
