"""Pairs of driver package and kernel package that archives offer: what `goldnode modules matrix --packages` builds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import OperatingSystem
from goldnode.core.errors import ModulesError, nearest
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts.host import ModuleFlavour
from goldnode.lock.aptroot import AptRoot, AptSource, Download, Stanza, apt_root, package_names
from goldnode.lock.archives import ArchivePlaces, KeyAccess
from goldnode.lock.builder import ModuleBuildInputs, closure
from goldnode.lock.resolve import DependencyGraph, archive_sources, upstream_part
from goldnode.node.state.family import headers_release, kernel_packages, kernel_release

# Packages with a DKMS source of the NVIDIA driver in /usr/src. nvidia-fs-dkms and the like are no
# driver.
_DRIVER = re.compile(r"nvidia-(?:[a-z0-9]+-)*?kernel-(?:open-)?dkms|nvidia-dkms-\d[a-z0-9-]*")

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class PairSuite:
    """A suite of an archive of the catalog: `debian/trixie-backports`."""

    archive: str
    suite: str

    @classmethod
    def parse(cls, text: str) -> PairSuite:
        """Read ARCHIVE/SUITE. Raises ModulesError."""
        archive, slash, suite = text.partition("/")
        if not (archive and slash and suite):
            raise ModulesError(
                f'"{text}" names no suite of an archive',
                remedy="write ARCHIVE/SUITE, for instance debian/trixie-backports",
            )
        return cls(archive, suite)

    @property
    def codename(self) -> str:
        """Return the release whose compiler builds the kernels of this suite. Experimental is an addition to sid."""
        return {"experimental": "sid"}.get(self.suite, self.suite.partition("-")[0])


@dataclass(frozen=True)
class PairDriver:
    """A driver package with a DKMS source, and the archives that have it."""

    package: str
    version: str
    flavour: ModuleFlavour
    codename: str
    download: Download

    @property
    def upstream(self) -> str:
        """Return the upstream version of the driver."""
        return upstream_part(self.version)

    @property
    def name(self) -> str:
        """PACKAGE=VERSION, as apt writes it."""
        return f"{self.package}={self.version}"


@dataclass(frozen=True)
class PairKernel:
    """A kernel: its release, the version of its headers package, and the release of the OS that has it."""

    release: str
    version: str
    codename: str


@dataclass(frozen=True)
class ModulePair:
    """One build: a driver package for a kernel package."""

    driver: PairDriver
    kernel: PairKernel
    architecture: str

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the build: driver package and version, flavour, kernel and its version, architecture."""
        driver, kernel = self.driver, self.kernel
        return (
            driver.package,
            driver.version,
            driver.flavour,
            kernel.release,
            kernel.version,
            self.architecture,
        )

    @property
    def file(self) -> str:
        """Return the name of the record, without its suffix."""
        return re.sub(r"[^\w.+~@-]", "%", "_".join(self.key))

    def __str__(self) -> str:
        return f"{self.driver.package} {self.driver.version} on {self.kernel.release}"


