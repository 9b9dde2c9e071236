"""Command `goldnode dual`."""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "Dual runs": {
        "record": (
            "dual_record",
            "Run a model or a command on one stack, and write what it computes as a record.",
        ),
        "compare": (
            "dual_compare",
            "Compare two records: outputs, first divergence, sampled outputs and times.",
        ),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS)
def dual() -> None:
    """Compare what two stacks, images or backends compute from the same inputs."""
