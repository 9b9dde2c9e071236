"""Command `goldnode canary deliver`."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from goldnode.commands.canary import NODES
from goldnode.commands.canary.outstanding import NodeOutcome, deliver_stored
from goldnode.commands.canary.run import PARALLEL, UNKNOWN, held_nodes
from goldnode.commands.options import BECOME, DIRECTORY, inventory_option
from goldnode.commands.output import emit, reports, say
from goldnode.core.errors import GoldnodeError


@click.command()
@NODES
@inventory_option(
    "Inventory with the nodes. Without NODE: its hosts of classes with tests before a return."
)
@BECOME
@click.option(
    "--results",
    "directory",
    type=DIRECTORY,
    metavar="DIRECTORY",
    help="Directory of the results, instead of .goldnode/canary.",
)
@PARALLEL
@reports("canary-deliveries")
def deliver(
    nodes: tuple[str, ...],
    inventory: str | None,
    become: bool,
    directory: Path | None,
    parallel: int,
    *,
    form: str,
) -> None:
    """Copy stored results to the gates of nodes over ssh.

    For results of Slurm, Kubernetes, a container engine or a cohort. A gate that wants no more tests returns its node at once.

    Exit status: 0 no node has outstanding tests, 3 one has, or could not be asked.
    """
    from goldnode.canary import results  # start-up time: it loads pydantic
    from goldnode.fleet.nodes.return_delivery import HeldNode
    from goldnode.fleet.nodes.return_tests import stored

    held = held_nodes(nodes, inventory, become)
    read = stored(directory or results.DIRECTORY)

    def one(node: HeldNode) -> NodeOutcome:
        # A node that is away must not end the deliveries to the others.
        try:
            return NodeOutcome(node.name, tests=deliver_stored(node, read))
        except GoldnodeError as problem:
            return NodeOutcome(node.name, error=problem)

    # At least one thread: an inventory may have no such node.
    with ThreadPoolExecutor(max(1, min(parallel, len(held)))) as threads:
        done = list(threads.map(one, held))
    for outcome in done:
        if outcome.error is not None:
            say(f"{outcome.node}: {outcome.error}")
        elif form == "text":
            click.echo("\n".join(outcome.lines()))
    emit(form, {"nodes": [outcome.to_json() for outcome in done]})
    sys.exit(UNKNOWN if any(outcome.error or outcome.held for outcome in done) else 0)
