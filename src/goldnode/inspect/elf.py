"""ELF reader: needed libraries, GPU device code, and the names of libraries that the file may dlopen.

It reads only headers and data, and never loads or runs anything. Offsets come from a file that may be
hostile. The reader checks each one against the file's length and limits the size of every table. It reports
unreadable parts in `fault` instead of skipping them silently.

Sources: the System V ABI (ELF header, program headers, dynamic section) and elf.h (machine numbers). For
device code, the output of nvcc, hipcc and DPC++: `fatbinary_section.h` of the CUDA toolkit (section names,
magic 0x466243b1), and HIP's runtime (magic "HIPF").
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

Data = bytes | mmap.mmap

MAGIC = b"\x7fELF"
ARCHIVE = b"!<arch>\n"

# Values of e_machine for hosts, and for code that runs only on a GPU.
MACHINES = {
    3: "i386",
    40: "arm",
    62: "amd64",
    183: "arm64",
    243: "riscv64",
    21: "ppc64el",
    22: "s390x",
    190: "cubin",
    224: "amdgpu",
}

# Limits on the tables and names of one file, so that a hostile file cannot exhaust time or memory.
_SECTIONS = 1 << 16
_SEGMENTS = 1 << 10
_DYNAMIC = 1 << 14
_NAMES = 256
_LONGEST = 128

# Prefixes of the sections that hold or register device code. The policy maps section names to backends.
_DEVICE = re.compile(
    rb"\0((?:\.nv|__nv|\.hip|__hip|__CLANG_OFFLOAD|\.llvm\.offloading|omp_offloading|\.omp_offloading|__sycl|\.tgtimg)[^\0]{0,80})"
)
_REGISTERS = (b"__cudaRegisterFatBinary", b"__hipRegisterFatBinary", b"__sycl_register_lib")
# First eight bytes of the record through which code finds its fat binary, in writable data. The record
# survives renaming and stripping of sections.
_WRAPPERS = (
    (b"\xb1\x43\x62\x46\x01\x00\x00\x00", "nvFatBin record"),
    (b"\x46\x50\x49\x48\x01\x00\x00\x00", "hipFatBin record"),
)
_LIBRARY = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_+.-]{2,79}\.so(?:\.[0-9]+){0,4}\Z")
_TAIL = re.compile(rb"(?:\.[0-9]+){0,4}\0")

_SKIPPED = (b".eh_frame", b".eh_frame_hdr", b".gcc_except_table", b".dynstr")


@dataclass(frozen=True, slots=True)
class Elf:
    """Contents of one ELF file.

    `machine` is a Debian architecture, `cubin`, `amdgpu`, or `machine N`. `needed` is DT_NEEDED in order.
    `device` lists the sections, symbols and records that hold or register GPU code, and `device_bytes` is the
    total size of such sections. `strings` are names of shared libraries in its data that are not in
    DT_NEEDED. If `loads` is set, the file imports dlopen and may load them. `fault` describes the parts that
    could not be read; empty if everything was.
    """

    machine: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    device_bytes: int = 0
    strings: tuple[str, ...] = ()
    loads: bool = False
    fault: str = ""


def read(data: Data) -> Elf:
    """Read an ELF file that begins with MAGIC. Never raise for its content."""
    try:
        return _read(data)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        return Elf(fault=f"it is damaged: {error}")


def read_archive(data: Data) -> Elf:
    """Read a static library. Detect only whether its objects have sections of device code."""
    found = {
        name.decode()
        for name in (b".nv_fatbin", b".hip_fatbin", b"__CLANG_OFFLOAD_BUNDLE__sycl")
        if data.find(name + b"\0") >= 0
    }
    return Elf(machine="archive", device=tuple(sorted(found)))


def _read(data: Data) -> Elf:
    size = len(data)
    if size < 52:
        return Elf(fault=f"it ends after {size} bytes, within the ELF header")
    head = _header(data)
    if head is None:
        return Elf(fault="its ELF header has no known class or byte order")
    machine = MACHINES.get(head.machine, f"machine {head.machine}")
    faults: list[str] = []
    segments = _segments(data, head, faults)
    soname, needed, strtab, strsize = _dynamic(data, head, segments, faults)
    device: dict[str, None] = {}
    device_bytes = 0
    sections, names = _sections(data, head, faults)
    if found := dict.fromkeys(match[1] for match in _DEVICE.finditer(b"\0" + names)):
        device.update((name.decode("ascii", "replace"), None) for name in found)
        device_bytes = sum(length for name, _, _, _, length in sections if name in found)
    loads = False
    if strsize:
        end = strtab + strsize
        loads = data.find(b"\0dlopen\0", strtab, end) >= 0
        device.update(
            (symbol.decode(), None) for symbol in _REGISTERS if data.find(symbol + b"\0", strtab, end) >= 0
        )
    for _, flags, offset, length in segments:
        if flags & 2:  # PF_W
            device.update(
                (title, None) for magic, title in _WRAPPERS if data.find(magic, offset, offset + length) >= 0
            )
    return Elf(
        machine=machine,
        soname=soname,
        needed=needed,
        device=tuple(device),
        device_bytes=device_bytes,
        strings=_strings(data, segments, sections, set(needed) | {soname}),
        loads=loads,
        fault="; ".join(dict.fromkeys(faults)),
    )


class Dynamic(NamedTuple):
    """Names in the dynamic section of one file. Empty for a static or relocatable file."""

    soname: str = ""
    needed: tuple[str, ...] = ()


def dynamic(data: Data) -> Dynamic:
    """Read DT_SONAME and DT_NEEDED of an ELF file through its program headers, as the dynamic loader does.

    A truncated or malformed file yields an empty result: it is not validated here.
    """
    try:
        head = _header(data) if data[:4] == MAGIC else None
        if head is None:
            return Dynamic()
        soname, needed, _, _ = _dynamic(data, head, _segments(data, head, []), [])
    except (struct.error, ValueError, IndexError, OverflowError):
        return Dynamic()
    return Dynamic(_printable(soname), tuple(_printable(name) for name in needed))


def _printable(name: str) -> str:
    """Replace bytes that are not UTF-8, because evidence is written as UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class _Header(NamedTuple):
    """The ELF header. `order` is the byte order for `struct`, `wide` means 64-bit."""

    order: str
    wide: bool
    machine: int
    phoff: int
    shoff: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


