"""The error of the canary suite."""

from __future__ import annotations

from goldnode.core.errors import GoldnodeError


class CanaryError(GoldnodeError):
    """The suite cannot be started, or its result cannot be used."""
