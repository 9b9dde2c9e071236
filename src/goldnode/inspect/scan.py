"""Scanner of file systems, wheels and layers: one pass over the files, without unpacking or running anything.

A scan knows neither policy nor other scans. It records which files exist and what each ELF file contains, and
collects the small texts that identify packages and versions. The scan of a layer is therefore the same
everywhere, and is cached by digest. A `View` combines the scans of several layers; the policy reads the view.

All input may be hostile. Only regular files are opened, links are never followed, and counts, sizes and
expansion are limited. Everything beyond a limit is recorded in `left_out`. An image with unscanned files does
not pass.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

from goldnode.core.elf import MAGIC, Data
from goldnode.core.errors import ImageError
from goldnode.core.extras import MissingExtraError
from goldnode.inspect import archives, devicecode, elf
from goldnode.inspect.archives import ScannedPath, SourceFile
from goldnode.inspect.devicecode import HEAD
from goldnode.oci.identity import ImageIdentity

# Version of the scan format; cached scans of another version are ignored.
VERSION = 4

_LINKS = 40  # links that Linux follows in one path

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
    | etc/(?:passwd|group)
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
    "passwd",
    "group",
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
    one text. `expansion` is the highest compression ratio, `depth` the highest number of archives in each
    other.
    """

    files: int = 2_000_000
    file: int = 8 << 30
    total: int = 64 << 30
    text: int = 32 << 20
    expansion: int = 500
    in_memory: int = 32 << 20
    depth: int = 6


@dataclass
class Scan:
    """Files of one source, relative to its root.

    `elf` has ELF files, and other files that hold device code or name libraries. `versions` were read from
    libraries: path to component and version. `scripts` has the first line of each script. `bundles` has the SHA-256 of
    each script with an archive in it. `archives` has the content of archives among the files.
    `unopened` are archives whose format is not read, with that format. `left_out` are the paths that could
    not be read, with the reason.
    """

    paths: dict[str, ScannedPath] = field(default_factory=dict)
    elf: dict[str, elf.Elf] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, tuple[str, str]] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    archives: dict[str, Scan] = field(default_factory=dict)
    unopened: dict[str, str] = field(default_factory=dict)

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
            "scripts": self.scripts,
            "bundles": self.bundles,
            "left_out": self.left_out,
            "archives": {path: row.document() for path, row in self.archives.items()},
            "unopened": self.unopened,
        }

    @classmethod
    def of(cls, data: Any) -> Scan | None:
        """Parse the result of `document`; None for another version or format."""
        try:
            if data["version"] != VERSION:
                return None
            tuples = ("needed", "device", "strings")
            archives = {path: cls.of(row) for path, row in data["archives"].items()}
            return cls(
                paths={path: ScannedPath(*row) for path, row in data["paths"].items()},
                elf={
                    path: elf.Elf(**{**row, **{key: tuple(row.get(key, ())) for key in tuples}})
                    for path, row in data["elf"].items()
                },
                texts=dict(data["texts"]),
                versions={path: (row[0], row[1]) for path, row in data["versions"].items()},
                scripts=dict(data["scripts"]),
                bundles=dict(data["bundles"]),
                left_out=dict(data["left_out"]),
                archives={path: row for path, row in archives.items() if row is not None},
                unopened=dict(data["unopened"]),
            )
        except (KeyError, TypeError, AttributeError, IndexError):
            return None


def collect(files: Iterable[SourceFile], limits: Limits | None = None, *, name: str = "") -> Scan:
    """Scan `files`. `name` is the key in `left_out` for faults of the whole source."""
    scan = Scan()
    _Collector(limits or Limits()).run(scan, files, name or ".")
    return scan


class _LimitError(Exception):
    """A limit of the whole source is reached: nothing more is read."""


