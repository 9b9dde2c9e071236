"""Build of kernel modules in a clean root: from exactly the lock's packages, without a network,
once per set of inputs.

mmdebstrap makes the root from packages whose hashes apt has validated against the archive's index
and goldnode against the lock. Headers, kbuild and the DKMS source are only unpacked, so no
maintainer script builds anything by itself. Then DKMS, the build system of the driver packages,
runs in namespaces of its own. The root has no secrets: modules are signed later, outside of it
(`modpackage`). A failed build is a result and is stored like a successful one. A build that was
interrupted, or that ran out of disk or memory, is not a result.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import Kernel, Stack
from goldnode.core import progress
from goldnode.core.errors import ModulesError, nearest
from goldnode.core.files import cache_directory, sha256_of
from goldnode.core.site import Site
from goldnode.lock.aptroot import AptRoot, AptSource, Download, Stanza, apt_root
from goldnode.lock.model import Lock
from goldnode.lock.pool import source_line
from goldnode.lock.resolve import DependencyGraph, apt_sources, resolve_stack
from goldnode.node.ground.optional import optional
from goldnode.node.state.family import kernel_packages

SCHEMA = "goldnode.module-build/1"
# Raised when what is done in the root changes without changing what goes into it.
RECIPE = 1
# Seconds; a driver takes minutes.
BUILD_TIME = 5400

Say = Callable[[str], None]

# The machine ran out of something, so the source was not judged: no result is stored.
OUT_OF = re.compile(
    r"No space left on device|Cannot allocate memory|Killed signal terminated|virtual memory exhausted|Disk quota exceeded"
)


@dataclass(frozen=True)
class Tree:
    """One DKMS source: its name in DKMS, and the package that brings it at which version."""

    name: str
    package: str
    version: str


@dataclass(frozen=True)
class ModuleBuildInputs:
    """All inputs of a build.

    `kernel` are the packages of the kernel, the image first. `installed` and `unpacked` are names
    of `packages`, `stanzas` their records in the archive. `replaces` are packages of the lock that
    only the build needs.
    """

    stack: str
    release: str
    kernel: tuple[str, ...]
    architecture: str
    flavour: str | None
    driver_version: str | None
    module: str | None
    trees: tuple[Tree, ...]
    packages: Mapping[str, Download]
    stanzas: Mapping[str, Stanza]
    installed: tuple[str, ...]
    unpacked: tuple[str, ...]
    tools: tuple[str, ...]
    replaces: tuple[str, ...]
    base: str | None = None

    @property
    def image(self) -> str:
        """Return the kernel's package."""
        return self.kernel[0]

    @property
    def key(self) -> str:
        """Return the name of this build: a hash of headers, sources, compiler, their dependencies
        and goldnode's build steps.
        """
        hashes = sorted(
            self.packages[name].sha256
            for name in {*self.unpacked, *self.tools}
            if name in self.packages
        )
        parts = [
            RECIPE,
            self.release,
            self.architecture,
            [asdict(tree) for tree in self.trees],
            hashes,
            self.base,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def epoch(self) -> int:
        """Return SOURCE_DATE_EPOCH of the build, derived from the inputs, in a year that tools accept."""
        return 1_600_000_000 + int(self.key[:6], 16)


@dataclass(frozen=True)
class ModuleBuild:
    """Result of one build. `seconds` is wall time, `line` the compiler's first error line. `ok` is
    None for a pair that apt cannot install, and `line` is its reason. `log` and `modules` are paths
    below `directory`.
    """

    key: str
    stack: str
    kernel: str
    driver: str | None
    flavour: str | None
    ok: bool | None
    seconds: float
    line: str | None
    log: str | None
    modules: tuple[str, ...]
    compression: str
    place: str
    builder: tuple[tuple[str, str, str], ...]
    built: str
    schema: str = SCHEMA

    def to_json(self) -> str:
        """Return the result as the text of its file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Base:
    """A root on which the lock was resolved (`goldnode lock --on`): its tar, the SHA-256 of that,
    and its dpkg status.
    """

    tar: Path
    sha256: str
    status: bytes

    @classmethod
    def read(cls, tar: Path) -> Base:
        """Read a base root. Raises ModulesError when it is no tar, or has no dpkg status."""
        try:
            with tarfile.open(tar) as opened:
                member = next(
                    (
                        opened.getmember(name)
                        for name in ("var/lib/dpkg/status", "./var/lib/dpkg/status")
                        if name in opened.getnames()
                    ),
                    None,
                )
                content = optional(opened.extractfile, member)
                status = content.read() if content is not None else None
        except (OSError, tarfile.TarError) as error:
            raise ModulesError(
                f"the base root cannot be read: {error}",
                file=tar,
                remedy="give a tar of a root directory",
            ) from error
        if status is None:
            raise ModulesError(
                "the base root has no var/lib/dpkg/status",
                file=tar,
                remedy="give a tar of a Debian or Ubuntu root",
            )
        return cls(tar, sha256_of(tar), status)


# -- what goes into a build


@dataclass(frozen=True)
class ModuleBuildRequest:
    """The modules to build: those of `lock`, or with `release` or `flavour` the same driver for another pair.

    `base` is the root to build in; None: a new one.
    """

    stack: CatalogEntry[Stack]
    catalog: Catalog
    site: Site
    lock: Lock | None
    release: str | None = None
    flavour: str | None = None
    base: Base | None = None
    offline: bool = False
    cache: Path | None = None


def inputs_of(request: ModuleBuildRequest) -> ModuleBuildInputs:
    """Return the inputs of a build of modules.

    Raises LockError with apt's line if apt cannot install the pair. Raises ModulesError if the
    stack builds no modules, for an unknown flavour, and if a locked package has left the archives
    or has other bytes there.
    """
    stack, lock, base = request.stack, request.lock, request.base
    release, flavour = request.release, request.flavour
    driver = stack.item.driver
    if driver is None or driver.dkms is None:
        raise ModulesError(
            f'stack "{stack.name}" builds no modules: its driver is the kernel\'s own or absent',
            file=stack.file,
            remedy="name another stack",
        )
    other = (release is not None and (lock is None or release != lock.kernel_release)) or (
        flavour is not None and flavour != driver.flavour
    )
    item = varied(stack, lock, release, flavour) if other or lock is None else stack.item
    sources = apt_sources(stack, request.catalog, request.site)
    with apt_root(sources, stack.item.os.architecture, request.cache) as root:
        if base is not None:
            status = root.directory / "base-status"
            status.write_bytes(base.status)
            root.use_status(status)
        root.refresh(request.offline)
        if other or lock is None:
            entry = CatalogEntry(item.stack, item, stack.source)
            lock = resolve_stack(entry, root, root.names(), dt.datetime.now(tz=dt.UTC).date())
        return _inputs(item, lock, root, base)


def varied(
    stack: CatalogEntry[Stack], lock: Lock | None, release: str | None, flavour: str | None
) -> Stack:
    """Return the stack's kernel and driver alone, for another kernel release or flavour of the same driver version."""
    item, driver = stack.item, stack.item.driver
    assert driver is not None and driver.dkms is not None  # noqa: S101, PT018 - inputs_of has seen to it
    change: dict[str, Any] = {
        "version": lock.driver_version if lock is not None else driver.version,
        "fabric_manager": None,
    }
    if flavour is not None and flavour != driver.flavour:
        if flavour not in driver.other_flavours:
            known = [*driver.other_flavours, str(driver.flavour)]
            raise ModulesError(
                f'stack "{stack.name}" knows no packages of flavour "{flavour}"',
                file=stack.file,
                line=stack.source.line(("driver",)),
                remedy=f"{nearest(flavour, known)}, or name them in the stack's `driver.other_flavours`",
            )
        chosen = driver.other_flavours[flavour]
        swap = {**chosen.replace, driver.dkms.package: chosen.dkms.package}
        change |= {"flavour": flavour, "module": chosen.module, "dkms": chosen.dkms}
        change |= {
            key: [swap.get(name, name) for name in getattr(driver, key)]
            for key in ("packages", "lockstep")
        }
    kernel = item.kernel
    if release is not None or lock is not None:
        kernel = Kernel(release=release or (lock.kernel_release if lock else None))
    parts: dict[str, Any] = {
        "kernel": kernel,
        "driver": driver.model_copy(update=change),
        "runtime": None,
        "modules": [],
        "packages": [],
    }
    return item.model_copy(update=parts)


def require_locked(packages: Mapping[str, Download], lock: Lock) -> None:
    """Compare the packages that apt resolved with a lock. Raises ModulesError for the first that differs."""
    for locked in lock.packages:
        resolved = packages.get(locked.name)
        if resolved is None or resolved.sha256 == locked.sha256:
            continue
        if resolved.version != locked.version:  # apt ignores a pin to a version that no archive has
            raise ModulesError(
                f"{locked.name} {locked.version} has left the archives, which have {resolved.version}",
                remedy=f"run `goldnode lock {lock.stack}`, or build from a mirror that stored the locked packages",
            )
        raise ModulesError(
            f"{locked.name} {locked.version} has other bytes in the archive than were locked",
            remedy=f"do not build from it before its archive's owner has explained that; `goldnode lock {lock.stack} --check` lists all",
        )


def _inputs(item: Stack, lock: Lock, root: AptRoot, base: Base | None) -> ModuleBuildInputs:
    driver = item.driver
    assert driver is not None and driver.dkms is not None  # noqa: S101, PT018
    release, locked = lock.kernel_release, {package.name: package for package in lock.packages}
    image, headers, *more = kernel_packages(item.os.id, release)
    carry = {image, *more}  # the kernel itself and its modules
    root.pin({name: package.version for name, package in locked.items()})
    asked = [
        name for name, package in locked.items() if package.requested and package.part != "runtime"
    ]
    # ?essential (apt-patterns(7)): without these packages, a root cannot run anything.
    downloads = root.resolve([*(f"{name}={locked[name].version}" for name in asked), "?essential"])
    packages = {download.name: download for download in downloads}
    require_locked(packages, lock)
    stanzas = root.records(downloads)
    graph = DependencyGraph(stanzas)
    rows = {driver.dkms.package: driver.dkms.name} | {
        row.package: row.dkms for row in item.modules if row.package and row.dkms
    }
    # In the order of loading: a driver may use symbols of what is loaded before it.
    before = [row.package for row in item.modules if row.before_driver and row.package in rows]
    order = [*dict.fromkeys(before), *(name for name in rows if name not in before)]
    trees = tuple(Tree(rows[name], name, locked[name].version) for name in order)
    sources = [tree.package for tree in trees]
    kernel = {
        name
        for name in graph.reached([headers])
        if graph.source(name) == graph.source(headers) and name not in carry
    }
    unpacked = sorted({*kernel, *sources})
    tools = closure(
        graph,
        [*(need for name in kernel for need in graph.needs(name)), "dkms"],
        {*carry, *unpacked},
    )
    essential = [name for name, stanza in stanzas.items() if stanza.get("Essential") == "yes"]
    installed = closure(graph, [*tools, *essential], {*carry, *unpacked})
    stay = closure(
        graph,
        [name for name in asked if name not in (headers, *sources)],
        {headers, *sources},
    )
    # With built modules, a node has no use for headers, sources and their dependencies.
    gone = set(graph.reached([headers, *sources])) - set(stay) - set(essential)
    return ModuleBuildInputs(
        stack=lock.stack,
        release=release,
        kernel=tuple(name for name in (image, *more) if name in packages),
        architecture=item.os.architecture,
        flavour=driver.flavour,
        driver_version=lock.driver_version,
        module=driver.module,
        trees=trees,
        packages=packages,
        stanzas=stanzas,
        installed=tuple(installed),
        unpacked=tuple(unpacked),
        tools=tuple(tools),
        replaces=tuple(sorted(name for name in locked if name in gone)),
        base=None if base is None else base.sha256,
    )


def closure(graph: DependencyGraph, start: Iterable[str], without: Iterable[str]) -> list[str]:
    """Return everything that is reachable from `start` through dependencies, without passing
    through a package of `without`.
    """
    left_out, names = set(without), set()
    pending = [name for name in start if name in graph and name not in left_out]
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending += [
                need for need in graph.needs(name) if need not in names and need not in left_out
            ]
    return sorted(names)


# -- files


def fetch(
    inputs: ModuleBuildInputs,
    names: Iterable[str],
    sources: Sequence[AptSource],
    stores: Sequence[Callable[[str], Path | None]],
    *,
    cache: Path | None = None,
) -> dict[str, Path]:
    """Return one file for each of `names`, packages of `inputs`. See `fetch_packages`."""
    wanted = [inputs.packages[name] for name in names]
    return fetch_packages(wanted, sources, inputs.architecture, stores, cache=cache)


def fetch_packages(
    wanted: Iterable[Download],
    sources: Sequence[AptSource],
    architecture: str,
    stores: Sequence[Callable[[str], Path | None]] = (),
    *,
    cache: Path | None = None,
) -> dict[str, Path]:
    """Return one file per package name, from one of the `stores` (sha256 → file or None) or downloaded by apt.

    All are hashed.

    Raises LockError if a download fails, ModulesError for a file with other bytes than the index or
    lock has.
    """
    place = (cache or cache_directory()) / "debs"
    place.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    missing = []
    for item in wanted:
        known = [
            place / f"{item.sha256}.deb",
            *(path for store in stores if (path := store(item.sha256)) is not None),
        ]
        right = next(
            (
                path
                for path in known
                if path.is_file()
                and path.stat().st_size == item.size
                and sha256_of(path) == item.sha256
            ),
            None,
        )
        if right is not None:
            files[item.name] = right
        else:
            missing.append(item)
    if missing:
        with (
            apt_root(sources, architecture, cache) as root,
            tempfile.TemporaryDirectory(dir=place) as into,
        ):
            root.pin({item.name: item.version for item in missing})
            root.fetch(missing, Path(into))
            for item in missing:
                got = next((path for path in Path(into).iterdir() if path.name == item.file), None)
                if got is None or sha256_of(got) != item.sha256:
                    raise ModulesError(
                        f"{item.name} {item.version}: the archive gave other bytes than its index says",
                        remedy="run again; then ask the archive's owner",
                    )
                files[item.name] = place / f"{item.sha256}.deb"
                got.replace(files[item.name])
    return files


# -- the root


# Program of a build -> Debian package that has it.
_TOOLS = {
    "unshare": "util-linux",
    "tar": "tar",
    "dpkg-deb": "dpkg",
    "modinfo": "kmod",
    "mmdebstrap": "mmdebstrap",
}


def needs_tools(base: bool) -> None:
    """Raise ModulesError without root, or if programs of the build are missing; with a `base`, no root is made."""
    _root()
    missing = [
        name
        for name in _TOOLS
        if not (base and name == "mmdebstrap") and shutil.which(name) is None
    ]
    if missing:
        raise ModulesError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine; nothing was built",
            remedy=f"install: apt-get install {' '.join(dict.fromkeys(_TOOLS[name] for name in missing))}",
        )


