"""Put the parts of the ladder's controller together from the site file, the catalog and an inventory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from goldnode.catalog.models import NodeClass
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, SiteLadder
from goldnode.facts import ladder as facts
from goldnode.fleet.control.ladder import LadderController
from goldnode.fleet.control.ladder_nodes import LadderDrains, LadderNodes
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.control.silences import silences_of_repairs
from goldnode.fleet.control.ticket_desk import NodeOffenders, StoreTicketDesk
from goldnode.fleet.control.ticket_gather import TicketGatherer
from goldnode.fleet.drain.choice import DrainSettings, drain_settings
from goldnode.fleet.nodes import return_tests
from goldnode.fleet.nodes.reach import SshNode, reached
from goldnode.fleet.rollout.ladder import DAY, LadderBounds, LadderMode, LadderPolicy
from goldnode.fleet.shared import identity
from goldnode.fleet.store import repairs
from goldnode.fleet.store.database import StoreDatabase
from goldnode.inventory.fleet import InventoryNode


class LadderError(GoldnodeError):
    """The ladder cannot work as this site declares it."""


@dataclass(frozen=True)
class LadderFleet:
    """The nodes of the ladder: hosts of the inventory by name, and the class of each."""

    hosts: Mapping[str, InventoryNode]
    classes: Mapping[str, NodeClass]  # of each host
    become: bool = False
    clock: Callable[[], float] = field(default=time.time)


def policy(settings: SiteLadder, node_class: NodeClass) -> LadderPolicy:
    """Return the policy of a class: the bounds of the site, without the rungs that the class forbids."""
    rungs: list[str] = list(facts.rungs())
    forbidden: set[str] = set(node_class.ladder.forbid)
    if node_class.ladder.last is not None:
        forbidden |= set(rungs[rungs.index(node_class.ladder.last) + 1 : -1])
    bounds = LadderBounds(
        attempts=settings.attempts,
        per_node=settings.per_node,
        per_hour=settings.per_hour,
        together=settings.together,
        common=settings.common,
        recurrence=settings.recurrence_days * DAY,
    )
    return LadderPolicy(LadderMode(settings.mode), frozenset(forbidden), bounds)


def controller(site: Site, store: StoreDatabase, fleet: LadderFleet) -> LadderController:
    """Return a controller. Raises GoldnodeError for nodes that the store does not know or ssh does not reach."""
    settings = site.ladder
    with store.read() as connection:
        places = repairs.domains(connection, fleet.hosts)
    unknown = sorted(set(fleet.hosts) - set(places))
    if unknown:
        raise LadderError(
            f"the store has no node {', '.join(unknown[:20])}",
            remedy="add them: `goldnode fleet nodes FILE`, with the limits of their class",
        )
    drains = {name: drain_settings(name, host.variables) for name, host in fleet.hosts.items()}
    ssh = {name: reached(name, host.variables, fleet.become) for name, host in fleet.hosts.items()}

    def reach(name: str) -> SshNode:
        return ssh[name]

    schedulers = SiteSchedulers(drains, clock=fleet.clock)
    nodes = LadderNodes(
        reach,
        schedulers,
        LadderDrains("", drains, clock=fleet.clock),
        places,
        Path(settings.evidence),
        can=rungs_of(settings),
        tested=frozenset(
            item.class_
            for item in fleet.classes.values()
            if item.return_tests is not None
            and (item.return_tests.after_repair or item.return_tests.after_xid)
        ),
        retest=lambda name, since: return_tests.of_class(
            fleet.classes[name].class_, "repair"
        ).outstanding(name, since),
        clock=fleet.clock,
    )
    nodes.tools = RungTools(
        settings,
        reach,
        guard=nodes.guard,
        resolve=site.resolve,
        class_=lambda name: fleet.classes[name].class_,
        slurm=_slurm(drains),
    )
    gatherer = TicketGatherer(
        site, store, site.fleet_data(), lambda name: fleet.classes[name].class_, reach
    )
    nodes.offender = NodeOffenders(site, store, fleet.clock).why
    policies = {name: policy(settings, fleet.classes[name]) for name in fleet.hosts}
    silences = silences_of_repairs(site, store, identity.actor().controller)
    desk = StoreTicketDesk(store, gatherer.of_case, fleet.clock)
    return LadderController(
        store, policies, nodes, nodes, clock=fleet.clock, silences=silences, desk=desk
    )


def rungs_of(settings: SiteLadder) -> frozenset[str]:
    """Return the rungs that this site can carry out."""
    rungs = {"service-restart", "gpu-reset", "module-reload", "reboot"}
    rungs |= {"power-cycle"} if settings.bmc is not None else set()
    rungs |= {"slot-write"} if settings.channel is not None else set()
    rungs |= {"reinstall"} if settings.install is not None and settings.bmc is not None else set()
    return frozenset(rungs)


def _slurm(drains: Mapping[str, DrainSettings]) -> dict[str, str]:
    return {name: own.node or name for name, own in drains.items() if own.by == "slurm"}


def classes_of(names: Sequence[str], store: StoreDatabase) -> list[str]:
    """Return the classes to repair: those named, or all of the store."""
    if names:
        return list(names)
    with store.read() as connection:
        return repairs.classes(connection)
