"""Wheels and Debian packages of a view: their metadata, requirements and files."""

from __future__ import annotations

import base64
import binascii
import csv
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from typing import Literal, NamedTuple

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from goldnode.inspect.scan import View

_INFO = re.compile(
    r"(?P<root>.*?)(?P<info>[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info))\Z"
)
# The first word of a relation, or of an alternative in it.
_NAME = re.compile(r"(?:^|\|)\s*([a-z0-9][a-z0-9+.-]+)")
_MERGED = ("bin/", "sbin/", "lib/", "lib32/", "lib64/", "libx32/")


@dataclass(frozen=True)
class InstalledPackage:
    """One installed package.

    `path` is that of its metadata. `requires` are names without versions; wheel names are normalised as pip
    does.
    """

    kind: Literal["wheel", "deb"]
    name: str
    version: str
    path: str
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def key(self) -> str:
        """Return the unique key of the package."""
        if self.kind == "wheel":
            return f"{self.kind}:{self.path}"
        return f"deb:{self.name}:{self.architecture}"

    @property
    def title(self) -> str:
        """Return name and version."""
        return f"{self.name} {self.version}"


class InstalledPackages:
    """The packages of a view. `machine` is the platform for which requirement markers are evaluated."""

    def __init__(self, view: View, machine: str = "x86_64") -> None:
        self._view = view
        # Markers use the names of the kernel, images those of Go.
        self._machine = {"arm64": "aarch64"}.get(view.architecture, machine)
        self.all: dict[str, InstalledPackage] = {
            package.key: package for package in (*self._wheels(), *self._debs())
        }

    def of(self, kind: str) -> dict[str, InstalledPackage]:
        """Return the packages of a kind by name."""
        return {package.name: package for package in self.all.values() if package.kind == kind}

    @cached_property
    def _names(self) -> dict[str, list[InstalledPackage]]:
        by_name: dict[str, list[InstalledPackage]] = {}
        for package in self.all.values():
            for name in (package.name, *package.provides):
                by_name.setdefault(f"{package.kind}:{name}", []).append(package)
        return by_name

    def has(self, name: str) -> bool:
        """Return whether a wheel of that name is installed."""
        return f"wheel:{name}" in self._names

    @cached_property
    def _requirers(self) -> dict[str, list[InstalledPackage]]:
        requirers: dict[str, list[InstalledPackage]] = {}
        for package in self.all.values():
            for name in package.requires:
                for target in self._names.get(f"{package.kind}:{name}", []):
                    if target.key != package.key:
                        requirers.setdefault(target.key, []).append(package)
        return requirers

    def requirers(self, package: InstalledPackage) -> list[InstalledPackage]:
        """Return the installed packages that require a package."""
        return sorted(self._requirers.get(package.key, []), key=lambda row: row.name)

    def required_by(self, package: InstalledPackage) -> list[str]:
        """Return the titles of the packages that require a package."""
        return list(dict.fromkeys(row.title for row in self.requirers(package)))

    def title(self, path: str) -> str:
        """Return the title of the package that owns a file; `""` if no package does."""
        package = self.all.get(self.owner(path))
        return "" if package is None else package.title

    def owner(self, path: str) -> str:
        """Return the key of the package that owns a file, otherwise the file's directory."""
        owning = self._files.get(path) or self._files.get(_merged(path))
        if owning is not None:
            return owning
        entry = self._view.paths.get(path)
        folder, _, name = path.rpartition("/")
        # Files moved out of a wheel (CUDA's libraries to /usr/local/cuda-X.Y) keep their name and size.
        if entry is not None and (moved := self._moved.get((name, entry.size))) is not None:
            return moved
        return folder

    def in_deb(self, path: str) -> bool:
        """Return whether a deb has the file: the metadata of a Python package of the distribution names no wheel."""
        return _merged(path) in self._deb_files

    @cached_property
    def _deb_files(self) -> dict[str, str]:
        owners: dict[str, str] = {}
        debs = {package.name: package for package in self.all.values() if package.kind == "deb"}
        for path, text in self._view.texts.items():
            if path.startswith("var/lib/dpkg/info/"):
                name, _, architecture = path[len("var/lib/dpkg/info/") : -len(".list")].partition(
                    ":"
                )
                package = self.all.get(f"deb:{name}:{architecture}") or debs.get(name)
                if package is not None:
                    owners.update(
                        (_merged(line.strip("/")), package.key) for line in text.splitlines()
                    )
        return owners

    @cached_property
    def _files(self) -> dict[str, str]:
        owners = dict(self._deb_files)
        for package, root, rows in self._records():
            owners.update((_joined(root, row.path), package.key) for row in rows)
        return owners

    @cached_property
    def _moved(self) -> dict[tuple[str, int], str]:
        return {
            (row.path.rpartition("/")[2], row.size): package.key
            for package, root, rows in self._records()
            for row in rows
            # Small files such as `__init__.py` share name and size too often to identify a wheel.
            if row.size >= 1024 and _joined(root, row.path) not in self._view.paths
        }

    def _records(self) -> Iterator[tuple[InstalledPackage, str, list[RecordRow]]]:
        for package in self.all.values():
            if package.kind != "wheel" or not package.path.endswith("/METADATA"):
                continue
            folder = package.path.rpartition("/")[0]
            text = self._view.texts.get(f"{folder}/RECORD")
            if text is not None:
                yield package, folder.rpartition("/")[0], list(wheel_record(text))

    def _wheels(self) -> Iterator[InstalledPackage]:
        for path, text in self._view.texts.items():
            if _INFO.match(path) is None or path.startswith("var/lib/dpkg/"):
                continue
            headers = wheel_headers(text)
            name = next(iter(headers.get("name", [])), "")
            if name:
                version = next(iter(headers.get("version", [])), "")
                requires = wheel_requirements(headers, self._machine)
                yield InstalledPackage("wheel", canonicalize_name(name), version, path, requires)

    def _debs(self) -> Iterator[InstalledPackage]:
        for path, fields in dpkg_rows(self._view.texts):
            # Recommends: apt installs them by default, so that they explain why a package is there.
            requires = deb_names(fields, "Pre-Depends", "Depends", "Recommends")
            yield InstalledPackage(
                "deb",
                name=fields["Package"],
                version=fields.get("Version", ""),
                path=path,
                requires=tuple(dict.fromkeys(name for row in requires for name in row)),
                provides=tuple(name for row in deb_names(fields, "Provides") for name in row),
                architecture=fields.get("Architecture", ""),
            )


