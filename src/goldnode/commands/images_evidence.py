"""`goldnode images evidence`, `verify` and `diff`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands import channel_moves as shared
from goldnode.commands.output import MATRIX, emit, image_store, reports


@click.command()
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@image_store()
@MATRIX
@shared.MADE_WITH
@click.option(
    "--against",
    metavar="IMAGE",
    help="Attach the differences to this earlier image, too. Only for one image.",
)
@reports("evidence")
def evidence(
    patterns: tuple[str, ...],
    store: Path | None,
    matrix_file: Path | None,
    made: shared.EvidenceKeys,
    against: str | None,
    form: str,
) -> None:
    """Write and attach SBOMs, provenance, reports and a signature.

    NAME is an image of the matrix, a backend, or a glob; without it, all images are used that are built from
    their current lock. Run this last: the signature covers the results of inspection and smoke tests, too.
    """
    from goldnode.core.errors import ImageError
    from goldnode.evidence import SHORT
    from goldnode.evidence.write import ImageEvidenceOptions, write
    from goldnode.images.imagelock import find_lock
    from goldnode.images.matrix import load_matrix
    from goldnode.images.names import find
    from goldnode.images.store import open_store

    kept = open_store(store)
    built = list(kept.built().values())
    signer, known, builder = shared.made_with(made)
    options = ImageEvidenceOptions(
        cache=kept.cache / "evidence",
        signer=signer,
        databases=known,
        against=find(kept.layout, against, built) if against else None,
        builder=builder,
    )
    matrix = load_matrix(matrix_file)
    rows = [
        row for row in matrix.select(patterns) if patterns or any(item.image == row.name for item in built)
    ]
    if against and len(rows) > 1:
        raise ImageError(
            f"--against is for one image, and {len(rows)} are named", remedy="name the one that it precedes"
        )
    told = []
    for row in rows:
        locks = [find_lock(item) for item in matrix.chain(row.name)]
        # An image whose lock and parents' locks are as they were may still have been built by other tools: the newest of these is meant.
        fits = [
            item
            for item in built
            if item.image == row.name and item.lock == locks[-1].digest and kept.layout.has(item.digest)
        ]
        if not fits:
            # A backend or a glob also matches images that are not built yet, and a name its parents.
            if row.name not in patterns:
                click.echo(f"{row.name}: not built from its present lock", err=True)
                continue
            raise ImageError(
                f"{row.name} is not built from its present lock",
                remedy=f"run `goldnode images build {row.name}`",
            )
        for item in fits:
            written = write(kept.layout, row.image, item, locks, options)
            told.append(
                {
                    "image": row.name,
                    "digest": item.digest,
                    "documents": [
                        {"type": one.kind, "state": one.state, "line": one.line} for one in written
                    ],
                }
            )
            if form == "text":
                click.echo(f"{row.name} {item.build_id} {item.digest}")
                for one in written:
                    click.echo(f"  {one.state:<8} {SHORT[one.kind]:<16} {one.line}")
    emit(form, {"results": told})
    if not told:
        click.echo("no image of the matrix is built from its present lock", err=True)
    shared.note_unsigned(signer)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@image_store()
@shared.TRUST
@click.option("--no-layers", is_flag=True, help="Check only the sizes of the layers, not their content.")
@click.option(
    "--export",
    "export_to",
    type=click.Path(file_okay=False, path_type=Path),
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

    kept, keys = open_store(store), shared.trusted(trust)
    built = list(kept.built().values())
    results = [
        check(kept.layout, find(kept.layout, name, built), keys, layers=not no_layers) for name in names
    ]
    if export_to is not None:
        for result in results:
            export(kept.layout, result.digest, export_to / result.digest.removeprefix("sha256:")[:12])
    shared.show_verified([(reference(kept.layout, result.digest), result) for result in results], form)


@click.command()
@click.argument("old")
@click.argument("new")
@image_store()
@shared.FILES
@click.option(
    "--attach", is_flag=True, help="Attach the differences to NEW. An existing signature does not cover them."
)
@reports("image-diff")
def diff(old: str, new: str, store: Path | None, files: bool, attach: bool, form: str) -> None:
    """Show the differences between two images.

    OLD and NEW are references in the store, digests, or images of the matrix. Packages, files, libraries,
    settings and sizes are compared. The exit status is 0 whether they differ or not.
    """
    from goldnode import evidence as kinds
    from goldnode.evidence.diff import compare_images
    from goldnode.evidence.write import examine
    from goldnode.images.names import find, reference
    from goldnode.images.store import open_store

    kept = open_store(store)
    built = list(kept.built().values())
    digests = [find(kept.layout, name, built) for name in (old, new)]
    was, now = (examine(kept.layout, digest, cache=kept.cache / "evidence") for digest in digests)
    shown = (reference(kept.layout, digests[0]), reference(kept.layout, digests[1]))
    difference = compare_images(was, now, shown)
    emit(form, difference.data(), lambda: difference.text(files=files))
    if attach:
        kept.layout.attach(digests[1], kinds.DIFF, compare_images(was, now).document())
        click.echo(f"attached to {digests[1]}", err=True)
