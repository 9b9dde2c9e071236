"""Merge the small parts of a class and day into larger ones, without a moment in which a reader sees rows twice or not.

A fleet whose captures arrive in small batches makes a part for each. Once a class and day has MANY
small parts, an ingest merges them under its lock. The order: the files of the new part without
`nodes`, the list of parts that it replaces, its file of `nodes`, and then the removal of the old
files. The rename of `nodes` is the switch. A killed compaction before it leaves files that the next
ingest removes; after it, the next ingest removes the old files.

Old files are removed only while no reader has the data open (`lock_for_reading`); otherwise a later
ingest removes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from goldnode.core.files import replace_file, sync
from goldnode.fleet.ingest.rows import text_order
from goldnode.fleet.ingest.tables import (
    CHANGES,
    FACTS,
    NODES,
    NUMBERS,
    PART_TABLES,
    SCHEMAS,
    PartName,
    listed_parts,
    replacements,
)

MANY = 16  # small parts of a class and day, from which on they are merged
SMALL = 4 << 20  # bytes of a part; a larger one is never merged again
ENDED = 4  # parts of a day that has ended, from which on they become one
TOGETHER = 1_000_000  # rows that a merge has in memory
_MERGED = 8 << 20  # bytes of the parts of one merge, about 4,000,000 rows
# Bytes of content that count as one byte of a part, where that is more: texts of a hostile node shrink a thousandfold in
# a file, and a merge has them in memory. Parts of equal simulated nodes shrink to a fifteenth.
_CONTENT = 32
_ORIGINS = b"goldnode.origins"  # key in the metadata of the file that completes a merged part
_READERS = ".readers"  # lock that readers share
# Large pages: in small ones, the names of nodes and items that repeat with each key would be stored again in each.
_FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,  # zstd's own default; that of pyarrow is 1, and takes 7 % more bytes
    "store_schema": False,
    "write_statistics": ["key", "time"],
    "data_page_size": 4 << 20,
    "max_rows_per_page": 1 << 20,
    # Real UUIDs are random: a dictionary of those of 10,000 nodes that gives up is written as plain texts.
    "dictionary_pagesize_limit": 16 << 20,
}
# Bytes of equal significance next to each other: the high ones of neighbours are equal, and the low ones of a rounded
# number are zero.
_SPLIT = {CHANGES: "values.list.element", NUMBERS: "value", NODES: "uptime"}
# Where a higher level of zstd saves bytes (1 % of the changes of a day, 20 % of nodes) and hardly takes longer: others grow with it.
_LEVELS = {CHANGES: 9, NODES: 9}


def formatted(table: str) -> dict[str, Any]:
    """Return how a file of a table is written."""
    texts = {
        NODES: [name for name in SCHEMAS[NODES].names if name not in ("uptime", "blocks")],
        NUMBERS: ["node", "item", "key", "time", "place"],
        CHANGES: [
            *("node", "time", "base", "key"),
            *(f"{name}.list.element" for name in ("items", "texts", "faults")),
        ],
    }.get(table)
    if texts is None:
        return _FORMAT
    return {
        **_FORMAT,
        "compression_level": _LEVELS.get(table, _FORMAT["compression_level"]),
        "use_dictionary": texts,
        "column_encoding": {_SPLIT[table]: "BYTE_STREAM_SPLIT"},
    }


def lock_for_reading(directory: Path) -> int | None:
    """Return a descriptor that holds off the removal of replaced files until it is closed.

    None: no lock can be had, as in a copy that cannot be written.
    """
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with suppress(OSError):
            handle = os.open(directory / _READERS, flags | os.O_CLOEXEC, 0o644)
            fcntl.flock(handle, fcntl.LOCK_SH)
            return handle
    return None


def compact(
    directory: Path, places: Iterable[tuple[str, str]], work: Path
) -> dict[PartName, list[PartName]]:
    """Merge small parts of these classes and days where there are many. Return new parts with those that they replace.

    The caller holds the lock of writers. `work` is a directory on the same file system.
    """
    done: dict[PartName, list[PartName]] = {}
    for table in PART_TABLES:
        if replacements(directory, table):  # a reader has held off the removal: one step at a time
            continue
        small: dict[tuple[str, str], list[tuple[PartName, int]]] = {
            place: [] for place in set(places)
        }
        for part in listed_parts(directory, table):
            size = part_size(directory, table, part) if (part.class_, part.day) in small else SMALL
            if size < SMALL:
                small[part.class_, part.day].append((part, size))
        for parts in small.values():
            if len(parts) >= MANY:
                for group in _groups(parts):
                    done[_merge(directory, table, group, work)] = group
        if table == NODES and not done:
            done |= _ended(directory, set(places), work)
    finish(directory)
    return done


def _ended(
    directory: Path, places: set[tuple[str, str]], work: Path
) -> dict[PartName, list[PartName]]:
    """Merge the last day before these that has several parts: nothing is added to it any more.

    Captures of one node have nearly the same values, which take a quarter less in one file.
    """
    for class_, day in places:
        days: dict[str, list[PartName]] = {}
        for part in listed_parts(directory):
            if part.class_ == class_ and part.day < day:
                days.setdefault(part.day, []).append(part)
        group = days[max(days)] if days else []
        if len(group) >= ENDED and all(_is_plain(directory, part) for part in group):
            return {_merge(directory, NODES, group, work): group}
    return {}


def _is_plain(directory: Path, part: PartName) -> bool:
    """Return whether a part's size is that of its files, and not a share of its content."""
    files = (part.file(directory, name) for name in PART_TABLES[NODES])
    size = sum(file.stat().st_size for file in files if file.exists())
    return part_size(directory, NODES, part) <= size


