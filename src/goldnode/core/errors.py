"""Errors that a user can run into, each with its location and its remedy.

goldnode raises a `GoldnodeError` for everything it refuses on purpose. The command line prints it as one line
and exits 2. Any other exception is a bug in goldnode and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class GoldnodeError(Exception):
    """A refusal: what is wrong, where, and how to fix it.

    `message` is one sentence without its full stop. `file` and `line` (1-based) locate the cause. `remedy` is
    one sentence that starts with a verb. `str()` is `FILE:LINE: message. remedy`, with the parts that are
    known.
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
    """A catalog file contradicts itself, the facts or another file."""


class InventoryError(GoldnodeError):
    """An inventory contradicts the catalog, for instance a host in two classes."""


class FactsError(GoldnodeError):
    """A fact was requested that `facts` does not hold."""


class WorkloadError(GoldnodeError):
    """An image reference, image metadata or requirements file is unreadable or contradicts its class."""


class LockError(GoldnodeError):
    """A lock is missing, stale or could not be resolved."""


class ImageError(GoldnodeError):
    """A container image, its matrix, lock, build or registry is missing or invalid."""


class DiskError(GoldnodeError):
    """A disk image, its definition, lock, build, boot or store is missing or invalid."""


class NoLockError(LockError):
    """A stack has no lock of its present intent: the lock is missing or stale."""


class EditedLockError(LockError):
    """A lock does not match its own digest: it was edited by hand or damaged."""


class NewerLockError(LockError):
    """A later goldnode wrote this lock; this version must not overwrite it."""


class UnsolvableError(LockError):
    """apt cannot find a solution for the requested packages."""


class VanishedError(LockError):
    """An exact version that a lock or a stack requires is no longer in the archive."""


class MirrorError(LockError):
    """The site's mirror cannot be read or written, or lacks what a lock names."""


class ModulesError(GoldnodeError):
    """Prebuilt modules are missing, stale, unsigned although signatures are required, or failed to build."""


class SigningKeyError(GoldnodeError):
    """A signing key is missing, unreadable, or not the one that the catalog names."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest known name, or the list of known names.

    The hint is "" if no names are known. It starts with a verb and has no full stop, so it can be used as a
    remedy.
    """
    choices = sorted(set(known))
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if not close:
        # Names such as GPU models are upper case: compare again without case before giving up.
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
