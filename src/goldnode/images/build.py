"""Build of images: a graph of layers that are built in parallel, each once, and cached by their inputs.

An image appears in the store's layout only when it is complete. An interrupted run leaves only
layers, which the next run uses. The key of a layer is the hash of all its inputs, so a changed lock
rebuilds only the layers that depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.channels.locks import using
from goldnode.core.errors import ImageError
from goldnode.core.extras import require
from goldnode.core.files import full_disk
from goldnode.images.aptsources import apt_sources
from goldnode.images.engine_layer import FolderRow, run_step, write_input
from goldnode.images.imagelock import ImageLock, find_lock
from goldnode.images.layercache import LayerCache, layer_key, put_image, wheels_key
from goldnode.images.matrix import MatrixRow
from goldnode.images.recipe import (
    IDENTITY,
    LEFTOVERS,
    ROOT_HOOK,
    ROOT_LEFTOVERS,
    SCRIPT,
    SLIM,
    SMOKE,
    ImageRecipe,
    recipe,
)
from goldnode.images.store import ImageStore
from goldnode.lock.pool import stanza
from goldnode.node.ground.optional import optional
from goldnode.oci import emulation, engines
from goldnode.oci.engines import root_start
from goldnode.oci.identity import step_of
from goldnode.oci.layers import (
    Layer,
    LayerEntry,
    draw,
    normalised,
    with_directories,
    write_layer,
    write_members,
)
from goldnode.oci.layout import OciImage, clean
from goldnode.oci.model import Built

Say = Callable[[str, str, float], None]  # title, state (started, done, kept, failed), seconds

_LEFT_OF_ROOT = re.compile(ROOT_LEFTOVERS)


def smoke_program() -> bytes | None:
    """Return the smoke runner that every image contains; None if this goldnode does not include it."""
    try:
        from goldnode.gpuprogram.smoke import pack
    except ImportError:
        return None
    return bytes(pack.program())


def recipes(
    rows: Iterable[tuple[MatrixRow, ImageLock]],
    tools: Mapping[str, str],
    smoke: bytes | None = None,
) -> list[ImageRecipe]:
    """Return the recipes of rows with their locks. Parents must precede their children.

    Raises ImageError, and SiteError if an image has apt's sources and the site names no address.
    """
    made: dict[str, ImageRecipe] = {}
    for row, lock in rows:
        parent = made.get(row.image.parent or "")
        sources = apt_sources(row.system, lock) if row.installs else ""
        made[row.name] = recipe(row, lock, parent, tools, smoke=smoke, sources=sources)
    return list(made.values())


def planned(rows: Sequence[MatrixRow], engine: engines.Engine) -> list[ImageRecipe]:
    """Return the recipes of rows with their current locks. Raises ImageError."""
    return recipes(((row, find_lock(row)) for row in rows), engines.tools(engine), smoke_program())


# -- keys


def root_key(item: ImageRecipe) -> str:
    """Return the key of the root of an image without a parent."""
    # By hash, sorted: file names and order do not affect the root.
    return layer_key(
        "root",
        item.codename,
        sorted(row[2] for row in item.debs),
        item.epoch,
        root_start(item.image.architecture),
        ROOT_HOOK,
        SLIM,
        ROOT_LEFTOVERS,
        dict(item.tools),
    )


def files_key(item: ImageRecipe) -> str:
    """Return the key of the layer with goldnode's own files."""
    return layer_key("files", {path: dict(row) for path, row in item.files.items()}, item.epoch)


def step_key(item: ImageRecipe) -> str:
    """Return the key of the engine's layer: the layers it starts from and all input of its script."""
    return layer_key(
        "step",
        system_key(item.parent),
        files_key(item) if item.files else None,
        *_shown(item),
        item.containerfile,
        SCRIPT,
        LEFTOVERS,
    )


def _shown(item: ImageRecipe) -> list[Any]:
    chain = [
        [one.place.home, one.place.python, [row[1] for row in one.wheels]]
        for one in _chain(item)
        if one.wheels
    ]
    tools = [item.tools.get("engine")]
    # Only if used, so that layers of amd64 that a store has are used again.
    tools += [
        item.tools[name]
        for name in (emulation.tool(item.image.architecture),)
        if name in item.tools
    ]
    return [[row[2] for row in item.debs], chain, item.epoch, *tools]


