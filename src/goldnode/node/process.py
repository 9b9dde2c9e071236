"""Child processes with a time limit. `subprocess` does more, but its import costs as much as the reads of a
check.
"""

from __future__ import annotations

import errno
import os
import select
import time

from .plain import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from typing import Any, Dict, List, Mapping, Optional, Sequence
else:
    try:
        import _signal as signal  # the C part of `signal`, without the names of numbers, which need enum
    except ImportError:
        import signal

# A process in uninterruptible sleep reacts to no signal: after this many seconds it is left behind.
GRACE = 5.0
# `status` of a process whose exit status is lost. It must not count as success.
LOST = 255
UNTOLD = (
    b"\nhow it ended is not known: the kernel tells it to nobody while SIGCHLD is ignored "
    b"(goldnode's own start sets it back)\n"
)


def found(name: str, path: str) -> str:
    """Return the file of a program in the directories of `path`. Raises the OSError of execvp(3) if no
    directory has it.
    """
    if "/" in name:
        return name
    problem = errno.ENOENT
    for folder in path.split(":"):
        file = f"{folder}/{name}"
        if os.access(file, os.X_OK) and not os.path.isdir(file):
            return file
        if os.path.isfile(file):
            problem = errno.EACCES
    raise OSError(problem, os.strerror(problem), name)


class Process:
    """A running program. :meth:`listen` reads its output; `out` and `err` are the ends of its pipes. Call
    :meth:`close` when done.

    `status` is the exit status (a signal as a negative number), None while it runs, and :data:`LOST` if it is
    unknown. Raises OSError if the program cannot be started.

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
        file = found(argv[0], environment.get("PATH", os.defpath))
        # If a standard stream is closed, a pipe below would get its number, and be overwritten in the child.
        for handle in (0, 1, 2):
            try:
                os.fstat(handle)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        self.status: Optional[int] = None
        self.session, self.closed = session, False
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        given = -1
        actions: List[Any] = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        try:
            if stdin is None:
                actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
            else:
                given = os.memfd_create("stdin")
                rest = memoryview(stdin)
                while rest:
                    rest = rest[os.write(given, rest) :]
                os.lseek(given, 0, os.SEEK_SET)
                actions.append((os.POSIX_SPAWN_DUP2, given, 0))
            # Python ignores these two signals and a child would inherit that; programs expect them to be
            # fatal.
            default = [signal.SIGPIPE, signal.SIGXFSZ]
            self.pid = os.posix_spawn(
                file, list(argv), environment, file_actions=actions, setsigdef=default, setsid=session
            )
        except BaseException:
            self.close()
            raise
        finally:
            for handle in (out, err, given):
                if handle >= 0:
                    os.close(handle)
        self.said: Dict[int, bytearray] = {self.out: bytearray(), self.err: bytearray()}

    def listen(self, limit: float) -> bool:
        """Collect the output (in `said`) until the program has closed both pipes and ended. Return False if
        that took longer than `limit` seconds.
        """
        end = time.monotonic() + limit
        poll = select.poll()
        opened = [self.out, self.err]
        for handle in opened:
            poll.register(handle, select.POLLIN | select.POLLHUP)
        while opened:
            left = end - time.monotonic()
            if left <= 0:
                return False
            for handle, _ in poll.poll(int(left * 1000) + 1):
                data = os.read(handle, 1 << 16)
                self.said[handle] += data
                if not data:
                    poll.unregister(handle)
                    opened.remove(handle)
        return self.wait(end - time.monotonic()) is not None

    def wait(self, limit: float) -> Optional[int]:
        """Return the exit status; None if the program has not ended within `limit` seconds."""
        end, pause = time.monotonic() + limit, 0.0002
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # SIGCHLD is ignored, or other code has reaped the child
                self.status = LOST
                self.said[self.err] += UNTOLD
                break
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                break
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.05)
        return self.status

    def kill(self) -> bool:
        """Kill the program, and with `session` all processes that it started. Return whether it ended within
        :data:`GRACE`.
        """
        if self.status is None:
            with suppress(ProcessLookupError):  # it may have ended already
                (os.killpg if self.session else os.kill)(self.pid, signal.SIGKILL)
        return self.wait(GRACE) is not None

    def close(self) -> None:
        """Close our ends of its pipes."""
        if not self.closed:
            self.closed = True
            os.close(self.out)
            os.close(self.err)

    def text(self, handle: int) -> str:
        """Return its output on `out` or `err` as text with normalized line ends."""
        return self.said[handle].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