class RecordRow(NamedTuple):
    """One file of a wheel's RECORD: path, sha256 in hex (`""` if not stated), and size in bytes (0 if not)."""

    path: str
    sha256: str
    size: int


def wheel_record(text: str) -> Iterator[RecordRow]:
    """Read the RECORD of an installed wheel (PEP 376), as far as it is readable."""
    try:
        for row in csv.reader(text.splitlines()):
            if len(row) >= 2 and row[0]:
                kind, _, value = row[1].partition("=")
                size = int(row[2]) if len(row) > 2 and row[2].isdigit() else 0
                yield RecordRow(row[0], _hex(value) if kind == "sha256" else "", size)
    except csv.Error:
        return


def _hex(value: str) -> str:
    try:
        # RECORD leaves out the padding.
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except (ValueError, binascii.Error):
        return ""


def wheel_headers(text: str) -> dict[str, list[str]]:
    """Return the headers of a wheel's METADATA by name in lower case."""
    headers: dict[str, list[str]] = {}
    # METADATA is an e-mail header (PEP 566). The long description after it is not needed.
    for name, value in HeaderParser().parsestr(text.partition("\n\n")[0] + "\n\n").items():
        headers.setdefault(name.lower(), []).append(str(value).strip())
    return headers


def wheel_requirements(headers: Mapping[str, list[str]], machine: str) -> tuple[str, ...]:
    """Return the names that a wheel requires on Linux on a machine (`x86_64`), without extras.

    The version of Python is that of this process. It matters only to old back-ports.
    """
    environment: dict[str, str | AbstractSet[str]] = {
        **{key: str(value) for key, value in default_environment().items()},
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_machine": machine,
        "extra": "",
    }
    requirements: list[str] = []
    for row in headers.get("requires-dist", []):
        try:
            requirement = Requirement(row)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                requirements.append(canonicalize_name(requirement.name))
        except (InvalidRequirement, ValueError):
            # Count a requirement that cannot be parsed: missing one would be worse.
            if match := re.match(r"[A-Za-z0-9._-]+", row):
                requirements.append(canonicalize_name(match[0]))
    return tuple(dict.fromkeys(requirements))


def dpkg_rows(texts: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every installed package of a root file system: the path of its metadata, and its fields.

    Distroless images have one file per package in `status.d`, without the field `Status`.
    """
    for path, text in sorted(texts.items()):
        if path == "var/lib/dpkg/status" or path.startswith("var/lib/dpkg/status.d/"):
            for fields in paragraphs(text):
                state = fields.get("Status", "install ok installed")
                # Removed packages whose configuration remains have `deinstall ok config-files`.
                if "Package" in fields and state.endswith(" installed"):
                    yield path, fields


def deb_names(fields: Mapping[str, str], *names: str) -> list[tuple[str, ...]]:
    """Return the package names in fields such as `Depends`: of each relation, its alternatives."""
    relations = ",".join(fields.get(name, "") for name in names).split(",")
    rows = (tuple(_NAME.findall(relation)) for relation in relations)
    return [row for row in rows if row]


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a dpkg status file. Of a field with several lines only the first is read."""
    for block in re.split(r"\n\s*\n", text):
        fields = (
            line.partition(":") for line in block.splitlines() if line[:1].strip() and ":" in line
        )
        paragraph = {name: value.strip() for name, _, value in fields}
        if paragraph:
            yield paragraph


def _joined(root: str, name: str) -> str:
    parts = root.split("/") if root else []
    for part in name.split("/"):
        if part == "..":
            # Scripts of a wheel are listed as ../../../bin/NAME.
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _merged(path: str) -> str:
    """Return the path with /bin, /sbin and /lib moved to /usr.

    On a merged-/usr system these are links, and packages may use either path.
    """
    return f"usr/{path}" if path.startswith(_MERGED) else path