class PairArchives:
    """Archives of several OS releases, each with its own apt."""

    def __init__(
        self,
        suites: Sequence[PairSuite],
        catalog: Catalog,
        site: Site,
        architecture: str,
        *,
        offline: bool = False,
    ) -> None:
        """Raise ModulesError for an unknown archive, SigningKeyError and SiteError as `archive_sources` does."""
        self.architecture = architecture
        self._sources: dict[str, list[AptSource]] = {}
        for codename in dict.fromkeys(suite.codename for suite in suites):
            own = [suite for suite in suites if suite.codename == codename]
            self._sources[codename] = _sources(own, _system(codename, architecture), catalog, site)
        self._offline = offline

    def sources(self, codename: str) -> list[AptSource]:
        """Return the sources of one release."""
        return self._sources[codename]

    def offered(self) -> tuple[list[PairDriver], list[PairKernel]]:
        """Return the driver and kernel packages of all releases, in the order of the suites, the newest first."""
        drivers: dict[tuple[str, str], PairDriver] = {}
        kernels: dict[tuple[str, str], PairKernel] = {}
        for codename, sources in self._sources.items():
            with apt_root(sources, self.architecture) as root:
                root.accept_expired()  # a record names the versions it measured, however old they are
                root.refresh(self._offline)
                names = root.names()
                stanzas = root.show(
                    name for name in names if _DRIVER.fullmatch(name) or headers_release(name)
                )
            for stanza in stanzas:
                name, version = stanza["Package"], stanza["Version"]
                if _DRIVER.fullmatch(name):
                    drivers.setdefault((name, version), _driver(stanza, codename))
                elif (release := release_of_headers(stanza)) is not None:
                    kernels.setdefault((release, version), PairKernel(release, version, codename))
        return list(drivers.values()), list(kernels.values())

    def kernel_inputs(self, kernel: PairKernel) -> ModuleBuildInputs:
        """Return what a build for `kernel` needs besides a driver: headers, compiler, DKMS.

        Raises LockError with apt's line if apt cannot install them.
        """
        system = _system(kernel.codename, self.architecture)
        _, headers, *_more = kernel_packages(system.id, kernel.release)
        with apt_root(self._sources[kernel.codename], self.architecture) as root:
            root.refresh(offline=True)
            root.pin(_matching_packages(root, headers, kernel.version))
            downloads = root.resolve([f"{headers}={kernel.version}", "dkms", "?essential"])
            stanzas = root.records(downloads)
        return _kernel_inputs(kernel, headers, self.architecture, downloads, stanzas)


def _system(codename: str, architecture: str) -> OperatingSystem:
    kind, version = facts.release_of(codename)
    return OperatingSystem.model_validate(
        {"id": kind, "version": version, "codename": codename, "architecture": architecture}
    )


def _sources(
    suites: Sequence[PairSuite], system: OperatingSystem, catalog: Catalog, site: Site
) -> list[AptSource]:
    for suite in suites:
        if suite.archive not in catalog.archives:
            raise ModulesError(
                f'archive "{suite.archive}" is not in the catalog',
                remedy=nearest(suite.archive, catalog.archives),
            )
    places = ArchivePlaces(catalog, site, system, KeyAccess(site.lock_directories()))
    known = {item.id: item for item in archive_sources([suite.archive for suite in suites], places)}
    sources = []
    for suite in suites:
        source = known[suite.archive]
        # A flat repository has no other suite.
        flat = source.suite.endswith("/")
        sources.append(
            replace(
                source,
                id=f"{suite.archive}-{suite.suite}",
                suite=source.suite if flat else suite.suite,
            )
        )
    return sources


def _driver(stanza: Stanza, codename: str) -> PairDriver:
    name, version = stanza["Package"], stanza["Version"]
    # As apt names files in its cache, where the colon of an epoch is escaped.
    file = f"{name}_{version.replace(':', '%3a')}_{stanza['Architecture']}.deb"
    flavour: ModuleFlavour = "open" if "open" in name.split("-") else "proprietary"
    download = Download(
        name, version=version, uri="", size=int(stanza["Size"]), sha256=stanza["SHA256"], file=file
    )
    return PairDriver(name, version, flavour, codename, download)


def release_of_headers(stanza: Stanza) -> str | None:
    """Return the kernel release of a headers package; None for parts of one and for metapackages."""
    release = headers_release(stanza["Package"])
    needs = package_names(stanza.get("Depends", ""))
    # A metapackage needs headers only: those of a release.
    part = any(headers_release(need) is not None for need in needs)
    return release if part and len(needs) > 1 else None


def _matching_packages(root: AptRoot, headers: str, version: str) -> dict[str, str]:
    """Return package -> version of the headers and the kernel's other packages, including suites
    that apt avoids by default.
    """
    pins = {headers: version}
    pending = [headers]
    while pending:
        stanzas = [item for item in root.show([pending[0]]) if item["Version"] == pins[pending[0]]]
        pending.pop(0)
        needs = [need for item in stanzas[:1] for need in package_names(item.get("Depends", ""))]
        for need in needs:
            if need.startswith("linux-") and need not in pins:
                offered = [item["Version"] for item in root.show([need])]  # the newest first
                if offered:
                    pins[need] = version if version in offered else offered[0]
                    pending.append(need)
    return pins


