"""Wheels and Debian packages of a view: their metadata, requirements and files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from typing import Literal

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement

from goldnode.inspect.scan import View

_INFO = re.compile(r"(?P<root>.*?)(?P<info>[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info))\Z")
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
        return f"{self.kind}:{self.path}" if self.kind == "wheel" else f"deb:{self.name}:{self.architecture}"

    @property
    def title(self) -> str:
        """Return name and version."""
        return f"{self.name} {self.version}"


class InstalledPackages:
    """The packages of a view. `machine` is the platform for which requirement markers are evaluated."""

    def __init__(self, view: View, machine: str = "x86_64") -> None:
        self._view = view
        # A requirement counts if it applies on Linux, without extras. The Python version matters only to old
        # back-ports.
        self._environment: dict[str, str | AbstractSet[str]] = {
            **{key: str(value) for key, value in default_environment().items()},
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
            "platform_machine": {"arm64": "aarch64"}.get(view.architecture, machine),
            "extra": "",
        }
        self.all: dict[str, InstalledPackage] = {
            package.key: package for package in (*self._wheels(), *self._debs())
        }

    def of(self, kind: str) -> dict[str, InstalledPackage]:
        """Return the packages of a kind by name."""
        return {package.name: package for package in self.all.values() if package.kind == kind}

    @cached_property
    def _names(self) -> dict[str, list[InstalledPackage]]:
        found: dict[str, list[InstalledPackage]] = {}
        for package in self.all.values():
            for name in (package.name, *package.provides):
                found.setdefault(f"{package.kind}:{name}", []).append(package)
        return found

    def has(self, name: str) -> bool:
        """Return whether a wheel of that name is installed."""
        return f"wheel:{name}" in self._names

    @cached_property
    def _requirers(self) -> dict[str, list[InstalledPackage]]:
        found: dict[str, list[InstalledPackage]] = {}
        for package in self.all.values():
            for name in package.requires:
                for target in self._names.get(f"{package.kind}:{name}", []):
                    if target.key != package.key:
                        found.setdefault(target.key, []).append(package)
        return found

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
        found = self._files.get(path) or self._files.get(_merged(path))
        if found is not None:
            return found
        entry = self._view.paths.get(path)
        folder, _, name = path.rpartition("/")
        # Files moved out of a wheel (CUDA's libraries to /usr/local/cuda-X.Y) keep their name and size.
        if entry is not None and (moved := self._moved.get((name, entry.size))) is not None:
            return moved
        return folder

    @cached_property
    def _files(self) -> dict[str, str]:
        found: dict[str, str] = {}
        debs = {package.name: package for package in self.all.values() if package.kind == "deb"}
        for path, text in self._view.texts.items():
            if path.startswith("var/lib/dpkg/info/"):
                name, _, architecture = path[len("var/lib/dpkg/info/") : -len(".list")].partition(":")
                package = self.all.get(f"deb:{name}:{architecture}") or debs.get(name)
                if package is not None:
                    found.update((_merged(line.strip("/")), package.key) for line in text.splitlines())
        for package, root, rows in self._records():
            found.update((_joined(root, name), package.key) for name, _ in rows)
        return found

    @cached_property
    def _moved(self) -> dict[tuple[str, int], str]:
        return {
            (name.rpartition("/")[2], size): package.key
            for package, root, rows in self._records()
            for name, size in rows
            # Small files such as `__init__.py` share name and size too often to identify a wheel.
            if size >= 1024 and _joined(root, name) not in self._view.paths
        }

    def _records(self) -> Iterator[tuple[InstalledPackage, str, list[tuple[str, int]]]]:
        for package in self.all.values():
            if package.kind != "wheel" or not package.path.endswith("/METADATA"):
                continue
            folder = package.path.rpartition("/")[0]
            text = self._view.texts.get(f"{folder}/RECORD")
            if text is not None:
                yield package, folder.rpartition("/")[0], list(_record(text))

    def _wheels(self) -> Iterator[InstalledPackage]:
        for path, text in self._view.texts.items():
            if _INFO.match(path) is None or path.startswith("var/lib/dpkg/"):
                continue
            message = HeaderParser().parsestr(text.partition("\n\n")[0] + "\n\n")
            name = str(message.get("Name", "")).strip()
            if name:
                requires = tuple(
                    dict.fromkeys(
                        self._requirements(str(row) for row in message.get_all("Requires-Dist", []))
                    )
                )
                yield InstalledPackage(
                    "wheel", canonical(name), str(message.get("Version", "")).strip(), path, requires
                )

    def _requirements(self, rows: Iterator[str]) -> Iterator[str]:
        for row in rows:
            try:
                requirement = Requirement(row)
                if requirement.marker is None or requirement.marker.evaluate(self._environment):
                    yield canonical(requirement.name)
            except (InvalidRequirement, ValueError):
                # Count a requirement that cannot be parsed: missing one would be worse.
                if match := re.match(r"[A-Za-z0-9._-]+", row):
                    yield canonical(match[0])

    def _debs(self) -> Iterator[InstalledPackage]:
        for path, text in self._view.texts.items():
            if path != "var/lib/dpkg/status" and not path.startswith("var/lib/dpkg/status.d/"):
                continue
            for paragraph in re.split(r"\n\s*\n", text):
                fields = {
                    key: value.strip()
                    for key, colon, value in (line.partition(":") for line in paragraph.splitlines())
                    if colon and key[:1] != " "
                }
                name = fields.get("Package", "")
                installed = path != "var/lib/dpkg/status" or fields.get("Status", "").endswith(" installed")
                if name and installed:
                    requires = ",".join(
                        fields.get(key, "") for key in ("Pre-Depends", "Depends", "Recommends")
                    )
                    yield InstalledPackage(
                        "deb",
                        name,
                        fields.get("Version", ""),
                        path,
                        tuple(dict.fromkeys(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", requires))),
                        tuple(re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]+)", fields.get("Provides", ""))),
                        fields.get("Architecture", ""),
                    )


def canonical(name: str) -> str:
    """Return the normalised name of a wheel, as pip compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _record(text: str) -> Iterator[tuple[str, int]]:
    try:
        for row in csv.reader(text.splitlines()):
            if len(row) == 3:
                yield row[0], int(row[2]) if row[2].isdigit() else 0
    except csv.Error:
        return


def _joined(root: str, name: str) -> str:
    parts = root.split("/") if root else []
    for part in name.split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _merged(path: str) -> str:
    """Return the path with /bin, /sbin and /lib moved to /usr.

    On a merged-/usr system these are links, and packages may use either path.
    """
    return f"usr/{path}" if path.startswith(_MERGED) else path
