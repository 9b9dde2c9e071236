"""The process of one test: reads a request on standard input, writes a result to standard output."""

from __future__ import annotations

import importlib
import json
import os
import sys

from .report import Failed, Json, NotRun


def main() -> None:
    """Handle one request {module, function, arguments}, and end the process without clean-up.

    A library that hangs while it is unloaded must not block a finished result.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)  # output that a library prints must not mix with the result
    request = json.load(sys.stdin)
    result = {
        "required": True,
        "why": "",
        "expected": None,
        "got": None,
        "figures": {},
        **run(request),
    }
    if _simulated():
        result["simulated"] = True
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(answer_to, data) :]
    sys.stderr.flush()
    os._exit(0)


def run(request: Json) -> Json:
    """Call the function of the request. Failed and NotRun are results too.

    Any other exception is a bug of the runner, so it gives no verdict.
    """
    module = importlib.import_module(f"{__package__}.{request['module']}")
    try:
        found: Json = getattr(module, request["function"])(**request["arguments"])
        return found
    except (Failed, NotRun) as told:
        return dict(told.result)
    except MemoryError:
        return {"state": "not_run", "why": "memory is short", "required": True}


def _simulated() -> bool:
    native = sys.modules.get(f"{__package__}.native")
    return native is not None and bool(native.SIMULATED)
