"""Mitigations of vulnerabilities in the class document: their settings are judged as those of the class, their last day here."""

from __future__ import annotations

from ..state.finding import MATCH, MISMATCH, Finding
from ..state.remedy import SITE, Remedy
from .rules import rows_of, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

ITEM = "policy.host.mitigations"
WANTED = "no mitigation is past its last day"


def findings(rows: Any, today: str) -> List[Finding]:
    """Return whether a mitigation is past its last day on day `today` (YYYY-MM-DD). Pure.

    No rows give no finding.
    """
    known = [row for row in rows_of(rows) if isinstance(row.get("expires"), str)]
    past = [
        f"{sanitized(row.get('cve'), 40)} of {sanitized(row.get('owner'), 60)} was until {row['expires']}"
        for row in known
        if row["expires"] < today
    ]
    if past:
        remedy = Remedy("Run site.yml: it removes the settings.", SITE)
        return [Finding(ITEM, MISMATCH, WANTED, "; ".join(past), remedy)]
    return [Finding(ITEM, MATCH, WANTED, WANTED)] if known else []
