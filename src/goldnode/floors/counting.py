"""Which canary results count, and what a quantile needs. It needs no package of the extra `floors`.

`goldnode.floors` judges results with it, and so does the report on a fleet, whose ingest stores a
summary of each result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from goldnode.documents.canary import CanaryJob, CanaryMetric
from goldnode.documents.floors import Quantile
from goldnode.node.ground.text import phrase

CONFIDENCE = 0.99  # of the bounds of quantiles
RUNS = 9  # of a device, for a judgement of its median
SIGMAS = 3.0
CLASS_NODES, CLASS_DEVICES = 3, 8  # with fewer, the spread of a class is not known
RESULTS = 5  # results of one device that give its spread between runs of the suite
# Highest clocks that differ by more are of two settings. Our choice, not verified on hardware.
CLOCK_TOLERANCE = 0.03
# Quantile -> share of the values below it, where more is better: p99 is on the bad one.
SHARES: Mapping[Quantile, float] = {"p50": 0.5, "p95": 0.05, "p99": 0.01}


@lru_cache(maxsize=64)
def runs_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest runs that bound the quantile `share` on both sides."""
    least = min(share, 1 - share)
    # The smallest of n values is below the quantile with probability 1 - (1 - least) ** n.
    return math.ceil(round(math.log(1 - confidence) / math.log(1 - least), 9))


def job_problem(job: CanaryJob) -> str | None:
    """Return why no metric of a job counts; None if they may."""
    if job.state == "passed":
        return None
    return f"job {job.name} is {job.state.replace('_', ' ')}" + phrase(": {}", job.why)


def metric_problem(metric: CanaryMetric) -> str | None:
    """Return why a metric does not count by itself; None if it does."""
    if not metric.samples:
        return "it has no samples"
    if min(metric.samples) <= 0:
        return f"a sample is {min(metric.samples):g}, and only positive ones can be compared"
    throttled = metric.conditions.throttled
    if throttled:
        return f"the device was slowed from outside: {', '.join(sorted(throttled))}"
    return None


def metric_name(name: str, phase: str) -> str:
    """Return the name of a metric as a person writes it: gemm_fp16, or gemm_fp16/cold for the first call of a process."""
    return name if phase == "warm" else f"{name}/{phase}"
