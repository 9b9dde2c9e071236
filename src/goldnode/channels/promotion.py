"""Moves of channels: candidate, canary, stable and known-good, one at a time; each is signed before it becomes visible.

A channel consists of its signed target (`goldnode.channels.signed`), which is the authority, and a tag, which users
pull. A move writes the signed metadata first and the channel's tag second. A run that ends before the first write
leaves the old state. A run that ends between them leaves users at the old image, and the same command completes it.

A registry has no compare-and-set. So a writer reads the metadata again right before it writes, waits `settle`
seconds, reads it back, and touches the tag only if the metadata is still its own. Of two writers the later one
wins, and the earlier one gets an error.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from goldnode.channels import signed, updates
from goldnode.channels.lines import CHANNELS, ChannelLine, History, RecordedMove
from goldnode.channels.locks import StoreDirectory, disk, lane, using
from goldnode.channels.requirements import (
    NO_SOAK,
    Decisions,
    Requirement,
    refuse,
)
from goldnode.channels.signed import ChannelSigners, Files, SignedChannels
from goldnode.channels.updates import ROOT, TIMESTAMP, UpdateError
from goldnode.core.errors import GoldnodeError, ImageError, nearest
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    pass


SETTLE = 1.0  # seconds in which a writer that read before us can still write
Say = Callable[[str], None]


class ChannelPlace(Protocol):
    """A place that has channels: a registry, a directory, or a store."""

    name: str
    command: str  # what publishes to it and shows it
    settles: bool  # whether another writer could have written meanwhile

    @property
    def copy(self) -> bool:
        """Return whether it is a copy of another place."""

    def files(self) -> Files:
        """Return the signed metadata of the channels, empty if there is none."""

    def commit(self, files: Files) -> None:
        """Write the metadata in one step: a reader sees all of it or none."""

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        """Return the digest that a channel's tag points to."""

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        """Point a channel's tag to an image."""

    def published(self, line: ChannelLine, tag: str) -> str | None:
        """Return the digest of an immutable tag."""

    def whole(self, line: ChannelLine, digest: str) -> int:
        """Return the size of an image's manifest. Raise ImageError unless the image is there with all its blobs."""

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        """Upload an image that the place lost again. Return False if that cannot be done."""

    def turn(self) -> AbstractContextManager[None]:
        """Exclude other writers, on any machine, if the place can do that."""


