"""Image names in a store: a digest, a reference, a name of the matrix, or the beginning of a reference."""

from __future__ import annotations

from collections.abc import Iterable

from goldnode.core.errors import ImageError
from goldnode.images.matrix import absent
from goldnode.oci.identity import names_of
from goldnode.oci.layout import Layout
from goldnode.oci.model import Built


def find(layout: Layout, name: str, built: Iterable[Built] = ()) -> str:
    """Return the digest of the image that `name` identifies. Raises ImageError for no match or several."""
    if name.startswith("sha256:"):
        if not layout.has(name):
            raise ImageError(
                f"{name} is not in {layout.root}", remedy="pull it, or name another --store"
            )
        return name
    refs = layout.refs()
    if name in refs:
        return refs[name].digest
    here = {ref: item.digest for ref, item in refs.items() if name in names_of(layout, item.digest)}
    here |= {
        f"{item.image} ({item.build_id})": item.digest
        for item in built
        if item.image == name and layout.has(item.digest)
    }
    here |= {
        f"{item.image}-{item.build_id}": item.digest
        for item in built
        if name in (item.build_id, f"{item.image}-{item.build_id}")
    }
    digests = sorted(set(here.values()))
    if len(digests) == 1:
        return digests[0]
    if digests:
        shown = ", ".join(sorted(here)[:6])
        raise ImageError(
            f"{name} means {len(digests)} images of {layout.root}: {shown}",
            remedy="name one of them with its build id",
        )
    known = [*refs, *(item.image for item in built)]
    raise ImageError(f"{name} is not in {layout.root}", remedy=absent(name, known))


def reference(layout: Layout, digest: str) -> str:
    """Return the name to show for a digest: its longest reference, which includes the build id."""
    names = sorted(name for name, item in layout.refs().items() if item.digest == digest)
    return max(names, key=len, default=digest)
