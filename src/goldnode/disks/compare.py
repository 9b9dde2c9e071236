"""Differences between two disks, by partition, path and property. Nothing is mounted.

It is meant for two builds that should be equal, so it compares down to the byte. A byte that belongs to no
file (partition table, superblock, end of a file's last block, free block) is reported with the structure that
contains it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import mmap
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from goldnode.core.errors import DiskError
from goldnode.disks import ext4, formats, gpt
from goldnode.disks.ext4 import Inode, Reader
from goldnode.disks.fat import Fat32, FatEntry
from goldnode.disks.model import Partition

What = Literal[
    "only in one", "type", "content", "mode", "owner", "times", "xattrs", "links", "flags", "target",
    "device", "place", "table", "superblock", "slack",
]  # fmt: skip
_PIECE = 1 << 20  # bytes compared at once; only a piece that differs is looked at in detail
_ONE = {True: "there", False: "not there"}


@dataclass(frozen=True)
class DiskDifference:
    """One difference.

    `partition` is the PARTLABEL, or `disk` outside all partitions. `path` begins with a slash, and is empty
    for anything but a file. `first` and `second` describe the value on each disk.
    """

    partition: str
    path: str
    what: What
    first: str
    second: str

    def __str__(self) -> str:
        place = f"{self.partition}:{self.path}" if self.path else self.partition
        return f"{place}: {self.what}: {self.first} / {self.second}"


def differences(first: Path, second: Path) -> list[DiskDifference]:
    """Compare two raw disks (or `.raw.zst`, unpacked in $TMPDIR).

    An empty list means they are equal, bit by bit.

    Raises DiskError for a file that is not a disk with a GPT, and for an unreadable file system.
    """
    with ExitStack() as stack:
        one, two = (stack.enter_context(_opened(path)) for path in (first, second))
        return list(_compare(one, two))


@dataclass(frozen=True)
class _Disk:
    path: Path
    data: mmap.mmap

    def part(self, row: Partition) -> memoryview:
        return memoryview(self.data)[row.start : row.start + row.size]


@contextmanager
def _opened(path: Path) -> Iterator[_Disk]:
    if not path.is_file():
        raise DiskError(
            "there is no such file", file=path, remedy="name a raw disk, or its .raw.zst"
        )
    with ExitStack() as stack:
        raw = path
        if path.name.endswith(".zst"):
            raw = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="goldnode-compare-"))
            ) / path.name.removesuffix(".zst")
            formats.unpack(path, raw)
        if raw.stat().st_size < 4096:
            raise DiskError(
                "this is no disk: it is smaller than its partition table",
                file=path,
                remedy="name a raw disk, or its .raw.zst",
            )
        file = stack.enter_context(raw.open("rb"))
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        try:
            yield _Disk(raw, data)
        finally:
            # A traceback may still reference a view of the data, which then keeps it open.
            with suppress(BufferError):
                data.close()


def _compare(one: _Disk, two: _Disk) -> Iterator[DiskDifference]:
    tables = gpt.read(one.path), gpt.read(two.path)
    if len(one.data) != len(two.data):
        yield DiskDifference(
            "disk", "", "table", f"{len(one.data)} bytes", f"{len(two.data)} bytes"
        )
    if tables[0].disk != tables[1].disk:
        yield DiskDifference(
            "disk", "", "table", f"GUID {tables[0].disk}", f"GUID {tables[1].disk}"
        )
    rows = [{part.number: part for part in table.partitions} for table in tables]
    flags = [dict(table.attributes) for table in tables]
    accounted = bool(len(one.data) != len(two.data) or tables[0] != tables[1])
    for number in sorted(rows[0].keys() | rows[1].keys()):
        mine, other = rows[0].get(number), rows[1].get(number)
        if mine is None or other is None:
            there = mine or other
            yield DiskDifference(
                there.name if there else "",
                "",
                "only in one",
                _ONE[mine is not None],
                _ONE[other is not None],
            )
            continue
        for field in ("name", "type", "uuid", "start", "size"):
            if getattr(mine, field) != getattr(other, field):
                yield DiskDifference(
                    mine.name,
                    "",
                    "table",
                    f"{field} {getattr(mine, field)}",
                    f"{field} {getattr(other, field)}",
                )
        if flags[0][number] != flags[1][number]:
            yield DiskDifference(
                mine.name,
                "",
                "table",
                f"flags {flags[0][number] or 'none'}",
                f"flags {flags[1][number] or 'none'}",
            )
        with one.part(mine) as left, two.part(other) as right:
            if not _same(left, right):
                yield from _partition(one, two=two, mine=mine, other=other, left=left, right=right)
    if not accounted:
        yield from _outside(one, two, list(rows[0].values()))


def _same(left: memoryview, right: memoryview) -> bool:
    return len(left) == len(right) and not any(True for _ in _ranges(left, right))


def _ranges(left: memoryview, right: memoryview, block: int = 4096) -> Iterator[int]:
    """Yield the offsets of the blocks that differ, up to the end of the shorter one."""
    # As bytes: comparing memoryviews is slow, element by element.
    for at in range(0, min(len(left), len(right)), _PIECE):
        pieces = bytes(left[at : at + _PIECE]), bytes(right[at : at + _PIECE])
        if pieces[0] != pieces[1]:
            for inner in range(0, min(map(len, pieces)), block):
                if pieces[0][inner : inner + block] != pieces[1][inner : inner + block]:
                    yield at + inner


def _outside(one: _Disk, two: _Disk, parts: list[Partition]) -> Iterator[DiskDifference]:
    """Yield differences before, between and after the partitions that the parsed table does not show."""
    ends = sorted((part.start, part.start + part.size) for part in parts)
    at = 0
    for start, end in [*ends, (len(one.data), len(one.data))]:
        with memoryview(one.data)[at:start] as left, memoryview(two.data)[at:start] as right:
            for offset in _ranges(left, right, gpt.SECTOR):
                sector = (at + offset) // gpt.SECTOR
                last = len(one.data) // gpt.SECTOR - 1
                where = {
                    0: "the protective MBR",
                    1: "the GPT header",
                    last: "the second GPT header",
                }.get(sector)
                if where is None:
                    where = "a gap between partitions"
                    if sector < 34 or sector >= last - 32:
                        where = "the GPT's entries"
                yield DiskDifference(
                    "disk", "", "slack", f"sector {sector}, in {where}", "other bytes there"
                )
                break
        at = end


def _partition(
    one: _Disk,
    two: _Disk,
    mine: Partition,
    other: Partition,
    left: memoryview,
    *,
    right: memoryview,
) -> Iterator[DiskDifference]:
    kinds = [_kind(data) for data in (left, right)]
    if kinds[0] != kinds[1]:
        yield DiskDifference(mine.name, "", "type", kinds[0], kinds[1])
    elif kinds[0] == "ext4":
        with (
            ext4.reading(one.path, mine.start, mine.size) as first,
            ext4.reading(two.path, other.start, other.size) as second,
        ):
            yield from _ext4(mine.name, first, second, left, right)
    elif kinds[0] == "vfat":
        yield from _vfat(
            mine.name,
            Fat32(left, f"partition {mine.name}"),
            Fat32(right, f"partition {mine.name}"),
            left,
            right,
        )
    else:
        yield from (
            DiskDifference(mine.name, "", "content", f"byte {at}", "other bytes there")
            for at in list(_ranges(left, right))[:1]
        )


def _kind(data: memoryview) -> str:
    if bytes(data[1080:1082]) == b"\x53\xef":
        return "ext4"
    return "vfat" if bytes(data[82:87]) == b"FAT32" else "no file system that is read"


# -- ext4

# Superblock fields (offset, struct format, name), from the kernel's documentation of ext4's data structures.
_SUPERBLOCK = (
    (0, "I", "count of inodes"), (4, "I", "count of blocks"), (44, "I", "mount time"),
    (48, "I", "write time"), (52, "H", "count of mounts"), (58, "H", "state"),
    (60, "H", "behaviour at errors"), (64, "I", "time of check"), (92, "I", "compatible features"),
    (96, "I", "incompatible features"), (100, "I", "read-only features"), (104, "16s", "UUID"),
    (120, "16s", "label"), (136, "64s", "last mount point"), (208, "16s", "UUID of the journal"),
    (236, "16s", "hash seed"), (256, "I", "mount options"), (264, "I", "time of making"),
    (376, "Q", "bytes written"), (624, "I", "checksum seed"),
)  # fmt: skip


def _ext4(
    name: str, first: Reader, second: Reader, left: memoryview, right: memoryview
) -> Iterator[DiskDifference]:
    supers = first.superblock(), second.superblock()
    reported = False
    for offset, form, what in _SUPERBLOCK:
        mine, other = (struct.unpack_from(f"<{form}", block, offset)[0] for block in supers)
        if mine != other:
            reported = True
            yield DiskDifference(
                name, "", "superblock", f"{what} {_value(mine)}", f"{what} {_value(other)}"
            )
    trees = [dict(system.tree()) for system in (first, second)]
    for path in sorted(trees[0].keys() | trees[1].keys()):
        mine, other = trees[0].get(path), trees[1].get(path)
        for row in _file(name, path=f"/{path}", first=first, second=second, mine=mine, other=other):
            reported = True
            yield row
    # Bitmaps, counters and checksums follow from the differences above, so report them only without any.
    if not reported:
        yield from _ext4_rest(name, first, trees[0], left, right)


def _value(value: object) -> str:
    if isinstance(value, bytes):
        text = value.rstrip(b"\0")
        if text.isascii() and text.decode("ascii").isprintable():
            return text.decode("ascii")
        return value.hex()
    return str(value)


def _file(
    name: str, path: str, first: Reader, second: Reader, mine: Inode | None, *, other: Inode | None
) -> Iterator[DiskDifference]:
    if mine is None or other is None:
        yield DiskDifference(
            name, path, "only in one", _ONE[mine is not None], _ONE[other is not None]
        )
        return
    if mine.kind != other.kind:
        yield DiskDifference(
            name, path, "type", stat.filemode(mine.mode), stat.filemode(other.mode)
        )
        return
    if mine.mode != other.mode:
        yield DiskDifference(
            name, path, "mode", f"{mine.mode & 0o7777:04o}", f"{other.mode & 0o7777:04o}"
        )
    if (mine.uid, mine.gid) != (other.uid, other.gid):
        yield DiskDifference(
            name, path, "owner", f"{mine.uid}:{mine.gid}", f"{other.uid}:{other.gid}"
        )
    for which in ("mtime", "atime", "ctime", "crtime"):
        times = getattr(mine, which), getattr(other, which)
        if times[0] != times[1]:
            yield DiskDifference(
                name, path, "times", f"{which} {_date(times[0])}", f"{which} {_date(times[1])}"
            )
    yield from _attributes(name, path, mine.xattrs, other.xattrs)
    if mine.kind == "l":
        targets = [
            _content(system, item).decode("utf-8", "replace")
            for system, item in ((first, mine), (second, other))
        ]
        if targets[0] != targets[1]:
            yield DiskDifference(name, path, "target", targets[0], targets[1])
    elif mine.kind == "-":
        yield from _contents(name, path=path, first=first, second=second, mine=mine, other=other)
    elif mine.kind in "cb" and mine.place[:8] != other.place[:8]:
        yield DiskDifference(name, path, "device", mine.place[:8].hex(), other.place[:8].hex())
    if (
        mine.kind != "d" and mine.links != other.links
    ):  # a directory's link count follows from its content
        yield DiskDifference(name, path, "links", str(mine.links), str(other.links))
    # Ignore the index flag of a directory (0x1000): it follows from the number of entries.
    if (mine.flags ^ other.flags) & ~0x1000 or mine.generation != other.generation:
        yield DiskDifference(
            name,
            path,
            "flags",
            f"{mine.flags:#x}, generation {mine.generation}",
            f"{other.flags:#x}, generation {other.generation}",
        )


def _attributes(
    name: str, path: str, mine: Mapping[str, bytes], other: Mapping[str, bytes]
) -> Iterator[DiskDifference]:
    for key in sorted(mine.keys() | other.keys()):
        if mine.get(key) != other.get(key):
            values = [
                f"{key} {row[key].hex() or 'empty'}" if key in row else f"no {key}"
                for row in (mine, other)
            ]
            yield DiskDifference(name, path, "xattrs", values[0], values[1])


def _content(system: Reader, item: Inode) -> bytes:
    # A target of less than 60 bytes is in the inode itself, unless the inode uses extents (0x80000).
    if item.kind == "l" and item.size < 60 and not item.flags & 0x80000:
        return item.place[: item.size]
    return b"".join(system.content(item.size, item.flags, item.place))


def _contents(
    name: str, path: str, first: Reader, second: Reader, mine: Inode, *, other: Inode
) -> Iterator[DiskDifference]:
    digests = [hashlib.sha256(), hashlib.sha256()]
    at, differs = 0, -1
    pieces = [
        system.content(item.size, item.flags, item.place)
        for system, item in ((first, mine), (second, other))
    ]
    buffers = [b"", b""]
    while True:
        for side in (0, 1):
            if not buffers[side]:
                buffers[side] = next(pieces[side], b"")
                digests[side].update(buffers[side])
        size = min(len(buffers[0]), len(buffers[1]))
        if differs < 0 and buffers[0][:size] != buffers[1][:size]:
            differs = at + next(i for i in range(size) if buffers[0][i] != buffers[1][i])
        if not size:
            for side in (0, 1):
                while buffers[side]:
                    buffers[side] = next(pieces[side], b"")
                    digests[side].update(buffers[side])
            break
        at += size
        buffers = [buffer[size:] for buffer in buffers]
    if differs < 0 and mine.size != other.size:
        differs = at
    if differs >= 0:
        texts = [
            f"{item.size} bytes, sha256 {digest.hexdigest()[:12]}"
            for item, digest in zip((mine, other), digests, strict=True)
        ]
        yield DiskDifference(
            name, path, "content", f"{texts[0]}, differs from byte {differs}", texts[1]
        )


def _date(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        text = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OSError, OverflowError):
        text = f"{seconds} s"
    return f"{text} and {rest} ns" if rest else text


def _ext4_rest(
    name: str, system: Reader, tree: Mapping[str, Inode], left: memoryview, right: memoryview
) -> Iterator[DiskDifference]:
    """Yield the remaining differences of two equal trees by block, one per file or structure."""
    blocks = list(_ranges(left, right, system.block))
    if not blocks:
        return
    owners: dict[int, str] = {}
    ends: dict[int, str] = {}
    # Inode 8 is the journal.
    for path, item in [
        *((f"/{path}", item) for path, item in tree.items()),
        ("the journal", system.read(8)),
    ]:
        # Devices and short links have no blocks.
        if item.kind not in "-d" and not item.flags & 0x80000:
            continue
        for at, block, count in system.runs(item.flags, item.place):
            for index in range(count if block else 0):
                owners[block + index] = path
                if (
                    item.kind == "-"
                    and (at + index) * system.block < item.size <= (at + index + 1) * system.block
                ):
                    ends[block + index] = path
    structures = _structures(system)
    seen = set()
    for offset in blocks:
        block = offset // system.block
        if block in ends:
            row = DiskDifference(
                name, ends[block], "slack", "behind its end, in its last block", "other bytes there"
            )
        elif owners.get(block, "").startswith("/"):  # equal content in different blocks
            row = DiskDifference(
                name, owners[block], "place", "lies in other blocks, or in another order", ""
            )
        else:
            where = owners.get(block) or structures.get(block) or "a block that no file has"
            row = DiskDifference(
                name,
                "",
                "superblock" if block == 0 else "slack",
                f"{'the superblock' if block == 0 else where}",
                "other bytes there",
            )
        if row not in seen:
            seen.add(row)
            yield row


def _structures(system: Reader) -> dict[int, str]:
    """Return the file system structure that each block of metadata belongs to."""
    per_group = struct.unpack_from("<I", system.superblock(), 32)[0]
    total = struct.unpack_from("<I", system.superblock(), 4)[0]
    groups = -(-total // per_group)
    structures: dict[int, str] = {}
    table_blocks = -(-system.per_group * system.inode_size // system.block)
    for group in range(groups):
        row = system.at(system.descriptors + group * system.descriptor, system.descriptor)
        places = [
            struct.unpack_from("<I", row, low)[0]
            | (struct.unpack_from("<I", row, low + 32)[0] << 32 if len(row) >= 64 else 0)
            for low in (0, 4, 8)
        ]
        structures[places[0]] = "a bitmap of blocks"
        structures[places[1]] = "a bitmap of inodes"
        structures |= dict.fromkeys(range(places[2], places[2] + table_blocks), "a table of inodes")
    width = -(-groups * system.descriptor // system.block)
    structures |= dict.fromkeys(range(1, 1 + width), "the group descriptors")
    for group in (g for g in range(1, groups) if _has_backup(g)):
        structures[group * per_group] = "a second superblock"
        structures |= dict.fromkeys(
            range(group * per_group + 1, group * per_group + 1 + width), "second group descriptors"
        )
    # s_reserved_gdt_blocks: space for growing the file system.
    spare = struct.unpack_from("<H", system.superblock(), 206)[0]
    for group in (g for g in range(groups) if g == 0 or _has_backup(g)):
        first = group * per_group + 1 + width
        structures |= dict.fromkeys(
            range(first, first + spare), "blocks kept for more group descriptors"
        )
    return structures


def _has_backup(group: int) -> bool:
    """Return whether a group has a backup superblock.

    Feature sparse_super: group 1 and the powers of 3, 5 and 7.
    """
    for base in (3, 5, 7):
        power = base
        while power < group:
            power *= base
        if power == group:
            return True
    return group == 1


# -- the ESP


def _vfat(
    name: str, first: Fat32, second: Fat32, left: memoryview, right: memoryview
) -> Iterator[DiskDifference]:
    heads = bytes(left[: first.tables[0]]), bytes(right[: second.tables[0]])
    reported = False
    if heads[0] != heads[1]:
        for offset, size, what in (
            (67, 4, "number of the volume"),
            (71, 11, "label"),
            (36, 4, "size of the tables"),
            (13, 1, "sectors of a cluster"),
        ):
            if heads[0][offset : offset + size] != heads[1][offset : offset + size]:
                reported = True
                values = [
                    _value(head[offset : offset + size][:: 1 if what == "label" else -1])
                    for head in heads
                ]
                yield DiskDifference(
                    name, "", "superblock", f"{what} {values[0]}", f"{what} {values[1]}"
                )
        if not reported:
            reported = True
            at = next(i for i in range(len(heads[0])) if heads[0][i : i + 1] != heads[1][i : i + 1])
            yield DiskDifference(
                name, "", "superblock", f"boot sectors, byte {at}", "other bytes there"
            )
    trees = [{entry.path: entry for entry in system.entries()} for system in (first, second)]
    for path in sorted(trees[0].keys() | trees[1].keys()):
        for row in _fat_file(
            name,
            path=f"/{path}",
            first=first,
            second=second,
            mine=trees[0].get(path),
            other=trees[1].get(path),
        ):
            reported = True
            yield row
    if not reported:
        yield from _fat_rest(name, first, trees[0].values(), left, right)


def _fat_file(
    name: str,
    path: str,
    first: Fat32,
    second: Fat32,
    mine: FatEntry | None,
    *,
    other: FatEntry | None,
) -> Iterator[DiskDifference]:
    if mine is None or other is None:
        yield DiskDifference(
            name, path, "only in one", _ONE[mine is not None], _ONE[other is not None]
        )
        return
    if mine.directory != other.directory:
        yield DiskDifference(
            name,
            path,
            "type",
            *("directory" if item.directory else "file" for item in (mine, other)),
        )
        return
    if mine.attributes != other.attributes:
        yield DiskDifference(
            name,
            path,
            "mode",
            f"attributes {mine.attributes:#x}",
            f"attributes {other.attributes:#x}",
        )
    for which in ("written", "created", "accessed"):
        dates = getattr(mine, which), getattr(other, which)
        if dates[0] != dates[1]:
            yield DiskDifference(
                name,
                path,
                "times",
                *(
                    f"{which} {_fat_date(value if which != 'accessed' else value << 16)}"
                    for value in dates
                ),
            )
    if not mine.directory:
        contents = first.content(mine), second.content(other)
        if contents[0] != contents[1]:
            at = next(
                (i for i, pair in enumerate(zip(*contents, strict=False)) if pair[0] != pair[1]),
                min(map(len, contents)),
            )
            texts = [
                f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}"
                for data in contents
            ]
            yield DiskDifference(
                name, path, "content", f"{texts[0]}, differs from byte {at}", texts[1]
            )
    if mine.clusters[:1] != other.clusters[:1] and mine.size == other.size:
        yield DiskDifference(
            name,
            path,
            "place",
            f"from cluster {mine.clusters[:1]}",
            f"from cluster {other.clusters[:1]}",
        )


def _fat_date(value: int) -> str:
    date, time = value >> 16, value & 0xFFFF
    return (
        f"{1980 + (date >> 9)}-{date >> 5 & 15:02}-{date & 31:02}"
        f"T{time >> 11:02}:{time >> 5 & 63:02}:{2 * (time & 31):02}"
    )


def _fat_rest(
    name: str, system: Fat32, entries: Iterable[FatEntry], left: memoryview, right: memoryview
) -> Iterator[DiskDifference]:
    owners = {cluster: entry for entry in entries for cluster in entry.clusters}
    seen = set()
    for offset in _ranges(left, right, gpt.SECTOR):
        if offset < system.start:
            row = DiskDifference(
                name, "", "slack", "the file allocation table", "other bytes there"
            )
        else:
            owner = owners.get((offset - system.start) // system.cluster + 2)
            if owner is None:
                row = DiskDifference(
                    name, "", "slack", "a cluster that no file has", "other bytes there"
                )
            elif owner.directory:
                row = DiskDifference(
                    name,
                    f"/{owner.path}",
                    "slack",
                    "an entry of the directory, or behind its end",
                    "other bytes there",
                )
            else:
                row = DiskDifference(
                    name,
                    f"/{owner.path}",
                    "slack",
                    "behind its end, in its last cluster",
                    "other bytes there",
                )
        if row not in seen:
            seen.add(row)
            yield row
