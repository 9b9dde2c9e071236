"""The process of one job: reads a request on standard input, writes a result to standard output."""

from __future__ import annotations

import importlib
import json
import os
import sys

from goldnode.gpuprogram.report import Failed, NotRun

from .records import COULD_NOT_CHECK, FAILED, NOT_RUN, JobEnded, Json


def main() -> None:
    """Handle one request {call, arguments}, and end the process without clean-up.

    A library that hangs while it is unloaded must not block a finished result.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)  # output that a library prints must not mix with the result
    request = json.load(sys.stdin)
    result = {**run(request), "simulated": simulated()}
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(answer_to, data) :]
    sys.stderr.flush()
    os._exit(0)


def run(request: Json) -> Json:
    """Call the function of the request and return its result.

    Failed, NotRun and JobEnded are results. Any other exception is a fault of this program or of a library's interface, so it gives no
    verdict.
    """
    module, _, function = str(request["call"]).rpartition(".")
    try:
        found: Json = getattr(importlib.import_module(f"{__package__}.{module}"), function)(
            **request["arguments"]
        )
        return found
    except JobEnded as ended:
        return dict(ended.result)
    except Failed as ended:  # raised by code of goldnode-smoke
        return _ended(
            FAILED, f"{ended}: expected {ended.result['expected']}, got {ended.result['got']}"
        )
    except NotRun as ended:
        return _ended(COULD_NOT_CHECK if ended.result["required"] else NOT_RUN, str(ended))
    except MemoryError:
        return _ended(COULD_NOT_CHECK, "memory is short")
    except Exception as problem:  # a fault of this program is never a verdict on the node
        return _ended(COULD_NOT_CHECK, f"{type(problem).__name__}: {problem}{_place(problem)}")


def _place(problem: BaseException) -> str:
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        ""
        if trace is None
        else f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
    )


def _ended(state: str, why: str) -> Json:
    return {"state": state, "why": why[:1000], "facts": {}, "metrics": []}


def simulated() -> bool:
    """Return whether a loaded library or device is simulated."""
    from goldnode.gpuprogram import native

    return bool(native.SIMULATED)
