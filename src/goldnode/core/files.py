"""Files of this machine: what they hash to, and writing them whole."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goldnode.core.errors import GoldnodeError


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
    return (
        Path(named).expanduser()
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goldnode"
    )


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


@contextmanager
def second_build(parent: Path) -> Iterator[Path]:
    """Give a directory in `parent` for a build that is compared with another. It stays where the block ends well and has not removed it: the
    two differ, and somebody will look at it. It goes with an error, and what a run that was killed left goes with the next one."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)  # what another makes just now is not yet held
        for lock in parent.glob("*.lock"):
            with lock.open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        place = Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))
        place.chmod(0o755)  # apt's own user goes through it
        lock = place.with_name(f"{place.name}.lock")
        handle = lock.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)
    with handle:
        try:
            yield place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        finally:
            lock.unlink(missing_ok=True)
