"""Reader of initramfs images that neither unpacks them nor needs ``lsinitramfs``.

An image is a chain of cpio archives in the "newc" format. The first ones are uncompressed (microcode, and
since Debian 13 also modules and firmware), and the last one is compressed. Format: the kernel's
``Documentation/driver-api/early-userspace/buffer-format.rst`` and ``cpio(5)``.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

from ..ground.typed import NamedTuple
from .boot_choice import REBUILD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, Iterable, List, Tuple


WANTED_LIMIT = 1024 * 1024  # bytes of one wanted file
_NAME_LIMIT = 4096  # PATH_MAX, the limit of the kernel's own reader
_MAGIC = (b"070701", b"070702")

# Magic bytes of the part after the uncompressed archives, and the program that unpacks it ("": Python does).
_COMPRESSORS: Tuple[Tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip", ""),
    (b"\xfd7zXZ\x00", "xz", ""),
    (b"\x5d\x00\x00", "lzma", ""),
    (b"BZh", "bzip2", ""),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd"),
    (b"\x02\x21\x4c\x18", "lz4", "lz4"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4"),
    (b"\x89LZO\x00\x0d\x0a\x1a\x0a", "lzo", "lzop"),
)


class InitramfsError(ValueError):
    """An initramfs image that cannot be read: `FILE: what is wrong. remedy`."""


class Listing(NamedTuple):
    """Content of an image.

    `names` are all paths in the image, relative and in order. `files` maps wanted
    regular files to their content.
    """

    names: List[str]
    files: Dict[str, bytes]


def contents(path: str, want: Callable[[str], bool] = lambda _: False) -> Listing:
    """List the image at `path`, and read the content of the regular files that `want(relative path)` accepts.

    Raises InitramfsError for a file that is truncated or not an initramfs, a missing decompression
    program, and a wanted file larger than WANTED_LIMIT. Raises OSError if `path` cannot be opened.
    """
    listing = Listing([], {})
    with Path(path).open("rb") as image:
        while True:
            head = _skip_zeros(image)
            image.seek(-len(head), io.SEEK_CUR)
            if not head:
                break
            if head[:6] in _MAGIC:
                _Archive(path, image, listing, want).read()
                continue
            _compressed(path, image, head, listing, want)
            break
    if not listing.names:
        raise InitramfsError(f"{path}: the image holds nothing. {REBUILD}")
    return listing


def modules_named(names: Iterable[str], modules: Iterable[str]) -> List[str]:
    """Return the paths in `names` that are one of the kernel `modules`, compressed or not.

    As in module names, - and _ are equivalent.
    """
    wanted = {module.replace("-", "_") for module in modules}
    paths = []
    for name in names:
        module = re.search(r"(?:^|/)([^/]+)\.ko(?:\.(?:xz|zst|gz))?$", name)
        if module and module.group(1).replace("-", "_") in wanted:
            paths.append(name)
    return paths


def _compressed(
    path: str, image: IO[bytes], head: bytes, listing: Listing, want: Callable[[str], bool]
) -> None:
    name, program = next(
        ((n, p) for magic, n, p in _COMPRESSORS if head.startswith(magic)), ("", "")
    )
    if not name:
        raise InitramfsError(
            f"{path}: bytes {head[:6].hex(' ')} at {image.tell()} are neither a cpio archive nor a "
            f"known compression. {REBUILD}"
        )
    if program:
        _through(path, program, image, listing, want)
        return
    opened: Any = {"gzip": gzip.open, "bzip2": bz2.open}.get(name, lzma.open)
    try:
        with opened(image) as stream:
            _chain(path, stream, listing, want)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise InitramfsError(
            f"{path}: the {name} data is broken or truncated ({error}). {REBUILD}"
        ) from error


def _through(
    path: str, program: str, image: IO[bytes], listing: Listing, want: Callable[[str], bool]
) -> None:
    """Unpack the rest of the image with a program, which reads the file itself from the current position."""
    with tempfile.TemporaryFile() as reported, Path(path).open("rb", buffering=0) as source:
        source.seek(image.tell())
        try:
            child = subprocess.Popen(
                [program, "-dc"], stdin=source, stdout=subprocess.PIPE, stderr=reported
            )
        except FileNotFoundError:
            raise InitramfsError(
                f"{path}: compressed with {program}, which is not installed. Install the package {program}"
            ) from None
        broken = None
        assert child.stdout is not None  # noqa: S101 - set by stdout=PIPE
        with child.stdout as stream:
            try:
                _chain(path, stream, listing, want)
            except InitramfsError as error:
                broken = error
                child.kill()
        status = child.wait()
        if broken is None and status == 0:
            return
        reported.seek(0)
        words = reported.read(2000).decode("utf-8", "replace").strip().splitlines()
        if status > 0 or words:
            why = words[-1] if words else f"exit status {status}"
            raise InitramfsError(
                f"{path}: {program} cannot unpack it ({why}). {REBUILD}"
            ) from broken
        raise broken or InitramfsError(
            f"{path}: {program} was ended by signal {-status}. Read it again"
        )


def _chain(path: str, stream: IO[bytes], listing: Listing, want: Callable[[str], bool]) -> None:
    """Read the archives of one unpacked stream to its very end, so that truncation is detected."""
    while True:
        head = _skip_zeros(stream)
        if not head:
            return
        _Archive(path, stream, listing, want, head).read()


def _skip_zeros(stream: IO[bytes]) -> bytes:
    """Skip zero bytes, and return up to 16 bytes from the first other byte.

    Archives are padded with zeros.
    """
    head = b""
    while not head:
        block = stream.read(16)
        if not block:
            return b""
        head = block.lstrip(b"\0")
    return head + stream.read(16 - len(head))


class _Archive:
    """One newc archive in a stream that cannot seek. `head` holds the bytes that were already read."""

    def __init__(
        self,
        path: str,
        stream: IO[bytes],
        listing: Listing,
        want: Callable[[str], bool],
        head: bytes = b"",
    ) -> None:
        self.path, self.stream, self.listing, self.want, self.head = (
            path,
            stream,
            listing,
            want,
            head,
        )
        self.at = 0

    def read(self) -> None:
        """Read up to and including the archive's trailer."""
        linked: Dict[Tuple[int, ...], List[str]] = {}
        while True:
            header = self.take(110)
            try:
                # The header is the magic, then 13 fields of 8 hexadecimal digits
                # (cpio(5), "New ASCII Format").
                if header[:6] not in _MAGIC:
                    raise ValueError
                fields = [int(header[i : i + 8], 16) for i in range(6, 110, 8)]
            except ValueError:
                raise self.error(f"no cpio header at byte {self.at - 110} of an archive") from None
            inode, mode, links, size, name_size = (
                fields[0],
                fields[1],
                fields[4],
                fields[6],
                fields[11],
            )
            if not 0 < name_size <= _NAME_LIMIT:
                raise self.error(f"a name of {name_size} bytes at byte {self.at}")
            name = self.take(name_size).rstrip(b"\0").decode("utf-8", "surrogateescape")
            self.pad()
            if name == "TRAILER!!!":
                return
            name = re.sub(r"^(?:\.?/)+", "", name) or "."
            self.listing.names.append(name)
            regular = mode & 0o170000 == 0o100000
            # Of several hard links, only the last one has the content, which belongs to all of them.
            group: List[str] = []
            if regular and links > 1:
                group = linked.setdefault((inode, fields[7], fields[8]), [])
            group.append(name)
            keep = [one for one in group if regular and self.want(one)]
            if keep and size > WANTED_LIMIT:
                raise self.error(f"{name} has {size} bytes, more than the {WANTED_LIMIT} kept")
            if keep:
                self.listing.files.update(dict.fromkeys(keep, self.take(size)))
            else:
                self.skip(size)
            self.pad()

    def take(self, size: int) -> bytes:
        data, self.head = self.head[:size], self.head[size:]
        while len(data) < size:
            more = self.stream.read(size - len(data))
            if not more:
                raise self.error("it ends in the middle of an archive")
            data += more
        self.at += size
        return data

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self.take(min(size, 1 << 18)))

    def pad(self) -> None:
        self.skip(-self.at % 4)

    def error(self, what: str) -> InitramfsError:
        return InitramfsError(f"{self.path}: {what}. {REBUILD}")
