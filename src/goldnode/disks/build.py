"""Build of the disk image of a class: root filesystem, first boot, checks, disk, formats, manifest.

A build is named after the hash of its inputs: class document, disk lock, definition, the parts of goldnode
that shape a disk, and the tools. A build that already exists is not repeated. The root filesystem is cached,
so that a change after it repeats only the later stages.

A failed or killed build leaves no directory in `built`; the next run removes its leftovers. If an existing
build lacks a format, that format is added. Everything else about the build stays, including its verification
and evidence.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from goldnode.core.data import tree_path
from goldnode.core.errors import DiskError, nearest
from goldnode.core.extras import require
from goldnode.core.files import full_disk, replace_file, sync
from goldnode.core.program_file import payload
from goldnode.disks import firstboot, formats, hygiene, rootfs
from goldnode.disks import tools as disktools
from goldnode.disks.assemble import MIB, Assembled, Sizes, Spec, assemble
from goldnode.disks.locking import DiskLock, DiskTarget, inputs_digest
from goldnode.disks.model import (
    BUILD_LOG,
    DEFAULT_FORMATS,
    FORMATS,
    MANIFEST,
    SUMS,
    BuiltDisk,
    DiskDriver,
    DiskFile,
    DiskPackage,
    DiskSystem,
    Hygiene,
    PendingWork,
    Raw,
)
from goldnode.disks.sanitise import date
from goldnode.disks.store import DiskStore
from goldnode.node.ground.document import ClassDocument
from goldnode.node.state.domains.tuning import cmdline_words
from goldnode.oci.engines import root_start

Say = Callable[[str, str, float], None]  # stage, state (started, done, failed), seconds

# Parts of this source tree that shape a root filesystem, and a disk. A directory includes everything below
# it.
ROOT_PARTS = (
    *(
        "src/goldnode/disks/rootfs.py",
        "src/goldnode/disks/bytecode.py",
        "src/goldnode/disks/offline.py",
        "src/goldnode/disks/sanitise.py",
        "src/goldnode/oci/engines.py",
        "images/disks/initramfs",
    ),
    *(
        "src/goldnode/ansible/modules",
        "src/goldnode/ansible/action",
        "roles",
        "site.yml",
        "ansible.cfg",
    ),
)
DISK_PARTS = (
    *(
        "src/goldnode/disks/architecture.py",
        "src/goldnode/disks/assemble.py",
        "src/goldnode/disks/ext4.py",
        "src/goldnode/disks/esp.py",
        "src/goldnode/disks/gpt.py",
    ),
    *(
        "src/goldnode/disks/firstboot.py",
        "src/goldnode/disks/build.py",
        "src/goldnode/disks/formats.py",
        "src/goldnode/disks/containers.py",
        "src/goldnode/disks/vhd.py",
        "src/goldnode/disks/vmdk.py",
        "src/goldnode/disks/tools.py",
    ),
    "images/disks/files",
)
# Namespace of the UUIDs that are derived from a disk's name. Changing it changes every disk.
_NAMESPACE = uuid.UUID("6f0f8a0e-6d1c-5d1e-9a53-0f2b6a4f6f5e")


@dataclass(frozen=True)
class DiskRecipe:
    """A planned build: all its inputs, and the name derived from them."""

    item: DiskTarget
    lock: DiskLock
    document: Mapping[str, Any]
    tools: Mapping[str, str]

    @cached_property
    def root_key(self) -> str:
        """Return the hash of everything that determines the root filesystem."""
        parts = [
            rootfs.RECIPE,
            root_start(self.item.stack.item.os.architecture),
            self.lock.digest,
            self.document,
            sorted(self.item.disk.packages),
            parts_digest(ROOT_PARTS),
        ]
        return inputs_digest(
            [
                *parts,
                payload(content=False)["sha256"],
                {name: self.tools[name] for name in rootfs.SHAPING if name in self.tools},
            ]
        )

    @cached_property
    def build_id(self) -> str:
        """Return the first 12 hex digits of the hash of all inputs."""
        shaping = self.item.definition.shaping(self.item.disk)
        return inputs_digest([self.root_key, shaping, parts_digest(DISK_PARTS), dict(self.tools)])[
            :12
        ]

    @property
    def name(self) -> str:
        """Return CLASS-BUILDID."""
        return f"{self.item.name}-{self.build_id}"

    @property
    def command_line(self) -> str:
        """Return the kernel's command line: the words of the definition and those of the class's policy."""
        return " ".join(
            [*self.item.disk.shape.command_line, *cmdline_words(cast(ClassDocument, self.document))]
        )

    @property
    def spec(self) -> Spec:
        """Return the parameters of the disk besides its root."""
        shape = self.item.disk.shape
        return Spec(
            name=self.name,
            layout=shape.layout,
            loader=shape.loader,
            sizes=Sizes(esp=shape.esp_mib * MIB, root=shape.root_mib * MIB),
            # Derived, not random: the same build has the same UUIDs everywhere.
            seed=uuid.uuid5(_NAMESPACE, self.name),
            epoch=self.lock.epoch,
            command_line=self.command_line,
            release=str(self.document["kernel"]["release"]),
            build_id=self.build_id,
            words=" ".join(shape.command_line),
            architecture=self.item.stack.item.os.architecture,
        )


def parts_digest(names: Sequence[str]) -> str:
    """Return the hex SHA-256 over files of the source tree, their paths and executable bits.

    A directory includes all its files.
    """
    digest = hashlib.sha256()
    for name in names:
        place = tree_path(name)
        if place.is_dir():
            files = sorted(path for path in place.rglob("*") if path.is_file())
        elif place.is_file():
            files = [place]
        else:
            files = []
        for path in files:
            # Python writes these when it likes, and they have dates.
            if "__pycache__" not in path.parts:
                executable = bool(path.stat().st_mode & 0o100)
                digest.update(
                    f"{Path(name) / path.relative_to(place)}\0{executable}\0{path.stat().st_size}\0".encode()
                    + path.read_bytes()
                )
    return digest.hexdigest()


def recipe(item: DiskTarget, lock: DiskLock) -> DiskRecipe:
    """Plan the build of `item` from its lock.

    Raises DiskError if a tool is missing or the class must not be deployed.
    """
    refuse_blocked(item)
    return DiskRecipe(
        item,
        lock,
        item.document(lock.modules),
        {**rootfs.tools(item.stack.item.os.architecture), **disktools.versions()},
    )


def refuse_blocked(item: DiskTarget) -> None:
    """Raise the error of a fatal compatibility finding of the class: it must not reach a node."""
    from goldnode.classdoc.findings import findings_of_class  # start-up time
    from goldnode.compat.report import error

    for finding in findings_of_class(item.name, item.catalog, item.site):
        if finding.fatal:
            raise error(finding)


def build(
    recipe: DiskRecipe,
    store: DiskStore,
    *,
    kinds: Sequence[str] = DEFAULT_FORMATS,
    say: Say = lambda what, state, seconds: None,
    fresh: bool = False,
) -> tuple[BuiltDisk, bool]:
    """Build the disk of `recipe` into `store`. Return it and whether anything was built.

    The packages must already be in the store's pool. `kinds` are formats (keys of `FORMATS`); the raw disk is
    always kept. `fresh` ignores cached root filesystems.

    Raises DiskError if a package is missing or damaged, a stage or a check of the root filesystem fails, or
    the disk is full.
    """
    for kind in kinds:
        if kind not in FORMATS:
            raise DiskError(
                f'there is no format "{kind}" of a disk image', remedy=nearest(kind, FORMATS)
            )
    # In the order of FORMATS, so that a manifest does not depend on the order of options.
    kinds = [kind for kind in FORMATS if kind in {"raw", *kinds}]
    target = store.built / recipe.item.name / recipe.build_id
    known = _known(target, fresh)
    if known is not None and not _missing(known, kinds):
        return known, False
    require("ansible", "images")
    rootfs.needs_root()
    stages = _Stages(say)
    with _full_disk(store.root), store.work(recipe.build_id) as work:
        known = _known(
            target, fresh
        )  # another run may have built it while this one waited for the lock
        if known is not None:
            kinds = _missing(known, kinds)
            if not kinds:
                return known, False
            _refuse_followed(known, kinds, store)
        check_room(store, recipe.lock)
        root, pending, cached = _root(recipe, store, work, stages, fresh)
        spec = recipe.spec
        with stages("preparing the first boot"):
            # Not in the cached root: they depend on the build id.
            firstboot.install(root, spec)
            date(root, spec.epoch)
        with stages("checking the root filesystem"):
            checks = hygiene.check(root, recipe.item.definition.document.hygiene.waivers)
            refuse_unclean(checks)
        out = work / "out"
        out.mkdir()
        with stages("assembling the disk"):
            made = assemble(root, spec, out / f"{spec.name}.raw", lambda text: None)
        if known is not None:
            _refuse_other(known, made.sha256)
        files = [DiskFile(made.raw.name, "raw", made.size, made.sha256)]
        for kind in (kind for kind in kinds if kind != "raw"):
            with stages(f"writing {kind}"):
                file = out / f"{spec.name}{FORMATS[kind]}"
                files.append(
                    formats.write(
                        made.raw,
                        root,
                        kind,
                        file,
                        epoch=spec.epoch,
                        release=spec.release,
                        architecture=spec.architecture,
                    )
                )
        if known is not None:
            # The verification and the evidence of the present build stay valid: its raw disk is the same.
            return _add(known, files, out), True
        disk = replace(_manifest(recipe, made, files, pending, checks), directory=target)
        replace_file(out / SUMS, _sums({item.file: item.sha256 for item in files}))
        # Apart from the manifest: times and machines differ between equal builds.
        log = {
            "seconds": stages.seconds,
            "root_cached": cached,
            "machine": platform.machine(),
            "processors": os.cpu_count(),
        }
        log["built"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        replace_file(out / BUILD_LOG, (json.dumps(log, indent=1, sort_keys=True) + "\n").encode())
        # The manifest is last: it marks a complete build.
        replace_file(out / MANIFEST, disk.text().encode())
        # Files before the rename, then the rename: a power cut leaves the whole build or none.
        sync(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Safe to replace: it has no manifest, or it is a second build in the temporary store of `twice`.
        if target.exists():
            target.replace(work / "old")
        out.replace(target)
        sync(target.parent)
    return BuiltDisk.load(target), True


def _known(target: Path, fresh: bool) -> BuiltDisk | None:
    return BuiltDisk.load(target) if (target / MANIFEST).is_file() and not fresh else None


def _sums(files: Mapping[str, str]) -> bytes:
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items())).encode()


def _add(known: BuiltDisk, made: Sequence[DiskFile], out: Path) -> BuiltDisk:
    """Add the formats in `out` to an existing build.

    The manifest is written last. If the run is killed before that, the build is as before plus one file,
    which the next run writes again. The manifest does not change if it lists the formats already: the build
    was pulled without them.
    """
    rows = {row.format: row for row in known.files}
    for row in made:
        if row.format == "raw" and (known.directory / row.file).is_file():
            continue
        if rows.setdefault(row.format, row) != row:
            raise DiskError(
                f"{row.file} was made again and is not the same: {row.sha256} instead of "
                f"{rows[row.format].sha256}",
                file=known.directory,
                remedy="build with --twice, which names the files that differ",
            )
        (out / row.file).replace(known.directory / row.file)
    text = replace(known, files=tuple(rows[kind] for kind in FORMATS if kind in rows)).text()
    sums = known.directory / SUMS
    if sums.is_file():
        listed = dict(
            line.split("  ", 1)[::-1] for line in sums.read_text(encoding="utf-8").splitlines()
        )
    else:
        listed = {}
    listed |= {row.file: row.sha256 for row in made}
    if (
        text != known.text() and MANIFEST in listed
    ):  # only SHA256SUMS of a pulled build lists the manifest
        listed[MANIFEST] = hashlib.sha256(text.encode()).hexdigest()
    replace_file(sums, _sums(listed))
    sync(known.directory)
    if text != known.text():
        replace_file(known.directory / MANIFEST, text.encode())
        sync(known.directory)
    return BuiltDisk.load(known.directory)


def _refuse_followed(known: BuiltDisk, kinds: Sequence[str], store: DiskStore) -> None:
    """Raise DiskError if new formats would change the identity of a build that a channel points to, or
    pointed to.

    The manifest identifies a build and lists its formats.
    """
    fresh = [kind for kind in kinds if kind not in {row.format for row in known.files}]
    if not fresh:
        return
    from goldnode.disks import places
    from goldnode.disks.contents import digest_of
    from goldnode.disks.gc import needed

    why = needed(places.ChannelStore(store.root)).digests.get(digest_of(known))
    if why is not None:
        raise DiskError(
            f"{known.name} is followed ({why}), and would be another build with {', '.join(fresh)}: its "
            "manifest names its formats",
            file=known.directory,
            remedy="make that format in another store (--store)",
        )


def _missing(disk: BuiltDisk, kinds: Sequence[str]) -> list[str]:
    have = {item.format for item in disk.files if (disk.directory / item.file).is_file()}
    return [kind for kind in kinds if kind not in have]


def _refuse_other(known: BuiltDisk, sha256: str) -> None:
    """Raise DiskError if a rebuild for an additional format gave a different disk."""
    if known.raw.sha256 != sha256:
        raise DiskError(
            f"{known.name} was built again and is not the same: {sha256} instead of {known.raw.sha256}",
            file=known.directory,
            remedy="build with --twice, which names the files that differ",
        )


def _root(
    recipe: DiskRecipe, store: DiskStore, work: Path, stages: _Stages, fresh: bool
) -> tuple[Path, tuple[PendingWork, ...], bool]:
    """Return the root filesystem: unpacked from the store's cache, or built now and cached there."""
    root, cached = work / "root", store.cache / "roots" / f"{recipe.root_key[:32]}.tar.zst"
    if cached.is_file() and not fresh:
        with stages("unpacking the root filesystem"):
            rootfs.unpack(cached, root)
            rows = json.loads((root / rootfs.PENDING.lstrip("/")).read_text(encoding="utf-8"))[
                "pending"
            ]
        return root, tuple(PendingWork(**row) for row in rows), True
    passing = work / "passing"
    passing.mkdir()
    with stages("the root filesystem"):
        made = rootfs.make(
            recipe.item,
            recipe.lock,
            recipe.document,
            root,
            pool=store.pool,
            work=passing,
            say=stages.inside,
        )
    shutil.rmtree(passing)
    if not fresh:
        with stages("keeping the root filesystem"):
            rootfs.pack(root, cached)
    return root, made.pending, False


