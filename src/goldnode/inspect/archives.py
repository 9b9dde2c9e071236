"""Reader of archives inside of files: zip, tar, compressed files, Debian packages, and what is appended to a
program.

All input may be hostile. Nothing is written to disk but to anonymous temporary files, names are only names,
and the expansion of a stream is limited while it is read. The caller limits depth and total size.

Sources: APPNOTE.TXT (zip), RFC 1952 (gzip), the xz file format, RFC 8878 (zstd), POSIX pax (tar), deb(5),
and the CArchive format of PyInstaller (one-file programs).
"""

from __future__ import annotations

import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, NamedTuple, cast

from goldnode.core.decompress import ZSTD, unpacked
from goldnode.core.elf import Data
from goldnode.inspect.devicecode import HEAD
from goldnode.oci.layout import clean

AR = b"!<arch>\n"
# Formats by the bytes that a file of it begins with.
_FORMATS = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"PK\x07\x08", "zip"),
    (b"\x1f\x8b\x08", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (ZSTD, "zstd"),
    (AR + b"debian-binary", "deb"),
)
UNREAD = (
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"hsqs", "squashfs"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"LZIP", "lzip"),
    (b"\x1f\x9d", "compress"),
    (b"070701", "cpio"),
    (b"070702", "cpio"),
    (b"\xed\xab\xee\xdb", "rpm"),
    (b"MSCF\0\0\0\0", "cabinet"),
    (b"KAY" + ZSTD, "Nuitka"),
)
# First two bytes of every format above: a cheap test.
BEGINNINGS = frozenset(magic[:2] for magic, _ in (*_FORMATS, *UNREAD))
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".tgz", ".txz", ".tbz2", ".tzst")
_TAIL = (1 << 16) + 22  # a zip ends with at most 64 KiB of comment after its last record
_BLOCK = 1 << 16
_COOKIE_TAIL = 64 << 10  # objcopy writes section headers after it
_COOKIE = b"MEI\x0c\x0b\x0a\x0b\x0e"
_SCRIPT_PAYLOADS = ((b"\n\x1f\x8b\x08", "gzip"), (b"\n\xfd7zXZ\0", "xz"), (b"\n" + ZSTD, "zstd"))

# Exceptions of the libraries for damaged content.
ERRORS = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    struct.error,
    RuntimeError,
    NotImplementedError,
    ValueError,
    OverflowError,
)


class ScannedPath(NamedTuple):
    """Type of a path, size in bytes, and link target.

    `kind` is `f` (regular file), `d` (directory), `l` (symbolic link), `h` (hard link) or `o` (other). A file is not
    `executable` if nobody may execute it; True where the source has no modes.
    """

    kind: str
    size: int = 0
    link: str = ""
    executable: bool = True


class SourceFile(NamedTuple):
    """A file of a source. `open` opens its content; None if it has no content.

    `packed` is its compressed size if its archive states one. `entry.size` is -1 if its size is unknown.
    """

    path: str
    entry: ScannedPath
    open: Callable[[], IO[bytes]] | None
    packed: int = 0


@dataclass(frozen=True)
class Appended:
    """An archive in a file that is something else. `start` is the offset of its first byte."""

    kind: str
    start: int


def kind_of(head: bytes) -> str:
    """Return the format of an archive that begins with `head` (HEAD bytes); `""` if it is none."""
    if head[:2] in BEGINNINGS:
        for magic, kind in _FORMATS:
            if head.startswith(magic) and _is_plausible(kind, head):
                return kind
    return "tar" if is_tar(head) else ""


def is_tar(head: bytes) -> bool:
    """Return whether a file begins with the header of a tar. Before POSIX only its checksum identifies it."""
    if head[257:262] == b"ustar":
        return True
    written = head[148:156].strip(b" \0")
    if (
        len(head) < HEAD
        or not written.isdigit()
        or b"8" in written
        or b"9" in written
        or not head[0]
    ):
        return False
    return int(written, 8) == 256 + sum(head[:148]) + sum(head[156:HEAD])


def _is_plausible(kind: str, head: bytes) -> bool:
    if kind == "gzip":  # reserved flags are zero
        return len(head) >= 18 and not head[3] & 0xE0
    if kind == "bzip2":
        return head[3:4] in b"123456789" and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    return True


