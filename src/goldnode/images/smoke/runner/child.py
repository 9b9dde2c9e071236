"""One test in a process that can be killed: a driver that hangs hangs whoever calls it, and a library that crashes takes its process along."""

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

# A process in the kernel's uninterruptible sleep takes no signal: it is left behind after this many seconds.
GRACE = 5.0
MOST = 4 << 20  # bytes of an answer or of what a library printed

# Runs in the child: where the program is comes first, so that it works from the packed file, from a checkout and in isolated mode.
BEGIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from goldnode.images.smoke.runner.work import main; main()"
)


class Killer:
    """Starts the tests and knows the one that runs, so that a signal to the runner ends it as well."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.running: Optional[subprocess.Popen[bytes]] = None
        self.stuck: List[int] = []  # processes that could not be killed

    def stop(self) -> None:
        """Kill the test that runs, with all that it started."""
        process = self.running
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, request: Json, limit: float, site: bool) -> Json:
        """The result of one test. `site`: with the packages that Python has installed, for frameworks. Never raises, never hangs."""
        if self.stuck and request["tier"] == "gpu":
            return missing(
                f"process {self.stuck[0]} of an earlier test is stuck in the driver and cannot be killed"
            )
        # -I: nothing of the caller's environment or directory is imported; -S: no site-packages, which costs time and may shadow modules.
        flags = ["-I"] if site else ["-I", "-S"]
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", BEGIN, self.place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # Level Zero's loader 1.20 crashes in zeInit where HOME is not set.
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
            with contextlib.suppress(OSError):  # what the test itself started
                os.killpg(process.pid, signal.SIGKILL)
        return {
            **answer(process.returncode, out[-MOST:], err[-MOST:]),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _end(self, process: subprocess.Popen[bytes], limit: float) -> Json:
        """Kill the process group of a test that took too long; what that says."""
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
    """The letter of proc_pid_stat(5): D is the uninterruptible sleep."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "unknown"


def missing(why: str) -> Json:
    """A test that should have run and could not."""
    return {"state": NOT_RUN, "why": why, "required": True, "expected": None, "got": None, "figures": {}}


def answer(status: int, out: bytes, err: bytes) -> Json:
    """What a test that ended said. Its exit status counts where it said nothing that can be read."""
    try:
        found: Dict[str, Any] = json.loads(out)
        if found["state"] in (FAILED, NOT_RUN, "passed"):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    last = (err.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:300]
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
