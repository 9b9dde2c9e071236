"""Local store of disk images: builds, the pool of downloaded packages, and caches that can be recreated."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from goldnode.channels.locks import opening
from goldnode.core.errors import DiskError
from goldnode.disks.model import STORE, store_directory


class DiskStore:
    """A directory of disk images.

    `pool` holds packages as `pool/<sha256>/<file name>`, `built` the builds, and `cache` data that only saves
    time.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        with opening(root, DiskError, STORE):
            for place in (self.pool, self.built, self.cache):
                place.mkdir(parents=True, exist_ok=True)

    @property
    def pool(self) -> Path:
        """Return the directory of packages, by sha256."""
        return self.root / "pool"

    @property
    def built(self) -> Path:
        """Return the directory of builds: `built/CLASS/BUILDID`."""
        return self.root / "built"

    @property
    def cache(self) -> Path:
        """Return the directory of cached root filesystems (by input hash) and of the working directories of
        running builds.
        """
        return self.root / "cache"

    @contextlib.contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """Yield an empty working directory for the build `name`, and remove it afterwards.

        A lock makes a second build of the same name wait. Leftovers of a killed run are removed first.
        """
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
        """Remove the working directories of killed builds: those whose lock no process holds."""
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
        """Return the free bytes of the store's file system."""
        filesystem = os.statvfs(self.root)
        return filesystem.f_bavail * filesystem.f_frsize


def open_store(path: Path | None = None) -> DiskStore:
    """Open the store at `path`, otherwise $GOLDNODE_DISKS, otherwise `.goldnode/disks`.

    Create it if necessary.
    """
    return DiskStore(store_directory(path))
