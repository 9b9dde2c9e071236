"""What is in an image and where it came from: debs, wheels, the files that wheels left in it, and files that nothing accounts for."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import cached_property
from posixpath import normpath
from typing import Any, Protocol

from goldnode.core.errors import ImageError
from goldnode.evidence import licences
from goldnode.evidence.layers import IMAGE, WHEELS, Entry, Snapshot
from goldnode.oci.layout import OciImage

_SOURCE = re.compile(r"^(\S+)(?:\s+\(([^)]+)\))?$")
_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")


class LockedDeb(Protocol):
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


class LockedWheel(Protocol):
    """A wheel of an image lock. `file` is the wheel's file name."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...


class Lock(Protocol):
    """An image lock, as far as evidence needs it."""

    @property
    def image(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def debs(self) -> Sequence[LockedDeb]: ...
    @property
    def wheels(self) -> Sequence[LockedWheel]: ...
    @property
    def tools(self) -> Any: ...


@dataclass(frozen=True)
class Deb:
    """A package of dpkg's status. `sha256` is that of the .deb in the lock, None where no lock names it. `made`: by goldnode itself."""

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
class Wheel:
    """A wheel, installed or unpacked. `files` are the regular files of the image that came from it, with their hashes there.

    `unpacked`: its files were put elsewhere than pip puts them (`/usr/local/cuda-X.Y`). Its RECORD says where; a file that is not where a
    RECORD says is known by its content. `altered`: files whose content is not what the RECORD says. `sha256` is that of the .whl in the lock.
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
    """An image's content. `unowned`: files under usr/local and ELF files anywhere that neither a deb nor a wheel accounts for."""

    snapshot: Snapshot
    image: dict[str, Any]
    os: dict[str, str]
    debs: tuple[Deb, ...]
    wheels: tuple[Wheel, ...]
    owners: dict[str, str] = field(default_factory=dict)
    unowned: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of the image's manifest."""
        return self.snapshot.digest

    @property
    def packages(self) -> tuple[Deb | Wheel, ...]:
        """Debs, then wheels."""
        return (*self.debs, *self.wheels)

    @cached_property
    def dependencies(self) -> dict[str, list[str]]:
        """What each package needs of the others, by `key`. Of alternatives, those that are there."""
        debs: dict[str, list[str]] = {}
        for deb in self.debs:
            for name in (deb.name, *deb.provides):
                debs.setdefault(name, []).append(key(deb))
        wheels = {normal(wheel.name): key(wheel) for wheel in self.wheels}
        found = {}
        for deb in self.debs:
            needed = {there for row in deb.depends for name in row for there in debs.get(name, [])}
            found[key(deb)] = sorted(needed - {key(deb)})
        for wheel in self.wheels:
            found[key(wheel)] = sorted(
                {wheels[name] for name in wheel.requires if name in wheels} - {key(wheel)}
            )
        return found


def key(item: Deb | Wheel) -> str:
    """What names a package in owners and dependencies: `deb:NAME:ARCHITECTURE` or `wheel:NAME`."""
    return f"deb:{item.name}:{item.architecture}" if isinstance(item, Deb) else f"wheel:{normal(item.name)}"


def normal(name: str) -> str:
    """A Python distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def contents(image: OciImage, snapshot: Snapshot, locks: Sequence[Lock] = ()) -> Contents:
    """Say what is in an image. `locks`: of the image and its parents; they know the hash of every deb and wheel."""
    return describe(snapshot, _image(snapshot, image), locks)


def describe(snapshot: Snapshot, said: dict[str, Any], locks: Sequence[Lock] = ()) -> Contents:
    """Say what is in a root file system. `said`: what it calls itself."""
    debs = tuple(_debs(snapshot, locks))
    owners = _owned_by_debs(snapshot, debs)
    wheels = tuple(_wheels(snapshot, owners, locks))
    unowned = tuple(
        path
        for path, entry in snapshot.files()
        if path not in owners and (entry.elf or path.startswith("usr/local/")) and not path.startswith(WHEELS)
    )
    return Contents(snapshot, said, _os(snapshot), debs, wheels, owners, unowned)


def _image(snapshot: Snapshot, image: OciImage) -> dict[str, Any]:
    """The image's own description of itself, with what its labels say where it has none."""
    labels = image.labels
    found = {
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
            found |= said
    return found


def _os(snapshot: Snapshot) -> dict[str, str]:
    text = snapshot.text("etc/os-release") or snapshot.text("usr/lib/os-release") or ""
    rows = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip('"') for name, value in rows}


def _debs(snapshot: Snapshot, locks: Sequence[Lock]) -> Iterator[Deb]:
    locked = {(row.name, row.version, row.architecture): row for lock in locks for row in lock.debs}
    texts = [snapshot.text("var/lib/dpkg/status") or ""]
    texts += [
        text for path, text in sorted(snapshot.texts.items()) if path.startswith("var/lib/dpkg/status.d/")
    ]
    rows = sorted(
        (
            row
            for text in texts
            for row in _stanzas(text)
            if row.get("Status", "install ok installed").endswith(" installed")
        ),
        key=lambda row: (row.get("Package", ""), row.get("Architecture", "")),
    )
    for row in rows:
        if not {"Package", "Version"} <= row.keys():
            continue
        name, version, architecture = row["Package"], row["Version"], row.get("Architecture", "all")
        source = _SOURCE.match(row.get("Source", name))
        origin = locked.get((name, version, architecture))
        depends = [row.get(part, "") for part in ("Pre-Depends", "Depends")]
        yield Deb(
            name=name,
            version=version,
            architecture=architecture,
            source=source[1] if source else name,
            source_version=(source[2] if source and source[2] else version),
            licence=_licence(snapshot, name),
            summary=row.get("Description", ""),
            maintainer=row.get("Maintainer", ""),
            homepage=row.get("Homepage", ""),
            depends=tuple(
                tuple(_names(part, "|")) for text in depends for part in text.split(",") if part.strip()
            ),
            provides=tuple(_names(row.get("Provides", ""), ",")),
            sha256=None if origin is None else origin.sha256,
            file=None if origin is None else origin.path.rpartition("/")[2],
            made=origin is not None and origin.made,
        )


def _names(text: str, separator: str) -> Iterator[str]:
    for part in text.split(separator):
        word = part.strip().split(" ")[0].split("(")[0].partition(":")[0]
        if word:
            yield word


def _licence(snapshot: Snapshot, name: str) -> str | None:
    real = snapshot.resolve(f"usr/share/doc/{name}/copyright")
    return None if real is None else licences.debian(snapshot.licences.get(real, []))


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of dpkg's status; of a field of several lines, the first."""
    for block in re.split(r"\n\s*\n", text):
        fields = (line.partition(":") for line in block.splitlines() if line[:1].strip() and ":" in line)
        found = {name: value.strip() for name, _, value in fields}
        if found:
            yield found


def _owned_by_debs(snapshot: Snapshot, debs: Sequence[Deb]) -> dict[str, str]:
    """Files by the deb that brought them. A path below a merged directory (/lib -> usr/lib) is the path it leads to."""
    # How far a directory's path leads is the same for all that is in it.
    folders: dict[str, str | None] = {}
    owners: dict[str, str] = {}
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
            if real is not None and path in snapshot.entries and snapshot.entries[path].kind in "fhl":
                owners[path] = key(deb)
    return owners


def _wheels(snapshot: Snapshot, owners: dict[str, str], locks: Sequence[Lock]) -> Iterator[Wheel]:
    """Read every dist-info that no deb owns, and note in `owners` what its files are."""
    locked = {(normal(row.name), row.version): row for lock in locks for row in lock.wheels}
    folders = sorted(
        {
            folder
            for path in snapshot.texts
            if (folder := path.rpartition("/")[0]).endswith(".dist-info") and path not in owners
        },
        # Those installed at their places first: what they say is theirs, is.
        key=lambda folder: (folder.startswith(WHEELS), folder),
    )
    # Files that only their content can tell the origin of.
    loose: dict[str, list[str]] = {}
    for path, entry in snapshot.files():
        if path not in owners and path.startswith("usr/local/") and entry.size:
            loose.setdefault(entry.sha256, []).append(path)
    found = []
    for folder in folders:
        stem = folder.rpartition("/")[2].removesuffix(".dist-info")
        name, _, version = stem.rpartition("-")
        headers = _headers(snapshot.texts.get(f"{folder}/METADATA", ""))
        name = next(iter(headers.get("name", [])), name)
        version = next(iter(headers.get("version", [])), version)
        record = _record(snapshot.texts.get(f"{folder}/RECORD", ""))
        unpacked = folder.startswith(WHEELS)
        origin = locked.get((normal(name), version))
        owner = f"wheel:{normal(name)}"
        files, altered, absent = _by_path(record, folder.rpartition("/")[0], snapshot.entries)
        if unpacked:
            files = sorted({*files, *_by_content(absent, loose, owners)})
        owners.update(dict.fromkeys(files, owner))
        own = [path for path in (f"{folder}/METADATA", f"{folder}/RECORD") if path in snapshot.entries]
        owners.update(dict.fromkeys(own, owner))
        found.append(
            Wheel(
                name=name,
                version=version,
                licence=licences.wheel(headers),
                summary=next(iter(headers.get("summary", [])), ""),
                homepage=next(iter(headers.get("home-page", [])), ""),
                requires=tuple(
                    sorted(
                        {
                            normal(match[1])
                            for row in headers.get("requires-dist", [])
                            if (match := _needs(row))
                        }
                    )
                ),
                unpacked=unpacked,
                files=tuple(path for path in files if not path.startswith(WHEELS)),
                altered=tuple(altered),
                sha256=None if origin is None else origin.sha256,
                file=None if origin is None else origin.file,
            )
        )
    yield from sorted(found, key=lambda wheel: (normal(wheel.name), wheel.version))


def _needs(row: str) -> re.Match[str] | None:
    return None if "extra ==" in row or "extra==" in row else _NAME.match(row)


def _headers(text: str) -> dict[str, list[str]]:
    parsed = HeaderParser().parsestr(text.partition("\n\n")[0] + "\n\n")
    found: dict[str, list[str]] = {}
    for name, value in parsed.items():
        found.setdefault(name.lower(), []).append(str(value))
    return found


def _record(text: str) -> list[tuple[str, str]]:
    """Path and sha256 (hex; "" where the file states none) of each row of a RECORD."""
    found = []
    for row in csv.reader(text.splitlines()):
        if len(row) >= 2 and row[0]:
            kind, _, value = row[1].partition("=")
            found.append((row[0], _hex(value) if kind == "sha256" else ""))
    return found


def _hex(value: str) -> str:
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except (ValueError, binascii.Error):
        return ""


def _by_content(
    record: list[tuple[str, str]], loose: dict[str, list[str]], owners: dict[str, str]
) -> list[str]:
    found = []
    for path, sha256 in record:
        here = [item for item in loose.get(sha256, []) if item not in owners] if sha256 else []
        # Two wheels may hold one content: the one with the file's own name has it.
        name = path.rpartition("/")[2]
        named = [item for item in here if item.rpartition("/")[2] == name]
        found += named or ([] if sha256 in loose and len(loose[sha256]) > 1 else here)
    return sorted(set(found))


def _by_path(
    record: list[tuple[str, str]], base: str, entries: dict[str, Entry]
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """The files of a RECORD that are where it says, those of them with another content, and the rows of those that are not there."""
    found, altered, absent = [], [], []
    for name, sha256 in record:
        path = normpath(f"/{base}/{name}").lstrip("/")
        entry = entries.get(path)
        if entry is not None and entry.kind in "fh":
            found.append(path)
            if sha256 and sha256 != entry.sha256:
                altered.append(path)
        else:
            absent.append((name, sha256))
    return sorted(found), sorted(altered), absent
