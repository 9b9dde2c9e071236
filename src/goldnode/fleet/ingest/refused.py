"""Refusal of one report of a node. It never ends the ingest of the others."""

from __future__ import annotations

from goldnode.core.errors import GoldnodeError

AGAIN = "record it again with `goldnode-node capture`"


class RefusedReportError(GoldnodeError):
    """A report of a node that is not stored: file, reason, remedy."""
