"""The recipe of a derived image, and its build: a base's layers, packages, wheels, a team's files, and an identity.

Without packages nothing of the image is run, so the build needs neither root nor an engine nor a network. An engine
runs dpkg in it, without a network. Like any
recipe, this one is a pure function of the declaration, its lock, the files and the tools: two
builds have one digest.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from goldnode.channels.locks import using
from goldnode.core.errors import ImageError
from goldnode.gpuprogram.smoke import programs
from goldnode.images.build import BuildDifference, differing
from goldnode.images.declaration import Declaration, expanded
from goldnode.images.derived_base import DerivedBase
from goldnode.images.engine_layer import DebRow, FolderRow, run_step, write_input
from goldnode.images.identified import IdentifiedRecipe
from goldnode.images.imagelock import DerivedLock, dump_derived_lock, wheel_rows
from goldnode.images.layercache import (
    LayerCache,
    WheelRow,
    WheelTarget,
    layer_key,
    put_image,
    wheel_groups,
)
from goldnode.images.recipe import CONTAINERFILE, IDENTITY, LEFTOVERS, SCRIPT
from goldnode.images.store import ImageStore
from goldnode.images.team_files import TeamFile
from goldnode.oci import engines
from goldnode.oci.identity import (
    BASE_DIGEST,
    BASE_NAME,
    REPOSITORY,
    ROOTFS,
    rootfs_digest,
    step_of,
)
from goldnode.oci.layers import (
    LEVEL,
    MEMBER,
    Layer,
    LayerEntry,
    WheelLayout,
    tools,
    with_directories,
    write_layer,
)
from goldnode.oci.model import AMD64, LABELS, Built, ImageSpec

# Increase it when the same inputs are built in a different way.
DERIVED = 1
LIBRARIES = "/usr/local/lib"  # where wheels put libraries for the linker
# Labels of the base that describe content which the derived image has, too.
_OF_CONTENT = (
    "backend",
    "runtime",
    "os",
    "architectures",
    "licences",
    "parts",
    "min-driver",
    "cuda-compat",
)


@dataclass(frozen=True)
class DerivedRecipe(IdentifiedRecipe):
    """Everything that determines a derived image, and its hash.

    `libraries`: wheels put libraries into a directory that the base's linker does not search. `engine`: name and
    version of the engine that installs its packages, if it has any.
    """

    declared: Declaration
    base: DerivedBase
    lock: DerivedLock
    files: tuple[TeamFile, ...]
    libraries: bool = False
    engine: str = ""

    @property
    def debs(self) -> list[DebRow]:
        """Packages as (name, file, sha256), in the order in which dpkg gets them."""
        return [(item.name, item.file, item.sha256) for item in self.lock.debs]

    @property
    def wheels(self) -> list[WheelRow]:
        """Wheels as (file, sha256, size)."""
        return sorted((item.file, item.sha256, item.size) for item in self.lock.wheels)

    @property
    def wheel_target(self) -> WheelTarget:
        """Directories that its wheels go to."""
        return WheelTarget(WheelLayout(self.base.python))

    @cached_property
    def image(self) -> ImageSpec:
        """Return the image as evidence names it."""
        data, base = self.declared.data, self.base.identity
        runtime = ".".join(base.runtime.split(".")[:2]) if base.runtime[:1].isdigit() else ""
        return ImageSpec(
            name=data.name,
            backend=base.backend,
            version=base.runtime,
            flavour=f"{base.backend}{runtime}",
            os=base.os,
            parent=base.ref,
            repository=data.name,
            release=data.version,
        )

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of the image's configuration, without its labels."""
        data, base = self.declared.data, self.base.settings
        before = self.base.image.environment
        environment = {
            **before,
            **{name: expanded(value, before) for name, value in data.env.items()},
        }
        if self.libraries and LIBRARIES not in environment.get("LD_LIBRARY_PATH", "").split(":"):
            search = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{search}:{LIBRARIES}" if search else LIBRARIES
        base["Env"] = [f"{name}={value}" for name, value in sorted(environment.items())]
        if data.entrypoint is not None:
            base["Entrypoint"] = list(data.entrypoint)
            # The base's command would become arguments of this program.
            base.pop("Cmd", None)
        if data.command is not None:
            base["Cmd"] = list(data.command)
        if data.user is not None:
            base["User"] = data.user
        if data.workdir is not None:
            base["WorkingDir"] = data.workdir
        return base

    @cached_property
    def tests(self) -> list[dict[str, Any]]:
        """Smoke tests of teams: those of a derived base, and its own, which replace one of the same name."""
        own = [
            {
                "name": test.name,
                "run": list(test.run),
                "seconds": test.seconds,
                "tier": test.tier,
                "workdir": str(self.settings.get("WorkingDir") or "/"),
            }
            for test in self.declared.data.tests
        ]
        names = {test["name"] for test in own}
        try:
            inherited = programs.declared(self.base.contents.image)
        except ValueError as problem:
            raise ImageError(
                f"/{IDENTITY} of the base: {problem}", remedy="build the base again"
            ) from problem
        return [*(test for test in inherited if test["name"] not in names), *own]

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels that do not depend on the finished recipe."""
        data, base = self.declared.data, self.base.image.labels
        free = data.redistribution == "free" and base.get(f"{LABELS}redistribution") == "free"
        labels: dict[str, str] = {
            **data.labels,
            "org.opencontainers.image.created": self.created,
            "org.opencontainers.image.title": data.title or data.name,
            "org.opencontainers.image.version": data.version,
            BASE_NAME: self.base.identity.ref,
            BASE_DIGEST: self.base.image.digest,
            REPOSITORY: data.name,
            f"{LABELS}version": data.version,
            f"{LABELS}flavour": self.image.flavour,
            f"{LABELS}lock": self.lock.digest,
            f"{LABELS}redistribution": "free" if free else "private",
        }
        labels |= {
            LABELS + name: base[LABELS + name] for name in _OF_CONTENT if LABELS + name in base
        }
        return labels

    @property
    def created(self) -> str:
        """Date of the image: that of its lock."""
        return dt.datetime.fromtimestamp(self.lock.epoch, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the recipe as JSON. Equal images have equal documents."""
        document: dict[str, Any] = {
            "derived": DERIVED,
            "image": self.image.name,
            "base": self.base.image.digest,
            "lock": self.lock.digest,
            "epoch": self.lock.epoch,
            "tools": tools(),
            "compression": [LEVEL, MEMBER],
            "place": self.wheel_target.row,
            "groups": [[row[1] for row in group] for group in wheel_groups(self.wheels)],
            "files": [file.row for file in self.files],
            "settings": self.settings,
            "labels": self.labels,
        }
        # Recipes without packages are older than these keys.
        if self.debs:
            document |= {
                "debs": [list(row) for row in self.debs],
                "engine": self.engine,
                "text": CONTAINERFILE,
                "script": SCRIPT,
                "leftovers": LEFTOVERS,
            }
        if self.tests:
            document["tests"] = self.tests
        return document

    @property
    def image_json(self) -> bytes:
        """Return the image's description of itself, at /usr/lib/goldnode/image.json."""
        base = self.base.contents.image
        inherited = ("os", "python", "cuda_home", "min_driver", "purity")
        document: dict[str, Any] = {
            **{name: base[name] for name in inherited if name in base},
            "schema": "goldnode.image/1",
            "name": self.image.name,
            "backend": self.image.backend,
            "version": self.image.version,
            "flavour": self.image.flavour,
            "release": self.image.release,
            "parts": base.get("parts", {}),
            "base": {"name": self.base.identity.ref, "digest": self.base.image.digest},
            "lock": self.lock.digest,
            "resolved": self.lock.resolved,
            "wheels": [
                *base.get("wheels", ()),
                *wheel_rows(self.lock.wheels),
            ],
        }
        if self.tests:
            document["tests"] = self.tests
        return self.description(document)


