"""Contents of an image and their origin: debs, wheels, files unpacked from wheels, and files of unknown
origin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import normpath
from typing import Any, Protocol

from packaging.utils import canonicalize_name

from goldnode.core.errors import ImageError
from goldnode.evidence import licences
from goldnode.evidence.layers import IMAGE, WHEELS, FileEntry, Snapshot
from goldnode.inspect.packages import (
    deb_names,
    dpkg_rows,
    wheel_headers,
    wheel_record,
    wheel_requirements,
)
from goldnode.oci.layout import OciImage

_SOURCE = re.compile(r"^(\S+)(?:\s+\(([^)]+)\))?$")


class EvidenceDeb(Protocol):
    """A deb of an image lock."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def made(self) -> bool: ...


class EvidenceWheel(Protocol):
    """A wheel of an image lock. `file` is its file name."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...


class EvidenceLock(Protocol):
    """The part of an image lock that evidence uses."""

    @property
    def image(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def debs(self) -> Sequence[EvidenceDeb]: ...
    @property
    def wheels(self) -> Sequence[EvidenceWheel]: ...
    @property
    def tools(self) -> Any: ...


@dataclass(frozen=True)
class InstalledDeb:
    """A package in the dpkg status.

    `sha256` is that of the .deb in the lock, None if no lock lists the package. `made`: goldnode built the
    package itself.
    """

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    licence: str | None = None
    summary: str = ""
    maintainer: str = ""
    homepage: str = ""
    depends: tuple[tuple[str, ...], ...] = ()
    provides: tuple[str, ...] = ()
    sha256: str | None = None
    file: str | None = None
    made: bool = False

    kind = "deb"


@dataclass(frozen=True)
class InstalledWheel:
    """A wheel, installed or unpacked.

    `files` are the regular files of the image that came from the wheel. `unpacked`: the files are not where
    pip puts them, but for example in `/usr/local/cuda-X.Y`. Files that are not at the path in RECORD are then
    matched by content. `altered` are files whose content differs from RECORD. `sha256` is that of the .whl in
    the lock.
    """

    name: str
    version: str
    licence: str | None = None
    summary: str = ""
    homepage: str = ""
    requires: tuple[str, ...] = ()
    unpacked: bool = False
    files: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    sha256: str | None = None
    file: str | None = None

    kind = "wheel"


@dataclass(frozen=True)
class Contents:
    """Contents of an image.

    `unowned` are files under usr/local, and ELF files anywhere, that no deb and no wheel accounts for.
    """

    snapshot: Snapshot
    image: dict[str, Any]
    os: dict[str, str]
    debs: tuple[InstalledDeb, ...]
    wheels: tuple[InstalledWheel, ...]
    owners: dict[str, str] = field(default_factory=dict)
    unowned: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return the digest of the image's manifest."""
        return self.snapshot.digest

    @property
    def packages(self) -> tuple[InstalledDeb | InstalledWheel, ...]:
        """Return the debs, followed by the wheels."""
        return (*self.debs, *self.wheels)

    @cached_property
    def dependencies(self) -> dict[str, list[str]]:
        """Return the installed packages that each package depends on, by `key`.

        Of alternative dependencies, all that are installed are included.
        """
        debs: dict[str, list[str]] = {}
        for deb in self.debs:
            for name in (deb.name, *deb.provides):
                debs.setdefault(name, []).append(key(deb))
        wheels: dict[str, str] = {
            canonicalize_name(wheel.name): key(wheel) for wheel in self.wheels
        }
        dependencies_of = {}
        for deb in self.debs:
            needed = {there for row in deb.depends for name in row for there in debs.get(name, [])}
            dependencies_of[key(deb)] = sorted(needed - {key(deb)})
        for wheel in self.wheels:
            dependencies_of[key(wheel)] = sorted(
                {wheels[name] for name in wheel.requires if name in wheels} - {key(wheel)}
            )
        return dependencies_of


def key(item: InstalledDeb | InstalledWheel) -> str:
    """Return the name of a package in owners and dependencies: `deb:NAME:ARCHITECTURE` or `wheel:NAME`."""
    if isinstance(item, InstalledDeb):
        return f"deb:{item.name}:{item.architecture}"
    return f"wheel:{canonicalize_name(item.name)}"


def contents(image: OciImage, snapshot: Snapshot, locks: Sequence[EvidenceLock] = ()) -> Contents:
    """Determine the contents of an image.

    `locks` are those of the image and its parents: they have the hash of every deb and wheel.
    """
    machine = "aarch64" if image.config.get("architecture") == "arm64" else "x86_64"
    return describe(snapshot, _image(snapshot, image), locks, machine)


