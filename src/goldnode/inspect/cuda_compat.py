"""Reader of the note with which NVIDIA's forward-compatibility library names the drivers that it is for.

The section .note.cuda.fwd_compatibility of libcuda has an ELF note of "NVIDIA Corporation" with a JSON object: the CUDA version,
and the branches of drivers. The container toolkit decides by it (nvidia-container-toolkit d34b3046, cuda-elf-header.go).
"""

from __future__ import annotations

import json
import struct

from goldnode.core.elf import MAGIC, Data, header, sections
from goldnode.node.ground.json_lines import as_list, as_map

_SECTION, _OWNER, _SHT_NOTE = b".note.cuda.fwd_compatibility", b"NVIDIA Corporation", 7
_WORD = 4  # names and descriptions of notes are padded to it


def compat_drivers(library: Data) -> tuple[int, ...]:
    """Return the driver branches in the note of a libcuda; none if it has no note, as older libraries."""
    if library[:4] != MAGIC:
        return ()
    head = header(library)
    if head is None:
        return ()
    rows, _ = sections(library, head, [])
    for name, kind, _, at, size in rows:
        if kind == _SHT_NOTE and name == _SECTION:
            return _parsed(bytes(library[at : at + size]), head.order)
    return ()


def _parsed(note: bytes, order: str) -> tuple[int, ...]:
    try:
        owner_size, size, _ = struct.unpack_from(f"{order}III", note)
    except struct.error:
        return ()
    start = 12 + -(-owner_size // _WORD) * _WORD
    if note[12 : 12 + owner_size].rstrip(b"\0") != _OWNER:
        return ()
    try:
        content = json.loads(note[start : start + size].rstrip(b"\0"))
    except ValueError:
        return ()
    drivers = as_map(content).get("Driver")
    return tuple(item for item in as_list(drivers) if isinstance(item, int))
