"""Parts of a controller: work on nodes, the scheduler, the state of nodes, and the answers of requirements.

The controller decides with `plan` and calls these. Each part is stateless as far as a restart is
concerned: a controller that takes over gives the same tasks again, and a task that was done already
ends at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from goldnode.fleet.rollout.model import (
    CalendarReading,
    Direction,
    NodeObservation,
    Prior,
    RequirementResult,
    SchedulerObservation,
    StepPhase,
)

Observation = NodeObservation | SchedulerObservation | RequirementResult | CalendarReading


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Work on one node, by the phase of its step.

    GRANTED: drain it. APPLYING: apply the target, or with direction BACK the state in `prior`;
    boot; judge. RETURNING: return it to service.

    `tested_since`: of a return, the time of the step's last change. Tests before the return count
    from then on. None: the step has changed nothing, and no test is asked.
    """

    node: str
    phase: StepPhase
    direction: Direction
    attempt: int
    prior: Prior
    tested_since: float | None = None


class NodeWorker(Protocol):
    """Work on nodes: a push over ssh, or nothing where nodes follow a channel."""

    def work(self, tasks: Collection[NodeTask]) -> None:
        """Work on exactly these tasks: start those that are not under way, and stop the work on all others."""

    def results(self) -> list[Observation]:
        """Return what was observed since the last call. Never waits."""

    def close(self) -> None:
        """Stop all work. A node in the middle of a change is left as it is; the same task continues it."""


class SchedulerReader(Protocol):
    """The scheduler of the site."""

    def asks(self, name: str) -> bool:
        """Return whether the node has a scheduler that can be asked: not with `none`, and not with a command."""

    def read(self, names: Iterable[str]) -> list[SchedulerObservation]:
        """Return the state of nodes, with the time before the question as `at`. Unknown nodes are left out.

        Raises GoldnodeError if the scheduler cannot be asked.
        """


class NodeReader(Protocol):
    """The state of nodes outside of a step: digest, boot and verdict."""

    def read(self, names: Iterable[str]) -> list[NodeObservation]:
        """Return what nodes report now. A node that does not answer is left out."""


class FreezeReader(Protocol):
    """The freeze calendars of the site."""

    def read(self) -> list[CalendarReading]:
        """Read and expand each calendar. One that cannot be read has its problem; never raises for it."""


class RequirementReader(Protocol):
    """Answers of the requirements that are outside of goldnode."""

    def read(self, requirement: str, wave: int) -> RequirementResult:
        """Evaluate a requirement. No data, an error and a timeout are `unknown`, with their reason; never raises."""

    def close(self) -> None:
        """Stop the evaluations that are running."""
