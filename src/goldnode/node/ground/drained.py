"""The drain of a goldnode run: its reason in the scheduler, and the file that records it on the node.

A reason has the form ``goldnode run ID.SUM of CONTROLLER at TIME: TEXT``. ID identifies the run;
SUM is the beginning of a SHA-256 over the rest. A run drains only nodes in service, so a node with
such a reason was in service before. A person who edits the reason, even by one letter, has taken
the node over.
"""

from __future__ import annotations

import os
import re
import time
from hashlib import sha256

from .text import spaced
from .typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .host import Host


# Schema goldnode.drain/1 (goldnode.fleet.drain.protocol). Exists while a run has the node out of
# service.
FILE = "/var/lib/goldnode/drain.json"
PREFIX = "goldnode run "
GATE = "goldnode:"  # with which a reason of the gate on a node begins
LONGEST = 240  # characters of the text
# Seconds after which a run without news counts as cut off: a day for jobs to end, four hours for
# changes, boot and check.
LEASE = 28 * 3600


class Mark(NamedTuple):
    """The parts of a drain reason: id of the run, name of the controller, time of the drain (UTC,
    ISO 8601), and text.
    """

    run: str
    controller: str
    time: str
    text: str


def reason(run: str, controller: str, time: str, text: str) -> str:
    """Return the one-line reason of a drain."""
    line = " ".join(spaced(text).split())
    if len(line) > LONGEST:
        line = line[: LONGEST - 3] + "..."
    parts = Mark(run, controller, time, line)
    return f"{PREFIX}{run}.{_sum(parts)} of {controller} at {time}: {line}"


def mark(text: str) -> Optional[Mark]:
    """Return the parts of a reason; None if no run wrote it, or if it was changed since."""
    if not text.startswith(PREFIX):
        return None
    match = re.match(r"([0-9a-f-]+)\.([0-9a-f]{6}) of (\S+) at (\S+): (.*)$", text[len(PREFIX) :])
    if match is None:
        return None
    run, checksum, *rest = match.groups()
    parts = Mark(run, *rest)
    return parts if checksum == _sum(parts) else None


def lasts(host: Host) -> bool:
    """Return whether a run has the node out of service, as far as the node knows."""
    try:
        return time.time() - os.stat(host.located(FILE)).st_mtime < LEASE
    except OSError:
        return False


def text(host: Host) -> str:
    """Return the node's record of a drain; empty without one. Reads only the beginning of the file:
    a valid record is small.
    """
    if not host.live:
        return ""
    try:
        content = host.text(FILE)
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    if content is None:
        return ""
    return (
        content[:8192] or "empty"
    )  # a file without content is a record, too: the controller has to see it


def _sum(parts: Mark) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:6]
