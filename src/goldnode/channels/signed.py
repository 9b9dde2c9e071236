"""The signed channels of a place: metadata of The Update Framework, whose targets are the channels.

A target `REPOSITORY/LINE/CHANNEL` has the digest of the manifest that the channel points to, and the moves of
the channel as custom metadata: who, when, from, to, and the requirements. `root` and `targets` are signed
offline, roles that `targets` delegates to sign the channels of their paths, and `snapshot` and `timestamp` are
online (`goldnode.channels.updates`).

A place holds the newest metadata as a set of files (:data:`Files`): a directory, or an artifact of a registry.
A store has a copy of the set of each place that it has seen, so that nothing older is accepted later.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pydantic import ValidationError

from goldnode.channels import updates
from goldnode.channels.lines import CHANNELS, ChannelLine, History, RecordedMove
from goldnode.channels.updates import ROOT, SNAPSHOT, TARGETS, TIMESTAMP, UpdateError
from goldnode.core.errors import ImageError
from goldnode.core.extras import require
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from tuf.api.metadata import TargetFile, Targets

    from goldnode.channels.locks import StoreDirectory
    from goldnode.channels.updates import DelegatedPaths
    from goldnode.evidence.signatures import EnvelopeSigner

Files = Mapping[str, bytes]  # metadata by file name: `timestamp.json`, `3.targets.json`
DAYS, RELEASE_DAYS = 90, 365  # until the signatures of the online keys, and of a release, expire
FOLDER = "metadata"
REFRESH, KEYS = "goldnode channels refresh", "goldnode channels keys"
MOST = 256  # roots of a place, and roles
# What metadata in another form raises when it is read.
FORM = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_ROLE = re.compile(r"[a-z][a-z0-9-]*")
_STAMP = f"{TIMESTAMP}.json"
_BEGINNING = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


# Files of a place


def newest_files(read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Return the newest metadata that a reader of files has: all roots, and what the timestamp leads to.

    Files of an interrupted write are left out: no timestamp leads to them. No signature is verified here.
    Raises UpdateError for metadata that cannot be read.
    """
    files: dict[str, bytes] = {}

    def take(name: str) -> bytes:
        data = read(name)
        if data is None:
            raise UpdateError(f"the channels lack {FOLDER}/{name}", remedy="restore it")
        files[name] = data
        return data

    while (data := read(name := f"{len(files) + 1}.{ROOT}.json")) is not None:
        files[name] = data
        if len(files) > MOST:
            raise UpdateError(f"the channels have too many roots: more than {MOST}")
    if not files or read(_STAMP) is None:
        return {}
    try:
        version = json.loads(take(_STAMP))["signed"]["meta"][f"{SNAPSHOT}.json"]["version"]
        snapshot = json.loads(take(f"{int(version)}.{SNAPSHOT}.json"))
        if len(snapshot["signed"]["meta"]) > MOST:
            raise UpdateError(f"the channels have too many roles: more than {MOST}")
        for file, about in snapshot["signed"]["meta"].items():
            role = file.removesuffix(".json")
            # Not verified yet: a name must not lead out of the directory.
            if _ROLE.fullmatch(role) is None:
                raise ValueError(f"{role!r} is no role")
            take(f"{int(about['version'])}.{role}.json")
    except FORM as problem:
        raise UpdateError(f"the channels have metadata in another form: {problem}") from None
    return files


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the newest metadata of a directory; empty without any."""

    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None

    return newest_files(read)


def write_folder(folder: Path, files: Files) -> None:
    """Write metadata to a directory. The timestamp comes last: a reader sees the state before or the new one.

    The files of the state before stay for readers that have begun with it; older ones go.
    """
    before = read_folder(folder)
    for name in sorted(files, key=lambda name: name == _STAMP):
        if before.get(name) != files[name]:
            replace_file(folder / name, files[name])
    for path in folder.glob("*.json"):
        if path.name not in files and path.name not in before:
            path.unlink()


def copy_of(store: StoreDirectory, place: str) -> Path:
    """Return the directory of a store with its copy of the metadata of a place."""
    return store.root / "channels" / quote(place, safe="") / FOLDER


def seen(store: StoreDirectory, place: str) -> dict[str, bytes]:
    """Return a store's copy of the metadata of a place; empty without one."""
    return read_folder(copy_of(store, place))


def seen_places(store: StoreDirectory) -> list[str]:
    """Return the places of which a store has a copy."""
    folders = sorted((store.root / "channels").glob(f"*/{FOLDER}"))
    return [unquote(path.parent.name) for path in folders]


@contextmanager
def opened(files: Files) -> Iterator[Path]:
    """Yield a temporary repository with these files."""
    require("updates")
    with tempfile.TemporaryDirectory(prefix="goldnode-channels-") as name:
        for file, data in files.items():
            replace_file(Path(name, FOLDER, file), data)
        yield Path(name)


# Reading


