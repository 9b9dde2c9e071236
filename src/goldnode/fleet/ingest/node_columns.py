"""Columns of a capture in the table of nodes."""

from __future__ import annotations

import math
from typing import Any

from goldnode.fleet.ingest.refused import AGAIN, RefusedReportError
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.text import clean
from goldnode.node.ground.json_lines import as_dict


def node_columns(report: NodeReport) -> dict[str, Any]:
    """Return the columns of a capture that are not those of its rows. Raise RefusedReportError for an uptime that is no number."""
    identity = as_dict(report.capture.get("identity"))
    verdict = report.verdict or {}
    return {
        "cohort": report.origin.cohort,
        "boot_id": _own(identity.get("boot_id")),
        "uptime": uptime_seconds(report.capture.get("uptime")),
        "simulated": report.capture.get("simulated") is True,
        "status": verdict.get("status"),
        "class_digest": _own(verdict.get("class_digest") or identity.get("class_digest")),
        "lock_digest": _own(verdict.get("lock_digest") or identity.get("lock_digest")),
        "engine": report.origin.engine,
        "source": report.origin.source,
    }


def uptime_seconds(value: Any) -> float | None:
    """Return an uptime; None for what is no number. Raise RefusedReportError for one that is not finite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise RefusedReportError("uptime is not a finite number", remedy=AGAIN)
    return seconds


def _own(value: Any) -> str | None:
    return clean(value) if isinstance(value, str) else None
