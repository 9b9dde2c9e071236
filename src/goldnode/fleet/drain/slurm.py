"""Slurm: drain with scontrol, and read the states and reasons of its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.protocol import GATE, DrainState, Run, SchedulerDrainer, run
from goldnode.node.ground import scheduler
from goldnode.node.ground.drained import PREFIX, mark

BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}  # states of a node that still has jobs


@dataclass
class SlurmDrainer(SchedulerDrainer):
    """Drain with scontrol: set state DRAIN, then wait until no job is left.

    Slurm shows a drained node with flags, such as IDLE+DRAIN.
    """

    run: Run = run
    wait: float = 86400.0
    pause: float = 15.0
    sleep: Callable[[float], None] = field(default=time.sleep)
    name = "slurm"
    drains_by_itself = True

    def state_of(self, node: str) -> DrainState:
        rows = slurm_rows(self.run(["scontrol", "show", "node", node, "--oneliner"]))
        if not rows:
            raise GoldnodeError(
                f"scontrol shows no state of node {node}",
                remedy="Check that the inventory name is the Slurm node name",
            )
        return rows[0][1]

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        self._update(node, lambda now: mark(why) == now.held, "State=DRAIN", f"Reason={why}")
        return True

    def _update(self, node: str, done: Callable[[DrainState], bool], *words: str) -> None:
        """Change a node. scontrol can end with 1 after a change that Slurm has made (goldnode.node.ground.scheduler)."""
        try:
            self.run(["scontrol", "update", f"NodeName={node}", *words])
        except GoldnodeError:
            if not done(self.state_of(node)):
                raise

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        if seen.held:
            self._update(
                node,
                lambda now: not scheduler.DRAIN_FLAGS & set(now.state.split("+")),
                "State=RESUME",
            )
        if note:
            self.run(["scontrol", "update", f"NodeName={node}", f"Reason={note}"])
        return True

    def finish(self, node: str) -> None:
        # A drained node runs its jobs to their end, and Slurm starts none on it.
        waited = 0.0
        while set(self.state_of(node).state.split("+")) & BUSY:
            if waited >= self.wait:
                raise GoldnodeError(
                    f"node {node} still has jobs after {self.wait:g} s of draining",
                    remedy="Wait for them and run again; it stays drained",
                )
            self.sleep(self.pause)
            waited += self.pause

    def settle(self, node: str) -> bool:
        return not set(self.state_of(node).state.split("+")) & BUSY

    def marked(self) -> dict[str, str]:
        rows = slurm_rows(self.run(["scontrol", "show", "node", "--oneliner"]))
        return {name: seen.reason for name, seen in rows if seen.held}


def slurm_rows(text: str) -> list[tuple[str, DrainState]]:
    """Return name and state of each node in the output of scontrol, which has one node per line."""
    return [(row.name, _state(row)) for row in scheduler.nodes(text)]


def _state(row: scheduler.SchedulerNode) -> DrainState:
    reason = row.reason
    # Of a node that is down and not drained, the reason is not the one of a drain.
    if not row.in_service and not row.drained and mark(reason):
        reason = f"down: {reason}"
    # Slurm 24.11 keeps the reason of a drain that has ended: it is no note of a person.
    if row.in_service and reason.startswith((PREFIX, GATE)):
        reason = ""
    return DrainState(row.in_service, "+".join(row.flags), reason)
