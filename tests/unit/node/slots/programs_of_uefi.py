"""A program of UEFI with room for further sections, as systemd's stub has it; nothing in it runs."""

from __future__ import annotations

import struct

TEXT = b"\xc3".ljust(512, b"\0")


def program(headers: int = 1024, machine: int = 0x8664, trailing: bytes = b"") -> bytes:
    """Headers, one section of code, and bytes behind it, as linkers leave their symbols."""
    head = bytearray(64)
    head[:2], head[60:64] = b"MZ", struct.pack("<I", 64)
    symbols = headers + len(TEXT) if trailing else 0
    coff = struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 1, 0, symbols, len(trailing), 240, 0x22E)
    optional = struct.pack("<HBBIIIII", 0x20B, 0, 0, 512, 0, 0, 0x1000, 0x1000)
    optional += struct.pack(
        "<QIIHHHHHHIIIIHH", 0, 0x1000, 512, 0, 0, 0, 0, 0, 0, 0, 0x2000, headers, 0, 10, 0
    )
    optional += struct.pack("<QQQQII", 0, 0, 0, 0, 0, 16) + bytes(128)
    section = struct.pack(
        "<8sIIIIIIHHI", b".text", 512, 0x1000, 512, headers, 0, 0, 0, 0, 0x60000020
    )
    return (bytes(head) + coff + optional + section).ljust(headers, b"\0") + TEXT + trailing
