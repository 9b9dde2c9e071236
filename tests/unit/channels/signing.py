"""Channels of a place for tests: a root of its own, the builder's key as that of targets, and an online key."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.images.registries import make_key

from goldnode.channels import signed
from goldnode.channels.keys import RepositoryKeys
from goldnode.channels.lines import ChannelLine, History
from goldnode.channels.promotion import ChannelState, Move, PlaceState, look, states
from goldnode.channels.requirements import EVIDENCE, ChannelSubject, Decisions, Requirement
from goldnode.channels.signed import ChannelSigners
from goldnode.channels.upkeep import ChannelKeyChange, change_keys
from goldnode.evidence.signatures import load_signer


def key_of(folder: Path, name: str) -> Path:
    """Return a secret key of the folder, made on its first use."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.pem"
    return path if path.is_file() else make_key(folder, name)[0]


def signers(folder: Path, *roles: Path) -> ChannelSigners:
    """Return the keys that sign a move: those of its role, and the online key of the folder."""
    return ChannelSigners(
        [load_signer(path) for path in roles], [load_signer(key_of(folder, "online"))]
    )


def make_channels(place: Any, store: Any, folder: Path, targets: Path) -> Path:
    """Make the channels of a place; return its trusted root."""
    first = RepositoryKeys([key_of(folder, "online")], [targets])
    change = ChannelKeyChange(first, [key_of(folder, "root")])
    change_keys(place, store, change, signers(folder, targets), settle=0)
    root = folder / "trusted-root.json"
    root.write_bytes(place.files()["1.root.json"])
    return root


def state(place: Any, store: Any, *roots: Path) -> PlaceState:
    """Return the verified channels of a place."""
    return look(place.files(), place.name, store, roots)


class LineState(NamedTuple):
    """The state of a line at a place."""

    history: History
    stands: list[ChannelState]
    verified: bool
    pending: int


def status(place: Any, state: PlaceState, line: ChannelLine) -> LineState:
    """Return the state of a line, as `status` prints it."""
    history = state.there.history(line)
    known = state.there.trusted and bool(history.entries)
    return LineState(history, states(place, history), known, len(state.pending(line)))


def move(*words: Any, **settings: Any) -> Move:
    """Return a requested move; the decisions of `given` are settings too."""
    names = ("trust", "waivers", "approvals", "limits", "now", "evidence")
    decisions = {name: settings.pop(name) for name in names if name in settings}
    settings["given"] = Decisions(**decisions)
    return Move(*words, **settings)


def said(place: Any) -> signed.SignedChannels:
    """Return what the metadata of a place says."""
    return signed.unverified(place.files())


def unasked(image: ChannelSubject) -> Requirement:
    """Judge the evidence of node classes where none asks for any."""
    return Requirement(EVIDENCE, "passed", "no class that runs it asks for any")


class MemoryStore:
    """A store of which only the copies of channels count."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def name_as(self, name: str, digest: str) -> None:
        pass


class MemoryPlace:
    """A place in memory that has every image it is asked for, and histories of the last release by line."""

    command, copy, settles = "goldnode things", False, False

    def __init__(self, name: str = "memory") -> None:
        self.name, self.held = name, dict[str, bytes]()
        self.pointers: dict[tuple[str, str], str] = {}
        self.histories: dict[str, bytes] = {}

    def files(self) -> dict[str, bytes]:
        return self.held

    def commit(self, files: Any) -> None:
        self.held = dict(files)

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        return self.pointers.get((str(line), channel))

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        self.pointers[str(line), channel] = digest

    def published(self, line: ChannelLine, tag: str) -> str | None:
        return f"sha256:{tag[-1] * 64}"

    def whole(self, line: ChannelLine, digest: str) -> int:
        return 1000

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        return False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def former(self, line: ChannelLine) -> bytes:
        return self.histories.get(str(line), b"")

    def retire(self, line: ChannelLine) -> None:
        self.histories.pop(str(line), None)