def _kernel_inputs(
    kernel: PairKernel,
    headers: str,
    architecture: str,
    downloads: Sequence[Download],
    stanzas: Mapping[str, Stanza],
) -> ModuleBuildInputs:
    graph = DependencyGraph(stanzas)
    images = {name for name in stanzas if kernel_release(name) is not None}
    parts, pending = {headers}, [headers]
    while pending:
        for name in graph.needs(pending.pop()):
            own = graph.source(name) == graph.source(headers)
            if (own or name.startswith("linux-kbuild-")) and name not in images | parts:
                parts.add(name)
                pending.append(name)
    tools = closure(
        graph, [*(need for name in parts for need in graph.needs(name)), "dkms"], images | parts
    )
    essential = [name for name, stanza in stanzas.items() if stanza.get("Essential") == "yes"]
    return ModuleBuildInputs(
        stack="",
        release=kernel.release,
        kernel=(),
        architecture=architecture,
        flavour=None,
        driver_version=None,
        module=None,
        trees=(),
        packages={download.name: download for download in downloads},
        stanzas=stanzas,
        installed=tuple(closure(graph, [*tools, *essential], images | parts)),
        unpacked=tuple(sorted(parts)),
        tools=tuple(tools),
        replaces=(),
    )


def compiler_of(inputs: ModuleBuildInputs) -> str:
    """Return the compiler that the headers demand, with its version."""
    graph = DependencyGraph(inputs.stanzas)
    near = closure(
        graph, [need for name in inputs.unpacked for need in graph.needs(name)], {"dkms"}
    )
    for name in (*near, *inputs.installed):
        compiler = re.fullmatch(r"(gcc-\d+)(?:-for-host|-[a-z0-9-]+-linux-gnu)?", name)
        if compiler:
            return f"{compiler.group(1)} {inputs.packages[name].version}"
    return "unknown"


@dataclass(frozen=True)
class PairSelection:
    """Which pairs to build: globs of driver packages (NAME or NAME=VERSION), kernel releases, and flavours.

    Empty: all.
    """

    drivers: Sequence[str] = ()
    kernels: Sequence[str] = ()
    flavours: Sequence[str] = ()


def pairs(
    asked: PairSelection,
    drivers: Sequence[PairDriver],
    kernels: Sequence[PairKernel],
    architecture: str,
    first: Iterable[tuple[str, str, str]] = (),
) -> list[ModulePair]:
    """Return the chosen pairs in the order in which to build them.

    First the `first` (driver package, its version, kernel release), those of stacks. Then kernel by
    kernel, kernels and drivers each in the order of the globs that name them. Raises ModulesError
    for a glob that names nothing.
    """
    some_drivers = _chosen(asked.drivers, {item.name: item for item in drivers}, "driver package")
    named = {f"{item.release}={item.version}": item for item in kernels}
    some_kernels = _chosen(asked.kernels, named, "kernel")
    chosen = [
        ModulePair(driver, kernel, architecture)
        for kernel in some_kernels
        for driver in some_drivers
        if not asked.flavours or driver.flavour in asked.flavours
    ]
    # The sort is stable: the order of kernels and drivers stays within both groups.
    own = set(first)
    return sorted(
        chosen,
        key=lambda pair: (pair.driver.package, pair.driver.version, pair.kernel.release) not in own,
    )


def _chosen(globs: Sequence[str], named: Mapping[str, _Item], kind: str) -> list[_Item]:
    chosen: dict[str, _Item] = {}
    for glob in globs or ["*"]:
        hits = {
            name: item
            for name, item in named.items()
            if fnmatchcase(name, glob) or fnmatchcase(name.partition("=")[0], glob)
        }
        if not hits:
            offered = sorted({name.partition("=")[0] for name in named})
            raise ModulesError(f'no {kind} is named "{glob}"', remedy=nearest(glob, offered))
        chosen |= {name: item for name, item in hits.items() if name not in chosen}
    return list(chosen.values())


def suites_of(catalog: Catalog) -> list[PairSuite]:
    """Return the suites of the archives of all stacks, for the OS release of each."""
    suites: dict[PairSuite, None] = {}
    for _, stack in sorted(catalog.stacks.items()):
        for name in stack.item.archives:
            archive, codename = catalog.archives[name].item, stack.item.os.codename
            suite = archive.suite.format(codename=codename)
            suites.setdefault(PairSuite(name, codename if suite.endswith("/") else suite))
    return list(suites)
