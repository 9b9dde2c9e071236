"""One value of one kind of hardware, such as a VBIOS: what nodes of a class may differ in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, order=True)
class HardwareVariant:
    """One value of one kind."""

    kind: str
    value: str

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


Variants: TypeAlias = Mapping[str, frozenset[HardwareVariant]]  # node -> what it has