def gzip_head(head: bytes) -> bytes | None:
    """Return the first HEAD bytes of the content of a gzip file from its own; None if more of it is needed."""
    try:
        plain = zlib.decompressobj(31).decompress(head, HEAD)
    except zlib.error:
        return None
    return plain if len(plain) == HEAD else None


def unread_kind(head: bytes) -> str:
    """Return the format of an archive that is recognised but not read; `""` if it is none."""
    return next((kind for magic, kind in UNREAD if head.startswith(magic)), "")


def members(kind: str, stream: IO[bytes], name: str, expansion: int) -> Iterator[SourceFile]:
    """Return the members of an archive of this kind. Only a zip needs a stream that can seek.

    Each member must be read before the next one is asked for. Raise one of ERRORS for damaged content.
    """
    if kind == "zip":
        with zipfile.ZipFile(stream) as archive:
            yield from zip_members(archive)
    elif kind == "tar":
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            yield from tar_members(tar)
    elif kind == "deb":
        yield from _ar_members(stream)
    elif kind == "pyinstaller":
        yield from _pyinstaller_members(stream)
    else:
        yield _unpacked_member(kind, stream, name, expansion)


def _unpacked_member(kind: str, stream: IO[bytes], name: str, expansion: int) -> SourceFile:
    plain = name.rpartition("/")[2]
    for suffix in _SUFFIXES:
        plain = plain.removesuffix(suffix)
    content = unpacked(kind, stream, expansion=expansion)
    return SourceFile(plain or "content", ScannedPath("f", -1), lambda: content)


def zip_members(archive: zipfile.ZipFile) -> Iterator[SourceFile]:
    """Return the members of a zip."""
    for info in archive.infolist():
        path = clean(info.filename)
        # Not `is_dir`: in Python 3.11.7 it raises IndexError for an empty name.
        if info.filename.endswith("/"):
            yield SourceFile(path, ScannedPath("d"), None)
        elif stat.S_ISLNK(info.external_attr >> 16):
            yield SourceFile(path, ScannedPath("l"), None)
        else:
            yield SourceFile(
                path,
                ScannedPath("f", info.file_size),
                partial(archive.open, info),
                max(1, info.compress_size),
            )


def tar_members(tar: tarfile.TarFile) -> Iterator[SourceFile]:
    """Return the members of a tar. Raise TarError if data follows its end, which other readers may read."""
    for info in tar:
        path = clean(info.name)
        if info.isreg():
            # The content must be read before the tar advances to the next member.
            entry = ScannedPath("f", info.size, executable=bool(info.mode & 0o111))
            yield SourceFile(path, entry, partial(_extract, tar, info))
        elif info.isdir():
            yield SourceFile(path, ScannedPath("d"), None)
        elif info.issym():
            yield SourceFile(path, ScannedPath("l", 0, info.linkname), None)
        elif info.islnk():
            yield SourceFile(path, ScannedPath("h", 0, clean(info.linkname)), None)
        else:
            yield SourceFile(path, ScannedPath("o"), None)
    # tarfile ends without an error at a damaged header. Other readers continue after it.
    while tar.fileobj is not None and (block := tar.fileobj.read(1 << 20)):
        if block.strip(b"\0"):
            raise tarfile.ReadError("data follows its end, or one of its headers is damaged")


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(info)
    if stream is None:
        raise OSError("it has no content")
    return stream


def _ar_members(stream: IO[bytes]) -> Iterator[SourceFile]:
    """Return the members of a Debian package, which is an ar archive with short names."""
    if stream.read(len(AR)) != AR:
        raise OSError("it is no ar archive")
    while head := stream.read(60):
        name, size = head[:16].decode("ascii", "replace").strip().rstrip("/"), head[48:58].strip()
        if len(head) != 60 or head[58:] != b"`\n" or not size.isdigit():
            raise OSError("one of its headers is damaged")
        part = _Part(stream, int(size))
        yield SourceFile(clean(name), ScannedPath("f", int(size)), partial(_buffered, part))
        while part.read(_BLOCK):
            pass
        if int(size) % 2:
            stream.read(1)


def _buffered(raw: io.RawIOBase) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(raw, _BLOCK))


