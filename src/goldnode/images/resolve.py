"""Resolution of images: apt and pip resolve for the image's OS and Python; this module records the result.

It also downloads the files. Debian packages are resolved in a temporary apt root, on top of the
parent's lock. pip resolves wheels for the image's Python and platform. But pip evaluates markers
such as `python_version<"3.12"` for the Python that runs it. So the result is evaluated again for
the image's Python, and missing wheels are requested. CUDA wheels are parts of one release: their
requirements are only checked, and add no wheels.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from goldnode.catalog.load import Catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import ImageError, UnsolvableError, nearest
from goldnode.core.files import cache_directory, sha256_of
from goldnode.core.logins import masked
from goldnode.core.site import Site, load_site, snapshot_url
from goldnode.images import hostpackage
from goldnode.images.imagelock import DerivedLock, ImageLock, find_lock, intent_digest
from goldnode.images.matrix import MatrixRow, MatrixSystem
from goldnode.images.wheelindex import Index, PipTransport, WheelFile, pinned, platforms
from goldnode.lock.aptroot import AptRoot, Download, Stanza, apt_root
from goldnode.lock.archives import ArchivePlaces, KeyAccess
from goldnode.lock.fetch import Fetcher, FetchProgress, FileToFetch
from goldnode.lock.locked_files import (
    LockedDeb,
    LockedWheel,
    MovedFile,
    first_fault,
    keeper,
    kept_versions,
    locked_debs,
    moved,
    pool_path,
    wanted_debs,
    writing,
)
from goldnode.lock.model import LockedArchive
from goldnode.lock.resolve import DependencyGraph, archive_sources
from goldnode.oci import emulation
from goldnode.oci.model import MACHINES

# Fields of a record that apt needs in a dpkg status file to resolve on top of it. Without
# Installed-Size, apt considers the installed package a different one of the same version, and
# downloads it again.
_STATUS = (
    "Package",
    "Architecture",
    "Multi-Arch",
    "Essential",
    "Installed-Size",
    "Version",
    "Source",
    "Provides",
    "Pre-Depends",
    "Depends",
    "Conflicts",
    "Breaks",
    "Replaces",
)


@dataclass(frozen=True)
class ImageLockResult:
    """Result of locking one image: its lock, the previous one, and whether anything differs."""

    row: MatrixRow
    lock: ImageLock
    old: ImageLock | None
    changed: bool


@dataclass(frozen=True)
class AddedPackages:
    """Packages that an image adds to an installed system, and the archives that they come from."""

    archives: list[LockedArchive]
    debs: list[LockedDeb]


class Resolver:
    """Resolver for the rows of one run. It reads the archives once per OS."""

    def __init__(
        self,
        *,
        catalog: Catalog | None = None,
        site: Site | None = None,
        offline: bool = False,
        cache: Path | None = None,
        today: dt.date | None = None,
        tools: Mapping[str, str] | None = None,
    ) -> None:
        self.catalog = catalog or load_catalog()
        self.site = site or load_site()
        self.offline = offline
        self.cache = cache or cache_directory()
        self.today = today or dt.datetime.now(tz=dt.UTC).date()
        self.tools = tools or {}
        self._stack = contextlib.ExitStack()
        self._indexes: dict[str | None, Index] = {}
        self._opening = threading.Lock()
        self._roots: dict[tuple[object, ...], AptRoot] = {}

    def __enter__(self) -> Resolver:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def lock(
        self,
        row: MatrixRow,
        chain: Sequence[tuple[MatrixRow, ImageLock]],
        *,
        keep: ImageLock | None = None,
    ) -> ImageLockResult:
        """Resolve `row` on top of `chain`, its ancestors with their locks, the root first.

        With `keep`, versions of that lock stay if the archives still have them. Raises ImageError,
        SigningKeyError and SiteError.
        """
        root = self.root(row.system)
        have = [deb for _, lock in chain for deb in lock.debs]
        debs = self._debs(row, root, have, keep) if row.debs else []
        wheels = self._wheels(row, chain, keep) if row.wheels else []
        below = chain[-1] if chain else None
        lock = ImageLock(
            lock=1,
            image=row.name,
            intent=intent_digest(row),
            resolved=self.today.isoformat(),
            parent=None if below is None else {"image": below[0].name, "lock": below[1].digest},  # type: ignore[arg-type]
            vendor=row.vendor,
            architecture=row.architecture,
            tools=emulation.used(self.tools, row.architecture),
            archives=[
                LockedArchive(id=item.id, suite=item.suite, components=list(item.components))
                for item in (root.sources if debs else ())
            ],
            debs=debs,
            wheels=wheels,
        )
        check_parts(row, lock)
        return ImageLockResult(row, lock, keep, True)

    def check_all(self, locks: Sequence[tuple[MatrixRow, ImageLock]]) -> list[list[MovedFile]]:
        """Return the result of `check` for each lock; several run in parallel."""
        for row, lock in locks:
            if lock.debs:
                self.root(row.system).pin(
                    {}
                )  # open it before the threads start; they would open it twice
        with ThreadPoolExecutor(4, thread_name_prefix="check") as pool:
            return list(pool.map(lambda pair: self.check(*pair), locks))

    def check(self, row: MatrixRow, lock: ImageLock) -> list[MovedFile]:
        """Return the files of `lock` that its sources no longer have, or have with other content."""
        moves: list[MovedFile] = []
        if lock.debs:
            root = self.root(row.system)
            offered = root.offered(item.name for item in lock.debs)
            for deb in lock.debs:
                if deb.made:
                    if hostpackage.locked(hostpackage.stated(deb.provides)) != deb:
                        moves.append(
                            MovedFile(
                                "changed",
                                deb.name,
                                f"this goldnode makes another {deb.name} than was locked",
                            )
                        )
                else:
                    moves += moved(deb, offered)
        if lock.wheels and not self.offline:
            index = self._index(row)
            for wheel in lock.wheels:
                hashes = {
                    item.sha256 for item in index.files(wheel.name) if item.file == wheel.file
                }
                if not hashes:
                    moves.append(
                        MovedFile(
                            "vanished", wheel.name, f"{wheel.file} is not in the index any more"
                        )
                    )
                # An index that states no hash cannot show a change.
                elif None not in hashes and wheel.sha256 not in hashes:
                    moves.append(
                        MovedFile(
                            "changed", wheel.name, f"{wheel.file} has other bytes than were locked"
                        )
                    )
        return moves

    # Debian packages

    def root(self, system: MatrixSystem) -> AptRoot:
        """Return the apt of a system, whose indexes were read in this run."""
        key = (system.id, system.codename, system.archives, system.architectures)
        if key not in self._roots:
            access = KeyAccess(cache=self.cache, offline=self.offline)
            places = ArchivePlaces(self.catalog, self.site, system.os, access)
            sources = archive_sources(system.archives, places)
            root = self._stack.enter_context(apt_root(sources, system.architectures[0], self.cache))
            root.refresh(self.offline)
            self._roots[key] = root
        return self._roots[key]

    def _debs(
        self, row: MatrixRow, root: AptRoot, have: Sequence[LockedDeb], keep: ImageLock | None
    ) -> list[LockedDeb]:
        below = self._control(row, root, have)
        pins = {item.name: item.version for item in have}
        if keep is not None:
            pins |= kept_versions(keep.debs, root)
        root.pin(pins)
        try:
            made, downloads = self._asked(row, root, below)
        except UnsolvableError as error:
            # The pinned versions of the old lock may conflict with a changed request. Try again
            # without them.
            if keep is not None:
                return self._debs(row, root, have, None)
            raise row.error(
                f'apt cannot install what image "{row.name}" asks for: {error.message.partition(": ")[2]}',
                remedy=(
                    "correct its packages, or update its parent: `goldnode images lock --upgrade` "
                    "with the name of its parent"
                ),
            ) from error
        debs = self._chosen(row, root, downloads, below)
        return sorted(debs + ([made] if made is not None else []), key=lambda entry: entry.name)

    def _chosen(
        self,
        row: MatrixRow,
        root: AptRoot,
        downloads: Sequence[Download],
        below: Mapping[str, Stanza],
    ) -> list[LockedDeb]:
        """Return apt's choice as rows of a lock. Raises ImageError if it replaces a package of `below`."""
        # An image only adds packages: replacing one would leave its old files in the parent's
        # layer.
        again = sorted({item.name for item in downloads} & below.keys())
        if again:
            raise row.error(
                f'image "{row.name}" would replace {again[0]}, which it has from its parent',
                remedy=f"let that move first: `goldnode images lock {row.image.parent} --upgrade`",
            )
        stanzas = root.records(downloads)
        self._keep_control(stanzas.values())
        graph = DependencyGraph({**below, **stanzas})
        asked = [name for name in row.debs if name in stanzas]
        essential: list[str] = []
        if "?essential" in row.debs:
            essential = [
                name for name, stanza in stanzas.items() if stanza.get("Essential") == "yes"
            ]
        reasons = {
            **graph.reached([*asked, *essential]),
            **dict.fromkeys(essential, "essential"),
            **dict.fromkeys(asked, "requested"),
        }
        return sorted(locked_debs(root, downloads, stanzas, reasons), key=lambda entry: entry.name)

    def packages(
        self, row: MatrixRow, below: Mapping[str, Stanza], keep: Sequence[LockedDeb] = ()
    ) -> AddedPackages:
        """Resolve the packages of `row` on top of an installed system, none of whose packages moves.

        `below` are the installed packages by name, as dpkg's status has them. Versions of `keep` stay if the
        archives still have them. Raises UnsolvableError with apt's reason, and ImageError.
        """
        root = self.root(row.system)
        root.pin(
            {
                **kept_versions(keep, root),
                **{name: stanza["Version"] for name, stanza in below.items()},
            }
        )
        status = root.directory / "status-below"
        status.write_text(_status(below.values()), encoding="utf-8")
        root.use_status(status)
        try:
            downloads = root.resolve(row.debs, removals=False)
        except UnsolvableError:
            if not keep:
                raise
            return self.packages(row, below)
        archives = [
            LockedArchive(id=item.id, suite=item.suite, components=list(item.components))
            for item in root.sources
        ]
        return AddedPackages(archives, self._chosen(row, root, downloads, below))

    def _asked(
        self, row: MatrixRow, root: AptRoot, below: Mapping[str, Stanza]
    ) -> tuple[LockedDeb | None, list[Download]]:
        """Return the packages that apt downloads for `row` on top of `below`.

        The first value is the package that represents the host's driver, if the row needs it.
        Raises UnsolvableError, and ImageError if no package depends on a name in `from_host`.
        """
        status = root.directory / "status-below"

        def resolved(*more: Stanza) -> list[Download]:
            status.write_text(_status([*below.values(), *more]), encoding="utf-8")
            root.use_status(status)
            return root.resolve(row.debs)

        if not row.from_host:
            return None, resolved()
        # Resolve twice: first with a stand-in of any version, to learn the required versions; then
        # with the package that provides exactly those.
        first = resolved(hostpackage.stand_in(row.from_host))
        asked = hostpackage.provisions(row.from_host, root.records(first).values())
        idle = sorted(set(row.from_host) - asked.keys())
        if idle:
            raise row.error(
                f'nothing in image "{row.name}" asks for {idle[0]}',
                remedy="take it out of `from_host`",
            )
        made = hostpackage.locked(asked)
        second = resolved(hostpackage.stanza(made.provides))
        if second != first:
            raise row.error(
                f"apt does not take {made.name} {made.version} for the host's driver",
                remedy="report this",
            )
        return made, second

    def _control(
        self, row: MatrixRow, root: AptRoot, debs: Sequence[LockedDeb]
    ) -> dict[str, Stanza]:
        """Return the archive's records of `debs` by name, or those that an earlier run cached."""
        offered: dict[tuple[str, str], Stanza] = {}
        for stanza in root.show(f"{item.name}={item.version}" for item in debs if not item.made):
            offered[stanza["Package"], stanza.get("SHA256", "")] = stanza
        stanzas: dict[str, Stanza] = {}
        for item in debs:
            if item.made:
                stanzas[item.name] = hostpackage.stanza(item.provides)
                continue
            kept = self._control_file(item.sha256)
            if (item.name, item.sha256) in offered:
                stanzas[item.name] = offered[item.name, item.sha256]
            elif kept.is_file():
                stanzas[item.name] = json.loads(kept.read_text(encoding="utf-8"))
            else:
                raise row.error(
                    f'{item.name} {item.version}, a package of the parent of "{row.name}", has left its archive',
                    remedy=f"run `goldnode images lock {row.image.parent} --upgrade` first",
                )
        # Archives drop old versions. Cached records let children resolve on top of a parent's lock
        # for longer.
        self._keep_control(stanza for stanza in stanzas.values() if "SHA256" in stanza)
        return stanzas

    def _control_file(self, sha256: str) -> Path:
        return self.cache / "images" / "control" / f"{sha256}.json"

    def _keep_control(self, stanzas: Iterable[Stanza]) -> None:
        for stanza in stanzas:
            path = self._control_file(stanza["SHA256"])
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(
                    json.dumps({key: stanza[key] for key in (*_STATUS, "SHA256") if key in stanza}),
                    encoding="utf-8",
                )

    # Wheels

    def _index(self, row: MatrixRow) -> Index:
        url = index_url(row, self.site)
        with self._opening:
            return self._indexes.setdefault(url, Index(url))

    def _wheels(
        self, row: MatrixRow, chain: Sequence[tuple[MatrixRow, ImageLock]], keep: ImageLock | None
    ) -> list[LockedWheel]:
        if self.offline:
            if keep is not None and keep.intent == intent_digest(row):
                return list(keep.wheels)
            raise row.error(
                f'the wheels of image "{row.name}" cannot be resolved offline',
                remedy="run once without --offline",
            )
        if row.layout == "cuda":
            index = self._index(row)
            wheels = [
                self._exact(row, index, name, version)
                for name, version in pinned(row.wheels).items()
            ]
            check_release(row, chain, wheels)
            return [
                _locked(item, index, "requested")
                for item in sorted(wheels, key=lambda entry: entry.name)
            ]
        there = {
            wheel.name: wheel.version
            for other, lock in chain
            if other.layout == "python"
            for wheel in lock.wheels
        }
        return self.closure(row, there, keep.wheels if keep is not None else ())

    def closure(
        self, row: MatrixRow, there: Mapping[str, str], keep: Iterable[LockedWheel] = ()
    ) -> list[LockedWheel]:
        """Resolve the requirements of `row` with pip. Return the wheels without those that are `there`.

        Their versions are fixed; those of `keep` are preferences. Raises ImageError.
        """
        index = self._index(row)
        pins = {item.name: item.version for item in keep}
        try:
            wheels, reasons = _closure(row, self.site, {**pins, **there})
        except ResolutionError:
            try:
                wheels, reasons = _closure(row, self.site, there)
            except ResolutionError as problem:
                if problem.missing is None:
                    raise
                raise no_wheel(row, problem.missing, index) from None
        return [
            _locked(item, index, reasons[item.name])
            for item in sorted(wheels, key=lambda entry: entry.name)
            if item.name not in there
        ]

    def _exact(self, row: MatrixRow, index: Index, name: str, version: str) -> PipWheel:
        file = index.wheel(name, version, row.system)
        if file is None:
            known = {str(parse_wheel_filename(item.file)[1]) for item in index.files(name)}
            raise row.error(
                f'image "{row.name}" asks for {name} {version}, of which the index has no wheel for Python '
                f"{row.system.python} on this platform",
                remedy=nearest(version, known) or "correct the name of the wheel",
            )
        return PipWheel(
            name,
            version=version,
            file=file.file,
            sha256=index.sha256(file),
            url=file.url,
            requires=tuple(index.requires(file)),
            size=file.size,
        )


