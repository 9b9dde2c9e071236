"""The keys of package archives: from the site file, checked against the fingerprints of the catalog."""

from __future__ import annotations

from goldnode.catalog import models
from goldnode.core import keys
from goldnode.core.errors import SigningKeyError
from goldnode.core.site import Site
from goldnode.node import openpgp


def archive_key(name: str, archive: models.Archive, site: Site) -> tuple[bytes | None, list[str]]:
    """Return the site's key for `archive` (binary) and the accepted fingerprints.

    The key is `None` if the OS has it. Raises SigningKeyError for a key file that contains other keys than
    the accepted ones, and for an archive without a key.
    """
    entry = site.archives.get(name)
    fingerprints = (
        list(entry.fingerprints) if entry is not None and entry.fingerprints else archive.fingerprints
    )
    data = site.key_bytes(name)
    if data is None:
        if archive.keyring is None:
            raise SigningKeyError(
                f'the site names no key for archive "{name}"',
                file=site.file,
                remedy=f"add `key:` to its entry; the catalog expects {', '.join(fingerprints)}",
            )
        return None, fingerprints
    where = site.resolve(entry.key) if entry is not None and entry.key is not None else None
    try:
        foreign = keys.unexpected(data, fingerprints)
        binary = openpgp.dearmor(data)
    except openpgp.OpenPGPError as error:
        raise SigningKeyError(
            f'this is not the key of archive "{name}": {error}', file=where, remedy="put its public key there"
        ) from error
    if foreign:
        raise SigningKeyError(
            f'this is not the key of archive "{name}": it holds {", ".join(foreign)}, expected {", ".join(fingerprints)}',
            file=where,
            remedy="get the right key, or name the fingerprint of a mirror's own key in the site's `fingerprints`",
        )
    return binary, fingerprints