def finish(directory: Path) -> None:
    """Remove the files of replaced parts, unless a reader has the data open, and the lists of parts that are not complete."""
    for table in PART_TABLES:
        lists = replacements(directory, table)
        whole = set(listed_parts(directory, table))
        for part in [part for part in lists if part not in whole]:
            part.replaces(directory, table).unlink(missing_ok=True)
        complete = {part: old for part, old in lists.items() if part in whole}
        if complete:
            with _no_readers(directory) as alone:
                for part, old in complete.items() if alone else ():
                    remove(directory, table, old)
                    part.replaces(directory, table).unlink(missing_ok=True)


def remove(directory: Path, table: str, parts: Iterable[PartName]) -> None:
    """Remove the files of parts. The table that completes a part is first, so that its rows vanish at once."""
    for part in parts:
        for name in (table, *PART_TABLES[table]):
            part.file(directory, name).unlink(missing_ok=True)
        sync(part.file(directory, table).parent)


@contextmanager
def _no_readers(directory: Path) -> Iterator[bool]:
    """Yield whether no reader has the data open; none can open it until the block ends."""
    with (directory / _READERS).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _groups(parts: Sequence[tuple[PartName, int]]) -> Iterator[list[PartName]]:
    """Yield the parts of each merge."""
    group: list[PartName] = []
    total = 0
    for part, size in parts:
        if group and total + size > _MERGED:
            if len(group) > 1:
                yield group
            group, total = [], 0
        group.append(part)
        total += size
    if len(group) > 1:
        yield group


def keep_only(
    directory: Path, part: PartName, captures: set[tuple[str, int]], work: Path
) -> PartName:
    """Write a part with these captures of another one (node, milliseconds), and make it visible in its place."""
    return _merge(directory, NODES, [part], work, captures)


def _merge(
    directory: Path,
    table: str,
    group: list[PartName],
    work: Path,
    captures: set[tuple[str, int]] | None = None,
) -> PartName:
    """Write one part with the rows of several, or those of some captures, and make it visible in their place."""
    names = "".join(part.id for part in group)
    content = names if captures is None else repr((names, sorted(captures)))
    digest = hashlib.sha256(content.encode()).hexdigest()[:24]
    new = PartName(group[0].class_, group[0].day, digest)
    origin = ",".join(one for part in group for one in origins(directory, table, part))
    for name in PART_TABLES[table]:
        file = work / f"merged-{name}.parquet"
        files = [one for part in group if (one := part.file(directory, name)).exists()]
        writer = None
        for keys in _key_groups(files) if name in _BY_KEY else [None]:
            merged = _rows(files, name, captures, keys)
            if writer is None:
                writer = pq.ParquetWriter(file, merged.schema, **formatted(name))
            writer.write_table(merged)
        assert writer is not None  # noqa: S101 - for mypy: there is one group at least
        if name == table:
            writer.add_key_value_metadata({_ORIGINS: origin})
        writer.close()
        sync(file)
    replace_file(new.replaces(directory, table), json.dumps([part.id for part in group]).encode())
    for name in PART_TABLES[table]:
        file = new.file(directory, name)
        file.parent.mkdir(parents=True, exist_ok=True)  # an earlier goldnode had fewer tables
        (work / f"merged-{name}.parquet").replace(file)
        sync(file.parent)
    return new


