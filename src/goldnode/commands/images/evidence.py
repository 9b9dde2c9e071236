"""Command `goldnode images evidence`, `verify` and `diff`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands import channel_moves as shared
from goldnode.commands.options import DIRECTORY, MATRIX, REGISTRY, grouped, image_store
from goldnode.commands.output import emit, reports
from goldnode.core.errors import ImageError

if TYPE_CHECKING:
    from goldnode.evidence.contents import EvidenceLock
    from goldnode.images.matrix import ImageMatrix
    from goldnode.images.store import ImageStore
    from goldnode.oci.model import Built, ImageSpec


@dataclass(frozen=True)
class _EvidenceAbout:
    """Options of `goldnode images evidence`: the earlier image, the registry, and the reports of scanners."""

    against: str | None
    to: str | None
    scans: tuple[str, ...]


_ABOUT = grouped(
    "about",
    _EvidenceAbout,
    click.option(
        "--against",
        metavar="IMAGE",
        help="Attach the differences to this earlier image, too. Only for one image.",
    ),
    REGISTRY,
    click.option(
        "--scan-report",
        "scans",
        multiple=True,
        metavar="KIND=FILE[@DATE]",
        help=(
            "Report of a scanner about the image, with the date of its database; KIND is grype, trivy or "
            "osv-scanner. Only for one image. Repeatable."
        ),
    ),
)


@click.command()
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@image_store()
@MATRIX
@shared.MADE_WITH
@_ABOUT
@reports("evidence")
def evidence(
    patterns: tuple[str, ...],
    store: Path | None,
    matrix_file: Path | None,
    made: shared.EvidenceKeys,
    about: _EvidenceAbout,
    *,
    form: str,
) -> None:
    """Write and attach SBOMs, provenance, reports and a signature.

    NAME is an image of the matrix, a backend, a glob, or a derived image; without it, all images are used that
    are built from their current lock. Run this last: the signature covers the results of inspection and smoke
    tests, too. The signature for cosign and podman names the repository of the image in the registry --to.
    """
    from goldnode.evidence import SHORT
    from goldnode.evidence.scan_reports import load_report
    from goldnode.evidence.write import ImageEvidenceOptions, write
    from goldnode.images.matrix import load_matrix
    from goldnode.images.names import find
    from goldnode.images.store import open_store
    from goldnode.oci.registry import registry_address

    opened = open_store(store)
    built = list(opened.built().values())
    signer, known, builder = shared.made_with(made)
    options = ImageEvidenceOptions(
        cache=opened.cache / "evidence",
        signer=signer,
        databases=(*known, *(load_report(text) for text in about.scans)),
        against=find(opened.layout, about.against, built) if about.against else None,
        builder=builder,
        registry=str(registry_address(about.to)) if about.to else "",
    )
    # A list, so that a wrong name fails before anything is attached.
    todo = list(_chosen(opened, load_matrix(matrix_file), patterns))
    images = {image.name for image, _, _ in todo}
    if about.against and len(images) > 1:
        raise ImageError(
            f"--against is for one image, and {len(images)} are named",
            remedy="name the one that it precedes",
        )
    if about.scans and len(images) > 1:
        raise ImageError(
            f"--scan-report is for one image, and {len(images)} are named",
            remedy="name the one that was scanned",
        )
    lines = []
    for image, item, locks in todo:
        written = write(opened.layout, image, item, locks, options)
        lines.append(
            {
                "image": image.name,
                "digest": item.digest,
                "documents": [
                    {"type": one.kind, "state": one.state, "line": one.line} for one in written
                ],
            }
        )
        if form == "text":
            click.echo(f"{image.name} {item.build_id} {item.digest}")
            for one in written:
                click.echo(f"  {one.state:<8} {SHORT[one.kind]:<16} {one.line}")
    emit(form, {"results": lines})
    if not lines:
        click.echo("no image of the matrix is built from its present lock", err=True)
    shared.note_unsigned(signer)


def _chosen(
    store: ImageStore, matrix: ImageMatrix, patterns: tuple[str, ...]
) -> Iterator[tuple[ImageSpec, Built, list[EvidenceLock]]]:
    """Yield the builds that `patterns` select, each with its image and the locks of its ancestors and its own."""
    from goldnode.images.imagelock import find_lock
    from goldnode.images.locked_packages import derived_builds

    built = list(store.built().values())
    # A name means the newest build. Without the locks of its base, an older one would lose evidence.
    known = list(derived_builds(store))
    newest = {image.name: item for image, item, _ in known}
    derived = [
        row
        for row in known
        if row[0].ref(row[1].build_id) in patterns
        or (newest[row[0].name] is row[1] and (not patterns or row[0].name in patterns))
    ]
    taken = {name for image, item, _ in derived for name in (image.name, image.ref(item.build_id))}
    named = tuple(name for name in patterns if name not in taken)
    rows = [] if patterns and not named else matrix.select(named)
    for row in rows:
        # Without names, images that were never built are not worth a line.
        if not patterns and all(item.image != row.name for item in built):
            continue
        locks = [find_lock(item) for item in matrix.chain(row.name)]
        # An image whose lock and parents' locks are as they were may still have been built by other tools: the newest of these is meant.
        fits = [
            item
            for item in built
            if item.image == row.name
            and item.lock == locks[-1].digest
            and store.layout.has(item.digest)
        ]
        # A backend or a glob also matches images that are not built yet, and a name its parents.
        if not fits and row.name not in patterns:
            click.echo(f"{row.name}: not built from its present lock", err=True)
        elif not fits:
            raise ImageError(
                f"{row.name} is not built from its present lock",
                remedy=f"run `goldnode images build {row.name}`",
            )
        for item in fits:
            yield row.image, item, [*locks]
    yield from derived


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@image_store()
@shared.TRUST
@click.option(
    "--no-layers", is_flag=True, help="Check only the sizes of the layers, not their content."
)
@click.option(
    "--export",
    "export_to",
    type=DIRECTORY,
    metavar="DIR",
    help="Also write the manifest and all documents to this directory for other tools, verified or not.",
)
@reports("verification")
def verify(
    names: tuple[str, ...],
    store: Path | None,
    trust: tuple[Path, ...],
    no_layers: bool,
    export_to: Path | None,
    *,
    form: str,
) -> None:
    """Verify the content, the evidence and the signatures of images.

    NAME is a reference in the store, a digest, or an image of the matrix.

    Exit status: 0 verified, 1 not verified.
    """
    from goldnode.evidence.verify import export
    from goldnode.evidence.verify import verify as check
    from goldnode.images.names import find, reference
    from goldnode.images.store import open_store

    opened, keys = open_store(store), shared.trusted(trust)
    built = list(opened.built().values())
    results = [
        check(opened.layout, find(opened.layout, name, built), keys, layers=not no_layers)
        for name in names
    ]
    if export_to is not None:
        for result in results:
            export(
                opened.layout, result.digest, export_to / result.digest.removeprefix("sha256:")[:12]
            )
    shared.show_verified(
        [(reference(opened.layout, result.digest), result) for result in results], form
    )


@click.command()
@click.argument("old")
@click.argument("new")
@image_store()
@shared.FILES
@click.option(
    "--attach",
    is_flag=True,
    help="Attach the differences to NEW. An existing signature does not cover them.",
)
@reports("image-diff")
def diff(old: str, new: str, store: Path | None, files: bool, attach: bool, *, form: str) -> None:
    """Show the differences between two images.

    OLD and NEW are references in the store, digests, or images of the matrix. Packages, files, libraries,
    settings and sizes are compared. The exit status is 0 whether they differ or not.
    """
    from goldnode import evidence as kinds
    from goldnode.evidence.diff import compare_images
    from goldnode.evidence.write import examine
    from goldnode.images.names import find, reference
    from goldnode.images.store import open_store

    opened = open_store(store)
    built = list(opened.built().values())
    digests = [find(opened.layout, name, built) for name in (old, new)]
    was, now = (
        examine(opened.layout, digest, cache=opened.cache / "evidence") for digest in digests
    )
    shown = (reference(opened.layout, digests[0]), reference(opened.layout, digests[1]))
    # The shown names depend on the store; the attached document below has none.
    difference = compare_images(was, now, shown)
    emit(form, difference.data(), lambda: difference.text(files=files))
    if attach:
        opened.layout.attach(digests[1], kinds.DIFF, compare_images(was, now).document())
        click.echo(f"attached to {digests[1]}", err=True)
