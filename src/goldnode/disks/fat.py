"""Reader of FAT32, used to compare ESPs byte by byte.

The on-disk layout follows Microsoft's FAT specification (fatgen103).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from goldnode.core.errors import DiskError

_END = 0x0FFFFFF8  # from here on, an entry of the table ends its chain
# First value of the range that marks the end of a cluster chain.
_DEPTH = 32


@dataclass(frozen=True)
class FatEntry:
    """One file or directory.

    Dates are undecoded FAT values (date << 16 | time). `clusters` are the clusters of its content.
    """

    path: str
    directory: bool
    attributes: int
    size: int
    created: int
    written: int
    accessed: int
    clusters: tuple[int, ...]


class Fat32:
    """A FAT32 file system in memory; offsets are relative to its start.

    Raises DiskError if it is not FAT32, or damaged.
    """

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self.data, self.name = data, name
        if len(data) < 512 or bytes(data[510:512]) != b"\x55\xaa" or bytes(data[82:87]) != b"FAT32":
            raise DiskError(
                f"{name} is no FAT32 file system", remedy="name a disk that goldnode built"
            )
        sector, per_cluster, reserved, copies = struct.unpack_from("<HBHB", data, 11)
        size, root = struct.unpack_from("<I4xI", data, 36)
        if sector not in (512, 1024, 2048, 4096) or not per_cluster or not copies or not size:
            raise self._damaged("its boot sector has impossible values")
        self.cluster: int = sector * per_cluster
        self.tables = tuple((reserved + copy * size) * sector for copy in range(copies))
        self.table_size = size * sector
        self.start: int = (reserved + copies * size) * sector
        self.root = root
        self.count = max(0, (len(data) - self.start) // self.cluster)

    def _damaged(self, what: str) -> DiskError:
        return DiskError(f"{self.name} is damaged: {what}", remedy="build the disk again")

    def chain(self, first: int) -> tuple[int, ...]:
        """Return the clusters of a file, given its first one."""
        clusters: list[int] = []
        # The upper four bits of an entry are reserved.
        at = first
        while 2 <= at < self.count + 2:
            clusters.append(at)
            if len(clusters) > self.count:
                raise self._damaged("a chain of clusters is a ring")
            entry: int = struct.unpack_from("<I", self.data, self.tables[0] + 4 * at)[0]
            at = entry & 0x0FFFFFFF
        if first and at < _END:
            raise self._damaged(f"a chain of clusters leads to {at}")
        return tuple(clusters)

    def offset(self, cluster: int) -> int:
        """Return the offset of a cluster in bytes."""
        return self.start + (cluster - 2) * self.cluster

    def content(self, entry: FatEntry) -> bytes:
        """Return the content of a file or directory."""
        whole = b"".join(
            bytes(self.data[self.offset(c) : self.offset(c) + self.cluster]) for c in entry.clusters
        )
        return whole if entry.directory else whole[: entry.size]

    def entries(self) -> Iterator[FatEntry]:
        """Yield the root directory (empty path) and everything below it, parents first, in on-disk order."""
        root = FatEntry(
            "",
            directory=True,
            attributes=0x10,
            size=0,
            created=0,
            written=0,
            accessed=0,
            clusters=self.chain(self.root),
        )
        yield root
        yield from self._below(root, 0)

    def _below(self, folder: FatEntry, depth: int) -> Iterator[FatEntry]:
        if depth > _DEPTH:
            raise self._damaged("its directories are a ring")
        data, long = self.content(folder), ""
        for at in range(0, len(data) - 31, 32):
            if data[at] == 0:
                return
            # Deleted entry.
            if data[at] == 0xE5:
                long = ""
                continue
            attributes = data[at + 11]
            # A long name entry: 13 characters of the name that follows, last part first.
            if attributes == 0x0F:
                part = (
                    data[at + 1 : at + 11] + data[at + 14 : at + 26] + data[at + 28 : at + 32]
                ).decode("utf-16-le", "replace")
                long = part.split("\0")[0].rstrip("\uffff") + long
                continue
            short = (
                data[at : at + 8].decode("ascii", "replace").rstrip(),
                data[at + 8 : at + 11].decode("ascii", "replace").rstrip(),
            )
            # Two flags from Windows NT that Linux and mtools also use: base name, or extension, is in lower
            # case.
            cased = [
                part.lower() if data[at + 12] & bit else part
                for part, bit in zip(short, (0x08, 0x10), strict=True)
            ]
            name, long = long or ".".join(part for part in cased if part), ""
            if attributes & 0x08 or name in (".", ".."):
                continue
            create_time, create_date, access, high, time, date, low, size = struct.unpack_from(
                "<HHHHHHHI", data, at + 14
            )
            entry = FatEntry(
                path=f"{folder.path}/{name}" if folder.path else name,
                directory=bool(attributes & 0x10),
                attributes=attributes,
                size=size,
                created=create_date << 16 | create_time,
                written=date << 16 | time,
                accessed=access,
                clusters=self.chain(high << 16 | low),
            )
            yield entry
            if entry.directory:
                yield from self._below(entry, depth + 1)