class HistoryStore(StoreDirectory, Protocol):
    """A store that has copies of channels, and local names for the targets of channels."""

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

    def files(self) -> Files:
        return signed.seen(self.keeper, self.name)

    def commit(self, files: Files) -> None:
        _save(self.keeper, self.name, files)

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        self.keeper.name_as(local_name(self.name, line, channel), digest)

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        return False

    def former(self, line: ChannelLine) -> bytes:
        """Return nothing: the store's copy is all that there is."""
        return b""

    def retire(self, line: ChannelLine) -> None:
        """Leave the copy to :func:`goldnode.channels.migration.migrate`."""

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Move:
    """A requested move of one channel, with the person who decides it and the keys.

    `to` is the immutable tag of the image to promote. For a rollback it is `known-good`, or a tag or digest of
    the history; None for the previous image. `expect` is the digest, or its beginning, that the channel must
    point to now (`none`: to nothing). `roots` verify the channels, and `given.trust` the evidence, in addition to the
    signers' own keys. `settle` is the time in seconds until another writer's change is visible.
    """

    line: ChannelLine
    channel: str
    signers: ChannelSigners
    by: str
    reason: str = ""
    to: str | None = None
    expect: str | None = None
    roots: Sequence[Path] = ()
    settle: float = SETTLE
    say: Say = lambda text: None
    given: Decisions = field(default_factory=Decisions)

    def decisions(self, history: History) -> Decisions:
        """Return the inputs of the requirements."""
        trust = (*self.given.trust, *(signer.public for signer in self.signers.roles))
        return replace(self.given, trust=trust, history=history)


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
    entry: RecordedMove | None = None
    requirements: list[Requirement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# The state of a place


@dataclass(frozen=True)
class PlaceState:
    """The channels of a place, and those of the store's copy if that continues them: moves that were made offline."""

    there: SignedChannels
    ahead: SignedChannels | None = None

    def pending(self, line: ChannelLine) -> list[RecordedMove]:
        """Return the moves of a line that the place does not have yet."""
        if self.ahead is None:
            return []
        entries = self.ahead.history(line).entries
        return list(entries[len(self.there.history(line).entries) :])


def followed(
    files: Files, place: str, store: StoreDirectory, roots: Sequence[Path] = ()
) -> SignedChannels:
    """Return the verified channels of a place for who only reads them, and remember them if their root was known.

    Raises GoldnodeError also for an older state than this store has seen, and for one that lacks moves of it.
    """
    state = look(files, place, store, roots)
    if (ahead := state.ahead) is not None:
        why = ""
        if files and any(
            signed.version_of(files, role) < signed.version_of(ahead.files, role)
            for role in (TIMESTAMP, ROOT)
        ):
            why = "they are older than what was seen before"
        elif not ahead.begins(state.there):
            why = "they lack moves that this store has seen"
        if why:
            raise UpdateError(
                f"the channels of {place} are refused: {why}",
                remedy="fetch the newest copy; the next promotion publishes moves that were made here offline. "
                f"If neither helps, report it to the publisher; to believe it, move {signed.copy_of(store, place)} away",
            )
    if state.there.trusted:
        _save(store, place, files)
    return state.there


def look(
    files: Files,
    place: str,
    store: StoreDirectory,
    roots: Sequence[Path] = (),
    *,
    expired: bool = False,
) -> PlaceState:
    """Return the verified channels of a place, and those of the store's copy if that continues them.

    Without `roots`, they are verified by the root that this store saw first. `expired` as in :func:`signed.verified`.
    Raises GoldnodeError.
    """
    here = signed.seen(store, place)
    if not here or files == here:
        return PlaceState(signed.verified(files, place, roots, here, older=True, expired=expired))
    newer = bool(files) and signed.version_of(files) > signed.version_of(here)
    there = signed.verified(files, place, roots, here, older=not newer, expired=expired)
    if newer and signed.unverified(here).begins(there):
        return PlaceState(there)
    ahead = signed.verified(here, f"{store.root}/{place}", roots, here, older=True, expired=expired)
    if not there.begins(ahead):
        raise ImageError(
            f"the channels at {place} and this store's copy of them went different ways",
            remedy="see what each has (`status --history`, with --offline the copy); then give one up: move the copy "
            f"{signed.copy_of(store, place)} away, or restore the other",
        )
    return PlaceState(there, ahead)


def _save(store: StoreDirectory, place: str, files: Files) -> None:
    """Write the store's copy of the metadata of a place."""
    with disk(store):
        signed.write_folder(signed.copy_of(store, place), files)


def commit(
    place: ChannelPlace, store: HistoryStore, before: Files, after: Files, settle: float = SETTLE
) -> None:
    """Replace the metadata of a place. Raises ImageError if another writer interferes, and leaves its change."""
    if place.files() != before:
        raise _raced(place)
    place.commit(after)
    # A registry has no compare-and-swap: read, write, wait, and read again.
    time.sleep(settle if place.settles else 0)
    if not _continues(place, after):
        raise _raced(place)
    _save(store, place.name, after)


def _continues(place: ChannelPlace, files: Files) -> bool:
    """Return whether a place has this metadata, or another writer has already continued it."""
    there = place.files()
    return there == files or signed.unverified(files).begins(signed.unverified(there))


@dataclass(frozen=True)
class _Turn:
    """The turn of one writer of a line: the place, its verified channels, and how they are changed."""

    place: ChannelPlace
    store: HistoryStore
    line: ChannelLine
    how: Move | Repair
    channels: SignedChannels

    @property
    def history(self) -> History:
        return self.channels.history(self.line)

    def states(self) -> dict[str, ChannelState]:
        return {one.channel: one for one in states(self.place, self.history)}

    def present(self, digest: str) -> int:
        """See to it that an image is whole at the place; a registry that lost it gets it from the store.

        Return the size of its manifest.
        """
        try:
            return self.place.whole(self.line, digest)
        except GoldnodeError:
            # The registry may have lost blobs, for instance by a garbage collection of its own.
            if not self.place.send_again(self.line, digest):
                raise
            return self.place.whole(self.line, digest)

    def point(self, last: RecordedMove, files: Files | None = None) -> None:
        """Point a channel's tag to its signed target. Raises ImageError if another writer interferes.

        :param files: the metadata that has the move, if it was just written.
        """
        place, line, channel = self.place, self.line, last.channel
        files = files or self.channels.files
        place.point(line, channel, last.now)
        if not _continues(place, files):
            # Another writer overwrote it after all: the tag follows what is signed now, by any writer.
            there = signed.verified(place.files(), place.name, self.how.roots, self.channels.files)
            other = there.history(line).current(channel)
            if other is not None:
                place.point(line, channel, other.now)
            _save(self.store, place.name, there.files)
            raise _raced(place)
        pointed = place.pointer(line, channel)
        if pointed != last.now and place.files() == files:
            raise ImageError(
                f"the tag of {channel} of {line} is {pointed or 'none'} after it was given to {last.now}: "
                "another process is moving it",
                remedy="run the same command again when no other process does",
            )
        self.store.name_as(local_name(place.name, line, channel), last.now)

    def prepared(self, moved: MoveResult) -> MoveResult:
        """Report a move that was not signed yet."""
        file = self.how.signers.prepare
        moved.notes.append(
            f"nothing was moved: sign it with `goldnode rollout sign-metadata {file} --key KEY`, then run the same command "
            f"with --signed {file} in place of --prepare"
        )
        return moved

    def finish(self, last: RecordedMove, moved: MoveResult) -> MoveResult:
        """Complete the move of an earlier run, which was stopped before it moved the tag."""
        moved.now, moved.tag = last.now, last.tag
        if self.how.signers.prepare is not None:
            moved.notes = ["nothing has to be signed: run it without --prepare", *moved.notes]
            return moved
        self.present(last.now)
        self.point(last)
        _save(self.store, self.place.name, self.channels.files)
        return moved

    def move(self, move: Move, moved: MoveResult, action: str, size: int) -> MoveResult:
        """Sign a move, then move the tag. Raises GoldnodeError if another writer interferes."""
        entry = RecordedMove(
            self.channels.next,
            action=action,
            channel=move.channel,
            was=moved.was,
            now=moved.now,
            tag=moved.tag,
            by=move.by,
            date=f"{move.given.now or dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            reason=move.reason,
            requirements=tuple(result.document() for result in moved.requirements),
            approvals=tuple(
                {"part": one.name, "by": one.by, "reason": one.reason}
                for one in move.given.approvals
            ),
            notes=tuple(moved.notes),
            size=size,
        )
        entry, after = signed.with_move(self.channels, self.line, entry, move.signers)
        if move.signers.prepare is not None:
            return self.prepared(moved)
        moved.entry = entry
        commit(self.place, self.store, self.channels.files, after, move.settle)
        self.point(entry, after)  # the move is decided
        return moved


@contextmanager
def _turn(
    place: ChannelPlace, store: HistoryStore, line: ChannelLine, how: Move | Repair
) -> Iterator[_Turn]:
    """Exclude other writers and garbage collections, and publish moves that were made offline."""
    if isinstance(how, Move) and how.channel not in CHANNELS:
        raise ImageError(
            f'there is no channel "{how.channel}"', remedy=nearest(how.channel, CHANNELS)
        )
    with alone(place, store):
        state = look(place.files(), place.name, store, how.roots)
        if not (state.there.files or state.ahead):
            raise ImageError(
                f"{place.name} has no channels yet: no root names who may sign them",
                remedy=f"make them with `{signed.KEYS}`, or, where an earlier version has made them, `goldnode channels migrate`",
            )
        yield _Turn(place, store, line, how, _caught_up(place, store, state, how))


@contextmanager
def alone(place: ChannelPlace, store: HistoryStore) -> Iterator[None]:
    """Exclude other writers of a place, and garbage collections of the store."""
    with place.turn(), using(store), lane(store, place.name):
        yield


def _caught_up(
    place: ChannelPlace, store: HistoryStore, state: PlaceState, how: Move | Repair
) -> SignedChannels:
    """Return the channels of a place, after moves that were made offline are published there."""
    ahead = state.ahead
    if ahead is None:
        return state.there
    before, files = state.there.files, {**state.there.files, **ahead.files}
    if before and signed.version_of(before) > signed.version_of(ahead.files):
        files |= before
    if how.signers.online:
        with signed.opened(files) as repository:
            updates.refresh(repository, how.signers.online, how.signers.days)
            files = signed.read_folder(repository / signed.FOLDER)
    elif before and signed.version_of(files) <= signed.version_of(before):
        raise ImageError(
            f"{place.name} was signed again after the moves of this store, which an online key has to sign",
            remedy=f"run `{signed.REFRESH}`, or the next promotion",
        )
    joined = SignedChannels(files, ahead.moves, ahead.trusted)
    pending = [
        (_Turn(place, store, line, how, joined), state.pending(line)) for line in ahead.lines()
    ]
    for turn, moves in pending:
        for move in moves:
            turn.present(move.now)
    commit(place, store, before, files, how.settle)
    for turn, moves in pending:
        # The last decision of each channel counts.
        for last in {move.channel: move for move in moves}.values():
            place.point(turn.line, last.channel, last.now)
            how.say(
                f"{place.name}: {last.channel} of {turn.line} is {last.tag}, as was decided in this store on {last.date}"
            )
    return joined


# Promotion


def promote(place: ChannelPlace, store: HistoryStore, move: Move, judging: Judge) -> MoveResult:
    """Point a channel to the image with an immutable tag if every requirement is met. Only pointers move.

    Raises GoldnodeError if a requirement is not met, if others moved a tag, if the keys may not sign the channel, and
    if another writer moves a channel of the place.
    """
    line, channel, tag = move.line, move.channel, str(move.to)
    with _turn(place, store, line, move) as turn:
        history, states = turn.history, turn.states()
        digest = _published(place, history, tag)
        last = history.current(channel)
        was = last.now if last else None
        _expect(place, move, was)
        state = states.get(channel)
        if state is not None and state.state == "moved":
            raise ImageError(
                f"the tag {line.pointer(channel)} at {place.name} was moved to {state.found}, the history says {was or 'nothing of it'}",
                remedy=f"find out who did; `{place.command} status --repair` gives it back to what the history says, and deletes nothing",
            )
        moved = MoveResult(line, channel, digest, tag, was)
        size = place.whole(line, digest)
        if last is not None and was == digest:
            note = f"{channel} of {line} is {tag} already"
            if state is not None and state.found != digest:
                note = f"{channel} of {line}: the promotion of {last.date} was not finished, and is now"
            moved.notes.append(note)
            return turn.finish(last, moved)
        # Differences are judged against what the channel points to, else against what users run.
        base = last or history.current("stable")
        results, notes = judging(history, digest, base.now if base is not None else None)
        moved.requirements = results
        refuse(channel, f"{line.repository}:{tag}", results)
        moved.notes += [*notes, *_again(history, digest, move)]
        if channel in ("canary", "stable", "known-good"):
            moved.notes.append(NO_SOAK)
        moved.notes += _others(place, channel, states)
        return turn.move(move, moved, "promote", size)


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
    reaches the place updates it. Raises GoldnodeError.
    """
    line, channel = move.line, move.channel
    with _turn(place, store, line, move) as turn:
        history, states = turn.history, turn.states()
        last = history.current(channel)
        if last is None:
            known = ", ".join(one for one in CHANNELS if history.current(one)) or "none"
            raise ImageError(
                f"{channel} of {line} never pointed to anything (of its channels: {known})",
                remedy=f"check it with `{place.command} status`",
            )
        moved = MoveResult(line, channel, "", "", last.now)
        pointed = states[channel].found
        unfinished = pointed != last.now and pointed == last.was
        if last.action == "rollback" and unfinished and move.to is None:
            moved.notes.append(
                f"the rollback of {last.date} was not finished, and is now; run it again to go further back"
            )
            return turn.finish(last, moved)
        target = _way_back(history, last, move.to, place.command)
        moved.now, moved.tag = target.now, target.tag
        if pointed not in (last.now, None):
            moved.notes.append(
                f"the tag of {channel} pointed to {pointed}, where the history says {last.now}"
            )
        size = turn.present(target.now)
        if place.copy:
            moved.notes.append(
                f"{place.name} has not seen this yet: the next promotion or rollback that reaches it publishes it"
            )
        else:
            moved.notes += _others(place, channel, states)
        return turn.move(move, moved, "rollback", size)


def _way_back(history: History, last: RecordedMove, to: str | None, command: str) -> RecordedMove:
    """Return the move that a rollback of the last one returns to. Raises ImageError without one."""
    if to in CHANNELS:
        target = history.current(to)
        why = f"{to} of {history.line} points to nothing"
        remedy = "name a digest of the history instead; `status --history` lists them"
    elif to is not None:
        # A digest needs 12 characters, so that a short one does not fit by accident.
        start, long = to.removeprefix("sha256:"), len(to) >= 12
        fits = {
            entry.now: entry
            for entry in history.entries
            if entry.tag == to or (long and entry.now.removeprefix("sha256:").startswith(start))
        }
        target = next(iter(fits.values())) if len(fits) == 1 else None
        why = f'the history of {history.line} names {len(fits) or "no"} images "{to}"'
        remedy = nearest(to, [entry.tag for entry in history.entries])
    else:
        # Images that were rolled back from do not count as previous ones.
        known = [history.current("known-good"), *history.stack(last.channel)]
        earlier = [one for one in known if one is not None and one.now != last.now]
        target = earlier[-1] if earlier else None
        why = f"{last.channel} of {history.line} pointed to nothing before"
        remedy = "promote an image that is known to work"
    if target is None:
        raise ImageError(why, remedy=remedy)
    if target.now == last.now:
        raise ImageError(
            f"{last.channel} of {history.line} is {target.tag} already",
            remedy=f"see `{command} status --history`",
        )
    return target


def _raced(place: ChannelPlace) -> ImageError:
    return ImageError(
        f"another process changed the channels at {place.name} meanwhile; its change was left as it is",
        remedy=f"check `{place.command} status`, and run it again if you still want it",
    )


def local_name(place: str, line: ChannelLine, channel: str) -> str:
    """Return the store's name of a channel: `cuda:12.4-runtime-debian12`, prefixed with the name of the
    registry if it belongs to one.
    """
    return f"{'' if place == 'store' else place + '/'}{line.repository}:{line.pointer(channel)}"


def _others(place: ChannelPlace, channel: str, states: Mapping[str, ChannelState]) -> list[str]:
    return [
        f"the tag of {one.channel} is {one.found or 'gone'}, the history says {one.digest}: see `{place.command} status`"
        for one in states.values()
        if one.channel != channel and one.digest and one.found != one.digest
    ]


# Status and repair


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


def states(place: ChannelPlace, history: History) -> list[ChannelState]:
    """Return the states of the channels of a line that have a tag or a signed move."""
    rows: list[ChannelState] = []
    for channel in CHANNELS:
        last, pointed = history.current(channel), place.pointer(history.line, channel)
        if last is None and pointed is None:
            continue
        word = "moved"
        if last is not None and pointed == last.now:
            word = "ok"
        elif last is not None and pointed is None and last.was is not None:
            word = "absent"
        elif last is not None and (pointed == last.was or history.was_in(channel, pointed)):
            word = "unfinished"
        recorded = (last.now, last.tag, last.date, last.by) if last else ("",) * 4
        rows.append(ChannelState(history.line, channel, *recorded, state=word, found=pointed))
    return rows


@dataclass(frozen=True)
class Repair:
    """How to repair the channels of a line: the roots that verify them, and the time of `Move.settle`."""

    roots: Sequence[Path] = ()
    settle: float = SETTLE
    say: Say = lambda text: None
    signers: ChannelSigners = field(default_factory=ChannelSigners)


def repair(
    place: ChannelPlace, store: HistoryStore, line: ChannelLine, how: Repair
) -> list[ChannelState]:
    """Point every channel's tag to its signed target, and upload decisions that were made offline. Return what
    was repaired.

    Only verified channels are acted on. A channel tag without moves is left alone.
    """
    with _turn(place, store, line, how) as turn:
        if not turn.channels.trusted:
            raise ImageError(
                "tags are restored only from verified channels",
                remedy="name the trusted root document with --root",
            )
        states = [one for one in turn.states().values() if one.state != "ok" and one.digest]
        for state in states:
            last = turn.history.current(state.channel)
            if last is not None:
                turn.finish(last, MoveResult(line, state.channel, "", ""))
        _save(store, place.name, turn.channels.files)
    return states
