"""Resolution of a stack: apt resolves; this module drives apt and records the result.

Two choices are made here, because apt cannot express them: the kernel release (the newest of the
series whose packages exist at one version) and the driver version (the newest of the
branch that all lockstep packages have). An existing lock can be kept: its choices and versions stay
if the archives still have them.

The headers are among the kernel's packages only if DKMS builds a module on the nodes, or for the
classes that ask for them (KERNEL_HEADERS): they depend on a compiler.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import KERNEL_HEADERS, Driver, Kernel, Stack, Toolkit
from goldnode.compat import rules
from goldnode.core.errors import LockError, UnsolvableError, VanishedError, nearest
from goldnode.core.site import Site
from goldnode.lock.aptroot import AptRoot, AptSource, Download, Stanza, apt_root, package_names
from goldnode.lock.archives import ArchivePlaces, KeyAccess, archives_of, key_stores, wanted_options
from goldnode.lock.model import Lock, LockedArchive, LockedPackage, intent_digest
from goldnode.node.state.debversion import compare
from goldnode.node.state.family import headers_release, kernel_packages, kernel_release
from goldnode.node.state.names import in_family

# dpkg's order (deb-version(7)), as apt compares: 9 is before 10, and ~rc1 before the release.
_order = functools.cmp_to_key(compare)


def upstream_part(version: str) -> str:
    """Return the upstream part of a package version: ``535.309.01-0+deb12u1`` gives ``535.309.01``."""
    rest = version.partition(":")[2] or version
    return re.split(r"[-+~]", rest, maxsplit=1)[0]


@dataclass(frozen=True)
class MovedPackage:
    """Locked package that differs from the lock: `vanished` or `changed`."""

    kind: str
    package: LockedPackage
    message: str


@dataclass(frozen=True)
class Resolution:
    """A lock, and the packages of the previous one that could not stay in it (None: all that the
    archives still have).
    """

    lock: Lock
    relaxed: str | None = None


@dataclass(frozen=True)
class KernelOffer:
    """A kernel whose packages exist at one version, and the archives that have its image."""

    release: str
    version: str
    archives: frozenset[str]


class StackArchives:
    """The archives of one stack as they are now, read once; see `open_archives`."""

    def __init__(
        self,
        stack: CatalogEntry[Stack],
        root: AptRoot,
        places: ArchivePlaces,
        options: Sequence[str] = (),
    ) -> None:
        self.stack, self.places = stack, places
        self.options = tuple(options)
        self._root = root
        self._names = root.names()

    def resolve(
        self,
        today: dt.date,
        *,
        keep: Lock | None = None,
        free: Collection[str] = (),
        kernel: str | None = None,
        driver: str | None = None,
    ) -> Resolution:
        """Resolve the stack.

        With `keep`, kernel, driver and all versions of that lock stay as far as the intent allows
        and the archives have them. Only packages in `free`, and those bound to them, may move. If
        apt finds no solution, the base system is freed, then every package. `kernel` (a release)
        and `driver` (an upstream version) replace those of the lock; the stack set then stays in
        any case. Raises LockError, UnsolvableError and VanishedError.
        """
        if keep is None:
            return Resolution(
                resolve_stack(self.stack, self._root, self._names, today, options=self.options)
            )
        driver_free = any(
            item.name in free and item.part == "driver" and _of_driver(item, keep)
            for item in keep.packages
        )
        kernel_free = any(item.name in free and item.part == "kernel" for item in keep.packages)
        wanted = ResolutionTarget(
            kernel=kernel or (None if kernel_free else keep.kernel_release),
            kernel_exact=kernel is not None,
            driver=driver or (None if driver_free else keep.driver_version),
            driver_exact=driver is not None,
            lock=keep,
            versions=self._pinned(keep, free),
        )
        # From the least change to the most. The stack set is what nodes hold, so the base system
        # gives way first.
        tries: list[tuple[ResolutionTarget, str | None]] = [(wanted, None)]
        held = {item.name for item in keep.packages if item.set == "stack"}
        stack_only = {name: version for name, version in wanted.versions.items() if name in held}
        tries.append(
            (
                dataclasses.replace(wanted, versions=stack_only),
                "packages of the base system had to move along",
            )
        )
        if kernel is None:
            tries.append(
                (
                    ResolutionTarget(lock=keep),
                    "apt finds no way to keep the locked versions, so everything was resolved again",
                )
            )
        for number, (one, relaxed) in enumerate(tries):
            try:
                made = resolve_stack(
                    self.stack, self._root, self._names, today, one, options=self.options
                )
                return Resolution(made, relaxed)
            except UnsolvableError:
                if number == len(tries) - 1:
                    raise
        raise AssertionError("unreachable")

    def check(self, lock: Lock) -> list[MovedPackage]:
        """Return the packages of `lock` that have left the archives, or have other bytes under the
        same version.
        """
        offered, moved = self._root.offered(package.name for package in lock.packages), []
        for package in lock.packages:
            versions = offered.get(package.name, {})
            if package.version not in versions:
                text = f"{package.name} {package.version} has vanished; {_offer(versions)}"
                moved.append(MovedPackage("vanished", package, text))
            elif package.sha256 not in versions[package.version]:
                text = f"{package.name} {package.version} has other bytes than were locked"
                moved.append(MovedPackage("changed", package, text))
        return moved

    def kernels(self, asked: Kernel | None = None) -> list[KernelOffer]:
        """Return the kernels that the stack's intent, or `asked` in its place, allows, newest first."""
        _, releases, whole = _kernels(
            self.stack,
            asked or self.stack.item.kernel,
            self._root,
            self._names,
            headers=_with_headers(self.stack.item, self.options),
        )
        images = {
            release: kernel_packages(self.stack.item.os.id, release)[0] for release in releases
        }
        origins = self._root.origins(images.values())
        return [
            KernelOffer(release, version, origins.get((images[release], version), frozenset()))
            for version, release in sorted(
                whole, key=lambda pair: (_order(pair[0]), _order(pair[1])), reverse=True
            )
        ]

    def drivers(self) -> list[str]:
        """Return the complete driver versions of the stack's branch, newest first.

        Empty for a driver without a branch.
        """
        driver = self.stack.item.driver
        if driver is None or driver.branch is None:
            return []
        offered = _family(driver, self._root, self._names)
        leader = driver.dkms.package if driver.dkms is not None else driver.lockstep[0]
        of_branch = [
            version
            for version in offered.get(leader, {})
            if version.startswith(f"{driver.branch}.")
        ]
        whole = [
            version
            for version in of_branch
            if all(version in offered.get(name, {}) for name in driver.lockstep)
        ]
        return sorted(
            (version for version in whole if driver.version in (None, version)),
            key=_order,
            reverse=True,
        )

    def newer(self, lock: Lock, archives: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return the locked packages with a newer version in one of `archives`: name -> that
        version, archive.
        """
        newest: dict[str, tuple[str, str]] = {}
        locked = {item.name: item.version for item in lock.packages}
        for (name, version), origins in self._root.origins(locked).items():
            best = newest.get(name, (locked[name], ""))[0]
            # Several archives may have it: name one, the same in every run.
            source = sorted(origins & set(archives))
            if source and compare(version, best) > 0:
                newest[name] = (version, source[0])
        return newest

    def _pinned(self, lock: Lock, free: Collection[str]) -> dict[str, str]:
        """Return the versions of `lock` that can stay.

        Those that left the archives or are `free`, and packages built with them, cannot.
        """
        offered: dict[str, set[str]] = {}
        source: dict[str, str] = {}
        for stanza in self._root.show(item.name for item in lock.packages):
            offered.setdefault(stanza["Package"], set()).add(stanza["Version"])
            source[stanza["Package"]] = _source(stanza)
        loose = {
            item.name
            for item in lock.packages
            if item.name in free or item.version not in offered.get(item.name, ())
        }
        # Binary packages of one source depend on each other at exactly its version.
        moving = {
            (source.get(item.name, item.name), item.version)
            for item in lock.packages
            if item.name in loose
        }
        return {
            item.name: item.version
            for item in lock.packages
            if item.name not in loose
            and (source.get(item.name, item.name), item.version) not in moving
        }


@contextmanager
def open_archives(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    *,
    status: Path | None = None,
    cache: Path | None = None,
    offline: bool = False,
) -> Iterator[StackArchives]:
    """Refresh the indexes of the stack's archives and yield the archives, on top of dpkg status
    file `status`.

    With `offline`, the cached indexes are used as they are. Raises LockError, and SigningKeyError
    for a wrong key before anything is downloaded.
    """
    options = wanted_options(stack, catalog)
    places = ArchivePlaces(
        catalog,
        site,
        stack.item.os,
        KeyAccess(key_stores(stack, site), cache, offline, complete=True),
    )
    sources = archive_sources(archives_of(stack.item, options), places, stack.item.from_archives)
    with apt_root(sources, stack.item.os.architecture, cache) as root:
        if status is not None:
            root.use_status(status)
        root.refresh(offline)
        yield StackArchives(stack, root, places, options)


def apt_sources(stack: CatalogEntry[Stack], catalog: Catalog, site: Site) -> list[AptSource]:
    """Return the archives of `stack` and of its optional parts in use, each with a keyring of the accepted keys only.

    Raises SigningKeyError and SiteError, and LockError where a key cannot be fetched.
    """
    names = archives_of(stack.item, wanted_options(stack, catalog))
    places = ArchivePlaces(catalog, site, stack.item.os, KeyAccess(key_stores(stack, site)))
    return archive_sources(names, places, stack.item.from_archives)


def archive_sources(
    names: Sequence[str], places: ArchivePlaces, only: Mapping[str, Sequence[str]] | None = None
) -> list[AptSource]:
    """Return the archives `names` of an OS release for apt; see `apt_sources`. `only`: globs of packages by archive."""
    sources = []
    for name in names:
        archive = places.catalog.archives[name].item
        key, fingerprints = places.keyring(name)
        sources.append(
            AptSource(
                id=name,
                uri=places.address(name),
                suite=archive.suite.format(codename=places.os.codename),
                components=tuple(archive.components),
                keyring=key,
                fingerprints=tuple(fingerprints),
                only=tuple((only or {}).get(name, ())),
                expired=places.accepts_expired(name),
            )
        )
    return sources


@dataclass(frozen=True)
class ResolutionTarget:
    """Target of a resolution: choices that are taken if possible (`…_exact`: or it fails), and
    versions that stay.
    """

    kernel: str | None = None
    kernel_exact: bool = False
    driver: str | None = None
    driver_exact: bool = False
    lock: Lock | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def staying(self, release: str, driver_version: str | None) -> dict[str, str]:
        """Return the versions that stay with this kernel and this driver.

        Those of another kernel or driver do not.
        """
        pinned = dict(self.versions)
        for item in self.lock.packages if self.lock is not None else ():
            other_kernel = (
                self.lock is not None
                and item.part == "kernel"
                and release != self.lock.kernel_release
            )
            other_driver = (
                self.lock is not None
                and _of_driver(item, self.lock)
                and driver_version != self.lock.driver_version
            )
            if other_kernel or other_driver:
                pinned.pop(item.name, None)
        return pinned


def _of_driver(item: LockedPackage, lock: Lock) -> bool:
    """Return whether `item` carries the driver's own version, and so moves with it."""
    return (
        item.part == "driver"
        and lock.driver_version is not None
        and upstream_part(item.version) == lock.driver_version
    )


@dataclass(frozen=True)
class _Request:
    """Packages that a stack requests, by role. `options` are the packages of each optional part."""

    item: Stack
    kernel: Sequence[str]
    options: Mapping[str, Sequence[str]]

    @functools.cached_property
    def driver(self) -> list[str]:
        """Return the packages of the driver, without the fabric manager."""
        return list(self.item.driver.packages) if self.item.driver is not None else []

    @functools.cached_property
    def manager(self) -> str | None:
        """Return the package of the fabric manager."""
        driver = self.item.driver
        if driver is None or driver.fabric_manager is None:
            return None
        return driver.fabric_manager.package

    @functools.cached_property
    def engine(self) -> list[str]:
        """Return the packages of the container engine and its toolkit."""
        runtime = self.item.runtime
        if runtime is None:
            return []
        return [
            *runtime.packages,
            *(runtime.toolkit.packages if runtime.toolkit is not None else []),
        ]

    @functools.cached_property
    def modules(self) -> list[str]:
        """Return the packages of the stack's other kernel modules."""
        names = (module.package for module in self.item.modules)
        return list(dict.fromkeys(package for package in names if package is not None))

    @functools.cached_property
    def wanted(self) -> list[str]:
        """Return the packages that every node gets, without the kernel."""
        return [*self.driver, *self.engine, *self.item.packages, *self.modules]

    @functools.cached_property
    def asked(self) -> list[str]:
        """Return the packages of the stack without its optional parts, and without the kernel."""
        return [*self.wanted, *([self.manager] if self.manager else [])]

    @functools.cached_property
    def optional(self) -> list[str]:
        """Return the packages of all optional parts."""
        return list(dict.fromkeys(package for row in self.options.values() for package in row))

    @functools.cached_property
    def names(self) -> list[str]:
        """Return all requested packages."""
        return [*self.kernel, *self.asked, *self.optional]

    def kernel_members(self, graph: DependencyGraph) -> list[str]:
        """Return the packages of the kernel: the requested ones, and others that contain a piece of it.

        Debian 14 has the modules in a package of the unsigned kernel's source, on which the image of the
        signed one depends.
        """
        release = kernel_release(self.kernel[0])
        carried = [name for name in graph.reached(self.kernel) if kernel_release(name) == release]
        return list(dict.fromkeys([*self.kernel, *self.options.get(KERNEL_HEADERS, ()), *carried]))

    def parts(self, graph: DependencyGraph, members: Collection[str]) -> Callable[[str], str]:
        """Return a function from a package to its part of the lock. `members` is the stack set."""
        drivers = {*self.driver, *([self.manager] if self.manager else [])}
        kernel = self.kernel_members(graph)
        kernel_sources, driver_sources, module_sources = (
            {graph.source(name) for name in names} for names in (kernel, drivers, self.modules)
        )
        driver = self.item.driver

        def part(name: str) -> str:
            if name not in members:
                return "base"
            source = graph.source(name)
            if name in kernel or (source in kernel_sources and name not in drivers):
                return "kernel"
            if name in self.engine:
                return "runtime"
            if source in module_sources and name not in drivers:
                return "module"
            if name in drivers or (driver is not None and in_family(name, driver.family)):
                return "driver"
            # Requested for itself, it is no part of the driver, even if it shares the driver's
            # source.
            own = name in self.item.packages or name in self.optional
            return "driver" if source in driver_sources and not own else "runtime"

        return part

    def conditions(self, graph: DependencyGraph) -> dict[str, str]:
        """Return package -> the conditions under which a node gets it; without those that every node gets."""
        # Packages that every node gets have no condition, even if an optional part names them too.
        conditional = {self.manager, *self.optional} - {*self.kernel, *self.wanted}
        ordinary = set(graph.reached([name for name in self.names if name not in conditional]))
        starts = {**({"nvswitch": [self.manager]} if self.manager else {}), **self.options}
        reached = {condition: set(graph.reached(row)) for condition, row in starts.items()}
        return {
            name: "|".join(condition for condition, there in reached.items() if name in there)
            for name in graph.reached(self.names)
            if name not in ordinary
        }


def resolve_stack(
    stack: CatalogEntry[Stack],
    root: AptRoot,
    names: Sequence[str],
    today: dt.date,
    keep: ResolutionTarget | None = None,
    *,
    options: Sequence[str] = (),
) -> Lock:
    """Return a lock of a stack from the archives of `root`, which offer packages `names`.

    `options` are the optional parts to lock. Raises LockError, UnsolvableError and VanishedError.
    """
    keep = keep or ResolutionTarget()
    headers = stack.item.builds_modules
    lock = _resolved(stack, root, names, today, keep, options=options, headers=headers)
    if headers or not lock.has_dkms:
        return lock
    options = [name for name in options if name != KERNEL_HEADERS]
    return _resolved(stack, root, names, today, keep, options=options, headers=True)


def _resolved(
    stack: CatalogEntry[Stack],
    root: AptRoot,
    names: Sequence[str],
    today: dt.date,
    keep: ResolutionTarget,
    *,
    options: Sequence[str],
    headers: bool,
) -> Lock:
    """Return a lock of a stack; see `resolve_stack`. With `headers`, every node gets those of the kernel."""
    item = stack.item
    # An earlier try on the same root has left its pins.
    root.pin({})
    release, kernel_version = _kernel(
        stack, root, names, keep, headers=headers or KERNEL_HEADERS in options
    )
    parts = {name: list(part.packages) for name, part in item.options.items()}
    parts[KERNEL_HEADERS] = [_headers(item, release)]
    request = _Request(
        item,
        _kernel_parts(item, release, headers=headers),
        {name: parts[name] for name in options},
    )
    _require(stack, [*request.asked, *request.optional], names)
    driver_version, bound = _bound(stack, request, root, names, keep)
    locked = keep.staying(release, driver_version)
    if KERNEL_HEADERS in options:
        locked[_headers(item, release)] = kernel_version
    pins = dict(locked)
    # A kept revision of the version that was chosen stays, although there may be a newer one.
    pins |= {
        name: version
        for name, version in bound.items()
        if name not in pins or upstream_part(pins[name]) != upstream_part(version)
    }
    pins |= dict.fromkeys(kernel_packages(item.os.id, release), kernel_version)
    root.pin(pins)
    # The stack alone comes first: an optional part must not change what nodes without it get.
    # With =VERSION apt fails where it has no such version; it would pass over a pin alone.
    requests = [
        f"{name}={pins[name]}" if name in pins else name
        for name in [*request.kernel, *request.asked]
    ]
    downloads = root.resolve(requests, only=set(item.archives))
    for name in options:
        downloads = _with_option(
            stack,
            name=name,
            root=root,
            packages=request.options[name],
            requests=requests,
            downloads=downloads,
            pins={**locked, **_option_pins(stack, name, root, driver_version, locked)},
        )
        requests += request.options[name]
    return Lock(
        lock=1,
        stack=stack.name,
        intent=intent_digest(item),
        resolved=today.isoformat(),
        kernel_release=release,
        driver_version=driver_version,
        archives=[
            LockedArchive(id=source.id, suite=source.suite, components=list(source.components))
            for source in root.sources
            if source.id in archives_of(item, options)
        ],
        packages=_locked_packages(request, root, downloads),
    )


def _bound(
    stack: CatalogEntry[Stack],
    request: _Request,
    root: AptRoot,
    names: Sequence[str],
    keep: ResolutionTarget,
) -> tuple[str | None, dict[str, str]]:
    """Return the driver version, and the versions of the packages that follow driver and toolkit."""
    driver = stack.item.driver
    toolkit = stack.item.runtime.toolkit if stack.item.runtime is not None else None
    version = None
    bound: dict[str, str] = {}
    if driver is not None and driver.branch is not None:
        version, bound = _driver(stack, driver, root, names, keep)
    if toolkit is not None and toolkit.packages:
        bound |= _toolkit(stack, toolkit, root, keep.versions)
    if request.manager is not None and version is not None:
        bound |= _following(
            stack, [request.manager], version, root, ("driver", "fabric_manager", "package")
        )
    return version, bound


def _locked_packages(
    request: _Request, root: AptRoot, downloads: Sequence[Download]
) -> list[LockedPackage]:
    """Return the rows of a lock. Raises LockError if a requested package is not among the downloads."""
    stanzas = root.records(downloads)
    # apt fetches nothing of what the given status has installed.
    absent = [name for name in request.names if name not in stanzas]
    if absent:
        raise LockError(
            f'package "{absent[0]}" would not be fetched: the given status has it installed',
            remedy="resolve on the status of a system without the stack",
        )
    graph = DependencyGraph(stanzas)
    members = graph.stack_set([*request.names, *request.kernel_members(graph)], request.item.driver)
    part, conditions = request.parts(graph, members), request.conditions(graph)
    reasons = graph.reached(request.names)
    # Archives that share an address, as Ubuntu's do, differ by their suites.
    several = len({source.uri for source in root.sources}) < len(root.sources)
    suites = root.suites(download.name for download in downloads) if several else {}
    packages = []
    for download in sorted(downloads, key=lambda entry: entry.name):
        name, stanza = download.name, stanzas[download.name]
        archive, path = root.archive_of(download, suites)
        in_stack = name in members or archive in request.item.from_archives
        packages.append(
            LockedPackage.model_validate(
                {
                    "name": name,
                    "version": stanza["Version"],
                    "architecture": stanza["Architecture"],
                    "sha256": download.sha256,
                    "size": download.size,
                    "path": path,
                    "archive": archive,
                    "set": "stack" if in_stack else "base",
                    "part": part(name),
                    "requested": name in request.names,
                    "why": reasons.get(name, "chosen by apt"),
                    "when": conditions.get(name),
                }
            )
        )
    return packages


def _with_option(
    stack: CatalogEntry[Stack],
    name: str,
    root: AptRoot,
    *,
    packages: Sequence[str],
    requests: Sequence[str],
    downloads: Sequence[Download],
    pins: Mapping[str, str],
) -> list[Download]:
    """Return `downloads` and those of one optional part, which apt adds without moving any of them.

    `pins` are the versions that the part's packages and its dependencies have to have.
    """
    place = ("options", name, "packages") if name in stack.item.options else ("kernel",)
    fixed = {item.name: item.version for item in downloads}
    # The rest is fixed, so apt can only add to it.
    root.pin({**pins, **fixed})
    more = [f"{package}={pins[package]}" if package in pins else package for package in packages]
    names = [request.partition("=")[0] for request in requests]
    try:
        downloads_with = root.resolve(
            [*(f"{one}={fixed[one]}" if one in fixed else one for one in names), *more]
        )
    except UnsolvableError as error:
        raise UnsolvableError(
            f'optional part "{name}" does not fit the stack: {error.message}',
            file=stack.file,
            line=stack.source.line(place),
            remedy=f"take {name} out of `options` of the classes that use {stack.name}, or correct its `packages`",
        ) from error
    moved = [item for item in downloads_with if fixed.get(item.name, item.version) != item.version]
    gone = set(fixed) - {item.name for item in downloads_with}
    if moved or gone:
        raise UnsolvableError(
            f'optional part "{name}" would replace {", ".join(sorted({*gone, *(item.name for item in moved)}))} of the stack',
            file=stack.file,
            line=stack.source.line(place),
            remedy=f"take {name} out of `options` of the classes that use {stack.name}",
        )
    return downloads_with


def _option_pins(
    stack: CatalogEntry[Stack],
    name: str,
    root: AptRoot,
    driver_version: str | None,
    locked: Mapping[str, str],
) -> dict[str, str]:
    """Return pins of the packages of an optional part by its own rule; none for one that has no rule."""
    option = stack.item.options.get(name)
    if option is None:
        return {}
    pins: dict[str, str] = {}
    if option.follows == "driver" and driver_version is not None:
        place = ("options", name, "packages")
        pins = _following(stack, option.packages, driver_version, root, place)
    elif option.follows == "itself":
        pins = _together(stack, name, root, locked)
    return pins


def _following(
    stack: CatalogEntry[Stack],
    packages: Sequence[str],
    driver_version: str,
    root: AptRoot,
    place: tuple[str | int, ...],
) -> dict[str, str]:
    """Return pins of packages that must have the driver's upstream version (facts: lockstep_pkgs in nvidia_drivers.yml)."""
    pins: dict[str, str] = {}
    offered = root.offered(packages)
    for package in packages:
        same = [
            version
            for version in offered.get(package, {})
            if upstream_part(version) == driver_version
        ]
        if not same:
            raise VanishedError(
                f"{package} must have the driver's version {driver_version}; {_offer(offered.get(package, {}))}",
                file=stack.file,
                line=stack.source.line(place),
                remedy="lock from an archive that has both at one version, or name an older `driver.version`",
            )
        pins[package] = max(same, key=_order)
    return pins


def _together(
    stack: CatalogEntry[Stack], name: str, root: AptRoot, locked: Mapping[str, str]
) -> dict[str, str]:
    """Return pins of the packages of an optional part at the newest version that all of them have."""
    packages = stack.item.options[name].packages
    offered = root.offered(packages)
    common = set.intersection(*(set(offered.get(package, {})) for package in packages))
    stays = {locked.get(package) for package in packages}
    if len(stays) == 1 and stays <= common:
        return {package: locked[package] for package in packages}
    if not common:
        raise LockError(
            f'the packages of optional part "{name}" have no version in common: {", ".join(packages)}',
            file=stack.file,
            line=stack.source.line(("options", name, "packages")),
            remedy="add the archive that has them at one version, or correct `packages`",
        )
    return dict.fromkeys(packages, max(common, key=_order))


def _with_headers(stack: Stack, options: Collection[str]) -> bool:
    """Return whether the headers of the kernel are locked: for every node, or for classes that ask for them."""
    return stack.builds_modules or KERNEL_HEADERS in options


def _headers(stack: Stack, release: str) -> str:
    """Return the package with the headers of a kernel."""
    return kernel_packages(stack.os.id, release)[1]


def _kernel_parts(stack: Stack, release: str, *, headers: bool) -> list[str]:
    """Return the packages of a kernel, the image first."""
    names = kernel_packages(stack.os.id, release)
    return names if headers else [name for name in names if headers_release(name) is None]


def _kernel_releases(stack: CatalogEntry[Stack], names: Sequence[str]) -> list[str]:
    """Return the releases of all kernels among the packages of `names`."""
    return [
        release
        for name in names
        if (release := kernel_release(name))
        and name == kernel_packages(stack.item.os.id, release)[0]
    ]


def _kernels(
    stack: CatalogEntry[Stack],
    kernel: Kernel,
    root: AptRoot,
    names: Sequence[str],
    *,
    headers: bool,
) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Return the request in words, the releases that match it, and (version, release) of the complete ones."""
    if kernel.release is not None:
        pattern = re.escape(kernel.release)
        wanted = f'kernel release "{kernel.release}"'
    else:
        # x.y.z, one ABI part, the flavour: 6.1.0-56-amd64, 6.12.94+deb13-amd64; not
        # 6.1.0-56-cloud-amd64.
        pattern = rf"{re.escape(str(kernel.series))}(?:\.\d+)+(?:[-+~][a-z0-9.+~]*)?-{re.escape(str(kernel.flavour))}"
        wanted = f"kernel of series {kernel.series}, flavour {kernel.flavour},"
    releases = [
        release for release in _kernel_releases(stack, names) if re.fullmatch(pattern, release)
    ]
    parts = {release: _kernel_parts(stack.item, release, headers=headers) for release in releases}
    versions: dict[str, set[str]] = {}
    for stanza in root.show(name for packages in parts.values() for name in packages):
        versions.setdefault(stanza["Package"], set()).add(stanza["Version"])
    whole = [
        (version, release)
        for release in releases
        for version in set.intersection(*(versions.get(name, set()) for name in parts[release]))
    ]
    return wanted, releases, whole


def _kernel(
    stack: CatalogEntry[Stack],
    root: AptRoot,
    names: Sequence[str],
    keep: ResolutionTarget,
    *,
    headers: bool,
) -> tuple[str, str]:
    """Return release and package version of the kernel: all of its packages exist at that version."""
    kernel = stack.item.kernel
    wanted, releases, whole = _kernels(stack, kernel, root, names, headers=headers)
    same = [pair for pair in whole if pair[1] == keep.kernel]
    if keep.kernel_exact and not same:
        raise VanishedError(
            f"kernel {keep.kernel} is not whole in the archives {', '.join(stack.item.archives)}",
            file=stack.file,
        )
    if same:
        locked = [
            pair
            for pair in same
            if pair[0] == keep.versions.get(kernel_packages(stack.item.os.id, pair[1])[0])
        ]
        version, release = max(locked or same, key=lambda pair: _order(pair[0]))
        return release, version
    if whole:
        version, release = max(whole, key=lambda pair: (_order(pair[0]), _order(pair[1])))
        return release, version
    images = [
        release for release in _kernel_releases(stack, names) if re.match(r"\d+\.\d+\.\d", release)
    ]
    flavour = (kernel.flavour or str(kernel.release).rpartition("-")[2]) or ""
    # Another flavour of the kernel would not help: name those of the one that was asked for.
    offered = sorted((name for name in images if name.endswith(f"-{flavour}")), key=_order)
    shown = (
        f"the archives have {', '.join(offered[-6:])}" if offered else "the archives have no kernel"
    )
    if releases:
        raise LockError(
            f"{wanted} has an image but no {_kinds(stack.item, headers=headers)} of the same version; {shown}",
            file=stack.file,
            line=stack.source.line(("kernel",)),
            remedy=f"choose one whose {_kinds(stack.item, headers=headers)} exist, or add the archive that has them",
        )
    raise VanishedError(
        f"{wanted} is in none of the archives {', '.join(stack.item.archives)}; {shown}",
        file=stack.file,
        line=stack.source.line(("kernel",)),
        remedy="choose one of those, or lock from a mirror that kept it",
    )


def _kinds(stack: Stack, *, headers: bool) -> str:
    """Return in words the packages of a kernel in addition to its image: headers; headers and modules."""
    names = [name.split("-")[1] for name in _kernel_parts(stack, "0.0", headers=headers)[1:]]
    return " and ".join(dict.fromkeys(names))


def _family(driver: Driver, root: AptRoot, names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the driver's family in the archives: name -> upstream version -> package versions."""
    family = {name for name in names if in_family(name, driver.family)} | set(driver.lockstep)
    offered: dict[str, dict[str, list[str]]] = {}
    for stanza in root.choices(family):
        by_upstream = offered.setdefault(stanza["Package"], {})
        by_upstream.setdefault(upstream_part(stanza["Version"]), []).append(stanza["Version"])
    return offered


def _driver(
    stack: CatalogEntry[Stack],
    driver: Driver,
    root: AptRoot,
    names: Sequence[str],
    keep: ResolutionTarget,
) -> tuple[str, dict[str, str]]:
    """Return the driver's upstream version, and pins of every package of its family that has exactly that version."""
    offered = _family(driver, root, names)
    leader = driver.dkms.package if driver.dkms is not None else driver.lockstep[0]
    known = sorted(offered.get(leader, {}), key=_order)
    of_branch = [version for version in known if version.startswith(f"{driver.branch}.")]
    if driver.version is not None and driver.version not in of_branch:
        raise VanishedError(
            f"{leader} {driver.version} is in none of the archives {', '.join(stack.item.archives)}; {_offer(known)}",
            file=stack.file,
            line=stack.source.line(("driver", "version")),
            remedy="choose one of those, or lock from a mirror that kept it",
        )
    if not of_branch:
        raise VanishedError(
            f"{leader} of branch {driver.branch} is in none of the archives {', '.join(stack.item.archives)}; {_offer(known)}",
            file=stack.file,
            line=stack.source.line(("driver", "branch")),
            remedy="choose a branch the archives have, or lock from a mirror that kept it",
        )
    incomplete = []
    # Newest first, and the locked version before all others.
    candidates = [driver.version] if driver.version is not None else of_branch[::-1]
    if keep.driver in candidates:
        others = [one for one in candidates if one != keep.driver]
        candidates = [str(keep.driver), *([] if keep.driver_exact else others)]
    for version in candidates:
        lacking = [name for name in driver.lockstep if version not in offered.get(name, {})]
        if not lacking:
            pins = {
                name: max(versions[version], key=_order)
                for name, versions in offered.items()
                if version in versions
            }
            return version, pins
        incomplete.append(f"{version} lacks {', '.join(lacking)}")
    raise LockError(
        f"no version of branch {driver.branch} is complete: {'; '.join(incomplete[:3])}",
        file=stack.file,
        line=stack.source.line(("driver", "lockstep")),
        remedy="add the archive that has them, or correct `lockstep`",
    )


def _toolkit(
    stack: CatalogEntry[Stack], toolkit: Toolkit, root: AptRoot, pinned: Mapping[str, str]
) -> dict[str, str]:
    """Return pins of all packages of the container toolkit: one version, which no known bulletin affects (the catalog refuses one that is)."""
    floor, leader = rules.toolkit_floor(), toolkit.packages[0]
    line = stack.source.line(("runtime", "toolkit"))
    offered: dict[str, dict[str, str]] = {name: {} for name in toolkit.packages}
    for stanza in root.choices(toolkit.packages):
        known = offered[stanza["Package"]]
        number = upstream_part(stanza["Version"])
        # Of one upstream version, take the last revision.
        known[number] = max(known.get(number, stanza["Version"]), stanza["Version"], key=_order)
    versions = sorted(offered[leader], key=_order, reverse=True)
    whole = [
        version for version in versions if all(version in packages for packages in offered.values())
    ]
    if toolkit.version is not None and toolkit.version not in whole:
        raise VanishedError(
            f"{leader} {toolkit.version} is not complete in the archives {', '.join(stack.item.archives)}; {_offer(whole)}",
            file=stack.file,
            line=stack.source.line(("runtime", "toolkit", "version")),
            remedy="choose one of those, or lock from a mirror that kept it",
        )
    safe = [
        version
        for version in whole
        if rules.toolkit_safe(version) and toolkit.version in (None, version)
    ]
    if safe:
        locked = upstream_part(pinned.get(leader, ""))
        return {
            name: packages[locked if locked in safe else safe[0]]
            for name, packages in offered.items()
        }
    if whole:
        raise LockError(
            f"{leader} {whole[0]} is the newest there is, and {', '.join(rules.toolkit_faults(whole[0]))} affects it; the safe floor is {floor}",
            file=stack.file,
            line=line,
            remedy="add an archive or a mirror that has a safe one",
        )
    raise LockError(
        f"no version of the container toolkit is complete: {leader} {', '.join(versions)} lacks one of {', '.join(toolkit.packages[1:])}",
        file=stack.file,
        line=line,
        remedy="add the archive that has them, or correct `packages`",
    )


def _require(stack: CatalogEntry[Stack], asked: Iterable[str], names: Sequence[str]) -> None:
    known = set(names)
    for name in asked:
        if name in known:
            continue
        path: tuple[str | int, ...] = ("driver", "fabric_manager", "package")
        item = stack.item
        if name in item.packages:
            path = ("packages", item.packages.index(name))
        elif item.driver is not None and name in item.driver.packages:
            path = ("driver", "packages", item.driver.packages.index(name))
        elif item.runtime is not None and name in item.runtime.packages:
            path = ("runtime", "packages", item.runtime.packages.index(name))
        elif (
            item.runtime is not None
            and item.runtime.toolkit is not None
            and name in item.runtime.toolkit.packages
        ):
            path = ("runtime", "toolkit", "packages", item.runtime.toolkit.packages.index(name))
        elif any(name in option.packages for option in item.options.values()):
            key = next(key for key, option in item.options.items() if name in option.packages)
            path = ("options", key, "packages", item.options[key].packages.index(name))
        elif name in [module.package for module in item.modules]:
            path = ("modules", [module.package for module in item.modules].index(name), "package")
        close = nearest(name, [other for other in names if other[:3] == name[:3]])
        if not close.startswith('use "'):
            close = "correct the name, or add the archive that has it"
        raise VanishedError(
            f'package "{name}" is in none of the archives {", ".join(item.archives)}',
            file=stack.file,
            line=stack.source.line(path),
            remedy=close,
        )


def _offer(versions: Iterable[str]) -> str:
    known = sorted(versions, key=_order)
    return (
        f"the archives have {', '.join(known)}" if known else "the archives have no version of it"
    )


class DependencyGraph:
    """The resolved packages and who needs whom."""

    def __init__(self, stanzas: Mapping[str, Stanza]) -> None:
        self._stanzas = stanzas
        self._providers: dict[str, set[str]] = {}
        for name, stanza in stanzas.items():
            for item in [name, *package_names(stanza.get("Provides", ""))]:
                self._providers.setdefault(item, set()).add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._stanzas

    def source(self, name: str) -> str:
        """Return the source package of `name`."""
        return _source(self._stanzas[name])

    def needs(self, name: str) -> list[str]:
        """Return the resolved packages that satisfy a dependency of `name`."""
        # Alternatives count too: apt has resolved at least one of them.
        stanza = self._stanzas[name]
        wanted = [
            *package_names(stanza.get("Pre-Depends", "")),
            *package_names(stanza.get("Depends", "")),
        ]
        return sorted(
            {provider for item in wanted for provider in self._providers.get(item, ())} - {name}
        )

    def reached(self, start: Sequence[str]) -> dict[str, str]:
        """Return every package reached from `start`, with the reason it is there; the nearest one names it."""
        reasons = dict.fromkeys(start, "requested by the stack")
        pending = list(start)
        while pending:
            name = pending.pop(0)
            for needed in self.needs(name):
                if needed not in reasons:
                    reasons[needed] = f"needed by {name}"
                    pending.append(needed)
        return reasons

    def stack_set(self, requested: Sequence[str], driver: Driver | None) -> set[str]:
        """Return the packages that must move together: the requested ones, their dependencies from
        the same sources, and the family.
        """
        sources = {self.source(name) for name in requested}
        members = set(requested)
        pending = list(requested)
        while pending:
            for needed in self.needs(pending.pop()):
                if needed not in members and self.source(needed) in sources:
                    members.add(needed)
                    pending.append(needed)
        if driver is not None:
            members |= {name for name in self._stanzas if in_family(name, driver.family)}
        return members


def _source(stanza: Stanza) -> str:
    """Return the source package of a record. apt omits the field if the names are equal."""
    return stanza.get("Source", stanza["Package"]).split(" ")[0]
