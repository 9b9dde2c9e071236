"""`goldnode disks compare`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option(
    "--limit", type=click.IntRange(0), default=50, show_default=True, help="Lines that are shown; 0: all."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print all differences as one JSON document instead of text."
)
def compare(first: Path, second: Path, limit: int, as_json: bool) -> None:
    """Compare two raw disks. FIRST and SECOND are raw disks, .raw.zst files, or directories of builds.
    Nothing is mounted.

    Each line names the partition, the path, the property that differs, and its value on each disk. Exit
    status: 0 if the disks are equal bit by bit, 1 if they differ, 2 if they could not be compared.
    """
    from goldnode.disks.compare import differences
    from goldnode.disks.model import BuiltDisk

    paths = [BuiltDisk.load(path).path("raw") if path.is_dir() else path for path in (first, second)]
    found = differences(paths[0], paths[1])
    if as_json:
        click.echo(json.dumps([asdict(row) for row in found], indent=1))
    else:
        shown = found[:limit] if limit else found
        for row in shown:
            click.echo(str(row))
        if len(found) > len(shown):
            click.echo(f"… and {len(found) - len(shown)} more (--limit 0 shows all)")
        click.echo("the disks are equal, bit by bit" if not found else f"{len(found)} differences")
    if found:
        sys.exit(1)