class ResolutionError(ImageError):
    """pip finds no solution. `missing` is a requirement of which it found nothing at all."""

    missing: str | None = None


class NoWheelError(ImageError):
    """No index has a wheel that fits a requirement. `project` is the normalized name."""

    def __init__(self, project: str, message: str, row: MatrixRow, remedy: str) -> None:
        super().__init__(message, file=row.file, line=row.line, remedy=remedy)
        self.project = project


def no_wheel(row: MatrixRow, requirement: str, index: Index) -> NoWheelError:
    """Return the error for a requirement of which pip found no wheel: the version, the platform, source only, or the name.

    To pip, all of them are "from versions: none".
    """
    named = re.match(r"[A-Za-z0-9._-]+", requirement)
    project = canonicalize_name(named[0] if named is not None else requirement)
    here = f"Python {row.system.python} on {MACHINES[row.system.architectures[0]]}"
    build = (
        f"build its wheel in the flavour dev (`pip wheel --no-deps {requirement}`), and put it into an index or a directory "
        "that pip's configuration names"
    )
    if offered := index.versions(project, row.system):
        text, remedy = (
            f"no index has this version with wheels for {here}",
            f"use one of: {', '.join(offered[:6])}",
        )
    elif index.files(project):
        text, remedy = (
            f"the index has wheels of it, and none for {here}",
            f"use another base, or {build}",
        )
    elif index.has_page(project):
        text, remedy = "the index has only its source, and goldnode installs only wheels", build
    else:
        text, remedy = (
            "no index has a project of this name",
            "correct the name, or name its index in pip's configuration",
        )
    return NoWheelError(project, f'"{requirement}": {text}', row, remedy)


