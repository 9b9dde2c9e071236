"""Remove locks of the graphics clock. `main` runs in a child process that can be killed.

The arguments are UUIDs of GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict


def main() -> int:
    """Print {results: [{uuid, rc, text}]}."""
    to = os.dup(1)
    os.dup2(2, 1)  # keep output of libraries out of the answer
    import pynvml as nvml  # from the node program's file, which only this process has on its path

    results = []
    for uuid in sys.argv[1:]:
        outcome: Dict[str, Any] = {"uuid": uuid, "rc": 0, "text": "Success"}
        try:
            nvml.nvmlInit()
            nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError as problem:
            outcome.update(rc=problem.value, text=str(problem))
        results.append(outcome)
    os.write(to, json.dumps({"results": results}).encode())
    os._exit(0)
