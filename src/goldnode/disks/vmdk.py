"""Writer of a stream-optimised VMDK, the form in which vSphere and EC2 take a disk.

The structure is that of VMware's "Virtual Disk Format 5.0", section "Stream-Optimized Compressed Sparse
Extents": grains of 64 KiB in zlib, each behind a marker; after every 512 grains their table; at the end the
directory of the tables, the footer that names it, and a marker without content. qemu-img (7.2 and 10.0) writes
the directory at the beginning, without tables' markers and without a footer. 7-Zip 26.02 does not open that, and the
file contains the name that it was written under, and a random number.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SECTOR = 512
GRAIN = 128  # sectors
TABLE = 512  # entries of one grain table
LEVEL = 6  # of zlib; it determines the bytes
_DESCRIPTOR = 20  # sectors
_OVERHEAD = 128  # sectors before the first grain
_AT_END = 0xFFFFFFFFFFFFFFFF  # the directory's place is in the footer
_FLAGS = 1 | 1 << 16 | 1 << 17  # line ends are tested; grains are compressed; markers
_GRAIN_TABLE, _GRAIN_DIRECTORY, _FOOTER = 1, 2, 3
_BLOCK = GRAIN * SECTOR


def write(raw: Path, out: IO[bytes], *, identifier: int) -> None:
    """Write the disk `raw` to `out`, from its current position on.

    `identifier` (32 bits) is the content ID: readers that cache by it need another one for another content.
    The size of `raw` must be a multiple of 512 bytes.
    """
    begin = out.tell()
    size = raw.stat().st_size
    capacity = size // SECTOR
    out.write(_header(capacity, _AT_END))
    out.write(_descriptor(capacity, identifier).ljust(_DESCRIPTOR * SECTOR, b"\0"))
    out.write(bytes((_OVERHEAD - 1 - _DESCRIPTOR) * SECTOR))
    tables: list[int] = [0] * -(-size // (_BLOCK * TABLE))
    current: tuple[int, list[int]] | None = None

    def sector() -> int:
        return (out.tell() - begin) // SECTOR

    def close(number: int, entries: list[int]) -> None:
        tables[number] = _marked(out, struct.pack(f"<{TABLE}I", *entries), _GRAIN_TABLE, begin)

    for grain, data in _grains(raw):
        number, entry = divmod(grain, TABLE)
        if current is not None and current[0] != number:
            close(*current)
            current = None
        if current is None:
            current = (number, [0] * TABLE)
        current[1][entry] = sector()
        packed = zlib.compress(data, LEVEL)
        out.write(_padded(struct.pack("<QI", grain * GRAIN, len(packed)) + packed))
    if current is not None:
        close(*current)
    directory = _marked(
        out, _padded(struct.pack(f"<{len(tables)}I", *tables)), _GRAIN_DIRECTORY, begin
    )
    _marked(out, _header(capacity, directory), _FOOTER, begin)
    out.write(bytes(SECTOR))  # the marker of the end


def _grains(raw: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each grain that is not zero. Holes of the file are not read."""
    with raw.open("rb", buffering=0) as file:
        position, size = 0, raw.stat().st_size
        while position < size:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:  # ENXIO: nothing but a hole up to the end
                return
            position -= position % _BLOCK
            file.seek(position)
            data = file.read(_BLOCK)
            if data.count(0) != len(data):
                yield position // _BLOCK, data.ljust(_BLOCK, b"\0")
            position += _BLOCK


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // SECTOR) * SECTOR, b"\0")


def _marked(out: IO[bytes], data: bytes, kind: int, begin: int) -> int:
    """Write whole sectors behind their marker. Return the sector of the first of them."""
    out.write(_padded(struct.pack("<QII", len(data) // SECTOR, 0, kind)))
    where = (out.tell() - begin) // SECTOR
    out.write(data)
    return where


def _header(capacity: int, directory: int) -> bytes:
    return _padded(
        struct.pack(
            "<4sIIQQQQIQQQB4sH",
            *(b"KDMV", 3, _FLAGS, capacity, GRAIN, 1, _DESCRIPTOR, TABLE),
            *(0, directory, _OVERHEAD, 0, b"\n \r\n", 1),
        )
    )


def _descriptor(capacity: int, identifier: int) -> bytes:
    # The geometry of a SCSI disk. Hardware version 7 is the lowest that vSphere 4.0 wrote.
    cylinders = min(capacity // (255 * 63), 65535)
    return (
        "# Disk DescriptorFile\n"
        f"version=1\nCID={identifier:08x}\nparentCID=ffffffff\n"
        'createType="streamOptimized"\n\n# Extent description\n'
        f'RW {capacity} SPARSE "disk.vmdk"\n\n# The Disk Data Base\n#DDB\n\n'
        'ddb.adapterType = "lsilogic"\n'
        f'ddb.geometry.cylinders = "{cylinders}"\n'
        'ddb.geometry.heads = "255"\nddb.geometry.sectors = "63"\n'
        'ddb.virtualHWVersion = "7"\n'
    ).encode()