def check_user(declared: Declaration, base: DerivedBase) -> None:
    """Raise ImageError for a user that containers of the image could not run as."""
    user = declared.data.user
    if user is None or re.fullmatch(r"\d+(?::\d+)?", user):
        return
    text = (base.image.read("etc/passwd") or b"").decode(errors="replace")
    known = [line.partition(":")[0] for line in text.splitlines()]
    if user not in known:
        raise declared.error(
            f'the base has no user "{user}"',
            "user",
            remedy="use a number, for instance 10001:10001",
        )


# Build


@dataclass
class DerivedBuilder(LayerCache):
    """Builder of derived images into a store. Images with packages need an engine, which installs them."""

    engine: engines.Engine | None = None

    def built(self, item: DerivedRecipe) -> Built | None:
        """Return the complete build of a recipe in the store, if there is one."""
        built, ref = self.store.built().get(item.build_id), self.store.layout.refs().get(item.ref)
        return built if self.store.whole(item, built, ref) else None

    def build(self, item: DerivedRecipe) -> Built:
        """Build a recipe, or return its build. The store must have its wheels. Raises ImageError."""
        with using(self.store.layout):
            return self.built(item) or self._build(item)

    def has_libraries(self, item: DerivedRecipe) -> bool:
        """Return whether a wheel has libraries that the base's linker would have to know of."""
        return any(self.outlines(item.wheel_target, row) for row in item.wheels)

    def _build(self, item: DerivedRecipe) -> Built:
        started = time.monotonic()
        layout = self.store.layout
        own: list[tuple[str, Layer]] = []
        known: dict[str, Any] = {}
        if item.debs:
            with self.alone():
                packages, known = self._packages(item)
            own.append((f"goldnode dpkg: {len(item.debs)} packages", packages))
        for group in wheel_groups(item.wheels):
            names = " ".join(row[0] for row in group)
            own.append((f"goldnode wheels: {names}", self.wheels(item.wheel_target, group)[0]))
        if item.files:
            own.append((f"goldnode files of {item.image.name}", self._files(item, known)))
        entries = with_directories([LayerEntry.text(IDENTITY, item.image_json, item.lock.epoch)])
        own.append((step_of(item.image.name), write_layer(layout, entries)))
        diffs = [*item.base.image.config["rootfs"]["diff_ids"], *(layer.diff for _, layer in own)]
        labels = {**item.all_labels, ROOTFS: rootfs_digest(diffs)}
        image = put_image(
            layout, item.base.image, own, {**item.settings, "Labels": labels}, item.created
        )
        built = item.record(image.digest, item.lock.digest, tools(), started)
        layout.set_ref(item.ref, image)
        self.store.write(
            lock_of_build(self.store, item.build_id), dump_derived_lock(item.lock).encode()
        )
        self.store.record(built)
        return built

    def _packages(self, item: DerivedRecipe) -> tuple[Layer, dict[str, Any]]:
        """Return the layer of its packages, which dpkg installs on all layers of the base."""
        image, engine = item.base.image, self.engine
        assert engine is not None  # noqa: S101 - the caller has one
        diffs = image.config["rootfs"]["diff_ids"]

        def make() -> tuple[Layer, dict[str, Any]]:
            known: dict[str, FolderRow] = {
                path: (entry.mode, entry.uid, entry.gid)
                for path, entry in item.base.contents.snapshot.entries.items()
                if entry.kind == "d"
            }
            with self.work() as work:
                write_input(self, item.debs, work / "step")
                step = engines.EngineStep(
                    layer_key("base of a derived image", diffs),
                    parent=[Layer(*row) for row in zip(diffs, image.layers, strict=True)],
                    layout=self.store.layout,
                    containerfile=CONTAINERFILE,
                    directory=work / "step",
                    work=work,
                    epoch=item.lock.epoch,
                    architecture=image.config.get("architecture", AMD64),
                )
                return run_step(self, engine, step, known)

        hashes = [row[2] for row in item.debs]
        key = layer_key(
            "packages",
            diffs,
            hashes,
            item.lock.epoch,
            item.engine,
            CONTAINERFILE,
            SCRIPT,
            LEFTOVERS,
        )
        return self.kept(key, make)

    def _files(self, item: DerivedRecipe, packages: Mapping[str, Any]) -> Layer:
        snapshot, epoch = item.base.contents.snapshot, item.lock.epoch
        folders = packages.get("directories", {})
        _check_links(item, packages.get("links", ()))
        # Directories that the base or a package has keep their modes and owners.
        entries = [
            entry
            for entry in with_directories(file.entry(epoch) for file in item.files)
            if entry.kind != "directory"
            or not any(
                entry.path in known for known in (snapshot.entries, snapshot.folders, folders)
            )
        ]
        key = layer_key(
            "team files", [file.row for file in item.files], [row.path for row in entries], epoch
        )
        return self.kept(key, lambda: (write_layer(self.store.layout, entries), {}))[0]


