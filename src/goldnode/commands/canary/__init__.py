"""The group `goldnode canary`. Each command is in a file of its own and is imported when it is called."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands import LazyGroup

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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Jobs and settings of the site (canary.yml).",
)


@click.group(cls=LazyGroup, sections=_SECTIONS, no_args_is_help=True)
def canary() -> None:
    """Run representative jobs on nodes, and measure how fast they are."""
