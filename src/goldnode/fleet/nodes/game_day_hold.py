"""A node out of service of its scheduler while it has a game day.

The drain has the mark and the record of every other run (:mod:`goldnode.fleet.drain.protocol`), so that the gate of the
node returns nothing meanwhile, and `--end` continues what a killed run has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.choice import drain_settings
from goldnode.fleet.drain.protocol import DrainCaller, Drainer, by_hand
from goldnode.fleet.drain.record import DrainRecords
from goldnode.fleet.nodes.reach import last_line


class HeldMachine(Protocol):
    """A node that runs scripts."""

    @property
    def name(self) -> str:
        """Name of the node in the inventory."""

    def run(self, *command: str, stdin: bytes | None = None, timeout: float = 600) -> Any:
        """Run a command, and return its `returncode`, `stdout` and `stderr`."""


@dataclass
class NodeHold:
    """The drain of one node for a game day: `by` is the scheduler, `node` its name of the node."""

    by: str
    node: str
    drainer: Drainer
    records: DrainRecords
    caller: DrainCaller = field(default_factory=DrainCaller)
    in_service: bool | None = None  # before the drain, once it was drained

    def begin(self, why: str) -> str:
        """Drain the node, and wait until no work is left on it. Return the result for a person. Raises GoldnodeError."""
        done = self.drainer.drain(self.node, why, self.caller, self.records)
        self.in_service = done.in_service
        if not done.in_service:
            return f"{self.by} has it out of service already, and it stays so"
        return f"{self.by} gives it no work until the end"

    def finish(self) -> str:
        """Return the node to service. Return what a person has to know; empty if it is in service as before."""
        try:
            done = self.drainer.resume(self.node, self.caller, self.records, self.in_service)
        except GoldnodeError as problem:
            return (
                f"{self.by} still holds it: {problem.message}; then {by_hand(self.by, self.node)}"
            )
        return done.note or ""


def hold_of(machine: HeldMachine, variables: Mapping[str, Any]) -> NodeHold | None:
    """Return how a node is held, by the inventory variables of `site.yml`; None without a scheduler."""
    settings = drain_settings(machine.name, variables)
    if settings.by == "none":
        return None

    def shell(script: str) -> str:
        done = machine.run("sh", "-s", stdin=script.encode(), timeout=120)
        if done.returncode != 0:
            raise GoldnodeError(
                f"{machine.name}: the record of its drain failed: {last_line(done.stderr)}",
                remedy="see the space below /var on it",
            )
        return str(done.stdout.decode("utf-8", "replace"))

    return NodeHold(settings.by, settings.node, settings.drainer(), DrainRecords(shell))
