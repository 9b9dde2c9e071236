"""The store of images on this machine: an OCI layout, the pool of fetched files, the records of builds, and
caches.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from goldnode.core.errors import ImageError
from goldnode.core.files import replace_file
from goldnode.oci.layout import Layout, canonical
from goldnode.oci.model import Built

VARIABLE = "GOLDNODE_IMAGES"
DEFAULT = Path(".goldnode/images")


class Store:
    """A directory of images.

    `layout` is its OCI image layout (the directory itself), `pool` the fetched debs and wheels as `pool/<sha256>/<file name>`, `cache`
    what only saves time, `built/` one record per build. Several processes may use one store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            self.layout = Layout(self.root)
            for place in (self.pool, self.cache, self.records):
                place.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ImageError(
                f"the store cannot be written: {problem.strerror}",
                file=root,
                remedy=f"name another with --store or ${VARIABLE}",
            ) from problem

    @property
    def pool(self) -> Path:
        """Debs and wheels by their sha256."""
        return self.root / "pool"

    @property
    def cache(self) -> Path:
        """Directory of caches: roots, layers by their inputs, the engine's own storage."""
        return self.root / "cache"

    @property
    def records(self) -> Path:
        """One file per build."""
        return self.root / "built"

    def built(self) -> dict[str, Built]:
        """The builds of this store by build id; those whose manifest is no longer there are left out."""
        found = {}
        for path in sorted(self.records.glob("*.json")):
            try:
                row = Built(**json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue  # written by a later goldnode, or removed meanwhile: the image is built again
            if self.layout.has(row.digest):
                found[row.build_id] = row
        return found

    def record(self, built: Built) -> None:
        """Keep the record of a build, whole or not at all."""
        self.write(self.records / f"{built.build_id}.json", canonical(asdict(built)))

    def forget(self, build_id: str) -> None:
        """Take a record away."""
        (self.records / f"{build_id}.json").unlink(missing_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the store, whole or not at all. Raises ImageError where it cannot be."""
        try:
            replace_file(path, data)
        except OSError as problem:
            raise ImageError(
                f"{path} cannot be written: {problem.strerror}",
                remedy="make room there, or name another store",
            ) from problem

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold `name` against other processes and threads. Raises ImageError where another has it and `wait` is False."""
        place = self._locks / f"{name}.lock"
        with place.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ImageError(
                    f"another run holds {self.root}", remedy="wait for it, or use another store"
                ) from None
            yield

    @cached_property
    def _locks(self) -> Path:
        place = self.cache / "locks"
        place.mkdir(parents=True, exist_ok=True)
        return place


def open_store(path: Path | None = None) -> Store:
    """Open the store at `path`, else at $GOLDNODE_IMAGES, else at `.goldnode/images` in the current
    directory. Create it if it does not exist.
    """
    if path is None:
        named = os.environ.get(VARIABLE)
        path = Path(named).expanduser() if named else DEFAULT
    return Store(path)
