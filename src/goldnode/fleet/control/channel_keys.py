"""Defaults of a channel: how long its signatures are valid, and the command that replaces its root."""

from __future__ import annotations

DAYS = 7  # that signatures are valid: a copy of the channel that is withheld is refused after them

ROTATE = "goldnode rollout rotate-keys"  # the command that replaces the root of a channel
