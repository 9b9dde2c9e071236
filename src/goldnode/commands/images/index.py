"""Command `goldnode images index`."""

from __future__ import annotations

import click

from goldnode.channels.product import Location
from goldnode.commands.images.publish import AT
from goldnode.commands.output import emit, reports


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@AT
@reports("published-index")
def index(names: tuple[str, ...], location: Location, form: str) -> None:
    """Publish one tag for the builds of an image for several architectures.

    NAME is an image of the matrix, whose builds for every architecture are listed, or REPOSITORY:TAG of each
    build. The builds must be published. The tag ends with the beginning of the index's digest; it is never
    given to other content.
    """
    from goldnode.images.matrix import load_matrix
    from goldnode.images.platform_index import publish_index
    from goldnode.images.product import ImageProduct

    product, matrix = ImageProduct(location), load_matrix()
    wanted = [
        each
        for name in names
        for each in (matrix.architectures(name) if ":" not in name else [name])
    ]
    refs = list(dict.fromkeys(ref for name in wanted for ref in product.builds(name)))
    with product.registry() as (where, registry):
        published = publish_index(product.store, refs, where, registry)
    lines = [
        f"{published.name}@{published.digest}  {'there already' if published.before else 'published'}"
    ]
    lines += [f"  {platform}  {digest}" for platform, digest in sorted(published.platforms.items())]
    emit(form, vars(published), "\n".join(lines))