def _header(data: Data) -> _Header | None:
    """Read the ELF header; None for an unknown class or byte order."""
    wide, order = data[4] == 2, {1: "<", 2: ">"}.get(data[5])
    if data[4] not in (1, 2) or order is None or (wide and len(data) < 64):
        return None
    (machine,) = struct.unpack_from(order + "H", data, 18)
    offsets = struct.unpack_from(order + ("QQ" if wide else "II"), data, 32 if wide else 28)
    sizes = struct.unpack_from(order + "5H", data, 54 if wide else 42)
    return _Header(order, wide, machine, *offsets, *sizes)


def _segments(data: Data, head: _Header, faults: list[str]) -> list[tuple[int, int, int, int]]:
    """Return address, flags, file offset and length of every PT_LOAD segment.

    PT_DYNAMIC has flags -1. Lengths are limited to the end of the file.
    """
    found: list[tuple[int, int, int, int]] = []
    offset, entry, count, wide = head.phoff, head.phentsize, head.phnum, head.wide
    shape = struct.Struct(head.order + ("IIQQQQQQ" if wide else "8I"))
    if not count:
        return found
    if entry != shape.size or count > _SEGMENTS or offset + entry * count > len(data):
        faults.append(f"its {count} program headers are not within it")
        return found
    for row in shape.iter_unpack(data[offset : offset + entry * count]):
        kind, flags, start, address, length = (
            (row[0], row[1], row[2], row[3], row[5]) if wide else (row[0], row[6], row[1], row[2], row[4])
        )
        if kind not in (1, 2):
            continue
        if start + length > len(data):
            faults.append("it is cut off: a segment reaches past its end")
            length = max(0, len(data) - start)
        found.append((address, flags if kind == 1 else -1, start, length))
    return found


def _dynamic(
    data: Data, head: _Header, segments: list[tuple[int, int, int, int]], faults: list[str]
) -> tuple[str, tuple[str, ...], int, int]:
    """Return SONAME, DT_NEEDED, and offset and size of the dynamic string table (0, 0 without one)."""
    place = next(((start, length) for _, flags, start, length in segments if flags == -1), None)
    if place is None:
        return "", (), 0, 0
    shape = struct.Struct(head.order + ("QQ" if head.wide else "II"))
    start, length = place
    length = min(length - length % shape.size, _DYNAMIC * shape.size)
    soname, table, table_size = -1, -1, -1
    needed: list[int] = []
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
            (at + table - address, address + size - table)
            for address, flags, at, size in segments
            if flags >= 0 and address <= table < address + size
        ),
        (None, 0),
    )
    if offset is None:
        if needed:
            faults.append("its dynamic string table is not within it")
        return "", (), 0, 0
    # Without DT_STRSZ, the table ends with its segment at the latest.
    table_size = max(0, min(room if table_size < 0 else table_size, len(data) - offset))

    def name(index: int) -> str:
        at = offset + index
        end = data.find(b"\0", at, min(at + 4096, offset + table_size)) if index < table_size else -1
        if end < 0:
            faults.append("a name in its dynamic section is not within its string table")
            return ""
        return data[at:end].decode("utf-8", "surrogateescape")

    names = tuple(dict.fromkeys(text for index in needed[:4096] if (text := name(index))))
    return (name(soname) if soname >= 0 else ""), names, offset, table_size


