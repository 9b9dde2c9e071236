"""Addresses and keys of package archives for one OS release at one site.

A key is taken from the site, the OS's keyring, the directory `keys` beside a lock, the cache, or
its public location, in this order. In every case only keys with a pinned fingerprint get into apt.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from urllib3.exceptions import HTTPError

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.core import keys
from goldnode.core.errors import LockError, SigningKeyError, SiteError
from goldnode.core.files import cache_directory, replace_file
from goldnode.core.site import Site, archive_url, check_archives, snapshot_url
from goldnode.lock.transport import Transport
from goldnode.lock.unreachable import UnreachableArchive, UnreachableKind, kind_of, kind_of_status
from goldnode.node.ground import openpgp

KEYS = "keys"  # directory beside a lock
_MOST = 1 << 20  # bytes of a key file


@dataclass(frozen=True)
class KeyAccess:
    """Directories and policy for reading and fetching the keys of archives.

    `stores` are directories of locks. `complete`: fetch again if only some of several pinned keys
    are stored.
    """

    stores: Sequence[Path] = ()
    cache: Path | None = None
    offline: bool = False
    complete: bool = False
    transport: Transport | None = None


class ArchivePlaces:
    """Where the archives of an OS release are at a site, and the keys that sign them."""

    def __init__(
        self,
        catalog: Catalog,
        site: Site,
        os: models.OperatingSystem,
        access: KeyAccess | None = None,
    ) -> None:
        """Raise SiteError for an archive of the site that the catalog lacks."""
        access = access or KeyAccess()
        check_archives(site, catalog.archives)
        self.catalog, self.site, self.os = catalog, site, os
        self._stores = [place / KEYS for place in access.stores]
        self._cache = (access.cache or cache_directory()) / KEYS
        self._offline, self._complete = access.offline, access.complete
        self._transport = access.transport
        self._fetched: dict[str, bytes] = {}  # by fingerprint

    def address(self, name: str) -> str:
        """Return the address of an archive. Raises SiteError if none is known for this OS release."""
        archive = self.catalog.archives[name].item
        public = archive.address(self.os)
        try:
            url = archive_url(self.site, name, public)
        except SiteError as error:
            if archive.url is not None and public is None:
                error.message = (
                    f'no address is known for archive "{name}": it is not published for {self.os.release} on '
                    f"{self.os.architecture}, as far as the catalog knows"
                )
            raise
        return models.expand(url, self.os, archive.architectures)

    def snapshot(self, name: str, day: str) -> str | None:
        """Return the address of an archive on `day` (YYYY-MM-DD), or None if the site names none."""
        url = snapshot_url(self.site, name, day)
        return url and models.expand(url, self.os, self.catalog.archives[name].item.architectures)

    def accepts_expired(self, name: str) -> bool:
        """Return whether the site takes indexes of an archive past their Valid-Until date."""
        entry = self.site.archives.get(name)
        return entry is not None and entry.accept_expired

    def fingerprints(self, name: str) -> list[str]:
        """Return the accepted fingerprints: those of the site, else the pinned ones for this OS release."""
        entry = self.site.archives.get(name)
        if entry is not None and entry.fingerprints:
            return list(entry.fingerprints)
        accepted = [
            key.fingerprint for key in self.catalog.archives[name].item.keys_of(self.os.release)
        ]
        if not accepted:
            raise SigningKeyError(
                f'no key of archive "{name}" is pinned for {self.os.release}',
                file=self.catalog.archives[name].file,
                remedy="add its key with a source, or name `key` and `fingerprints` in the site's archives",
            )
        return accepted

    def key(self, name: str) -> tuple[bytes | None, list[str]]:
        """Return the key of an archive for nodes (binary), and the accepted fingerprints.

        The key is None if the OS of the nodes ships it. Raises SigningKeyError, and LockError where
        it cannot be fetched.
        """
        fingerprints = self.fingerprints(name)
        data = self.site.key_bytes(name)
        if data is not None:
            return self._of_site(name, data, fingerprints), fingerprints
        if (
            self.site.key_address(name) is None
            and self.catalog.archives[name].item.keyring is not None
        ):
            return None, fingerprints
        return self._published(name, fingerprints), fingerprints

    def keyring(self, name: str) -> tuple[bytes, list[str]]:
        """Return the key of an archive for the apt of this machine, also where nodes have it from their OS."""
        key, fingerprints = self.key(name)
        if key is not None:
            return key, fingerprints
        archive = self.catalog.archives[name].item
        path = Path(str(archive.keyring))
        if not path.is_file() and self._locations(name):
            return self._published(name, fingerprints), fingerprints
        return self._of_os(name, path, fingerprints), fingerprints

    def store(self, directory: Path) -> None:
        """Write the keys that were fetched beside a lock, so that nodes and other controllers need not fetch them."""
        for fingerprint, data in self._fetched.items():
            path = directory / KEYS / f"{fingerprint}.asc"
            try:
                replace_file(path, keys.armor(data))
            except OSError as problem:
                raise LockError(
                    f"a key cannot be written beside the lock: {problem.strerror}",
                    file=path,
                    remedy="name another directory with --out",
                ) from problem

    # -- one origin each

    def _of_site(self, name: str, data: bytes, fingerprints: Sequence[str]) -> bytes:
        entry = self.site.archives[name]
        where = self.site.resolve(str(entry.key))
        try:
            foreign = keys.unexpected(data, fingerprints)
            binary = openpgp.dearmor(data)
        except openpgp.OpenPGPError as error:
            raise SigningKeyError(
                f'this is not the key of archive "{name}": {error}',
                file=where,
                remedy="put its public key there",
            ) from error
        if foreign:
            raise SigningKeyError(
                f'this is not the key of archive "{name}": it holds {", ".join(foreign)}, expected {", ".join(fingerprints)}',
                file=where,
                remedy="get the right key, or name the fingerprint of a mirror's own key in the site's `fingerprints`",
            )
        return binary

    def _of_os(self, name: str, path: Path, fingerprints: Sequence[str]) -> bytes:
        """Return the accepted keys of a keyring that this machine's OS ships.

        The keyring may hold many more.
        """
        remedy = "install the package that ships it, or name the key in the site's archives"
        try:
            chosen = keys.select(path.read_bytes(), fingerprints)
        except OSError as error:
            raise SigningKeyError(
                f'the keyring of archive "{name}" is not on this machine: {error.strerror}',
                file=path,
                remedy=remedy,
            ) from error
        except openpgp.OpenPGPError as error:
            raise SigningKeyError(
                f"this is not a keyring: {error}", file=path, remedy=remedy
            ) from error
        if not chosen:
            raise SigningKeyError(
                f'none of the keys of archive "{name}" is in this keyring: {", ".join(fingerprints)}',
                file=path,
                remedy=remedy,
            )
        return chosen

    def _locations(self, name: str) -> list[str]:
        """Return the address of an archive's keys: the site's, otherwise the catalog's."""
        own = self.site.key_address(name)
        if own is not None:
            return [models.expand(own, self.os, self.catalog.archives[name].item.architectures)]
        places = []
        for key in self.catalog.archives[name].item.keys_of(self.os.release):
            if key.location is not None:
                inside = key.location.startswith("{url}")
                url = self.site.redirected(key.location)
                if inside:
                    url = key.location.replace("{url}", self.address(name))
                places.append(url)
        return list(dict.fromkeys(places))

    def _published(self, name: str, fingerprints: Sequence[str]) -> bytes:
        """Return the pinned keys of an archive that are usable: those in a store or the cache, else fetched ones."""
        chosen = {
            fingerprint: data
            for fingerprint in fingerprints
            if (data := self._stored(fingerprint)) is not None
        }
        if not chosen:
            chosen = self._fetch(name, fingerprints)
        elif self._complete and not self._offline and len(chosen) < len(fingerprints):
            # A vendor that changes between pinned keys publishes the new one at the same place.
            with contextlib.suppress(LockError, SigningKeyError):
                chosen |= self._fetch(name, fingerprints)
        self._fetched |= chosen
        return b"".join(chosen.values())

    def _stored(self, fingerprint: str) -> bytes | None:
        for place in (*self._stores, self._cache):
            try:
                data = keys.select((place / f"{fingerprint}.asc").read_bytes(), [fingerprint])
                if data and not self._wrong(data):
                    return data
            # Missing or damaged: another place has it, or it is fetched again.
            except (OSError, openpgp.OpenPGPError):
                continue
        return None

    def _wrong(self, data: bytes) -> tuple[UnreachableKind, str] | None:
        """Return why one key cannot be used now, or None."""
        state = keys.states(data)[0]
        if state.revoked:
            return "revoked-key", f"{state.fingerprint} carries a revocation"
        if state.expired(dt.datetime.now(tz=dt.UTC)):
            return "expired-key", f"{state.fingerprint} expired on {state.expires:%Y-%m-%d}"
        return None

    def _fetch(self, name: str, fingerprints: Sequence[str]) -> dict[str, bytes]:
        """Fetch the key files of an archive and return the usable pinned keys in them, by fingerprint.

        A file may hold further keys; they are dropped. Raises LockError or SigningKeyError if no
        pinned key is usable.
        """
        locations = self._locations(name)
        if not locations:
            raise SigningKeyError(
                f'the site names no key for archive "{name}"',
                file=self.site.file,
                remedy=f"add `key:` to its entry; the catalog expects {', '.join(fingerprints)}",
            )
        if self._offline:
            raise LockError(
                f'the key of archive "{name}" was never fetched',
                remedy="run once without --offline",
            )
        chosen: dict[str, bytes] = {}
        problems: list[LockError | SigningKeyError] = []
        for url in locations:
            try:
                chosen |= self._one(name, url, fingerprints)
            except (LockError, SigningKeyError) as problem:
                problems.append(problem)
        if not chosen:
            raise problems[0]
        for fingerprint, data in chosen.items():
            replace_file(self._cache / f"{fingerprint}.asc", keys.armor(data))
        return chosen

    def _one(self, name: str, url: str, fingerprints: Sequence[str]) -> dict[str, bytes]:
        data = self._read(name, url)
        try:
            there = openpgp.primary_fingerprints(data)
        except openpgp.OpenPGPError as error:
            raise self._error(name, url, "portal", f"no OpenPGP key: {error}") from error
        pinned = [item for item in fingerprints if item in there]
        if not pinned:
            raise SigningKeyError(
                f'the key of archive "{name}" at {url} is not the pinned one: it holds {", ".join(there)}, '
                f"expected {', '.join(fingerprints)}",
                remedy=(
                    "do not go on before the vendor has announced a new key; then update goldnode, or name `key` and "
                    f"`fingerprints` in goldnode-site.yml: archives: {{{name}: {{key: FILE, fingerprints: [FINGERPRINT]}}}}"
                ),
            )
        keys_by_id = {item: keys.select(data, [item]) for item in pinned}
        wrong = {
            item: why for item, key in keys_by_id.items() if (why := self._wrong(key)) is not None
        }
        # One usable key is enough: a vendor may publish an expired key with its successor.
        if len(wrong) == len(keys_by_id):
            raise self._error(name, url, *next(iter(wrong.values())))
        return {item: key for item, key in keys_by_id.items() if item not in wrong}

    def _read(self, name: str, url: str) -> bytes:
        if url.startswith(("file:", "copy:")):
            path = Path(url.partition(":")[2].replace("///", "/", 1))
            try:
                return path.read_bytes()
            except OSError as problem:
                raise self._error(name, url, "missing", str(problem.strerror)) from problem
        transport = self._transport = self._transport or Transport(connections=1, timeout=20)
        try:
            answer = transport.get(url, {})
            try:
                kind = kind_of_status(answer.status)
                if kind is not None:
                    raise self._error(
                        name, url, kind, f"status {answer.status} {answer.reason or ''}".rstrip()
                    )
                # Limited: the address may be wrong, and lead to a file of any size.
                return answer.read(_MOST)
            finally:
                answer.close()
        except HTTPError as problem:
            raise self._error(name, url, kind_of(problem), _innermost_message(problem)) from problem

    def _error(self, name: str, url: str, kind: UnreachableKind, detail: str) -> LockError:
        proxy = ""
        if not url.startswith(("file:", "copy:")):
            self._transport = self._transport or Transport(connections=1, timeout=20)
            proxy = self._transport.proxy(url)
        return UnreachableArchive(name, url, kind, detail).error(proxy)


