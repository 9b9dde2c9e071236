"""Structure of ELF files: headers, the dynamic section and the section table, as bytes and never executed.

Offsets come from a file that may be hostile: each is checked against the file's length, and the size of every
table is limited. Functions with the argument `faults` add what they could not read to it.

Sources: the System V ABI (ELF header, program headers, dynamic section).
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

Data = bytes | mmap.mmap

MAGIC = b"\x7fELF"
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_PROPERTY = 1, 2, 3, 4, 0x6474E553
ET_DYN = 3
SHT_DYNSYM = 11

# Limits on the tables of one file, so that a hostile file cannot exhaust time or memory.
_SECTIONS = 1 << 16
_SEGMENTS = 1 << 10
_DYNAMIC = 1 << 14


class Header(NamedTuple):
    """The ELF header. `order` is the byte order for `struct`, `wide` means 64-bit."""

    order: str
    wide: bool
    kind: int
    machine: int
    phoff: int
    shoff: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


def header(data: Data) -> Header | None:
    """Read the ELF header; None for an unknown class or byte order."""
    wide, order = data[4] == 2, {1: "<", 2: ">"}.get(data[5])
    if data[4] not in (1, 2) or order is None or (wide and len(data) < 64):
        return None
    kind, machine = struct.unpack_from(order + "HH", data, 16)
    offsets = struct.unpack_from(order + ("QQ" if wide else "II"), data, 32 if wide else 28)
    sizes = struct.unpack_from(order + "5H", data, 54 if wide else 42)
    return Header(order, wide, kind, machine, *offsets, *sizes)


class Program(NamedTuple):
    """One program header: type, flags, virtual address, offset and length in the file."""

    kind: int
    flags: int
    address: int
    start: int
    length: int


def programs(data: Data, head: Header, faults: list[str]) -> list[Program]:
    """Return the program headers. Lengths are limited to the end of the file."""
    headers: list[Program] = []
    offset, entry, count, wide = head.phoff, head.phentsize, head.phnum, head.wide
    # Elf64_Phdr has p_flags second, Elf32_Phdr has them last but one.
    shape = struct.Struct(head.order + ("IIQQQQQQ" if wide else "8I"))
    if not count:
        return headers
    # Numbers of a damaged or hostile file: a bound before anything is read by them.
    if entry != shape.size or count > _SEGMENTS or offset + entry * count > len(data):
        faults.append(f"its {count} program headers are not within it")
        return headers
    for row in shape.iter_unpack(data[offset : offset + entry * count]):
        if wide:
            kind, flags, start, address, length = (row[0], row[1], row[2], row[3], row[5])
        else:
            kind, flags, start, address, length = (row[0], row[6], row[1], row[2], row[4])
        if start + length > len(data):
            if kind in (PT_LOAD, PT_DYNAMIC):
                faults.append("it is cut off: a segment reaches past its end")
            length = max(0, len(data) - start)
        headers.append(Program(kind, flags, address, start, length))
    return headers


class DynamicTable(NamedTuple):
    """The dynamic section: SONAME (None without one) and DT_NEEDED, and the place of its strings (0, 0 without)."""

    soname: str | None = None
    needed: tuple[str, ...] = ()
    strings: int = 0
    strings_size: int = 0


def dynamic_table(data: Data, head: Header, rows: list[Program], faults: list[str]) -> DynamicTable:
    """Read the dynamic section."""
    place = next(((row.start, row.length) for row in rows if row.kind == PT_DYNAMIC), None)
    if place is None:
        return DynamicTable()
    shape = struct.Struct(head.order + ("QQ" if head.wide else "II"))
    start, length = place
    length = min(length - length % shape.size, _DYNAMIC * shape.size)
    soname, table, table_size = -1, -1, -1
    needed: list[int] = []
    # 0 DT_NULL, 1 DT_NEEDED, 5 DT_STRTAB, 10 DT_STRSZ, 14 DT_SONAME.
    for tag, value in shape.iter_unpack(data[start : start + length]):
        if tag == 0:
            break
        if tag == 1:
            needed.append(value)
        elif tag == 5:
            table = value
        elif tag == 10:
            table_size = value
        elif tag == 14:
            soname = value
    # DT_STRTAB is a virtual address: translate it through the segment that contains it.
    offset, room = next(
        (
            (row.start + table - row.address, row.address + row.length - table)
            for row in rows
            if row.kind == PT_LOAD and row.address <= table < row.address + row.length
        ),
        (None, 0),
    )
    if offset is None:
        if needed:
            faults.append("its dynamic string table is not within it")
        return DynamicTable()
    # Without DT_STRSZ, the table ends with its segment at the latest.
    table_size = max(0, min(room if table_size < 0 else table_size, len(data) - offset))

    def name(index: int) -> str:
        at = offset + index
        end = (
            data.find(b"\0", at, min(at + 4096, offset + table_size)) if index < table_size else -1
        )
        if end < 0:
            faults.append("a name in its dynamic section is not within its string table")
            return ""
        return data[at:end].decode("utf-8", "surrogateescape")

    names = tuple(dict.fromkeys(text for index in needed[:4096] if (text := name(index))))
    return DynamicTable(name(soname) if soname >= 0 else None, names, offset, table_size)


def sections(
    data: Data, head: Header, faults: list[str]
) -> tuple[list[tuple[bytes, int, int, int, int]], bytes]:
    """Return the sections whose bytes are in the file, and the table of section names.

    Each section is a tuple of name, type, flags, offset and length. The loader needs no sections, so a file
    without them has no fault. A table outside the file is one.
    """
    offset, entry, count, names_index = head.shoff, head.shentsize, head.shnum, head.shstrndx
    shape = struct.Struct(head.order + ("IIQQQQIIQQ" if head.wide else "10I"))
    if not offset:
        return [], b""
    if entry != shape.size or offset + shape.size > len(data):
        faults.append("its section table is not within it")
        return [], b""
    first = shape.unpack_from(data, offset)
    # With too many sections for the header, the real values are in section 0 (System V ABI, chapter 4).
    count = count or first[5]
    names_index = first[6] if names_index == 0xFFFF else names_index
    if count > _SECTIONS or offset + entry * count > len(data) or names_index >= count:
        faults.append(f"its table of {count} sections is not within it, or too large")
        return [], b""
    rows = list(shape.iter_unpack(data[offset : offset + entry * count]))
    start, length = rows[names_index][4:6]
    names = bytes(data[start : start + min(length, 1 << 22)])
    headers = []
    for row in rows:
        index, kind, flags, at, size = row[0], row[1], row[2], row[4], row[5]
        if kind in (0, 8):  # SHT_NULL, SHT_NOBITS
            continue
        if at + size > len(data):
            faults.append("it is cut off: a section reaches past its end")
            continue
        end = names.find(b"\0", index)
        headers.append((names[index:end] if 0 <= index < end else b"", kind, flags, at, size))
    return headers, names


class Dynamic(NamedTuple):
    """Names in the dynamic section of one file. Empty for a static or relocatable file."""

    soname: str = ""
    needed: tuple[str, ...] = ()


def dynamic(data: Data) -> Dynamic:
    """Read DT_SONAME and DT_NEEDED of an ELF file through its program headers, as the dynamic loader does.

    A truncated or malformed file yields an empty result: it is not validated here.
    """
    try:
        head = header(data) if data[:4] == MAGIC else None
        if head is None:
            return Dynamic()
        table = dynamic_table(data, head, programs(data, head, []), [])
    except (struct.error, ValueError, IndexError, OverflowError):
        return Dynamic()
    return Dynamic(_printable(table.soname or ""), tuple(_printable(name) for name in table.needed))


def _printable(name: str) -> str:
    """Replace bytes that are not UTF-8, because evidence is written as UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
