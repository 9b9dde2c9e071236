"""The Debian package in the site's mirror: a repository of its own beside those of the stacks."""

from __future__ import annotations

import hashlib
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from goldnode.core.errors import MirrorError
from goldnode.core.site import Site
from goldnode.lock.mirror import Mirror, site_signer
from goldnode.lock.model import Lock, LockedPackage, digest_of
from goldnode.lock.publication import ARCHIVE, CURRENT, NODE_PACKAGE, RECORD, Publication
from goldnode.nodepackage.contents import DEPENDS, EPOCH

# The system on which apt installs the package as a proof: its only dependency is Python, which the repository lacks.
_STATUS = f"""\
Package: python3
Status: install ok installed
Version: {DEPENDS}
Architecture: amd64
Multi-Arch: allowed
Maintainer: goldnode <root@localhost>
Description: stand-in of `goldnode package publish` for the Python of a node
"""


def publish(name: str, content: bytes, site: Site, wait: float = 0) -> Publication:
    """Publish the package in the site's mirror, and make it the current one.

    Raises MirrorError, also for other content under a version that is published, and SigningKeyError.
    """
    mirror = Mirror.of(site)
    version = name.removeprefix(f"{NODE_PACKAGE}_").removesuffix("_all.deb")
    with (
        site_signer(site) as signer,
        mirror.writing(wait),
        tempfile.TemporaryDirectory(prefix="goldnode-package-") as directory,
    ):
        file = Path(directory, name)
        file.write_bytes(content)
        status = Path(directory, "status")
        status.write_text(_STATUS, encoding="utf-8")
        row = _row(name, version, hashlib.sha256(content).hexdigest(), len(content))
        _refuse_other_content(mirror, row)
        mirror.add(file)
        return mirror.publish(NODE_PACKAGE, _lock(row), signer=signer, status=status)


def _refuse_other_content(mirror: Mirror, row: LockedPackage) -> None:
    """Refuse a version that has other bytes in the mirror: apt would not install it on nodes that have the first."""
    for record in (mirror.directory / "stacks" / NODE_PACKAGE).glob(f"*/{RECORD}"):
        if record.parent.name.startswith(".") or record.parent.name == CURRENT:
            continue
        for other in Publication.read(record.parent).packages:
            if other["version"] == row.version and other["sha256"] != row.sha256:
                raise MirrorError(
                    f"{NODE_PACKAGE} {row.version} is published with other content",
                    file=record.parent,
                    remedy="give this one a later --revision",
                )


def _row(name: str, version: str, sha256: str, size: int) -> LockedPackage:
    return LockedPackage(
        name=NODE_PACKAGE,
        version=version,
        architecture="all",
        sha256=sha256,
        size=size,
        path=f"pool/{NODE_PACKAGE}/{name}",
        archive=ARCHIVE,
        set="stack",
        part="base",
        requested=True,
        why="made by goldnode package publish",
    )


def _lock(row: LockedPackage) -> Lock:
    """Return a lock of this package alone, by which the mirror knows, verifies and keeps it."""
    return Lock(
        lock=1,
        resolved=datetime.fromtimestamp(EPOCH, UTC).date().isoformat(),
        stack=NODE_PACKAGE,
        intent=digest_of({"package": NODE_PACKAGE}),
        kernel_release="",
        driver_version=None,
        archives=[],
        packages=[row],
    )