def make_root(
    inputs: ModuleBuildInputs,
    files: Mapping[str, Path],
    codename: str,
    *,
    cache: Path | None = None,
) -> Path:
    """Return a tar of the builder root, named after the hashes of its packages.

    mmdebstrap makes it from exactly `inputs.installed`, unless it is in the cache. Raises
    ModulesError.
    """
    place = (cache or cache_directory()) / "builder"
    place.mkdir(parents=True, exist_ok=True)
    hashes = sorted(inputs.packages[name].sha256 for name in inputs.installed)
    target = place / f"{hashlib.sha256(json.dumps([RECIPE, hashes]).encode()).hexdigest()[:32]}.tar"
    with (place / f"{target.stem}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if target.exists():
            return target
        _root()
        progress.step(
            f"making the builder root from {len(inputs.installed)} packages with mmdebstrap"
        )
        with tempfile.TemporaryDirectory(prefix="root-", dir=place) as name:
            directory = Path(name)
            repository = directory / "repository"
            repository.mkdir()
            index = []
            for package in inputs.installed:
                item = inputs.packages[package]
                shutil.copyfile(files[package], repository / item.file)
                fields = {
                    key: value
                    for key, value in inputs.stanzas[package].items()
                    if key not in _PLACE
                }
                fields |= {
                    "Filename": f"./{item.file}",
                    "Size": str(item.size),
                    "SHA256": item.sha256,
                }
                index.append("".join(f"{key}: {value}\n" for key, value in fields.items()))
            (repository / "Packages").write_text("\n".join(index), encoding="utf-8")
            for path in (place, directory, repository):
                path.chmod(0o755)
            made = directory / "root.tar"
            command = [
                *_WITHOUT_NETWORK,
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--variant=custom",
                f"--include={','.join(inputs.installed)}",
                codename,
                str(made),
                source_line(repository),
            ]
            environment = {
                **os.environ,
                "SOURCE_DATE_EPOCH": str(inputs.epoch),
                "LC_ALL": "C.UTF-8",
            }
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=environment
                )
            except FileNotFoundError as error:
                raise ModulesError(
                    f"{error.filename} is not on this machine",
                    remedy="install it: apt-get install mmdebstrap util-linux",
                ) from error
            if done.returncode:
                tail = "\n  ".join(done.stderr.strip().splitlines()[-8:])
                raise ModulesError(
                    f"mmdebstrap cannot make the builder root:\n  {tail}\n",
                    remedy="see what it says; run as root",
                )
            made.replace(target)
    return target