@dataclass(frozen=True)
class SignedChannels:
    """The verified channels of a place. `trusted`: the root was known before, by a person or by the store."""

    files: Files = field(default_factory=dict)
    moves: Mapping[str, tuple[RecordedMove, ...]] = field(default_factory=dict)
    trusted: bool = False

    def history(self, line: ChannelLine) -> History:
        """Return the moves of a line in order."""
        rows = [row for channel in CHANNELS for row in self.moves.get(line.target(channel), ())]
        return History(line, tuple(sorted(rows, key=lambda row: row.number)))

    def lines(self) -> list[ChannelLine]:
        """Return the lines that have moves, as lines of images."""
        return sorted({ChannelLine.of_target(name) for name in self.moves})

    @property
    def next(self) -> int:
        """Return the number of the next move."""
        return 1 + max((row.number for rows in self.moves.values() for row in rows), default=0)

    def begins(self, other: SignedChannels) -> bool:
        """Return whether another state continues each channel of this one."""
        return all(
            other.moves.get(name, ())[: len(rows)] == rows for name, rows in self.moves.items()
        )


def unverified(files: Files) -> SignedChannels:
    """Return what metadata says, for indexes and for a store's own copies. Raises UpdateError for another form."""
    moves: dict[str, tuple[RecordedMove, ...]] = {}
    try:
        for file in sorted(files):
            signed = json.loads(files[file])["signed"]
            if signed["_type"] != TARGETS:
                continue
            # A release knows the owner of a channel by `targets` alone, and would lose what a further role has.
            if signed.get("delegations") and not file.endswith(f".{TARGETS}.json"):
                raise ValueError(f"{file} delegates further")
            moves |= {name: _moves(name, row) for name, row in signed["targets"].items()}
    except FORM as problem:
        raise UpdateError(f"the channels have metadata in another form: {problem}") from None
    return SignedChannels(files, moves)


def verified(
    files: Files,
    where: str,
    roots: Sequence[Path] = (),
    known: Files | None = None,
    *,
    older: bool = False,
    expired: bool = False,
) -> SignedChannels:
    """Verify the metadata of a place with python-tuf. Raises ImageError for what is not trusted.

    :param roots: trusted root documents. One of them must be among the roots of the place.
    :param known: metadata that was verified before: nothing older is accepted, except with `older`.
    :param expired: the time does not count, for who has the keys and signs it again.
    """
    if not files:
        return SignedChannels()
    if known:
        # python-tuf begins with `first`, and does not miss a later root that was seen.
        seen = f"{version_of(known, ROOT)}.{ROOT}.json"
        if files.get(seen, known[seen] if older else b"") != known[seen]:
            raise UpdateError(
                f"the channels of {where} are refused: they lack the root that was seen before ({seen})",
                remedy="fetch the newest copy; if that does not help, report it to the publisher",
            )
    first = _first_root(files, where, roots, known)
    before = {
        f"{name.split('.')[-2]}.json": data
        for name, data in ({} if older else known or {}).items()
        if not name.endswith(f".{ROOT}.json")
    }
    publisher = {"what": f"the channels of {where}", "renew": REFRESH, "rotate": KEYS}
    with (
        opened(files) as repository,
        updates.client(str(repository), first, before, **publisher) as client,
    ):
        if expired:
            # python-tuf has no public way to set the time : a test pins this one.
            client._trusted_set.reference_time = _BEGINNING
        client.refresh()
        targets = {name: client.get_targetinfo(name) for name in sorted(unverified(files).moves)}
        moves = {name: _moves(name, info.to_dict()) for name, info in targets.items() if info}
    return SignedChannels(files, moves, bool(roots or known))


def _first_root(files: Files, where: str, roots: Sequence[Path], known: Files | None) -> bytes:
    """Return the root to start from: one that a person trusts, else the newest that was seen, else the place's own."""
    chain = [data for name, data in files.items() if name.endswith(f".{ROOT}.json")]
    if roots:
        given = [path.read_bytes() for path in roots]
        trusted = [data for data in chain if data in given]
        if not trusted:
            raise ImageError(
                f"no trusted root document is one of {where}: its channels are refused",
                remedy="compare the roots (--root, or images.roots of the site file) with those of the publisher",
            )
        return trusted[-1]
    if known:
        return known[f"{version_of(known, ROOT)}.{ROOT}.json"]
    return chain[0]


def version_of(files: Files, role: str = TIMESTAMP) -> int:
    """Return the newest version of a role."""
    if role == TIMESTAMP:
        return int(json.loads(files[_STAMP])["signed"]["version"])
    return max(int(name.split(".")[0]) for name in files if name.endswith(f".{role}.json"))


def _moves(name: str, target: Mapping[str, Any]) -> tuple[RecordedMove, ...]:
    """Return the moves of a channel. Raises what FORM lists unless the last one leads to the target."""
    channel = name.rpartition("/")[2]
    ChannelLine.of_target(name)
    try:
        moves = tuple(RecordedMove(**row, channel=channel) for row in target["custom"]["moves"])
    except ValidationError as problem:
        fault = problem.errors()[0]
        text = (
            f"{fault['loc'][0]} of a move of {name!r:.80} is {fault['input']!r:.80}: {fault['msg']}"
        )
        raise ValueError(text) from None
    if not moves or moves[-1].now.removeprefix("sha256:") != target["hashes"].get("sha256"):
        raise ValueError(f"the last move of {name} leads to another image than its target")
    return moves