def system_key(item: ImageRecipe | None) -> str:
    """Return the key of all system layers up to this image. The engine's parent image is named after it."""
    if item is None:
        return ""
    own = None
    if item.parent is None:
        own = root_key(item)
    elif item.step:
        own = step_key(item)
    # An image that adds no system layer has the same engine parent as its own parent.
    if own is None and not item.files:
        return system_key(item.parent)
    return layer_key(
        "system", system_key(item.parent), files_key(item) if item.files else None, own
    )


def _chain(item: ImageRecipe) -> list[ImageRecipe]:
    """Return the recipe, preceded by its ancestors."""
    return [*(_chain(item.parent) if item.parent is not None else []), item]


# -- the graph


@dataclass
class _Task:
    """One node of the build graph: its key, its title, the keys of its dependencies, and a function that
    makes it.
    """

    key: str
    title: str
    needs: tuple[str, ...]
    make: Callable[[], Any]


@dataclass
class Builder(LayerCache):
    """Builder of recipes into a store.

    `jobs` is the number of parallel tasks. `say` receives progress messages.
    """

    engine: engines.Engine
    jobs: int = 2
    say: Say = lambda _what, _state, _seconds: None
    made: dict[str, Any] = field(default_factory=dict)

    def pending(self, wanted: Sequence[ImageRecipe]) -> list[ImageRecipe]:
        """Return those of `wanted` that the store does not contain completely."""
        built, refs = self.store.built(), self.store.layout.refs()
        return [
            item
            for item in wanted
            if not self.store.whole(item, built.get(item.build_id), refs.get(item.ref))
        ]

    def build(self, wanted: Sequence[ImageRecipe]) -> list[Built]:
        """Build the missing images of `wanted`, parents before children. Return the builds of all, in their
        order.

        After a failure, images that do not depend on it are still built; then the first failure is
        raised. Raises ImageError.
        """
        # Cached layers have no name until the image has one, so keep the garbage collector out
        # meanwhile.
        with _full_disk(self.store.root), using(self.store.layout):
            todo = self.pending(wanted)
            if todo:
                require("images")  # what writes the evidence of an image, after its build
                with self.alone():
                    self._run(self._tasks(todo, wanted))
            built = self.store.built()
        return [built[item.build_id] for item in wanted]

    def _tasks(
        self, todo: Sequence[ImageRecipe], wanted: Sequence[ImageRecipe]
    ) -> dict[str, _Task]:
        tasks: dict[str, _Task] = {}
        names = {item.digest for item in todo}

        def add(key: str, title: str, needs: Iterable[str], make: Callable[[], Any]) -> str:
            # Images share layers: the first one that needs a layer adds its task.
            tasks.setdefault(key, _Task(key, title, tuple(dict.fromkeys(needs)), make))
            return key

        def system(item: ImageRecipe) -> list[str]:
            """Add the tasks for the system layers of `item`. Return their keys, lowest first."""
            below = system(item.parent) if item.parent is not None else []
            own = []
            if item.parent is None:
                own.append(
                    add(root_key(item), f"root of {item.image.name}", (), lambda: self._root(item))
                )
            if item.files:
                own.append(
                    add(
                        files_key(item),
                        f"links of {item.image.name}",
                        (),
                        lambda: self._files(item),
                    )
                )
            if item.step:
                needs = [*below, *own, *(key for one in _chain(item) for key in wheels(one))]
                own.append(
                    add(
                        step_key(item),
                        f"system of {item.image.name}",
                        needs,
                        lambda: self._step(item),
                    )
                )
            return [*below, *own]

        def wheels(item: ImageRecipe) -> list[str]:
            keys = []
            for group in item.groups:
                title = f"{len(group)} wheels of {item.image.name}"
                if len(group) == 1:
                    title = group[0][0].split("-")[0].replace("_", "-")
                work = lambda group=group: self.wheels(item.wheel_target, group)  # noqa: E731
                keys.append(add(wheels_key(item.wheel_target, group), title, (), work))
            return keys

        for item in wanted:
            if item.digest not in names:
                continue
            needs = system(item)
            for one in _chain(item):
                needs += wheels(one)
                if one is not item and one.digest in names:
                    needs.append(f"image {one.digest}")
            add(f"image {item.digest}", item.image.name, needs, lambda item=item: self._image(item))  # type: ignore[misc]
        return tasks

    def _run(self, tasks: dict[str, _Task]) -> None:
        """Run all tasks, each after its dependencies. Skip the tasks that depend on a failed one."""
        waiting, running, failed = (
            dict(tasks),
            dict[Future[Any], _Task](),
            dict[str, BaseException](),
        )
        with ThreadPoolExecutor(max(1, self.jobs)) as pool:
            try:
                while waiting or running:
                    for key, task in list(waiting.items()):
                        broken = next((need for need in task.needs if need in failed), None)
                        if broken is not None:
                            failed[key] = failed[broken]
                            del waiting[key]
                        elif all(
                            need not in tasks or need in self.made for need in task.needs
                        ) and len(running) < max(1, self.jobs):
                            del waiting[key]
                            running[pool.submit(self._make, task)] = task
                    if not running:
                        continue
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task = running.pop(future)
                        problem = future.exception()
                        if problem is None:
                            self.made[task.key] = future.result()
                            continue
                        failed[task.key] = problem
                        # A full disk or a bug of goldnode: start no further task.
                        if not isinstance(problem, ImageError):
                            waiting.clear()
            except BaseException:
                # Ctrl-C: tasks in other threads poll this event and stop.
                self.stopped.set()
                raise
        if failed:
            raise next(iter(failed.values()))

    def _make(self, task: _Task) -> Any:
        started = time.monotonic()
        self.say(task.title, "started", 0.0)
        try:
            layer = task.make()
        except BaseException:
            self.say(task.title, "failed", time.monotonic() - started)
            raise
        self.say(task.title, "done", time.monotonic() - started)
        return layer

    # -- layers

    def _root(self, item: ImageRecipe) -> tuple[Layer, dict[str, Any]]:
        def make() -> tuple[Layer, dict[str, Any]]:
            with self.work() as work:
                repository = work / "repository"
                repository.mkdir()
                index = []
                for _, file, sha256 in item.debs:
                    shutil.copyfile(self.checked(file, sha256), repository / file)
                    index.append(stanza(repository / file, sha256, ImageError))
                (repository / "Packages").write_text("\n".join(index), encoding="utf-8")
                # apt reads the repository as the user _apt; temporary directories are private by
                # default.
                for path in (work, repository):
                    path.chmod(0o755)
                tar = work / "root.tar"
                architecture = item.image.architecture
                plan = engines.RootPlan(
                    item.codename,
                    (root_start(architecture), ROOT_HOOK),
                    item.epoch,
                    architecture,
                    SLIM,
                )
                engines.make_root(repository, [row[0] for row in item.debs], plan, tar, work=work)
                with tar.open("rb") as plain:
                    layer = write_members(
                        self.store.layout, normalised(plain, item.epoch, _LEFT_OF_ROOT)
                    )
                return layer, {"directories": _directories(tar)}

        return self.kept(root_key(item), make)

    def _files(self, item: ImageRecipe) -> tuple[Layer, dict[str, Any]]:
        entries = with_directories(
            _entry(path, row, item.epoch) for path, row in item.files.items()
        )
        folders = {entry.path: [entry.mode, 0, 0] for entry in entries if entry.kind == "directory"}
        return self.kept(
            files_key(item),
            lambda: (write_layer(self.store.layout, entries), {"directories": folders}),
        )

    def _system(self, item: ImageRecipe | None) -> list[tuple[Layer, dict[str, Any]]]:
        """Return the system layers of an image and its ancestors, lowest first.

        They form the engine's parent image. Layers of wheels are not among them.
        """
        if item is None:
            return []
        layers = self._system(item.parent)
        if item.parent is None:
            layers.append(self._root(item))
        if item.files:
            layers.append(self._files(item))
        if item.step:
            layers.append(self._step(item))
        return layers

    def _step(self, item: ImageRecipe) -> tuple[Layer, dict[str, Any]]:
        def make() -> tuple[Layer, dict[str, Any]]:
            below = self._system(item.parent) + ([self._files(item)] if item.files else [])
            known: dict[str, FolderRow] = {
                path: tuple(row)
                for _, about in below
                for path, row in about.get("directories", {}).items()
            }
            with self.work() as work:
                shown = work / "step"
                self._show(item, shown)
                base = layer_key(
                    "base", system_key(item.parent), files_key(item) if item.files else None
                )
                job = engines.EngineStep(
                    base,
                    parent=[layer for layer, _ in below],
                    layout=self.store.layout,
                    containerfile=item.containerfile,
                    directory=shown,
                    work=work,
                    epoch=item.epoch,
                    architecture=item.image.architecture,
                )
                return run_step(self, self.engine, job, known)

        return self.kept(step_key(item), make)

    def _show(self, item: ImageRecipe, into: Path) -> None:
        """Write the script's input directory: packages, and outlines of all libraries from the image's
        wheels.
        """
        write_input(self, item.debs, into)
        shapes = {
            path: shape
            for one in _chain(item)
            for row in one.wheels
            for path, shape in self.outlines(one.wheel_target, row).items()
        }
        folders = sorted(
            {
                "/".join(path.split("/")[:depth])
                for path in shapes
                for depth in range(1, path.count("/") + 1)
            }
        )
        (into / "folders").write_text("".join(f"{path}\n" for path in folders), encoding="utf-8")
        (into / "libraries").write_text(
            "".join(f"{path}\n" for path in sorted(shapes)), encoding="utf-8"
        )
        for path, shape in shapes.items():
            draw(shape, into / "outlines" / path)

    # -- the image

    def _image(self, item: ImageRecipe) -> Built:
        started = time.monotonic()
        layout = self.store.layout
        entries = [LayerEntry.text(IDENTITY, item.image_json, item.epoch)]
        if item.smoke is not None:
            entries.append(LayerEntry.text(SMOKE, item.smoke, item.epoch, 0o755))
        own: list[tuple[str, Layer]] = []
        if item.parent is None:
            own.append(
                (
                    f"goldnode root of {item.codename}: {len(item.debs)} packages",
                    self._root(item)[0],
                )
            )
        for group in item.groups:
            files = " ".join(row[0] for row in group)
            own.append((f"goldnode wheels: {files}", self.wheels(item.wheel_target, group)[0]))
        if item.files:
            own.append((f"goldnode links and settings of {item.image.name}", self._files(item)[0]))
        if item.step:
            what = f"dpkg: {len(item.debs)} packages" if item.debs else "ldconfig"
            own.append((f"goldnode {what}", self._step(item)[0]))
        own.append((step_of(item.image.name), write_layer(layout, with_directories(entries))))
        below = optional(self.made_image, item.parent)
        date = item.labels["org.opencontainers.image.created"]
        labels = item.all_labels
        if below is not None:
            labels["org.opencontainers.image.base.digest"] = below.digest
        settings = {
            "Env": [f"{name}={value}" for name, value in sorted(item.environment.items())],
            "Cmd": ["bash"],
            "Labels": labels,
        }
        image = put_image(layout, below, own, settings, date, architecture=item.image.architecture)
        built = item.record(image.digest, item.lock, item.tools, started)
        # The record comes last: a build with a record is complete.
        layout.set_ref(item.ref, image)
        self.store.record(built)
        return built

    def made_image(self, item: ImageRecipe) -> OciImage:
        """Return the built image of a recipe. Raises ImageError if the store does not contain it."""
        return self.store.layout.image(item.ref)


