"""Typed access to wheels.yml: the Python wheels that use the GPU, their tags and what they require of each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from goldnode.facts.host import Origin, load, origins
from goldnode.node.ground.optional import optional

FILE = "wheels.yml"


@dataclass(frozen=True)
class WheelRelease:
    """One release of a package.

    `wheels` are the Python tags by machine; empty if pip builds the release from source. `requires`
    are requirements (PEP 508) on packages that use the GPU; None if its metadata was not read.
    """

    name: str
    version: str
    requires_python: str | None
    wheels: Mapping[str, tuple[str, ...]]
    requires: tuple[str, ...] | None
    missing: tuple[str, ...] = ()  # exact requirements of which the package index had no wheel

    def tags(self, machine: str) -> tuple[str, ...]:
        """Return the Python tags of the wheels for `machine` ("x86_64"): cp311, cp38+ (stable ABI), py3."""
        return (*self.wheels.get(machine, ()), *self.wheels.get("any", ()))

    def has_wheel(self, machine: str, python: str) -> bool:
        """Return whether a wheel exists for `machine` and `python` ("3.11")."""
        wanted = int(python.split(".")[1])
        return any(_serves(tag, wanted) for tag in self.tags(machine))

    def needs(self, name: str, machine: str) -> bool | None:
        """Return whether the release requires package `name` on `machine`; None if its requirements were not read."""
        if self.requires is None:
            return None
        return any(
            _needed(text, machine) == name for text in self.requires if text.startswith(name)
        )

    def needs_any(self, prefixes: tuple[str, ...], machine: str) -> bool:
        """Return whether the release is known to require a package that begins so on `machine`."""
        return any(
            _needed(text, machine) for text in self.requires or () if text.startswith(prefixes)
        )

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return the sources."""
        return origins(FILE, _sources()[self.name])


@cache
def _needed(text: str, machine: str) -> str | None:
    """Return the package that a requirement names; None if its marker does not hold on `machine`."""
    item = Requirement(text)
    environment = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "extra": "",
    }
    return item.name if item.marker is None or item.marker.evaluate(environment) else None


def _serves(tag: str, minor: int) -> bool:
    cpython = re.fullmatch(r"cp3(\d+)(\+?)", tag)
    if cpython is None:
        return tag == "py3"
    return minor >= int(cpython.group(1)) if cpython.group(2) else minor == int(cpython.group(1))


@cache
def packages() -> dict[str, dict[str, WheelRelease]]:
    """Return the recorded releases by package and version, oldest first."""
    releases: dict[str, dict[str, WheelRelease]] = {}
    for row in load(FILE)["packages"]:
        releases[row["name"]] = {
            item["version"]: WheelRelease(
                name=row["name"],
                version=item["version"],
                requires_python=item["python"],
                wheels={
                    machine: tuple(tags.split())
                    for machines, tags in item["wheels"].items()
                    for machine in machines.split()
                },
                requires=optional(tuple, item["requires"]),
                missing=tuple(item.get("missing") or ()),
            )
            for item in row["releases"]
        }
    return releases


@cache
def _sources() -> dict[str, str | list[str]]:
    return {row["name"]: row["source"] for row in load(FILE)["packages"]}


def requirements(name: str, version: str) -> tuple[str, ...] | None:
    """Return what a release requires (PEP 508); None if it is not recorded."""
    release = packages().get(name, {}).get(version.partition("+")[0])
    return None if release is None else release.requires


@cache
def required_of(name: str, version: str, target: str) -> tuple[str, ...]:
    """Return the version specifiers with which a release requires `target`, under any marker and extra."""
    texts = (text for text in requirements(name, version) or () if text.startswith(target))
    parsed = (Requirement(text) for text in texts)
    return tuple(str(item.specifier) for item in parsed if item.name == target)


@dataclass(frozen=True)
class CapabilityNeed:
    """The needs of a package. `compute_capability` is None if its CUDA alone decides."""

    compute_capability: str | None
    origins: tuple[Origin, ...]