class _Collector:
    """One scan in progress: limits, and what was used of them by the source and the archives in it."""

    def __init__(self, bounds: Limits) -> None:
        self.bounds = bounds
        self.read = self.files = 0

    def run(self, scan: Scan, files: Iterable[SourceFile], name: str, depth: int = 0) -> None:
        """Scan `files` into `scan`. An archive in an archive has a larger `depth`."""
        try:
            for item in files:
                self.files += 1
                if self.files > self.bounds.files:
                    raise _LimitError(
                        f"it has more than {self.bounds.files:,} files; the rest was not read"
                    )
                if item.path:
                    scan.paths[item.path] = item.entry
                    # No ELF file, archive or library name is that short. A negative size is not known yet.
                    if item.open is not None and not 0 <= item.entry.size < 8:
                        self._file(scan, item, depth)
        except _LimitError as error:
            if depth:
                raise
            scan.left_out[name] = str(error)
        except archives.ERRORS as error:
            scan.left_out[name] = f"it ends early or is damaged: {error}"

    def _file(self, scan: Scan, item: SourceFile, depth: int) -> None:
        path = item.path
        # Texts in archives are not those of the installation.
        is_text = (
            not depth
            and (path.endswith(_ENDINGS) or path.startswith(_PLACES))
            and _TEXTS.match(path) is not None
        )
        try:
            # Most files are of no interest. Reading the first bytes without a file object is faster.
            if (
                not is_text
                and isinstance(item.open, ListedFileOpener)
                and not _is_of_interest(item.open.begins(), path)
            ):
                return
            if item.open is None:
                return
            with item.open() as stream:
                head = stream.read(HEAD)
                if is_text or _is_of_interest(head, path):
                    self._content(
                        scan, item=item, stream=stream, head=head, is_text=is_text, depth=depth
                    )
        except tarfile.TarError:
            raise  # of the tar that the file is in, which ends here
        except (*archives.ERRORS, MissingExtraError) as error:
            scan.left_out[path] = f"it cannot be read: {error}"

    def _content(
        self,
        scan: Scan,
        item: SourceFile,
        stream: IO[bytes],
        head: bytes,
        is_text: bool,
        *,
        depth: int,
    ) -> None:
        """Scan a file whose first bytes are of interest."""
        path, size = item.path, item.entry.size
        if not is_text and (kind := archives.kind_of(head)):
            self._archive(scan, item=item, kind=kind, stream=stream, head=head, depth=depth)
            return
        if not is_text and (form := archives.unread_kind(head)):
            scan.unopened[path] = form
            return
        if not is_text and not head.startswith((MAGIC, archives.AR, b"#!")):
            self._other(scan, path, stream, head)
            return
        # Whether its interpreter is there is checked later, for files of the installation alone.
        if head.startswith(b"#!") and not depth:
            scan.scripts[path] = head.partition(b"\n")[0][:_SHEBANG].decode("utf-8", "replace")
        self.read += max(size, 0)
        if why := _too_much(item, self.read, is_text, self.bounds):
            scan.left_out[path] = why
            if self.read > self.bounds.total:
                raise _LimitError(why)
            return
        if is_text:
            scan.texts[path] = (head + stream.read(size)).decode("utf-8", "replace")
            return
        with _content(stream, head, size, self.bounds) as data:
            if not head.startswith(b"#!"):
                _one(scan, path, data)
            # Self-extracting installers and one-file Python programs carry their libraries after the
            # program.
            self._appended(scan, path, data, depth)

    def _other(self, scan: Scan, path: str, stream: IO[bytes], head: bytes) -> None:
        """Scan a file that is neither ELF nor an archive: device code as a whole, or Python source."""
        if path.endswith(".py"):
            whole = head + stream.read(_SOURCE_CODE - len(head))
            if names := _loaded_by_python(whole):
                scan.elf[path] = elf.Elf(machine="python", strings=names, loads=True)
            return
        if devicecode.may_be_text(head):
            # PTX is text, and its first directive may follow a long comment.
            head += stream.read(devicecode.TEXT_HEAD - len(head))
        if kind := devicecode.of_file(head):
            scan.elf[path] = elf.Elf(machine="data", device=(kind,))

    def _appended(self, scan: Scan, path: str, data: Data, depth: int) -> None:
        """Scan the archive that is appended to a program or script."""
        row = scan.elf.get(path)
        archive = archives.in_script(data) if data[:2] == b"#!" else None
        if row is not None:
            archive = archives.appended(data, row.end)
        if archive is None:
            return
        if archive.kind == "data" or any(archive.kind == form for _, form in archives.UNREAD):
            scan.unopened[path] = f"{archive.kind} appended to a program"
            return
        # Self-extracting installers have gigabytes; a program that is known by its digest has none.
        if row is None and not depth and len(data) <= _BUNDLE:
            scan.bundles[path] = hashlib.sha256(data).hexdigest()
        inner = Scan()
        self._nested(
            scan,
            inner=inner,
            path=path,
            kind=archive.kind,
            stream=io.BufferedReader(archives.Rest(data, archive.start)),
            depth=depth,
        )

    def _archive(
        self, scan: Scan, item: SourceFile, kind: str, stream: IO[bytes], head: bytes, *, depth: int
    ) -> None:
        whole = cast(IO[bytes], io.BufferedReader(archives.Prefixed(head, stream), 1 << 16))
        if kind != "zip":
            self._nested(scan, inner=Scan(), path=item.path, kind=kind, stream=whole, depth=depth)
            return
        # A zip is read from its end.
        with tempfile.SpooledTemporaryFile(
            self.bounds.in_memory, prefix="goldnode-inspect-"
        ) as copy:
            while block := whole.read(1 << 20):
                self._spend(len(block))
                copy.write(block)
            self._nested(
                scan,
                inner=Scan(),
                path=item.path,
                kind=kind,
                stream=cast(IO[bytes], copy),
                depth=depth,
            )

    def _nested(
        self, scan: Scan, inner: Scan, path: str, kind: str, stream: IO[bytes], *, depth: int
    ) -> None:
        """Scan the archive `path`. Its faults are faults of `scan`."""
        if depth >= self.bounds.depth:
            scan.left_out[path] = f"it is an archive in {depth} other archives, deeper than is read"
            return
        rows = archives.members(kind, stream, path, self.bounds.expansion)
        self.run(inner, self._sized(rows), "", depth + 1)
        for name, why in inner.left_out.items():
            scan.left_out[f"{path}!/{name}" if name else path] = why
        # They are reported for the outer source, with the path of the archive before them.
        inner.left_out = {}
        scan.unopened.update({f"{path}!/{name}": form for name, form in inner.unopened.items()})
        inner.unopened = {}
        # Links and directories of an archive are not installed, so no rule asks for them.
        inner.paths = {name: row for name, row in inner.paths.items() if row.kind == "f"}
        if inner.paths:
            scan.archives[path] = inner

    def _sized(self, rows: Iterable[SourceFile]) -> Iterator[SourceFile]:
        """Return members with their size. The content of a compressed file has to be read for it."""
        for row in rows:
            self._spend(max(row.entry.size, 0) if row.packed == 0 else 0)
            if row.entry.size >= 0 or row.open is None:
                yield row
                continue
            stream = row.open()
            head = stream.read(HEAD)
            if not _is_of_interest(head, row.path):
                continue
            if archives.unread_kind(head):
                yield row._replace(
                    entry=ScannedPath("f", len(head)), open=partial(io.BytesIO, head)
                )
                continue
            whole = archives.Prefixed(head, stream)
            if archives.kind_of(head) not in ("", "zip"):
                # It is read as a stream.
                yield row._replace(
                    entry=ScannedPath("f", len(head)), open=partial(_buffered, whole)
                )
                continue
            with tempfile.SpooledTemporaryFile(
                self.bounds.in_memory, prefix="goldnode-inspect-"
            ) as copy:
                size = 0
                while block := whole.read(1 << 20):
                    self._spend(len(block))
                    size += len(block)
                    copy.write(block)
                copy.seek(0)
                yield row._replace(
                    entry=ScannedPath("f", size),
                    open=partial(_given, cast(IO[bytes], copy)),
                )

    # One budget for the whole source: many small archives must not add up without a limit.
    def _spend(self, size: int) -> None:
        self.read += size
        if self.read > self.bounds.total:
            raise _LimitError(
                f"more than {self.bounds.total:,} bytes of libraries and texts; the remaining files were not read"
            )