def _entry(path: str, row: Mapping[str, Any], epoch: int) -> LayerEntry:
    """Return the layer entry for one of a recipe's own files."""
    if "link" in row:
        return LayerEntry.link(path, row["link"], epoch)
    if "directory" in row:
        return LayerEntry(path, "directory", 0o755, epoch)
    return LayerEntry.text(path, row["text"], epoch, row["mode"])


def _directories(tar: Path) -> dict[str, list[int]]:
    """Return mode, owner and group of every directory in a tar, by path."""
    with tarfile.open(tar, "r:") as opened:
        return {
            clean(info.name): [info.mode, info.uid, info.gid]
            for info in opened
            if info.isdir() and clean(info.name)
        }


def _full_disk(root: Path) -> contextlib.AbstractContextManager[None]:
    remedy = "make room there and build again, or name another store"
    return full_disk(
        ImageError("the disk is full; what was built until now is kept", file=root, remedy=remedy)
    )


# -- twice


@dataclass(frozen=True)
class BuildDifference:
    """First difference between two builds of one recipe: the image and the item.

    An item reads `layer 3: usr/bin/x: content`.
    """

    image: str
    what: str


def twice(
    first: ImageStore,
    wanted: Sequence[ImageRecipe],
    engine: engines.Engine,
    place: Path,
    *,
    jobs: int = 2,
    say: Say = lambda *_: None,
) -> list[BuildDifference]:
    """Build `wanted`, which `first` contains, a second time in `place`, and return the differences.

    The second build uses only the downloaded files of the first. `place` is removed if nothing
    differs.
    """
    second = ImageStore(place)
    for item in wanted:
        for one in _chain(item):
            for file, sha256 in [
                *((row[1], row[2]) for row in one.debs),
                *((row[0], row[1]) for row in one.wheels),
            ]:
                target = second.pool / sha256 / file
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    # A hard link costs no space; it fails across file systems.
                    try:
                        os.link(first.pool / sha256 / file, target)
                    except OSError:
                        shutil.copyfile(first.pool / sha256 / file, target)
    other = engine.elsewhere(second.cache) if isinstance(engine, engines.Buildah) else engine
    Builder(second, other, jobs, say).build(wanted)
    differences = []
    for item in wanted:
        mine, its = first.layout.image(item.ref), second.layout.image(item.ref)
        if mine.digest != its.digest:
            differences.append(BuildDifference(item.image.name, differing(mine, its)))
    if not differences:
        shutil.rmtree(place, ignore_errors=True)
    return differences


