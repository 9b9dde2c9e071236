"""The image store of this machine: an OCI layout, a pool of downloaded files, build records, and caches."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from goldnode.channels.locks import opening
from goldnode.core.errors import ImageError
from goldnode.core.files import replace_file
from goldnode.images.identified import IdentifiedRecipe
from goldnode.oci.layout import Descriptor, Layout, canonical
from goldnode.oci.model import Built

VARIABLE = "GOLDNODE_IMAGES"
DEFAULT = Path(".goldnode/images")


class ImageStore:
    """A directory of images.

    `layout` is its OCI image layout (the directory itself). `pool` contains the downloaded debs and
    wheels as `pool/<sha256>/<file name>`. `cache` contains data that only saves time. `built/` has
    one record per build. Several processes may use one store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        with opening(root, ImageError, VARIABLE):
            self.layout = Layout(self.root)
            for place in (self.pool, self.cache, self.records):
                place.mkdir(parents=True, exist_ok=True)

    @property
    def pool(self) -> Path:
        """Debs and wheels, by sha256."""
        return self.root / "pool"

    @property
    def cache(self) -> Path:
        """Directory of caches: roots, layers by their inputs, the engine's own storage."""
        return self.root / "cache"

    @property
    def records(self) -> Path:
        """Directory of build records, one file per build."""
        return self.root / "built"

    def whole(self, item: IdentifiedRecipe, built: Built | None, ref: Descriptor | None) -> bool:
        """Return whether a build record and a reference of the layout are of this recipe, with all blobs."""
        if (
            built is None
            or ref is None
            or built.recipe != item.digest
            or ref.digest != built.digest
        ):
            return False
        manifest = self.layout.document(ref.digest)
        return all(
            self.layout.has(row["digest"]) for row in (manifest["config"], *manifest["layers"])
        )

    def built(self) -> dict[str, Built]:
        """Return the builds of this store by build id, without those whose manifest is gone."""
        images = {}
        for path in sorted(self.records.glob("*.json")):
            try:
                row = Built(**json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue  # written by a newer goldnode, or removed meanwhile: a build makes it again
            if self.layout.has(row.digest):
                images[row.build_id] = row
        return images

    def record(self, built: Built) -> None:
        """Write the record of a build atomically."""
        self.write(self.records / f"{built.build_id}.json", canonical(asdict(built)))

    def recorded(self, built: Built) -> float:
        """Return when a build was recorded, in seconds; 0 if its record is gone."""
        try:
            return (self.records / f"{built.build_id}.json").stat().st_mtime
        except OSError:
            return 0.0

    def forget(self, build_id: str) -> None:
        """Remove the record of a build, and its lock if it is a derived one."""
        (self.records / f"{build_id}.json").unlink(missing_ok=True)
        (self.records / f"{build_id}.lock.yml").unlink(missing_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the store atomically. Raises ImageError if that fails."""
        try:
            replace_file(path, data)
        except OSError as problem:
            raise ImageError(
                f"{path} cannot be written: {problem.strerror}",
                remedy="make room there, or name another store",
            ) from problem

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold the lock `name` against other processes and threads.

        Raises ImageError if another one holds it and `wait` is False.
        """
        place = self._locks / f"{name}.lock"
        with place.open("w") as handle:
            try:
                # The kernel releases it when the file is closed, also if the process is killed.
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


def store_directory(path: Path | None = None) -> Path:
    """Return the directory of the store: `path`, $GOLDNODE_IMAGES, or `.goldnode/images` in the current directory."""
    # An empty variable counts as none.
    named = os.environ.get(VARIABLE)
    return path or (Path(named).expanduser() if named else DEFAULT)


def open_store(path: Path | None = None) -> ImageStore:
    """Open the store in :func:`store_directory`. Create it if it does not exist."""
    return ImageStore(store_directory(path))
