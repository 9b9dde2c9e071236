"""Command `goldnode disks compare`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from goldnode.commands.options import RenamedOption
from goldnode.commands.output import emit, reports


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option(
    "--lines",
    "limit",
    cls=RenamedOption,
    former={"--limit": None},
    type=click.IntRange(0),
    default=50,
    show_default=True,
    metavar="N",
    help="Number of differences to show as text; 0 shows all.",
)
@reports("disk-comparison", json_flag=True)
def compare(first: Path, second: Path, limit: int, form: str) -> None:
    """Compare two raw disks byte by byte.

    FIRST and SECOND are raw disks, .raw.zst files, or directories of builds. Nothing is mounted. Each difference
    has the partition, the path, the property that differs, and its value on each disk.

    Exit status: 0 equal, 1 different, 2 could not be compared.
    """
    from goldnode.disks.compare import differences
    from goldnode.disks.model import BuiltDisk

    paths = [
        BuiltDisk.load(path).path("raw") if path.is_dir() else path for path in (first, second)
    ]
    differing = differences(paths[0], paths[1])
    shown = differing[:limit] if limit else differing
    lines = [str(row) for row in shown]
    if len(differing) > len(shown):
        lines.append(f"… and {len(differing) - len(shown)} more (--lines 0 shows all)")
    lines.append(
        "the disks are equal, bit by bit" if not differing else f"{len(differing)} differences"
    )
    emit(form, {"differences": [asdict(row) for row in differing]}, "\n".join(lines))
    if differing:
        sys.exit(1)
