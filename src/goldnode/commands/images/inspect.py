"""Command `goldnode images inspect`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import BACKEND, POLICY, grouped, image_store
from goldnode.commands.output import emit, reports
from goldnode.node.ground.optional import optional


@dataclass(frozen=True)
class ScanOptions:
    """Which store has the images and cached scans, and how to scan."""

    store: Path | None
    jobs: int
    fresh: bool


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="PATH|IMAGE...")
@BACKEND
@POLICY
@grouped(
    "scan",
    ScanOptions,
    image_store(),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        show_default="number of processors, at most 4",
        help="Number of processes that scan layers and wheels.",
    ),
    click.option("--fresh", is_flag=True, help="Ignore cached scans of layers."),
)
@click.option("--no-attach", is_flag=True, help="Do not attach the result to the image.")
@reports("inspections", json_flag=True)
def inspect(
    targets: tuple[str, ...],
    backend: str | None,
    policy: Path | None,
    scan: ScanOptions,
    no_attach: bool,
    *,
    form: str,
) -> None:
    """Inspect images for content of another backend and for wrong tags.

    PATH is a wheel, a directory of wheels, a root (directory or tar), an OCI layout, a saved image or a raw
    disk. IMAGE is a name, a reference or a digest in the store. Nothing is unpacked or run.

    Exit status: 0 passed, 1 refused, 2 could not be judged.
    """
    from goldnode.core.errors import ImageError
    from goldnode.gpuprogram.smoke import pack
    from goldnode.images.locked_packages import locked_in
    from goldnode.images.matrix import absent
    from goldnode.images.store import open_store
    from goldnode.inspect import examine, report
    from goldnode.inspect import policy as policies
    from goldnode.inspect import targets as sources

    rules = policies.load(policy)
    if backend is not None:
        rules.backend(backend)
    # Paths alone need no store, and must not create one.
    if scan.store is not None or any(not Path(name).exists() for name in targets):
        opened = open_store(scan.store)
    else:
        opened = None
    results: list[dict[str, Any]] = []
    passed, complete = True, True
    for name in targets:
        cache = None if scan.fresh or opened is None else opened.cache
        for target in sources.find(
            name, None if opened is None else opened.layout, cache, jobs=scan.jobs, absent=absent
        ):
            inspection, truth = examine(
                target, rules, backend, own=pack.own(), locked=locked_in(opened)
            )
            # All targets are inspected and printed first; a verdict without a backend is none.
            complete = complete and bool(inspection.backend)
            passed = passed and inspection.passed and (truth is None or truth.passed)
            if (
                target.image is not None
                and opened is not None
                # Only the store's own images: a layout of others is not written to.
                and target.image.layout is opened.layout
                and not no_attach
                and inspection.backend
            ):
                report.attach(target.image, inspection, truth)
            results.append(
                {
                    "name": inspection.name,
                    "kind": target.kind,
                    "inspection": report.inspection_document(inspection),
                    "truth": optional(report.truth_document, truth),
                }
            )
            if form == "text":
                click.echo("\n".join(report.text(inspection, truth)))
    emit(form, {"results": results})
    if not complete:
        raise ImageError(
            "the backend of some of the content is unknown, so there is no verdict",
            remedy="name it with --backend",
        )
    if not passed:
        sys.exit(1)
