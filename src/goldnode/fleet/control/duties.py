"""Work of a controller after its commits: the deny list, the channel, events, and power cycles of overdue nodes.

A failure of these is logged and tried again at the next commit; it never stops a rollout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy import select

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.power import PowerCycle, power_cycle
from goldnode.fleet.control.silences import NodeSilences
from goldnode.fleet.events.deliver import BackgroundDelivery
from goldnode.fleet.rollout.model import Action, Overdue
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.denials import DenyListWriter

LOGGER = logging.getLogger("goldnode.rollout")


@dataclass
class ControllerDuties:
    """The callback `ControllerParts.written` of one controller."""

    store: StoreDatabase
    rollout: str
    holder: str
    deny_list: DenyListWriter | None = None
    power: tuple[str, ...] = ()  # the site's power-cycle command
    publish: Callable[[Sequence[Action]], None] | None = None
    tell: Callable[[str], None] = LOGGER.info
    events: BackgroundDelivery | None = None
    silences: NodeSilences | None = None
    _powered: bool = False  # nodes that were overdue before this controller have had their attempt
    _one: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "power"), repr=False
    )

    def __call__(self, actions: Sequence[Action]) -> None:
        """Do what has become due."""
        if self.deny_list is not None:
            try:
                self.deny_list.update()
            except GoldnodeError as problem:
                LOGGER.error("the deny list is not up to date: %s", problem)
        if self.publish is not None:
            self.publish(actions)
        if self.events is not None:
            self.events.wake()
        if self.silences is not None:
            self.silences.wake(bool(actions))
        if self.power:
            overdue = [action.node for action in actions if isinstance(action, Overdue)]
            for name in overdue if self._powered else self._overdue():
                # One at a time: a switch that fails must not cycle a rack.
                self._one.submit(self._cycle, name)
            self._powered = True

    def close(self) -> None:
        """Begin no further power cycle, and deliver the last events. A power cycle that has begun ends by itself."""
        self._one.shutdown(wait=False, cancel_futures=True)
        if self.silences is not None:
            self.silences.close()
        if self.events is not None:
            self.events.close()

    def _overdue(self) -> list[str]:
        step = tables.step
        query = select(step.c.node).where(step.c.rollout == self.rollout, step.c.phase == "overdue")
        with self.store.read() as connection:
            return list(connection.scalars(query.order_by(step.c.node)))

    def _cycle(self, name: str) -> None:
        try:
            result = power_cycle(
                self.store, PowerCycle(self.rollout, name, self.power, self.holder), time.time
            )
        except GoldnodeError as problem:
            LOGGER.error("power cycle of %s: %s", name, problem)
        else:
            if result.tried:
                self.tell(f"{name}: power cycle: {result.text}")
