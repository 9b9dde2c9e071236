"""Reader of DT_SONAME and DT_NEEDED of an ELF file, found through its program headers.

Like the dynamic loader, it ignores sections, because stripping can remove them. Layout: System V ABI,
chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14


@dataclass(frozen=True)
class Dynamic:
    """Names in the dynamic section of one file, in file order. Empty for a static or relocatable file."""

    soname: str = ""
    needed: tuple[str, ...] = ()


def dynamic(data: bytes | mmap.mmap) -> Dynamic:
    """Read the dynamic section of an ELF file.

    A truncated or malformed file yields an empty result: it is not validated here.
    """
    try:
        return _dynamic(data)
    except (struct.error, IndexError, ValueError):
        return Dynamic()


def _dynamic(data: bytes | mmap.mmap) -> Dynamic:
    if data[:4] != MAGIC:
        return Dynamic()
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    if wide:
        (start,) = struct.unpack_from(f"{order}Q", data, 32)
        size, count = struct.unpack_from(f"{order}HH", data, 54)
        header, entry = f"{order}IIQQQQQQ", struct.Struct(f"{order}qQ")
    else:
        (start,) = struct.unpack_from(f"{order}I", data, 28)
        size, count = struct.unpack_from(f"{order}HH", data, 42)
        header, entry = f"{order}IIIIIIII", struct.Struct(f"{order}iI")
    loads, place = [], None
    for number in range(count):
        row = struct.unpack_from(header, data, start + number * size)
        kind, offset, address, length = (
            (row[0], row[2], row[3], row[5]) if wide else (row[0], row[1], row[2], row[4])
        )
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_DYNAMIC:
            place = (offset, length)
    if place is None:
        return Dynamic()
    names: list[tuple[int, int]] = []
    table = None
    for tag, value in entry.iter_unpack(data[place[0] : place[0] + place[1] // entry.size * entry.size]):
        if tag == 0:
            break
        if tag == _DT_STRTAB:
            table = value
        elif tag in (_DT_NEEDED, _DT_SONAME):
            names.append((tag, value))
    # DT_STRTAB is a virtual address. Translate it to a file offset through the segment that contains it.
    base = next(
        (
            offset + table - address
            for address, offset, length in loads
            if table is not None and 0 <= table - address < length
        ),
        None,
    )
    if base is None:
        return Dynamic()
    read = [(tag, _text(data, base + value)) for tag, value in names]
    return Dynamic(
        next((text for tag, text in read if tag == _DT_SONAME), ""),
        tuple(text for tag, text in read if tag == _DT_NEEDED),
    )


def _text(data: bytes | mmap.mmap, offset: int) -> str:
    end = data.find(b"\0", offset)
    return data[offset : end if end >= 0 else offset].decode("utf-8", "replace")
