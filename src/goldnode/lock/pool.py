"""The pool of fetched files, `pool/<sha256>/<file name>`, as builds of images and disks read it,
and the flat archives that they make of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import quote

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import sha256_of


def pooled(pool: Path, file: str, sha256: str, error: type[GoldnodeError]) -> Path:
    """Return a file of the pool. Raises `error` if it does not exist."""
    path = pool / sha256 / file
    if not path.is_file():
        raise error(
            f"{file} is not in the pool of the store",
            file=pool,
            remedy="build without --offline to fetch it",
        )
    return path


def checked(pool: Path, file: str, sha256: str, error: type[GoldnodeError]) -> Path:
    """Return the file of the pool after its hash was verified. Raises `error`."""
    path = pooled(pool, file, sha256, error)
    # The directory is named after the hash, but its file may have been changed since.
    if sha256_of(path) != sha256:
        raise error(
            "this file is not what the lock names: its hash is another",
            file=path,
            remedy="delete it and build again",
        )
    return path


def source_line(directory: Path, scheme: str = "copy") -> str:
    """Return the entry of sources.list for a flat archive in a directory.

    apt decodes an address twice: once where it reads the entry, once where it opens the file. The
    first leaves a space that is written %20, so only a percent sign needs to be written twice.
    """
    return f"deb [trusted=yes] {scheme}://{quote(str(directory).replace('%', '%25'))} ./"


def stanza(path: Path, sha256: str, error: type[GoldnodeError]) -> str:
    """Return the record of a package for the index of a flat archive.

    Raises `error` if the file is not a package.
    """
    done = subprocess.run(
        ["dpkg-deb", "--field", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise error(
            f"this is no Debian package: {done.stderr.strip()}",
            file=path,
            remedy="delete it and fetch it again",
        )
    return f"{done.stdout.rstrip()}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {sha256}\n"
