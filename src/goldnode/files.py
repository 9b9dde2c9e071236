"""Files of this machine: what they hash to, and writing them whole."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goldnode.errors import GoldnodeError


def sha256_of(path: Path) -> str:
    """The sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_file(path: Path, data: bytes) -> None:
    """Let a file hold `data`, making its directory: it is seen with the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: two that write at once leave what one of them wrote.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as out:
        new = Path(out.name)
        try:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), 0o644)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def cache_directory() -> Path:
    """Return where goldnode keeps what it can make or download again: $GOLDNODE_CACHE, else below the user's cache directory."""
    named = os.environ.get("GOLDNODE_CACHE")
    return Path(named).expanduser() if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goldnode"


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk: a power cut after this leaves them what they are."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def full_disk(refusal: GoldnodeError) -> Iterator[None]:
    """Turn a disk that is full into `refusal`."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise refusal from problem