def _check_links(item: DerivedRecipe, links: Sequence[str]) -> None:
    """Raise ImageError for a file below a link of a package: its layer would replace the link by a directory."""
    for file in item.files:
        link = next((link for link in links if file.path.startswith(f"{link}/")), None)
        if link is not None:
            raise item.declared.error(
                f"/{file.path} is below /{link}, which is a link of a package",
                "files",
                remedy="use the directory that it points to",
            )


def lock_of_build(store: ImageStore, build_id: str) -> Path:
    """Return the file of the store with the lock of a derived build, from which its evidence is written."""
    return store.records / f"{build_id}.lock.yml"


def twice(
    first: ImageStore, item: DerivedRecipe, place: Path, engine: engines.Engine | None = None
) -> list[BuildDifference]:
    """Build a recipe, which `first` contains, a second time in `place`. Return the difference, if there is one.

    Only the base, the packages and the wheels of the first store are used. `place` is removed if nothing differs.
    """
    second = ImageStore(place)
    base = item.base.image
    digests = [base.digest, base.manifest["config"]["digest"], *(row.digest for row in base.layers)]
    for source, target in (
        *((first.layout.path(digest), second.layout.path(digest)) for digest in digests),
        *((first.pool / row[1] / row[0], second.pool / row[1] / row[0]) for row in item.wheels),
        *((first.pool / row[2] / row[1], second.pool / row[2] / row[1]) for row in item.debs),
    ):
        _linked(source, target)
    other = engine.elsewhere(second.cache) if isinstance(engine, engines.Buildah) else engine
    DerivedBuilder(second, other).build(item)
    mine, its = first.layout.image(item.ref), second.layout.image(item.ref)
    if mine.digest != its.digest:
        return [BuildDifference(item.image.name, differing(mine, its))]
    shutil.rmtree(place, ignore_errors=True)
    return []


def _linked(source: Path, target: Path) -> None:
    """Copy a file, by a hard link if possible: it costs no space."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def changes(before: DerivedBase, after: DerivedBase) -> str:
    """Return the differences of two bases: packages and parts by version; "" if they are equal."""
    from goldnode.lock.locked_files import version_changes  # start-up time

    return version_changes(_versions(before), _versions(after))


def _versions(base: DerivedBase) -> Mapping[str, str]:
    parts = base.contents.image.get("parts", {})
    return {
        **{str(name): str(version) for name, version in parts.items()},
        **{row.name: row.version for row in base.contents.packages},
    }


def locked_changes(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Return the differences between the packages or wheels of two locks; "" if they are equal."""
    from goldnode.lock.locked_files import version_changes

    return version_changes(
        {row.name: row.version for row in before}, {row.name: row.version for row in after}
    )
