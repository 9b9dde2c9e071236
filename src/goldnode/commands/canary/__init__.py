"""The group `goldnode canary`: `run`, `cohort`, `deliver`, `list`, `program` and `show` are the commands.

`outstanding` has what a gate still wants of a node, and its delivery. Here: the options that several of them share.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from goldnode.commands import LazyGroup
from goldnode.commands.options import (
    BECOME,
    FILE,
    Decorator,
    engine_option,
    gpus_option,
    grouped,
    inventory_option,
)

_SECTIONS = {
    "Run": {
        "list": ("canary.list", "List the jobs of the suite, and where they have run."),
        "run": ("canary.run", "Run the canary suite on nodes."),
        "cohort": ("canary.cohort", "Run an all-reduce over the nodes of a cohort."),
        "deliver": ("canary.deliver", "Copy stored results to the gates of nodes over ssh."),
        "show": ("canary.show", "Show results: states, and quantiles with their bounds."),
    },
    "Nodes without a controller": {
        "program": (
            "canary.program",
            "Write goldnode-canary, which runs the suite on a node, to a file.",
        ),
    },
}
SUITE = click.option(
    "--suite",
    "file",
    type=FILE,
    metavar="FILE",
    help="Jobs and settings of the site (canary.yml).",
)
CLASS = click.option("--class", "class_name", metavar="CLASS", help="Class of the nodes.")
NODES = click.argument("nodes", nargs=-1, metavar="[NODE]...")


@dataclass(frozen=True)
class LaunchOptions:
    """How the suite is started on the nodes."""

    how: str
    inventory: str | None
    become: bool
    image: str | None
    engine: str
    gpus: str | None
    partition: str | None


@dataclass(frozen=True)
class LaunchHelp:
    """Help of those options of a launch that differ between the commands."""

    how: str
    inventory: str
    image: str
    partition: str


def launch_options(texts: LaunchHelp, *ways: str) -> Decorator:
    """Return the options of a command that starts programs on nodes. The first of `ways` is the default."""
    return grouped(
        "launch",
        LaunchOptions,
        click.option(
            "--how", type=click.Choice(ways), default=ways[0], show_default=True, help=texts.how
        ),
        inventory_option(texts.inventory),
        BECOME,
        click.option("--image", metavar="IMAGE", help=texts.image),
        engine_option(),
        gpus_option(),
        click.option("--partition", metavar="NAME", help=texts.partition),
    )


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def canary() -> None:
    """Run representative jobs on nodes, and measure how fast they are."""
