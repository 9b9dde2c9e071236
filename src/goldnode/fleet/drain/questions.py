"""Questions to a scheduler for all of its nodes at once, whatever the number, and the form of the answers.

A drain changes one node and waits for it (:mod:`goldnode.fleet.drain.protocol`). A rollout only reads, and must not
wait long: its questions have a timeout of their own.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from goldnode.core.errors import GoldnodeError

Ask = Callable[[Sequence[str]], str]

TIMEOUT = 60.0  # seconds for one question
# Until the end of work without a known end; Slurm has the same for an unlimited job.
NO_END = 365 * 86400.0
OVERTIME = 600.0  # work that should have ended is expected to end at the next full ten minutes


def ask(argv: Sequence[str], timeout: float = TIMEOUT) -> str:
    """Run a question to a scheduler, with a timeout. Raises GoldnodeError with the scheduler's own message."""
    # Seconds since the epoch: no zone to guess.
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    remedy = f"run `{' '.join(argv[:3])}` as the user of the controller; until it works, nodes keep their last state"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            env=environment,
        )
    except FileNotFoundError:
        raise GoldnodeError(
            f"{argv[0]}: not found on this machine",
            remedy="install the scheduler's client on each controller",
        ) from None
    except subprocess.TimeoutExpired:
        raise GoldnodeError(
            f"{' '.join(argv[:3])}: no answer within {timeout:g} s", remedy=remedy
        ) from None
    if done.returncode != 0:
        said = (
            done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        ).splitlines()
        raise GoldnodeError(f"{' '.join(argv[:3])} failed: {said[-1]}", remedy=remedy)
    return done.stdout


@dataclass(frozen=True, slots=True)
class ScheduledNode:
    """A node as its scheduler shows it. `free_at` is 0 without work, and later than the question with work."""

    in_service: bool
    free_at: float = 0.0
    reason: str = ""


def expected_end(end: float, at: float) -> float:
    """Return when work will end: later than `at`, because it was there then."""
    if math.isinf(end):
        # Rounded, so that an unchanged node is no news at each reading.
        return (math.floor(at / 86400.0) * 86400.0) + NO_END
    return end if end > at else (math.floor(at / OVERTIME) + 1) * OVERTIME
