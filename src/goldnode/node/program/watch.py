"""`goldnode-node watch-log`: start a check as soon as the kernel reports a fault, instead of
minutes later.

It waits for new records of /dev/kmsg and starts the passive check. The check reads the log itself,
so a match here is only a reason to check. The watch runs as long as the node, so it imports almost
nothing.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

KMSG = "/dev/kmsg"
SERVICE = "goldnode-watch.service"
PAUSE = 30.0  # seconds between two starts: a burst of lines causes one check
RECORD = 16384
# Substrings of lines that probe/logs.py reports as events and that justify an immediate check. Corrected
# errors wait for the timer.
REASONS = (
    b"NVRM: Xid ",
    b"SXid (",
    b"fallen off the bus",
    b"Adapter failed",
    b"API mismatch",
    b"Uncorrect",
    b"device inaccessible",
    b" error, dev ",
    b"I/O error",
    b"controller is down",
    b"[Hardware Error]",
    b" UE ",
    b"Link Down",
    b"Link is Down",
    b"Link down",
    b"blocked for more than",
    b"Fatal error during GPU init",
    b"GPU reset",
    b"uncorrectable hardware error",
    b"as wedged",
    b"RESET_REQUIRED",
    b"DetLinkMask",
)


def is_reason(record: bytes) -> bool:
    """Return whether a record of /dev/kmsg is of the kernel (facility 0) and matches one of REASONS."""
    head, _, text = record.partition(b";")
    priority = head.partition(b",")[0]
    if not priority.isdigit() or int(priority) >> 3:
        return False
    text = text.partition(b"\n")[0]
    return any(reason in text for reason in REASONS)


def start() -> None:
    """Ask systemd to run the passive check. If it is running already it continues, and the next
    line asks again.
    """
    argv = ["systemctl", "start", "--no-block", SERVICE]
    try:
        os.waitpid(
            os.posix_spawnp(
                argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
            ),
            0,
        )
    except OSError:
        return  # the timer runs the check as well


def watch(
    handle: int,
    begin: Callable[[], None] = start,
    clock: Callable[[], float] = time.monotonic,
    pause: float = PAUSE,
) -> None:
    """Read records until the end of the input, which a kernel log does not have.

    A reason within `pause` seconds after a start is remembered, and starts the check at the end of that
    pause.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    last: Optional[float] = None
    owed = False
    while True:
        left = None if not owed or last is None else max(0.0, last + pause - clock())
        if poll.poll(None if left is None else left * 1000 + 1):
            try:
                record = os.read(handle, RECORD)
            except BrokenPipeError:
                # The kernel overwrote records before they were read. One of them may have been a reason.
                owed = True
                record = b"lost"
            except BlockingIOError:
                record = b"none"
            if not record:
                break
            owed = owed or is_reason(record)
        if owed and (last is None or clock() - last >= pause):
            last, owed = clock(), False
            begin()
    if owed:
        begin()


def main(root: str = "") -> int:
    """Watch the log. Return 0 if there is no log to watch."""
    try:
        handle = os.open(root + KMSG, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return 0
    try:
        os.lseek(handle, 0, os.SEEK_END)
        watch(handle)
    finally:
        os.close(handle)
    return 0


def arguments(parser: Any) -> None:
    """Add no arguments."""


def run(host: Any, options: Any) -> int:
    """Run the command. Only used if start.py has not started it earlier."""
    return main(host.root.rstrip("/"))
