"""Command `goldnode canary program`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="File to write.",
)
def program(out: Path) -> None:
    """Write goldnode-canary, which runs the suite on a node, to a file.

    The file is executable and needs Python 3.9 or later, nothing else.
    """
    from goldnode.canary import pack

    pack.write(out)
    click.echo(f"wrote {out} ({pack.digest()})")