def describe(
    snapshot: Snapshot,
    said: dict[str, Any],
    locks: Sequence[EvidenceLock] = (),
    machine: str = "x86_64",
) -> Contents:
    """Determine the contents of a root file system for a machine. `said` is its own description of itself."""
    debs = tuple(_debs(snapshot, locks))
    owners = _owned_by_debs(snapshot, debs)
    wheels = tuple(_wheels(snapshot, owners, locks, machine))
    unowned = tuple(
        path
        for path, entry in snapshot.files()
        if path not in owners
        and (entry.elf or path.startswith("usr/local/"))
        # Metadata of unpacked wheels.
        and not path.startswith(WHEELS)
    )
    return Contents(
        snapshot,
        image=said,
        os=_os(snapshot),
        debs=debs,
        wheels=wheels,
        owners=owners,
        unowned=unowned,
    )


def _image(snapshot: Snapshot, image: OciImage) -> dict[str, Any]:
    """Return the image's description of itself, with its labels as fallback."""
    labels = image.labels
    facts = {
        name: labels[f"io.goldnode.{label}"]
        for name, label in (
            ("backend", "backend"),
            ("version", "runtime"),
            ("flavour", "flavour"),
            ("os", "os"),
            ("build_id", "build-id"),
        )
        if f"io.goldnode.{label}" in labels
    }
    text = snapshot.text(IMAGE)
    if text is not None:
        try:
            said = json.loads(text)
        except ValueError as problem:
            raise ImageError(
                f"/{IMAGE} in {image.digest} is no JSON: {problem}", remedy="build the image again"
            ) from problem
        if isinstance(said, dict):
            facts |= said
    return facts


def _os(snapshot: Snapshot) -> dict[str, str]:
    text = snapshot.text("etc/os-release") or snapshot.text("usr/lib/os-release") or ""
    rows = (
        line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")
    )
    return {name.strip(): value.strip().strip('"') for name, value in rows}


def _debs(snapshot: Snapshot, locks: Sequence[EvidenceLock]) -> Iterator[InstalledDeb]:
    # By version too: a package that was upgraded after the lock is another one.
    locked = {(row.name, row.version, row.architecture): row for lock in locks for row in lock.debs}
    status = snapshot.text("var/lib/dpkg/status")  # its directory may be a link
    texts = snapshot.texts if status is None else {**snapshot.texts, "var/lib/dpkg/status": status}
    rows = (row for _, row in dpkg_rows(texts) if "Version" in row)
    for row in sorted(rows, key=lambda row: (row["Package"], row.get("Architecture", ""))):
        name, version, architecture = row["Package"], row["Version"], row.get("Architecture", "all")
        source = _SOURCE.match(row.get("Source", name))
        origin = locked.get((name, version, architecture))
        yield InstalledDeb(
            name=name,
            version=version,
            architecture=architecture,
            # `Source: NAME (VERSION)` is there only if it differs from the package.
            source=source[1] if source else name,
            source_version=(source[2] if source and source[2] else version),
            licence=_licence(snapshot, name),
            summary=row.get("Description", ""),
            maintainer=row.get("Maintainer", ""),
            homepage=row.get("Homepage", ""),
            depends=tuple(deb_names(row, "Pre-Depends", "Depends")),
            provides=tuple(name for names in deb_names(row, "Provides") for name in names),
            sha256=None if origin is None else origin.sha256,
            file=None if origin is None else origin.path.rpartition("/")[2],
            made=origin is not None and origin.made,
        )


def _licence(snapshot: Snapshot, name: str) -> str | None:
    real = snapshot.resolve(f"usr/share/doc/{name}/copyright")
    return None if real is None else licences.debian(snapshot.licences.get(real, []))


def _owned_by_debs(snapshot: Snapshot, debs: Sequence[InstalledDeb]) -> dict[str, str]:
    """Return the owning deb of each file.

    A path below a merged directory (/lib -> usr/lib) is resolved first, because dpkg records the path as
    packaged.
    """
    # Resolve each directory once: links can occur only in the directory part.
    folders: dict[str, str | None] = {}
    owners: dict[str, str] = {}
    # dpkg adds the architecture to the file name of multi-arch packages.
    for deb in debs:
        text = snapshot.texts.get(f"var/lib/dpkg/info/{deb.name}.list")
        if text is None:
            text = snapshot.texts.get(f"var/lib/dpkg/info/{deb.name}:{deb.architecture}.list", "")
        for line in text.splitlines():
            folder, _, name = line.strip("/").rpartition("/")
            if folder not in folders:
                folders[folder] = snapshot.resolve(folder) if folder else ""
            real = folders[folder]
            path = f"{real}/{name}".lstrip("/")
            if (
                real is not None
                and path in snapshot.entries
                and snapshot.entries[path].kind in "fhl"
            ):
                owners[path] = key(deb)
    return owners