def _given(stream: IO[bytes]) -> IO[bytes]:
    return stream


def _buffered(raw: io.RawIOBase) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(raw, 1 << 16))


# First bytes of the files that are read: ELF, static libraries, device code, scripts and texts that may be
# PTX, and archives.
_MAGICS = devicecode.MAGICS | {MAGIC, elf.ARCHIVE[:4]}
_BEGINNINGS = archives.BEGINNINGS | {b"#!"}


def _is_of_interest(head: bytes, path: str) -> bool:
    """Return whether a file that begins with `head` has to be read further."""
    # Most compressed files are documentation: their own first bytes decide, without a stream.
    if head[:3] == b"\x1f\x8b\x08" and (plain := archives.gzip_head(head)) is not None:
        return _is_of_interest(plain, path.removesuffix(".gz"))
    return (
        head[:4] in _MAGICS
        or head[:2] in _BEGINNINGS
        or archives.is_tar(head)
        or path.endswith(".py")
        or devicecode.may_be_text(head)
    )


_BUNDLE = 8 << 20  # bytes of a script with an archive whose digest is recorded
_SHEBANG = 255  # bytes that Linux reads of the first line of a script
_SOURCE_CODE = 4 << 20  # bytes of a script that are searched for names of libraries
_QUOTED = re.compile(rb"""["'/](lib[\w+-]{2,60}\.so(?:\.\d+){0,4})["']""")
_FOUND = re.compile(rb"""find_library\(\s*["']([\w+-]{2,60})["']""")


