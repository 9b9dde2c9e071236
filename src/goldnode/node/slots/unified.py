"""Unified kernel image of a slot: systemd's stub with kernel, initramfs and command line in one PE file.

Under Secure Boot, systemd-boot lets the firmware verify this one file, and with it everything that the kernel starts
from. An entry of type #1 names it as its `linux`; the stub ignores the entry's options then. Builder and node make the
same bytes from a root and a command line, so that only the signature has to travel.

Formats: Microsoft's PE format (headers, section table, attribute certificate table), Windows Authenticode Portable
Executable Signature Format of 2008 (what is hashed), systemd-stub(7) (names of the sections).
"""

from __future__ import annotations

import struct
from hashlib import sha256

from ..ground.errors import NodeError
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Tuple

STUB = "usr/lib/systemd/boot/efi/linuxx64.efi.stub"
AMD64, PE32_PLUS = 0x8664, 0x20B
ROW = 40  # bytes of a row of the section table
PAGE = 4096
DATA = 0x40000040  # a section of initialised data that is only read
CHECKSUM = 64  # offsets in the optional header: PE checksum
CERTIFICATES = 144  # and the directory entry of the certificate table
PKCS7 = 0x0002  # WIN_CERT_TYPE_PKCS_SIGNED_DATA


class PeHeaders(NamedTuple):
    """Places in a PE file that its sections, its digest and its signature depend on."""

    coff: int
    optional: int
    table: int  # section table
    rows: int
    section_align: int
    file_align: int
    size: int  # of all headers


def headers(image: bytes) -> PeHeaders:
    """Return the headers of a PE32+ file for amd64. Raises NodeError for any other file."""
    try:
        (start,) = struct.unpack_from("<I", image, 60)
        machine, count = struct.unpack_from("<HH", image, start + 4)
        (length,) = struct.unpack_from("<H", image, start + 20)
        optional = start + 24
        (magic,) = struct.unpack_from("<H", image, optional)
        section_align, file_align = struct.unpack_from("<II", image, optional + 32)
        (size,) = struct.unpack_from("<I", image, optional + 60)
    except struct.error:
        raise NodeError("the file is too short for a program of UEFI.") from None
    right = image[:2] == b"MZ" and image[start : start + 4] == b"PE\0\0" and magic == PE32_PLUS
    if not right or machine != AMD64 or not file_align or not section_align:
        raise NodeError("the file is no program of UEFI for amd64.")
    return PeHeaders(
        start + 4,
        optional,
        table=optional + length,
        rows=count,
        section_align=section_align,
        file_align=file_align,
        size=size,
    )


def sections(image: bytes) -> List[Tuple[str, int, int, int, int]]:
    """Return name, virtual size, virtual address, raw size and raw place of each section. Raises NodeError."""
    head, rows = headers(image), []
    for number in range(head.rows):
        try:
            name, *numbers = struct.unpack_from("<8sIIII", image, head.table + ROW * number)
        except struct.error:
            raise NodeError("the section table of the file is cut.") from None
        rows.append((name.rstrip(b"\0").decode("ascii", "replace"), *numbers))
    return rows


def assemble(stub: bytes, parts: Sequence[Tuple[str, bytes]]) -> bytes:
    """Return systemd's stub with sections added, in their order. Raises NodeError."""
    head, rows = headers(stub), sections(stub)
    if head.table + ROW * (head.rows + len(parts)) > min(row[4] for row in rows if row[4]):
        raise NodeError(
            "the stub's headers have no room for the sections of a unified kernel image."
        )
    end = max(row[4] + row[3] for row in rows)
    image = bytearray(stub[:end])  # symbols of the linker follow, which nothing loads
    struct.pack_into("<II", image, head.coff + 8, 0, 0)
    address = max(row[2] + row[1] for row in rows)
    initialised = struct.unpack_from("<I", image, head.optional + 8)[0]
    align = max(head.section_align, PAGE)
    for number, (name, content) in enumerate(parts, head.rows):
        image += bytes(-len(image) % head.file_align)
        address += -address % align
        raw = len(content) + -len(content) % head.file_align
        row = struct.pack(
            "<8sIIIIIIHHI", name.encode(), len(content), address, raw, len(image), 0, 0, 0, 0, DATA
        )
        image[head.table + ROW * number : head.table + ROW * (number + 1)] = row
        image += content + bytes(raw - len(content))
        address += len(content)
        initialised += raw
    struct.pack_into("<H", image, head.coff + 2, head.rows + len(parts))
    struct.pack_into("<I", image, head.optional + 8, initialised & 0xFFFFFFFF)
    struct.pack_into("<I", image, head.optional + 56, address + -address % head.section_align)
    return _summed(image, head)


