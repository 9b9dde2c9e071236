"""Sources of apt inside an image for Dockerfiles: the archives of its lock, where the site has them.

A lock has no addresses, and neither has this project: an address is that of the site file, or of
the apt of the machine that builds. So such an image has another digest where the archives are
elsewhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from goldnode.catalog.load import Catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core import keys
from goldnode.core.site import Site, load_site
from goldnode.images.imagelock import ImageLock
from goldnode.images.matrix import MatrixSystem
from goldnode.lock.archive_keys import judge_keys
from goldnode.lock.archives import ArchivePlaces
from goldnode.lock.model import LockedArchive


def apt_sources(
    system: MatrixSystem,
    lock: ImageLock,
    *,
    catalog: Catalog | None = None,
    site: Site | None = None,
) -> str:
    """Return the text of a .sources file (deb822) with the archives of `lock`.

    A site's `snapshot` of an archive is used with the day of the lock, so that apt installs what
    fits the image's packages. Raises SiteError if no address is known.
    """
    catalog = catalog or load_catalog()
    site = site or load_site()
    places = ArchivePlaces(catalog, site, system.os)
    judge_keys([archive.id for archive in lock.archives], places, dt.datetime.now(tz=dt.UTC).date())
    blocks = ("\n".join(_block(archive, lock, places)) for archive in lock.archives)
    return "\n\n".join(["# Written by goldnode for the archives of the lock.", *blocks]) + "\n"


def _block(archive: LockedArchive, lock: ImageLock, places: ArchivePlaces) -> Iterator[str]:
    snapshot = places.snapshot(archive.id, lock.resolved)
    yield "Types: deb"
    if snapshot is None:
        yield f"URIs: {places.address(archive.id)}"
    else:
        yield f"URIs: {snapshot}"
        yield "Check-Valid-Until: no"  # the signature of a snapshot is as old as the snapshot
    yield f"Suites: {archive.suite}"
    if archive.components:
        yield f"Components: {' '.join(archive.components)}"
    key, _ = places.key(archive.id)
    if key is None:
        yield f"Signed-By: {places.catalog.archives[archive.id].item.keyring}"
        return
    yield "Signed-By:"
    for line in keys.armor(key).decode().strip().splitlines():
        yield f" {line or '.'}"
