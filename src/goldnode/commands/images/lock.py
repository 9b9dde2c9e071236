"""Command `goldnode images list` and `lock`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import MATRIX, LockOptions, lock_options, out_directory
from goldnode.commands.output import emit, reports, say, table

_PATTERNS = click.argument("patterns", nargs=-1, metavar="[NAME]...")


@click.command("list")
@_PATTERNS
@MATRIX
@reports("images")
def list_(patterns: tuple[str, ...], matrix_file: Path | None, form: str) -> None:
    """List the images of the matrix with their locks.

    NAME is an image, a backend, or a glob.
    """
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
    lines = [("image", "parent", "lock", "adds (MB)", "publish", "")]
    lines += [
        (
            row.name,
            row.image.parent or "-",
            state,
            f"{size / 1e6:.1f}",
            row.redistribution,
            "" if row.exercised else "declared, not exercised",
        )
        for row, state, size in rows
    ]
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
    emit(form, {"images": document}, table(lines))


@click.command()
@_PATTERNS
@MATRIX
@lock_options(
    "Upgrade the named images to the newest versions in archives and indexes.",
    click.option(
        "--offline",
        is_flag=True,
        help="Use the cached archive indexes without refreshing them, and the locked wheels.",
    ),
)
@out_directory("where each lock is searched first")
@reports("image-locks")
def lock(
    patterns: tuple[str, ...],
    matrix_file: Path | None,
    how: LockOptions,
    out: Path | None,
    form: str,
) -> None:
    """Resolve the packages and wheels of images and write their locks.

    NAME is an image, a backend, or a glob; without it, all exercised images are locked. Those on an OS that is not
    released are locked only by name or glob. A usable lock is not changed. Versions change only where they have
    left their archive, or with --upgrade.
    """
    from goldnode.images.locking import check_images, line, lock_images

    how.check()
    rows: list[dict[str, Any]] = []
    if how.only_check:
        for name, problems in check_images(patterns, matrix_file=matrix_file, offline=how.offline):
            rows.append({"image": name, "problems": problems})
            if form == "text":
                click.echo("\n".join(f"{name}: {problem}" for problem in problems or ["good"]))
        emit(form, {"locks": rows})
        wrong = sum(bool(row["problems"]) for row in rows)
        if wrong:
            say(f"error: {wrong} locks are unusable. Run `goldnode images lock`.")
            sys.exit(1)
        return
    for done in lock_images(
        patterns, matrix_file=matrix_file, upgrade=how.upgrade, offline=how.offline, out=out
    ):
        rows.append({"image": done.lock.image, "changed": done.changed, "digest": done.lock.digest})
        if form == "text":
            click.echo(line(done))
    emit(form, {"locks": rows})
