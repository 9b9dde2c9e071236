"""Command `goldnode images build`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from goldnode.commands.options import MATRIX, BuildOptions, build_options, image_store
from goldnode.commands.output import emit, reports, say
from goldnode.core import progress

Say = Callable[[str, str, float], None]


@click.command()
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@MATRIX
@image_store("store_path")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["buildkit", "buildah"]),
    show_default="$GOLDNODE_IMAGE_ENGINE, else the one that is installed",
    help="Build engine.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    show_default="number of processors",
    help="Number of parallel downloads and build steps.",
)
@build_options("digests")
@reports("image-builds")
def build(
    patterns: tuple[str, ...],
    matrix_file: Path | None,
    store_path: Path | None,
    engine_name: str | None,
    jobs: int | None,
    *,
    how: BuildOptions,
    form: str,
) -> None:
    """Build images from their locks, without a network.

    NAME is an image of the matrix, a backend, or a glob; without it, all exercised images are built. Those on an OS
    that is not released are built only by name or glob. Parents are built first. Existing builds are not built
    again. Downloads come before the build. Requires root.

    Exit status: 0 built, 1 two builds differ (with --twice), 2 an error.
    """
    from goldnode.core.files import second_build
    from goldnode.images import build as building
    from goldnode.images.imagelock import find_lock, lock_file
    from goldnode.images.matrix import load_matrix
    from goldnode.images.resolve import fetch_all, make_all
    from goldnode.images.store import open_store
    from goldnode.oci import emulation, engines

    started = time.monotonic()
    jobs = jobs or os.cpu_count() or 1
    rows = load_matrix(matrix_file).select(patterns, exercised=True)
    store = open_store(store_path)
    engine = engines.choose(engine_name, store=store.cache)
    # A pattern skips images that this project has never locked; naming one is an error.
    left = {
        row.name: "is declared and has no lock"
        for row in rows
        if not row.exercised and row.name not in patterns and lock_file(row) is None
    }
    # Emulation takes minutes per image, so a run without names leaves it out.
    left |= {
        row.name: f"is for {row.architecture}, which this machine emulates at best: name it to build it"
        for row in rows
        if not emulation.native(row.architecture)
        and row.name not in patterns
        # A glob or a backend selects foreign images where an emulator is registered.
        and not (patterns and emulation.runnable(row.architecture))
    }
    for name, why in sorted(left.items()):
        click.echo(f"left out: {name} {why}", err=True)
    locks = [
        (row, find_lock(row))
        for row in rows
        # An image without its parent cannot be built.
        if row.name not in left and row.image.parent not in left
    ]
    recipes = building.recipes(locks, engines.tools(engine), building.smoke_program())
    builder = building.Builder(store, engine, jobs)
    pending = builder.pending(recipes)
    waiting = {item.image.name for item in pending}
    if how.dry_run:
        states = [
            (recipe, "to be built" if recipe.image.name in waiting else "is there")
            for recipe in recipes
        ]
        emit(
            form,
            {
                "dry_run": True,
                "images": [
                    {
                        "image": recipe.image.name,
                        "ref": recipe.ref,
                        "built": recipe.image.name not in waiting,
                    }
                    for recipe, _ in states
                ],
            },
            "\n".join(f"{recipe.ref}  {state}" for recipe, state in states),
        )
        return
    if pending and not how.offline:
        with progress.downloads(each=False) as watcher:
            # Sizes are enough here (`verify=False`): the build hashes each file that it takes.
            fetch_all(
                [(row, lock) for row, lock in locks if row.name in waiting],
                store.pool,
                watcher,
                verify=False,
            )
    # goldnode's own packages are made, not downloaded.
    if pending and how.offline:
        make_all([lock for row, lock in locks if row.name in waiting], store.pool, verify=False)
    with progress.steps() as show:
        builder.say = show
        built = builder.build(recipes)
    seconds = time.monotonic() - started
    results = [
        {
            "image": item.image,
            "ref": recipe.ref,
            "build_id": item.build_id,
            "digest": item.digest,
            "recipe": item.recipe,
            "lock": item.lock,
            "tools": item.tools,
            "built": item.image in waiting,
        }
        for item, recipe in zip(built, recipes, strict=True)
    ]
    emit(
        form,
        {"dry_run": False, "images": results},
        "\n".join(
            f"{recipe.ref}  {item.digest}  {'built' if item.image in waiting else 'is there'}"
            for item, recipe in zip(built, recipes, strict=True)
        ),
    )
    say(
        f"{len(waiting)} of {len(built)} images built in {seconds:.1f} s with {engine.name} {engine.version}"
    )
    if how.twice:
        with second_build(store.cache / "twice") as place, progress.steps() as show:
            differences = building.twice(store, recipes, engine, place, jobs=jobs, say=show)
        for row in differences:
            click.echo(
                f"error: {row.image} is not the same when it is built twice: {row.what}", err=True
            )
        if differences:
            click.echo(f"the second build is in {place}", err=True)
            sys.exit(1)
        click.echo(f"{len(recipes)} images built twice: every digest is the same", err=True)
