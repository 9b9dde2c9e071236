"""One test in a process of its own: how it is started, and how it answers there."""

from __future__ import annotations

from goldnode.gpuprogram import work
from goldnode.gpuprogram.children import (
    ChildProcesses,
    CrashedError,
    EndedChild,
    NoResultError,
    printed,
)
from goldnode.gpuprogram.results import FAILED, NOT_RUN, PASSED, Failed, Json, NotRun

# Fields of each result that a test may leave out.
DEFAULTS = {"required": True, "why": "", "expected": None, "got": None, "figures": {}}


def run(children: ChildProcesses, request: Json, limit: float, *, site: bool) -> Json:
    """Run one test and return its result. Never raises, never hangs.

    `site`: with Python's installed packages, for frameworks.
    """
    if children.stuck and request["tier"] == "gpu":
        return _missing(
            f"process {children.stuck[0]} of an earlier test is stuck in the driver and cannot be killed"
        )
    try:
        ended = children.request(__name__, request, limit, site=site)
    except NoResultError as problem:
        return _missing(str(problem))
    return {**_result(ended), "seconds": round(ended.seconds, 3)}


def _result(ended: EndedChild) -> Json:
    try:
        return printed(ended, (FAILED, NOT_RUN, PASSED))
    except NoResultError as problem:
        return _missing(str(problem))
    except CrashedError as problem:
        return {**DEFAULTS, "state": FAILED, "why": str(problem)}


def _missing(why: str) -> Json:
    """Return the result of a required test that could not be run."""
    return {**DEFAULTS, "state": NOT_RUN, "why": why}


def answer(request: Json) -> Json:
    """Call the function of a request {call, arguments}. Failed and NotRun are results too.

    Any other exception is a bug of the runner, so it gives no verdict.
    """
    try:
        result = work.called(request["call"], request["arguments"])
    except (Failed, NotRun) as ended:
        result = ended.result
    except MemoryError:
        result = {"state": NOT_RUN, "why": "memory is short"}
    simulated = {"simulated": True} if work.simulated() else {}
    return {**DEFAULTS, **result, **simulated}
