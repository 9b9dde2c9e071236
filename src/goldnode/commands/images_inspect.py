"""`goldnode images inspect`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="PATH|IMAGE…")
@click.option("--backend", help="Policy to hold it against; default: what the image says of itself.")
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another purity.yml, with a site's own waivers.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of images; default: $GOLDNODE_IMAGES, .goldnode/images.",
)
@click.option(
    "--jobs",
    type=click.IntRange(0),
    default=0,
    help="Processes that scan layers and wheels; default: one per processor, at most four.",
)
@click.option("--fresh", is_flag=True, help="Scan layers again that were scanned before.")
@click.option("--no-attach", is_flag=True, help="Do not attach the result to the image.")
@click.option("--json", "as_json", is_flag=True, help="Print the documents instead of text.")
def inspect(
    targets: tuple[str, ...],
    backend: str | None,
    policy: Path | None,
    store: Path | None,
    jobs: int,
    fresh: bool,
    no_attach: bool,
    as_json: bool,
) -> None:
    """Search for content that is foreign to the backend, and validate an image's tag against its content.

    PATH is a wheel, a directory of wheels, a root (directory or tar), an OCI layout, a saved image or a raw
    disk; IMAGE is a name, reference or digest in the store. Nothing is unpacked or run. Exit status: 0
    passed, 1 refused, 2 could not be judged.
    """
    from goldnode.core.errors import ImageError
    from goldnode.images.locked_packages import locked
    from goldnode.images.matrix import absent
    from goldnode.images.store import open_store
    from goldnode.inspect import examine, report
    from goldnode.inspect import policy as policies
    from goldnode.inspect import targets as sources

    rules = policies.load(policy)
    if backend is not None:
        rules.backend(backend)
    kept = (
        open_store(store) if store is not None or any(not Path(name).exists() for name in targets) else None
    )
    results: list[dict[str, Any]] = []
    passed, told = True, True
    for name in targets:
        cache = None if fresh or kept is None else kept.cache
        for target in sources.find(
            name, None if kept is None else kept.layout, cache, jobs=jobs, absent=absent
        ):
            found, truth = examine(target, rules, backend, locked=locked)
            told = told and bool(found.backend)
            passed = passed and found.passed and (truth is None or truth.passed)
            if (
                target.image is not None
                and kept is not None
                and target.image.layout is kept.layout
                and not no_attach
                and found.backend
            ):
                report.attach(target.image, found, truth)
            if as_json:
                results.append(
                    {
                        "name": found.name,
                        "kind": target.kind,
                        "inspection": report.inspection_document(found),
                        "truth": None if truth is None else report.truth_document(truth),
                    }
                )
            else:
                click.echo("\n".join(report.text(found, truth)))
    if as_json:
        click.echo(json.dumps(results, indent=1, sort_keys=True))
    if not told:
        raise ImageError(
            "of some of it the backend is not known, so that there is no verdict",
            remedy="name it with --backend",
        )
    if not passed:
        sys.exit(1)