def origins(directory: Path, table: str, part: PartName) -> tuple[str, ...]:
    """Return the ids of the parts that an ingest wrote and that this one was merged from; of others, its own id."""
    try:
        named = (pq.read_metadata(part.file(directory, table)).metadata or {}).get(_ORIGINS, b"")
    except (FileNotFoundError, pa.ArrowException):
        named = b""
    return tuple(named.decode("ascii", "replace").split(",")) if named else (part.id,)


_BY_KEY = (FACTS, NUMBERS, CHANGES)


def _key_groups(files: Sequence[Path]) -> list[list[str]]:
    """Return the keys of files, sorted, in groups whose rows fit into memory together; one group at least."""
    counts: dict[str, int] = {}
    for file in files:
        keys = pq.read_table(file, columns=["key"], partitioning=None, read_dictionary=["key"])
        for row in pc.value_counts(keys["key"]).to_pylist():
            counts[row["values"]] = counts.get(row["values"], 0) + row["counts"]
    groups: list[list[str]] = [[]]
    total = 0
    for key in sorted(counts):
        if groups[-1] and total + counts[key] > TOGETHER:
            groups.append([])
            total = 0
        groups[-1].append(key)
        total += counts[key]
    return groups


def _rows(
    files: Iterable[Path],
    table: str,
    captures: set[tuple[str, int]] | None = None,
    keys: list[str] | None = None,
) -> pa.Table:
    """Return the rows of the files of one table, ordered by key, node and time.

    :param captures: only the rows of these (node, milliseconds).
    :param keys: only the rows of these keys.

    Files of an earlier goldnode lack columns, which are null, or are not there.
    """
    schema = SCHEMAS[table]
    # A column of nulls has no dictionary.
    texts = [field.name for field in schema if field.type == pa.string() and field.name != "fault"]
    tables = []
    for file in files:
        filters = None if keys is None else pc.field("key").isin(pa.array(keys, pa.string()))
        rows = pq.read_table(file, partitioning=None, read_dictionary=texts, filters=filters)
        for name in schema.names:
            if name not in rows.column_names:
                kind = schema.field(name).type
                kind = pa.dictionary(pa.int32(), kind) if name in texts else kind
                rows = rows.append_column(name, pa.nulls(len(rows), kind))
        tables.append(rows.select(schema.names))
    if not tables:
        return schema.empty_table()
    rows = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    if captures is not None:
        times = rows["time"].cast(pa.int64()).to_pylist()
        pairs = zip(rows["node"].to_pylist(), times, strict=True)
        rows = rows.filter(pa.array([pair in captures for pair in pairs], pa.bool_()))
    if table in (*_BY_KEY, NODES) and len(rows):
        rows = rows.combine_chunks()
        names = [name for name in ("key", "node") if name in schema.names]
        order = {name: text_order(rows[name].chunk(0)) for name in names}
        # By node, and then by time: neighbours are nearly equal.
        place = pa.table({**order, "time": rows["time"]})
        rows = rows.take(
            pc.sort_indices(place, [(name, "ascending") for name in place.column_names])
        )
    return rows if table in (FACTS, NUMBERS) else rows.cast(schema)


def part_size(directory: Path, table: str, part: PartName) -> int:
    """Return the size of a part: of its files, or a share of their content if that is more."""
    total = content = 0
    for name in PART_TABLES[table]:
        file = part.file(directory, name)
        try:
            total += file.stat().st_size
            metadata = pq.read_metadata(file)
        except FileNotFoundError:
            continue
        except pa.ArrowException:  # damaged: a report names it, and no merge takes it in
            return SMALL
        else:
            content += sum(
                metadata.row_group(group).total_byte_size
                for group in range(metadata.num_row_groups)
            )
    return max(total, content // _CONTENT)
