"""Refusal of one report of a node. It never ends the ingest of the others."""

from __future__ import annotations

from goldnode.core.errors import GoldnodeError


class RefusedReportError(GoldnodeError):
    """A report of a node that is not stored: file, reason, remedy."""
