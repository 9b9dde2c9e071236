"""The child process of one test or job: a request on standard input, its result on standard output."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main(module: str) -> None:
    """Answer one request with `answer` of a module, and end the process without clean-up.

    A library that hangs while it is unloaded must not block a finished result.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)  # output that a library prints must not mix with the result
    request = json.load(sys.stdin)
    data = json.dumps(importlib.import_module(module).answer(request)).encode()
    while data:
        data = data[os.write(answer_to, data) :]
    sys.stderr.flush()
    os._exit(0)


def called(name: str, arguments: Any) -> Any:
    """Call a function by its dotted name, and return its result."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)(**arguments)


def simulated() -> bool:
    """Return whether a loaded library or device is simulated."""
    native = sys.modules.get(f"{__package__}.native")
    return native is not None and bool(native.SIMULATED)