def refuse_unclean(checks: Sequence[Hygiene]) -> None:
    """Raise DiskError if any check failed."""
    failed = [row for row in checks if row.outcome == "failed"]
    if failed:
        raise DiskError(
            f"{len(failed)} checks of the root filesystem fail: "
            + "; ".join(f"{row.check}: {row.detail}" for row in failed),
            remedy="correct its cause; exceptions go into `hygiene.waivers` of the definition, with a reason",
        )


def _manifest(
    recipe: DiskRecipe,
    made: Assembled,
    files: Sequence[DiskFile],
    pending: Sequence[PendingWork],
    checks: Sequence[Hygiene],
) -> BuiltDisk:
    document, lock = recipe.document, recipe.lock
    driver = None
    if document["driver"] is not None and document["driver"]["version"] is not None:
        driver = DiskDriver(document["driver"]["module"], document["driver"]["version"])
    system = document["os"]
    return BuiltDisk(
        directory=made.raw.parent,
        name=recipe.name,
        class_=recipe.item.name,
        build_id=recipe.build_id,
        simulated=bool(document["simulated"]),
        class_digest=document["digest"],
        stack=lock.stack,
        stack_lock=lock.stack_lock,
        disk_lock=lock.digest,
        os=DiskSystem(system["id"], system["version"], system["codename"], system["architecture"]),
        kernel=document["kernel"]["release"],
        driver=driver,
        modules=tuple(lock.modules.names) if lock.modules is not None else (),
        loader=recipe.spec.loader,
        layout=recipe.spec.layout,
        epoch=lock.epoch,
        partitions=made.partitions,
        raw=Raw(made.size, made.sha256, made.allocated),
        files=tuple(files),
        packages=tuple(
            DiskPackage(deb.name, deb.version, deb.architecture, deb.sha256) for deb in lock.debs
        ),
        pending=tuple(pending),
        hygiene=tuple(checks),
        tools=dict(recipe.tools),
        listen=recipe.item.disk.shape.listen,
    )


