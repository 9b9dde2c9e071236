"""Where disk images are kept on this machine: builds, the pool of fetched packages, and what can be made again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from goldnode.disks.model import STORE, store_directory
from goldnode.errors import DiskError


class Store:
    """A directory of disk images. `pool` holds packages as `pool/<sha256>/<file name>`, `built` the builds, `cache` what only saves time."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            for place in (self.pool, self.built, self.cache):
                place.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DiskError(
                f"the store cannot be written: {problem.strerror}",
                file=root,
                remedy=f"name another with --store or ${STORE}",
            ) from problem

    @property
    def pool(self) -> Path:
        """Packages by their sha256."""
        return self.root / "pool"

    @property
    def built(self) -> Path:
        """`built/CLASS/BUILDID`, one directory a build."""
        return self.root / "built"

    @property
    def cache(self) -> Path:
        """Root filesystems by what they are made of, and the directories of builds that run."""
        return self.root / "cache"

    @contextlib.contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """A directory for the build `name`, alone: a second build of the same waits. It is empty at first, whatever a killed run left, and goes
        at the end."""
        place = self.cache / "work" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            shutil.rmtree(place, ignore_errors=True)
            self.sweep()
            place.mkdir()
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Take away what builds that were killed have left: directories that no process holds."""
        for path in (self.cache / "work").iterdir() if (self.cache / "work").is_dir() else ():
            if not path.is_dir():
                continue
            with path.with_suffix(".lock").open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(path, ignore_errors=True)

    def free(self) -> int:
        """Bytes that are free where the store lies."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize


def open_store(path: Path | None = None) -> Store:
    """Open (and make, where there is none) the store at `path`, else of $GOLDNODE_DISKS, else `.goldnode/disks` here."""
    return Store(store_directory(path))