def differing(one: OciImage, two: OciImage) -> str:
    """Describe the first difference between two images, and count the further files that differ.

    Reads the first pair of layers that differ.
    """
    ours, theirs = one.config["rootfs"]["diff_ids"], two.config["rootfs"]["diff_ids"]
    if len(ours) != len(theirs):
        return f"{len(ours)} layers against {len(theirs)}"
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        if mine != its:
            return (
                f"layer {number} ({one.config['history'][number]['created_by']}): "
                f"{_differing_files(_members(one, number), _members(two, number))}"
            )
    for name, here, there in (
        ("configuration", one.config, two.config),
        ("manifest", one.manifest, two.manifest),
    ):
        if here != there:
            keys = [key for key in sorted({*here, *there}) if here.get(key) != there.get(key)]
            # The uncompressed layers are equal here, so only their compression can differ.
            return f"{name}: {', '.join(keys)}" + (
                " (the compressor)" if keys == ["layers"] else ""
            )
    return "nothing"


def _members(image: OciImage, number: int) -> dict[str, dict[str, Any]]:
    members = {}
    with image.layer(number) as tar:
        for place, info in enumerate(tar):
            content = None
            if info.isreg():
                opened = tar.extractfile(info)
                content = hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]
            members[info.name] = {
                "type": info.type,
                "mode": oct(info.mode),
                "owner": (info.uid, info.gid),
                "date": info.mtime,
                "size": info.size,
                "link": info.linkname,
                "place in the layer": place,
                "content": content,
            }
    return members


def _differing_files(
    one: Mapping[str, Mapping[str, Any]], two: Mapping[str, Mapping[str, Any]]
) -> str:
    told = [f"/{path} is in one of them only" for path in sorted(one.keys() ^ two.keys())]
    for path in sorted(one.keys() & two.keys()):
        fields = [name for name in one[path] if one[path][name] != two[path][name]]
        if fields and fields != ["place in the layer"]:
            told.append(
                f"/{path}: {', '.join(field for field in fields if field != 'place in the layer')}"
            )
    if not told:
        return "the same files in another order"
    return told[0] + (
        f" (and {len(told) - 1} more: {'; '.join(told[1:6])})" if len(told) > 1 else ""
    )