def _loaded_by_python(source: bytes) -> tuple[str, ...]:
    """Return the names of libraries that Python source may load with ctypes or cffi."""
    # Most files load nothing, and the patterns are slower than this.
    if b"CDLL" not in source and b"dlopen" not in source and b"cdll" not in source:
        return ()
    names = [match[1].decode() for match in _QUOTED.finditer(source)]
    names += [f"lib{match[1].decode()}.so" for match in _FOUND.finditer(source)]
    return tuple(dict.fromkeys(names))[:256]


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
def _content(stream: IO[bytes], head: bytes, size: int, bounds: Limits) -> Iterator[Data]:
    """Return the content of a file as bytes or as a memory map.

    A file on disk is mapped directly. Any other large file is copied to a temporary file first.
    """
    number = stream.fileno() if size > 1 << 20 and isinstance(stream, FileIO) else -1
    # Pages of a mapping are read only where something is searched for.
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


def _one(scan: Scan, path: str, data: Data) -> None:
    if data[:8] == elf.ARCHIVE:
        binary = elf.read_archive(data)
        # Static libraries are not loaded at run time, so only their device code counts.
        if binary.device:
            scan.elf[path] = binary
        return
    binary = elf.read(data)
    scan.elf[path] = binary
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
    # /proc, /sys and volumes of a running container are not part of the image.
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
                state = row.stat(follow_symlinks=False)
                entry = ScannedPath("f", state.st_size, "", bool(state.st_mode & 0o111))
                yield SourceFile(path, entry, ListedFileOpener(row.path))


class ListedFileOpener:
    """Opener of a file in a directory. It refuses a file that was replaced since it was listed."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    # NONBLOCK: a file that was replaced by a FIFO would block the open. NOCTTY: a terminal would become
    # ours.
    _FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

    def begins(self) -> bytes:
        """Return the first bytes of the file."""
        number = os.open(self.path, self._FLAGS)
        try:
            return os.read(number, HEAD)
        finally:
            os.close(number)

    def __call__(self) -> IO[bytes]:
        number = os.open(self.path, self._FLAGS)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError("it is no regular file any more")
        return open(number, "rb", buffering=0)  # noqa: PTH123 - of a descriptor


def scan_tar(tar: tarfile.TarFile, limits: Limits | None = None, *, name: str = "") -> Scan:
    """Scan a tar, such as a layer. Whiteouts are recorded as ordinary files."""
    return collect(archives.tar_members(tar), limits, name=name)


def scan_wheel(path: Path, limits: Limits | None = None) -> Scan:
    """Scan a wheel without unpacking it. Raise ImageError if it is not a zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return collect(archives.zip_members(archive), limits, name=path.name)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ImageError(
            f"{path} is no wheel that can be read: {error}", remedy="fetch it again"
        ) from error


# ----- the whole


