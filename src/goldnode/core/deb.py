"""Writer of Debian packages (deb(5)), without dpkg: one content gives the same bytes on every machine.

dpkg-deb chooses its compressor by distribution and version, and each of them compresses otherwise.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple


class PackagedFile(NamedTuple):
    """A file of a package: its absolute path on the system, its content and its mode."""

    path: str
    content: bytes
    mode: int = 0o644


def ar(members: Mapping[str, bytes], epoch: int) -> bytes:
    """Return an ar(5) archive: a header of 60 bytes for each member, padded to an even size."""
    out = bytearray(b"!<arch>\n")
    for name, data in members.items():
        header = f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        out += header.encode() + data + b"\n" * (len(data) % 2)
    return bytes(out)


def member(archive: bytes, name: str) -> bytes:
    """Return the content of a member of an ar(5) archive. Raises KeyError without it, ValueError for no archive."""
    if not archive.startswith(b"!<arch>\n"):
        raise ValueError("it is no ar archive")
    at = 8
    while at + 60 <= len(archive):
        size = int(archive[at + 48 : at + 58])
        if archive[at : at + 16].decode("ascii", "replace").rstrip(" /") == name:
            return archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise KeyError(name)


def tar(folders: Iterable[str], files: Iterable[PackagedFile], epoch: int) -> bytes:
    """Return a tar of directories and files of root, in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, epoch
            archive.addfile(info)
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size, info.mode, info.mtime = len(file.content), file.mode, epoch
            archive.addfile(info, io.BytesIO(file.content))
    return out.getvalue()


def md5sums(files: Iterable[PackagedFile]) -> bytes:
    """Return the file `md5sums` of a package, by which `dpkg --verify` judges its files."""
    lines = (
        f"{hashlib.md5(file.content, usedforsecurity=False).hexdigest()}  {file.path[1:]}\n"
        for file in files
    )
    return "".join(lines).encode()


def package(
    fields: Mapping[str, str],
    files: Sequence[PackagedFile],
    scripts: Mapping[str, str],
    epoch: int,
) -> bytes:
    """Return a package of these control fields, files and maintainer scripts.

    Installed-Size is added: in KiB, each file rounded up, one for each directory, as deb-substvars(5) defines it.
    """
    files = sorted(files)
    folders = sorted({str(above) for file in files for above in PurePosixPath(file.path).parents})
    size = len(folders) + sum(-(-len(file.content) // 1024) for file in files)
    stanza = "".join(
        f"{name}: {value}\n" for name, value in {**fields, "Installed-Size": str(size)}.items()
    )
    control = [
        PackagedFile("./control", stanza.encode()),
        PackagedFile("./md5sums", md5sums(files)),
        *(PackagedFile(f"./{name}", text.encode(), 0o755) for name, text in scripts.items()),
    ]
    inside = [file._replace(path=f".{file.path}") for file in files]
    members = {
        "control.tar.xz": tar(["./"], control, epoch),
        "data.tar.xz": tar([f".{name.rstrip('/')}/" for name in folders], inside, epoch),
    }
    # xz: the compressor that every dpkg since 1.17 reads. Its default (zstd on Ubuntu) is not read by older ones.
    compressed = {name: lzma.compress(data, preset=6) for name, data in members.items()}
    return ar({"debian-binary": b"2.0\n", **compressed}, epoch)