class _Part(io.RawIOBase):
    """The next `size` bytes of a stream. A read raises EOFError if the stream ends before."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        super().__init__()
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(min(len(buffer), self._left))
        if not block and self._left:
            raise EOFError("it ends early")
        self._left -= len(block)
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        """Leave it open: the archive goes on after this part."""


class Rest(io.RawIOBase):
    """The bytes of a file from an offset on, as a file."""

    def __init__(self, data: Data, start: int = 0) -> None:
        super().__init__()
        self._data, self._start, self._at = data, start, 0
        self._size = len(data) - start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        at = self._start + min(self._at, self._size)
        block = self._data[at : at + len(buffer)]
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


class Prefixed(io.RawIOBase):
    """A stream of which the first bytes were read already."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        super().__init__()
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._head[: len(buffer)] if self._head else self._stream.read(len(buffer))
        self._head = self._head[len(block) :]
        buffer[: len(block)] = block
        return len(block)


# ----- archives in programs and scripts


def appended(data: Data, end: int) -> Appended | None:
    """Return the archive that is appended to a program, which itself ends at `end`; None without one.

    Its kind may be one that is not read: of UNREAD, or `data` for an unknown format.
    """
    size = len(data)
    at = data.rfind(b"PK\x05\x06", max(0, size - _TAIL))
    if (
        at >= 0
        and at + 22 <= size
        and size == at + 22 + int.from_bytes(data[at + 20 : at + 22], "little")
    ):
        return Appended("zip", 0)
    if data.rfind(_COOKIE, max(0, size - _COOKIE_TAIL)) >= 0:
        return Appended("pyinstaller", 0)
    if size - end < HEAD:
        return None
    head = bytes(data[end : end + HEAD + 4096])
    skipped = len(head) - len(head.lstrip(b"\0\n"))
    head = head[skipped:]
    kind = kind_of(head) or unread_kind(head)
    if kind:
        return Appended(kind, end + skipped)
    return Appended("data", end) if size - end > 1 << 16 and head.strip(b"\0") else None


def in_script(data: Data) -> Appended | None:
    """Return the archive that a script has after its own text; None without one."""
    at_end = appended(data, len(data))
    if at_end is not None:
        return at_end
    places = [
        Appended(kind, at + 1) for magic, kind in _SCRIPT_PAYLOADS if (at := data.find(magic)) >= 0
    ]
    return min(places, key=lambda row: row.start, default=None)


_COOKIE_SHAPE = struct.Struct("!8sIIII64s")
_ENTRY_SHAPE = struct.Struct("!IIIIBc")
_TABLE = 64 << 20  # bytes; its length is a number in the file, which may lie


def _pyinstaller_members(stream: IO[bytes]) -> Iterator[SourceFile]:
    """Return the files in the CArchive at the end of a program that PyInstaller made."""
    size = stream.seek(0, io.SEEK_END)
    start = max(0, size - _COOKIE_TAIL)
    stream.seek(start)
    tail = stream.read(_COOKIE_TAIL)
    at = tail.rfind(_COOKIE)
    _, length, table, table_length, _, _ = _COOKIE_SHAPE.unpack(tail[at : at + _COOKIE_SHAPE.size])
    first = start + at + _COOKIE_SHAPE.size - length
    if first < 0 or table + table_length > length or table_length > _TABLE:
        raise OSError("its table of contents is not within it")
    stream.seek(first + table)
    rows = stream.read(table_length)
    place = 0
    while place + _ENTRY_SHAPE.size <= len(rows):
        row_length, offset, packed, plain, is_packed, _ = _ENTRY_SHAPE.unpack_from(rows, place)
        if row_length < _ENTRY_SHAPE.size or offset + packed > length:
            raise OSError("its table of contents is damaged")
        name = (
            rows[place + _ENTRY_SHAPE.size : place + row_length]
            .rstrip(b"\0")
            .decode("utf-8", "replace")
        )
        place += row_length
        yield SourceFile(
            clean(name),
            ScannedPath("f", plain),
            partial(_pyinstaller_file, stream, first + offset, packed, bool(is_packed)),
            packed if is_packed else 0,
        )


def _pyinstaller_file(stream: IO[bytes], at: int, length: int, is_packed: bool) -> IO[bytes]:
    stream.seek(at)
    part = _Part(stream, length)
    if not is_packed:
        return _buffered(part)
    return unpacked("zlib", _buffered(part), expansion=1 << 20)
