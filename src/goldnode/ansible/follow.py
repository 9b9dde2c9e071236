"""Progress of a node while it applies a part: the lines of its progress file, as they appear."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from goldnode.node.state.model import PROGRESS

FIRST, MOST = 2.0, 10.0  # seconds until the file is read first, and between two readings at most
AGAIN = 30.0  # seconds without a new line after which the last one is repeated
LINES = 60  # at the end of the file: more than one part writes

Show = Callable[[str], None]


def of_part(text: str, part: str) -> list[str]:
    """Return the lines that the latest run of `part` wrote, without their times."""
    lines = [line.partition(" ")[2] for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line == f"{part}: start"]
    return lines[starts[-1] + 1 :] if starts else []


def follow(read: Callable[[], str], show: Show, part: str, ended: threading.Event) -> None:
    """Show each new line of a part until `ended` is set; `read` returns the end of the node's file."""
    shown: list[str] = []
    wait, last, begun = FIRST, time.monotonic(), time.monotonic()
    while not ended.wait(wait):
        wait = min(wait * 1.5, MOST)
        lines = of_part(read(), part)
        # Reading takes a moment: the result of the task may have been printed by now.
        if ended.is_set():
            return
        # Other lines than before: the part has started again.
        fresh = lines[len(shown) :] if lines[: len(shown)] == shown else lines
        for line in fresh:
            show(line)
        shown = lines
        now = time.monotonic()
        if fresh:
            last = now
        elif now - last >= AGAIN:
            show(f"{shown[-1] if shown else part} ({now - begun:.0f} s so far)")
            last = now


@contextlib.contextmanager
def followed(action: Any, part: str, show: Show) -> Iterator[None]:
    """Follow the node of an action plugin while the block runs, over a second session of the same connection."""
    twin = copy.copy(action)
    twin._connection = copy.copy(action._connection)
    if action._connection.become is not None:
        # A become plugin has the marker by which it finds the output of its present command.
        twin._connection.become = copy.copy(action._connection.become)

    def read() -> str:
        return str(twin._low_level_execute_command(f"tail -n {LINES} {PROGRESS}")["stdout"])

    ended = threading.Event()

    def run() -> None:
        # Progress is a courtesy: a connection that has no second session ends it, and never the run.
        with contextlib.suppress(Exception):
            follow(read, show, part, ended)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=MOST)


def counted(actions: list[dict[str, Any]]) -> str:
    """Return the number of changes and the first ones, in one line."""
    names = [f"{action['kind']} {re.sub(r'.*/', '', action['target'])}" for action in actions[:3]]
    more = ", …" if len(actions) > len(names) else ""
    return f"{len(actions)} change{'s'[: len(actions) != 1]}: {', '.join(names)}{more}"
