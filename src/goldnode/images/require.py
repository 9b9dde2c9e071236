"""NVIDIA_REQUIRE_CUDA: written from the compatibility facts, and read the way NVIDIA's own programs read it.

The value is a list of alternatives separated by spaces. Each alternative is a list of conditions separated by
commas, and all of them must hold. A condition is PROPERTY OPERATOR VALUE; the properties are cuda, driver,
arch and brand. Versions compare number by number, and missing numbers count as zero (libnvidia-container's
command line, src/cli/dsl.c; nvidia-container-toolkit, internal/requirements). The two programs treat unknown
properties differently: the former rejects the whole value, the latter ignores the condition.

The container toolkit evaluates this value in legacy mode only, not with CDI. It is a hint; `goldnode check`
enforces the requirement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from goldnode.compat import require
from goldnode.core.errors import ImageError
from goldnode.facts import workload as facts
from goldnode.facts.workload import closest, key, minor, satisfies

_CONDITION = re.compile(r"(?P<name>[^<>=!]+)(?P<sign>>=|<=|!=|=|<|>)(?P<value>[^<>=!]+)")
_VERSIONS = ("cuda", "driver", "arch")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_VARIABLE = "NVIDIA_REQUIRE_"


def minimum_driver(version: str) -> str:
    """Return the oldest driver that runs CUDA `version` without a forward-compatibility package.

    Raises ImageError if the facts do not know this CUDA release.
    """
    row = facts.cudas().get(minor(version))
    if row is None:
        near = closest(version, facts.cudas())
        raise ImageError(
            f"CUDA {version} is not among the releases that the facts know, so that nothing says which "
            "driver it needs",
            remedy=(
                f"correct the version (the nearest known one is {near}), or add it to facts/cuda.yml with "
                "its source"
            ),
        )
    return row.minimum


def requirement(version: str) -> str:
    """Return NVIDIA_REQUIRE_CUDA for an image with CUDA `version` ("12.4.1") and without the cuda-compat
    package.

    It admits every driver from the minimum of its major family on, exactly like the rule `cuda-driver`. The
    first alternative (`cuda>=…`) admits no further driver. The toolkit names it when it refuses to start a
    container, and it decides on a board that reports no driver version. It is omitted for the first release
    of a family, whose branch began below the minimum. Numbers have no leading zeros: parsers of semantic
    versions may reject them, and no comparison needs them.
    """
    least, wanted = key(minimum_driver(version)), key(minor(version))
    natives = [
        oldest
        for branch, native in facts.native_cuda().items()
        if native and key(native) >= wanted and (oldest := facts.oldest_of_branch().get(branch))
    ]
    condition = "driver>=" + ".".join(str(part) for part in least)
    if any(oldest < least for oldest in natives):
        return condition
    return f"cuda>={minor(version)} {condition}"


@dataclass(frozen=True)
class MachineProperties:
    """Properties of a machine that conditions refer to; None means unknown.

    `cuda` is the newest CUDA that the driver runs natively ("12.4").
    """

    driver: str | None = None
    cuda: str | None = None
    arch: str | None = None
    brand: str | None = None

    @classmethod
    def of_driver(
        cls, version: str, *, arch: str | None = None, brand: str | None = None
    ) -> MachineProperties:
        """Return a machine with one of the drivers of the facts."""
        return cls(version, facts.native_cuda().get(key(version)[0]), arch, brand)


Reader = Literal["library", "toolkit"]


def admits(value: str, machine: MachineProperties, reader: Reader = "library") -> bool:
    """Return whether `value`, one NVIDIA_REQUIRE_* variable, lets a container start on `machine`.

    `reader` selects the program to imitate: libnvidia-container or nvidia-container-toolkit. Raises
    ImageError for a value that this program rejects. An unknown property (None) fulfils no condition, as in
    both programs.
    """
    outcome = True
    for alternative in value.split():
        known = [
            answer
            for text in alternative.split(",")
            if text and (answer := _holds(text, machine, reader)) is not None
        ]
        # The toolkit skips an alternative of which it knows no condition.
        if not known and reader == "toolkit":
            continue
        outcome = all(known)
        if outcome:
            return True
    return outcome


def admitted(
    environment: Mapping[str, str], machine: MachineProperties, reader: Reader = "library"
) -> bool:
    """Return whether an image with this environment starts on `machine`.

    Every NVIDIA_REQUIRE_* must admit the machine, unless NVIDIA_DISABLE_REQUIRE is set.
    """
    if require.disabled(environment):
        return True
    return all(admits(value, machine, reader) for value in _requirements(environment))


def _requirements(environment: Mapping[str, str]) -> Iterable[str]:
    return (
        value
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLE) and value.strip()
    )


def _holds(text: str, machine: MachineProperties, reader: Reader) -> bool | None:
    """Return whether one condition holds.

    None: the toolkit ignores it, because it does not know the property.
    """
    condition = _CONDITION.fullmatch(text)
    if condition is None:
        raise ImageError(
            f'"{text}" is no condition of NVIDIA_REQUIRE_CUDA',
            remedy="write PROPERTY, one of = != < <= > >=, and a value",
        )
    # Only libnvidia-container ignores the case of property names and brands.
    name, sign, wanted = (
        condition["name"].lower() if reader == "library" else condition["name"],
        condition["sign"],
        condition["value"],
    )
    if name not in (*_VERSIONS, "brand"):
        if reader == "toolkit":
            return None
        raise ImageError(
            f'NVIDIA_REQUIRE_CUDA knows no property "{name}"',
            remedy="use cuda, driver, arch or brand",
        )
    if name == "brand":
        if sign not in ("=", "!="):
            raise ImageError(
                f'a brand is equal to another or not, and "{text}" compares them',
                remedy="use = or !=",
            )
        if machine.brand is None:
            return False
        brand = machine.brand
        if reader == "library":
            brand, wanted = brand.lower(), wanted.lower()
        return (brand == wanted) == (sign == "=")
    if not _NUMBERS.fullmatch(wanted):
        raise ImageError(f'"{wanted}" in "{text}" is no version', remedy="write numbers with dots")
    have: str | None = {"cuda": machine.cuda, "driver": machine.driver, "arch": machine.arch}[name]
    return have is not None and satisfies(have, sign, wanted)
