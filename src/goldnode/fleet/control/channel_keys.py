"""Keys of a channel, and how long its signatures are valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DAYS = 7  # that signatures are valid: a copy of the channel that is withheld is refused after them

ROTATE = "goldnode rollout rotate-keys"  # the command that replaces the root of a channel


@dataclass(frozen=True)
class ChannelKeys:
    """Secret keys of a channel: those that sign each state, and for a new channel those of its root."""

    keys: Sequence[Path]
    root_keys: Sequence[Path] = ()
    threshold: int | None = None  # of a new channel; None: 1
