"""The schedulers of a class, which a rollout reads: each node with its settings, by the clock of the rollout.

The questions are those of each scheduler (:mod:`goldnode.fleet.drain.slurm`, :mod:`goldnode.fleet.drain.kubectl`). A
site's command shows no state, so it is not asked: what its worker reports counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from goldnode.fleet.control.clock import behind
from goldnode.fleet.drain.choice import SCHEDULERS, DrainSettings
from goldnode.fleet.drain.protocol import SchedulerDrainer
from goldnode.fleet.drain.questions import OVERTIME, Ask, ask
from goldnode.fleet.rollout.model import SchedulerObservation


class SiteSchedulers:
    """A SchedulerReader for nodes with the drain settings of an inventory."""

    def __init__(
        self,
        nodes: Mapping[str, DrainSettings],
        reservation: str | None = None,
        *,
        ask: Ask = ask,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare questions; ask nothing yet.

        :param nodes: inventory name -> drain settings (`goldnode.fleet.drain.choice.drain_settings`).
        :param reservation: the reservation that the site made for this rollout (`drain.reservation` of the
            document). Nodes in another maintenance reservation count as out of service.
        """
        self._nodes, self._reservation, self._ask, self._clock = nodes, reservation, ask, clock

    def asks(self, name: str) -> bool:
        """See SchedulerReader."""
        settings = self._nodes.get(name)
        return settings is not None and isinstance(settings.drainer(), SchedulerDrainer)

    def read(self, names: Iterable[str]) -> list[SchedulerObservation]:
        """See SchedulerReader."""
        wanted: dict[str, dict[str, str]] = {}
        for name in names:
            if self.asks(name):
                settings = self._nodes[name]
                wanted.setdefault(settings.by, {})[name] = settings.node or name
        observed = []
        for by, in_scheduler in wanted.items():
            at, late = self._clock(), behind(self._clock)
            asked = set(in_scheduler.values())
            seen = SCHEDULERS[by]().nodes(self._ask, asked, at - late, self._reservation)
            for name, node in in_scheduler.items():
                if (row := seen.get(node)) is not None:
                    free_at = _ahead(row.free_at, late)
                    observed.append(
                        SchedulerObservation(name, at, row.in_service, free_at, row.reason)
                    )
        return observed


def _ahead(free_at: float, ahead: float) -> float:
    """Return the end of work by a clock that is ahead of the scheduler's: a node that works must not count as idle.

    Rounded up, so that an unchanged node is no news at each reading.
    """
    return math.ceil((free_at + ahead) / OVERTIME) * OVERTIME if free_at and ahead else free_at
