"""Client of the GPU settings: a program of its own with a time limit, because a hanging driver hangs its
caller.
"""

from __future__ import annotations

import json
import os
import sys

from ..ground.host import ENVIRONMENT, PROGRAM, Host, Json
from ..ground.process import Process
from . import SCHEMA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple


__all__ = ["LIMIT", "SCHEMA", "ask", "asking"]

# Without persistence the first call initialises every GPU: more than 25 s were seen on eight A100 (Azure/AgentBaker 2829).
LIMIT = 90.0


def asking(host: Host) -> Tuple[str, ...]:
    """Return the command that reads the GPU library.

    It is the running archive (the file, or its compiled copy, which a child need not verify again), so that a
    node without an installed program can be read too. When goldnode runs from source, or `host` names another
    program, it is that program.
    """
    archive = own_archive(host)
    return (host.program,) if archive is None else (sys.executable, "-I", "-S", archive)


def own_archive(host: Host) -> Optional[str]:
    """Return the archive that runs now, if it is to ask the GPU library; otherwise None."""
    archive: Optional[str] = getattr(getattr(__spec__, "loader", None), "archive", None)
    return archive if host.program == PROGRAM and archive in sys.path else None


def ask(host: Host, request: Mapping[str, Any], limit: float = LIMIT) -> Json:
    """Return the answer of `goldnode-node device` (see the package's documentation), or ``{"error":
    sentence}``. Never raises, never hangs.
    """
    pending = host.pending
    if pending is not None and request["do"] == "read" and request["vendor"] == pending.vendor:
        # A capture is being made: one process asks the library, for all.
        settings: Json = pending.settings()
        return settings
    argv = (*asking(host), "device")
    host.commands.append(argv)
    try:
        process = Process(
            argv, {**os.environ, **ENVIRONMENT}, json.dumps(request).encode(), session=True
        )
    except FileNotFoundError:
        return {"error": f"{host.program} reads the GPUs, and is not on the node yet"}
    except OSError as problem:
        return {"error": f"{host.program} cannot be run ({problem.strerror})"}
    try:
        if not process.listen(limit):
            return {"error": _end(process, limit)}
    finally:
        process.close()
    status, out = process.status or 0, process.output[process.out]
    if status != 0:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        last = (process.text(process.err).strip().splitlines() or ["it printed nothing"])[-1]
        return {"error": f"the program that calls the GPU library ended {how}: {last}"}
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("schema") != SCHEMA:
        return {
            "error": f"the program that calls the GPU library answered something that is not of schema {SCHEMA}"
        }
    return answer


def _end(process: Process, limit: float) -> str:
    """Kill the process group, and return the conclusion about the driver."""
    if not process.kill():
        return f"the GPU driver hangs: process {process.pid} did not answer within {limit:g} s and cannot be killed"
    return f"the GPU driver did not answer within {limit:g} s; the process that asked was killed"
