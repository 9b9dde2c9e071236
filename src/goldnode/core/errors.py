"""Errors a user is expected to meet, each with its place and its remedy.

Everything goldnode refuses on purpose is a `GoldnodeError`: the command line prints it as one line and exits 2. Any
other exception is a fault of goldnode and keeps its trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class GoldnodeError(Exception):
    """One refusal: what is wrong, where, and what to do about it.

    `message` is one sentence without its full stop; `file` and `line` (1-based) say where it was read; `remedy` is one
    sentence that starts with a verb. `str()` is `FILE:LINE: message. remedy`, with the parts that are known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        self.remedy = remedy

    def __str__(self) -> str:
        place = ""
        if self.file is not None:
            place = f"{self.file}: " if self.line is None else f"{self.file}:{self.line}: "
        text = _sentence(self.message)
        if self.remedy:
            text = f"{text} {_sentence(self.remedy[:1].upper() + self.remedy[1:])}"
        return place + text


class SiteError(GoldnodeError):
    """The site configuration is wrong, or lacks something this run needs."""


class CatalogError(GoldnodeError):
    """A catalog file says something that cannot be."""


class InventoryError(GoldnodeError):
    """An inventory contradicts the catalog, for instance a host in two classes."""


class FactsError(GoldnodeError):
    """A compatibility fact was asked for that is not in `facts`."""


class WorkloadError(GoldnodeError):
    """An image reference, image metadata or a requirements file that cannot be read, or contradicts what is stated beside it."""


class LockError(GoldnodeError):
    """A lock is missing, stale or could not be resolved."""


class ImageError(GoldnodeError):
    """A container image, its matrix, lock, build or registry is not what it has to be."""


class DiskError(GoldnodeError):
    """A disk image, its definition, lock, build, boot or store is not what it has to be."""


class EditedLockError(LockError):
    """A lock's content is not what its digest says: it was edited by hand or damaged."""


class NewerLockError(LockError):
    """A lock was written by a later goldnode, and must not be overwritten by this one."""


class UnsolvableError(LockError):
    """apt finds no way to install what is asked for."""


class VanishedError(LockError):
    """Something a lock or a stack asks for by exact version is no longer in the archive."""


class MirrorError(LockError):
    """The site's mirror cannot be read or written, or lacks what a lock names."""


class ModulesError(GoldnodeError):
    """Prebuilt modules are missing, stale, unsigned where they have to be signed, or could not be built."""


class SigningKeyError(GoldnodeError):
    """A signing key is absent, unreadable, or not the one the catalog names."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint that follows a wrong name: the nearest known spelling, else the known names, else nothing.

    The result starts with a verb and carries no full stop, so it can be used as a remedy.
    """
    choices = sorted(set(known))
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if not close:
        folded = {choice.casefold(): choice for choice in choices}
        close = [folded[m] for m in difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.5)]
    if close:
        return f'use "{close[0]}"'
    if not choices:
        return ""
    shown = ", ".join(choices[:12]) + (", …" if len(choices) > 12 else "")
    return f"use one of: {shown}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else text + "."
