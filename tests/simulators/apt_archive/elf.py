"""Writer of the smallest relocatable x86-64 ELF file that depmod and modinfo accept as a kernel module.

The layout follows the ELF-64 specification: file header, section contents, section headers. The file contains
no executable code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_RELOCATABLE, _X86_64 = 1, 62


def module(modinfo: Sequence[tuple[str, str]]) -> bytes:
    """Return a module whose .modinfo contains `modinfo` (tag, value), in order."""
    info = b"".join(f"{tag}={value}".encode() + b"\0" for tag, value in modinfo)
    # (name, type, content, link, info, entry size); the symbol table has only the mandatory null symbol.
    sections: list[tuple[str, int, bytes, int, int, int]] = [
        (".text", _PROGBITS, b"\xc3", 0, 0, 0),
        (".modinfo", _PROGBITS, info, 0, 0, 0),
        (".symtab", _SYMTAB, _SYMBOL.pack(0, 0, 0, 0, 0, 0), 4, 1, _SYMBOL.size),
        (".strtab", _STRTAB, b"\0", 0, 0, 0),
    ]
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    sections.append((".shstrtab", _STRTAB, names, 0, 0, 0))

    body, headers = b"", _SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for name, kind, content, link, extra, entry in sections:
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += _SECTION.pack(
            at, kind, 0, 0, _HEADER.size + len(body), len(content), link, extra, 1, entry
        )
        body += content + b"\0" * (-len(content) % 8)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + b"\0" * 9
    header = _HEADER.pack(
        ident, _RELOCATABLE, _X86_64, 1, 0, 0, _HEADER.size + len(body), 0, _HEADER.size, 0, 0, _SECTION.size,
        len(sections) + 1, len(sections),
    )  # fmt: skip
    return header + body + headers


def library(soname: str, text: str) -> bytes:
    """Return a shared library without symbols, which ldconfig lists as `soname`.

    `text` is stored in it for people who inspect the file.
    """
    program = struct.Struct("<IIQQQQQQ")
    at = _HEADER.size + 2 * program.size
    strings = b"\0" + soname.encode() + b"\0" + text.encode() + b"\0"
    strings += b"\0" * (-len(strings) % 8)
    symbol = at + len(strings)
    dynamic = symbol + _SYMBOL.size
    # Tags of the ELF specification: SONAME 14, STRTAB 5, STRSZ 10, SYMTAB 6, SYMENT 11, NULL 0.
    tags = ((14, 1), (5, at), (10, len(strings)), (6, symbol), (11, _SYMBOL.size), (0, 0))
    table = b"".join(struct.pack("<QQ", tag, value) for tag, value in tags)
    size = dynamic + len(table)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + b"\0" * 9
    header = _HEADER.pack(
        ident, 3, _X86_64, 1, 0, _HEADER.size, 0, 0, _HEADER.size, program.size, 2, 0, 0, 0
    )
    load = program.pack(1, 4, 0, 0, 0, size, size, 0x1000)
    points = program.pack(2, 4, dynamic, dynamic, dynamic, len(table), len(table), 8)
    return header + load + points + strings + _SYMBOL.pack(0, 0, 0, 0, 0, 0) + table
