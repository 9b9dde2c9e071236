"""Child processes with a time limit: programs, and forks of this one.

`subprocess.run` waits without a limit for a process that it has killed. A process in
uninterruptible sleep never ends, so the check would hang with the driver. :class:`Process` abandons
it after :data:`GRACE` seconds.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Mapping, NoReturn, Optional, Sequence

# A process in uninterruptible sleep reacts to no signal: after this many seconds it is abandoned.
GRACE = 5.0
# `status` of a process whose exit status is lost. It must not count as success.
LOST = 255
UNKNOWN_STATUS = (
    b"\nits exit status is unknown: the kernel reports none while SIGCHLD is ignored "
    b"(goldnode's own start resets that)\n"
)


class _Child:
    """A child process with pipes to its output and its messages. Call :meth:`close` when done."""

    def __init__(self, start: Callable[[int, int], int]) -> None:
        """Start it: `start` gets our ends of the pipes to it, and returns its id.

        Raises OSError if no process can be started.
        """
        self.out, into = os.pipe()
        self.err, err_into = os.pipe()
        try:
            self.pid = start(into, err_into)
        except OSError:
            self.close()
            raise
        finally:
            os.close(into)
            os.close(err_into)
        self.output = {self.out: bytearray(), self.err: bytearray()}
        # A signal as a negative number; None while it runs, :data:`LOST` if it is unknown.
        self.status: Optional[int] = None

    def wait(self, limit: float) -> Optional[int]:
        """Return the exit status; None if the process has not ended within `limit` seconds."""
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
        """Kill the process, and all processes of its session. Return whether it ended within :data:`GRACE`."""
        if self.wait(0) is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no session of its own, or not yet
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
        return self.wait(GRACE) is not None

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self.out)
        os.close(self.err)


class Process(_Child):
    """A running program. :meth:`listen` reads its output; `out` and `err` are the ends of its
    pipes.

    It is started by `os.posix_spawn`: the import of :mod:`subprocess` takes 3 % of a check.
    Raises OSError if the program cannot be started.

    :param stdin: its input; empty by default. A file without a name: no one has to write while it runs.
    :param session: start a new session, so that :meth:`kill` ends all its children.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        stdin: Optional[bytes] = None,
        session: bool = False,
    ) -> None:
        program = argv[0]
        if "/" not in program:
            places = [f"{place}/{program}" for place in os.get_exec_path(environment)]
            program = next((place for place in places if os.access(place, os.X_OK)), program)

        def start(into: int, err_into: int) -> int:
            given = os.memfd_create("input") if stdin else os.open(os.devnull, os.O_RDONLY)
            above: List[int] = []
            try:
                if stdin:
                    with open(given, "wb", closefd=False) as opened:
                        opened.write(stdin)
                    os.lseek(given, 0, os.SEEK_SET)
                # Above the standard streams, one of which may be closed here: no copy overwrites another.
                for handle in (given, into, err_into):
                    above.append(fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3))
                actions = [(os.POSIX_SPAWN_DUP2, handle, at) for at, handle in enumerate(above)]
                return os.posix_spawn(
                    program,
                    list(argv),
                    environment,
                    file_actions=actions
                    + [(os.POSIX_SPAWN_CLOSE, handle) for handle in _inherited()],
                    setsid=session,
                    # Python ignores these two; programs expect their default.
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                )
            finally:
                for handle in (given, *above):
                    os.close(handle)

        super().__init__(start)
        self.opened = {self.out, self.err}

    def listen(self, limit: float) -> bool:
        """Collect the output until the program has closed both pipes and ended. Return False if
        that took longer than `limit` seconds. A second call goes on.
        """
        end = time.monotonic() + limit
        poll = select.poll()
        for handle in self.opened:
            poll.register(handle, select.POLLIN)
        while self.opened:
            ready = poll.poll(max(0, end - time.monotonic()) * 1000)
            for handle, _ in ready:
                data = os.read(handle, 1 << 16)
                self.output[handle] += data
                if not data:
                    poll.unregister(handle)
                    self.opened.discard(handle)
            if not ready and time.monotonic() >= end:
                return False
        return self.wait(max(0, end - time.monotonic())) is not None

    def text(self, handle: int) -> str:
        """Return its output on `out` or `err` as text with normalized line ends."""
        return (
            self.output[handle].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        )


class Forked(_Child):
    """A function that runs in a fork of this process and can be killed.

    It starts without another interpreter and without the modules that are imported already. The function
    writes to file descriptor 1. It has none of our files open, so no process waits for it once it is
    abandoned. Fork only in a process without threads.

    Raises OSError if no process can be started.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        def start(into: int, err_into: int) -> int:
            pid = os.fork()
            if pid == 0:
                run_alone(work, (None, into, err_into))
            return pid

        super().__init__(start)


def _inherited() -> Iterator[int]:
    """Return the files that a program would inherit, because our own caller passed them to us."""
    for handle in _descriptors():
        with suppress(OSError):  # the descriptor of the listing itself
            if handle > 2 and os.get_inheritable(handle):
                yield handle


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
