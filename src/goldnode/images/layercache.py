"""Layers of a store that are made once and cached by their inputs, and the image that is made of layers.

The builders of matrix images and of derived images share this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.errors import ImageError
from goldnode.images.store import ImageStore
from goldnode.lock.pool import checked, pooled
from goldnode.oci.layers import OWN_LAYER, Layer, WheelLayout, WheelSource, wheel_layer
from goldnode.oci.layers import tools as layer_tools
from goldnode.oci.layout import CONFIG, MANIFEST, Descriptor, Layout, OciImage, canonical, digest_of
from goldnode.oci.model import AMD64

_OLD = 3600  # seconds

WheelRow = tuple[str, str, int]  # file name, sha256, size in bytes


def layer_key(*parts: Any) -> str:
    """Return the key of a cached layer: a hash of all its inputs."""
    return digest_of(canonical([*parts, layer_tools()])).removeprefix("sha256:")


def wheel_groups(wheels: Sequence[WheelRow]) -> list[list[WheelRow]]:
    """Return the wheels of each layer: each big wheel alone, then all small ones together."""
    big = [[row] for row in wheels if row[2] >= OWN_LAYER]
    small = [row for row in wheels if row[2] < OWN_LAYER]
    return [*big, *([small] if small else [])]


@dataclass(frozen=True)
class WheelTarget:
    """Directories of wheels in an image, and whether a linker needs their libraries."""

    place: WheelLayout
    development: bool = False

    @property
    def row(self) -> list[str | None]:
        """Return the row of keys and recipes."""
        return [self.place.python, self.place.home, self.place.target]


def wheels_key(target: WheelTarget, group: Sequence[WheelRow]) -> str:
    """Return the key of a layer of wheels: the wheels and their target directories."""
    return layer_key("wheels", [row[1] for row in group], target.row, target.development)


@dataclass
class LayerCache:
    """Cached layers of a store, and the files that they are made of. `stopped` ends a layer in the making."""

    store: ImageStore
    stopped: threading.Event = field(default_factory=threading.Event, kw_only=True)

    def kept(
        self, key: str, make: Callable[[], tuple[Layer, dict[str, Any]]]
    ) -> tuple[Layer, dict[str, Any]]:
        """Return the layer with this key and its metadata, from the cache or made now.

        Concurrent callers make it once.
        """
        path = self.store.cache / "layers" / f"{key}.json"
        with self.store.lock(f"layer-{key[:24]}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                data = json.loads(path.read_bytes())
                layer = Layer.of(data)
                # The garbage collector may have removed the blob of a cached layer.
                if self.store.layout.path(layer.blob.digest).stat().st_size == layer.blob.size:
                    return layer, data.get("about", {})
            layer, about = make()
            self.store.write(path, canonical({**layer.document(), "about": about}))
            return layer, about

    def wheels(
        self, target: WheelTarget, group: Sequence[WheelRow]
    ) -> tuple[Layer, dict[str, Any]]:
        """Return the layer of a group of wheels."""

        def make() -> tuple[Layer, dict[str, Any]]:
            paths = [self.checked(file, sha256) for file, sha256, _ in group]
            sonames = {}
            for path, row in zip(paths, group, strict=True):
                shapes = self.outlines(target, row)
                sonames[path] = {
                    name: shape["soname"] for name, shape in shapes.items() if shape["soname"]
                }
            return wheel_layer(
                self.store.layout,
                paths,
                target.place,
                sonames,
                development=target.development,
                cancelled=self.stopped.is_set,
            ), {}

        layers = self.kept(wheels_key(target, group), make)
        # A cached layer does not imply cached outlines. Make them here: wheels run in parallel, a
        # step does not.
        for row in group:
            self.outlines(target, row)
        return layers

    def outlines(self, target: WheelTarget, row: WheelRow) -> dict[str, dict[str, Any]]:
        """Return outlines of a wheel's libraries, by path in the image.

        Cached by wheel and target directories.
        """
        file, sha256, _ = row
        path = self.store.cache / "outlines" / f"{layer_key('outlines', sha256, target.row)}.json"
        with contextlib.suppress(OSError, ValueError):
            outline: dict[str, dict[str, Any]] = json.loads(path.read_bytes())
            return outline
        wheel = WheelSource(pooled(self.store.pool, file, sha256, ImageError), target.place)
        try:
            outline = wheel.libraries()
        finally:
            wheel.close()
        self.store.write(path, canonical(outline))
        return outline

    def checked(self, file: str, sha256: str) -> Path:
        """Return a file of the pool with verified content."""
        return checked(self.store.pool, file, sha256, ImageError)

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """Make a temporary directory in the store."""
        place = self.store.cache / "work"
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as name:
            yield Path(name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the store for a build, shared with other builds.

        The first of them removes remains of killed runs.
        """
        with (self.store.cache / "in-use").open("w") as handle:
            # Only the first build gets the exclusive lock, so nothing is in use while it cleans up.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clean()
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield

    def _clean(self) -> None:
        running = self.store.cache / "running"
        if running.is_dir() and any(running.iterdir()):
            # The engine was killed, so its storage may be damaged. Builds make it again from the
            # store's layers.
            shutil.rmtree(self.store.cache / "buildah", ignore_errors=True)
            shutil.rmtree(running, ignore_errors=True)
        shutil.rmtree(self.store.cache / "work", ignore_errors=True)
        for path in (self.store.root / "blobs/sha256").glob(".new-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _OLD:  # a pull may be writing a younger one
                    path.unlink()


def put_image(
    layout: Layout,
    below: OciImage | None,
    own: Sequence[tuple[str, Layer]],
    settings: Mapping[str, Any],
    date: str,
    *,
    architecture: str = AMD64,
) -> Descriptor:
    """Write an image into `layout`: the layers of `below`, and its own, each with its build step.

    `settings` are Env, Labels and so on of the configuration. The labels are the manifest's
    annotations, too. `architecture` is for an image without `below`.
    """
    if below is not None:
        architecture = below.config.get("architecture", AMD64)
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": date,
        "config": dict(settings),
        "rootfs": {
            "type": "layers",
            "diff_ids": [
                *(below.config["rootfs"]["diff_ids"] if below is not None else []),
                *(layer.diff for _, layer in own),
            ],
        },
        "history": [
            *(below.config["history"] if below is not None else []),
            *({"created": date, "created_by": text} for text, _ in own),
        ],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [
            *(below.manifest["layers"] if below is not None else []),
            *(layer.blob.document() for _, layer in own),
        ],
        "annotations": settings["Labels"],
    }
    return layout.put(canonical(manifest), MANIFEST)