def unsigned(image: bytes) -> bytes:
    """Return a PE file without its signatures, padded as a signature demands. Raises NodeError."""
    head = headers(image)
    place, size = struct.unpack_from("<II", image, head.optional + CERTIFICATES)
    bare = bytearray(image[:place] if size else image)
    struct.pack_into("<II", bare, head.optional + CERTIFICATES, 0, 0)
    bare += bytes(-len(bare) % 8)
    return _summed(bare, head)


def digest(image: bytes) -> str:
    """Return the digest that a signature of a PE file is about (Authenticode, SHA-256, hex). Raises NodeError."""
    bare, head = unsigned(image), headers(image)
    seen, view = sha256(), memoryview(bare)
    seen.update(view[: head.optional + CHECKSUM])
    seen.update(view[head.optional + CHECKSUM + 4 : head.optional + CERTIFICATES])
    seen.update(view[head.optional + CERTIFICATES + 8 :])
    return seen.hexdigest()


def signed(image: bytes, signature: bytes) -> bytes:
    """Return a PE file with one signature (DER of PKCS #7) attached. Raises NodeError."""
    bare, head = bytearray(unsigned(image)), headers(image)
    padded = signature + bytes(-len(signature) % 8)
    struct.pack_into("<II", bare, head.optional + CERTIFICATES, len(bare), 8 + len(padded))
    bare += struct.pack("<IHH", 8 + len(signature), 0x0200, PKCS7) + padded
    return _summed(bare, head)


def signature(image: bytes) -> Optional[bytes]:
    """Return the first signature of a PE file (DER of PKCS #7), or None. Raises NodeError."""
    head = headers(image)
    place, size = struct.unpack_from("<II", image, head.optional + CERTIFICATES)
    if size < 8:
        return None
    try:
        length, _, kind = struct.unpack_from("<IHH", image, place)
    except struct.error:
        return None
    return image[place + 8 : place + length] if kind == PKCS7 else None


def _summed(image: bytearray, head: PeHeaders) -> bytes:
    """Return the file with its PE checksum: words of 16 bits, added with carry, and the length."""
    struct.pack_into("<I", image, head.optional + CHECKSUM, 0)
    total = sum(memoryview(bytes(image) + bytes(len(image) % 2)).cast("H"))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("<I", image, head.optional + CHECKSUM, total + len(image))
    return bytes(image)


class UnifiedParts(NamedTuple):
    """Parts of a unified kernel image: systemd's stub, /usr/lib/os-release, kernel release, kernel and initramfs."""

    stub: bytes
    os_release: bytes
    release: str
    kernel: bytes
    initrd: bytes


def image(parts: UnifiedParts, options: str) -> bytes:
    """Return the unified kernel image of a slot, unsigned. Raises NodeError.

    The kernel comes last: older ones write behind their end while they unpack.
    """
    rows = [
        (".osrel", parts.os_release),
        (".cmdline", options.encode("ascii")),
        (".uname", parts.release.encode("ascii")),
        (".initrd", parts.initrd),
        (".linux", parts.kernel),
    ]
    return unsigned(assemble(parts.stub, rows))
