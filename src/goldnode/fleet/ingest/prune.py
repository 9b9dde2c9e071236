"""Remove stored captures by their day."""

from __future__ import annotations

import contextlib
import fcntl
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import sync
from goldnode.fleet.ingest.tables import PART_TABLES, PartName, listed_parts, replacements
from goldnode.fleet.ingest.write import LOCK

_KEEP = re.compile(r"([1-9]\d{0,4})d")


class PrunedDay(NamedTuple):
    """One class and day, with its parts and their size."""

    class_: str
    day: str
    parts: list[tuple[PartName, str]]  # each with the table that completes it
    size: int


def days(text: str) -> int:
    """Return the number of days in a text of the form 90d. Raise GoldnodeError for another form."""
    match = _KEEP.fullmatch(text)
    if not match:
        raise GoldnodeError(f'"{text}" is not a number of days', remedy="give it as in --keep 90d")
    return int(match[1])


def candidates(directory: Path, keep: int, now: datetime) -> list[PrunedDay]:
    """Return the days of all classes that ended more than `keep` days ago, the oldest first.

    Parts that a compacted one replaces are named too, and before it.
    """
    first = (now.astimezone(UTC) - timedelta(days=keep)).strftime("%Y-%m-%d")
    found: dict[tuple[str, str], list[tuple[bool, PartName, str]]] = {}
    for table in PART_TABLES:
        lists = replacements(directory, table)
        for part in listed_parts(directory, table):
            if part.day < first:
                found.setdefault((part.day, part.class_), []).append((part in lists, part, table))
    return [
        PrunedDay(
            class_,
            day,
            [(part, table) for _, part, table in sorted(parts)],
            sum(_size(part.file(directory, name)) for _, part, table in parts for name in PART_TABLES[table]),
        )
        for (day, class_), parts in sorted(found.items())
    ]


def prune(directory: Path, found: list[PrunedDay]) -> None:
    """Remove these parts and no other file. Their rows vanish from all tables at once: `nodes` goes first.

    Directories that are empty then are removed too.
    """
    with (directory / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for day in found:
            for part, table in day.parts:
                for name in (table, *PART_TABLES[table]):
                    file = part.file(directory, name)
                    file.unlink(missing_ok=True)
                    if name == PART_TABLES[table][-1]:
                        part.replaces(directory, table).unlink(missing_ok=True)
                    if file.parent.is_dir():
                        sync(file.parent)
                        _remove_empty(file.parent)


def _remove_empty(folder: Path) -> None:
    """Remove the directories of a day and of a class if nothing is left in them."""
    for empty in (folder, folder.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
