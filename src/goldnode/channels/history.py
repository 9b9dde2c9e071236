"""The signed, append-only history of a line of images: who moved which channel to which image, and why.

A line (`cuda:12.4-runtime-debian12`) is what users follow over patch releases and rebuilds. Its history is a
text with one DSSE envelope per line, each with the sha256 of the previous one, so an older text is always a
prefix of a newer one. The history is the authority; the channel tags of a registry are derived from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import ImageError
from goldnode.evidence import signatures
from goldnode.oci.identity import IMMUTABLE
from goldnode.oci.layout import canonical
from goldnode.oci.model import BUILD_ID_LENGTH

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import EnvelopeSigner

SCHEMA = "goldnode.history/1"
ENTRY = "application/vnd.goldnode.history-entry.v1+json"
HISTORY = "application/vnd.goldnode.history.v1+jsonl"
CHANNELS = ("candidate", "canary", "stable", "known-good")

_LINE = re.compile(r"(?P<repository>[a-z0-9][a-z0-9._/-]*):(?P<name>[^-:]+-[^-:]+-[^-:]+)")


@dataclass(frozen=True)
class ChannelLine:
    """A line that users follow: a repository (the backend) and a short name, `12.4-runtime-debian12`."""

    repository: str
    name: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.name}"

    def pointer(self, channel: str) -> str:
        """Return the tag of a channel: `stable` has the short name itself."""
        return self.name if channel == "stable" else f"{self.name}-{channel}"

    @property
    def history(self) -> str:
        """Return the tag of the history."""
        return f"{self.name}-history"


def line_of(repository: str, tag: str) -> ChannelLine:
    """Return the line of an immutable tag: `12.4.1-runtime-debian12-BUILDID` is of `12.4-runtime-debian12`.

    Raises ImageError.
    """
    match = IMMUTABLE.fullmatch(tag)
    if match is None:
        raise ImageError(
            f'"{repository}:{tag}" is no immutable tag of goldnode',
            remedy=f"name VERSION-FLAVOUR-OS-BUILDID, whose end has {BUILD_ID_LENGTH} digits",
        )
    return ChannelLine(
        repository, f"{'.'.join(match['version'].split('.')[:2])}-{match['flavour']}-{match['os']}"
    )


def read_line(text: str) -> ChannelLine:
    """Read `cuda:12.4-runtime-debian12`. Raises ImageError."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise ImageError(
            f'"{text}" is no line of images',
            remedy="write it as BACKEND:VERSION-FLAVOUR-OS, as in cuda:12.4-runtime-debian12",
        )
    return ChannelLine(match["repository"], match["name"])


