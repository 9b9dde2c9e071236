"""ELF reader: needed libraries, GPU device code, and the names of libraries that the file may dlopen.

It reads only headers and data, and never loads or runs anything. It reports unreadable parts in `fault`
instead of skipping them silently.

A string that another one ends with is no string of its own: linkers merge it into the longer one (`ld -O2` for
strings of C, every ld for names of symbols and sections). A name is therefore looked for at the end of strings.

Sources: elf.h (machine numbers). For
device code, the output of nvcc, hipcc and DPC++: `fatbinary_section.h` of the CUDA toolkit (section names,
magic 0x466243b1), and HIP's runtime (magic "HIPF").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from goldnode.core.elf import (
    MAGIC,
    PT_DYNAMIC,
    PT_INTERP,
    PT_LOAD,
    SHT_DYNSYM,
    Data,
    Header,
    Program,
    dynamic_table,
    header,
    programs,
    sections,
)
from goldnode.inspect import devicecode

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

# Limits on the names of one file.
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
# Replaces each byte that no name of a library has, so that the name begins after the last of them.
_IN_NAMES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+.-")
_APART = bytes(byte if byte in _IN_NAMES else 0 for byte in range(256))
_TAIL = re.compile(rb"(?:\.[0-9]+){0,4}\0")
# Rust and Go store strings without a terminating NUL, one after the other.
_PACKED = re.compile(rb"lib[A-Za-z0-9_+-]{2,60}\.so(?:\.[0-9]+){0,4}")
_RUST = re.compile(rb"/rustc/")

_SKIPPED = (b".eh_frame", b".eh_frame_hdr", b".gcc_except_table", b".dynstr")


@dataclass(frozen=True, slots=True)
class Elf:
    """Contents of one ELF file, or of another file that holds device code or names libraries.

    `machine` is a Debian architecture, `cubin`, `amdgpu`, or `machine N`; of other files one of OTHERS.
    `interpreter` is the loader that a program names; empty for a library and a static program.
    `needed` is DT_NEEDED in order. `device` lists the sections, symbols and records that hold or register GPU
    code, and kinds of embedded device code (`devicecode`). `device_bytes` is the total size of such sections.
    `strings` are names of shared libraries that strings in its data end with, and that are not in DT_NEEDED.
    If `loads` is set, the file imports dlopen and may load them. `end` is the offset at which the ELF file ends: what follows was
    appended. `fault` describes the parts that could not be read; empty if everything was.
    """

    machine: str = ""
    interpreter: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    device_bytes: int = 0
    strings: tuple[str, ...] = ()
    loads: bool = False
    end: int = 0
    fault: str = ""

    @property
    def is_elf(self) -> bool:
        """Return whether it is an ELF file or a static library."""
        return self.machine not in OTHERS


# Values of `machine` for files that are not ELF: device code as a whole, and Python source.
OTHERS = ("data", "python")


def read(data: Data) -> Elf:
    """Read an ELF file that begins with MAGIC. Never raise for its content."""
    try:
        return _read(data)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        return Elf(fault=f"it is damaged: {error}")


def read_archive(data: Data) -> Elf:
    """Read a static library. Detect only whether its objects have sections of device code."""
    members = {
        name.decode()
        for name in (b".nv_fatbin", b".hip_fatbin", b"__CLANG_OFFLOAD_BUNDLE__sycl")
        if data.find(name + b"\0") >= 0
    }
    return Elf(machine="archive", device=tuple(sorted(members)))


def _read(data: Data) -> Elf:
    size = len(data)
    if size < 52:
        return Elf(fault=f"it ends after {size} bytes, within the ELF header")
    head = header(data)
    if head is None:
        return Elf(fault="its ELF header has no known class or byte order")
    machine = MACHINES.get(head.machine, f"machine {head.machine}")
    faults: list[str] = []
    rows_of_programs = programs(data, head, faults)
    segments = [row for row in rows_of_programs if row.kind in (PT_LOAD, PT_DYNAMIC)]
    named = next((row for row in rows_of_programs if row.kind == PT_INTERP), None)
    loader = b""
    if named is not None:
        loader = bytes(data[named.start : named.start + min(named.length, 4096)])
    table = dynamic_table(data, head, segments, faults)
    soname, needed = table.soname or "", table.needed
    device: dict[str, None] = {}
    device_bytes = 0
    rows, names = sections(data, head, faults)
    # Names of sections one after the other, so that one search finds them all.
    titles = b"\0".join((b"", names, *(row[0] for row in rows)))
    if devices := dict.fromkeys(match[1] for match in _DEVICE.finditer(titles)):
        device.update((name.decode("ascii", "replace"), None) for name in devices)
        device_bytes = sum(length for name, _, _, _, length in rows if name in devices)
    loads = False
    if table.strings_size:
        start, end = table.strings, table.strings + table.strings_size
        # `lt_dlopen` loads a library too, and may hide `dlopen`.
        loads = any(data.find(symbol, start, end) >= 0 for symbol in (b"dlopen\0", b"dlmopen\0"))
        device.update(
            (symbol.decode(), None)
            for symbol in _REGISTERS
            if data.find(symbol + b"\0", start, end) >= 0
        )
    known = set(needed) | {soname}
    ranges = _data_ranges(segments, rows)
    strings = _strings(data, ranges, known)
    # A static program has no dynamic symbols, so dlopen cannot be excluded.
    runtime = loads or not table.strings_size
    device.update(dict.fromkeys(devicecode.embedded(data, ranges, runtime=runtime)))
    if loads and (
        b".go.buildinfo" in names or any(_RUST.search(data, start, end) for start, end in ranges)
    ):
        strings = tuple(dict.fromkeys((*strings, *_packed_strings(data, ranges, known))))
    for row in segments:
        if row.kind == PT_LOAD and row.flags & 2:  # PF_W
            device.update(
                (title, None)
                for magic, title in _WRAPPERS
                if data.find(magic, row.start, row.start + row.length) >= 0
            )
    return Elf(
        machine=machine,
        interpreter=loader.rstrip(b"\0").decode("utf-8", "surrogateescape"),
        soname=soname,
        needed=needed,
        device=tuple(device),
        device_bytes=device_bytes,
        strings=strings[:_NAMES],
        loads=loads,
        end=_end(head, segments, rows),
        fault="; ".join(dict.fromkeys(faults)),
    )


def _end(
    head: Header, segments: list[Program], sections: list[tuple[bytes, int, int, int, int]]
) -> int:
    """Return the offset after the last byte that a header, segment or section names."""
    return max(
        head.phoff + head.phentsize * head.phnum,
        head.shoff + head.shentsize * head.shnum,
        *(row.start + row.length for row in segments),
        *(at + size for _, _, _, at, size in sections),
    )


def _data_ranges(
    segments: list[Program], sections: list[tuple[bytes, int, int, int, int]]
) -> list[tuple[int, int]]:
    """Return start and end of the data that is loaded and is neither code nor a section of device code."""
    # Flag 2 is SHF_ALLOC, 4 is SHF_EXECINSTR.
    ranges = [
        (at, at + size)
        for name, kind, flags, at, size in sections
        if kind == 1 and flags & 6 == 2 and name not in _SKIPPED and not _DEVICE.match(b"\0" + name)
    ]
    if not ranges:
        loaded = [row for row in segments if row.kind == PT_LOAD]
        # Without section headers (stripped), the segments that are not executable hold the data.
        plain = [row for row in loaded if not row.flags & 1] or loaded
        ranges = [(row.start, row.start + row.length) for row in plain]
    return ranges


def _packed_strings(data: Data, ranges: list[tuple[int, int]], known: set[str]) -> tuple[str, ...]:
    """Return names of shared libraries in the packed strings of a Rust or Go program."""
    strings: dict[str, None] = {}
    for start, end in ranges:
        at = data.find(b".so", start, end)
        # A bound: a file full of such names must not fill the memory.
        while at >= 0 and len(strings) < _NAMES:
            window = bytes(data[max(start, at - _LONGEST) : min(at + 3 + 20, end)])
            middle = at - max(start, at - _LONGEST)
            match = _PACKED.match(window, max(window.rfind(b"lib", 0, middle), 0))
            if (
                match is not None
                and match.end() >= middle + 3
                and (text := match[0].decode()) not in known
            ):
                strings[text] = None
            at = data.find(b".so", at + 3, end)
    return tuple(strings)


def _strings(data: Data, ranges: list[tuple[int, int]], known: set[str]) -> tuple[str, ...]:
    """Return names of shared libraries that a string in the data is, or ends with.

    After NUL or a slash any name counts. In the middle of a string only the part from `lib` on does, because
    sentences end with other words that look like a file.
    """
    strings: dict[str, None] = {}
    for start, end in ranges:
        at = data.find(b".so", start, end)
        while at >= 0:
            after = data[at + 3] if at + 3 < end else 1
            # NUL, or the dot of a version.
            if after in (0, 46):
                tail = _TAIL.match(data[at + 3 : min(at + 3 + 48, end)])
                if tail is not None:
                    begin = max(start, at - _LONGEST)
                    names = _names_at_end(
                        bytes(data[begin : at + 3 + tail.end() - 1]), begin == start
                    )
                    strings.update((name, None) for name in names if name not in known)
                    if len(strings) >= _NAMES:
                        return tuple(strings)
            at = data.find(b".so", at + 3, end)
    return tuple(strings)


def _names_at_end(text: bytes, is_whole: bool) -> Iterator[str]:
    """Return the names of libraries that end where `text` does; `is_whole` if nothing precedes it."""
    word = text.translate(_APART).rpartition(b"\0")[2]
    before = text[-len(word) - 1 : -len(word)]
    starts = [0] if before in (b"\0", b"/") or (is_whole and not before) else []
    at = word.find(b"lib")
    while at >= 0:
        if at not in starts:
            starts.append(at)
        at = word.find(b"lib", at + 1)
    return (word[at:].decode() for at in starts if _LIBRARY.match(word, at))


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
    versions = set()
    for match in _STORES.finditer(data):
        value = int.from_bytes(match[1], "little")
        # CUDA 9.0 to 39.x, with a minor version below 20: other constants hardly look like that.
        if 9000 <= value < 40000 and value % 10 == 0 and value % 1000 < 200:
            versions.add(value)
    if len(versions) == 1 and (value := versions.pop()):
        return f"{value // 1000}.{value % 1000 // 10}"
    return None


def nccl_version(data: Data) -> str | None:
    """Return the version `X.Y.Z` of an NCCL library, from the line it logs at startup."""
    versions = {match[1] for match in _NCCL.finditer(data)}
    return versions.pop().decode() if len(versions) == 1 else None


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
    parts = {
        int.from_bytes(match[1] or match[2], "little")
        for match in _LOADS.finditer(data[start : start + min(size, 4096)])
    }
    # Multiples of 32 KiB are sizes of stack buffers.
    fitting = {value for value in parts if value // step == major and value % 0x8000}
    if len(fitting) == 1 and (value := fitting.pop()):
        return f"{major}.{value % step // 100}.{value % 100}"
    return None


def symbol(data: Data, name: bytes) -> tuple[int, int] | None:
    """Return file offset and size of a function in the dynamic symbol table; None if it is not there.

    Only little-endian 64-bit files are supported.
    """
    try:
        if data[:4] != MAGIC or data[4] != 2 or data[5] != 1:
            return None
        head = header(data)
        if head is None:
            return None
        segments = programs(data, head, [])
        strings = dynamic_table(data, head, segments, [])
        table = next(
            (
                (at, size)
                for _, kind, _, at, size in sections(data, head, [])[0]
                if kind == SHT_DYNSYM
            ),
            None,
        )
        if table is None or not strings.strings_size:
            return None
        # Elf64_Sym: st_name, st_info, st_other, st_shndx, st_value, st_size.
        rows = struct.iter_unpack("<IBBHQQ", data[table[0] : table[0] + table[1] - table[1] % 24])
        for index, _, _, section, value, size in rows:
            at = strings.strings + index
            # Section 0 (SHN_UNDEF) is an import.
            if section and data[at : at + len(name) + 1] == name + b"\0":
                address = (
                    row.start + value - row.address
                    for row in segments
                    if row.kind == PT_LOAD and row.address <= value < row.address + row.length
                )
                return (next(address), size)
    except (struct.error, ValueError, IndexError, StopIteration):
        return None
    return None
