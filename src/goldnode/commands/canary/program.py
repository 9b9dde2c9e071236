"""Command `goldnode canary program`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.options import program_file


@click.command()
@program_file()
def program(out: Path) -> None:
    """Write goldnode-canary, which runs the suite on a node, to a file.

    The file is executable and needs Python 3.9 or later, nothing else.
    """
    from goldnode.canary import pack

    pack.write(out)
    click.echo(f"wrote {out} ({pack.digest()})")
