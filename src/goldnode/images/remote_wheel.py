"""Reader of a wheel on an index by HTTP ranges: its metadata and libraries are read, and the rest is not fetched."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from email import message_from_bytes
from email.message import Message

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version
from urllib3.exceptions import HTTPError

from goldnode.core.errors import ImageError
from goldnode.core.files import cache_directory
from goldnode.core.logins import masked
from goldnode.images.wheelindex import Index, WheelFile
from goldnode.inspect.wheelcode import WheelCode, read_wheel

_METADATA_BLOCK = 64 << 10
_BLOCK = 4 << 20  # bytes of one request: libraries are read from start to end


class _RemoteFile(io.RawIOBase):
    """A file of an index that is read in ranges."""

    def __init__(self, index: Index, item: WheelFile) -> None:
        self._index, self._item = index, item
        self._size, self._place = index.size(item), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        end = min(self._place + len(buffer), self._size)
        if end <= self._place:
            return 0
        content = self._index.part(self._item, self._place, end)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)


def wheel_code(index: Index, project: str, version: str, machine: str) -> WheelCode | None:
    """Return the content of a release's wheel for `machine` ("x86_64"); None if it has no wheel for it.

    A wheel that was read once is cached by its hash. Raises ImageError if the index cannot be asked.
    """
    item = wheel_file(index, project, version, machine)
    if item is None:
        return None
    cached = cache_directory() / "wheels" / f"{item.sha256}.json"
    if item.sha256 is not None and cached.is_file():
        row = json.loads(cached.read_text(encoding="utf-8"))
        code = None if row["code"] is None else tuple(row["code"])
        return WheelCode(tuple(row["requires"]), code, tuple(row["ptx"]), tuple(row["needs"]))
    try:
        with zipfile.ZipFile(io.BufferedReader(_RemoteFile(index, item), _BLOCK)) as archive:
            read = read_wheel(archive)
    except (zipfile.BadZipFile, HTTPError, EOFError) as problem:
        raise ImageError(
            f"the wheel {masked(item.url)} cannot be read: {problem}", remedy="run again"
        ) from problem
    if item.sha256 is not None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.write_text(json.dumps(asdict(read)), encoding="utf-8")
    return read


def wheel_metadata(index: Index, item: WheelFile) -> Message:
    """Return the metadata of a wheel, read from the wheel itself: not every index serves it separately. Raises ImageError."""
    try:
        with zipfile.ZipFile(
            io.BufferedReader(_RemoteFile(index, item), _METADATA_BLOCK)
        ) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return message_from_bytes(archive.read(name))
    except (zipfile.BadZipFile, HTTPError, EOFError, StopIteration) as problem:
        raise ImageError(
            f"the metadata of {masked(item.url)} cannot be read: {problem}"
        ) from problem


def wheel_file(index: Index, project: str, version: str, machine: str) -> WheelFile | None:
    """Return a wheel of this version, one for the machine before one for any, as pip takes it.

    The code for GPUs is alike in the wheels of all Pythons.
    """
    fitting = []
    for item in index.files(project):
        try:
            _, release, _, tags = parse_wheel_filename(item.file)
        except InvalidWheelFilename:
            continue
        if release == Version(version) and any(
            tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(machine))
            for tag in tags
        ):
            fitting.append(item)
    return max(fitting, key=lambda item: ("linux" in item.file, item.file), default=None)