# Messages of pip 22 to 26 about an index that does not answer.
_UNREACHED = re.compile(
    r"after connection broken by|Could not fetch URL|HTTPSConnectionPool|HTTPConnectionPool"
)


@dataclass(frozen=True)
class PipWheel:
    """One wheel of pip's report."""

    name: str
    version: str
    file: str
    sha256: str
    url: str
    requires: tuple[str, ...]
    size: int | None = None


def _locked(item: PipWheel, index: Index, why: str) -> LockedWheel:
    size = index.size(WheelFile(item.file, item.url, item.sha256, item.size))
    return LockedWheel(
        name=item.name, version=item.version, file=item.file, sha256=item.sha256, size=size, why=why
    )


def platform_options(system: MatrixSystem) -> list[str]:
    """Return the options that make pip choose wheels for the Python and platform of `system`."""
    short = "cp" + system.python.replace(".", "")
    options = ["--python-version", system.python, "--implementation", "cp"]
    options += [word for abi in (short, "abi3", "none") for word in ("--abi", abi)]
    return options + [word for tag in platforms(system) for word in ("--platform", tag)]


def environment(system: MatrixSystem, extra: str = "") -> dict[str, str]:
    """Return the marker environment (PEP 508) of the Python of `system`."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{system.python}.0",
        "os_name": "posix",
        "platform_machine": MACHINES[system.architectures[0]],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{system.python}.0",
        "python_version": system.python,
        "sys_platform": "linux",
        "extra": extra,
    }


def pip_wheels(
    row: MatrixRow, site: Site, requirements: Sequence[str], constraints: Mapping[str, str]
) -> list[PipWheel]:
    """Return the wheels that pip would install.

    Raises ResolutionError if pip finds no solution, and ImageError for an index that does not
    answer, or a file that is not a wheel.
    """
    url = index_url(row, site)
    with tempfile.TemporaryDirectory(prefix="goldnode-pip-") as name:
        place = Path(name)
        (place / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
        (place / "constraints.txt").write_text(
            "".join(f"{key}=={value}\n" for key, value in constraints.items()), encoding="utf-8"
        )
        # pip accepts --platform only with --only-binary=:all: and, in older releases, --target.
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--quiet",
            "--ignore-installed",
            "--only-binary=:all:",
            "--no-input",
        ]
        command += [
            "--disable-pip-version-check",
            "--target",
            str(place / "target"),
            "--report",
            str(place / "report.json"),
        ]
        command += [
            *platform_options(row.system),
            *(("--index-url", url) if url is not None else ()),
        ]
        command += [
            "--constraint",
            str(place / "constraints.txt"),
            "--requirement",
            str(place / "requirements.txt"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [
                line.removeprefix("ERROR: ")
                for line in done.stderr.splitlines()
                if line.startswith("ERROR:")
            ]
            text = "; ".join(masked(line) for line in lines[-2:]) or f"exit {done.returncode}"
            # pip reports an index that does not answer as "no matching version". Without this
            # distinction a moment without network would drop the lock's pins, and move its
            # versions.
            if unreached := next(
                (line for line in done.stderr.splitlines() if _UNREACHED.search(line)), None
            ):
                raise ImageError(
                    f'pip could not reach an index for the wheels of image "{row.name}": {masked(unreached)}',
                    file=row.file,
                    line=row.line,
                    remedy="check the network, the proxy and pip's configuration, and run the command again",
                )
            missing = re.search(
                r"^No matching distribution found for (\S.*)$", "\n".join(lines), re.MULTILINE
            )
            refusal = ResolutionError(
                f'pip cannot find the wheels of image "{row.name}": {text}',
                file=row.file,
                line=row.line,
                remedy="correct the versions of its components, or pip's configuration",
            )
            refusal.missing = missing[1] if missing is not None else None
            raise refusal
        report = json.loads((place / "report.json").read_text(encoding="utf-8"))
    return [_reported(item, row) for item in report["install"]]


def index_url(row: MatrixRow, site: Site) -> str | None:
    """Return the site's URL of the index that `row` names; None for pip's configured index.

    Raises ImageError if the site does not define that index.
    """
    if row.index is None:
        return None
    if row.index not in site.indexes:
        raise row.error(
            f'image "{row.name}" needs index "{row.index}", and the site names none of that name',
            remedy=nearest(row.index, site.indexes)
            or f"name it in goldnode-site.yml, as indexes: {{{row.index}: {{url: …}}}}",
        )
    return site.indexes[row.index].url


def _reported(item: Mapping[str, Any], row: MatrixRow) -> PipWheel:
    metadata, info = item["metadata"], item["download_info"]
    url = info["url"]
    file = unquote(urlsplit(url).path.rpartition("/")[2])
    hashes = info.get("archive_info", {}).get("hashes", {})
    if not file.endswith(".whl"):
        raise row.error(
            f"pip chose {file}, which is no wheel",
            remedy="choose a version that has a wheel for this Python",
        )
    sha256 = hashes.get("sha256") or _hash_of(url)
    return PipWheel(
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        file=file,
        sha256=sha256,
        url=url,
        requires=tuple(metadata.get("requires_dist") or ()),
    )


def _hash_of(url: str) -> str:
    """Return the hash of a wheel whose index states none. This works only for local files."""
    if urlsplit(url).scheme != "file":
        raise ImageError(
            f"the index gives no SHA-256 of {masked(url)}", remedy="use an index that does"
        )
    return sha256_of(Path(unquote(urlsplit(url).path)))


def _closure(
    row: MatrixRow, site: Site, constraints: Mapping[str, str]
) -> tuple[list[PipWheel], dict[str, str]]:
    """Return all wheels that `row` needs by the markers of its own Python, and the reason for each."""
    asked = list(row.wheels)
    # Each round may add wheels with further requirements. Eight rounds end a loop that does not
    # converge.
    for _ in range(8):
        wheels = {item.name: item for item in pip_wheels(row, site, asked, constraints)}
        reasons, missing = reached(row, wheels)
        if not missing:
            return [wheels[name] for name in reasons], reasons
        asked += missing
    raise row.error(
        f"pip leaves out {', '.join(missing)} again and again", remedy="name them as components"
    )


def reached(row: MatrixRow, wheels: Mapping[str, PipWheel]) -> tuple[dict[str, str], list[str]]:
    """Follow the requirements of `row` through `wheels`.

    Return the reasons by name, and the requirements that no wheel in `wheels` fulfils.
    """
    reasons: dict[str, str] = {}
    missing: list[str] = []
    pending = [(Requirement(text), "requested") for text in row.wheels]
    done: set[tuple[str, str]] = set()
    while pending:
        requirement, why = pending.pop(0)
        name = canonicalize_name(requirement.name)
        wheel = wheels.get(name)
        if wheel is None or not requirement.specifier.contains(wheel.version, prereleases=True):
            # Without the marker: pip would evaluate it for its own Python and skip the wheel again.
            bare = Requirement(str(requirement))
            bare.marker = None
            missing.append(str(bare))
            continue
        reasons.setdefault(name, why)
        # Extras add requirements to those of the plain wheel.
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            for text in wheel.requires:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate(environment(row.system, extra)):
                    pending.append((needed, f"needed by {name}"))
    return reasons, missing


def check_release(
    row: MatrixRow, chain: Sequence[tuple[MatrixRow, ImageLock]], wheels: Sequence[PipWheel]
) -> None:
    """Raise an error for a CUDA wheel with a requirement that neither the image nor its ancestors fulfil.

    A wheel or a Debian package may fulfil it.
    """
    have: dict[str, str] = {}
    for other in [*(below for below, _ in chain), row]:
        for name, component in other.components.items():
            if component.wheel is not None and name in other.parts:
                have[canonicalize_name(component.wheel)] = other.parts[name]
    have |= {item.name: item.version for item in wheels}
    for wheel in wheels:
        for text in wheel.requires:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate(environment(row.system)):
                continue
            version = have.get(canonicalize_name(needed.name))
            if version is None or not needed.specifier.contains(Version(version), prereleases=True):
                got = "is not there" if version is None else f"is {version}"
                raise row.error(
                    f'{wheel.file} in image "{row.name}" requires {needed}, which {got}',
                    remedy="add that component to the flavour",
                )


def check_parts(row: MatrixRow, lock: ImageLock) -> None:
    """Raise an error for a Debian package whose version differs from that of its component."""
    versions = {item.name: item.version for item in lock.debs}
    for name, component in row.components.items():
        expected = row.parts.get(name)
        packages = component.debs
        if isinstance(packages, dict):
            packages = packages.get(row.image.os, ())
        for package in packages if expected is not None else ():
            if package not in versions:
                continue
            # Debian puts the CUDA release next to the part's own version:
            # 11.1.1+~10.3.5.147~12.4.1-2.
            if not re.search(rf"(^|[:~+]){re.escape(str(expected))}([~+.-]|$)", versions[package]):
                raise row.error(
                    f'component "{name}" is declared as {expected}, and {package} is {versions[package]}',
                    remedy="write the version that the package has, or leave it out",
                )


def _status(stanzas: Iterable[Stanza]) -> str:
    """Return a dpkg status file in which `stanzas` are installed."""
    blocks = []
    for stanza in stanzas:
        lines = [f"{key}: {stanza[key]}" for key in _STATUS if key in stanza]
        blocks.append("\n".join([lines[0], "Status: install ok installed", *lines[1:], ""]))
    return "\n".join(blocks)


# Fetching


def fetch_all(
    rows: Sequence[tuple[MatrixRow, ImageLock | DerivedLock]] | Sequence[MatrixRow],
    pool: Path,
    progress: FetchProgress | None = None,
    *,
    site: Site | None = None,
    parallel: int = 4,
    verify: bool = True,
) -> int:
    """Download every file of the locks of `rows` into `pool`, and return the number of bytes downloaded.

    Existing files are not requested. With `verify` they are hashed, and downloaded again if they
    differ. Interrupted downloads resume. Raises ImageError if a file is not available as its lock
    describes it; the other files are downloaded in any case.
    """
    pairs: list[tuple[MatrixRow, ImageLock | DerivedLock]] = [
        item if isinstance(item, tuple) else (item, find_lock(item)) for item in rows
    ]
    # By hash: images share files, and each is downloaded once.
    debs = {deb.sha256: deb for _, lock in pairs for deb in lock.debs}
    days = {deb.sha256: lock.resolved for _, lock in pairs for deb in lock.debs}
    make_all([lock for _, lock in pairs], pool, verify=verify)
    wheels = {wheel.sha256: (row, wheel) for row, lock in pairs for wheel in lock.wheels}
    missing_debs = [item for item in debs.values() if not _there(pool, item, verify)]
    missing_wheels = [
        (row, item) for row, item in wheels.values() if not _there(pool, item, verify)
    ]
    if not missing_debs and not missing_wheels:
        return 0
    site = site or load_site()
    wanted = wanted_debs(
        missing_debs, site, lambda deb: snapshot_url(site, deb.archive, days[deb.sha256])
    )
    indexes: dict[str | None, Index] = {}
    addresses = list(_addresses(missing_wheels, site, indexes))
    wanted += addresses
    names = {item.sha256: item.file for item in missing_debs} | {
        wheel.sha256: wheel.file for _, wheel in missing_wheels
    }

    with writing(pool, ImageError):
        transport = PipTransport(
            [address for index in indexes.values() for address in index.addresses],
            only={item.url for item in addresses},
            connections=parallel,
        )
        faults = Fetcher(
            pool / "partial",
            keeper(pool, names),
            parallel=parallel,
            progress=progress,
            transport=transport,
        ).fetch(wanted)
    if faults:
        remedy = "run `goldnode images lock --check` to see what moved, or fetch again if it was the network"
        if any(fault.kind == "refused" for fault in faults):
            remedy = (
                "add the server's login: for wheels to the address in pip's configuration or to ~/.netrc, for Debian "
                "packages to /etc/apt/auth.conf.d"
            )
        raise ImageError(first_fault(faults), remedy=remedy)
    return sum(item.size or 0 for item in wanted)


def make_all(locks: Iterable[ImageLock | DerivedLock], pool: Path, *, verify: bool = True) -> None:
    """Write the packages that goldnode builds itself into `pool`, without a network. Raises ImageError."""
    for deb in [deb for lock in locks for deb in lock.debs if deb.made]:
        if not _there(pool, deb, verify):
            hostpackage.write(deb, pool_path(pool, deb))


def _there(pool: Path, item: LockedDeb | LockedWheel, verify: bool) -> bool:
    path = pool_path(pool, item)
    try:
        if path.stat().st_size != item.size:
            return False
        # The size is compared above: it is cheap and reveals most incomplete files.
        return not verify or sha256_of(path) == item.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


def _addresses(
    wheels: Sequence[tuple[MatrixRow, LockedWheel]], site: Site, indexes: dict[str | None, Index]
) -> Iterator[FileToFetch]:
    """Yield the downloads of these wheels from pip's indexes, and add the indexes to `indexes`.

    Raises ImageError for a wheel that an index lacks or has with other content.
    """
    for row, wheel in wheels:
        url = index_url(row, site)
        index = indexes.setdefault(url, Index(url))
        named = [item for item in index.files(wheel.name) if item.file == wheel.file]
        # Prefer an entry with a matching hash over one without a hash. The download is verified in
        # any case.
        fitting = [item for item in named if item.sha256 == wheel.sha256] or [
            item for item in named if item.sha256 is None
        ]
        if not fitting:
            what = "is not in the index any more"
            if named:
                what = "has other bytes in the index than were locked"
            raise row.error(f"{wheel.file} {what}", remedy=f"run `goldnode images lock {row.name}`")
        yield FileToFetch(
            wheel.sha256,
            size=wheel.size,
            url=fitting[0].url,
            name=wheel.name,
            version=wheel.version,
            archive="of wheels",
        )