@dataclass
class View(Scan):
    """Combined result of several scans.

    `configured`: the source has an image configuration, which sets `environment`, `labels`, `architecture`, `identity`
    and how a container starts: `command` (entrypoint and arguments), `workdir` and `user`. `name` is the reference
    that the image was found by, which proves nothing. `below` has the files that a layer contains and a later one
    removes or replaces: they are still part of the image that is sent.
    """

    name: str = ""
    configured: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    architecture: str = ""
    command: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    below: list[Scan] = field(default_factory=list)
    identity: ImageIdentity = field(default_factory=lambda: ImageIdentity("foreign"))
    _counted: int = field(default=-1, repr=False)
    _directories: set[str] = field(default_factory=set, repr=False)

    def add(self, scan: Scan) -> None:
        """Apply a layer on top, with its whiteouts (OCI image specification)."""
        gone: list[str] = []
        opaque: list[str] = []
        here: dict[str, ScannedPath] = {}
        for path, entry in scan.paths.items():
            folder, _, last = path.rpartition("/")
            # An opaque whiteout hides all that lower layers have in the directory.
            if last == ".wh..wh..opq":
                opaque.append(folder)
            # A whiteout removes one path.
            elif last.startswith(".wh."):
                gone.append(f"{folder}/{last[4:]}".lstrip("/"))
            else:
                here[path] = entry
        if self.paths:
            # A layer need not list its directories. Derive them from the paths below, to detect a file
            # replacing a directory or a directory replacing a file.
            below, above = _folders(self.paths), _folders(here)
            gone += [path for path, entry in here.items() if entry.kind != "d" and path in below]
            self._drop(
                [path for path in above if path in self.paths and self.paths[path].kind == "f"]
            )
            if "" in opaque:
                self._drop(list(self.paths))
            exact = set(gone)
            prefixes = tuple(f"{path}/" for path in (*gone, *opaque) if path)
            self._drop(
                [
                    path
                    for path in self.paths
                    if path in exact or (prefixes and path.startswith(prefixes))
                ]
            )
            self._drop([path for path in here if path in self.paths])
        self.paths.update(here)
        self.elf.update({path: row for path, row in scan.elf.items() if path in here})
        self.texts.update({path: row for path, row in scan.texts.items() if path in here})
        self.versions.update({path: row for path, row in scan.versions.items() if path in here})
        self.scripts.update({path: row for path, row in scan.scripts.items() if path in here})
        self.bundles.update({path: row for path, row in scan.bundles.items() if path in here})
        self.archives.update({path: row for path, row in scan.archives.items() if path in here})
        self.left_out.update(scan.left_out)
        self.unopened.update(scan.unopened)

    def _drop(self, paths: Iterable[str]) -> None:
        gone = Scan()
        for path in paths:
            if (entry := self.paths.pop(path, None)) is not None and entry.kind == "f":
                gone.paths[path] = entry
            if (row := self.elf.pop(path, None)) is not None:
                gone.elf[path] = row
            if (inner := self.archives.pop(path, None)) is not None:
                gone.archives[path] = inner
            self.texts.pop(path, None)
            self.versions.pop(path, None)
            self.scripts.pop(path, None)
            self.bundles.pop(path, None)
        if gone.paths:
            # Kept for the rules on lower layers: a pull still transfers it.
            self.below.append(gone)

    def resolve(self, path: str) -> str | None:
        """Return the path of the file or directory that a path leads to inside; None if there is none."""
        todo, resolved, links = (
            [part for part in path.split("/") if part not in ("", ".")][::-1],
            "",
            0,
        )
        while todo:
            part = todo.pop()
            if part == "..":
                resolved = resolved.rpartition("/")[0]
                continue
            here = f"{resolved}/{part}".lstrip("/")
            entry = self.paths.get(here)
            if entry is not None and entry.kind == "l":
                links += 1
                # A loop. The kernel gives up too (ELOOP).
                if links > _LINKS:
                    return None
                # An absolute link starts at the root of the image, not of this machine.
                resolved = "" if entry.link.startswith("/") else resolved
                todo += [one for one in entry.link.split("/") if one not in ("", ".")][::-1]
                continue
            if entry is not None and entry.kind == "h":
                here = entry.link
            resolved = here
        # A layer need not list its directories.
        return (
            resolved if not resolved or resolved in self.paths or resolved in self.folders else None
        )

    @property
    def folders(self) -> set[str]:
        """Return every directory that a path is in."""
        if len(self.paths) != self._counted:
            self._counted, self._directories = len(self.paths), _folders(self.paths)
        return self._directories

    def text(self, *paths: str) -> str | None:
        """Return the first of these texts that exists, following one link."""
        for path in paths:
            content = self.texts.get(path)
            entry = self.paths.get(path)
            if content is None and entry is not None and entry.kind in "lh":
                if entry.kind == "h" or entry.link.startswith("/"):
                    base = ""
                else:
                    base = path.rpartition("/")[0] + "/"
                content = self.texts.get(os.path.normpath(base + entry.link).lstrip("/"))
            if content is not None:
                return content
        return None


def _folders(paths: Iterable[str]) -> set[str]:
    """Return every parent directory of the paths."""
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return folders


def kept_scan(digest: str, cache: Path | None, make: Callable[[], Scan]) -> Scan:
    """Return the cached scan of `digest`, otherwise call `make` and cache the result.

    A damaged cache file is ignored and replaced.
    """
    if cache is None:
        return make()
    file = cache / "inspect" / f"{VERSION}-{digest.replace(':', '-')}.json"
    try:
        scan = Scan.of(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        scan = None
    if scan is not None:
        return scan
    scan = make()
    # A scan with faults is not cached: the next attempt may read everything.
    if not scan.left_out:
        file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
            stack.callback(lambda: Path(name).unlink(missing_ok=True))
            with os.fdopen(handle, "wb") as out:
                out.write(json.dumps(scan.document(), separators=(",", ":")).encode())
            # Two processes may scan the same layer: each writes a file of its own, and the last one stays.
            os.replace(name, file)  # noqa: PTH105
    return scan


def shown(text: str) -> str:
    """Escape control characters, bidirectional marks and broken bytes, so that a name can be printed as
    UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
