"""Scanner of file systems, wheels and layers: one pass over the files, without unpacking or running anything.

A scan knows neither policy nor other scans. It records which files exist and what each ELF file contains, and
collects the small texts that identify packages and versions. The scan of a layer is therefore the same
everywhere, and is cached by digest. A `View` combines the scans of several layers; the policy reads the view.

All input may be hostile. Only regular files are opened, links are never followed, and counts, sizes and
expansion are limited. Everything beyond a limit is recorded in `left_out`. An image with unscanned files does
not pass.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from goldnode.core.errors import ImageError
from goldnode.inspect import elf
from goldnode.oci.layout import clean

# Version of the scan format; cached scans of another version are ignored.
VERSION = 1

_TEXTS = re.compile(
    r"""(?:
      (?:.*/)?[^/]+\.dist-info/(?:METADATA|RECORD)
    | (?:.*/)?[^/]+\.egg-info(?:/PKG-INFO)?
    | var/lib/dpkg/status(?:\.d/[^/]+)?
    | var/lib/dpkg/info/[^/]+\.list
    | (?:etc|usr/lib)/os-release
    | usr/lib/goldnode/image\.json
    | opt/rocm[^/]*/\.info/version[^/]*
    | usr/local/cuda[^/]*/version\.json
    | etc/ld\.so\.conf(?:\.d/[^/]+\.conf)?
    )\Z""",
    re.VERBOSE,
)
# A cheap test of suffix and prefix; `_TEXTS` would be slow for every path.
_ENDINGS = (
    "METADATA",
    "RECORD",
    ".egg-info",
    "PKG-INFO",
    ".list",
    "os-release",
    "image.json",
    "version.json",
    ".conf",
    "status",
)
_PLACES = ("var/lib/dpkg/status.d/", "opt/rocm")
_CUDART, _CUDNN, _NCCL = (
    re.compile(rf"lib{name}(?:-[0-9a-f]{{8}})?\.so(?:\.(\d+))?")
    for name in ("cudart", "cudnn_(?:graph|ops_infer)", "nccl")
)


@dataclass(frozen=True)
class Limits:
    """Limits for one source.

    `files` is a number of files. `file`, `total` and `text` are bytes of one file, of all files read, and of
    one text. `expansion` is the highest compression ratio.
    """

    files: int = 2_000_000
    file: int = 8 << 30
    total: int = 64 << 30
    text: int = 32 << 20
    expansion: int = 500
    in_memory: int = 32 << 20


class ScannedPath(NamedTuple):
    """Type of a path, size in bytes, and link target.

    `kind` is `f` (regular file), `d` (directory), `l` (symbolic link), `h` (hard link) or `o` (other).
    """

    kind: str
    size: int = 0
    link: str = ""


@dataclass
class Scan:
    """Files of one source, relative to its root.

    `versions` were read from libraries: path to component and version.
    """

    paths: dict[str, ScannedPath] = field(default_factory=dict)
    elf: dict[str, elf.Elf] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the scan as JSON-serialisable data for the cache."""
        defaults = asdict(elf.Elf())
        return {
            "version": VERSION,
            "paths": self.paths,
            "elf": {
                path: {key: value for key, value in asdict(row).items() if value != defaults[key]}
                for path, row in self.elf.items()
            },
            "texts": self.texts,
            "versions": self.versions,
            "left_out": self.left_out,
        }

    @classmethod
    def of(cls, data: Any) -> Scan | None:
        """Parse the result of `document`; None for another version or format."""
        try:
            if data["version"] != VERSION:
                return None
            tuples = ("needed", "device", "strings")
            return cls(
                {path: ScannedPath(*row) for path, row in data["paths"].items()},
                {
                    path: elf.Elf(**{**row, **{key: tuple(row.get(key, ())) for key in tuples}})
                    for path, row in data["elf"].items()
                },
                dict(data["texts"]),
                {path: (row[0], row[1]) for path, row in data["versions"].items()},
                dict(data["left_out"]),
            )
        except (KeyError, TypeError, AttributeError, IndexError):
            return None


class SourceFile(NamedTuple):
    """A file of a source. `open` opens its content; None if it has no content."""

    path: str
    entry: ScannedPath
    open: Callable[[], IO[bytes]] | None
    packed: int = 0


