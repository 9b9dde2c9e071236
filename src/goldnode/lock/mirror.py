"""A site's mirror: the files that locks name, kept by their hash, and one signed apt repository per lock made of them.

MIRROR/store/sha256/ab/<64 hex>    the files, read-only; MIRROR/store/partial/ what is still on its
way MIRROR/stacks/STACK/ID/            a repository: dists/, pool/ (hard links into the store),
publication.json MIRROR/stacks/STACK/current        symbolic link to the one that was published last
MIRROR/mirror.asc                  the public key they are signed with MIRROR/channels.json
{channel: {stack: ID}}: publications that stay

There is one writer at a time. A publication is synced and judged by apt before it gets its name, so
a run that ends anywhere leaves nothing half published; what it had fetched stays and is used by the
next.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.catalog.load import Catalog
from goldnode.core.errors import MirrorError
from goldnode.core.files import sync
from goldnode.core.site import Site, check_archives
from goldnode.lock import publish as making
from goldnode.lock.archives import archive_addresses
from goldnode.lock.fetch import Fetcher, FetchFault, FetchProgress, FileToFetch, address
from goldnode.lock.model import Lock, LockedPackage, dump_lock
from goldnode.lock.publication import (
    CURRENT,
    PUBLIC_KEY,
    RECORD,
    SUITE,
    Publication,
    place,
    publication_id,
)
from goldnode.lock.signing import ArchiveSigner, check_signature, open_signer
from goldnode.node.ground.optional import optional

__all__ = ["Mirror", "MirrorError", "Publication", "publication_id", "site_signer"]


@dataclass(frozen=True)
class _Contents:
    """Contents of a publication: all its packages, and the `extra` ones that are not in the lock.

    See `Mirror.publish`.
    """

    stack: str
    lock: Lock
    packages: Sequence[LockedPackage]
    extra: Sequence[LockedPackage]
    without: Sequence[str]
    status: Path | None


class Mirror:
    """The directory of a mirror.

    Reading takes no lock. Every method that writes takes it, and may be called within `writing()`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store/sha256"
        self.partial = directory / "store/partial"
        self._held = 0

    @classmethod
    def open(cls, directory: Path) -> Mirror:
        """Return the mirror in `directory`, which may not exist yet. Raises MirrorError if it is a file."""
        if directory.exists() and not directory.is_dir():
            raise MirrorError(
                "the mirror is no directory",
                file=directory,
                remedy="correct `mirror.directory` in the site file",
            )
        return cls(directory)

    @classmethod
    def of(cls, site: Site) -> Mirror:
        """Return the site's mirror. Raises MirrorError where it names none."""
        if site.mirror is None:
            raise MirrorError(
                "the site names no mirror",
                file=site.file,
                remedy="add it to goldnode-site.yml, as mirror: {directory: /srv/goldnode, …}",
            )
        return cls.open(site.resolve(site.mirror.directory))

    # -- the store

    def path(self, sha256: str) -> Path:
        """Return the path of the file with this hash, whether or not it exists."""
        return self.store / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Return whether the file exists (and has this size in bytes). `verify` reads its bytes."""
        try:
            stored = self.path(sha256).stat().st_size
        except FileNotFoundError:
            return False
        return size is None or stored == size

    def add(self, path: Path) -> str:
        """Copy a local file into the store and return its SHA-256.

        Raises MirrorError if it cannot be stored.
        """
        with self.writing(), self.disk():
            self.partial.mkdir(parents=True, exist_ok=True)
            # Below the same directory as the store, so that the move into it is a rename.
            temporary = self.partial / f"add.{os.getpid()}"
            digest = hashlib.sha256()
            with path.open("rb") as source, temporary.open("wb") as out:
                while block := source.read(1 << 20):
                    digest.update(block)
                    out.write(block)
                out.flush()
                os.fsync(out.fileno())
            self.keep(temporary, digest.hexdigest())
            return digest.hexdigest()

    def keep(self, path: Path, sha256: str) -> None:
        """Move a synced file into the store under its hash."""
        target = self.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Publications are hard links to it: a write through one of them would change all.
        path.chmod(0o444)
        path.replace(target)
        sync(target.parent)

    # -- fetching

    def missing_files(
        self, locks: Iterable[Lock], catalog: Catalog, site: Site
    ) -> list[FileToFetch]:
        """Return the files of `locks` that are not in the store.

        Raises SiteError for an archive without an address.
        """
        check_archives(site, catalog.archives)
        missing: dict[str, FileToFetch] = {}
        for lock in locks:
            bases: dict[str, tuple[str, str | None]] = {}
            for item in lock.packages:
                if item.sha256 in missing or self.has(item.sha256, item.size):
                    continue
                # Once per archive: without a site file, this machine's apt is asked each time.
                if item.archive not in bases:
                    bases[item.archive] = archive_addresses(
                        lock.stack, item.archive, lock.resolved, catalog, site
                    )
                now, then = bases[item.archive]
                missing[item.sha256] = FileToFetch(
                    item.sha256,
                    size=item.size,
                    url=address(now, item.path),
                    name=item.name,
                    version=item.version,
                    archive=item.archive,
                    older=then and address(then, item.path),
                )
        return list(missing.values())

    def fetch(
        self,
        locks: Lock | Sequence[Lock],
        catalog: Catalog,
        site: Site,
        progress: FetchProgress | None = None,
        *,
        parallel: int = 4,
        pause: float = 1.0,
    ) -> list[FetchFault]:
        """Fetch every file of the locks into the store, from the archives at the site's addresses.

        Return one fault for each file that its archive does not have as locked; all others are
        fetched. Raises MirrorError if the store cannot take them.
        """
        with self.writing(), self.disk():
            wanted = self.missing_files(
                [locks] if isinstance(locks, Lock) else locks, catalog, site
            )
            self._room(wanted)
            self.store.mkdir(parents=True, exist_ok=True)
            return Fetcher(
                self.partial, self.keep, parallel=parallel, progress=progress, pause=pause
            ).fetch(wanted)

    def _room(self, wanted: Iterable[FileToFetch]) -> None:
        """Refuse files that will not fit, before the first is fetched."""
        need = 0
        for item in wanted:
            part = self.partial / item.sha256
            need += max(0, (item.size or 0) - (part.stat().st_size if part.exists() else 0))
        free = shutil.disk_usage(self.directory).free
        if need > free:
            raise MirrorError(
                f"the files to be fetched take {need / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free",
                file=self.directory,
                remedy="make room, for instance with `goldnode mirror gc`, or move the mirror",
            )

    # -- publishing

    def find(self, stack: str, packages: Iterable[LockedPackage]) -> Publication | None:
        """Return the publication of exactly these packages, or None.

        Raises MirrorError for an unreadable record.
        """
        where = place(self.directory, stack, (item.sha256 for item in packages))
        return Publication.read(where) if (where / RECORD).is_file() else None

    def publish(
        self,
        stack: str,
        lock: Lock,
        extra: Sequence[LockedPackage] = (),
        *,
        signer: ArchiveSigner,
        without: Sequence[str] = (),
        status: Path | None = None,
    ) -> Publication:
        """Publish the packages of `lock`, and `extra` packages of the store, as a signed
        repository, and make it the current one.

        The repository is made in a staging directory, judged by apt (see `publish.prove`; `without`
        names packages that the extra ones replace), synced, and only then moved into place. An
        existing publication stays, except for its signature if the key has changed. Raises
        MirrorError and SigningKeyError.
        """
        packages = list({item.sha256: item for item in [*lock.packages, *extra]}.values())
        with self.writing(), self.disk():
            missing = [item for item in packages if not self.has(item.sha256, item.size)]
            if missing:
                raise MirrorError(
                    f"{len(missing)} of {len(packages)} files are not in the mirror, the first is {missing[0].name} {missing[0].version}",
                    file=self.directory,
                    remedy=f"run `goldnode mirror {stack}`",
                )
            final = place(self.directory, stack, (item.sha256 for item in packages))
            final.parent.mkdir(parents=True, exist_ok=True)
            known = self._known(final, signer)
            if (
                known is not None
                and known.fingerprint == signer.fingerprint
                and known.locks.get(lock.digest)
            ):
                publication = known
            elif known is not None:
                publication = self._amend(known, lock, signer)
            else:
                publication = self._make(
                    final,
                    _Contents(
                        stack,
                        lock=lock,
                        packages=packages,
                        extra=extra,
                        without=without,
                        status=status,
                    ),
                    signer,
                )
            _write(self.directory / PUBLIC_KEY, signer.public)
            # A rename replaces the link at once; nodes see the old publication or the new one,
            # never none.
            link = final.parent / f".{CURRENT}.new"
            link.unlink(missing_ok=True)
            link.symlink_to(final.name)
            link.replace(final.parent / CURRENT)
            sync(final.parent)
            return publication

    def _known(self, directory: Path, signer: ArchiveSigner) -> Publication | None:
        """Return an existing complete publication, or None; an incomplete one is made again."""
        try:
            publication = Publication.read(directory)
            signed = directory / f"dists/{SUITE}/InRelease"
            text = _signed_text(signed.read_text(encoding="utf-8"))
        except (MirrorError, OSError, ValueError, IndexError):
            return None
        if (
            publication.fingerprint == signer.fingerprint
            and check_signature(signed, signer.public)[0] != signer.fingerprint
        ):
            return None
        # A pool file that is no hard link of the store was copied or replaced: make the publication
        # again.
        linked = all(
            _same(directory / row["pool"], self.path(row["sha256"])) for row in publication.packages
        )
        return publication if linked and not making.wrong_indexes(directory, text) else None

    def _make(
        self,
        final: Path,
        contents: _Contents,
        signer: ArchiveSigner,
    ) -> Publication:
        lock = contents.lock
        fresh = final.parent / f".{final.name}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            rows = making.build(
                fresh, contents.packages, self.path, dt.date.fromisoformat(lock.resolved), signer
            )
            making.prove(
                fresh,
                lock=lock,
                signer=signer,
                extra=contents.extra,
                without=contents.without,
                status=contents.status,
            )
            publication = Publication(
                final,
                stack=contents.stack,
                id=final.name,
                published=_now(),
                fingerprint=signer.fingerprint,
                locks={lock.digest: dump_lock(lock)},
                packages=tuple(rows),
            )
            _write(fresh / RECORD, _text(publication))
            making.sync_tree(fresh)
            if final.exists():  # a damaged one of the same content
                # A directory cannot be renamed over another one that has files.
                old = final.parent / f".{final.name}.old"
                shutil.rmtree(old, ignore_errors=True)
                final.rename(old)
                fresh.rename(final)
                shutil.rmtree(old)
            else:
                fresh.rename(final)
            sync(final.parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return publication

    def _amend(self, known: Publication, lock: Lock, signer: ArchiveSigner) -> Publication:
        """Add a lock of the same packages, or sign with another key. The repository itself stays."""
        release = known.directory / f"dists/{SUITE}/InRelease"
        if known.fingerprint != signer.fingerprint:
            making.sign(known.directory, _signed_text(release.read_text(encoding="utf-8")), signer)
            good, why = check_signature(release, signer.public)
            if good is None:
                raise MirrorError(f"the new signature does not hold: {why}", file=release)
        locks = {**known.locks, lock.digest: dump_lock(lock)}
        publication = Publication(
            known.directory,
            stack=known.stack,
            id=known.id,
            published=known.published,
            fingerprint=signer.fingerprint,
            locks=locks,
            packages=known.packages,
        )
        _write(known.directory / RECORD, _text(publication))
        return publication

    # -- one writer

    @contextmanager
    def writing(self, wait: float = 0) -> Iterator[None]:
        """Hold the lock of the only writer. Wait up to `wait` seconds for another run. May be nested.

        Removes what an interrupted run left unfinished. Raises MirrorError.
        """
        if self._held:
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # No child inherits the lock: one that lives longer than this run would hold it.
            handle = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            raise MirrorError(
                f"the mirror cannot be written: {problem.strerror}", file=self.directory
            ) from problem
        try:
            until = time.monotonic() + wait
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        who = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
                        raise MirrorError(
                            f"another run is writing this mirror: process {who or 'unknown'}",
                            file=self.directory,
                            remedy="wait for it to end, or let this one wait with --wait SECONDS",
                        ) from None
                    time.sleep(0.2)
            with contextlib.suppress(OSError):  # a full disk: the pid is a courtesy
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            self._clear()
            self._held = 1
            try:
                yield
            finally:
                self._held = 0
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, 0)
        finally:
            os.close(handle)

    def _clear(self) -> None:
        """Remove the staging directories of killed runs. Partial downloads stay, because they are resumed."""
        for path in (self.directory / "stacks").glob("*/.*"):
            if path.name.endswith((".new", ".old", ".gone")):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for path in self.partial.glob("add.*"):
            path.unlink(missing_ok=True)

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Raise errors of the disk as errors of the mirror."""
        try:
            yield
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise MirrorError(
                    "the disk is full; nothing was published, and what was fetched is kept",
                    file=self.directory,
                    remedy="make room, for instance with `goldnode mirror gc`, and run again",
                ) from problem
            where = problem.filename or self.directory
            raise MirrorError(
                f"the mirror cannot be written: {problem.strerror}", file=where
            ) from problem


