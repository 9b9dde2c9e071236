"""Typed access to wheels.yml: the Python wheels that use the GPU, their tags and what they require of each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from packaging.requirements import Requirement

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
        wanted = (Requirement(text) for text in self.requires if text.startswith(name))
        environment = {
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": machine,
            "extra": "",
        }
        return any(
            item.name == name and (item.marker is None or item.marker.evaluate(environment))
            for item in wanted
        )

    def needs_any(self, prefixes: tuple[str, ...], machine: str) -> bool:
        """Return whether the release is known to require a package that begins so on `machine`."""
        environment = {
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": machine,
            "extra": "",
        }
        wanted = (Requirement(text) for text in self.requires or () if text.startswith(prefixes))
        return any(item.marker is None or item.marker.evaluate(environment) for item in wanted)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return the sources."""
        return origins(FILE, _sources()[self.name])


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
