"""Child processes with a time limit. `subprocess` does more, and its import costs as much as the reads of a
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
        import _signal as signal  # what `signal` is made of; that adds names of numbers, by way of enum
    except ImportError:
        import signal

# A process in the kernel's uninterruptible sleep takes no signal: it is left behind after this many seconds.
GRACE = 5.0
# `status` of one whose end the kernel told nobody: no success, whatever it did.
LOST = 255
UNTOLD = b"\nhow it ended is not known: the kernel tells it to nobody while SIGCHLD is ignored (goldnode's own start sets it back)\n"


def found(name: str, path: str) -> str:
    """Return the file of a program in the folders of `path`. Raises the OSError of execvp(3) if there is
    none.
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
    """A running program. Its output is read by :meth:`listen`, or from `out` and `err`, the ends of its
    pipes; :meth:`close` must follow.

    :param stdin: its input; empty without it.
    :param session: start a new session, so that :meth:`kill` ends all its children. Raises OSError if it
        cannot be started. `status` is its exit status (a signal as a negative number), None while it runs,
        and :data:`LOST` if it is unknown.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        stdin: Optional[bytes] = None,
        session: bool = False,
    ) -> None:
        file = found(argv[0], environment.get("PATH", os.defpath))
        for handle in (
            0,
            1,
            2,
        ):  # of one that was started without, the next file would take the number, and be lost in the child
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
            # Python ignores these two for itself; a program expects them to end it.
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
        """Take what it writes (into `said`) until it has closed both pipes and ended; False when that took longer than `limit` seconds."""
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
        """Return the exit status; None if it has not ended within `limit` seconds."""
        end, pause = time.monotonic() + limit, 0.0002
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # SIGCHLD is ignored, or somebody else has taken note of its end
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
        """End it, and with `session` all that it started; whether it has gone within :data:`GRACE`."""
        if self.status is None:
            with suppress(ProcessLookupError):  # it has ended between the two calls
                (os.killpg if self.session else os.kill)(self.pid, signal.SIGKILL)
        return self.wait(GRACE) is not None

    def close(self) -> None:
        """Close the ends of its pipes."""
        if not self.closed:
            self.closed = True
            os.close(self.out)
            os.close(self.err)

    def text(self, handle: int) -> str:
        """Return its output on `out` or `err` as text with plain line ends."""
        return self.said[handle].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
