"""Runs one test in a separate process that can be killed.

A driver that hangs blocks its caller, and a library that crashes ends its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from .report import FAILED, NOT_RUN, Json

# A process in uninterruptible sleep does not react to SIGKILL. The runner abandons it after this many
# seconds.
GRACE = 5.0
MOST = 4 << 20  # limit in bytes for a result, and for the output of libraries

# Runs in the child. The program's own path comes first in sys.path, so that the import works from the packed
# file, from a checkout and in isolated mode.
BEGIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from goldnode.gpuprogram.work import main; main()"
)


class Killer:
    """Starter of tests. It knows the running one, so that a signal to the runner ends that test as well."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.running: Optional[subprocess.Popen[bytes]] = None
        self.stuck: List[int] = []  # processes that could not be killed

    def stop(self) -> None:
        """Kill the running test and all processes that it started."""
        process = self.running
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, request: Json, limit: float, site: bool) -> Json:
        """Run one test and return its result. Never raises, never hangs.

        `site`: with Python's installed packages, for frameworks.
        """
        if self.stuck and request["tier"] == "gpu":
            return missing(
                f"process {self.stuck[0]} of an earlier test is stuck in the driver and cannot be killed"
            )
        # -I: import nothing from the caller's environment or directory. -S: no site-packages; they cost time
        # and may shadow modules.
        flags = ["-I"] if site else ["-I", "-S"]
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", BEGIN, self.place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a process group that can be killed as a whole
                # Level Zero's loader 1.20 crashes in zeInit if HOME is not set.
                env={**os.environ, "HOME": os.environ.get("HOME") or "/"},
            )
        except OSError as problem:
            return missing(f"its process cannot be started ({problem.strerror})")
        self.running = process
        try:
            out, err = process.communicate(json.dumps(request).encode(), timeout=limit)
        except subprocess.TimeoutExpired:
            return self._end(process, limit)
        finally:
            self.running = None
            with contextlib.suppress(OSError):  # processes that the test started and left behind
                os.killpg(process.pid, signal.SIGKILL)
        return {
            **answer(process.returncode, out[-MOST:], err[-MOST:]),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _end(self, process: subprocess.Popen[bytes], limit: float) -> Json:
        """Kill the process group of a test that exceeded its limit. Return the result for that."""
        state = process_state(process.pid)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self.stuck.append(process.pid)
            return missing(
                f"it hangs: process {process.pid} (state {process_state(process.pid)}) did not end in "
                f"{limit:g} s and cannot be killed"
            )
        return missing(f"it did not end within {limit:g} s (state {state}) and was killed")


def process_state(pid: int) -> str:
    """Return the state letter of proc_pid_stat(5). D is uninterruptible sleep."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "unknown"


def missing(why: str) -> Json:
    """Return the result of a required test that could not be run."""
    return {
        "state": NOT_RUN,
        "why": why,
        "required": True,
        "expected": None,
        "got": None,
        "figures": {},
    }


def answer(status: int, out: bytes, err: bytes) -> Json:
    """Return the result that an ended test printed. Without a readable one, its exit status decides."""
    try:
        found: Dict[str, Any] = json.loads(out)
        if found["state"] in (FAILED, NOT_RUN, "passed"):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    last = (err.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:300]
    # SIGKILL comes from outside, usually from the OOM killer. That is no verdict on the image.
    if status == -signal.SIGKILL:
        return missing("its process was killed from outside, as by the system when memory is short")
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return {
            "state": FAILED,
            "why": f"its process ended by {name}: {last}",
            "expected": None,
            "got": None,
            "figures": {},
        }
    return missing(f"its process ended with status {status}: {last}")
