"""`goldnode images list` and `lock`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

_PATTERNS = click.argument("patterns", nargs=-1, metavar="[NAME]…")
_MATRIX = click.option(
    "--matrix",
    "matrix_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Matrix file; default: $GOLDNODE_MATRIX, else goldnode's own.",
)


@click.command("list")
@_PATTERNS
@_MATRIX
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_(patterns: tuple[str, ...], matrix_file: Path | None, form: str) -> None:
    """List the images of the matrix with their parents. NAME is an image, a backend, or a glob."""
    from goldnode.core.errors import ImageError
    from goldnode.images.imagelock import find_lock, lock_file
    from goldnode.images.matrix import load_matrix

    rows = []
    for row in load_matrix(matrix_file).select(patterns):
        try:
            lock = find_lock(row)
            state, size = f"locked {lock.resolved}", lock.size
        except ImageError:
            state, size = ("stale" if lock_file(row) is not None else "no lock"), 0
        rows.append((row, state, size))
    if form == "json":
        document = [
            {
                "name": row.name,
                "backend": row.image.backend,
                "version": row.image.version,
                "flavour": row.image.flavour,
                "os": row.image.os,
                "parent": row.image.parent,
                "parts": dict(row.parts),
                "min_driver": row.min_driver,
                "redistribution": row.redistribution,
                "licences": list(row.licences),
                "exercised": row.exercised,
                "lock": state,
                "fetched_bytes": size,
            }
            for row, state, size in rows
        ]
        click.echo(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
        return
    table = [("image", "stands on", "lock", "adds (MB)", "publish", "")]
    for row, state, size in rows:
        note = "" if row.exercised else "declared, not exercised"
        table.append(
            (row.name, row.image.parent or "-", state, f"{size / 1e6:.1f}", row.redistribution, note)
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@click.command()
@_PATTERNS
@_MATRIX
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; tell what vanished or changed. Exit 1: a lock is not good as it is.",
)
@click.option(
    "--upgrade", is_flag=True, help="Let the named images move to what archives and indexes have now."
)
@click.option(
    "--offline",
    is_flag=True,
    help="Use the archive indexes of the cache as they are, and keep wheels as they are locked.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to; default: where each lock is searched first.",
)
def lock(
    patterns: tuple[str, ...],
    matrix_file: Path | None,
    only_check: bool,
    upgrade: bool,
    offline: bool,
    out: Path | None,
) -> None:
    """Resolve images with apt and pip and write NAME.lock.yml; without NAME, all that this project builds.

    A lock that is good is kept as it is. Versions move only where they left their archive, or with --upgrade.
    """
    from goldnode.images.locking import check_images, lock_images

    if only_check and upgrade:
        raise click.UsageError("--check and --upgrade exclude each other")
    if only_check:
        wrong = 0
        for name, problems in check_images(patterns, matrix_file=matrix_file, offline=offline):
            for problem in problems:
                click.echo(f"{name}: {problem}")
            wrong += bool(problems)
            if not problems:
                click.echo(f"{name}: good")
        if wrong:
            click.echo(
                f"error: {wrong} locks are not good as they are. Run `goldnode images lock`.", err=True
            )
            sys.exit(1)
        return
    for line in lock_images(patterns, matrix_file=matrix_file, upgrade=upgrade, offline=offline, out=out):
        click.echo(line)
