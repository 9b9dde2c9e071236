"""Errors that a user can run into, each with its location and its remedy.

goldnode raises a `GoldnodeError` for everything it refuses on purpose. The command line prints it as one line
and exits 2. Any other exception is a bug in goldnode and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
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


class EvidenceError(GoldnodeError):
    """A statement of evidence, or the record that it is made of, is missing, invalid or refused."""


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


# Valid names that an error lists if no name is near: three lines of a terminal, and all built-in classes.
_SHOWN = 20
_CANDIDATES = 3  # names in a hint
_MISSPELT = 0.87  # the share of equal letters from which a name is a misspelt one


def candidates(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the known names that are near `name`, the best first: at most three, often one, possibly none.

    A name that differs only in case and separators is the only candidate. Misspelt names come next, with all but a
    few of their letters, then names of which one begins with the other (`h100_sxm5` for `h100_sxm5_80gb`),
    and then names with similar letters. A name that begins with another model (`l4`, `l40` and `l40s`) is another thing.

    :param cutoff: the least share of equal letters, from 0 to 1.
    """
    choices = sorted(set(known))
    letters = squeezed(name)
    equal = [choice for choice in choices if squeezed(choice) == letters]
    if equal:
        return equal[:_CANDIDATES]
    choices = [choice for choice in choices if not _is_other_model(name, choice)]
    words = _words(name)
    folded = {choice.casefold(): choice for choice in reversed(choices)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=_CANDIDATES, cutoff=cutoff)
    best = difflib.SequenceMatcher(None, close[0], name.casefold()).ratio() if close else 0
    begun = [choice for choice in choices if begins(name, choice)]
    if begun and best < _MISSPELT:
        alike = [choice for choice in begun if len(_words(choice)) == len(words)]
        return sorted(alike or begun, key=lambda choice: abs(len(choice) - len(name)))[:_CANDIDATES]
    # Further ones only if they are as near as the best: a worse one is noise.
    return [
        folded[item]
        for item in close
        if difflib.SequenceMatcher(None, item, name.casefold()).ratio() > best - 0.02
    ]


def squeezed(name: str) -> str:
    """Return a name in small letters without separators (`l40s` of "L40-S"); between two digits there is a dot."""
    dotted = re.sub(r"(?<=[0-9])[^a-z0-9]+(?=[0-9])", ".", name.casefold())
    return re.sub(r"(?<![0-9])[^a-z0-9]+|[^a-z0-9]+(?![0-9])", "", dotted)


# The first word of a name that is a model of something, as of a GPU: few letters with a number.
_MODEL = re.compile(r"(?!(?:gpu|r)[0-9]+$)[a-z]{1,3}[0-9]+[a-z]*")  # gpu07 is a host, r580 a branch


def _is_other_model(name: str, other: str) -> bool:
    """Return whether both names begin with a model, and with different ones."""
    first, second = ("".join(_words(text)[:1]) for text in (name, other))
    return first != second and bool(_MODEL.fullmatch(first) and _MODEL.fullmatch(second))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest known names, or all of them if there are few.

    The hint is "" if no name is near and there are too many to list. It starts with a verb and has no full
    stop, so it can be used as a remedy.
    """
    choices = sorted(set(known))
    close = candidates(name, choices)
    if close:
        return f"use {quoted(close)}"
    return f"use one of: {', '.join(choices)}" if 0 < len(choices) <= _SHOWN else ""


def quoted(names: Sequence[str]) -> str:
    """Return names in quotation marks, the last two joined with "or"."""
    *first, last = [f'"{name}"' for name in names]
    return f"{', '.join(first)} or {last}" if first else last


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", name.casefold()))


def begins(name: str, other: str) -> bool:
    """Return whether one name continues the other, word by word; the last word of `name` may be cut.

    Case and separators do not count: `h100_sxm5` begins "H100-SXM5-80GB".
    """
    words, longer = _words(name), _words(other)
    if not words or not longer or len("".join(words)) < 2:
        return False
    *whole, last = words
    cut = (
        list(longer[: len(whole)]) == whole
        and len(longer) > len(whole)
        and longer[len(whole)].startswith(last)
    )
    return cut or words[: len(longer)] == longer


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else text + "."


_CUT_AT = 60  # characters of a value that an error repeats


def cut(text: str) -> str:
    """Truncate `text`, which may be a whole file, for use in an error."""
    return text if len(text) <= _CUT_AT else text[:_CUT_AT] + "…"
