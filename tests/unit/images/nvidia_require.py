"""NVIDIA_REQUIRE_* read the way NVIDIA's own programs read it (see `goldnode.images.require` for the grammar).

The two programs treat unknown properties differently: libnvidia-container rejects the whole value,
nvidia-container-toolkit ignores the condition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from goldnode.core.errors import ImageError
from goldnode.facts import workload as facts
from goldnode.facts.workload import key, satisfies

_CONDITION = re.compile(r"(?P<name>[^<>=!]+)(?P<sign>>=|<=|!=|=|<|>)(?P<value>[^<>=!]+)")
_VERSIONS = ("cuda", "driver", "arch")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")


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
    have: str | None = getattr(machine, name)
    return have is not None and satisfies(have, sign, wanted)
