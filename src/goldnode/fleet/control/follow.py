"""The parts of a controller for nodes that follow a channel: nothing is pushed to them.

A node asks the lock service, and reports to it; the controller finds its reports in the store. Only
the drain is left for the controller, by a scheduler or the site's commands. Where there is neither,
a granted node counts as drained at once, and a node that reports counts as in service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from goldnode.fleet.control.clock import machine_time
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.rollout.model import NodeObservation, SchedulerObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, NodeWorker, Observation
from goldnode.fleet.shared import identity
from goldnode.fleet.store import observations
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.ground import drained

RECENT = 7200.0  # seconds after which a node that does not report is not known to serve


def _none(name: str) -> bool:
    return False


def drains_of(settings: Mapping[str, DrainSettings]) -> Callable[[str], bool]:
    """Return the question whether a node is drained at all: by a scheduler, or by the site's commands, which cannot be asked."""
    return lambda name: name in settings and settings[name].by != "none"


class FollowWorker:
    """A NodeWorker for nodes that apply and boot by themselves.

    :param rollout: name of the rollout.
    :param asks: whether a node is drained by a scheduler or by commands (`drains_of`).
    :param drains: worker that drains such nodes and returns them; it gets no task to apply.
    """

    def __init__(
        self,
        rollout: str,
        asks: Callable[[str], bool] = _none,
        drains: NodeWorker | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.asks, self.drains, self.clock = asks, drains, clock
        self._tasks: list[NodeTask] = []
        actor = identity.rollout_actor(rollout)
        # Other machines read the mark, so it has the time of the machine and not of the controller's steady clock.
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(machine_time(clock)))
        # The mark of the rollout: the node is not taken for one that a person has drained.
        self._reason = drained.reason(actor.run, actor.controller, at, f"rollout {rollout}")

    def work(self, tasks: Collection[NodeTask]) -> None:
        """Drain and return nodes for which the site has a way. All others need no work."""
        moving = [task for task in tasks if task.phase is not StepPhase.APPLYING]
        if self.drains is not None:
            self.drains.work([task for task in moving if self.asks(task.node)])
        self._tasks = [task for task in moving if not self.asks(task.node)]

    def results(self) -> list[Observation]:
        """Return what was observed since the last call: a node without a scheduler is where its step wants it."""
        now = self.clock()
        observed: list[Observation] = []
        for task in self._tasks:
            serves = task.phase is StepPhase.RETURNING
            reason = "" if serves else self._reason
            observed.append(SchedulerObservation(task.node, now, serves, reason=reason))
        return [*observed, *(self.drains.results() if self.drains is not None else ())]

    def close(self) -> None:
        """Stop the work with the scheduler."""
        if self.drains is not None:
            self.drains.close()


class FollowReader:
    """A NodeReader of what the lock service has recorded."""

    def __init__(
        self, store: StoreDatabase, node_class: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.store, self.node_class, self.clock = store, node_class, clock

    def read(self, names: Iterable[str]) -> list[NodeObservation]:
        """Return the newest report of each node. A node that has not reported for long is left out."""
        wanted, oldest = set(names), self.clock() - RECENT
        with self.store.read() as connection:
            reports = observations.newest(connection, self.node_class)
        return [
            item
            for item in reports
            if isinstance(item, NodeObservation) and item.node in wanted and item.at >= oldest
        ]
