"""Names of packages, and contents of files, in the form in which they are compared."""

from __future__ import annotations

from hashlib import sha256

from ..ground.host import like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable


def in_family(name: str, globs: Iterable[str]) -> bool:
    """Return whether a package belongs to the driver family.

    The last matching glob decides; ``!glob`` excludes.
    """
    member = False
    bare = name.partition(":")[0]
    for glob in globs:
        if like(bare, glob.lstrip("!")):
            member = not glob.startswith("!")
    return member


def printable(data: bytes) -> str:
    """Return text unchanged, and anything else as ``sha256:…``."""
    try:
        return data.decode("utf-8") if b"\0" not in data else digest(data)
    except UnicodeDecodeError:
        return digest(data)


def digest(data: bytes) -> str:
    """Return ``sha256:`` and the hexadecimal digest."""
    return "sha256:" + sha256(data).hexdigest()
