"""Texts of a report, safe to show on a terminal and to store."""

from __future__ import annotations

from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError
from goldnode.node.ground import text as node_text

LONGEST = 16_384  # characters of one text


def clean(text: str) -> str:
    """Return a text with control characters escaped. Raise RefusedReportError for one that is too long."""
    if len(text) > LONGEST:
        raise RefusedReportError(
            f"a text has {len(text)} characters, more than {LONGEST}", remedy=AGAIN
        )
    return node_text.clean(text)
