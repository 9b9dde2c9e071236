"""Footer of a fixed VHD, the form in which Azure takes a disk: the raw disk, and 512 bytes behind it.

The fields are those of Microsoft's "Virtual Hard Disk Image Format Specification" 1.0. qemu-img 7.2 writes the
same with a random identifier and the time, and without `force_size` a disk that is larger than the raw one, whose second
partition table is then not at its end.
"""

from __future__ import annotations

import struct
import uuid

SIZE = 512
MIB = 1 << 20  # Azure takes only disks of whole MiB
_YEAR_2000 = 946_684_800  # the dates of a VHD count from there
# Readers (QEMU, libvhdi, Azure) take the size field for the disk's size where this is the creator. For others,
# QEMU takes the product of the geometry, which is a different number.
_CREATOR = b"qem2"
_FIXED = 2


def footer(size: int, *, identifier: uuid.UUID, epoch: int) -> bytes:
    """Return the 512 bytes to write behind a disk of `size` bytes, which must be whole MiB. `epoch` is in seconds."""
    if size % MIB:
        raise ValueError(f"{size} bytes are not whole MiB")
    cylinders, heads, sectors = _geometry(size // 512)
    fields = (
        *(b"conectix", 2, 0x10000, 0xFFFFFFFFFFFFFFFF, epoch - _YEAR_2000),
        *(_CREATOR, 0x50003, b"Wi2k", size, size, cylinders, heads, sectors, _FIXED),
    )
    layout = ">8sIIQI4sI4sQQHBBI"
    first, last = struct.pack(layout, *fields), identifier.bytes.ljust(SIZE - 68, b"\0")
    checksum = ~sum(first + last) & 0xFFFFFFFF
    return first + struct.pack(">I", checksum) + last


def _geometry(sectors: int) -> tuple[int, int, int]:
    """Return cylinders, heads and sectors per track, by the specification's appendix."""
    sectors = min(sectors, 65535 * 16 * 255)
    if sectors >= 65535 * 16 * 63:
        return sectors // 255 // 16, 16, 255
    track = 17
    tracks = sectors // track
    heads = max((tracks + 1023) // 1024, 4)
    if tracks >= heads * 1024 or heads > 16:
        track, heads = 31, 16
        tracks = sectors // track
    if tracks >= heads * 1024:
        track, heads = 63, 16
        tracks = sectors // track
    return tracks // heads, heads, track
