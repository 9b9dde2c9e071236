"""Errors of a rehearsal."""

from goldnode.core.errors import GoldnodeError


class RehearsalError(GoldnodeError):
    """A step of the rehearsal did not do what it shows."""