def key_stores(stack: CatalogEntry[models.Stack], site: Site) -> list[Path]:
    """Return the directories of locks of a stack, beside which fetched keys are stored."""
    return [*site.lock_directories(to_write=True), *site.lock_places(stack.file.parent, "stacks")]


def wanted_options(stack: CatalogEntry[models.Stack], catalog: Catalog) -> list[str]:
    """Return the optional parts of `stack` that classes of the catalog name, in the order of the stack's file.

    Raises the error of a class with an error in its file that may use the stack: its parts would be
    left out.
    """
    for (kind, _), error in catalog.broken.items():
        if kind != "class" or error.file is None:
            continue
        file = Path(error.file)
        if stack.item.options and _may_use(file, stack.name):
            raise error
        # Every stack has this part; a class that does not name it asks for nothing here.
        if _names_headers(file) and _may_use(file, stack.name):
            raise error
    asked = {
        option
        for entry in catalog.classes.values()
        if entry.item.stack == stack.name
        for option in entry.item.options
    }
    own = [*stack.item.options, *([] if stack.item.builds_modules else [models.KERNEL_HEADERS])]
    return [name for name in own if name in asked]


def _names_headers(file: Path) -> bool:
    """Return whether a class file, which cannot be read as one, names the headers of the kernel."""
    try:
        return models.KERNEL_HEADERS in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _may_use(file: Path, stack: str) -> bool:
    """Return whether a class file, which cannot be read as one, may name `stack`."""
    try:
        named = re.search(
            r"(?m)^stack:\s*[\"']?([\w-]+)", file.read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return True
    # In doubt it may: its optional parts would be left out of the lock without a word.
    return named is None or named.group(1) == stack


def archives_of(stack: models.Stack, options: Iterable[str]) -> list[str]:
    """Return the archive ids of a stack and of optional parts of it."""
    more = (
        archive
        for name in options
        if name in stack.options  # the headers are in the archives of the kernel
        for archive in stack.options[name].archives
    )
    return list(dict.fromkeys([*stack.archives, *more]))


def archive_addresses(
    stack: str, archive: str, day: str, catalog: Catalog, site: Site
) -> tuple[str, str | None]:
    """Return the addresses of an archive for the OS release of a stack, now and on `day` (YYYY-MM-DD; None: unknown).

    A stack that the catalog no longer has is no error: then only the site and this machine's apt
    are asked. Raises SiteError if no present address is known.
    """
    entry = catalog.stacks.get(stack)
    if entry is None or archive not in catalog.archives:
        return archive_url(site, archive), snapshot_url(site, archive, day)
    places = ArchivePlaces(catalog, site, entry.item.os)
    return places.address(archive), places.snapshot(archive, day)


def _innermost_message(problem: BaseException) -> str:
    """Return the innermost message of a failed fetch on one line."""
    reason = getattr(problem, "reason", None)
    if isinstance(reason, BaseException):
        return _innermost_message(reason)
    return str(problem).partition(": ")[2] or str(problem)
