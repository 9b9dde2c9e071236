"""Command `goldnode man`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.options import DIRECTORY


@click.command()
@click.option(
    "--out",
    type=DIRECTORY,
    default="~/.local/share/man/man1",
    show_default=True,
    metavar="DIR",
    help="Directory to write the pages to.",
)
@click.pass_context
def man(ctx: click.Context, out: Path) -> None:
    """Write the man pages of goldnode and goldnode-node.

    `man` finds them in the default directory where ~/.local/bin is in PATH, as with pipx and uv.
    """
    from goldnode.nodepackage.manpages import write_pages  # start-up time: it reads every command

    directory = out.expanduser()
    write_pages(ctx.find_root().command, directory)
    click.echo(f"wrote goldnode.1 and goldnode-node.1 to {directory}")