def _sections(
    data: Data, head: _Header, faults: list[str]
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
    found = []
    for row in rows:
        index, kind, flags, at, size = row[0], row[1], row[2], row[4], row[5]
        if kind in (0, 8):  # SHT_NULL, SHT_NOBITS
            continue
        if at + size > len(data):
            faults.append("it is cut off: a section reaches past its end")
            continue
        end = names.find(b"\0", index)
        found.append((names[index:end] if 0 <= index < end else b"", kind, flags, at, size))
    return found, names


def _strings(
    data: Data,
    segments: list[tuple[int, int, int, int]],
    sections: list[tuple[bytes, int, int, int, int]],
    known: set[str],
) -> tuple[str, ...]:
    """Return names of shared libraries in the data that follow NUL or a slash, and end with NUL."""
    # Flag 2 is SHF_ALLOC, 4 is SHF_EXECINSTR: search data that is loaded, not code.
    ranges = [
        (at, at + size)
        for name, kind, flags, at, size in sections
        if kind == 1 and flags & 6 == 2 and name not in _SKIPPED and not _DEVICE.match(b"\0" + name)
    ]
    if not ranges:
        plain = [(at, at + size) for _, flags, at, size in segments if flags >= 0 and not flags & 1]
        ranges = plain or [(at, at + size) for _, flags, at, size in segments if flags >= 0]
    found: dict[str, None] = {}
    for start, end in ranges:
        at = data.find(b".so", start, end)
        while at >= 0:
            after = data[at + 3] if at + 3 < end else 1
            if after in (0, 46):
                tail = _TAIL.match(data[at + 3 : min(at + 3 + 48, end)])
                if tail is not None:
                    window = data[max(start, at - _LONGEST) : at + 3 + tail.end() - 1]
                    name = window[max(window.rfind(b"\0"), window.rfind(b"/")) + 1 :]
                    if _LIBRARY.match(name) and (text := name.decode()) not in known:
                        found[text] = None
                        if len(found) >= _NAMES:
                            return tuple(found)
            at = data.find(b".so", at + 3, end)
    return tuple(found)


# movl $imm32,(%rdi): a compiler stores a constant through the first argument of a function like this.
_STORES = re.compile(rb"\xc7\x07(..)\x00\x00", re.DOTALL)
# mov $imm32,%r32 and mov $imm32,%r64.
_LOADS = re.compile(rb"[\xb8-\xbf](....)|\x48\xc7[\xc0-\xc7](....)", re.DOTALL)
_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda(\d+\.\d+)")


def cudart_version(data: Data) -> str | None:
    """Return the version `X.Y` of a CUDA runtime library for amd64, without running it.

    This is the number that cudaRuntimeGetVersion returns. The function stores 1000*X + 10*Y through its only
    argument. The libraries of 11.8 to 13.0 contain such a store for one version only. Return None unless
    exactly one such value is found.
    """
    found = set()
    for match in _STORES.finditer(data):
        value = int.from_bytes(match[1], "little")
        if 9000 <= value < 40000 and value % 10 == 0 and value % 1000 < 200:
            found.add(value)
    return f"{value // 1000}.{value % 1000 // 10}" if len(found) == 1 and (value := found.pop()) else None


def nccl_version(data: Data) -> str | None:
    """Return the version `X.Y.Z` of an NCCL library, from the line it logs at startup."""
    found = {match[1] for match in _NCCL.finditer(data)}
    return found.pop().decode() if len(found) == 1 else None


def cudnn_version(data: Data, major: int) -> str | None:
    """Return the version `X.Y.Z` of a cuDNN library for amd64; X is `major`.

    The library must define cudnnGetVersion (libcudnn_graph of 9, libcudnn_ops_infer of 8). That function
    loads its return value as a constant: 10000*X + 100*Y + Z since cuDNN 9, 1000*X + 100*Y + Z before
    (cudnn_version.h). Return None unless exactly one such constant is found.
    """
    place = symbol(data, b"cudnnGetVersion")
    if place is None:
        return None
    step = 10000 if major >= 9 else 1000
    start, size = place
    found = {
        int.from_bytes(match[1] or match[2], "little")
        for match in _LOADS.finditer(data[start : start + min(size, 4096)])
    }
    # Multiples of 32 KiB are sizes of stack buffers.
    fitting = {value for value in found if value // step == major and value % 0x8000}
    return (
        f"{major}.{value % step // 100}.{value % 100}"
        if len(fitting) == 1 and (value := fitting.pop())
        else None
    )


def symbol(data: Data, name: bytes) -> tuple[int, int] | None:
    """Return file offset and size of a function in the dynamic symbol table; None if it is not there.

    Only little-endian 64-bit files are supported.
    """
    try:
        if data[:4] != MAGIC or data[4] != 2 or data[5] != 1:
            return None
        head = _header(data)
        if head is None:
            return None
        segments = _segments(data, head, [])
        _, _, strtab, strsize = _dynamic(data, head, segments, [])
        sections, _ = _sections(data, head, [])
        table = next(((at, size) for _, kind, _, at, size in sections if kind == 11), None)  # SHT_DYNSYM
        if table is None or not strsize:
            return None
        rows = struct.iter_unpack("<IBBHQQ", data[table[0] : table[0] + table[1] - table[1] % 24])
        for index, _, _, section, value, size in rows:
            at = strtab + index
            if section and data[at : at + len(name) + 1] == name + b"\0":
                found = (
                    start + value - address
                    for address, flags, start, length in segments
                    if flags >= 0 and address <= value < address + length
                )
                return (next(found), size)
    except (struct.error, ValueError, IndexError, StopIteration):
        return None
    return None