# Fields that are written below, and those of several lines, of which a record has only one.
_PLACE = (
    "Filename",
    "Size",
    "MD5sum",
    "SHA1",
    "SHA256",
    "SHA512",
    "Description-md5",
    "Description",
)
_WITHOUT_NETWORK = ("unshare", "--net")


# -- the build


def build(
    inputs: ModuleBuildInputs, files: Mapping[str, Path], root: Path, *, cache: Path | None = None
) -> tuple[ModuleBuild, Path]:
    """Return the result of a build and its directory (result.json, build.log, modules/), from the
    cache if possible.

    `files` has the .deb of every package of `inputs.unpacked` and of the kernel's image; `root` is
    the tar of `make_root` or a base. Raises ModulesError if the machine is at fault and not the
    source: such a build has no result.
    """
    builds = (cache or cache_directory()) / "modules"
    builds.mkdir(parents=True, exist_ok=True)
    directory = builds / inputs.key
    with (builds / f"{inputs.key}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        known = read_result(directory)
        if known is not None:
            return known, directory
        _root()
        _sweep(builds)
        with tempfile.TemporaryDirectory(
            prefix=f"work-{os.getpid()}-", dir=builds, ignore_cleanup_errors=True
        ) as name:
            work = Path(name)
            result = _build(inputs, files, root, work)
            out = work / "out"
            (out / "result.json").write_text(result.to_json(), encoding="utf-8")
            # A result that is there has another schema or is damaged: it was not returned above.
            shutil.rmtree(directory, ignore_errors=True)
            out.replace(directory)
    return result, directory


def _root() -> None:
    """Refuse a build if mounts, namespaces or files of other users are not available."""
    if os.geteuid() != 0:
        raise ModulesError(
            "modules are built in a root of their own, which only root can make and enter",
            remedy="run it as root",
        )


def read_result(directory: Path) -> ModuleBuild | None:
    """Return the result stored in a directory, or None if there is none or it has another version."""
    try:
        result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
        if result["schema"] != SCHEMA:
            return None
        return ModuleBuild(
            **{
                **result,
                "modules": tuple(result["modules"]),
                "builder": tuple(map(tuple, result["builder"])),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sweep(builds: Path) -> None:
    """Remove leftovers of builds that were killed."""
    for path in builds.glob("work-*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)


DKMS_SCRIPT = """\
set -e
dkms add -m {name} -v {version} >>/build.log 2>&1 || true
if dkms {verb} {options} -m {name} -v {version} -k {release} >>/build.log 2>&1; then exit 0; else status=$?; fi
cat /var/lib/dkms/{name}/{version}/build/make.log >>/make.log 2>/dev/null || true
exit $status
"""

# dkms.conf is a shell script, so only a shell can evaluate the names of the modules.
DKMS_NAMES = """\
kernelver={release}; arch=$(uname -m); cd /usr/src/{name}-{version}; . ./dkms.conf >/dev/null 2>&1
for index in ${{!BUILT_MODULE_NAME[@]}}; do echo "${{DEST_MODULE_NAME[$index]:-${{BUILT_MODULE_NAME[$index]}}}}"; done
[ ${{#BUILT_MODULE_NAME[@]}} -gt 0 ] || echo "$PACKAGE_NAME"
"""


def _build(
    inputs: ModuleBuildInputs, files: Mapping[str, Path], base: Path, work: Path
) -> ModuleBuild:
    root, out = work / "root", work / "out"
    root.mkdir()
    (out / "modules").mkdir(parents=True)
    _command(
        ["tar", "-C", str(root), "--numeric-owner", "-xf", str(base)],
        "the builder root cannot be unpacked",
    )
    for name in inputs.unpacked:
        _command(
            ["dpkg-deb", "--fsys-tarfile", str(files[name])],
            f"{name} cannot be unpacked",
            into=["tar", "-C", str(root), "--keep-directory-symlink", "-x"],
        )
    began = time.monotonic()
    expected: list[str] = []
    error = None
    for tree in inputs.trees:
        version = _source_version(root, tree)
        where = {"name": tree.name, "version": version, "release": inputs.release}
        named = _inside(root, ["/bin/bash", "-c", DKMS_NAMES.format(**where)], inputs)
        expected += named.stdout.split()
        progress.step(f"building {tree.name} {version} for {inputs.release}, which takes minutes")
        verb = "build" if len(inputs.trees) == 1 else "install"
        done = _inside(
            root, ["/bin/sh", "-c", DKMS_SCRIPT.format(verb=verb, options="", **where)], inputs
        )
        built = sorted(
            root.glob(f"var/lib/dkms/{tree.name}/{version}/{inputs.release}/*/module/*.ko*")
        )
        for path in built:
            name = re.sub(r"\.ko(\.\w+)?$", ".ko", path.name)
            (out / "modules" / name).write_bytes(decompressed(path.read_bytes(), path.suffix))
        if done.returncode or not built:
            error = (
                first_error(read_log(root))
                or f"dkms ends with status {done.returncode} and names no reason: {_tail(done.stdout + done.stderr)}"
            )
            break
    seconds = round(time.monotonic() - began, 1)
    log = "".join(
        (root / name).read_text(encoding="utf-8", errors="replace")
        for name in ("build.log", "make.log")
        if (root / name).exists()
    )
    shortage = OUT_OF.search(log)
    # Only with an error: the log of a good build may mention such words.
    if shortage and error:
        raise ModulesError(
            f"the build was cut off: {shortage.group(0)}",
            remedy="give this machine more of it, and run again",
        )
    (out / "build.log").write_text(log, encoding="utf-8")
    known, place = kernel_modules([files[name] for name in inputs.kernel])
    if error is None:
        progress.step("checking the modules")
        error = next(iter(faults(inputs, out / "modules", expected, known)), None)
    return ModuleBuild(
        key=inputs.key,
        stack=inputs.stack,
        kernel=inputs.release,
        driver=inputs.driver_version,
        flavour=inputs.flavour,
        ok=error is None,
        seconds=seconds,
        line=error,
        log="build.log",
        modules=tuple(
            sorted(path.name.removesuffix(".ko") for path in (out / "modules").iterdir())
        ),
        compression=_compression(root, inputs.release),
        place=place,
        builder=tuple(
            (name, inputs.packages[name].version, inputs.packages[name].sha256)
            for name in sorted({*inputs.installed, *inputs.unpacked})
            if name in inputs.packages
        ),
        built=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


# A /dev of its own with the few devices that a build reads: a base root may have none. $1:
# overlay's options, or "".
_ENTER = """\
set -e
hostname builder
[ -z "$1" ] || mount -t overlay -o "$1" overlay "$0"
shift
mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=0755 tmpfs "$0/dev"
for device in null zero full random urandom; do
    : >"$0/dev/$device"
    mount --bind "/dev/$device" "$0/dev/$device"
done
ln -s /proc/self/fd "$0/dev/fd"
exec chroot "$0" "$@"
"""


def entering(root: Path, command: Sequence[str], overlay: str = "") -> list[str]:
    """Return the command line that runs `command` in `root`, without network, with its own mounts and host name.

    `overlay`: options of an overlay to mount on `root` first. No process outlives the command.
    """
    spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    return [*_WITHOUT_NETWORK, *spaces, "sh", "-c", _ENTER, str(root), overlay, *command]


def build_environment(epoch: int) -> dict[str, str]:
    """Return the environment of a build: the same on every machine."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "SOURCE_DATE_EPOCH": str(epoch),
        "KBUILD_BUILD_TIMESTAMP": f"@{epoch}",
        "KBUILD_BUILD_USER": "goldnode",
        "KBUILD_BUILD_HOST": "builder",
    }


def _inside(
    root: Path, command: Sequence[str], inputs: ModuleBuildInputs
) -> subprocess.CompletedProcess[str]:
    """Run a command in the root."""
    try:
        return subprocess.run(
            entering(root, command),
            env=build_environment(inputs.epoch),
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIME,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ModulesError(
            f"{error.filename} is not on this machine",
            remedy="install it: apt-get install util-linux",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ModulesError(
            f"the build did not end within {BUILD_TIME // 60} minutes",
            remedy="run it on a machine that is not busy",
        ) from error


def _command(command: list[str], fault: str, into: list[str] | None = None) -> None:
    """Run a command, with its output piped into another one if given.

    Raises ModulesError with the error of either.
    """
    with tempfile.TemporaryFile() as reported:
        first = subprocess.Popen(
            command, stdout=subprocess.PIPE if into else subprocess.DEVNULL, stderr=reported
        )
        second = None
        if into:
            second = subprocess.Popen(
                into, stdin=first.stdout, stdout=subprocess.DEVNULL, stderr=reported
            )
        if first.stdout is not None:
            first.stdout.close()  # so that the first ends when the second does
        codes = [process.wait() for process in (second, first) if process is not None]
        reported.seek(0)
        if any(codes):
            why = _tail(reported.read().decode(errors="replace"))
            raise ModulesError(
                f"{fault}: {why}",
                remedy="check the free space on the disk of the cache, and run again",
            )


def _source_version(root: Path, tree: Tree) -> str:
    """Return the version under which DKMS knows a source, from the directory that its package has
    in /usr/src.
    """
    offered = [
        path.parent.name[len(tree.name) + 1 :]
        for path in root.glob(f"usr/src/{tree.name}-*/dkms.conf")
    ]
    # The directory has the upstream version, without the package's epoch and revision.
    fits = [
        item for item in offered if re.match(rf"(\d+:)?{re.escape(item)}($|[-+~])", tree.version)
    ] or offered
    if len(fits) != 1:
        raise ModulesError(
            f"package {tree.package} {tree.version} should contain the dkms source {tree.name}, and has "
            f"{', '.join(offered) or 'none'}",
            remedy="correct `dkms` in the stack",
        )
    return fits[0]


# In this order: make and DKMS report that something failed, the compiler what.
_ERRORS = (
    re.compile(r"^.*?(?:fatal )?error: .*$", re.MULTILINE),
    re.compile(r"^ERROR: .*$", re.MULTILINE),
    re.compile(r"^.*undefined reference.*$", re.MULTILINE),
    re.compile(r"^make.*\*\*\* .*$", re.MULTILINE),
    re.compile(r"^Error! .*$", re.MULTILINE),
)


def first_error(log: str) -> str | None:
    """Return the first error line of compiler, linker or modpost in a log; otherwise make's or DKMS's own.

    The line has no path of the build directory in front. None: the log has no such line.
    """
    for pattern in _ERRORS:
        line = pattern.search(log)
        if line:
            return re.sub(r"^/var/lib/dkms/[^/]+/[^/]+/build/", "", line.group(0).strip())
    return None


def read_log(root: Path) -> str:
    """Return what DKMS and make wrote in `root`, make's part first."""
    return "".join(
        (root / name).read_text(encoding="utf-8", errors="replace")
        for name in ("make.log", "build.log")
        if (root / name).exists()
    )


def _tail(text: str) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines()[-3:])


def _compression(root: Path, release: str) -> str:
    """Return the compression of the kernel's own modules: "", gz, xz or zst (CONFIG_MODULE_COMPRESS_*)."""
    text = ""
    for path in (
        *root.glob(f"usr/src/*{release}/.config"),
        *root.glob(f"usr/src/*{release}/include/config/auto.conf"),
    ):
        with contextlib.suppress(OSError):
            text += path.read_text(encoding="utf-8", errors="replace")
    method = re.search(r"^CONFIG_MODULE_COMPRESS_(GZIP|XZ|ZSTD)=y", text, re.MULTILINE)
    return {"GZIP": "gz", "XZ": "xz", "ZSTD": "zst"}[method.group(1)] if method else ""


def decompressed(data: bytes, suffix: str) -> bytes:
    """Return a module without the compression that `suffix` (.ko, .gz, .xz, .zst) names."""
    if suffix == ".gz":
        return gzip.decompress(data)
    if suffix == ".xz":
        return lzma.decompress(data)
    if suffix == ".zst":
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
    return data


# -- checks


def kernel_modules(carry: Sequence[Path]) -> tuple[set[str], str]:
    """Return the names of all modules of a kernel's packages, and the directory of its module files.

    The names include built-in modules and have underscores, as in `depends`. The directory is
    /lib/modules or /usr/lib/modules.
    """
    names: set[str] = set()
    place = "/lib/modules"
    for deb in carry:
        process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
        assert process.stdout is not None  # noqa: S101
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for member in tar:
                module = re.search(r"/([^/]+)\.ko(\.\w+)?$", member.name)
                if member.name.lstrip("./").startswith("usr/lib/modules/"):
                    place = "/usr/lib/modules"
                if module:
                    names.add(module.group(1).replace("-", "_"))
                elif (
                    member.name.endswith("/modules.builtin")
                    and (opened := tar.extractfile(member)) is not None
                ):
                    names |= {
                        Path(line).stem.replace("-", "_") for line in opened.read().decode().split()
                    }
        process.wait()
    return names, place


def modinfo(path: Path) -> dict[str, str]:
    """Return the fields that modinfo prints for a file, each with its first value."""
    done = subprocess.run(["modinfo", str(path)], capture_output=True, text=True, check=False)
    fields: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key, value.strip())
    return fields


def faults(
    inputs: ModuleBuildInputs, directory: Path, expected: Sequence[str], known: set[str]
) -> Iterator[str]:
    """Yield the faults of built modules: a missing module, or a wrong vermagic, version, licence,
    name or dependency.
    """
    there = {
        path.name.removesuffix(".ko"): modinfo(path) for path in sorted(directory.glob("*.ko"))
    }
    for name in expected:
        if name not in there:
            yield f"dkms.conf names {name}, and the build did not give it (it gave {', '.join(there) or 'nothing'})"
    inner = {info.get("name", name).replace("-", "_") for name, info in there.items()} | {
        name.replace("-", "_") for name in there
    }
    for name, info in there.items():
        if info.get("vermagic", "").split(" ")[0] != inputs.release:
            yield f"{name}: vermagic is {info.get('vermagic') or 'absent'}, want {inputs.release}"
        if not info.get("name"):
            yield f"{name}: it carries no name"
        if not info.get("license"):
            yield f"{name}: it carries no licence"
        lost = [
            need
            for need in info.get("depends", "").split(",")
            if need and need.replace("-", "_") not in inner | known
        ]
        if lost:
            yield f"{name}: it depends on {', '.join(lost)}, which neither this kernel nor the build has"
    main = there.get(str(inputs.module), {})
    if main.get("version") != inputs.driver_version:
        yield f"{inputs.module}: version is {main.get('version') or 'absent'}, want {inputs.driver_version}"
    # The modules of both flavours have the same names; the licence distinguishes them.
    if inputs.flavour in ("open", "proprietary") and ("GPL" in main.get("license", "")) != (
        inputs.flavour == "open"
    ):
        yield f"{inputs.module}: licence is {main.get('license') or 'absent'}, which is not that of the {inputs.flavour} flavour"
