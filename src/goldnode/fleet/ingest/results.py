"""Results of the canary suite (goldnode.canary/1) as rows: quantiles of each metric, and jobs without one.

The samples remain in the documents; `goldnode floors` reads them there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from goldnode.canary.results import bound_rank
from goldnode.documents.canary import CanaryDocument, CanaryMetric
from goldnode.fleet.ingest.class_names import NO_CLASS, is_class
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import moment, node_name
from goldnode.fleet.ingest.text import clean
from goldnode.floors.counting import (
    CONFIDENCE,
    SHARES,
    job_problem,
    metric_name,
    metric_problem,
    runs_needed,
)
from goldnode.node.ground.optional import optional

SCHEMA = "goldnode.canary/1"
_AGAIN = "measure the node again with `goldnode canary run`"


@dataclass(frozen=True)
class CanaryResult:
    """A result with its names checked."""

    node: str
    class_: str
    boot_id: str
    time: datetime
    document: CanaryDocument
    digest: str  # sha256 of the bytes

    @property
    def day(self) -> str:
        """Day of the result, UTC."""
        return self.time.strftime("%Y-%m-%d")

    @property
    def id(self) -> str:
        """Identity of the result in the table."""
        return self.digest[:24]


def parse(
    content: Mapping[str, Any], data: bytes, class_: str | None, now: datetime
) -> CanaryResult:
    """Return the result in a document. Raise RefusedReportError for one that cannot be stored."""
    try:
        document = CanaryDocument.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise RefusedReportError(
            f"{clean(where)[:200]}: {clean(first['msg'])[:200]}", remedy=_AGAIN
        ) from None
    name = class_ or document.class_ or NO_CLASS
    if not is_class(name):
        raise RefusedReportError(f"{clean(name[:60])!r} is not a name of a class", remedy=_AGAIN)
    return CanaryResult(
        node_name(document.node),
        class_=name,
        boot_id=document.boot_id,
        time=moment(content.get("started"), now),
        document=document,
        digest=hashlib.sha256(data).hexdigest(),
    )


def rows(result: CanaryResult) -> Iterator[dict[str, Any]]:
    """Yield the rows of a result, without the time of its arrival."""
    document = result.document
    clocks = _clocks(document)
    own = {
        "node": result.node,
        "time": int(result.time.timestamp() * 1000),
        "result": result.id,
        "simulated": document.simulated,
        "class_digest": document.class_digest,
        "platform": clean(document.platform),
        "runner": document.runner,
        "image": document.image if document.image is None else clean(document.image),
        "boot_id": clean(result.boot_id),
        "how": document.how,
    }
    for job in document.jobs:
        about = own | {
            "job": clean(job.name),
            "state": job.state,
            "why": clean(job.why),
            "verified": job.verified,
        }
        why = job_problem(job)
        if why is not None or not job.metrics:
            yield about | {"uncounted": optional(clean, why)}
        for metric in job.metrics if why is None else ():
            device = clean(metric.device or "")
            for row in _metric_rows(metric):
                yield about | row | {"device": device, "device_sm_mhz": clocks.get(metric.device)}


def _metric_rows(metric: CanaryMetric) -> Iterator[dict[str, Any]]:
    clock = metric.conditions.sm_mhz
    own = {
        "metric": metric_name(clean(metric.name), metric.phase),
        "unit": clean(metric.unit),
        "better": metric.better,
        "runs": len(metric.samples),
        "sm_mhz": None if clock is None else clock[1],
        "uncounted": optional(clean, metric_problem(metric)),
    }
    if not metric.samples:
        yield own | {"quantile": "p50"}
        return
    for name, share in SHARES.items():
        if name == "p50" or len(metric.samples) >= runs_needed(share):
            value, bound = quantile_with_bound(metric, share)
            yield own | {"quantile": name, "value": value, "bound": bound}


def _clocks(document: CanaryDocument) -> dict[str | None, float]:
    """Return the highest SM clock of each device over all metrics."""
    highest: dict[str | None, float] = {}
    for job in document.jobs:
        for metric in job.metrics:
            if metric.conditions.sm_mhz is not None:
                clock = metric.conditions.sm_mhz[1]
                highest[metric.device] = max(clock, highest.get(metric.device, clock))
    return highest


def quantile_with_bound(metric: CanaryMetric, share: float) -> tuple[float, float | None]:
    """Return a quantile of the samples, and its bound in favour of the device; None: too few samples for a bound.

    `share` is that of the values below it where more is better. It is what `goldnode floors check`
    computes.
    """
    sign = 1.0 if metric.better == "higher" else -1.0
    ordered = sorted(sign * value for value in metric.samples)
    rank = _rank(len(ordered), share)
    return sign * _quantile(ordered, share), None if rank is None else sign * ordered[rank - 1]


def _quantile(ordered: Sequence[float], share: float) -> float:
    if share == 0.5:
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]


@lru_cache(maxsize=4096)
def _rank(count: int, share: float) -> int | None:
    return bound_rank(count, share, CONFIDENCE)
