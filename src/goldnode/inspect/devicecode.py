"""Detection of device code by its content: files that are it as a whole, and code that other data embeds.

A magic number alone is never enough. It must be followed by a plausible header, because libraries that read
a format hold its magic number too (LLVM, cuda-gdb).

Sources: `fatBinaryHeader` of the CUDA toolkit (fat binary), the documentation of clang-offload-bundler and
`CompressedOffloadBundle` in LLVM (bundles), the PTX ISA (first directives of a module), the SPIR-V
specification (section 2.3 and capability Kernel), elf.h (machines of cubins and AMD's code objects), and the
strings of `libcudart_static.a` of CUDA 12.9 and 13.5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from goldnode.core.elf import Data

FATBIN = "fat binary"
CUBIN = "cubin"
AMDGPU = "amdgpu code object"
BUNDLE = "bundle of device code"
PTX = "PTX"
SPIRV = "SPIR-V kernel"
CUDART = "statically linked CUDA runtime"

# Bytes of the start of a file that decide what it is: a tar has its magic number at 257.
HEAD = 512
# PTX may begin with a licence.
TEXT_HEAD = 16 << 10

_FATBIN = b"\x50\xed\x55\xba\x01\x00\x10\x00"  # magic 0xBA55ED50, version 1, header of 16 bytes
# For these, a regular expression finds a literal faster than `find` of a memory map.
_FATBIN_EMBEDDED = re.compile(re.escape(_FATBIN))
# Kinds of the entries of a fat binary: PTX and machine code.
_ENTRY_PTX = 1
_ENTRIES = (_ENTRY_PTX, 2)
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_BUNDLE_EMBEDDED = re.compile(rb"__CLANG_OFFLOAD_BUNDLE__[^\0]")
_COMPRESSED = b"CCOB"
_COMPRESSED_EMBEDDED = re.compile(rb"CCOB[\1-\3]\0[\0\1]\0")
_SPIRV = {b"\x03\x02\x23\x07": "<", b"\x07\x23\x02\x03": ">"}
_SPIRV_EMBEDDED = re.compile(rb"\x03\x02\x23\x07\x00[\x00-\x06]\x01\x00")
_PTX = re.compile(rb"\.version[ \t]+\d+\.\d+\s+(?://[^\n]*\s+)*\.target[ \t]+sm_\d+")
_PTX_TARGET = re.compile(rb"\.target[ \t]sm_")
_COMMENTS = re.compile(rb"(?:\s+|//[^\n]*\n|/\*.*?\*/)*", re.DOTALL)
_ELF = re.compile(rb"\x7fELF\x02\x01")
_ID = re.compile(rb"(?P<kind>host|hipv?4?|openmp|sycl)-(?P<triple>[A-Za-z0-9_.-]{3,})")
# Bytes from the start of a compressed bundle to its payload, by version of its header.
_PAYLOAD = {1: 20, 2: 24, 3: 32}
_DRIVER_TOO_OLD = b"CUDA driver version is insufficient for CUDA runtime version\0"
_ASKS_DRIVER = (b"cuGetExportTable\0", b"cuGetProcAddress")
_DRIVER = b"libcuda.so"

_TEXT_STARTS = (b".", b"/", b"\n", b"\r", b" ", b"\t")
# The first bytes of every file that `of_file` may recognise, in addition to text.
MAGICS = frozenset((_FATBIN[:4], _BUNDLE[:4], _COMPRESSED, *_SPIRV))


def may_be_text(head: bytes) -> bool:
    """Return whether a file that begins with `head` may be PTX: it starts with a directive or a comment."""
    return head[:1] in _TEXT_STARTS and head.lstrip().startswith((b".version", b"//", b"/*"))


def of_file(head: bytes) -> str:
    """Return the kind of device code that a file is as a whole, from its first bytes; `""` if it is none.

    ELF files are not judged here: their reader knows the machine. `head` has TEXT_HEAD bytes if
    `may_be_text`, otherwise HEAD.
    """
    if head.startswith(_FATBIN):
        return FATBIN
    if head[:4] in _SPIRV:
        return SPIRV if _is_kernel(head, 0) else ""
    if head.startswith((_BUNDLE, _COMPRESSED)):
        return _bundle(head, 0)
    start = _COMMENTS.match(head)
    return PTX if start is not None and _PTX.match(head, start.end()) else ""


def embedded(data: Data, ranges: Sequence[tuple[int, int]], *, runtime: bool) -> Iterator[str]:
    """Return the kinds of device code in these ranges of a file.

    `runtime`: also detect a statically linked CUDA runtime, which needs dlopen or a fully static program.
    """
    for start, end in ranges:
        if _FATBIN_EMBEDDED.search(data, start, end):
            yield FATBIN
        yield from _elf_files(data, start, end)
        yield from _bundles(data, start, end)
        if _is_ptx(data, start, end):
            yield PTX
        if any(_is_kernel(data, row.start()) for row in _SPIRV_EMBEDDED.finditer(data, start, end)):
            yield SPIRV
        if (
            runtime
            and data.find(_DRIVER_TOO_OLD, start, end) >= 0
            and any(data.find(mark, start, end) >= 0 for mark in _ASKS_DRIVER)
            and any(data.find(_DRIVER, *part) >= 0 for part in ranges)
        ):
            yield CUDART


def capabilities(data: Data) -> tuple[set[str], set[str]]:
    """Return the compute capabilities of the machine code and of the PTX in the fat binaries of a file ("9.0").

    A fat binary is a header and entries for one architecture each; their headers begin with kind (1: PTX, 2: machine
    code), their own size and that of the code behind them, and name the architecture at byte 28.
    """
    code, ptx = set[str](), set[str]()
    for start in _FATBIN_EMBEDDED.finditer(data):
        place = start.start() + len(_FATBIN) + 8
        end = min(place + struct.unpack_from("<Q", data, place - 8)[0], len(data))
        while place + 32 <= end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, place)
            (number,) = struct.unpack_from("<I", data, place + 28)
            if kind not in _ENTRIES or not 32 <= header <= 4096 or not 20 <= number <= 999:
                break  # the magic number is part of other data
            target = ptx if kind == _ENTRY_PTX else code
            target.add(f"{number // 10}.{number % 10}")
            place += header + size
    return code, ptx


def _elf_files(data: Data, start: int, end: int) -> Iterator[str]:
    for row in _ELF.finditer(data, start, end):
        head = bytes(data[row.start() : min(row.start() + 24, end)])
        if len(head) == 24:
            kind, machine, version = struct.unpack_from("<HHI", head, 16)
            if 1 <= kind <= 4 and version in (1, 2, 130) and machine in (190, 224):
                yield CUBIN if machine == 190 else AMDGPU


def _bundles(data: Data, start: int, end: int) -> Iterator[str]:
    for pattern in (_BUNDLE_EMBEDDED, _COMPRESSED_EMBEDDED):
        bundles = (_bundle(data, row.start()) for row in pattern.finditer(data, start, end))
        if first := next(filter(None, bundles), ""):
            yield first


def _is_ptx(data: Data, start: int, end: int) -> bool:
    return any(
        _PTX.search(bytes(data[max(start, row.start() - 256) : row.end() + 8]))
        for row in _PTX_TARGET.finditer(data, start, end)
    )


def _bundle(data: Data, at: int) -> str:
    """Return the kind of the bundle at `at`, with the targets where they can be read; `""` if it is none."""
    head = bytes(data[at : at + 4096])
    if head.startswith(_COMPRESSED):
        if len(head) < 8:
            return ""
        version, method = struct.unpack_from("<HH", head, 4)
        place = _PAYLOAD.get(version)
        if place is None or method not in (0, 1):
            return ""
        payload = head[place : place + 4]
        zstd = payload == b"\x28\xb5\x2f\xfd"
        zlib = payload[:1] == b"\x78" and int.from_bytes(payload[:2], "big") % 31 == 0
        # clang compresses bundles of HIP only.
        return f"compressed {BUNDLE} (hip)" if zstd or zlib else ""
    if len(head) < 32:
        return ""
    (count,) = struct.unpack_from("<Q", head, 24)
    if not 0 < count <= 1024:
        return ""
    place, kinds = 32, set[str]()
    for _ in range(count):
        if place + 24 > len(head):
            break
        (length,) = struct.unpack_from("<Q", head, place + 16)
        match = _ID.match(head, place + 24, min(place + 24 + min(length, 256), len(head)))
        if match is None:
            return ""
        kinds.add(_target(match))
        place += 24 + length
    kinds.discard("")
    return f"{BUNDLE} ({sorted(kinds)[0]})" if kinds else ""


def _target(match: re.Match[bytes]) -> str:
    kind, triple = match["kind"], match["triple"]
    if kind == b"host":
        return ""
    if b"nvptx" in triple:
        return "nvptx"
    if kind.startswith(b"hip") or b"amdgcn" in triple:
        return "hip"
    return "spir64" if triple.startswith(b"spir") else ""


def _is_kernel(data: Data, at: int) -> bool:
    """Return whether a SPIR-V module is for compute interfaces (capability Kernel), not for graphics.

    Shaders, which have the capability Shader, belong to no backend: Vulkan runs on every GPU.
    """
    head = bytes(data[at : at + HEAD])
    if len(head) < 28:
        return False
    order = _SPIRV[head[:4]]
    words = struct.unpack(f"{order}{len(head) // 4}I", head[: len(head) // 4 * 4])
    version, bound, schema = words[1], words[3], words[4]
    if version >> 16 != 1 or version & 0xFF or not 0 < bound < 1 << 26 or schema:
        return False
    place = 5
    # Capabilities come first: word count 2, opcode 17.
    while place + 1 < len(words) and words[place] == 2 << 16 | 17:
        if words[place + 1] == 6:
            return True
        place += 2
    return False
