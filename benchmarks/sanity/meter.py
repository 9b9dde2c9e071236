"""Runs a command and prints what it used: ``python -I -S meter.py COMMAND …``. A process of its own and small, because the kernel counts to a
process's greatest memory what its starter had before the new program took its place."""

import os
import sys
import time

sink = os.open(os.devnull, os.O_RDWR)
started = time.perf_counter()
pid = os.posix_spawn(
    sys.argv[1],
    sys.argv[1:],
    os.environ,
    file_actions=[(os.POSIX_SPAWN_DUP2, sink, 0), (os.POSIX_SPAWN_DUP2, sink, 1)],
)
_, status, used = os.wait4(pid, 0)
wall = time.perf_counter() - started
print(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))
