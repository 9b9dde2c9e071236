"""Remove stored captures by their day."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import sync
from goldnode.fleet.ingest.compact import origins
from goldnode.fleet.ingest.tables import PART_TABLES, PartName, listed_parts, replacements
from goldnode.fleet.ingest.write import LOCK, clean_up

_KEEP = re.compile(r"([1-9]\d{0,4})d")


class PrunedDay(NamedTuple):
    """One class and day, with its parts and their size."""

    class_: str
    day: str
    parts: list[tuple[PartName, str]]  # each with the table that completes it
    size: int
    # Parts that ingests wrote, whether they were merged since or not.
    origins: frozenset[str] = frozenset()


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
    days: dict[tuple[str, str], list[tuple[bool, PartName, str]]] = {}
    of_days: dict[tuple[str, str], set[str]] = {}
    for table in PART_TABLES:
        lists = replacements(directory, table)
        for part in listed_parts(directory, table):
            if part.day < first:
                days.setdefault((part.day, part.class_), []).append((part in lists, part, table))
                of_day = of_days.setdefault((part.day, part.class_), set())
                of_day.update((part.id, *_origins(directory, table, part, lists)))
    return [
        PrunedDay(
            class_,
            day,
            [(part, table) for _, part, table in sorted(parts)],
            sum(
                _size(part.file(directory, name))
                for _, part, table in parts
                for name in PART_TABLES[table]
            ),
            frozenset(of_days[day, class_]),
        )
        for (day, class_), parts in sorted(days.items())
    ]


def prune(directory: Path, days: list[PrunedDay]) -> list[PrunedDay]:
    """Remove these parts and no other rows. They vanish from all tables at once: `nodes` goes first.

    A compaction may have merged them since they were named: then the merged part is removed. Return
    the days whose parts were merged with captures that arrived meanwhile: these stay. Directories
    that are empty are removed too.
    """
    left = []
    with (directory / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lists = {table: replacements(directory, table) for table in PART_TABLES}
        clean_up(directory)  # what a killed compaction has left
        for day in days:
            merged, mixed = _merged(directory, day, lists)
            for part, table in (*day.parts, *merged):
                _remove(directory, part, table)
            if mixed:
                left.append(day)
    return left


def _merged(
    directory: Path, day: PrunedDay, lists: Mapping[str, Mapping[PartName, list[PartName]]]
) -> tuple[list[tuple[PartName, str]], bool]:
    """Return the parts that have rows of the named parts alone, and whether one has other rows too."""
    named, merged, mixed = set(day.parts), [], False
    for table in PART_TABLES:
        for part in listed_parts(directory, table):
            if (part.class_, part.day) == (day.class_, day.day) and (part, table) not in named:
                written = set(_origins(directory, table, part, lists[table]))
                if written <= day.origins:
                    merged.append((part, table))
                else:
                    mixed = mixed or bool(written & day.origins)
    return merged, mixed


def _origins(
    directory: Path, table: str, part: PartName, lists: Mapping[PartName, list[PartName]]
) -> tuple[str, ...]:
    """Return the parts that ingests wrote of a part. A merged part of an earlier goldnode has its list alone."""
    names = origins(directory, table, part)
    if names == (part.id,) and part in lists:
        return tuple(one for old in lists[part] for one in origins(directory, table, old))
    return names


def _remove(directory: Path, part: PartName, table: str) -> None:
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
