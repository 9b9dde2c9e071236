"""The boot entry of an installed disk, before all others of the firmware (UEFI 2.10, 3.1 and 10.3)."""

from __future__ import annotations

import os
import struct

from ..slots.identity import ESP, Table, Variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

TITLE = "goldnode"
_ACTIVE = 1


def option(table: Table) -> Optional[bytes]:
    """Return the load option that boots the ESP of a disk; None for a table without one. Pure."""
    size = struct.unpack_from("<I", table.header, 84)[0]
    for index, kind, guid, start in table.partitions():
        if kind != ESP:
            continue
        last = struct.unpack_from("<Q", table.entries, index * size + 40)[0]
        first = start // table.sector
        # Hard drive node: number, first sector, sectors, GUID, format GPT, signature is a GUID.
        drive = (
            struct.pack("<BBHIQQ", 4, 1, 42, index + 1, first, last - first + 1)
            + guid.bytes_le
            + b"\x02\x02"
        )
        # UEFI 2.10, 3.5.1.1: the name of the loader depends on the processor.
        machine = "AA64" if os.uname().machine == "aarch64" else "X64"
        name = f"\\EFI\\BOOT\\BOOT{machine}.EFI\0".encode("utf-16-le")
        path = (
            drive
            + struct.pack("<BBH", 4, 4, 4 + len(name))
            + name
            + struct.pack("<BBH", 0x7F, 0xFF, 4)
        )
        return struct.pack("<IH", _ACTIVE, len(path)) + f"{TITLE}\0".encode("utf-16-le") + path
    return None


def put_first(variables: Variables, wanted: bytes) -> int:
    """Make an option the first of the boot order, and return its number. Raises OSError.

    An entry of an earlier installation is written again; entries of other systems stay behind it.
    """
    title = f"{TITLE}\0".encode("utf-16-le")
    order = variables.order()
    own = [
        number for number in order if variables.read(variables.name(number))[6:].startswith(title)
    ]
    if own:
        number = own[0]
    else:
        number = next(n for n in range(0x10000) if not variables.read(variables.name(n)))
    if variables.read(variables.name(number)) != wanted:
        variables.put(variables.name(number), wanted)
    new = [number, *(one for one in order if one != number)]
    if new != order:
        variables.put_order(new)
    return number
