"""Content that channels still need, for the garbage collection of images and disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from goldnode.channels.history import Line, read
from goldnode.channels.moves import Keeper, local_places, local_text

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


GRACE_DAYS = 30.0


@dataclass
class Needed:
    """Content that must stay, each with its owner: digests of manifests, `REPOSITORY:TAG` or `CLASS:BUILDID`
    names, digests of locks.
    """

    digests: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gone:
    """One thing that went, or would: a name of the store, a blob, an image of a registry. `size` in bytes is what its going frees here."""

    what: str
    why: str
    size: int = 0


def named_here(
    keeper: Keeper, trust: Sequence[SSlibKey] = (), as_line: Callable[[Line], Line] = lambda line: line
) -> dict[str, str]:
    """Return what a store's copies of histories name, and why. Raises GoldnodeError for an unreadable one."""
    found: dict[str, str] = {}
    for place, one in local_places(keeper):
        found |= _named(place, as_line(one), local_text(keeper, place, one), trust)
    return found


def _named(place: str, line: Line, text: bytes, trust: Sequence[SSlibKey]) -> dict[str, str]:
    history = read(text, line, trust, where=f"{place}/{line}")
    return {digest: f"{why} at {place}" for digest, why in history.digests().items()}
