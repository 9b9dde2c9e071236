"""The list of known bad combinations."""

from __future__ import annotations

from goldnode.compat.model import Finding


def without_repetitions(found: list[Finding]) -> list[Finding]:
    """Return `found` without rows of the list that another rule has found as well."""
    return found