_FAMILY = re.compile(r"-cu(?:da)?1\d\d?x?$")


@cache
def need(name: str, version: str | None) -> CapabilityNeed | None:
    """Return what a release of a package needs of a GPU, as a document states it; without a version, of its newest."""
    bare = _FAMILY.sub("", name)
    for row in load(FILE)["needs"]:
        if bare not in row["names"] and name not in row["names"]:
            continue
        if row.get("versions") is None or _within(version, row["versions"]):
            return CapabilityNeed(row["compute_capability"], origins(FILE, row["source"]))
    return None


def _within(version: str | None, specifier: str) -> bool:
    if version is None:
        return ">" in specifier
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False


CODE_FILE = "gpu_wheels.yml"


@dataclass(frozen=True)
class GpuWheel:
    """A release of a package that uses a GPU, as a lock file or its wheel has it.

    `code` and `ptx` are compute capabilities; None if the wheel's libraries were not read. `version` is None
    if it has no wheel. `wheels` are tags for Python by machine, of those wheels that are known.
    """

    name: str
    version: str | None
    requires: tuple[str, ...]
    code: tuple[str, ...] | None
    ptx: tuple[str, ...]
    needs: tuple[str, ...]
    source: str
    wheels: Mapping[str, str] = field(default_factory=dict)

    def is_known_for(self, machine: str, python: str | None) -> bool:
        """Return whether a wheel for `machine` and `python` ("3.11"; None: any) is known; others may exist."""
        tags = " ".join(self.wheels.get(key, "") for key in (machine, "any")).split()
        if python is None:
            return bool(tags)
        return any(_serves(tag, int(python.split(".")[1])) for tag in tags)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return the sources."""
        return origins(CODE_FILE, self.source)


@cache
def _releases() -> dict[str, dict[str | None, GpuWheel]]:
    """Return the recorded releases of packages that use a GPU, by name and version, oldest first."""
    releases: dict[str, dict[str | None, GpuWheel]] = {}
    for row in load(CODE_FILE)["packages"]:
        releases.setdefault(row["name"], {})[row["version"]] = GpuWheel(
            row["name"],
            row["version"],
            tuple(row.get("requires") or ()),
            code=optional(tuple, row.get("code")),
            ptx=tuple(row.get("ptx") or ()),
            needs=tuple(row.get("needs") or ()),
            source=row["source"],
            wheels=row.get("wheels") or {},
        )
    return releases


@cache
def gpu_wheels() -> dict[str, GpuWheel]:
    """Return the recorded packages that use a GPU, by name: the newest release of each."""
    return {name: rows[next(reversed(rows))] for name, rows in _releases().items()}


def gpu_wheel(name: str, version: str) -> GpuWheel | None:
    """Return one release of a package that uses a GPU; None if it is not recorded."""
    return _releases().get(name, {}).get(version)


def uses_gpu(name: str) -> bool:
    """Return whether a recorded package uses a GPU by itself: not if its wheel has neither code nor libraries for one."""
    wheel = gpu_wheels().get(name)
    if wheel is None:
        return False
    # Sources are built against the CUDA that is there: what they use is not known.
    return wheel.code is None or bool(wheel.code or wheel.ptx or wheel.needs)


def recorded() -> str:
    """Return the day on which the metadata was read."""
    return str(load(FILE)["meta"]["compiled"])


@cache
def _required() -> frozenset[str]:
    """Return the packages that recorded releases require."""
    texts = (
        text for row in packages().values() for item in row.values() for text in item.requires or ()
    )
    return frozenset(re.split(r"[^a-z0-9-]", text, maxsplit=1)[0] for text in texts)


def covers(name: str) -> bool:
    """Return whether a pin of `name` can be judged: it is recorded, or a recorded release requires it."""
    return name in packages() or name in _required()
