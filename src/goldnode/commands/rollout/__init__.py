"""The group `goldnode rollout`.

- `check`, `canaries`, `calendars`, `simulate`, `sign`: before a rollout
- `run`, `orders`, `denied`, `publish`: the controller, orders of a person, denied digests, and the channel of nodes
- `status` with `watch` and `text`; `log`

Here: nodes of an inventory as a rollout sees them, and numbers as reports show them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands import LazyGroup
from goldnode.commands.options import FILE, inventory_option

if TYPE_CHECKING:
    from goldnode.fleet.rollout.model import FleetNode
    from goldnode.inventory.fleet import InventoryNode

_SECTIONS = {
    "Before a rollout": {
        "check": (
            "rollout.check",
            "Check a rollout document: what each wave proves, and how long it takes.",
        ),
        "canaries": (
            "rollout.canaries",
            "Choose canaries that hold each hardware variant of the class.",
        ),
        "calendars": (
            "rollout.calendars",
            "Show the freeze calendars of the site: their ages, and the next freezes.",
        ),
        "simulate": ("rollout.simulate", "Run a rollout document on simulated nodes with faults."),
        "sign": ("rollout.sign", "Sign a rollout document as its author."),
    },
    "Run": {
        "submit": ("rollout.run", "Submit a rollout to the store, where a controller takes it up."),
        "run": (
            "rollout.run",
            "Run a rollout to its end: wave by wave, with rollback if it fails.",
        ),
    },
    "Denied states": {
        "denied": ("rollout.denied", "List the denied states."),
        "deny": ("rollout.denied", "Deny a state of a class."),
        "lift": ("rollout.denied", "Lift the denial of a state."),
    },
    "View": {
        "status": (
            "rollout.status",
            "Show a rollout: waves, buffers, nodes by state, and what holds it back.",
        ),
        "explain": (
            "rollout.status",
            "Explain where a node is in a rollout, why it does not move, and what helps.",
        ),
        "log": ("rollout.log", "Show what happened in a rollout, a sentence a line."),
        "events": ("rollout.log", "Print transitions as JSON, one object a line, for alerting."),
    },
    "Orders of a person": {
        "approve": ("rollout.orders", "Approve a wave of a rollout in a role."),
        # The same commands as in `goldnode fleet`.
        "freeze": ("fleet.orders", "Stop all grants of a class, of a rack, or of the fleet."),
        "unfreeze": ("fleet.orders", "Remove a freeze."),
        "release": (
            "fleet.orders",
            "Remove the holds of a node that is overdue, failed or drained.",
        ),
        "rollback": ("rollout.orders", "Roll a rollout back, and deny its target."),
    },
    "Nodes that follow a channel": {
        "publish": (
            "rollout.publish",
            "Publish a rollout, with all of the store, as a signed channel that nodes follow.",
        ),
        "rotate-keys": ("rollout.publish", "Replace keys of a channel."),
        "sign-metadata": (
            "metadata",
            "Sign a release or a root document that was prepared on another machine.",
        ),
    },
}
DOCUMENT = click.argument("document", type=FILE, metavar="DOCUMENT")
INVENTORY = inventory_option("Inventory with the hosts of the class, their racks and cohorts.")


@click.group(cls=LazyGroup, sections=_SECTIONS)
def rollout() -> None:
    """Check, simulate, run and watch rollouts of a class, wave by wave."""


def nodes_of(inventory: str, class_: str, origin: str) -> list[FleetNode]:
    """Return the hosts of a class as nodes in service, in the state that the rollout moves away from."""
    from goldnode.inventory.fleet import nodes_of_class  # start-up time: it loads pydantic

    return fleet_nodes(nodes_of_class(inventory, class_), origin)


def fleet_nodes(hosts: Iterable[InventoryNode], origin: str) -> list[FleetNode]:
    """Return hosts as nodes in service, in the state that the rollout moves away from."""
    from goldnode.fleet.rollout.model import FleetNode

    return [
        FleetNode(
            name=node.name,
            rack=node.rack,
            leaf=node.leaf,
            cohort=node.cohort,
            tags=node.tags,
            digest=origin,
            in_service=True,
        )
        for node in hosts
    ]


def share(value: float | None) -> str:
    """Return a rate for a table."""
    if value is None:
        return "?"
    if value < 0.1:
        return f"{value:.2%}"
    return f"{value:.1%}"


def number(value: Any) -> str:
    """Return a count or a number of hours for a table."""
    if value is None:
        return "?"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)
