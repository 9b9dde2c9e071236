"""Starts one job as a process that can be killed: a driver that hangs blocks its caller, a library that crashes ends its process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, List, Optional, Sequence

from goldnode.gpuprogram.child import process_state

from .records import COULD_NOT_CHECK, FAILED, NOT_COUNTED, NOT_RUN, PASSED, Json

# A process in uninterruptible sleep does not react to SIGKILL. It is abandoned after this many seconds.
GRACE = 5.0
MOST = 16 << 20  # bytes of a result
BEGIN = "import sys; sys.path.insert(0, sys.argv[1]); from goldnode.canary.runner.work import main; main()"


class Starter:
    """Runs jobs one after the other. `stop` ends the running one and all that follow."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.stopped = ""  # why the jobs are ended; empty while they may go on
        self.stopped_at = 0.0
        self._running: Optional[subprocess.Popen[bytes]] = None
        self._lock = threading.RLock()  # a signal handler may call `stop` within `run`
        self._stuck: List[int] = []

    def stop(self, why: str) -> None:
        """End the suite: kill the running job with its processes. Safe in a signal handler and in another thread."""
        with self._lock:
            if not self.stopped:
                self.stopped, self.stopped_at = why, time.monotonic()
            if self._running is not None and self._running.poll() is None:
                _kill(self._running)

    def run(self, request: Json, limit: float, site_packages: bool) -> Json:
        """Run one job in a process of this program and return its result. Never raises, never hangs."""
        flags = ["-I"] if site_packages else ["-I", "-S"]
        command = [sys.executable, *flags, "-c", BEGIN, self.place]
        ended = self._process(command, json.dumps(request).encode(), limit)
        return ended if isinstance(ended, dict) else answer(*ended)

    def command(self, command: Sequence[str], limit: float) -> Any:
        """Run a program of the site. Return (exit status, standard output, standard error), or a result without them."""
        return self._process(list(command), b"", limit)

    def _process(self, command: List[str], data: bytes, limit: float) -> Any:
        if self.stopped:
            return result(NOT_COUNTED, self.stopped)
        if self._stuck:
            return result(
                COULD_NOT_CHECK,
                f"process {self._stuck[0]} of an earlier job hangs in the driver and cannot be killed",
            )
        try:
            with self._lock:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # a process group that can be killed as a whole
                    env={**os.environ, "HOME": os.environ.get("HOME") or "/"},
                )
                self._running = process
        except OSError as problem:
            return result(
                COULD_NOT_CHECK, f"{command[0]} cannot be started ({problem.strerror or problem})"
            )
        started = time.monotonic()
        try:
            out, err = process.communicate(data, timeout=limit)
        except subprocess.TimeoutExpired:
            return self._overdue(process, limit)
        finally:
            self._running = None
            _kill(process)  # processes that the job started and left behind
        if self.stopped:
            return result(NOT_COUNTED, self.stopped)
        return process.returncode, out[-MOST:], err[-MOST:], time.monotonic() - started

    def _overdue(self, process: subprocess.Popen[bytes], limit: float) -> Json:
        state = process_state(process.pid)
        _kill(process)
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._stuck.append(process.pid)
            return result(
                COULD_NOT_CHECK,
                f"process {process.pid} (state {process_state(process.pid)}) did not end in {limit:g} s and cannot be killed",
            )
        return result(
            COULD_NOT_CHECK,
            f"it did not end within {limit:g} s (process state {state}) and was killed",
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def result(state: str, why: str) -> Json:
    """Return a result without facts and metrics."""
    return {"state": state, "why": why, "facts": {}, "metrics": []}


def answer(status: int, out: bytes, err: bytes, seconds: float) -> Json:
    """Return the result that an ended job printed. Without a readable one it is *could not check*."""
    try:
        found = json.loads(out)
        if found["state"] in (PASSED, FAILED, NOT_RUN, NOT_COUNTED, COULD_NOT_CHECK):
            return dict(found)
    except (ValueError, KeyError, TypeError):
        pass
    last = (err.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[-1][:300]
    if status == -signal.SIGKILL:
        return result(
            COULD_NOT_CHECK,
            "its process was killed from outside, as by the kernel when memory is short",
        )
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        # A crash within a library of the image or driver is a finding: the same call works elsewhere.
        return result(FAILED, f"its process ended by {name}: {last}")
    return result(
        COULD_NOT_CHECK, f"its process ended with status {status} after {seconds:.1f} s: {last}"
    )
