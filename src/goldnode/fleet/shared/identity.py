"""Identity of a run: its process, named by an id with which the same machine can detect whether it still
runs.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Actor:
    """A run that drains nodes: its id (PLACE-PROCESS, hexadecimal) and the name of its controller."""

    run: str
    controller: str


def actor() -> Actor:
    """Return the run that this process, or the one that forked it as a worker, is."""
    parent = multiprocessing.parent_process()
    pid = (parent.pid if parent else None) or os.getpid()
    return Actor(
        run_id(pid) or f"{place()}-{_short(str(pid), 6)}",
        re.sub(r"\s", "", controller()) or "unknown",
    )


def rollout_run(name: str) -> str:
    """Return the run of a rollout. Every controller of the rollout drains as this one run, so each continues the
    drains of the one before it.
    """
    return f"{ROLLOUT}-{_short(name, 12)}"


def is_rollout(run: str) -> bool:
    """Return whether a run is a rollout. It has an end in its store, and not by time."""
    return run.partition("-")[0] == ROLLOUT


def rollout_actor(name: str) -> Actor:
    """Return the run of a rollout, on this controller."""
    return Actor(rollout_run(name), re.sub(r"\s", "", controller()) or "unknown")


def controller() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


@functools.cache
def place() -> str:
    """Return the id of this machine, container included: process numbers mean nothing outside of it."""
    try:
        machine = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        machine = ""
    try:
        namespace = str((PROC / "self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return _short(f"{controller()} {machine} {namespace}", 4)


def run_id(pid: int) -> str | None:
    """Return the id of a run by its process; None if the process does not exist.

    The id contains the start time, because process numbers are reused.
    """
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else f"{place()}-{_short(f'{pid} {rest[18]}', 6)}"


def works(run: str) -> bool | None:
    """Return whether a run is still alive. None for a run of another controller."""
    if run.partition("-")[0] != place() or not PROC.is_dir():
        return None
    names = [path.name for path in PROC.iterdir()]
    return any(run_id(int(name)) == run for name in names if name.isdigit())


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# First part of the ids of rollouts: 8 digits, where the id of a process has 4, so no machine takes a rollout for a
# process of its own.
ROLLOUT = _short("rollout", 8)
