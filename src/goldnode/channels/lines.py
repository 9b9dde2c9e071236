"""Lines of images that users follow, and the recorded moves of their channels.

A line (`cuda:12.4-runtime-debian12`, or a node class) is what users follow over patch releases and rebuilds.
Each of its channels is a signed target (`goldnode.channels.signed`), which has the moves of the channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import to_jsonable_python

from goldnode.core.errors import ImageError
from goldnode.documents.base import Moment
from goldnode.oci.identity import IMMUTABLE
from goldnode.oci.model import BUILD_ID_LENGTH

CHANNELS = ("candidate", "canary", "stable", "known-good")

# Tags and digests of a move become parts of paths, addresses and command lines.
_Digest = Annotated[str, Field(pattern=r"^[0-9A-Za-z_][0-9A-Za-z_:.+-]{0,159}$")]
_Rows = tuple[dict[str, Any], ...]
_LINE = re.compile(r"(?P<repository>[a-z0-9][a-z0-9._/-]*):(?P<name>[^-:/]+-[^-:/]+-[^-:/]+)")


@dataclass(frozen=True, order=True)
class ChannelLine:
    """A line that users follow: a repository (the backend) and a short name, `12.4-runtime-debian12`."""

    repository: str
    name: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.name}"

    def pointer(self, channel: str) -> str:
        """Return the tag of a channel: `stable` has the short name itself."""
        return self.name if channel == "stable" else f"{self.name}-{channel}"

    @classmethod
    def of_target(cls, name: str) -> ChannelLine:
        """Return the line of the name of a target. Raises ValueError for a name that leads elsewhere."""
        *parts, short, _channel = name.split("/")
        if not parts or not short or {"", ".", ".."} & {*parts, short}:
            raise ValueError(f"{name!r:.80} names no line of images")
        return cls("/".join(parts), short)

    def target(self, channel: str) -> str:
        """Return the name of a channel among the signed targets of a place."""
        return f"{self.repository}/{self.name}/{channel}"


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


@pydantic_dataclass(frozen=True, config=ConfigDict(strict=True, validate_by_name=True))
class RecordedMove:
    """One move of one channel. `was` is the digest it led to before (None: to none), `tag` the immutable tag of `now`.

    `number` counts the moves of a place. `size` is that of the image's manifest, in bytes. Raises ValueError.
    """

    number: Annotated[int, Field(ge=1)]
    action: Annotated[str, Field(pattern="^(promote|rollback)$")]
    channel: Annotated[str, Field(pattern=f"^({'|'.join(CHANNELS)})$")]
    was: Annotated[_Digest | None, Field(alias="from")]
    now: Annotated[_Digest, Field(alias="to")]
    tag: Annotated[str, Field(pattern=r"^[0-9A-Za-z_][0-9A-Za-z_.+-]{0,127}$")]
    by: str
    date: Moment
    reason: str = ""
    requirements: Annotated[_Rows, Field(alias="gates", strict=False)] = ()
    approvals: Annotated[_Rows, Field(strict=False)] = ()
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    size: Annotated[int, Field(ge=0)] = 0

    def document(self) -> dict[str, Any]:
        """Return the move as it is signed; `goldnode.channels.signed` has its channel in the name of the target."""
        return dict(to_jsonable_python(self, by_alias=True, exclude={"channel"}))


@dataclass(frozen=True)
class History:
    """The moves of a line in order."""

    line: ChannelLine
    entries: tuple[RecordedMove, ...] = ()

    def current(self, channel: str) -> RecordedMove | None:
        """Return the last move of a channel."""
        return next((entry for entry in reversed(self.entries) if entry.channel == channel), None)

    def stack(self, channel: str) -> list[RecordedMove]:
        """Return the moves of a channel, oldest first, without those that were rolled back. The last one is in force."""
        return self._walk(channel)[0]

    def taken_back(self, channel: str) -> dict[str, RecordedMove]:
        """Return the images that a channel was rolled back from, or past, each with that rollback, except
        those that it pointed to again later.
        """
        return self._walk(channel)[1]

    def _walk(self, channel: str) -> tuple[list[RecordedMove], dict[str, RecordedMove]]:
        entries: list[RecordedMove] = []
        back: dict[str, RecordedMove] = {}
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
        """Return all images that the moves name, each with the reason."""
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

    def was_in(self, channel: str, digest: str | None) -> bool:
        """Return whether a channel ever led to an image."""
        return any(entry.channel == channel and entry.now == digest for entry in self.entries)
