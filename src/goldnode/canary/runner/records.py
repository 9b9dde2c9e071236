"""Types of jobs and results (schema goldnode.canary/1), for Python 3.9's standard library."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, Union

SCHEMA = "goldnode.canary/1"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not_run"
NOT_COUNTED, COULD_NOT_CHECK = "not_counted", "could_not_check"

Json = Dict[str, Any]
Fact = Union[str, int, float, bool, None]


class Conditions(TypedDict):
    """State of the device around and during samples: ranges [least, greatest], None if not read."""

    sm_mhz: Optional[List[float]]
    temperature_c: Optional[List[float]]
    power_w: Optional[List[float]]
    throttled: Optional[List[str]]


class Metric(TypedDict):
    """Samples of one quantity."""

    name: str
    unit: str
    better: str
    device: Optional[str]
    phase: str
    samples: List[float]
    conditions: Conditions


class JobResult(TypedDict):
    """Outcome of one job, as its process reports it."""

    state: str
    why: str
    facts: Dict[str, Fact]
    metrics: List[Metric]


class JobEnded(Exception):  # noqa: N818 - its name is its meaning
    """A job ended without passing. Carries what it had measured before."""

    def __init__(self, state: str, why: str, metrics: Optional[List[Metric]] = None) -> None:
        super().__init__(why)
        self.result: JobResult = {"state": state, "why": why, "facts": {}, "metrics": metrics or []}


def failed(why: str, metrics: Optional[List[Metric]] = None) -> JobEnded:
    """Return the exception of a job with a wrong result."""
    return JobEnded(FAILED, why, metrics)


def not_run(why: str) -> JobEnded:
    """Return the exception of a job that this node lacks something for."""
    return JobEnded(NOT_RUN, why)


def passed(
    metrics: List[Metric], facts: Optional[Dict[str, Fact]] = None, why: str = ""
) -> JobResult:
    """Return the result of a job that passed."""
    return {"state": PASSED, "why": why, "facts": facts or {}, "metrics": metrics}


def unread() -> Conditions:
    """Return conditions of which nothing was read."""
    return {"sm_mhz": None, "temperature_c": None, "power_w": None, "throttled": None}


def metric(
    name: str, unit: str, samples: List[float], device: Optional[str] = None, cold: bool = False
) -> Metric:
    """Return a metric without conditions. For units of time less is better, for rates more."""
    return {
        "name": name,
        "unit": unit,
        "better": "lower" if unit in ("s", "ms", "us") else "higher",
        "device": device,
        "phase": "cold" if cold else "warm",
        "samples": [float(f"{value:.6g}") for value in samples],
        "conditions": unread(),
    }