def collect(files: Iterable[SourceFile], limits: Limits | None = None, *, name: str = "") -> Scan:
    """Scan `files`. `name` is the key in `left_out` for faults of the whole source."""
    bounds = limits or Limits()
    scan, read = Scan(), 0
    try:
        for number, item in enumerate(files):
            path, entry = item.path, item.entry
            if number >= bounds.files:
                scan.left_out[name or "."] = f"it has more than {bounds.files:,} files; the rest was not read"
                break
            if not path:
                continue
            scan.paths[path] = entry
            if item.open is None or entry.size < 8:
                continue
            is_text = (path.endswith(_ENDINGS) or path.startswith(_PLACES)) and _TEXTS.match(path) is not None
            try:
                # Most files are neither text nor ELF. Reading the first bytes without a file object is
                # faster.
                if not is_text and isinstance(item.open, _Opener) and not item.open.begins():
                    continue
                with item.open() as stream:
                    head = stream.read(8)
                    if not is_text and head[:4] != elf.MAGIC and head != elf.ARCHIVE:
                        continue
                    read += entry.size
                    why = _too_much(item, read, is_text, bounds)
                    if why:
                        scan.left_out[path] = why
                        if read > bounds.total:
                            return scan
                        continue
                    if is_text:
                        scan.texts[path] = (head + stream.read(entry.size)).decode("utf-8", "replace")
                        continue
                    with _content(stream, head, entry.size, bounds) as data:
                        _one(scan, path, data)
            except (
                OSError,
                EOFError,
                zipfile.BadZipFile,
                zlib.error,
                RuntimeError,
                NotImplementedError,
                ValueError,
            ) as error:
                if isinstance(error, tarfile.TarError):
                    raise
                scan.left_out[path] = f"it cannot be read: {error}"
    except (tarfile.TarError, EOFError, zlib.error, OSError, struct.error) as error:
        scan.left_out[name or "."] = f"it ends early or is damaged: {error}"
    return scan


def _too_much(item: SourceFile, read: int, is_text: bool, bounds: Limits) -> str:
    size = item.entry.size
    if size > (bounds.text if is_text else bounds.file):
        return f"it is larger than is read ({size:,} bytes)"
    if item.packed and size > 1 << 20 and size // item.packed > bounds.expansion:
        return f"it expands {size // item.packed}-fold, more than any library does"
    if read > bounds.total:
        return f"more than {bounds.total:,} bytes of libraries and texts; the remaining files were not read"
    return ""


@contextmanager
def _content(stream: IO[bytes], head: bytes, size: int, bounds: Limits) -> Iterator[elf.Data]:
    """Return the content of a file as bytes or as a memory map.

    A file on disk is mapped directly. Any other large file is copied to a temporary file first.
    """
    number = stream.fileno() if size > 1 << 20 and isinstance(stream, FileIO) else -1
    if number >= 0:
        with closing(mmap.mmap(number, 0, prot=mmap.PROT_READ)) as data:
            yield data
        return
    if size <= bounds.in_memory:
        yield head + stream.read(size - len(head))
        return
    with tempfile.TemporaryFile(prefix="goldnode-inspect-") as copy:
        copy.write(head)
        left = size - len(head)
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            copy.write(block)
            left -= len(block)
        copy.flush()
        with closing(mmap.mmap(copy.fileno(), 0, prot=mmap.PROT_READ)) as data:
            yield data


def _one(scan: Scan, path: str, data: elf.Data) -> None:
    if data[:8] == elf.ARCHIVE:
        found = elf.read_archive(data)
        if found.device:
            scan.elf[path] = found
        return
    found = elf.read(data)
    scan.elf[path] = found
    name = path.rpartition("/")[2]
    version: str | None = None
    if _CUDART.match(name):
        component, version = "cudart", elf.cudart_version(data)
    elif match := _CUDNN.match(name):
        component, version = "cudnn", elf.cudnn_version(data, int(match[1])) if match[1] else None
    elif _NCCL.match(name):
        component, version = "nccl", elf.nccl_version(data)
    if version:
        scan.versions[path] = (component, version)


# ----- sources


def scan_directory(root: Path, limits: Limits | None = None) -> Scan:
    """Scan a directory as a root file system, without entering other file systems mounted in it."""
    return collect(_walk(os.fspath(root)), limits, name=str(root))


def _walk(root: str) -> Iterator[SourceFile]:
    device = os.lstat(root).st_dev
    cut = len(root.rstrip("/")) + 1
    todo = [root]
    while todo:
        folder = todo.pop()
        with os.scandir(folder) as rows:
            for row in rows:
                path = row.path[cut:]
                if row.is_symlink():
                    yield SourceFile(path, ScannedPath("l", 0, os.readlink(row.path)), None)  # noqa: PTH115 - tens of thousands of them
                    continue
                if row.is_dir(follow_symlinks=False):
                    yield SourceFile(path, ScannedPath("d"), None)
                    if row.stat(follow_symlinks=False).st_dev == device:
                        todo.append(row.path)
                    continue
                if not row.is_file(follow_symlinks=False):
                    yield SourceFile(path, ScannedPath("o"), None)
                    continue
                size = row.stat(follow_symlinks=False).st_size
                yield SourceFile(path, ScannedPath("f", size), _Opener(row.path))


