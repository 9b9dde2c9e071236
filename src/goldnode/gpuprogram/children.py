"""Starts child processes that can be killed, one after the other.

A driver that hangs blocks its caller, and a library that crashes ends its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Collection, Dict, List, NamedTuple, Optional

# A process in uninterruptible sleep does not react to SIGKILL. It is abandoned after this many
# seconds.
GRACE = 5.0
MOST = 16 << 20  # bytes of a result, and of the output of libraries

# Runs in the child. The program's own path comes first in sys.path, so that the import works from
# the packed file, from a checkout and in isolated mode.
BEGIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from goldnode.gpuprogram.work import main; main(sys.argv[2])"
)


class EndedChild(NamedTuple):
    """A process that ended by itself. `status` is negative for a signal."""

    status: int
    out: bytes
    err: bytes
    seconds: float


class NoResultError(Exception):
    """A process has no result, for a reason that is no evidence about the node."""


class StoppedError(NoResultError):
    """The program was asked to end."""


class CrashedError(Exception):
    """A process ended by a signal of its own."""


class ChildProcesses:
    """Starter of child processes. `stop` ends the running one and all that follow.

    `place` is the directory or archive of the program. `stuck` are processes that could not be
    killed.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.stopped = ""  # why the program ends; empty while it may go on
        self.stopped_at = 0.0
        self.stuck: List[int] = []
        self._running: Optional[subprocess.Popen[bytes]] = None
        self._lock = threading.RLock()  # a signal handler may call `stop` within `run`

    def stop(self, why: str) -> None:
        """Kill the running process with all that it started, and start no other.

        Safe in a signal handler and in another thread.
        """
        with self._lock:
            if not self.stopped:
                self.stopped, self.stopped_at = why, time.monotonic()
            if self._running is not None and self._running.poll() is None:
                _kill(self._running)

    def request(self, module: str, request: Any, limit: float, *, site: bool) -> EndedChild:
        """Run `answer` of a module of this program, as `run` does. `site`: with installed packages."""
        # -I: import nothing from the caller's environment or directory. -S: no site-packages; they cost time
        # and may shadow modules.
        flags = ["-I"] if site else ["-I", "-S"]
        command = [sys.executable, *flags, "-c", BEGIN, self.place, module]
        return self.run(command, json.dumps(request).encode(), limit)

    def run(self, command: List[str], data: bytes, limit: float) -> EndedChild:
        """Run a process to its end. Never hangs.

        Raises NoResultError if it cannot be started, does not end within the limit, or is stopped.
        """
        try:
            with self._lock:
                if self.stopped:
                    raise StoppedError(self.stopped)
                process = self._running = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # a process group that can be killed as a whole
                    # Level Zero's loader 1.20 crashes in zeInit if HOME is not set.
                    env={**os.environ, "HOME": os.environ.get("HOME") or "/"},
                )
        except OSError as problem:
            raise NoResultError(
                f"{command[0]} cannot be started ({problem.strerror or problem})"
            ) from None
        started = time.monotonic()
        try:
            out, err = process.communicate(data, timeout=limit)
        except subprocess.TimeoutExpired:
            raise NoResultError(self._overdue(process, limit)) from None
        finally:
            self._running = None
            _kill(process)  # processes that it started and left behind
        if self.stopped:
            raise StoppedError(self.stopped)
        return EndedChild(process.returncode, out[-MOST:], err[-MOST:], time.monotonic() - started)

    def _overdue(self, process: subprocess.Popen[bytes], limit: float) -> str:
        """Kill the process group of a process that exceeded its limit. Return the reason."""
        state = process_state(process.pid)
        _kill(process)
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self.stuck.append(process.pid)
            return (
                f"it hangs: process {process.pid} (state {process_state(process.pid)}) did not end in "
                f"{limit:g} s and cannot be killed"
            )
        return f"it did not end within {limit:g} s (state {state}) and was killed"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none (those for real time)."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def process_state(pid: int) -> str:
    """Return the state letter of proc_pid_stat(5). D is uninterruptible sleep."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "unknown"


def printed(ended: EndedChild, states: Collection[str]) -> Dict[str, Any]:
    """Return the result that an ended process printed: an object whose `state` is one of `states`.

    Without a readable one the exit status decides. Raises CrashedError or NoResultError with the
    last line of its errors.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError):
        answer: Dict[str, Any] = json.loads(ended.out)
        if answer["state"] in states:
            return answer
    lines = ended.err.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
    last = lines[-1][:300]
    # SIGKILL comes from outside, usually from the OOM killer: no verdict on the image or node.
    if ended.status == -signal.SIGKILL:
        raise NoResultError(
            "its process was killed from outside, as by the kernel when memory is short"
        )
    if ended.status >= 0:
        raise NoResultError(f"its process ended with status {ended.status}: {last}")
    # A crash within a library of the image or driver is a finding: the same call works elsewhere.
    raise CrashedError(f"its process ended by {signal_name(-ended.status)}: {last}")
