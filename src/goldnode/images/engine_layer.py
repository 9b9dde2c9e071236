"""The layer that an engine makes: packages installed by dpkg, and ldconfig, in one run of a script inside the image.

The builders of matrix images and of derived images share this module.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from goldnode.images.layercache import LayerCache
from goldnode.images.recipe import LEFTOVERS, SCRIPT
from goldnode.oci.engines import Engine, EngineStep
from goldnode.oci.layers import Layer, normalised, write_members

_LEFT = re.compile(LEFTOVERS)

DebRow = tuple[str, str, str]  # name, file name, sha256
FolderRow = tuple[int, int, int]  # mode, owner, group


def write_input(cache: LayerCache, debs: Iterable[DebRow], into: Path) -> None:
    """Write the script and its packages into its input directory, which then has no libraries of wheels."""
    rows = list(debs)
    (into / "debs").mkdir(parents=True)
    (into / "script").write_text(SCRIPT, encoding="utf-8")
    for _, file, sha256 in rows:
        shutil.copyfile(cache.checked(file, sha256), into / "debs" / file)
    (into / "packages").write_text("".join(f"{file}\n" for _, file, _ in rows), encoding="utf-8")
    for name in ("folders", "libraries"):
        (into / name).write_text("", encoding="utf-8")


def run_step(
    cache: LayerCache, engine: Engine, step: EngineStep, known: Mapping[str, FolderRow]
) -> tuple[Layer, dict[str, Any]]:
    """Run a step. Return its layer, with the mode and owner of its directories and the paths of its links.

    `known` are the directories below the layer. Raises ImageError.
    """
    # A marker that outlives its run shows the next one that the engine was killed.
    marker = cache.store.cache / "running" / step.work.name
    cache.store.write(marker, b"")
    with engine.run(step) as plain:
        # An engine's diff lists directories that it only touched. Leave out unchanged ones.
        members = [
            (info, content)
            for info, content in normalised(plain, step.epoch, _LEFT)
            if not (info.isdir() and known.get(info.name) == (info.mode, info.uid, info.gid))
        ]
        folders = {
            info.name: [info.mode, info.uid, info.gid] for info, _ in members if info.isdir()
        }
        links = [info.name for info, _ in members if info.issym()]
        layer = write_members(cache.store.layout, members)
    marker.unlink(missing_ok=True)
    return layer, {"directories": folders, "links": links}
