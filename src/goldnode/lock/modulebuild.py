"""Implementation of `goldnode modules`: from a lock to a package in the site's mirror, and a table
of the kernels and driver flavours that build together.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import Stack
from goldnode.core.errors import LockError, ModulesError
from goldnode.core.files import sha256_of
from goldnode.core.site import Site
from goldnode.lock import modpackage
from goldnode.lock.builder import (
    Base,
    ModuleBuild,
    ModuleBuildInputs,
    ModuleBuildRequest,
    Say,
    build,
    fetch,
    inputs_of,
    make_root,
    needs_tools,
)
from goldnode.lock.builds import results_directory
from goldnode.lock.mirror import Mirror, site_signer
from goldnode.lock.model import Lock, LockedPackage, find_lock
from goldnode.lock.modules import ARCHIVE, BuilderPackage, BuiltModules, write_modules
from goldnode.lock.resolve import apt_sources


@dataclass(frozen=True)
class BuiltPackage:
    """Result of `build_stack`: the file it wrote, the file's content, the result of the build, and
    the directory of the publication.
    """

    file: Path
    modules: BuiltModules
    result: ModuleBuild
    publication: Path


@dataclass(frozen=True)
class BuildSettings:
    """How to build: `say` receives the result of the build, `base` is the root to build in (None: a
    new one), `offline` uses the cached indexes.
    """

    say: Say
    base: Base | None = None
    offline: bool = False


def build_stack(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    settings: BuildSettings,
    *,
    out: Path | None = None,
    wait: float = 0,
) -> BuiltPackage:
    """Build the modules of a stack's lock, publish their package in the mirror, and write STACK.modules.yml.

    The file goes into `out`, by default next to the lock. Keys are tried out before anything is
    built. `wait`: seconds to wait for another run on the mirror. Raises ModulesError with the
    compiler's line if the modules do not build, MirrorError, LockError and SigningKeyError.
    """
    base = settings.base
    lock, lock_file = find_lock(stack, site)
    mirror = Mirror.of(site)
    signing = modpackage.Signing.of(site) if stack.item.secure_boot else None
    with ExitStack() as opened:
        signer = opened.enter_context(site_signer(site))
        inputs, files, result, directory = _built(_request(stack, catalog, site, lock, settings))
        _refuse_failed(result, store_result(result, directory, site))
        with mirror.writing(wait):
            with tempfile.TemporaryDirectory(prefix="goldnode-modules-") as name:
                package = _packaged(
                    inputs, files, result, directory, into=Path(name), signing=signing
                )
                size = package.file.stat().st_size
                row = _row(package, mirror.add(package.file), size)
            settings.say(
                f"{row.name} {row.version}: {size / 1e6:.1f} MB{f', signed by {package.signer}' if package.signer else ', not signed'}"
            )
            faults = mirror.fetch(lock, catalog, site)
            if faults:
                raise ModulesError(
                    f"{len(faults)} of the lock's files cannot be fetched, the first: {faults[0]}",
                    remedy=f"`goldnode mirror {stack.name}` lists all of them",
                )
            status = None
            if base is not None:
                status = Path(opened.enter_context(tempfile.TemporaryDirectory()), "status")
                status.write_bytes(base.status)
            published = mirror.publish(
                stack.name,
                lock,
                [row],
                signer=signer,
                without=sorted(inputs.replaces),
                status=status,
            )
        modules = _modules(inputs, result, lock, package, row)
        return BuiltPackage(
            write_modules(modules, out or site.lock_places(lock_file.parent, "stacks")[0]),
            modules,
            result,
            published.directory,
        )


def build_package(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    lock: Lock,
    into: Path,
    *,
    offline: bool = False,
) -> tuple[BuiltModules, Path]:
    """Build the modules of `lock` and put their package into directory `into`, for a disk image.

    No mirror is used.

    Return the content of STACK.modules.yml, and the package. Raises as `build_stack` does.
    """
    signing = modpackage.Signing.of(site) if stack.item.secure_boot else None
    inputs, files, result, directory = _built(
        ModuleBuildRequest(stack, catalog, site, lock, offline=offline)
    )
    _refuse_failed(result, directory / result.log if result.log is not None else directory)
    with tempfile.TemporaryDirectory(prefix="goldnode-modules-") as name:
        package = _packaged(inputs, files, result, directory, into=Path(name), signing=signing)
        size = package.file.stat().st_size
        row = _row(package, sha256_of(package.file), size)
        target = into / package.file.name
        shutil.move(package.file, target)
    return _modules(inputs, result, lock, package, row), target


def _packaged(
    inputs: ModuleBuildInputs,
    files: Mapping[str, Path],
    result: ModuleBuild,
    directory: Path,
    *,
    into: Path,
    signing: modpackage.Signing | None,
) -> modpackage.ModulePackage:
    """Make the package of the modules in a directory, with the licences of their sources."""
    return modpackage.make(
        inputs,
        result=result,
        directory=directory,
        into=into,
        sources={tree.package: files[tree.package] for tree in inputs.trees},
        signing=signing,
    )


def _request(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    lock: Lock | None,
    settings: BuildSettings,
) -> ModuleBuildRequest:
    return ModuleBuildRequest(
        stack, catalog, site, lock, base=settings.base, offline=settings.offline
    )


def _refuse_failed(result: ModuleBuild, log: Path) -> None:
    if not result.ok:
        raise ModulesError(
            f"driver {result.driver} ({result.flavour}) does not build for kernel {result.kernel}: {result.line}",
            file=log,
            remedy="lock a kernel or driver with which it builds; see `goldnode modules matrix`",
        )


def _row(package: modpackage.ModulePackage, sha256: str, size: int) -> LockedPackage:
    return LockedPackage(
        name=package.name,
        version=package.version,
        architecture=package.architecture,
        sha256=sha256,
        size=size,
        path=f"pool/{package.name}/{package.file.name}",
        archive=ARCHIVE,
        set="stack",
        part="driver",
        requested=True,
        why="built by goldnode modules build",
    )


def _modules(
    inputs: ModuleBuildInputs,
    result: ModuleBuild,
    lock: Lock,
    package: modpackage.ModulePackage,
    row: LockedPackage,
) -> BuiltModules:
    return BuiltModules(
        modules=1,
        stack=lock.stack,
        lock=lock.digest,
        key=result.key,
        flavour=result.flavour,
        signer=package.signer,
        names=list(result.modules),
        package=row,
        sources=[tree.package for tree in inputs.trees],
        replaces=sorted(inputs.replaces),
        builder=[
            BuilderPackage(name=name, version=version, sha256=sha)
            for name, version, sha in result.builder
        ],
    )


@dataclass(frozen=True)
class Combinations:
    """Pairs of kernel release and driver flavour to build for each of `stacks`. Empty: the locked kernel, the own flavour.

    `everywhere`: the stacks were not named, so a kernel that is in none of a stack's archives is
    left out.
    """

    stacks: Sequence[CatalogEntry[Stack]]
    kernels: Sequence[str] = ()
    flavours: Sequence[str] = ()
    everywhere: bool = False


def build_combinations(
    asked: Combinations, catalog: Catalog, site: Site, settings: BuildSettings
) -> list[ModuleBuild]:
    """Build each combination of stack, kernel and flavour, and return one result for each.

    A pair that apt cannot install is a result too. Raises ModulesError for an unknown flavour, if
    no pair is left, or if this machine cannot build.
    """
    stacks, kernels, flavours = asked.stacks, asked.kernels, asked.flavours
    rows = []
    for stack in stacks:
        lock = _lock(stack, site)
        own = stack.item.driver.flavour if stack.item.driver is not None else None
        releases: list[str | None] = [*kernels] or [
            lock.kernel_release if lock is not None else None
        ]
        kinds: list[str | None] = [*flavours] or [own]
        for kernel in releases:
            for flavour in kinds:
                request = _request(stack, catalog, site, lock, settings)
                result = _pair(replace(request, release=kernel, flavour=flavour))
                absent = (
                    asked.everywhere
                    and not result.ok
                    and result.line is not None
                    and f'kernel release "{kernel}" is in none' in result.line
                )
                rows += [] if absent else [result]
    if not rows:
        what = "no module is built by any of"
        if kernels:
            what = f"kernel {' or '.join(kernels)} is in the archives of none of"
        raise ModulesError(
            f"{what} {', '.join(stack.name for stack in stacks) or 'the catalog, of which no stack has a lock'}",
            remedy="name releases as `uname -r` shows them, and stacks that build a module",
        )
    return rows


def _pair(request: ModuleBuildRequest) -> ModuleBuild:
    try:
        _, _, result, directory = _built(request)
    except LockError as problem:
        stack, lock, kernel, flavour = request.stack, request.lock, request.release, request.flavour
        asked = [stack.name, kernel, flavour, problem.message]
        version = lock.driver_version if lock is not None else None
        # Without inputs there is no key of a build, so the request names the row.
        key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        error = f"cannot be installed: {problem.message}"
        result = ModuleBuild(
            key,
            stack=stack.name,
            kernel=kernel or "?",
            driver=version,
            flavour=flavour,
            ok=None,
            seconds=0.0,
            line=error,
            log=None,
            modules=(),
            compression="",
            place="",
            builder=(),
            built="",
        )
        store_result(result, None, request.site)
        return result
    store_result(result, directory, request.site)
    return replace(result, stack=request.stack.name)


def _lock(stack: CatalogEntry[Stack], site: Site) -> Lock | None:
    try:
        return find_lock(stack, site)[0]
    except LockError:
        return None


def _built(
    request: ModuleBuildRequest,
) -> tuple[ModuleBuildInputs, dict[str, Path], ModuleBuild, Path]:
    inputs = inputs_of(request)
    stack, site, base = request.stack, request.site, request.base
    stores = []
    if site.mirror is not None:
        mirror = Mirror.of(site)
        stores.append(lambda sha: mirror.path(sha) if mirror.has(sha) else None)
    # apt has resolved on top of the base's status: packages that it still adds are lacking.
    lacking = [name for name in inputs.installed if base is not None]
    if lacking:
        raise ModulesError(
            f"the base root lacks {', '.join(lacking[:6])}",
            remedy="install them there: on top of a base only headers and sources are unpacked",
        )
    needs_tools(base is not None)  # before anything is downloaded
    names = {*inputs.unpacked, *inputs.installed, *inputs.kernel}
    files = fetch(inputs, sorted(names), apt_sources(stack, request.catalog, site), stores)
    root = base.tar if base is not None else make_root(inputs, files, stack.item.os.codename)
    result, directory = build(inputs, files, root)
    return inputs, files, result, directory


def store_result(result: ModuleBuild, directory: Path | None, site: Site) -> Path:
    """Store a result as KEY.json with its log next to it. Return the path of the log, or of the
    result if there is no log.
    """
    place = results_directory(site)
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"{result.key}.log"
    if directory is not None and result.log is not None:
        shutil.copyfile(directory / result.log, log)
        result = replace(result, log=log.name)
    path = place / f"{result.key}.json"
    # Renamed into place: other runs on the mirror read the results meanwhile.
    temporary = path.with_suffix(".new")
    temporary.write_text(result.to_json(), encoding="utf-8")
    temporary.replace(path)
    return log if result.log is not None else path


def rows_of(results: Sequence[ModuleBuild]) -> list[dict[str, Any]]:
    """Return the results as rows of a table: stack, kernel, driver, flavour, builds ("yes", "no"), and why not."""
    return [
        {
            "stack": item.stack,
            "kernel": item.kernel,
            "driver": item.driver or "-",
            "flavour": item.flavour or "-",
            "builds": "yes" if item.ok else "no",
            "why": item.line or "",
        }
        for item in results
    ]


def markdown(results: Sequence[ModuleBuild]) -> str:
    """Return the table in Markdown."""
    rows = [["stack", "kernel", "driver", "flavour", "builds", "why not"]]
    rows += [[str(value).replace("|", "\\|") for value in row.values()] for row in rows_of(results)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def table(results: Sequence[ModuleBuild]) -> str:
    """Return the table as text for a terminal. The complete reason of a failed build follows its row."""
    head = {
        "stack": "stack",
        "kernel": "kernel",
        "driver": "driver",
        "flavour": "flavour",
        "builds": "builds",
        "why": "",
    }
    rows = [head, *rows_of(results)]
    widths = {key: max(len(row[key]) for row in rows) for key in head if key != "why"}
    lines = []
    for row in rows:
        lines.append("  ".join(row[key].ljust(width) for key, width in widths.items()).rstrip())
        lines += [f"    {row['why']}"] if row["why"] else []
    return "\n".join(lines) + "\n"


def locked(catalog: Catalog, site: Site) -> list[CatalogEntry[Stack]]:
    """Return the stacks that have a lock and build a module."""
    stacks = [
        stack
        for _, stack in sorted(catalog.stacks.items())
        if stack.item.driver is not None and stack.item.driver.dkms is not None
    ]
    return [stack for stack in stacks if _lock(stack, site) is not None]
