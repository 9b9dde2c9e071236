"""Child processes with a time limit: programs over :mod:`subprocess`, and forks of this one.

`subprocess.run` waits without a limit for a process that it has killed. A process in
uninterruptible sleep never ends, so the check would hang with the driver. :class:`Process` abandons
it after :data:`GRACE` seconds.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Mapping, NoReturn, Optional, Sequence

# A process in uninterruptible sleep reacts to no signal: after this many seconds it is abandoned.
GRACE = 5.0
# `status` of a process whose exit status is lost. It must not count as success.
LOST = 255
UNKNOWN_STATUS = (
    b"\nits exit status is unknown: the kernel reports none while SIGCHLD is ignored "
    b"(goldnode's own start resets that)\n"
)


class Process:
    """A running program. :meth:`listen` reads its output; `out` and `err` are the ends of its
    pipes. Call :meth:`close` when done.

    Raises OSError if the program cannot be started.

    :param stdin: its input; empty by default.
    :param session: start a new session, so that :meth:`kill` ends all its children.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        stdin: Optional[bytes] = None,
        session: bool = False,
    ) -> None:
        self.session = session
        self.given = stdin
        self.popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=session,
        )
        self.pid = self.popen.pid
        assert self.popen.stdout is not None  # noqa: S101 - for mypy
        assert self.popen.stderr is not None  # noqa: S101
        self.out, self.err = self.popen.stdout.fileno(), self.popen.stderr.fileno()
        self.output: Dict[int, bytes] = {self.out: b"", self.err: b""}

    @property
    def status(self) -> Optional[int]:
        """Return the exit status (a signal as a negative number), None while it runs, :data:`LOST`
        if it is unknown.
        """
        return LOST if self._lost() else self.popen.returncode

    def _lost(self) -> bool:
        # The kernel discards the status while SIGCHLD is ignored, and subprocess reports 0 then.
        return self.popen.returncode == 0 and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN

    def listen(self, limit: float) -> bool:
        """Collect the output (in `said`) until the program has closed both pipes and ended. Return
        False if that took longer than `limit` seconds.
        """
        given, self.given = self.given, None  # a second call goes on with the first one's input
        late = False
        try:
            out, err = self.popen.communicate(given, timeout=limit)
        except subprocess.TimeoutExpired as problem:
            # The output is absent if the program has closed its pipes and not ended; the next call
            # returns it.
            out, err, late = problem.output or b"", problem.stderr or b"", True
        self.output = {self.out: out, self.err: err}
        self._explain()
        return not late

    def wait(self, limit: float) -> Optional[int]:
        """Return the exit status; None if the program has not ended within `limit` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(limit)
        self._explain()
        return self.status

    def kill(self) -> bool:
        """Kill the program, and with `session` all processes that it started. Return whether it
        ended within :data:`GRACE`.
        """
        if self.session:
            if self.popen.poll() is None:
                with suppress(ProcessLookupError):  # it may have ended already
                    os.killpg(self.pid, signal.SIGKILL)
        else:
            self.popen.kill()
        return self.wait(GRACE) is not None

    def close(self) -> None:
        """Close our ends of its pipes."""
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):  # input that a killed program has not read
                    stream.close()

    def text(self, handle: int) -> str:
        """Return its output on `out` or `err` as text with normalized line ends."""
        return (
            self.output[handle].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        )

    def _explain(self) -> None:
        """Add to the program's own messages that its status is lost."""
        if self._lost() and UNKNOWN_STATUS not in self.output[self.err]:
            self.output[self.err] += UNKNOWN_STATUS


class Forked:
    """A function that runs in a fork of this process and can be killed, with the interface of
    :class:`Process`.

    It starts without another interpreter and without the modules that are imported already. The function
    writes to file descriptor 1. It has none of our files open, so no process waits for it once it is
    abandoned. Fork only in a process without threads.

    Raises OSError if no process can be started.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        out, into = os.pipe()
        err, err_into = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for handle in (out, into, err, err_into):
                os.close(handle)
            raise
        if self.pid == 0:
            run_alone(work, (None, into, err_into))
        os.close(into)
        os.close(err_into)
        self.out, self.err = out, err
        self.output: Dict[int, bytes] = {out: b"", err: b""}
        self.status: Optional[int] = None

    def wait(self, limit: float) -> Optional[int]:
        """Return the exit status (a signal as a negative number); None if the process has not ended
        within `limit` seconds.
        """
        end, pause = time.monotonic() + limit, 0.0005
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # SIGCHLD is ignored
                self.status = LOST
                self.output[self.err] += UNKNOWN_STATUS
                break
            if pid:
                self.status = os.WEXITSTATUS(status)
                if os.WIFSIGNALED(status):
                    self.status = -os.WTERMSIG(status)
            elif time.monotonic() >= end:
                break
            else:
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
        return self.status

    def kill(self) -> bool:
        """Kill the process and all that it started. Return whether it ended within :data:`GRACE`."""
        if self.wait(0) is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # it may not have its own session yet
                os.kill(self.pid, signal.SIGKILL)
        return self.wait(GRACE) is not None

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self.out)
        os.close(self.err)


def run_alone(work: Callable[[], object], handles: Sequence[Optional[int]]) -> NoReturn:
    """Run a function in a fresh fork, and end the process. Exit status: 0, or 1 if the function raised.

    The process gets a session of its own and default signals. `handles` become its file descriptors
    0, 1, … (None: /dev/null), and every other is closed.
    """
    status = 1
    try:
        os.setsid()
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        # Above all that must survive, so that no copy overwrites one that is still needed.
        above = [
            fcntl.fcntl(null if handle is None else handle, fcntl.F_DUPFD, len(handles))
            for handle in handles
        ]
        for number, handle in enumerate(above):
            os.dup2(handle, number)
        for opened in _descriptors():
            if opened >= len(handles):
                with suppress(OSError):  # the descriptor of the listing itself
                    os.close(opened)
        work()
        status = 0
    except BaseException as problem:
        with suppress(OSError):
            os.write(2, f"{type(problem).__name__}: {problem}\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _descriptors() -> Sequence[int]:
    """Return the file descriptors of this process, and others that are not open where /proc is
    missing, as in a bare chroot.
    """
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return range(1024)
