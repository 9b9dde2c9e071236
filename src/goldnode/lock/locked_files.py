"""Debian packages and wheels as image locks record them: from apt's choice to rows, and from rows
to downloaded files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, archive_url
from goldnode.lock.aptroot import AptRoot, Download, Stanza
from goldnode.lock.fetch import FetchFault, FileToFetch, address
from goldnode.lock.model import LockModel, Sha256
from goldnode.node.ground.text import and_more

MADE = "goldnode"  # in place of an archive's id: this package is made, not fetched


class LockedDeb(LockModel):
    """One Debian package. `path` is relative to its archive, `size` in bytes, `why` the package that needs it.

    `provides` is given for one that goldnode makes itself (archive MADE, see `hostpackage`): all
    that its file is made of.
    """

    name: str
    version: str
    architecture: str
    sha256: Sha256
    size: int
    path: str
    archive: str
    why: str
    provides: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        # Locks without such a package keep their digests.
        fields: dict[str, object] = handler(self)
        provides = fields.pop("provides", ())
        return {**fields, "provides": [*self.provides]} if provides else fields

    @property
    def made(self) -> bool:
        """Return whether goldnode makes it; no archive has it."""
        return self.archive == MADE

    @property
    def file(self) -> str:
        """Return the file's name, in the archive and in a pool."""
        return self.path.rpartition("/")[2]


class LockedWheel(LockModel):
    """One wheel, by the name of its file; `size` in bytes, `why` the wheel that needs it."""

    name: str
    version: str
    file: Annotated[str, Field(pattern=r"^[^/]+\.whl$")]
    sha256: Sha256
    size: int
    why: str


@dataclass(frozen=True)
class MovedFile:
    """Locked file that differs from the lock: `vanished`, `changed`, or (not a fault) `newer`."""

    kind: str
    name: str
    message: str


def kept_versions(debs: Iterable[LockedDeb], root: AptRoot) -> dict[str, str]:
    """Return package -> version of the locked packages that the archives still have."""
    debs = list(debs)
    offered = root.offered(deb.name for deb in debs)
    return {deb.name: deb.version for deb in debs if deb.version in offered.get(deb.name, {})}


def locked_debs(
    root: AptRoot,
    downloads: Sequence[Download],
    stanzas: Mapping[str, Stanza],
    reasons: Mapping[str, str],
    elsewhere: Mapping[str, tuple[str, str]] | None = None,
) -> list[LockedDeb]:
    """Return apt's choice as rows of a lock. `elsewhere` has archive and path of packages that are
    in none of the root's sources.
    """
    # Archives that share an address, as Ubuntu's do, differ by their suites.
    several = len({source.uri for source in root.sources}) < len(root.sources)
    suites = root.suites(item.name for item in downloads) if several else {}
    debs = []
    for item in downloads:
        stanza = stanzas[item.name]
        archive, path = (elsewhere or {}).get(item.name) or root.archive_of(item, suites)
        debs.append(
            LockedDeb(
                name=item.name,
                version=stanza["Version"],
                architecture=stanza["Architecture"],
                sha256=item.sha256,
                size=item.size,
                path=path,
                archive=archive,
                why=reasons.get(item.name, "chosen by apt"),
            )
        )
    return debs


def moved(deb: LockedDeb, offered: Mapping[str, Mapping[str, Collection[str]]]) -> list[MovedFile]:
    """Return the changes of a package in its archive, which has `offered` (`AptRoot.offered`);
    empty if it is unchanged.
    """
    versions = offered.get(deb.name, {})
    if deb.version not in versions:
        now = "the archive has no such package"
        if versions:
            now = f"the archive has {', '.join(sorted(versions))}"
        return [MovedFile("vanished", deb.name, f"{deb.name} {deb.version} has vanished; {now}")]
    if deb.sha256 not in versions[deb.version]:
        return [
            MovedFile(
                "changed", deb.name, f"{deb.name} {deb.version} has other bytes than were locked"
            )
        ]
    return []


def pool_path(pool: Path, item: LockedDeb | LockedWheel) -> Path:
    """Return the path of a locked file in a pool: `pool/<sha256>/<file name>`."""
    return pool / item.sha256 / item.file


def wanted_debs(
    debs: Iterable[LockedDeb],
    site: Site,
    snapshot_of: Callable[[LockedDeb], str | None],
    address_of: Callable[[str], str] | None = None,
) -> list[FileToFetch]:
    """Return where a site has packages.

    `snapshot_of` gives the address of a package's archive on the day of its lock, `address_of` the
    present one of an archive (default: the site's alone).
    """
    debs = list(debs)
    # Once per archive: without a site file it asks this machine's apt each time.
    find = address_of or (lambda archive: archive_url(site, archive))
    places = {archive: find(archive) for archive in sorted({deb.archive for deb in debs})}
    return [
        FileToFetch(
            deb.sha256,
            size=deb.size,
            url=address(places[deb.archive], deb.path),
            name=deb.name,
            version=deb.version,
            archive=deb.archive,
            older=then and address(then, deb.path),
        )
        for deb in debs
        for then in [snapshot_of(deb)]
    ]


def keeper(pool: Path, names: Mapping[str, str]) -> Callable[[Path, str], None]:
    """Return a function that moves a downloaded file into a pool. `names` are the file names by hash."""

    def keep(path: Path, sha256: str) -> None:
        place = pool / sha256
        place.mkdir(parents=True, exist_ok=True)
        path.chmod(0o644)
        path.replace(place / names[sha256])

    return keep


@contextlib.contextmanager
def writing(pool: Path, error: type[GoldnodeError]) -> Iterator[None]:
    """Turn an OSError of the pool into an `error` with a remedy."""
    try:
        yield
    except OSError as problem:
        raise error(
            f"the pool cannot be written: {problem.strerror}",
            file=pool,
            remedy="make room there, or name another store",
        ) from problem


def first_fault(faults: Sequence[FetchFault]) -> str:
    """Return the first fault, and the number of further ones."""
    more = and_more(len(faults) - 1, " (and {} more)")
    return f"{faults[0]}{more}"


def version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the differences between the versions of two locks as text, by name; "" if there are none.

    Only the first eight are named.
    """
    rows = [
        f"{name} {before[name]} -> {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    rows += [f"+{name} {after[name]}" for name in sorted(after.keys() - before.keys())]
    rows += [f"-{name}" for name in sorted(before.keys() - after.keys())]
    return ", ".join(rows[:8]) + and_more(len(rows) - 8)
