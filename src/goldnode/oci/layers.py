"""Layers of an image. Equal content gives equal bytes: sorted tars, fixed dates and owners, gzip without a
date.

A wheel becomes a layer alone or with others, directly from the zip to the blob: without an engine, and
without a copy on disk. The same wheel in two images is the same layer, because its files keep their dates.
The gzip is a sequence of members, each of its own piece of the tar, compressed in parallel; the bytes do not
depend on the number of processors. (RFC 1952 allows several members; eStargz layers have them too.)
"""

from __future__ import annotations

import base64
import calendar
import csv
import hashlib
import io
import mmap
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from goldnode.core import elf
from goldnode.core.errors import ImageError
from goldnode.oci.layout import LAYER, Descriptor, Layout

# Raised when the same input becomes other bytes than before.
WRITER = 1
LEVEL = 4  # of zlib: half the time of 6 for 3 % more bytes of a Debian root
MEMBER = 4 << 20  # bytes of the tar in one member of the gzip
OWN_LAYER = 64 << 20  # bytes of a wheel from which on it is a layer by itself

Kind = Literal["file", "directory", "link", "hardlink"]


def tools() -> dict[str, str]:
    """Return the versions that determine the bytes of every layer: the compressor's and the writer's own."""
    return {"zlib": zlib.ZLIB_RUNTIME_VERSION, "layer": str(WRITER)}


@dataclass(frozen=True)
class LayerEntry:
    """One member of a layer. `path` is relative; `mtime` in seconds; `open` gives the content of a file, `target` of a link."""

    path: str
    kind: Kind = "file"
    mode: int = 0o644
    mtime: int = 0
    size: int = 0
    target: str = ""
    open: Callable[[], IO[bytes]] | None = field(default=None, compare=False)

    @classmethod
    def text(cls, path: str, content: str | bytes, mtime: int, mode: int = 0o644) -> LayerEntry:
        """Return the entry of a file with this content."""
        data = content.encode() if isinstance(content, str) else content
        return cls(path, "file", mode, mtime, len(data), open=lambda: io.BytesIO(data))

    @classmethod
    def link(cls, path: str, target: str, mtime: int) -> LayerEntry:
        """Return the entry of a symbolic link."""
        return cls(path, "link", 0o777, mtime, target=target)


@dataclass(frozen=True)
class Layer:
    """A layer as a blob: `diff` is the digest of its plain tar, `blob` of what is stored and sent."""

    diff: str
    blob: Descriptor

    def document(self) -> dict[str, Any]:
        """Return the entry of a layer in the cache of the store."""
        return {"diff": self.diff, "blob": self.blob.document()}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Layer:
        """Read what `document` wrote."""
        return cls(data["diff"], Descriptor.of(data["blob"]))


# Directories of every Debian root: naming them in a layer would only change their dates.
_COMMON = frozenset(
    (
        "etc",
        "etc/ld.so.conf.d",
        "opt",
        "usr",
        "usr/bin",
        "usr/lib",
        "usr/share",
        "usr/local",
        "usr/local/bin",
        "usr/local/lib",
        "usr/local/include",
    )
)


def with_directories(entries: Iterable[LayerEntry]) -> list[LayerEntry]:
    """Return the entries and their directories, sorted, without the directories of every root. A directory has the
    date of its newest entry.
    """
    complete = list(entries)
    newest: dict[str, int] = {}
    for entry in complete:
        folder = entry.path
        # A date that depends on nothing but the content: the same entries give the same layer.
        while folder := folder.rpartition("/")[0]:
            newest[folder] = max(newest.get(folder, 0), entry.mtime)
    have = {entry.path for entry in complete}
    complete += [
        LayerEntry(path, "directory", 0o755, date)
        for path, date in newest.items()
        if path not in have and path not in _COMMON
    ]
    # By parts: as text "a-b" would come before "a/b", and so between a directory and its content.
    return sorted(complete, key=lambda entry: entry.path.split("/"))


def write_layer(
    layout: Layout, entries: Iterable[LayerEntry], *, cancelled: Callable[[], bool] = lambda: False
) -> Layer:
    """Write entries, in their order, as one layer into `layout`. Raises ImageError where the disk is full."""
    with _blob(layout) as (sink, done):
        with tarfile.open(
            fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20
        ) as tar:
            for entry in entries:
                if cancelled():
                    raise ImageError("the build was stopped")
                _add(tar, entry)
        return done()


