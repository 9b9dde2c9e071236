"""The site's power-cycle command, tried once for an overdue node.

The log decides: the line before the command is written in the transaction that finds no such line
for this step. A controller that dies during the command leaves that line, and nothing repeats the
command. The node stays in the failed buffer in every case: only a person releases it.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from os import killpg
from typing import Any

from sqlalchemy import Connection, and_, select

from goldnode.core.command_environment import without_secrets
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.log import LogLine, append, decoded, entries
from goldnode.fleet.store.rollouts import POWER_CYCLE, POWER_CYCLED

TIMEOUT = 300.0
_TAIL = 500  # characters of the output in the log


class PowerCycleError(GoldnodeError):
    """The power-cycle command of the site cannot be used as it is written."""


@dataclass(frozen=True)
class PowerCycle:
    """One attempt: the rollout, the node, the site's command with {node}, and the controller that tries it."""

    rollout: str
    node: str
    command: tuple[str, ...]
    who: str
    timeout: float = field(default=TIMEOUT, kw_only=True)

    def words(self) -> list[str]:
        """Return the command for the node. Raises PowerCycleError for one that does not name the node."""
        if not any("{node}" in word for word in self.command):
            raise PowerCycleError(
                "fleet.power_cycle of the site file has no {node}: it would cycle an unknown machine",
                remedy="write {node} where the name of the node belongs",
            )
        if not self.node or self.node.startswith("-"):
            raise PowerCycleError(
                f'"{self.node}" cannot be passed to a command as the name of a node'
            )
        return [word.replace("{node}", self.node) for word in self.command]


@dataclass(frozen=True)
class PowerCycleResult:
    """Result of an attempt. `tried` is False if the step is not overdue, or was tried before."""

    tried: bool
    succeeded: bool = False
    text: str = ""


def power_cycle(
    store: StoreDatabase, given: PowerCycle, clock: Callable[[], float]
) -> PowerCycleResult:
    """Cycle the power of an overdue node, once for its step. Waits for the command, so call it in a thread."""
    words = given.words()
    attempt = store.run(lambda connection: _begin(connection, given, words, clock()))
    if attempt is None:
        return PowerCycleResult(False, text="the step is not overdue, or it was tried before")
    result = _ran(words, given.timeout)
    content = {
        "action": POWER_CYCLED,
        "node": given.node,
        "attempt": attempt,
        "succeeded": result.succeeded,
        "result": result.text,
    }
    line = LogLine(
        clock(),
        who=given.who,
        action=POWER_CYCLED,
        subject=given.node,
        content=content,
        rollout=given.rollout,
    )
    store.run(lambda connection: append(connection, line))
    return result


def _begin(connection: Connection, given: PowerCycle, words: list[str], now: float) -> int | None:
    """Write the line before the command; return the attempt of the step. None: nothing is to be done."""
    step, hold = tables.step, tables.hold
    attempt: int | None = connection.scalar(
        select(step.c.attempt)
        .join(
            hold, and_(hold.c.owner == step.c.rollout, hold.c.node == step.c.node)
        )  # not released since
        .where(
            step.c.rollout == given.rollout,
            step.c.node == given.node,
            step.c.phase == "overdue",
            hold.c.kind == "failed",
        )
    )
    if attempt is None:
        return None
    before = entries(
        connection,
        rollout=given.rollout,
        subject=given.node,
        where=tables.log.c.action == POWER_CYCLE,
    )
    if any(decoded(dict(row))["content"]["attempt"] == attempt for row in before):
        return None
    content: dict[str, Any] = {
        "action": POWER_CYCLE,
        "node": given.node,
        "attempt": attempt,
        "command": shlex.join(words),
    }
    append(
        connection,
        LogLine(
            now,
            who=given.who,
            action=POWER_CYCLE,
            subject=given.node,
            content=content,
            rollout=given.rollout,
        ),
    )
    return attempt


def _ran(words: list[str], timeout: float) -> PowerCycleResult:
    """Run the command without input, in a group of its own that ends with the time limit."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=without_secrets(),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as problem:
        return PowerCycleResult(True, False, f"could not run {words[0]}: {problem.strerror}")
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return PowerCycleResult(True, False, f"did not end within {timeout:g} s")
    tail = " ".join(output.split())[-_TAIL:]
    if process.returncode:
        return PowerCycleResult(
            True, False, f"exit status {process.returncode}: {tail or 'no output'}"
        )
    return PowerCycleResult(True, True, f"succeeded: {tail}" if tail else "succeeded")
