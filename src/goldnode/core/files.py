"""Local files: digests, atomic writes and working directories."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from zipfile import ZipFile


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_umask(mode: int = 0o666) -> int:
    """Return the mode that a new file gets by the umask: that of `tempfile` is for its owner alone."""
    umask = os.umask(0o077)  # the kernel shows it only to who sets it
    os.umask(umask)
    return mode & ~umask


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace the content of a file atomically and create its directory.

    Readers see either the old content or the new. The file has `mode` from its first moment; None: that of a
    new file.
    """
    import tempfile  # start-up time: most commands write no file

    path.parent.mkdir(parents=True, exist_ok=True)
    # A unique temporary name: a fixed one would mix the output of concurrent writers.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as out:
        new = Path(out.name)
        try:
            out.write(data)
            out.flush()
            # Before the rename: else a crash may leave the new name with an empty file.
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), by_umask() if mode is None else mode)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def add_to_zip(archive: ZipFile, name: str, data: bytes) -> None:
    """Add a file to a zip archive: with a fixed date and mode, so that equal files make equal archives."""
    # The first date that a zip can have.
    from zipfile import ZipInfo  # start-up time

    entry = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data, archive.compression)


def cache_directory() -> Path:
    """Return goldnode's cache directory: $GOLDNODE_CACHE, otherwise `goldnode` in the user's cache directory.

    Everything in it can be built or downloaded again.
    """
    named = os.environ.get("GOLDNODE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goldnode"


def file_remedy(problem: OSError, path: Path) -> str:
    """Return the remedy for a file that cannot be read or written, by the kernel's reason."""
    cache = cache_directory()
    # Above it too: the directory may be missing because a parent cannot be written.
    cached = path in (cache, *cache.parents) or cache in path.parents
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on its file system" + (f", or {_OTHER_CACHE}" if cached else "")
    if cached and problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _OTHER_CACHE
    return "correct its name, its directory, or who may use it"


_OTHER_CACHE = "name another directory for what goldnode caches: `GOLDNODE_CACHE=DIRECTORY`"


def readable_by_others() -> None:
    """Set the modes of new files for others to read, regardless of the caller's umask.

    Nodes, images and published directories need them. All else follows the umask, and secret files are created
    with an explicit mode.
    """
    os.umask(0o022)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk, so that they survive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def full_disk(refusal: GoldnodeError) -> Iterator[None]:
    """Turn a full disk or an exceeded quota into the error `refusal`."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise refusal from problem


@contextmanager
def second_build(parent: Path) -> Iterator[Path]:
    """Yield a directory in `parent` for a second build, which the caller compares with the first.

    The caller removes the directory if both builds agree. If it still exists when the block ends, the builds
    differ and the directory is left for inspection. An error removes it. The next run removes directories
    that a killed run left behind.
    """
    import tempfile  # start-up time

    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".making").open("w") as making:
        # Serialise: a directory that another process has just created is not locked yet.
        fcntl.flock(making, fcntl.LOCK_EX)
        for lock in parent.glob("*.lock"):
            with lock.open("w") as handle:
                # A lock that can be taken belongs to a process that was killed.
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        place = Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))
        place.chmod(
            0o755
        )  # apt drops privileges to _apt, which must be able to traverse the directory
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


_ONCE: dict[Path, dict[str, Any]] = {}  # what `once` has read in this process


def once(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object in `file`. The first process that asks makes the value; the others wait for it.

    A process reads it once, so that callers share the value and must not change it.
    """
    if file in _ONCE:
        return _ONCE[file]
    # A file of its own: the lock of a file that is replaced would be of the old one.
    with file.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            new = file.with_suffix(".new")
            new.write_text(json.dumps(make()), encoding="utf-8")
            new.replace(file)
    _ONCE[file] = json.loads(file.read_text(encoding="utf-8"))
    return _ONCE[file]
