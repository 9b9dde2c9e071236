"""Drain and return of the nodes of a rollout, through the site's scheduler, on any of the rollout's controllers.

Every controller drains as the same run, so each continues what another one began. Nothing here is
remembered: the scheduler's reason and the node's own record decide
(:mod:`goldnode.fleet.drain.protocol`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.clock import machine_time
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.drain.protocol import DrainCaller, Drainer, SchedulerDrainer
from goldnode.fleet.drain.record import DrainRecords
from goldnode.fleet.nodes.return_tests import drained_at
from goldnode.fleet.rollout.model import Prior, SchedulerObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.shared.identity import rollout_actor
from goldnode.node.ground.drained import reason

LOGGER = logging.getLogger("goldnode.rollout")
PAUSE = 15.0  # seconds before a drain or a return that is not over is repeated


def no_records(name: str) -> DrainRecords | None:
    """Return no place for a node's record."""
    return None


@dataclass(frozen=True)
class RolloutDrains:
    """Drains of one rollout. Neither method waits for work to end.

    :param nodes: inventory name -> drain settings.
    :param records: returns the place of a node's record; None where its disk is replaced. Then the scheduler's
        reason suffices, and the note of a node in service comes from the store.
    :param tests: returns why a node that was drained at a time (UTC) must not return yet; empty if it may. None: no test is asked.
    """

    rollout: str
    nodes: Mapping[str, DrainSettings]
    records: Callable[[str], DrainRecords | None] = no_records
    clock: Callable[[], float] = time.time
    tests: Callable[[str, str], str] | None = None
    # Nodes held for tests, with the reason that was logged.
    reported: dict[str, str] = field(default_factory=dict)

    def drain(self, name: str, prior: Prior) -> SchedulerObservation | None:
        """Take a node out of service, or continue with that. Repeat it until it returns an observation.

        None means that work is left on the node. The observation is of another's drain if that was
        faster: then nothing was changed, and the reason says whose it is.
        """
        at, settings = self.clock(), self.nodes[name]
        drainer = settings.drainer()
        outcome = drainer.drain(
            settings.node or name, self._why(), self._caller(prior), self.records(name)
        )
        if outcome.ours and not outcome.empty:
            return None
        reason = outcome.note or ""
        if outcome.record is not None and outcome.ours:
            reason = outcome.record.reason
        return self._seen(name, drainer, SchedulerObservation(name, at, False, 0.0, reason))

    def resume(
        self, name: str, prior: Prior, tested_since: float | None = None
    ) -> SchedulerObservation:
        """Return a node to service if this rollout has drained it, and return its state.

        A node that another holds out of service stays so. Its reason says who that is. A node whose
        tests have not passed stays so under the mark of this rollout; the call is repeated.

        :param tested_since: see NodeTask.
        """
        at, settings = self.clock(), self.nodes[name]
        drainer = settings.drainer()
        since = self._since(name, drainer, tested_since) if prior.in_service else None
        outstanding = ""
        if self.tests is not None and since is not None:
            outstanding = self.tests(name, since)
        if outstanding != self.reported.get(name, ""):
            self.reported[name] = outstanding
            LOGGER.warning("%s: %s", name, outstanding or "its tests have passed")
        if since is not None and outstanding:
            return self._seen(
                name, drainer, SchedulerObservation(name, at, False, 0.0, self._mark(since))
            )
        outcome = drainer.resume(
            settings.node or name, self._caller(prior), self.records(name), before=prior.in_service
        )
        serves = outcome.in_service and not outcome.note
        return self._seen(
            name, drainer, SchedulerObservation(name, at, serves, 0.0, outcome.note or "")
        )

    def _since(self, name: str, drainer: Drainer, tested_since: float | None) -> str | None:
        """Return the time from which results of tests count; None if no test is asked."""
        if tested_since is None or self.tests is None:
            return None
        held = drained_at(drainer, self.nodes[name].node or name, self.records(name), self._machine)
        # The drain may be older than the change, and a result from between them is of the earlier state.
        return None if held is None else max(held, DrainCaller(clock=lambda: tested_since).now())

    def _mark(self, since: str) -> str:
        actor = rollout_actor(self.rollout)
        return reason(actor.run, actor.controller, since, self._why())

    def _seen(
        self, name: str, drainer: Drainer, said: SchedulerObservation
    ) -> SchedulerObservation:
        """Return the scheduler's present state; what the drain said where the scheduler shows none."""
        if not isinstance(drainer, SchedulerDrainer):
            return said
        at = self.clock()
        state = drainer.state_of(self.nodes[name].node or name)
        return SchedulerObservation(name, at, state.in_service, 0.0, state.why)

    def _caller(self, prior: Prior) -> DrainCaller:
        return DrainCaller(
            rollout_actor(self.rollout), waits=False, was=prior.reason, clock=self._machine
        )

    def _machine(self) -> float:
        return machine_time(self.clock)

    def _why(self) -> str:
        return f"rollout {self.rollout}"


@dataclass
class _Drain:
    """One drain or return that is wanted."""

    task: NodeTask
    due: float = 0.0
    running: Future[SchedulerObservation | None] | None = None
    done: bool = False


class DrainWorker:
    """A NodeWorker that drains nodes and returns them, and changes nothing on them: they follow a channel.

    A task to apply is ignored. A drain that fails is logged, and repeated until its step ends.
    """

    def __init__(self, drains: RolloutDrains, parallel: int = 8, pause: float = PAUSE) -> None:
        self._drains, self._pause = drains, pause
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="drain")
        self._wanted: dict[tuple[str, StepPhase, int], _Drain] = {}

    def work(self, tasks: Collection[NodeTask]) -> None:
        """See NodeWorker. A call to the scheduler that has begun ends; its result is dropped."""
        keys = {
            (task.node, task.phase, task.attempt): task
            for task in tasks
            if task.phase is not StepPhase.APPLYING
        }
        self._wanted = {key: self._wanted.get(key) or _Drain(task) for key, task in keys.items()}
        now = self._drains.clock()
        for wanted in self._wanted.values():
            if wanted.running is None and not wanted.done and now >= wanted.due:
                task = wanted.task
                wanted.running = self._threads.submit(self._act, task)

    def _act(self, task: NodeTask) -> SchedulerObservation | None:
        if task.phase is StepPhase.RETURNING:
            return self._drains.resume(task.node, task.prior, task.tested_since)
        return self._drains.drain(task.node, task.prior)

    def results(self) -> list[Observation]:
        """See NodeWorker."""
        observed: list[Observation] = []
        for wanted in self._wanted.values():
            if wanted.running is None or not wanted.running.done():
                continue
            seen = self._ended(wanted)
            wanted.running, wanted.due = None, self._drains.clock() + self._pause
            if seen is not None:
                observed.append(seen)
                wanted.done = seen.in_service is (wanted.task.phase is StepPhase.RETURNING)
        return observed

    def _ended(self, wanted: _Drain) -> SchedulerObservation | None:
        try:
            return wanted.running.result() if wanted.running is not None else None
        except GoldnodeError as problem:
            LOGGER.warning("%s: %s", wanted.task.node, problem)
        except Exception:  # a program of the site must not end the controller
            LOGGER.exception("%s: the drain failed", wanted.task.node)
        return None

    def close(self) -> None:
        """See NodeWorker."""
        self._wanted = {}
        self._threads.shutdown(wait=False, cancel_futures=True)
