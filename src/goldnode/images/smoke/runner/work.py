"""The process of one test: a request on standard input, a result on standard output."""

from __future__ import annotations

import importlib
import json
import os
import sys

from .report import Failed, Json, NotRun


def main() -> None:
    """Answer one request {module, function, arguments}; ends the process without the ordinary end: a library that hangs while it is unloaded
    must not take back what was said."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no part of the answer
    request = json.load(sys.stdin)
    result = {"required": True, "why": "", "expected": None, "got": None, "figures": {}, **run(request)}
    if _simulated():
        result["simulated"] = True
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(answer_to, data) :]
    sys.stderr.flush()
    os._exit(0)


def run(request: Json) -> Json:
    """Call the function of the request. What it raises is a result too; anything unexpected is a fault of the runner, so not a verdict."""
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