@contextmanager
def site_signer(site: Site) -> Iterator[ArchiveSigner]:
    """Yield the site's signing key after a test signature; see `signing.open_signer`.

    Raises MirrorError if the site has none.
    """
    if site.mirror is None or site.mirror.signing_key is None:
        raise MirrorError(
            "the site names no key to sign the mirror with",
            file=site.file,
            remedy="make one with `goldnode mirror key --out DIR`, and name it as `mirror.signing_key`",
        )
    public_file = optional(site.resolve, site.mirror.key)
    public = optional(read_public, public_file)
    with open_signer(site.mirror.signing_key, site.resolve("."), public, public_file) as signer:
        yield signer


def read_public(
    path: Path, remedy: str = "make a key with `goldnode mirror key --out DIR`, or put yours there"
) -> bytes:
    """Read a mirror's public key. Raises MirrorError with this remedy."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise MirrorError(
            f"the mirror's public key cannot be read: {problem.strerror}",
            file=path,
            remedy=remedy,
        ) from problem


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(publication: Publication) -> bytes:
    return (
        json.dumps(publication.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    ).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a small file atomically and flush it. A file with the same content is not changed."""
    if path.is_file() and path.read_bytes() == content:
        return
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(content)
        sync(fresh)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _signed_text(clear: str) -> str:
    """Return the text in a clear-signed file (RFC 4880, section 7), without its dash escapes."""
    body = clear.split("\n\n", 1)[1].rpartition("\n-----BEGIN PGP SIGNATURE-----")[0]
    return "".join(f"{line.removeprefix('- ')}\n" for line in body.split("\n"))
