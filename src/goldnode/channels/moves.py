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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from goldnode.channels.history import CHANNELS, ChannelLine, History, HistoryEntry, add, read
from goldnode.channels.locks import disk, lane, using
from goldnode.channels.requirements import (
    NO_SOAK,
    Approval,
    Decisions,
    Requirement,
    RequirementWaiver,
    refuse,
)
from goldnode.core.errors import GoldnodeError, ImageError, nearest
from goldnode.core.files import replace_file
from goldnode.core.site import VulnerabilityLimits
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner


SETTLE = 1.0  # seconds in which a writer that read before us can still write
Say = Callable[[str], None]


class ChannelPlace(Protocol):
    """A place that has channels: a registry, or a store."""

    name: str
    command: str  # what publishes to it and shows it
    settles: bool  # whether another writer could have written meanwhile

    @property
    def copy(self) -> bool:
        """Return whether it is a copy of another place."""

    def text(self, line: ChannelLine) -> bytes:
        """Return the history, empty if there is none."""

    def commit(self, line: ChannelLine, text: bytes) -> None:
        """Write the history in one step: a reader sees all of it or none."""

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        """Return the digest that a channel's tag points to."""

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        """Point a channel's tag to an image."""

    def published(self, line: ChannelLine, tag: str) -> str | None:
        """Return the digest of an immutable tag."""

    def whole(self, line: ChannelLine, digest: str) -> None:
        """Raise ImageError unless the image is there with all its blobs."""

    def lines(self, repository: str) -> list[ChannelLine]:
        """Return the lines that have a history at this place."""

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        """Upload an image that the place lost again. Return False if that cannot be done."""

    def turn(self) -> AbstractContextManager[None]:
        """Exclude other writers, on any machine, if the place can do that."""


class HistoryStore(Protocol):
    """A store that caches channel histories and has local names for the targets of channels."""

    @property
    def root(self) -> Path:
        """Return the directory of the store."""

    def name_as(self, name: str, digest: str) -> None:
        """Point `name` to an image of this store. Without that image, remove the name rather than leave it on
        the wrong one.
        """


