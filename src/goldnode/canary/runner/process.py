"""One job in a process of its own: how it is started, and how it answers there."""

from __future__ import annotations

import os

from goldnode.gpuprogram import work
from goldnode.gpuprogram.children import (
    ChildProcesses,
    CrashedError,
    EndedChild,
    NoResultError,
    StoppedError,
    printed,
)
from goldnode.gpuprogram.results import Failed, NotRun

from . import site_job
from .plan import Job
from .records import COULD_NOT_CHECK, FAILED, NOT_COUNTED, NOT_RUN, PASSED, JobEnded, Json

STATES = (PASSED, FAILED, NOT_RUN, NOT_COUNTED, COULD_NOT_CHECK)


def run(children: ChildProcesses, job: Job) -> Json:
    """Run one job and return its result. Never raises, never hangs."""
    if children.stuck and not children.stopped:
        return result(
            COULD_NOT_CHECK,
            f"process {children.stuck[0]} of an earlier job hangs in the driver and cannot be killed",
        )
    try:
        if job.command:
            ended = children.run(list(job.command), b"", job.limit)
            return site_job.result(ended.status, ended.out, ended.err)
        request = {"call": job.call, "arguments": job.arguments}
        return answered(children.request(__name__, request, job.limit, site=job.site_packages))
    except StoppedError as problem:
        return result(NOT_COUNTED, str(problem))
    except NoResultError as problem:
        return result(COULD_NOT_CHECK, str(problem))


def answered(ended: EndedChild) -> Json:
    """Return the result that an ended job printed. Without a readable one it is *could not check*."""
    try:
        return printed(ended, STATES)
    except NoResultError as problem:
        return result(COULD_NOT_CHECK, str(problem))
    except CrashedError as problem:
        return result(FAILED, str(problem))


def result(state: str, why: str) -> Json:
    """Return a result without facts and metrics."""
    return {"state": state, "why": why[:1000], "facts": {}, "metrics": []}


def answer(request: Json) -> Json:
    """Call the function of a request {call, arguments}. Its result also names simulated hardware."""
    ended = _call(f"{__package__}.{request['call']}", request["arguments"])
    return {**ended, "simulated": work.simulated()}


def _call(name: str, arguments: Json) -> Json:
    try:
        return dict(work.called(name, arguments))
    except JobEnded as ended:
        return dict(ended.result)
    except Failed as ended:  # raised by the modules that call a GPU, for all programs
        wanted, got = ended.result["expected"], ended.result["got"]
        return result(FAILED, f"{ended}: expected {wanted}, got {got}")
    except NotRun as ended:
        return result(COULD_NOT_CHECK if ended.result["required"] else NOT_RUN, str(ended))
    except MemoryError:
        return result(COULD_NOT_CHECK, "memory is short")
    except Exception as problem:  # a fault of this program is never a verdict on the node
        return result(COULD_NOT_CHECK, f"{type(problem).__name__}: {problem}{_place(problem)}")


def _place(problem: BaseException) -> str:
    """Return file and line where an exception was raised."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
