"""The newest deny list that a machine has read: an earlier one in its place is not believed.

A signature proves who wrote a list, and not that it is the present one. Each list of a store has a
greater number than the one before, so the machine remembers the greatest number for each file of a
list, in `.goldnode` of the site.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from goldnode.core.deny_list import DenyListPlace

ACCEPT = "goldnode rollout denied --accept-older"
_WRITE = "`goldnode rollout denied --write` on a machine that has the store, and copy it here"


class DenyListSeenError(GoldnodeError):
    """The list is older than one that was read here, or that cannot be determined."""


def check(place: DenyListPlace, number: int | None) -> None:
    """Remember the number of a list that was read; None: its file is missing. Raise DenyListSeenError for an earlier one.

    Without a key anybody who can replace the list can write one with any number: then this notices
    old copies alone, and a machine that cannot remember goes on.
    """
    if not place.seen:
        return
    file = Path(place.seen)
    before = _numbers(file).get(place.file)
    if before is not None and number is None:
        raise DenyListSeenError(
            f"the deny list is missing, and list {before} was read here before",
            file=place.file,
            remedy=f"write it with {_WRITE}; if the site has no list any more, `{ACCEPT}`",
        )
    if before is not None and number is not None and number < before:
        raise DenyListSeenError(
            f"this is list {number}, and list {before} was read here before: an earlier list has replaced it",
            file=place.file,
            remedy=f"write the present one with {_WRITE}; after a restore of the store, `{ACCEPT}`",
        )
    if number is None or number == before:
        return
    try:
        with _locked(file):
            _store(file, place.file, max(number, _numbers(file).get(place.file, 0)))
    except OSError as problem:
        if place.keys is None:
            return
        raise DenyListSeenError(
            f"the number of the deny list cannot be remembered: {problem.strerror}",
            file=file,
            remedy="let this user write the file and its directory",
        ) from None


def number(place: DenyListPlace) -> int | None:
    """Return the number of the last list that was read here; None for none. Raises DenyListSeenError."""
    return _numbers(Path(place.seen)).get(place.file) if place.seen else None


def forget(place: DenyListPlace) -> int | None:
    """Forget the number of a list, so that an earlier one is believed. Return the number. Raises DenyListSeenError."""
    if not place.seen or not Path(place.seen).exists():
        return None
    file = Path(place.seen)
    try:
        with _locked(file):
            try:
                before = _numbers(file).get(place.file)
            except DenyListSeenError:  # damaged: the way out is to begin again
                file.unlink(missing_ok=True)
                return None
            _store(file, place.file, None)
            return before
    except OSError as problem:
        raise DenyListSeenError(
            f"the number of the deny list cannot be removed: {problem.strerror}",
            file=file,
            remedy="let this user write the file and its directory",
        ) from None


def _numbers(file: Path) -> dict[str, int]:
    """Return the greatest number of each list. Raise DenyListSeenError for a damaged file."""
    try:
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or not all(
            type(number) is int for number in content.values()
        ):
            raise ValueError("it is no object of numbers")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise DenyListSeenError(
            f"the numbers of the deny lists that were read here cannot be read: {problem}",
            file=file,
            remedy=f"compare the list with `goldnode rollout denied` on a machine that has the store, then `{ACCEPT}`",
        ) from None
    return content


def _store(file: Path, name: str, number: int | None) -> None:
    numbers = _numbers(file)
    numbers.pop(name, None)
    if number is not None:
        numbers[name] = number
    replace_file(file, json.dumps(numbers, sort_keys=True, indent=1).encode() + b"\n")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