class LocalPlace:
    """Common base of places that are local stores. With the `name` of another place it is this store's copy
    of that place, for when that is unreachable.
    """

    settles = False

    def __init__(self, keeper: HistoryStore, name: str = "store") -> None:
        self.keeper, self.name = keeper, name

    @property
    def copy(self) -> bool:
        """Return whether it is a copy of another place."""
        return self.name != "store"

    def text(self, line: ChannelLine) -> bytes:
        return saved_history(self.keeper, self.name, line)

    def commit(self, line: ChannelLine, text: bytes) -> None:
        save_history(self.keeper, self.name, line, text)

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        _local_point(self.keeper, self.name, line, channel, digest)

    def lines(self, repository: str) -> list[ChannelLine]:
        return saved_lines(self.keeper, self.name, repository)

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        return False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Move:
    """A requested move of one channel, with the person who decides it and the keys.

    `to` is the immutable tag of the image to promote. For a rollback it is `known-good`, or a tag or digest of
    the history; None for the previous image. `expect` is the digest, or its beginning, that the channel must
    point to now (`none`: to nothing). `trust` verifies histories, in addition to the signer's own key. `settle`
    is the time in seconds until another writer's change is visible. `again` records an image that the channel
    points to already, so that the history ends with a signature of this key.
    """

    line: ChannelLine
    channel: str
    signer: EnvelopeSigner
    by: str
    reason: str = ""
    to: str | None = None
    expect: str | None = None
    trust: Sequence[SSlibKey] = ()
    waivers: Sequence[RequirementWaiver] = ()
    approvals: Sequence[Approval] = ()
    settle: float = SETTLE
    again: bool = False
    limits: VulnerabilityLimits = field(default_factory=VulnerabilityLimits)
    say: Say = lambda text: None
    now: dt.datetime | None = None

    @property
    def keys(self) -> Sequence[SSlibKey]:
        """Return the keys that histories and evidence are verified with."""
        return (*self.trust, self.signer.public)

    @property
    def stamp(self) -> str:
        """Return the time of the decision, as the history records it."""
        return (self.now or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def decisions(self, history: History) -> Decisions:
        """Return the inputs of the requirements."""
        return Decisions(
            self.keys,
            waivers=self.waivers,
            approvals=self.approvals,
            history=history,
            limits=self.limits,
            now=self.now,
        )


# Gets the history, the digest of the image and that of its predecessor (None: there is none). Returns the
# results of the requirements, and notes for the history.
Judge = Callable[[History, str, str | None], tuple[list[Requirement], list[str]]]


@dataclass
class MoveResult:
    """Result of a promotion or a rollback. `entry` is None if there was nothing to do, or only the move of an
    earlier run to complete.
    """

    line: ChannelLine
    channel: str
    now: str
    tag: str
    was: str | None = None
    entry: HistoryEntry | None = None
    requirements: list[Requirement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _file(layout: HistoryStore, place: str, line: ChannelLine) -> Path:
    return (
        layout.root
        / "channels"
        / quote(place, safe="")
        / quote(line.repository, safe="")
        / f"{quote(line.name, safe='')}.jsonl"
    )


def saved_history(layout: HistoryStore, place: str, line: ChannelLine) -> bytes:
    """Return the history of a line as this store last read it, with the moves that were made offline."""
    try:
        return _file(layout, place, line).read_bytes()
    except FileNotFoundError:
        return b""


def saved_lines(layout: HistoryStore, place: str, repository: str) -> list[ChannelLine]:
    """Return the lines of a repository whose history the store has a copy of."""
    folder = layout.root / "channels" / quote(place, safe="") / quote(repository, safe="")
    return [ChannelLine(repository, unquote(path.stem)) for path in sorted(folder.glob("*.jsonl"))]


def saved_places(layout: HistoryStore) -> list[tuple[str, ChannelLine]]:
    """Return all places and lines whose history the store has."""
    places: list[tuple[str, ChannelLine]] = []
    for path in sorted((layout.root / "channels").glob("*/*/*.jsonl")):
        place, repository = unquote(path.parent.parent.name), unquote(path.parent.name)
        places.append((place, ChannelLine(repository, unquote(path.stem))))
    return places


def save_history(layout: HistoryStore, place: str, line: ChannelLine, text: bytes) -> None:
    """Write the store's copy of a history, whole or not at all. Raises ImageError if it does not continue the
    present one.
    """
    path = _file(layout, place, line)
    have = saved_history(layout, place, line)
    if have == text:
        return
    # A history only grows. A shorter or other one is a restored backup, or a forgery.
    if not text.startswith(have):
        raise _diverged(place, line)
    with disk(layout):
        replace_file(path, text)


def _diverged(place: str, line: ChannelLine) -> ImageError:
    return ImageError(
        f"the history of {line} at {place} and this store's copy of it went different ways",
        remedy="see what each says (`status --history`); then give one up: move the store's copy away, or restore the other",
    )


def promote(place: ChannelPlace, store: HistoryStore, move: Move, judging: Judge) -> MoveResult:
    """Point a channel to the image with an immutable tag if every requirement is met. Only pointers move.

    Raises ImageError if a requirement is not met, if others moved a tag, and if another writer moves the same
    line.
    """
    line, channel, tag = move.line, move.channel, str(move.to)
    with _turn(place, store, move):
        history = _load(place, store, line, move)
        digest = _published(place, history, tag)
        last = history.current(channel)
        was = last.now if last else None
        _expect(place, move, was)
        pointed = place.pointer(line, channel)
        _foreign(place, line, channel, history, pointed)
        moved = MoveResult(line, channel, digest, tag, was)
        place.whole(line, digest)
        # An earlier run recorded the move, and was stopped before it moved the tag.
        if last is not None and was == digest and not (move.again and pointed == digest):
            if pointed == digest:
                moved.notes.append(f"{channel} of {line} is {tag} already")
            else:
                _point(
                    place, layout=store, line=line, channel=channel, digest=digest, history=history
                )
                moved.notes.append(
                    f"{channel} of {line}: the promotion of {last.date} was not finished, and is now"
                )
            save_history(store, place.name, line, history.text)
            return moved
        # Differences are judged against what the channel points to, else against what users run.
        base = last or history.current("stable")
        results, notes = judging(history, digest, base.now if base is not None else None)
        moved.requirements = results
        refuse(channel, f"{line.repository}:{tag}", results)
        moved.notes += [*notes, *_again(history, digest, move)]
        if channel in ("canary", "stable", "known-good"):
            moved.notes.append(NO_SOAK)
        _others(place, line, channel, history, moved)
        _move(place, layout=store, history=history, move=move, moved=moved, action="promote")
    return moved


def _again(history: History, digest: str, move: Move) -> list[str]:
    """Return a note if a channel was rolled back from an image. Raises ImageError without a reason for it."""
    backs = [
        back for name in CHANNELS if (back := history.taken_back(name).get(digest)) is not None
    ]
    if not backs:
        return []
    last = max(backs, key=lambda back: back.number)
    why = (
        f"{last.channel} was rolled back from it on {last.date[:10]}{phrase(' ({})', last.reason)}"
    )
    if not move.reason.strip():
        raise ImageError(
            f"{move.line.repository}:{move.to} is not promoted to {move.channel}: {why}",
            remedy="state why it is good after all: --reason WHY",
        )
    return [f"{why}; promoted again: {move.reason}"]


def _published(place: ChannelPlace, history: History, tag: str) -> str:
    """Return the digest of an immutable tag. Raises ImageError without one, and for one that was moved."""
    line = history.line
    digest = place.published(line, tag)
    if digest is None:
        raise ImageError(
            f"{place.name}/{line.repository}:{tag} is not there",
            remedy=f"publish it first: {place.command} publish",
        )
    for entry in history.entries:
        if entry.tag == tag and entry.now != digest:
            raise ImageError(
                f"{place.name}/{line.repository}:{tag} is {digest}, and was {entry.now} when it was promoted "
                f"to {entry.channel}: the tag was moved",
                remedy="find out who did; put it back with the image of that digest",
            )
    return digest


def _expect(place: ChannelPlace, move: Move, was: str | None) -> None:
    """Refuse a move if the channel does not point to the expected digest."""
    if move.expect is not None and not (was or "none").removeprefix("sha256:").startswith(
        move.expect.removeprefix("sha256:")
    ):
        raise ImageError(
            f"{move.channel} of {move.line} is {was or 'none'}, expected {move.expect}",
            remedy=f"check it with `{place.command} status`",
        )


def rollback(place: ChannelPlace, store: HistoryStore, move: Move) -> MoveResult:
    """Point a channel to its previous image, or to `move.to`.

    The rollback of an earlier run is completed first, and then this one goes no further. At a store's copy of
    another place (`LocalPlace`), only this store is used and changed; the next promotion or rollback that
    reaches the place updates it. Raises ImageError.
    """
    line, channel = move.line, move.channel
    with _turn(place, store, move):
        history = _load(place, store, line, move)
        last = history.current(channel)
        if last is None:
            known = ", ".join(one for one in CHANNELS if history.current(one)) or "none"
            raise ImageError(
                f"{channel} of {line} never pointed to anything (of its channels: {known})",
                remedy=f"check it with `{place.command} status`",
            )
        moved = MoveResult(line, channel, "", "", last.now)
        pointed = place.pointer(line, channel)
        if (
            last.action == "rollback"
            and pointed != last.now
            and pointed == last.was
            and move.to is None
        ):
            moved.now, moved.tag = last.now, last.tag
            _present(place, line, last.now)
            _point(
                place, layout=store, line=line, channel=channel, digest=last.now, history=history
            )
            moved.notes.append(
                f"the rollback of {last.date} was not finished, and is now; run it again to go further back"
            )
            save_history(store, place.name, line, history.text)
            return moved
        target = _way_back(history, channel, move.to, place.command)
        moved.now, moved.tag = target.now, target.tag
        if pointed not in (last.now, None):
            moved.notes.append(
                f"the tag of {channel} pointed to {pointed}, where the history says {last.now}"
            )
        _present(place, line, target.now)
        if place.copy:
            moved.notes.append(
                f"{place.name} has not seen this yet: the next promotion or rollback that reaches it publishes it"
            )
        else:
            _others(place, line, channel, history, moved)
        _move(place, layout=store, history=history, move=move, moved=moved, action="rollback")
    return moved


@contextmanager
def _turn(place: ChannelPlace, store: HistoryStore, move: Move) -> Iterator[None]:
    """Check the channel's name, and exclude other writers of the line and garbage collections of the store."""
    if move.channel not in CHANNELS:
        raise ImageError(
            f'there is no channel "{move.channel}"', remedy=nearest(move.channel, CHANNELS)
        )
    with place.turn(), using(store), lane(store, f"{place.name}/{move.line}"):
        yield


def _way_back(history: History, channel: str, to: str | None, command: str) -> HistoryEntry:
    """Return the move that a rollback returns to. Raises ImageError without one."""
    last = history.current(channel)
    if to in CHANNELS:
        target = history.current(to)
        if target is None:
            raise ImageError(
                f"{to} of {history.line} points to nothing",
                remedy="name a digest of the history instead; `status --history` lists them",
            )
    # A digest needs 12 characters, so that a short one does not fit by accident.
    elif to is not None:
        fits = {
            entry.now: entry
            for entry in history.entries
            if entry.tag == to
            or (
                len(to) >= 12
                and entry.now.removeprefix("sha256:").startswith(to.removeprefix("sha256:"))
            )
        }
        if len(fits) != 1:
            raise ImageError(
                f'the history of {history.line} names {len(fits) or "no"} images "{to}"',
                remedy=nearest(to, [entry.tag for entry in history.entries]),
            )
        target = next(iter(fits.values()))
    else:
        # Images that were rolled back from do not count as previous ones.
        stack = [entry for entry in history.stack(channel) if last is None or entry.now != last.now]
        target = stack[-1] if stack else None
        good = history.current("known-good")
        if target is None and good is not None and last is not None and good.now != last.now:
            target = good
        if target is None:
            raise ImageError(
                f"{channel} of {history.line} pointed to nothing before",
                remedy="promote an image that is known to work",
            )
    if last is not None and target.now == last.now:
        raise ImageError(
            f"{channel} of {history.line} is {target.tag} already",
            remedy=f"see `{command} status --history`",
        )
    return target


def _present(place: ChannelPlace, line: ChannelLine, digest: str) -> None:
    """See to it that an image is whole at a place; a registry that lost it gets it from the store."""
    try:
        place.whole(line, digest)
    except GoldnodeError:
        # The registry may have lost blobs, for instance by a garbage collection of its own.
        if not place.send_again(line, digest):
            raise
        place.whole(line, digest)


def _load(
    place: ChannelPlace, layout: HistoryStore, line: ChannelLine, how: Move | Repair
) -> History:
    """Return the verified history of a place, joined with the store's copy: the longer one if it begins with
    the other.
    """
    keys = how.keys
    there, here = place.text(line), saved_history(layout, place.name, line)
    if there == here or there.startswith(here):
        return read(there, line, keys, where=f"{place.name}/{line}")
    if not here.startswith(there):
        raise _diverged(place.name, line)
    known = read(there, line, keys, where=f"{place.name}/{line}")
    history = read(here, line, keys, where=str(_file(layout, place.name, line)))
    # Moves that were made offline are published now, before anything new is decided.
    pending = history.entries[len(known.entries) :]
    for entry in pending:
        _present(place, line, entry.now)
    place.commit(line, here)
    time.sleep(how.settle if place.settles else 0)
    if place.text(line) != here:
        raise _raced(place, line)
    # The last decision of each channel counts.
    for channel in dict.fromkeys(entry.channel for entry in pending):
        current = history.current(channel)
        if current is not None:
            place.point(line, channel, current.now)
            how.say(
                f"{place.name}: {channel} of {line} is {current.tag}, as was decided in this store on {current.date}"
            )
    return history


def _move(
    place: ChannelPlace,
    layout: HistoryStore,
    history: History,
    move: Move,
    moved: MoveResult,
    *,
    action: str,
) -> None:
    """Record a move in the history, then move the tag. Raises ImageError if another writer interferes."""
    line, keys = history.line, move.keys
    moved.entry = entry = HistoryEntry(
        str(line),
        number=len(history.entries) + 1,
        previous=history.head,
        action=action,
        channel=move.channel,
        was=moved.was,
        now=moved.now,
        tag=moved.tag,
        by=move.by,
        date=move.stamp,
        reason=move.reason,
        requirements=tuple(result.document() for result in moved.requirements),
        approvals=tuple(vars(one) for one in move.approvals) if action == "promote" else (),
        notes=tuple(moved.notes),
    )
    after = add(history, entry, move.signer)
    if place.text(line) != history.text:
        raise _raced(place, line)
    # A registry has no compare-and-swap: read, write, wait, and read again.
    place.commit(line, after.text)  # from here on the move is decided
    time.sleep(move.settle if place.settles else 0)
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
    pointed = place.pointer(line, entry.channel)
    if there == after.text and pointed != entry.now:
        raise ImageError(
            f"the tag of {entry.channel} of {line} is {pointed or 'none'} after it was given to "
            f"{entry.now}: another process is moving it",
            remedy="run the same command again when no other process does",
        )
    # Not `after.text`: another writer may have added its move by now.
    save_history(layout, place.name, line, there)
    _local_point(layout, place.name, line, entry.channel, entry.now)


def _raced(place: ChannelPlace, line: ChannelLine) -> ImageError:
    return ImageError(
        f"another process changed the channels of {line} at {place.name} meanwhile; its change was left "
        "as it is",
        remedy=f"check `{place.command} status`, and run it again if you still want it",
    )


def _point(
    place: ChannelPlace,
    layout: HistoryStore,
    line: ChannelLine,
    channel: str,
    digest: str,
    *,
    history: History,
) -> None:
    place.point(line, channel, digest)
    if place.pointer(line, channel) != digest or not place.text(line).startswith(history.text):
        raise _raced(place, line)
    _local_point(layout, place.name, line, channel, digest)


def local_name(place: str, line: ChannelLine, channel: str) -> str:
    """Return the store's name of a channel: `cuda:12.4-runtime-debian12`, prefixed with the name of the
    registry if it belongs to one.
    """
    return f"{'' if place == 'store' else place + '/'}{line.repository}:{line.pointer(channel)}"


def _local_point(
    layout: HistoryStore, place: str, line: ChannelLine, channel: str, digest: str
) -> None:
    """Point the store's own name of the channel to the image, if the store has it."""
    layout.name_as(local_name(place, line, channel), digest)


def _foreign(
    place: ChannelPlace, line: ChannelLine, channel: str, history: History, pointed: str | None
) -> None:
    """Refuse to move a tag that points to an image unknown to the channel's history."""
    if pointed is not None and not history.was_in(channel, pointed):
        last = history.current(channel)
        raise ImageError(
            f"the tag {line.pointer(channel)} at {place.name} was moved to {pointed}, the history says {last.now if last else 'nothing of it'}",
            remedy=f"find out who did; `{place.command} status --repair` gives it back to what the history says, and deletes nothing",
        )


def _others(
    place: ChannelPlace, line: ChannelLine, channel: str, history: History, moved: MoveResult
) -> None:
    for other in CHANNELS:
        last = history.current(other)
        if (
            other != channel
            and last is not None
            and (pointed := place.pointer(line, other)) != last.now
        ):
            moved.notes.append(
                f"the tag of {other} is {pointed or 'gone'}, the history says {last.now}: see `{place.command} status`"
            )


@dataclass(frozen=True)
class ChannelState:
    """State of a channel. `state`: ok, unfinished (the tag still points to the previous item), moved (another
    writer moved it), absent.
    """

    line: ChannelLine
    channel: str
    digest: str
    tag: str
    date: str
    by: str
    state: str
    found: str | None


@dataclass
class LineStatus:
    """State of a line. `verified`: keys that were given verify the history. `pending` entries wait in this store."""

    line: ChannelLine
    history: History
    stands: list[ChannelState]
    verified: bool
    pending: int = 0


def status(
    place: ChannelPlace, layout: HistoryStore, line: ChannelLine, trust: Sequence[SSlibKey] = ()
) -> LineStatus:
    """Return the state of the channels of a line, with the tags validated against the history. Raises
    ImageError for a history with wrong signatures.
    """
    there, here = place.text(line), saved_history(layout, place.name, line)
    if not there.startswith(here) and not here.startswith(there):
        raise _diverged(place.name, line)
    history = read(there, line, trust, where=f"{place.name}/{line}")
    stands: list[ChannelState] = []
    for channel in CHANNELS:
        last = history.current(channel)
        pointed = place.pointer(line, channel)
        if last is None:
            if pointed is not None:
                stands.append(
                    ChannelState(
                        line,
                        channel=channel,
                        digest="",
                        tag="",
                        date="",
                        by="",
                        state="moved",
                        found=pointed,
                    )
                )
            continue
        if pointed == last.now:
            state = "ok"
        elif pointed is None and last.was is not None:
            state = "absent"
        else:
            state = "moved"
            if pointed == last.was or (pointed is not None and history.was_in(channel, pointed)):
                state = "unfinished"
        stands.append(
            ChannelState(
                line,
                channel=channel,
                digest=last.now,
                tag=last.tag,
                date=last.date,
                by=last.by,
                state=state,
                found=pointed,
            )
        )
    pending = 0
    if len(here) > len(there):
        pending = len(
            read(here, line, trust, where=str(_file(layout, place.name, line))).entries
        ) - len(history.entries)
    return LineStatus(line, history, stands, bool(trust) and bool(history.entries), pending)


@dataclass(frozen=True)
class Repair:
    """How to repair the channels of a line: the keys that verify its history, and the time of `Move.settle`."""

    keys: Sequence[SSlibKey]
    settle: float = SETTLE
    say: Say = lambda text: None


def repair(
    place: ChannelPlace, store: HistoryStore, line: ChannelLine, how: Repair
) -> list[ChannelState]:
    """Point every channel's tag to the target in the signed history, and upload decisions that were made
    offline. Return what was repaired.

    Keys are required: only a verified history is acted on. A channel tag without history is left alone.
    """
    if not how.keys:
        raise ImageError(
            "tags are restored only from a verified history",
            remedy="name the public key with --trust",
        )
    with place.turn(), using(store), lane(store, f"{place.name}/{line}"):
        history = _load(place, store, line, how)
        states = [
            state
            for state in status(place, store, line, how.keys).stands
            if state.state != "ok" and state.digest
        ]
        for state in states:
            _present(place, line, state.digest)
            _point(
                place,
                layout=store,
                line=line,
                channel=state.channel,
                digest=state.digest,
                history=history,
            )
        save_history(store, place.name, line, history.text)
    return states
