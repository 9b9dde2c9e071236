"""Texts of a report, safe to show on a terminal and to store."""

from __future__ import annotations

from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError

LONGEST = 16_384  # characters of one text

# Control characters, line separators, and marks that reverse the direction of what follows.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def clean(text: str) -> str:
    """Return a text with control characters escaped. Raise RefusedReportError for one that is too long."""
    if len(text) > LONGEST:
        raise RefusedReportError(f"a text has {len(text)} characters, more than {LONGEST}", remedy=AGAIN)
    if text.isprintable():
        return text
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()
