"""Lines of disk images that users follow: one per node class."""

from __future__ import annotations

import re
from dataclasses import dataclass

from goldnode.channels.lines import ChannelLine
from goldnode.core.errors import DiskError

COMMAND = "goldnode disks"
HISTORY = "history.jsonl"  # of the last release, until it is migrated
DISK = "disk"  # the short name of all lines of disks
CLASS_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


@dataclass(frozen=True)
class ClassLine(ChannelLine):
    """A line of images that users follow: a node class."""

    def __str__(self) -> str:
        return self.repository


def line_of(name: str) -> ClassLine:
    """Return the line of a class. Raises DiskError if `name` is not a valid class name."""
    if CLASS_NAME.fullmatch(name) is None:
        raise DiskError(
            f'"{name}" is no name of a class', remedy="write it as the catalog does, as in cpu_only"
        )
    return ClassLine(name, DISK)
