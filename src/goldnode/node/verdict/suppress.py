"""Suppressions: accepted findings with reason and expiry date. They are reported and do not count.

A suppression covers certain findings (a mismatch, or a declared item that is not exposed), never an
item that could not be read, and never a node of another class. It covers findings that degrade the
node; a draining one only with `severity: drain`, so that a broad pattern cannot accept a damaged
GPU. After its last day the finding counts again and names the expired suppression.
"""

from __future__ import annotations

from ..ground.host import like
from ..state.finding import MISMATCH, NOT_EXPOSED, SUPPRESSED, Finding
from .rules import rows_of, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence


# Findings that no class can accept: on the identity of the node, and on the program and document that judge it.
NEVER = (
    "node.os",
    "gpu.ids",
    "check",
    "class.document",
    "node.program",
    "node.owner",
    "memory.state",
)


def apply(findings: Sequence[Finding], rows: Any, today: str) -> List[Finding]:
    """Return the findings, with those suppressed that a row covers on day `today` (YYYY-MM-DD).

    Pure. Rows of a wrong shape cover nothing.
    """
    known = [
        row
        for row in rows_of(rows)
        if isinstance(row.get("id"), str) and isinstance(row.get("expires"), str)
    ]
    return [_one(finding, known, today) for finding in findings]


def _one(finding: Finding, rows: Sequence[Mapping[str, Any]], today: str) -> Finding:
    if finding.outcome not in (MISMATCH, NOT_EXPOSED) or finding.id in NEVER:
        return finding
    if finding.outcome == NOT_EXPOSED and finding.expected is None:  # nothing that was declared
        return finding
    covering = [row for row in rows if _covers(row, finding)]
    holding = [row for row in covering if row["expires"] >= today]
    if holding:
        row = holding[0]
        text = f"accepted by {sanitized(row.get('owner'), 60)} until {row['expires']}: {sanitized(row.get('reason'))}"
        return finding._replace(outcome=SUPPRESSED, evidence=(text, *finding.evidence))
    if covering:
        # Expired: the finding counts again, and names the suppression that ended last.
        row = max(covering, key=lambda item: str(item["expires"]))
        text = f"was accepted by {sanitized(row.get('owner'), 60)} until {row['expires']}, which is past: {sanitized(row.get('reason'))}"
        return finding._replace(evidence=(text, *finding.evidence))
    return finding


def _covers(row: Mapping[str, Any], finding: Finding) -> bool:
    subject: Optional[Any] = row.get("subject")
    return (
        like(finding.id, row["id"])
        and (subject is None or like(finding.subject or "", str(subject)))
        and (finding.severity == "degraded" or row.get("severity") == finding.severity)
    )
