"""Shared libraries as the dynamic loader finds them: its cache, then its default directories. Reads only.

The format is that of glibc since 2.2 (`struct cache_file_new`); tests compare it with `ldconfig -p`.
"""

from __future__ import annotations

import struct

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

CACHE = "/etc/ld.so.cache"
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = 48, 24  # bytes
# Flags of an ELF library of glibc (3) by the architecture's name in Debian.
_FLAGS = {"amd64": 0x303, "arm64": 0xA03, "i386": 0x003}
_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "i386": "i386-linux-gnu"}


class LoadedLibrary(NamedTuple):
    """The file that the loader opens for a name (`path`, None: nothing), and the one that its cache names."""

    path: Optional[str]
    cached: Optional[str]


def cached(data: bytes, name: str, architecture: str) -> List[str]:
    """Return the paths that a cache has for a library, the preferred one first.

    Raises ValueError for data that is no cache.
    """
    start = data.find(_MAGIC)  # a cache for old loaders has their part first
    if start < 0:
        raise ValueError(f"{CACHE} is not a cache of glibc")
    # The name may be the end of a longer string: ldconfig stores equal ends once.
    data = data[start:]
    try:
        (count,) = struct.unpack_from("<I", data, len(_MAGIC))
        if len(data) < _HEADER + count * _ENTRY:
            raise ValueError(count)
        rows = struct.iter_unpack("<iIIIQ", data[_HEADER : _HEADER + count * _ENTRY])
        key = name.encode() + b"\0"
        offsets, at = set(), data.find(key)
        while at >= 0:
            offsets.add(at)
            at = data.find(key, at + 1)
        flags = _FLAGS.get(architecture)
        return [
            data[value : data.index(b"\0", value)].decode("utf-8", "replace")
            for kind, at, value, _, _ in rows
            if at in offsets and flags in (None, kind)
        ]
    except (struct.error, ValueError) as problem:
        raise ValueError(f"{CACHE} is damaged") from problem


def resolve(host: Host, name: str, architecture: str, skip: str = "\0") -> LoadedLibrary:
    """Return what a program loads under a library's name, without LD_LIBRARY_PATH and its own paths.

    If the file that the cache names is gone, the loader searches its default directories.

    :param skip: directory whose libraries are left out.
    """
    data = host.data(CACHE)
    paths = [] if data is None else cached(data, name, architecture)
    named = next((path for path in paths if not path.startswith(skip)), None)
    if named is not None and host.exists(named):
        return LoadedLibrary(named, named)
    triplet = _TRIPLETS.get(architecture, "")
    folders = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    default = (f"{folder}/{name}" for folder in folders)
    return LoadedLibrary(next((path for path in default if host.exists(path)), None), named)


def source(host: Host, folder: str) -> Optional[str]:
    """Return the line of /etc/ld.so.conf that names a directory, as FILE:LINE; None for a default directory."""
    files = ["/etc/ld.so.conf", *host.glob("/etc/ld.so.conf.d", "*.conf")]
    for file in files:
        for number, line in enumerate((host.text(file) or "").splitlines(), 1):
            words = line.partition("#")[0].replace(",", " ").replace(":", " ").split()
            if folder in (word.rstrip("/") for word in words):
                return f"{file}:{number}"
    return None