# -- twice


def twice(
    recipe: DiskRecipe,
    store: DiskStore,
    place: Path,
    *,
    say: Say = lambda what, state, seconds: None,
) -> list[str]:
    """Build the disk a second time in a store of its own at `place`, from the pool alone, reusing nothing of
    the first build.

    Return one line per difference, with the files of the root by name; an empty list if both builds are
    identical. Removes `place` if they are.
    """
    other = DiskStore(place)
    for deb in recipe.lock.debs:
        here = other.pool / deb.sha256
        if not here.exists():
            # The packages are verified by their hash when they are read, so links are enough.
            here.symlink_to(store.pool / deb.sha256)
    first = BuiltDisk.load(store.built / recipe.item.name / recipe.build_id)
    second, _ = build(
        recipe, other, kinds=[item.format for item in first.files], say=say, fresh=True
    )
    if first.text() == second.text():
        shutil.rmtree(place)
        return []
    from goldnode.disks.compare import differences  # start-up time: only for --twice

    # Compare the manifests only if the disks are equal: their fields are less specific.
    differing = [str(row) for row in differences(first.path("raw"), second.path("raw"))]
    mine, second_files = first.manifest(), second.manifest()
    return differing or [f"{MANIFEST}: `{key}`" for key in mine if mine[key] != second_files[key]]


