"""Errors of dual runs."""

from __future__ import annotations

from goldnode.core.errors import GoldnodeError


class DualError(GoldnodeError):
    """A record, a tolerances file or a report of a dual run cannot be read, or cannot be made."""