def _add(tar: tarfile.TarFile, entry: LayerEntry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = entry.mode, entry.mtime
    if entry.kind == "file":
        info.size = entry.size
        if entry.open is None:
            raise ValueError(f"{entry.path} has no content")
        with entry.open() as content:
            tar.addfile(info, content)
        return
    info.type = {
        "directory": tarfile.DIRTYPE,
        "link": tarfile.SYMTYPE,
        "hardlink": tarfile.LNKTYPE,
    }[entry.kind]
    info.linkname = entry.target
    tar.addfile(info)


def normalised(
    source: IO[bytes], epoch: int, dropped: re.Pattern[str]
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the members of an engine's layer in a fixed order, without those that match `dropped`. No date is later
    than `epoch`, and owners are numbers.
    """
    with tarfile.open(fileobj=source, mode="r:") as tar:
        kept = []
        for info in tar:
            info.name = "/".join(part for part in info.name.split("/") if part not in ("", "."))
            folder, _, base = info.name.rpartition("/")
            # A whiteout represents the file that it removes.
            plain = f"{folder}/{base.removeprefix('.wh.')}".lstrip("/")
            if not info.name or dropped.fullmatch(plain):
                continue
            info.mtime = min(int(info.mtime), epoch)
            # Names of owners are those of the machine that built it.
            info.uname = info.gname = ""
            info.mode &= 0o7777  # buildah writes the file type into it, BuildKit does not
            # Extended attributes stay (capabilities of files); what only repeats a field of the header goes.
            info.pax_headers = {
                key: value
                for key, value in info.pax_headers.items()
                if key.startswith("SCHILY.xattr.security.capability")
            }
            if info.islnk():
                info.linkname = "/".join(
                    part for part in info.linkname.split("/") if part not in ("", ".")
                )
            kept.append(info)
        # A hard link needs its target before it.
        for info in sorted(kept, key=lambda item: (item.islnk(), item.name.split("/"))):
            yield info, tar.extractfile(info) if info.isreg() else None


def write_members(
    layout: Layout, members: Iterable[tuple[tarfile.TarInfo, IO[bytes] | None]]
) -> Layer:
    """Write tar members, in their order, as one layer into `layout`."""
    with _blob(layout) as (sink, done):
        with tarfile.open(
            fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20
        ) as tar:
            for info, content in members:
                tar.addfile(info, content)
        return done()


# -- the blob


class _Gzip:
    """A file to write to: hashes what comes, compresses it in members of MEMBER bytes, several at once, and hashes that too."""

    def __init__(self, file: IO[bytes], pool: ThreadPoolExecutor, width: int) -> None:
        self.file, self.pool, self.width = file, pool, width
        self.plain, self.packed, self.size = hashlib.sha256(), hashlib.sha256(), 0
        self.buffer = bytearray()
        self.waiting: deque[Future[bytes]] = deque()

    def write(self, data: bytes) -> int:
        self.plain.update(data)
        self.buffer += data
        while len(self.buffer) >= MEMBER:
            self._send(bytes(self.buffer[:MEMBER]))
            del self.buffer[:MEMBER]
        return len(data)

    def finish(self) -> None:
        # An empty layer has one member too: a gzip file without a member is not valid.
        if self.buffer or (not self.size and not self.waiting):
            self._send(bytes(self.buffer))
        while self.waiting:
            self._take()

    def _send(self, piece: bytes) -> None:
        self.waiting.append(self.pool.submit(_member, piece))
        # Bounds the memory: a disk slower than the compressors would fill it.
        if len(self.waiting) > self.width:
            self._take()

    # Results are written in the order of the pieces, whichever is ready first.
    def _take(self) -> None:
        data = self.waiting.popleft().result()
        self.packed.update(data)
        self.size += len(data)
        self.file.write(data)


def _member(piece: bytes) -> bytes:
    packer = zlib.compressobj(
        LEVEL, zlib.DEFLATED, 31
    )  # 31: a gzip header, which zlib writes without a date and a name
    return packer.compress(piece) + packer.flush()


@contextmanager
def _blob(layout: Layout) -> Iterator[tuple[Any, Callable[[], Layer]]]:
    """Return a sink for a plain tar that makes a blob of `layout` of it. An incomplete one leaves nothing
    behind.
    """
    # zlib releases the GIL.
    width = max(2, os.cpu_count() or 1)
    # In the directory of the blobs, so that the rename stays within one file system.
    place = layout.root / "blobs/sha256"
    number, name = tempfile.mkstemp(prefix=".new-", dir=place)
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file, ThreadPoolExecutor(width) as pool:
            sink = _Gzip(file, pool, width)

            def done() -> Layer:
                sink.finish()
                file.flush()
                os.fsync(file.fileno())
                digest = "sha256:" + sink.packed.hexdigest()
                temporary.chmod(0o644)
                temporary.replace(layout.path(digest))
                return Layer(
                    "sha256:" + sink.plain.hexdigest(),
                    Descriptor(LAYER + "+gzip", digest, sink.size),
                )

            yield sink, done
    finally:
        temporary.unlink(missing_ok=True)


# -- wheels


@dataclass(frozen=True)
class WheelLayout:
    """Target directories of wheels' files: `home` is None for a Python layout, else the directory of this
    CUDA (`usr/local/cuda-12.4`). `python` is the image's Python ("3.11"); `target` is the name of this
    machine in NVIDIA's `targets/`.
    """

    python: str
    home: str | None = None
    target: str = "x86_64-linux"

    @property
    def site(self) -> str:
        """Return the directory in which Python of Debian searches for modules that no package has."""
        return f"usr/local/lib/python{self.python}/dist-packages"

    @property
    def metadata(self) -> str:
        """Return the directory of the *.dist-info directories."""
        return self.site if self.home is None else "usr/lib/goldnode/wheels"

    @property
    def libraries(self) -> tuple[str, ...]:
        """Directories that the linker has to know of."""
        if self.home is None:
            return ("usr/local/lib",)
        return (
            "usr/local/lib",
            f"{self.home}/targets/{self.target}/lib",
            f"{self.home}/nvvm/lib64",
        )

    def of(self, name: str, distribution: str) -> str | None:
        """Return the path in the image of member `name` of a wheel; None for a member that no image needs."""
        first, _, rest = name.partition("/")
        if first.endswith(".dist-info"):
            return f"{self.metadata}/{name}"
        # NAME.data has a folder for each scheme of installation (PEP 427).
        if first.endswith(".data"):
            scheme, _, rest = rest.partition("/")
            folder = {
                "purelib": self.site,
                "platlib": self.site,
                "scripts": "usr/local/bin",
                "data": "usr/local",
                "headers": f"usr/local/include/python{self.python}/{distribution}",
            }.get(scheme)
            return f"{folder}/{rest}" if folder and rest else None
        if self.home is None:
            return f"{self.site}/{name}"
        if name.endswith("/__init__.py") or "__pycache__" in name:
            return None  # it only makes a Python package of a directory of libraries
        match = re.fullmatch(
            r"nvidia/[^/]+/(?:(lib|include|bin|nvvm|share|res|src|tools|extras)/)?(.+)", name
        )
        if match is None:
            raise ImageError(
                f'"{name}" of {distribution} is no part of CUDA that has a place in /{self.home}',
                remedy="give the component `layout: python`",
            )
        folder = {
            # The layout of CUDA packages, where compilers and linkers search.
            "lib": f"targets/{self.target}/lib",
            "include": f"targets/{self.target}/include",
            None: "share/doc",
        }.get(match[1], match[1])
        return f"{self.home}/{folder}/{match[2]}"


class WheelSource:
    """A wheel as what it puts into an image. Its file stays open until `close`."""

    def __init__(self, path: Path, place: WheelLayout) -> None:
        self.path, self.place = path, place
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as problem:
            raise ImageError(
                f"this wheel cannot be read: {problem}",
                file=path,
                remedy="delete it and fetch it again",
            ) from problem
        self.name = path.name.split("-")[0]
        # Not `is_dir`: in Python 3.11.7 it raises IndexError for an empty name.
        rows = self.zip.infolist()
        self.members = [info for info in rows if not info.filename.endswith("/")]
        folders = {
            info.filename.partition("/")[0]
            for info in self.members
            if info.filename.partition("/")[0].endswith(".dist-info")
        }
        if len(folders) != 1:
            raise ImageError(
                f"this wheel has {len(folders)} .dist-info directories, expected one", file=path
            )
        self.info = folders.pop()
        self.newest = max(_date(info) for info in self.members)

    def close(self) -> None:
        """Close the file."""
        self.zip.close()

    def entries(
        self, sonames: Mapping[str, str] | None = None, *, development: bool = False
    ) -> list[LayerEntry]:
        """Return the files that the wheel puts into the image, unsorted, with its RECORD rewritten to their
        new paths. `sonames` (path -> name that programs ask for) adds missing links; `development` also
        those that a linker needs.
        """
        by_path: dict[str, LayerEntry] = {}
        record: list[tuple[str, str, str]] = []
        base = self.place.metadata
        listed = {
            row[0]: row
            for row in csv.reader(io.StringIO(self._text(f"{self.info}/RECORD")))
            if len(row) == 3
        }
        for info in self.members:
            path = self.place.of(info.filename, self.name)
            # Both are written again below: pip needs the new paths to uninstall or upgrade the package.
            if path is None or info.filename in (f"{self.info}/RECORD", f"{self.info}/INSTALLER"):
                continue
            # A zip may name `../` or an absolute path.
            if _outside(path):
                raise ImageError(
                    f'this wheel has a file outside of itself, "{info.filename}"', file=self.path
                )
            entry = LayerEntry(
                path, "file", _mode(info), _date(info), info.file_size, open=_opener(self.zip, info)
            )
            row = listed.get(info.filename)
            if "/scripts/" in info.filename and info.filename.partition("/")[0].endswith(".data"):
                entry, row = self._script(info, path), None
            by_path[path] = entry
            record.append(
                (_relative(path, base), row[1], row[2]) if row else _recorded(entry, base)
            )
        for name, target in self._commands():
            entry = LayerEntry.text(
                f"usr/local/bin/{name}",
                _COMMAND.format(module=target[0], name=target[1], root=target[1].split(".")[0]),
                self.newest,
                0o755,
            )
            by_path[entry.path] = entry
            record.append(_recorded(entry, base))
        installer = LayerEntry.text(f"{base}/{self.info}/INSTALLER", "goldnode\n", self.newest)
        record += [_recorded(installer, base), (f"{self.info}/RECORD", "", "")]
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(sorted(record))
        for entry in (
            installer,
            LayerEntry.text(f"{base}/{self.info}/RECORD", out.getvalue(), self.newest),
        ):
            by_path[entry.path] = entry
        # Wheels have no symbolic links, so a library lacks the names that programs and linkers search for.
        for path, soname in (sonames or {}).items():
            folder = path.rpartition("/")[0]
            names = [soname] + ([soname.partition(".so")[0] + ".so"] if development else [])
            for name in names:
                if (link := f"{folder}/{name}") not in by_path:
                    by_path[link] = LayerEntry.link(link, path.rpartition("/")[2], self.newest)
        return list(by_path.values())

    def libraries(self) -> dict[str, dict[str, Any]]:
        """Outlines (see `outline`) of the shared libraries that the linker has to know of, by their path in the image."""
        libraries_of: dict[str, dict[str, Any]] = {}
        for info in self.members:
            path = self.place.of(info.filename, self.name)
            if (
                path is None
                or ".so" not in path.rpartition("/")[2]
                or path.rpartition("/")[0] not in self.place.libraries
            ):
                continue
            # mmap needs a file, and a library of a gigabyte is not read into memory.
            with tempfile.TemporaryFile() as plain:
                with self.zip.open(info) as packed:
                    shutil.copyfileobj(packed, plain, 1 << 20)
                plain.flush()
                if not info.file_size:
                    continue  # nothing to map
                with closing(mmap.mmap(plain.fileno(), 0, prot=mmap.PROT_READ)) as data:
                    if (shape := outline(data)) is not None:
                        libraries_of[path] = shape
        return libraries_of

    def _text(self, name: str) -> str:
        try:
            return self.zip.read(name).decode()
        except KeyError:
            raise ImageError(f"this wheel has no {name}", file=self.path) from None

    def _script(self, info: zipfile.ZipInfo, path: str) -> LayerEntry:
        data = self.zip.read(info)
        if data.startswith(b"#!python"):
            # pip replaces this line on installation (PEP 427).
            data = b"#!/usr/bin/python3" + data[data.index(b"\n") :]
        return LayerEntry.text(path, data, _date(info), 0o755)

    def _commands(self) -> list[tuple[str, tuple[str, str]]]:
        if (
            self.place.home is not None
            or f"{self.info}/entry_points.txt" not in self.zip.namelist()
        ):
            return []
        from configparser import ConfigParser  # start-up time: few wheels have such a file

        # As the packaging specification reads entry points: names keep their case, and "%" has no meaning.
        parser = ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(self._text(f"{self.info}/entry_points.txt"))
        rows = parser["console_scripts"].items() if parser.has_section("console_scripts") else ()
        scripts = []
        for name, target in rows:
            # Extras in brackets are allowed, and ignored.
            module, _, attribute = target.partition("[")[0].strip().partition(":")
            if (
                re.fullmatch(r"[\w.-]+", name)
                and re.fullmatch(r"[\w.]+", module)
                # The names go into a program as they are, so nothing else is accepted.
                and re.fullmatch(r"[\w.]+", attribute)
            ):
                scripts.append((name, (module, attribute)))
        return scripts


_COMMAND = '#!/usr/bin/python3\nimport sys\n\nfrom {module} import {root}\n\nif __name__ == "__main__":\n    sys.exit({name}())\n'


def _opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


def _date(info: zipfile.ZipInfo) -> int:
    try:
        return calendar.timegm((*info.date_time, 0, 0, 0))
    except ValueError:
        return 315532800  # 1980-01-01, where a zip's dates begin


def _mode(info: zipfile.ZipInfo) -> int:
    # The upper half of the attributes is the Unix mode. Other bits depend on the umask of the wheel's
    # builder.
    return 0o755 if (info.external_attr >> 16) & 0o111 else 0o644


def _outside(path: str) -> bool:
    return bool({"", "..", "."} & set(path.split("/"))) or "\\" in path


def _relative(path: str, base: str) -> str:
    return os.path.relpath(path, base)


def _recorded(entry: LayerEntry, base: str) -> tuple[str, str, str]:
    assert entry.open is not None  # noqa: S101 - only files are recorded
    with entry.open() as content:
        sha256 = hashlib.file_digest(content, "sha256").digest()  # type: ignore[arg-type]
    # The encoding of RECORD: URL-safe, without padding (PEP 376, 427).
    digest = base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()
    return _relative(entry.path, base), f"sha256={digest}", str(entry.size)


def wheel_layer(
    layout: Layout,
    wheels: Sequence[Path],
    place: WheelLayout,
    sonames: Mapping[Path, Mapping[str, str]],
    *,
    development: bool,
    cancelled: Callable[[], bool] = lambda: False,
) -> Layer:
    """Return one layer of these wheels. Raises ImageError if two of them contain one path with different content."""
    # All wheels stay open until the layer is written: entries read from their zips.
    with ExitStack() as stack:
        members: dict[str, tuple[Path, LayerEntry]] = {}
        for path in wheels:
            wheel = WheelSource(path, place)
            stack.callback(wheel.close)
            for entry in wheel.entries(sonames.get(path), development=development):
                other = members.get(entry.path)
                if other is not None and not _same(other[1], entry):
                    raise ImageError(
                        f"{other[0].name} and {path.name} both contain /{entry.path}, with different content",
                        remedy="leave one of the two out of the image",
                    )
                members.setdefault(entry.path, (path, entry))
        return write_layer(
            layout, with_directories(entry for _, entry in members.values()), cancelled=cancelled
        )


def _same(one: LayerEntry, other: LayerEntry) -> bool:
    if (one.kind, one.size, one.target) != (other.kind, other.size, other.target):
        return False
    if one.open is None or other.open is None:
        return True
    with one.open() as left, other.open() as right:
        while True:
            a, b = left.read(1 << 20), right.read(1 << 20)
            if a != b:
                return False
            if not a:
                return True


# -- outlines: what ldconfig reads of a library, and no more

_HEAD_SIZE = 64
_NOTES = (elf.PT_DYNAMIC, elf.PT_NOTE, elf.PT_GNU_PROPERTY)


def outline(data: elf.Data) -> dict[str, Any] | None:
    """Return the parts of a 64-bit ELF library that ldconfig reads: its SONAME, its size, and the pieces
    [offset, base64] of header, program headers, notes, dynamic section and its strings. None if it is no
    such library, or damaged.

    A file of that size with these pieces and holes between them gives ldconfig the same entry as the complete
    library.
    """
    # ELFCLASS64, little-endian.
    if len(data) < _HEAD_SIZE or data[:6] != elf.MAGIC + b"\x02\x01":
        return None
    head = elf.header(data)
    if head is None or head.kind != elf.ET_DYN:
        return None
    faults: list[str] = []
    programs = elf.programs(data, head, faults)
    table = elf.dynamic_table(data, head, programs, faults)
    if faults or not table.strings_size:
        return None
    places = [(0, _HEAD_SIZE), (head.phoff, head.phentsize * head.phnum)]
    places += [(row.start, row.length) for row in programs if row.kind in _NOTES]
    places.append((table.strings, table.strings_size))
    return {
        "soname": table.soname,
        "size": len(data),
        "pieces": [
            [start, base64.b64encode(bytes(data[start : start + length])).decode()]
            for start, length in places
        ],
    }


def draw(shape: Mapping[str, Any], path: Path) -> None:
    """Write the sparse file that an outline describes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for offset, data in shape["pieces"]:
            file.seek(offset)
            file.write(base64.b64decode(data))
        # ldconfig checks that the headers fit into the file.
        file.truncate(shape["size"])
    path.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
