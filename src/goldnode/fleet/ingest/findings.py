"""Findings of a verdict as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.text import clean

FINDING = ("id", "outcome", "severity", "domain", "subject", "expected", "got")
_MOST_FINDINGS = 5_000  # of one verdict


def finding_columns(report: NodeReport) -> dict[str, list[str | None]]:
    """Return the columns of the findings of a report. Raise RefusedReportError for what are none."""
    columns: dict[str, list[str | None]] = {name: [] for name in FINDING}
    findings = (report.verdict or {}).get("findings", [])
    if not isinstance(findings, list) or len(findings) > _MOST_FINDINGS:
        raise RefusedReportError("its verdict has no list of findings, or too many", remedy=_CHECK)
    for row in findings:
        if not isinstance(row, dict):
            raise RefusedReportError("a finding is not an object", remedy=_CHECK)
        if not row.get("id") or not row.get("outcome"):
            raise RefusedReportError("a finding has no id or no outcome", remedy=_CHECK)
        for key, texts in columns.items():
            value = row.get(key)
            if value is not None and not isinstance(value, str):
                raise RefusedReportError(f"{key} is not a text", remedy=_CHECK)
            texts.append(None if value is None else clean(value))
    return columns


def text_size(columns: Mapping[str, Sequence[str | None]]) -> int:
    """Return the number of characters of findings."""
    return sum(sum(map(len, filter(None, texts))) for texts in columns.values())


_CHECK = "record it again with `goldnode-node check`"
