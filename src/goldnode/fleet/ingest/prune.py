"""Remove stored captures by their day."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import sync
from goldnode.fleet.ingest import compact
from goldnode.fleet.ingest.compact import origins
from goldnode.fleet.ingest.tables import (
    NODES,
    PART_TABLES,
    PartName,
    found_parts,
    listed_parts,
    replacements,
)
from goldnode.fleet.ingest.write import LOCK, clean_up, columns_of, nodes_columns, work_folder

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

    Parts that a compacted one replaces are named too, and before it. A day that has nothing but
    captures that later ones refer to is not named.
    """
    first = (now.astimezone(UTC) - timedelta(days=keep)).strftime("%Y-%m-%d")
    later = [part for part in found_parts(directory) if part.day >= first]
    needed = _bases(directory, later)
    days: dict[tuple[str, str], list[tuple[bool, PartName, str]]] = {}
    of_days: dict[tuple[str, str], set[str]] = {}
    for table in PART_TABLES:
        lists = replacements(directory, table)
        for part in listed_parts(directory, table):
            left = needed.get((part.class_, part.day), set())
            if part.day < first and not (left and _captures(directory, part) <= left):
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

    Captures that those of other days refer to stay, in a part of their own.

    A compaction may have merged them since they were named: then the merged part is removed. Return
    the days whose parts were merged with captures that arrived meanwhile: these stay. Directories
    that are empty are removed too.
    """
    left = []
    with (directory / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lists = {table: replacements(directory, table) for table in PART_TABLES}
        clean_up(directory)  # what a killed compaction has left
        named = [(day, *_merged(directory, day, lists)) for day in days]
        gone = {part for day, merged, _ in named for part, _ in (*day.parts, *merged)}
        whole = found_parts(directory)
        needed = _bases(directory, [part for part in whole if part not in gone])
        for day, merged, mixed in named:
            bases = needed.get((day.class_, day.day), set())
            for part, table in (*day.parts, *merged):
                own = table == NODES and part in whole and bases
                if not (own and _shrink(directory, part, own)):
                    _remove(directory, part, table)
            if mixed:
                left.append(day)
        compact.finish(directory)
    return left


def _bases(directory: Path, parts: list[PartName]) -> dict[tuple[str, str], set[tuple[str, int]]]:
    """Return the captures of other days that those in these parts refer to, by class and day."""
    bases: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for part in parts:
        if "base" not in nodes_columns(directory, part):  # of an earlier goldnode
            continue
        rows = columns_of(part.file(directory, NODES), "node", "base")
        rows = rows.filter(rows["base"].is_valid())
        times = rows["base"].cast(pa.int64()).to_pylist()
        for node, time in zip(rows["node"].to_pylist(), times, strict=True):
            day = datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d")
            if day != part.day:
                bases.setdefault((part.class_, day), set()).add((node, time))
    return bases


def _captures(directory: Path, part: PartName) -> set[tuple[str, int]]:
    """Return node and milliseconds of the captures of a part."""
    try:
        rows = columns_of(part.file(directory, NODES), "node", "time")
    except FileNotFoundError:
        return set()
    times = rows["time"].cast(pa.int64()).to_pylist()
    return set(zip(rows["node"].to_pylist(), times, strict=True))


def _shrink(directory: Path, part: PartName, bases: set[tuple[str, int]]) -> bool:
    """Leave these captures of a part alone. Return whether it has one of them."""
    own = _captures(directory, part)
    if not own & bases:
        return False
    if own - bases:
        with work_folder(directory) as work:
            compact.keep_only(directory, part, own & bases, work)
    return True


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