class _Opener:
    """Opener of a file in a directory. It refuses a file that was replaced since it was listed."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    _FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

    def begins(self) -> bool:
        """Return whether the file begins like an ELF file or a static library."""
        number = os.open(self.path, self._FLAGS)
        try:
            head = os.read(number, 8)
        finally:
            os.close(number)
        return head[:4] == elf.MAGIC or head == elf.ARCHIVE

    def __call__(self) -> IO[bytes]:
        number = os.open(self.path, self._FLAGS)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError("it is no regular file any more")
        return open(number, "rb", buffering=0)  # noqa: PTH123 - of a descriptor


def scan_tar(tar: tarfile.TarFile, limits: Limits | None = None, *, name: str = "") -> Scan:
    """Scan a tar, such as a layer. Whiteouts are recorded as ordinary files."""
    return collect(_members(tar), limits, name=name)


def _members(tar: tarfile.TarFile) -> Iterator[SourceFile]:
    for info in tar:
        path = clean(info.name)
        if info.isreg():
            # The content must be read before the tar advances to the next member.
            yield SourceFile(path, ScannedPath("f", info.size), partial(_extract, tar, info))
        elif info.isdir():
            yield SourceFile(path, ScannedPath("d"), None)
        elif info.issym():
            yield SourceFile(path, ScannedPath("l", 0, info.linkname), None)
        elif info.islnk():
            yield SourceFile(path, ScannedPath("h", 0, clean(info.linkname)), None)
        else:
            yield SourceFile(path, ScannedPath("o"), None)


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(info)
    if stream is None:
        raise OSError("it has no content")
    return stream


def scan_wheel(path: Path, limits: Limits | None = None) -> Scan:
    """Scan a wheel without unpacking it. Raise ImageError if it is not a zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return collect(_entries(archive), limits, name=path.name)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ImageError(f"{path} is no wheel that can be read: {error}", remedy="fetch it again") from error


def _entries(archive: zipfile.ZipFile) -> Iterator[SourceFile]:
    for info in archive.infolist():
        path = clean(info.filename)
        if info.is_dir():
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


# ----- the whole


@dataclass
class View(Scan):
    """Combined result of several scans.

    `configured`: the source has an image configuration, which sets `environment`, `labels` and
    `architecture`. `name` is the name of the image.
    """

    name: str = ""
    configured: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    architecture: str = ""

    def add(self, scan: Scan) -> None:
        """Apply a layer on top, with its whiteouts (OCI image specification)."""
        gone: list[str] = []
        opaque: list[str] = []
        here: dict[str, ScannedPath] = {}
        for path, entry in scan.paths.items():
            folder, _, last = path.rpartition("/")
            if last == ".wh..wh..opq":
                opaque.append(folder)
            elif last.startswith(".wh."):
                gone.append(f"{folder}/{last[4:]}".lstrip("/"))
            else:
                here[path] = entry
        if self.paths:
            # A layer need not list its directories. Derive them from the paths below, to detect a file
            # replacing a directory or a directory replacing a file.
            below, above = _folders(self.paths), _folders(here)
            gone += [path for path, entry in here.items() if entry.kind != "d" and path in below]
            self._drop([path for path in above if path in self.paths and self.paths[path].kind == "f"])
            if "" in opaque:
                self._drop(list(self.paths))
            exact = set(gone)
            prefixes = tuple(f"{path}/" for path in (*gone, *opaque) if path)
            self._drop(
                [path for path in self.paths if path in exact or (prefixes and path.startswith(prefixes))]
            )
            self._drop([path for path in here if path in self.paths])
        self.paths.update(here)
        self.elf.update({path: row for path, row in scan.elf.items() if path in here})
        self.texts.update({path: row for path, row in scan.texts.items() if path in here})
        self.versions.update({path: row for path, row in scan.versions.items() if path in here})
        self.left_out.update(scan.left_out)

    def _drop(self, paths: Iterable[str]) -> None:
        for path in paths:
            for table in (self.paths, self.elf, self.texts, self.versions):
                table.pop(path, None)

    def text(self, *paths: str) -> str | None:
        """Return the first of these texts that exists, following one link."""
        for path in paths:
            found = self.texts.get(path)
            entry = self.paths.get(path)
            if found is None and entry is not None and entry.kind in "lh":
                base = (
                    "" if entry.kind == "h" or entry.link.startswith("/") else path.rpartition("/")[0] + "/"
                )
                found = self.texts.get(os.path.normpath(base + entry.link).lstrip("/"))
            if found is not None:
                return found
        return None


def _folders(paths: Iterable[str]) -> set[str]:
    """Return every parent directory of the paths."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def kept_scan(digest: str, cache: Path | None, make: Callable[[], Scan]) -> Scan:
    """Return the cached scan of `digest`, otherwise call `make` and cache the result.

    A damaged cache file is ignored and replaced.
    """
    if cache is None:
        return make()
    file = cache / "inspect" / f"{VERSION}-{digest.replace(':', '-')}.json"
    try:
        found = Scan.of(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        found = None
    if found is not None:
        return found
    found = make()
    # A scan with faults is not cached: the next attempt may read everything.
    if not found.left_out:
        file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
            stack.callback(lambda: Path(name).unlink(missing_ok=True))
            with os.fdopen(handle, "wb") as out:
                out.write(json.dumps(found.document(), separators=(",", ":")).encode())
            os.replace(name, file)  # noqa: PTH105
    return found


def shown(text: str) -> str:
    """Escape control characters, bidirectional marks and broken bytes, so that a name can be printed as
    UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
