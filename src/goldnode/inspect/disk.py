"""Reader of raw disks: partitions and their ext2, ext3 and ext4 file systems, without mounting or root.

Layouts follow the UEFI specification (GPT) and the kernel's documentation of ext4 data structures. A disk may
be hostile. Every block number is checked against its file system, and every directory is visited once. A disk
with an unsupported feature is refused.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, cast
from uuid import UUID

from goldnode.core.errors import ImageError
from goldnode.inspect.archives import ScannedPath, SourceFile
from goldnode.inspect.scan import Limits, Scan, collect

# Partitions that contain no libraries: EFI system, BIOS boot, swap.
_PASSED_OVER = {
    UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),
    UUID("21686148-6449-6e6f-744e-656564454649"),
    UUID("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"),
}
_MBR_PASSED_OVER = {0x00, 0x82, 0xEF}  # empty, Linux swap, EFI system partition

# Incompatible features. Readable ones: filetype, extents, 64bit, flex_bg, ea_inode, csum_seed, large_dir.
_FILETYPE, _RECOVER, _EXTENTS, _WIDE, _READ = (
    0x2,
    0x4,
    0x40,
    0x80,
    0x2 | 0x40 | 0x80 | 0x200 | 0x400 | 0x2000 | 0x4000,
)
_DIRECTORY_BYTES = 256 << 20  # of one directory; its size is a number in the image
_EXTENT_BLOCKS = 1 << 16


@dataclass(frozen=True)
class FilesystemEntry:
    """One path of a file system.

    `kind` is f, d, l or o as in `scan.Entry`. Hard links of one file have the same `inode`. `size` is in
    bytes.
    """

    path: str
    kind: str
    inode: int
    mode: int
    uid: int
    gid: int
    size: int
    link: str
    open: Callable[[], IO[bytes]]


def read_partition(path: Path, start: int, size: int) -> Iterator[FilesystemEntry]:
    """Return every path of the ext4 file system at byte `start` of a raw disk.

    Raise ImageError if any of it cannot be read.
    """
    with path.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as disk:
        name = f"{path}, at byte {start}"
        if start + size > len(disk) or disk[start + 1080 : start + 1082] != b"\x53\xef":
            raise ImageError(f"{name} is no file system of ext4", remedy="build the disk again")
        system = Ext(disk, start, size, name)
        yield from system.files()
        for where, why in system.faults.items():
            raise ImageError(
                f"{name}: {where}: {why}", remedy="run `e2fsck` on a copy, and build the disk again"
            )


def scan_disk(path: Path, limits: Limits | None = None) -> list[tuple[str, Scan]]:
    """Scan every file system of a disk. Return name and scan of each.

    Raise ImageError if the file is not a disk with a readable file system.
    """
    if path.stat().st_size < 4096:
        raise ImageError(
            f"{path} is nothing that can be inspected",
            remedy="name a wheel, root, tar, OCI layout or raw disk",
        )
    with path.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as disk:
        if disk[1080:1082] == b"\x53\xef":
            return [(str(path), _scan(disk, 0, len(disk), str(path), limits))]
        parts = list(_gpt(disk)) or list(_mbr(disk))
        if not parts:
            raise ImageError(
                f"{path} is nothing that can be inspected",
                remedy="name a wheel, root, tar, OCI layout or raw disk",
            )
        scans = []
        for number, start, length in parts:
            name = f"{path}, partition {number}"
            if disk[start + 1080 : start + 1082] == b"\x53\xef":
                scans.append(
                    (name, _scan(disk, start, min(length, len(disk) - start), name, limits))
                )
            else:
                scans.append(
                    (
                        name,
                        Scan(
                            left_out={
                                name: "its file system is not ext2, ext3 or ext4, and only those are read"
                            }
                        ),
                    )
                )
        return scans


def _gpt(disk: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    # The header is in sector 1, at an offset that depends on the sector size, which the disk does not record.
    for sector in (512, 4096):
        if disk[sector : sector + 8] != b"EFI PART":
            continue
        table, count, size = struct.unpack_from("<QII", disk, sector + 72)
        for index in range(min(count, 256)):
            at = table * sector + index * size
            if size < 128 or at + 128 > len(disk):
                break
            kind = UUID(bytes_le=disk[at : at + 16])
            first, last = struct.unpack_from("<QQ", disk, at + 32)
            if (
                kind.int
                and kind not in _PASSED_OVER
                and first * sector < len(disk)
                and last >= first
            ):
                yield index + 1, first * sector, (last - first + 1) * sector
        return


def _mbr(disk: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    if disk[510:512] != b"\x55\xaa":
        return
    for index in range(4):
        kind, first, count = struct.unpack_from("<4xB3xII", disk, 446 + 16 * index)
        if kind not in _MBR_PASSED_OVER and 0 < first * 512 < len(disk):
            yield index + 1, first * 512, count * 512


def _scan(disk: mmap.mmap, start: int, length: int, name: str, limits: Limits | None) -> Scan:
    system = Ext(disk, start, length, name)
    scan = collect(system.walk(), limits, name=name)
    scan.left_out.update(system.faults)
    return scan


class Ext:
    """One ext2, ext3 or ext4 file system on a disk."""

    def __init__(self, disk: mmap.mmap, start: int, length: int, name: str) -> None:
        self.disk, self.start, self.length = disk, start, length
        self.faults: dict[str, str] = {}
        head = disk[start + 1024 : start + 2048]
        inodes, _, _, _, _, first, log, _, _, _, per_group = struct.unpack_from("<11I", head)
        revision, inode_size, incompatible, _ = struct.unpack_from("<I8xH6xII", head, 76)
        per_block_group = struct.unpack_from("<I", head, 32)[0]
        unread = incompatible & ~_READ & ~_RECOVER
        if unread or log > 6 or not per_group or not per_block_group:
            raise ImageError(
                f"{name} has features of ext4 that are not read ({unread:#x})",
                remedy="unpack it with debugfs and name the directory",
            )
        if incompatible & _RECOVER:
            raise ImageError(
                f"{name} was not unmounted cleanly: its journal is not replayed",
                remedy="run `e2fsck -p` on a copy, and name that",
            )
        self.block = 1024 << log
        self.inodes, self.per_group = inodes, per_group
        self.inode_size = inode_size if revision else 128
        descriptor = struct.unpack_from("<H", head, 254)[0] if incompatible & _WIDE else 32
        self.descriptor = max(32, descriptor)
        self.descriptors = (first + 1) * self.block
        if not 128 <= self.inode_size <= self.block:
            raise ImageError(
                f"{name} is damaged: inodes of {self.inode_size} bytes", remedy="run `e2fsck` on it"
            )

    def at(self, offset: int, size: int) -> bytes:
        """Return bytes of the file system. Raise OSError beyond its end."""
        if offset < 0 or offset + size > self.length:
            raise OSError("it names a block past the end of the file system")
        return self.disk[self.start + offset : self.start + offset + size]

    def table_entry(self, number: int) -> bytes:
        """Return the raw inode from the inode table, `inode_size` bytes. Raise OSError for an
        invalid number.
        """
        if not 0 < number <= self.inodes:
            raise OSError(f"it names inode {number}, which there is not")
        group, index = divmod(number - 1, self.per_group)
        row = self.at(self.descriptors + group * self.descriptor, self.descriptor)
        table = struct.unpack_from("<I", row, 8)[0] | (
            struct.unpack_from("<I", row, 40)[0] << 32 if self.descriptor >= 64 else 0
        )
        return self.at(table * self.block + index * self.inode_size, self.inode_size)

    def inode(self, number: int) -> tuple[int, int, int, bytes]:
        """Return mode, size and flags of an inode, and its 60 bytes of block pointers or extents."""
        data = self.table_entry(number)
        mode, _, low, _, _, _, _, _, _, _, flags = struct.unpack_from("<HHIIIIIHHII", data)
        high = struct.unpack_from("<I", data, 108)[0]
        return mode, low | high << 32, flags, data[40:100]

    def owner(self, number: int) -> tuple[int, int]:
        """Return user and group of an inode."""
        group, index = divmod(number - 1, self.per_group)
        row = self.at(self.descriptors + group * self.descriptor, self.descriptor)
        table = struct.unpack_from("<I", row, 8)[0] | (
            struct.unpack_from("<I", row, 40)[0] << 32 if self.descriptor >= 64 else 0
        )
        data = self.at(table * self.block + index * self.inode_size, 128)
        (uid, gid), (uid_high, gid_high) = (
            struct.unpack_from("<H20xH", data, 2),
            struct.unpack_from("<HH", data, 120),
        )
        return uid | uid_high << 16, gid | gid_high << 16

    def runs(self, flags: int, place: bytes) -> Iterator[tuple[int, int, int]]:
        """Return the runs of a file in order: first block in the file, first block on disk (0:
        hole), length.
        """
        if flags & 0x80000:
            yield from self._extents(place, 0, [_EXTENT_BLOCKS])
            return
        pointers = struct.unpack("<15I", place)
        at = 0
        for pointer in pointers[:12]:
            yield at, pointer, 1
            at += 1
        for depth, pointer in enumerate(pointers[12:], start=1):
            for extent in self._indirect(pointer, depth, [_EXTENT_BLOCKS]):
                yield at, extent, 1
                at += 1

    def _extents(self, node: bytes, depth: int, left: list[int]) -> Iterator[tuple[int, int, int]]:
        magic, count, _, height = struct.unpack_from("<HHHH", node)
        if magic != 0xF30A or 12 + 12 * count > len(node) or depth > 5 or (depth == 5 and height):
            raise OSError("its tree of extents is damaged")
        for index in range(count):
            if height:
                low, high = struct.unpack_from("<4xIH", node, 12 + 12 * index)
                left[0] -= 1
                if left[0] < 0:
                    raise OSError("its tree of extents is too large")
                yield from self._extents(
                    self.at((low | high << 32) * self.block, self.block), depth + 1, left
                )
            else:
                first, length, high, low = struct.unpack_from("<IHHI", node, 12 + 12 * index)
                # Longer extents are preallocated but unwritten, and read as zeros.
                written = length <= 0x8000
                yield (
                    first,
                    (low | high << 32) if written else 0,
                    length if written else length - 0x8000,
                )

    def _indirect(self, pointer: int, depth: int, left: list[int]) -> Iterator[int]:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("its tree of blocks is too large")
        if pointer == 0:
            yield from (0 for _ in range((self.block // 4) ** depth))
            return
        rows = struct.unpack(f"<{self.block // 4}I", self.at(pointer * self.block, self.block))
        if depth == 1:
            yield from rows
            return
        for row in rows:
            yield from self._indirect(row, depth - 1, left)

    def content(self, size: int, flags: int, place: bytes) -> Iterator[bytes]:
        """Return the content of a file in pieces, holes as zeros."""
        done = 0
        for first, block, count in self.runs(flags, place):
            if done >= size:
                return
            gap = min(size, first * self.block) - done
            while gap > 0:
                yield b"\0" * min(gap, 1 << 20)
                done, gap = done + min(gap, 1 << 20), gap - (1 << 20)
            piece = min(count * self.block, size - done)
            for offset in range(0, piece, 1 << 20):
                part = min(1 << 20, piece - offset)
                yield self.at(block * self.block + offset, part) if block else b"\0" * part
            done += piece
        while done < size:
            part = min(1 << 20, size - done)
            yield b"\0" * part
            done += part

    def walk(self) -> Iterator[SourceFile]:
        """Return every file, for `scan.collect`."""
        for file in self.files():
            entry = ScannedPath(file.kind, file.size if file.kind == "f" else 0, file.link)
            yield SourceFile(file.path, entry, file.open if file.kind == "f" else None)

    def files(self) -> Iterator[FilesystemEntry]:
        """Return every path, directories before their content."""
        todo, seen = [(2, "")], {2}
        while todo:
            number, folder = todo.pop()
            try:
                names = list(self.directory(number))
            except (OSError, struct.error) as error:
                self.faults[folder or "."] = f"the directory cannot be read: {error}"
                continue
            for name, child in names:
                path = f"{folder}/{name}" if folder else name
                try:
                    mode, size, flags, place = self.inode(child)
                    kind = {4: "d", 8: "f", 10: "l"}.get(mode >> 12, "o")
                    if kind == "d" and child not in seen and path.count("/") < 256:
                        seen.add(child)
                        todo.append((child, path))
                    link = ""
                    if kind == "l":
                        # A short target is in the inode itself, where other files have their block pointers.
                        short = size < 60 and not flags & 0x80000
                        if short:
                            target = place[:size]
                        else:
                            target = b"".join(self.content(min(size, 4096), flags, place))
                        link = target.decode("utf-8", "surrogateescape")
                    uid, gid = self.owner(child)
                    yield FilesystemEntry(
                        path,
                        kind=kind,
                        inode=child,
                        mode=mode & 0o7777,
                        uid=uid,
                        gid=gid,
                        size=size,
                        link=link,
                        open=partial(self._open, size, flags, place),
                    )
                except (OSError, struct.error) as error:
                    self.faults[path] = f"it cannot be read: {error}"

    def _open(self, size: int, flags: int, place: bytes) -> IO[bytes]:
        return cast("IO[bytes]", _Stream(self.content(size, flags, place)))

    def directory(self, number: int) -> Iterator[tuple[str, int]]:
        """Return name and inode number of the entries of a directory, in disk order, without `.` and `..`.

        Raise OSError if the directory is damaged.
        """
        mode, size, flags, place = self.inode(number)
        if mode >> 12 != 4 or size > _DIRECTORY_BYTES:
            raise OSError("it is no directory")
        data = b"".join(self.content(size, flags, place))
        at = 0
        while at + 8 <= len(data):
            child, length, name_length = struct.unpack_from("<IHB", data, at)
            if length < 8 or at + length > len(data):
                raise OSError("an entry of it is damaged")
            name = data[at + 8 : at + 8 + name_length]
            if child and name not in (b"", b".", b".."):
                if b"/" in name or b"\0" in name or 8 + name_length > length:
                    raise OSError("an entry of it has no name that a file can have")
                yield name.decode("utf-8", "surrogateescape"), child
            at += length


class _Stream:
    """File object that reads from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; fewer only at the end."""
        parts, got = [self._rest], len(self._rest)
        while got < size and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            got += len(piece)
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]