def _wheels(
    snapshot: Snapshot, owners: dict[str, str], locks: Sequence[EvidenceLock], machine: str
) -> Iterator[InstalledWheel]:
    """Return the wheels of every dist-info directory that no deb owns. Add their files to `owners`."""
    locked = {
        (canonicalize_name(row.name), row.version): row for lock in locks for row in lock.wheels
    }
    folders = sorted(
        {
            folder
            for path in snapshot.texts
            if (folder := path.rpartition("/")[0]).endswith(".dist-info") and path not in owners
        },
        # Installed wheels first: their RECORD is authoritative for the files it lists.
        key=lambda folder: (folder.startswith(WHEELS), folder),
    )
    # Files without a known path in a RECORD; only their content can identify the wheel.
    loose: dict[str, list[str]] = {}
    for path, entry in snapshot.files():
        if path not in owners and path.startswith("usr/local/") and entry.size:
            loose.setdefault(entry.sha256, []).append(path)
    wheels = []
    for folder in folders:
        stem = folder.rpartition("/")[2].removesuffix(".dist-info")
        name, _, version = stem.rpartition("-")
        headers = wheel_headers(snapshot.texts.get(f"{folder}/METADATA", ""))
        name = next(iter(headers.get("name", [])), name)
        version = next(iter(headers.get("version", [])), version)
        record = [
            (row.path, row.sha256)
            for row in wheel_record(snapshot.texts.get(f"{folder}/RECORD", ""))
        ]
        unpacked = folder.startswith(WHEELS)
        origin = locked.get((canonicalize_name(name), version))
        owner = f"wheel:{canonicalize_name(name)}"
        files, altered, absent = _by_path(record, folder.rpartition("/")[0], snapshot.entries)
        # Its RECORD has the paths of a Python layout, which the image does not have.
        if unpacked:
            files = sorted({*files, *_by_content(absent, loose, owners)})
        owners.update(dict.fromkeys(files, owner))
        own = [
            path for path in (f"{folder}/METADATA", f"{folder}/RECORD") if path in snapshot.entries
        ]
        owners.update(dict.fromkeys(own, owner))
        wheels.append(
            InstalledWheel(
                name=name,
                version=version,
                licence=licences.wheel(headers),
                summary=next(iter(headers.get("summary", [])), ""),
                homepage=next(iter(headers.get("home-page", [])), ""),
                requires=tuple(sorted(wheel_requirements(headers, machine))),
                unpacked=unpacked,
                files=tuple(path for path in files if not path.startswith(WHEELS)),
                altered=tuple(altered),
                sha256=None if origin is None else origin.sha256,
                file=None if origin is None else origin.file,
            )
        )
    yield from sorted(wheels, key=lambda wheel: (canonicalize_name(wheel.name), wheel.version))


def _by_content(
    record: list[tuple[str, str]], loose: dict[str, list[str]], owners: dict[str, str]
) -> list[str]:
    paths = []
    for path, sha256 in record:
        here = [item for item in loose.get(sha256, []) if item not in owners] if sha256 else []
        # Two wheels may contain files with the same content. Prefer the one with the same file name.
        name = path.rpartition("/")[2]
        named = [item for item in here if item.rpartition("/")[2] == name]
        # Several candidates without that name: a guess would attribute a file to the wrong wheel.
        paths += named or ([] if sha256 in loose and len(loose[sha256]) > 1 else here)
    return sorted(set(paths))


def _by_path(
    record: list[tuple[str, str]], base: str, entries: dict[str, FileEntry]
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Split a RECORD by what the image has at its paths.

    Return the files present, those of them with other content, and the rows of missing files.
    """
    present, altered, absent = [], [], []
    for name, sha256 in record:
        # RECORD has paths relative to site-packages, such as ../../../bin/tool.
        path = normpath(f"/{base}/{name}").lstrip("/")
        entry = entries.get(path)
        if entry is not None and entry.kind in "fh":
            present.append(path)
            # pip rewrites the first line of scripts, and RECORD with it, so a difference is a change after
            # that.
            if sha256 and sha256 != entry.sha256:
                altered.append(path)
        else:
            absent.append((name, sha256))
    return sorted(present), sorted(altered), absent
