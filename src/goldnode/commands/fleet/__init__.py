"""The group `goldnode fleet`.

- `serve`, `store`, `view`: the lock service, its store, and their state
- `orders`: freeze, unfreeze and release, which `goldnode rollout` has too
- `queue`: requests of work that needs nodes, and `cancel`
- `ingest`: captures of nodes
- `ladder`: repairs of single nodes; `ticket`: those by a person
- `report` with `report_text`, `report_page` and `sql`; `hardware`, `monitoring`
- `common`: options and functions of all of them
"""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "Serve and view": {
        "nodes": ("fleet.serve", "Write the nodes and limits of classes to the store."),
        "serve": ("fleet.serve", "Run the lock service (FleetLock) in front of the store."),
        "status": ("fleet.view", "Show limits, holds, freezes and rollouts."),
        "queue": ("fleet.queue", "List who waits for which node, why, how long, and what is next."),
        "log": ("fleet.view", "Show the log of the store."),
        "monitoring": (
            "fleet.monitoring",
            "Write rules for Prometheus and dashboards for Grafana.",
        ),
    },
    "Captures of the fleet": {
        "report": (
            "fleet.report",
            "Show drift, mixed groups, slow nodes, growing counters and repeat offenders.",
        ),
        "diff": ("fleet.report", "Show what changed on the nodes between two times."),
        "sql": ("fleet.report", "Run SQL on the captures and on the views of the report."),
        "hardware": (
            "fleet.hardware",
            "List the parts of the nodes: serial numbers, part numbers, slots and firmware.",
        ),
        "ingest": (
            "fleet.ingest",
            "Write captures, verdicts and canary results to the fleet's data.",
        ),
        "prune": ("fleet.ingest", "Remove captures that are older than a number of days."),
        "copy": (
            "fleet.ingest",
            "Copy captures to object storage, for reports with `--data s3://…`.",
        ),
    },
    "Repair": {
        "ladder": (
            "fleet.ladder",
            "Run repairs of single nodes, rung by rung, with evidence before each.",
        ),
        "ticket": ("fleet.ticket", "Open, view and close tickets of broken hardware."),
    },
    "Orders of a person": {
        "freeze": ("fleet.orders", "Stop all grants of a class, of a rack, or of the fleet."),
        "unfreeze": ("fleet.orders", "Remove a freeze."),
        "release": (
            "fleet.orders",
            "Remove the holds of a node that is overdue, failed or drained.",
        ),
        "cancel": ("fleet.queue", "Remove a request that has not begun from the queue."),
    },
    "Maintain": {
        "store": ("fleet.store", "Migrate, copy, restore and verify the store."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def fleet() -> None:
    """Run the lock service, freeze and release nodes, and maintain the store.

    Every change is one transaction with a line in the log of the store, which names the person.
    """
