"""Command `goldnode node-program`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.options import program_file


@click.command("node-program")
@program_file()
def node_program(out: Path) -> None:
    """Write goldnode-node, the program that runs on nodes, to a file.

    The file is executable and needs Python 3.9 or later, nothing else. Use it to judge captures on another
    machine; on nodes, site.yml installs it.
    """
    from goldnode.core.program_file import build, payload

    out.write_bytes(build())
    out.chmod(0o755)
    click.echo(f"wrote {out} ({payload(content=False)['sha256']})")