@dataclass(frozen=True)
class HistoryEntry:
    """One move of one channel. `was` is the digest it led to before (None: to none), `tag` the immutable tag of `now`."""

    line: str
    number: int
    previous: str | None
    action: str
    channel: str
    was: str | None
    now: str
    tag: str
    by: str
    date: str
    reason: str = ""
    requirements: tuple[dict[str, Any], ...] = ()
    approvals: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the entry as it is signed."""
        return {
            "schema": SCHEMA,
            "line": self.line,
            "number": self.number,
            "previous": self.previous,
            "action": self.action,
            "channel": self.channel,
            "from": self.was,
            "to": self.now,
            "tag": self.tag,
            "by": self.by,
            "date": self.date,
            "reason": self.reason,
            "gates": list(self.requirements),
            "approvals": list(self.approvals),
            "notes": list(self.notes),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HistoryEntry:
        """Read one. Raises KeyError and TypeError."""
        return cls(
            line=data["line"],
            number=int(data["number"]),
            previous=data["previous"],
            action=data["action"],
            channel=data["channel"],
            was=data["from"],
            now=data["to"],
            tag=data["tag"],
            by=data["by"],
            date=data["date"],
            reason=data["reason"],
            requirements=tuple(data["gates"]),
            approvals=tuple(data["approvals"]),
            notes=tuple(data["notes"]),
        )


@dataclass(frozen=True)
class History:
    """The moves of a line in order; `text` is what they were read from."""

    line: ChannelLine
    text: bytes = b""
    entries: tuple[HistoryEntry, ...] = ()
    signers: tuple[
        str, ...
    ] = ()  # key ids that are verified; empty where none was given to verify with

    @property
    def head(self) -> str | None:
        """Return the sha256 of the last line, which the next entry names."""
        rows = self.text.splitlines(keepends=True)
        return "sha256:" + hashlib.sha256(rows[-1]).hexdigest() if rows else None

    def current(self, channel: str) -> HistoryEntry | None:
        """Return the last move of a channel."""
        return next((entry for entry in reversed(self.entries) if entry.channel == channel), None)

    def stack(self, channel: str) -> list[HistoryEntry]:
        """Return the moves of a channel, oldest first, without those that were rolled back. The last one is in force."""
        return self._walk(channel)[0]

    def taken_back(self, channel: str) -> dict[str, HistoryEntry]:
        """Return the images that a channel was rolled back from, or past, each with that rollback, except
        those that it pointed to again later.
        """
        return self._walk(channel)[1]

    def _walk(self, channel: str) -> tuple[list[HistoryEntry], dict[str, HistoryEntry]]:
        entries: list[HistoryEntry] = []
        back: dict[str, HistoryEntry] = {}
        for entry in self.entries:
            if entry.channel != channel:
                continue
            if entry.action == "rollback":
                # A rollback takes back all moves since the image that it returns to.
                while entries and entries[-1].now != entry.now:
                    back[entries.pop().now] = entry
            # Promoted again: it is not bad any more.
            back.pop(entry.now, None)
            if entry.action != "rollback" or not entries:
                entries.append(entry)
        return entries, back

    def digests(self) -> dict[str, str]:
        """Return all images that the history names, each with the reason."""
        reasons: dict[str, str] = {}
        for entry in self.entries:
            reasons.setdefault(
                entry.now,
                f"history of {self.line}: {entry.action} to {entry.channel} on {entry.date[:10]}",
            )
        for channel in CHANNELS:
            if (last := self.current(channel)) is not None:
                reasons[last.now] = f"{channel} of {self.line}"
        return reasons

    def was_in(self, channel: str, digest: str) -> bool:
        """Return whether a channel ever led to an image."""
        return any(entry.channel == channel and entry.now == digest for entry in self.entries)


def add(history: History, entry: HistoryEntry, signer: EnvelopeSigner) -> History:
    """Return the history with one more entry, signed."""
    row = signer.sign(canonical(entry.document()), ENTRY) + b"\n"
    return History(history.line, history.text + row, (*history.entries, entry), history.signers)


def read(text: bytes, line: ChannelLine, trust: Sequence[SSlibKey] = (), *, where: str) -> History:
    """Read a history and validate it: the order, the chain, the line, and with `trust` the signatures. Raises ImageError.

    A signature covers all entries before it, since each entry has the digest of the one before. So the last entry needs
    a trusted signature, and a key that signed earlier ones can be withdrawn. Without `trust` the signatures are
    not verified, and `signers` is empty.
    """

    def wrong(number: int, why: str) -> ImageError:
        return ImageError(
            f"the history of {line} is not what was signed: entry {number} {why}",
            file=where,
            line=number,
            remedy="find out who changed it; a store that saw it earlier has an unaltered copy",
        )

    entries: list[HistoryEntry] = []
    signers: list[str] = []
    unsigned: ImageError | None = (
        None  # the first entry after the last one that a trusted key has signed
    )
    previous: str | None = None
    for number, row in enumerate(text.splitlines(keepends=True), start=1):
        # The chain hashes rows with their line ends, so a cut row would change the next one.
        if not row.endswith(b"\n"):
            raise wrong(number, "is cut short")
        try:
            kind = json.loads(row)["payloadType"]
            document = json.loads(signatures.payload_of(row))
            entry = HistoryEntry.of(document)
        except (ImageError, ValueError, KeyError, TypeError, AttributeError):
            raise wrong(number, "cannot be read") from None
        if kind != ENTRY or document.get("schema") != SCHEMA:
            raise wrong(number, f"is of another kind than {SCHEMA}")
        # The hash of the row before: no row can be removed, exchanged or inserted.
        if entry.number != number or entry.previous != previous:
            raise wrong(number, "does not follow the one before it")
        # A valid history of another line, copied here.
        if entry.line != str(line):
            raise wrong(number, f"is of the line {entry.line}")
        if entry.channel not in CHANNELS or entry.action not in ("promote", "rollback"):
            raise wrong(number, "moves no channel that goldnode has")
        if trust:
            try:
                signers.append(signatures.open_envelope(row, trust).keyid)
                unsigned = None
            except ImageError as problem:
                why = f"has no good signature: {problem.message}"
                unsigned = unsigned or wrong(number, why)
        entries.append(entry)
        previous = "sha256:" + hashlib.sha256(row).hexdigest()
    if unsigned is not None:
        raise unsigned
    return History(line, text, tuple(entries), tuple(dict.fromkeys(signers)))
