"""Sections of a unified kernel image, which :mod:`goldnode.node.slots.unified` makes (systemd-stub(7), PE format)."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


def place(path: str, name: str) -> Optional[Tuple[int, int]]:
    """Return place and size of a section in a file; None without it, and for a file that is no program of UEFI."""
    try:
        with open(path, "rb") as opened:
            head = opened.read(4096)
        (start,) = struct.unpack_from("<I", head, 60)
        count, length = struct.unpack_from("<H12xH", head, start + 6)
        for number in range(count if head[start : start + 4] == b"PE\0\0" else 0):
            row = struct.unpack_from("<8sIIII", head, start + 24 + length + 40 * number)
            if row[0].rstrip(b"\0") == name.encode():
                return row[4], min(row[1], row[3])
    except (OSError, struct.error):
        pass
    return None


def section(path: str, name: str) -> Optional[bytes]:
    """Return the content of a section of a file, or None without it."""
    where = place(path, name)
    if where is None:
        return None
    with open(path, "rb") as opened:
        opened.seek(where[0])
        return opened.read(where[1])
