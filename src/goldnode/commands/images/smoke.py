"""Command `goldnode images smoke`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import (
    AS_DOCKER,
    DEVICES,
    RenamedOption,
    gpus_option,
    grouped,
    image_store,
    timeout_option,
)
from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError, ImageError

if TYPE_CHECKING:
    from goldnode.images.store import ImageStore


@dataclass(frozen=True)
class SmokeOptions:
    """Program, devices and tier of a smoke test. `limit` is in seconds."""

    engine: Any
    runner: str
    gpus: str | None
    devices: tuple[str, ...]
    tier: str
    limit: float


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@image_store()
@grouped(
    "how",
    SmokeOptions,
    click.option(
        "--engine",
        type=click.Choice(["auto", "docker", "chroot"]),
        default="auto",
        show_default=True,
        help="Program that runs the image.",
    ),
    click.option(
        "--runner",
        type=click.Choice(["image", "own"]),
        default="image",
        show_default=True,
        help="Use goldnode-smoke of the image, or this version's own.",
    ),
    gpus_option(f"{AS_DOCKER}. The gpu tier is then required"),
    DEVICES,
    click.option(
        "--tier",
        type=click.Choice(["cpu", "gpu", "all"]),
        default="all",
        show_default=True,
        help="Tests to run: those without a GPU, those with one, or both.",
    ),
    timeout_option(1800, "Time limit per image.", cls=RenamedOption, former={"--limit": None}),
)
@click.option("--no-attach", is_flag=True, help="Do not attach the results to the images.")
@reports("smoke-records", json_flag=True)
def smoke(
    names: tuple[str, ...],
    store: Path | None,
    how: SmokeOptions,
    no_attach: bool,
    form: str,
) -> None:
    """Run the smoke tests inside images.

    NAME is an image of the matrix, a name in the store (cuda:12.4.1-runtime-debian12-BUILDID) or a digest. The
    results are attached to the images.

    Exit status: 0 all requested tiers passed, 2 a test failed, 3 a test could not be run.
    """
    from goldnode.gpuprogram.command import BAD, OK, UNKNOWN
    from goldnode.gpuprogram.smoke import report
    from goldnode.images.smoke import inside, record
    from goldnode.images.store import open_store

    gpus, tier = how.gpus, how.tier
    if gpus is not None and gpus != "all" and not gpus.isdigit():
        raise ImageError(f'"{gpus}" is no number of GPUs', remedy="write all, or a number")
    opened = open_store(store)
    by_name = {name: opened.layout.image(digest_of(opened, name)) for name in names}
    arguments = ["--tier", tier] if tier != "all" else []
    if gpus is not None and gpus != "all":
        arguments += ["--gpus", gpus]
    ask = inside.Ask(tuple(arguments), how.runner == "own", gpus, how.devices, how.limit)
    records: dict[str, Any] = {}
    for name, image in by_name.items():
        try:
            result = inside.smoke(image, ask, how.engine)
        except GoldnodeError as problem:
            # An image that does not start is a result: the others are still tested.
            click.echo(f"{name}: error: {problem}", err=True)
            result = record.missing(image.labels.get("io.goldnode.backend", "cpu"), problem.message)
        # A GPU was passed, so a run without a GPU test is not a success.
        if tier != "gpu" and ask.hardware and not result["tiers"]["gpu"]["tests"]:
            result = record.summed(result, ("cpu", "gpu"))
        records[name] = result
        if not no_attach:
            record.attach(image, result)
        if form == "text":
            click.echo(f"{name} ({image.digest})")
            click.echo(report.text(result))
    emit(form, {"records": records})
    codes = {result["exit_code"] for result in records.values()}
    # A failure outweighs what could not be run.
    if BAD in codes:
        sys.exit(BAD)
    sys.exit(OK if codes == {OK} else UNKNOWN)


def digest_of(store: ImageStore, name: str) -> str:
    """Return the manifest digest of an image of the matrix (its latest build), of a name in the layout, or of a digest."""
    if name.startswith("sha256:"):
        return name
    refs = store.layout.refs()
    if name in refs:
        return refs[name].digest
    builds = [built for built in store.built().values() if built.image == name]
    if builds:  # the one that was built last
        return max(builds, key=store.recorded).digest
    from goldnode.images.matrix import absent

    known = {*refs, *(built.image for built in store.built().values())}
    raise ImageError(f"{name} is not built here", remedy=absent(name, known))