# -- small things


class _Stages:
    """Reporter of build stages. Calls `say` when a stage begins and ends, and records how long it took."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.seconds: dict[str, float] = {}
        self._part: tuple[str, float] | None = None

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        self.say(what, "started", 0.0)
        try:
            yield
            state = "done"
        except BaseException:
            # KeyboardInterrupt too: a stage that was stopped must not look as if it still ran.
            state = "failed"
            raise
        finally:
            self._end()
            seconds = time.monotonic() - begun
            self.seconds[what] = round(seconds, 1)
            self.say(what, state, seconds)

    def inside(self, what: str) -> None:
        """Begin a part of the current stage; ends the previous part."""
        self._end()
        self._part = (what, time.monotonic())
        self.say(what, "started", 0.0)

    def _end(self) -> None:
        if self._part is not None:
            what, begun = self._part
            self._part = None
            self.seconds[what] = round(time.monotonic() - begun, 1)
            self.say(what, "done", time.monotonic() - begun)


def check_room(store: DiskStore, lock: DiskLock) -> None:
    """Raise DiskError if the build would not fit, before anything is written.

    A package unpacks to about five times its size. The root filesystem exists once as a tree, once in the
    disk, and twice packed.
    """
    wanted, have = 13 * lock.size, store.free()
    if have < wanted:
        raise DiskError(
            f"a build takes up to {wanted / 1e9:.1f} GB, and {have / 1e9:.1f} GB are free",
            file=store.root,
            remedy="make room there, or name another store with --store",
        )


def _full_disk(root: Path) -> AbstractContextManager[None]:
    return full_disk(
        DiskError(
            "the disk is full; nothing is left of this build",
            file=root,
            remedy="make room there and build again",
        )
    )
