"""The ways to drain a node, registered by name, and the choice of an inventory (`goldnode_drain`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldnode.core.errors import GoldnodeError, nearest
from goldnode.fleet.drain.command import CommandDrainer
from goldnode.fleet.drain.kubectl import KubectlDrainer
from goldnode.fleet.drain.protocol import Drainer, NoDrainer, SchedulerDrainer
from goldnode.fleet.drain.slurm import SlurmDrainer
from goldnode.inventory.variables import DRAINS, JUDGED, check

# Schedulers that show the state of their nodes. Each is a value of `goldnode_drain` too (DRAINS), and has its way back
# in goldnode.fleet.drain.protocol.BY_HAND.
SCHEDULERS: Mapping[str, type[SchedulerDrainer]] = {
    scheduler.name: scheduler for scheduler in (SlurmDrainer, KubectlDrainer)
}


def choose(
    name: str, drain_command: Sequence[str] = (), resume_command: Sequence[str] = ()
) -> Drainer:
    """Return the way to drain of this name. Raises GoldnodeError for an unknown one."""
    if name == "none":
        return NoDrainer()
    if name in SCHEDULERS:
        return SCHEDULERS[name]()
    if name == "command" and drain_command and resume_command:
        return CommandDrainer(drain_command, resume_command)
    if name == "command":
        raise GoldnodeError(
            "goldnode_drain: command needs goldnode_drain_command and goldnode_resume_command",
            remedy="Set both to lists of words",
        )
    raise GoldnodeError(f"goldnode_drain: {name} is not known", remedy=nearest(name, DRAINS))


@dataclass(frozen=True)
class DrainSettings:
    """How one node is drained: the scheduler, its name of the node, and the commands of the site."""

    by: str = "none"
    node: str = ""
    drain_command: tuple[str, ...] = ()
    resume_command: tuple[str, ...] = ()

    def drainer(self) -> Drainer:
        """Return the way to drain the node."""
        return choose(self.by, self.drain_command, self.resume_command)


def drain_settings(host: str, values: Mapping[str, Any]) -> DrainSettings:
    """Return the drain settings of a host from its inventory variables. Raises InventoryError for a wrong value."""
    check(host, {name: values[name] for name in JUDGED if name in values})
    return DrainSettings(
        str(values.get("goldnode_drain") or "none"),
        str(values.get("goldnode_drain_name") or host),
        tuple(str(word) for word in values.get("goldnode_drain_command") or ()),
        tuple(str(word) for word in values.get("goldnode_resume_command") or ()),
    )
