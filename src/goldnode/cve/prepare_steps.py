"""One step of `goldnode cve prepare`, and its state after a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PrepareStep:
    """One step: its command, and what is missing by the state that is read now ("" if it is done).

    `late` returns the command where a step before it decides it.
    """

    name: str
    command: tuple[str, ...]
    missing: Callable[[], str]
    late: Callable[[], tuple[str, ...]] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Return the command as it is now."""
        return self.late() if self.late is not None else self.command


@dataclass(frozen=True)
class StepResult:
    """A step with its state after a run: done, ran (it is done now), missing, or waits (one before it is missing)."""

    step: PrepareStep
    state: str
    text: str