# Writing


@dataclass(frozen=True)
class ChannelSigners:
    """Keys that sign: `roles` are those of targets, or of roles that targets delegates to.

    Where their keys are on another machine, a move is written to the file `prepare`, or read from the file `signed`.
    """

    roles: Sequence[EnvelopeSigner] = ()
    online: Sequence[EnvelopeSigner] = ()
    days: int = DAYS
    prepare: Path | None = None
    signed: Path | None = None


def with_move(
    channels: SignedChannels, line: ChannelLine, move: RecordedMove, signers: ChannelSigners
) -> tuple[RecordedMove, Files]:
    """Return the move and the metadata with it, signed. Raises UpdateError if the keys may not sign it.

    A move that was signed elsewhere is that of the signed file. A move that is prepared changes no metadata.
    """
    name = line.target(move.channel)
    with opened(channels.files) as repository:
        role = _owner(updates.next_release(repository).signed, name)
        document = updates.next_release(repository, role, RELEASE_DAYS)
        past = channels.moves.get(name, ())
        document.signed.targets[name] = target_of(name, (*past, move))
        if signers.prepare is not None:
            updates.write_document(signers.prepare, document)
            return move, channels.files
        if signers.signed is not None:
            signed = updates.read_document(signers.signed)
            prepared = _elsewhere(signed.signed, document.signed, name, move)
            if prepared is None:
                raise UpdateError(
                    f"what was signed is not this move of {name} after the present state",
                    file=signers.signed,
                    remedy="prepare it again with --prepare, and sign that",
                )
            move, document = prepared, signed
        keys = [key for key in signers.roles if key.keyid in _keys_of(repository, role)]
        updates.accept(repository, role, updates.sign(document, keys))
        updates.refresh(repository, signers.online, signers.days)
        return move, read_folder(repository / FOLDER)


def _elsewhere(signed: Any, wanted: Targets, name: str, move: RecordedMove) -> RecordedMove | None:
    """Return the move that was prepared and signed elsewhere; None if more than the wanted one was signed, or less."""
    try:
        *past, last = _moves(name, signed.targets[name].to_dict())
        present = _moves(name, wanted.targets[name].to_dict())[:-1]
        others = {**signed.targets, name: None} == {**wanted.targets, name: None}
        same = others and signed.delegations == wanted.delegations and tuple(past) == present
    except FORM:
        return None
    # The person who prepared it decided why, and by which requirements.
    decided = (last.number, last.action, last.was, last.now, last.tag, last.size)
    own = (move.number, move.action, move.was, move.now, move.tag, move.size)
    return last if same and decided == own else None


def target_of(name: str, moves: Sequence[RecordedMove]) -> TargetFile:
    """Return the target of a channel with these moves."""
    from tuf.api.metadata import TargetFile

    last = moves[-1]
    custom = {"moves": [move.document() for move in moves]}
    hashes = {"sha256": last.now.removeprefix("sha256:")}
    return TargetFile(last.size, hashes, name, {"custom": custom})


def release(
    repository: Path,
    moves: Mapping[str, Sequence[RecordedMove]],
    signers: ChannelSigners,
    *,
    teams: Iterable[DelegatedPaths] | None = None,
    renew: bool = False,
) -> None:
    """Sign the roles whose channels differ from what is released, then snapshot and timestamp. Raises UpdateError.

    A channel that belongs to another role now is handed over: with all moves, signed by the keys of that role.

    :param moves: the moves of all channels, by the names of their targets.
    :param teams: roles that `targets` delegates to from now on; None: as before.
    :param renew: sign each role again for which enough keys are given.
    """
    top = updates.next_release(repository, TARGETS, RELEASE_DAYS).signed
    if teams is not None:
        updates.delegate(top, teams)
    for role in [TARGETS, *((top.delegations and top.delegations.roles) or {})]:
        present = updates.released(repository, role)
        document = updates.next_release(repository, role, RELEASE_DAYS)
        own = [name for name in moves if _owner(top, name) == role]
        document.signed.targets = {name: target_of(name, moves[name]) for name in own}
        if role == TARGETS:
            document.signed.delegations = top.delegations
        content = (document.signed.targets, document.signed.delegations)
        changed = present is None or (present.targets, present.delegations) != content
        keys = [key for key in signers.roles if key.keyid in _keys_of(repository, role)]
        if changed or (renew and keys):
            updates.accept(repository, role, updates.sign(document, keys))
    updates.refresh(repository, signers.online, signers.days)


def _owner(top: Targets, name: str) -> str:
    """Return the role that signs a target: the first one whose paths match, else `targets`."""
    for role in ((top.delegations and top.delegations.roles) or {}).values():
        if role.is_delegated_path(name):
            return role.name
    return TARGETS


def _keys_of(repository: Path, role: str) -> list[str]:
    """Return the ids of the keys that may sign a role."""
    delegator = updates.delegator(repository, role)
    return [] if delegator is None else list(delegator.get_delegated_role(role).keyids)
