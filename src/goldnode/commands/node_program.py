"""`goldnode node-program`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("node-program")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write.")
def node_program(out: Path) -> None:
    """Write goldnode-node, the program of the nodes, to a file that can be run: for a look at records and captures away from a node.

    It is one file that needs Python 3.9 or newer and nothing else. Nodes get it from site.yml.
    """
    from goldnode.core.program_file import build, payload

    out.write_bytes(build())
    out.chmod(0o755)
    click.echo(f"wrote {out} ({payload(content=False)['sha256']})")
