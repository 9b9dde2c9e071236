"""An image on a disk: whole, cut at each write and repeated, and refused when it is not what was signed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.follow.repository import ChannelSource
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.install import target, write
from goldnode.node.install.orders import Order
from goldnode.node.install.published import InstalledImage
from goldnode.node.install.target import MIB
from goldnode.node.slots.identity import primary

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("sfdisk", "zstd"))), reason="needs fdisk and zstd"
)

IMAGE_SIZE, DISK_SIZE = 6 * MIB, 40 * MIB


class PowerCutError(Exception):
    """The machine lost power."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, InstalledImage]:
    """A small disk with a partition table, compressed, in a directory."""
    place = tmp_path_factory.mktemp("place")
    raw = place / "disk.raw"
    raw.touch()
    os.truncate(raw, IMAGE_SIZE)
    subprocess.run(
        ["sfdisk", "-q", str(raw)],
        input="label: gpt\nstart=2048, size=4096, type=uefi, name=esp\n",
        text=True,
        check=True,
    )
    with raw.open("r+b") as opened:
        opened.seek(2 * MIB + 5)
        opened.write(b"content")
    packed = place / "disk.raw.zst"
    subprocess.run(["zstd", "-q", str(raw), "-o", str(packed)], check=True)
    sha256 = hashlib.sha256(packed.read_bytes()).hexdigest()
    return place, InstalledImage(
        "cpu_only-0123456789ab",
        "cpu_only",
        "0123456789ab",
        packed.name,
        sha256,
        IMAGE_SIZE,
        (MIB, 2 * MIB),
        "ab",
    )


def order(erase: int = 0) -> Order:
    return Order("gpu01", "cpu_only", "stable", {"serial": "x"}, erase, {})


def installed(
    disk: Path,
    published: tuple[Path, InstalledImage],
    erase: int = 0,
    image: InstalledImage | None = None,
) -> None:
    """Install as the command does, judged by what is on the disk."""
    handle = os.open(disk, os.O_RDWR)
    try:
        found = target.content(handle, DISK_SIZE)
        why = target.refusal(found, erase)
        if why is not None:
            raise NodeError(why)
        plan = write.Installation(image or published[1], order(erase), str(disk), handle, DISK_SIZE)
        write.install(Host("/"), plan, found, ChannelSource(str(published[0])), lambda text: None)
    finally:
        os.close(handle)


def empty(path: Path, fill: bytes = b"\0") -> Path:
    path.write_bytes(fill * DISK_SIZE)
    return path


def boots(disk: Path) -> bool:
    handle = os.open(disk, os.O_RDONLY)
    try:
        return primary(handle) is not None
    finally:
        os.close(handle)


def same(disk: Path, published: tuple[Path, InstalledImage]) -> bool:
    """Whether a disk has the image, beside the record, and zeros at its end."""
    own, raw = disk.read_bytes(), (published[0] / "disk.raw").read_bytes()
    at = target.RECORD
    return own[:at] == raw[:at] and own[MIB:IMAGE_SIZE] == raw[MIB:] and own[-MIB:] == bytes(MIB)


def cut_after(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Lose the power at the write with a number; the write before it may be torn."""
    real: Callable[..., int] = os.pwrite
    count = [0]

    def pwrite(handle: int, data: Any, offset: int) -> int:
        count[0] += 1
        if count[0] == number:
            raise PowerCutError
        return real(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return count


def test_an_image_is_written_whole_and_recorded(
    tmp_path: Path, published: tuple[Path, InstalledImage]
) -> None:
    disk = empty(tmp_path / "disk")
    installed(disk, published)
    assert same(disk, published)
    handle = os.open(disk, os.O_RDONLY)
    found = target.content(handle, DISK_SIZE)
    os.close(handle)
    assert found.kind == target.INSTALLED
    assert found.record["node"] == "gpu01"
    with pytest.raises(NodeError, match="was carried out on it already"):
        installed(disk, published)


@pytest.mark.parametrize(("fill", "erase"), [(b"\0", 0), (b"old", 0), (b"o", 7)])
def test_an_installation_that_is_cut_at_any_write_is_repeated(
    tmp_path: Path,
    published: tuple[Path, InstalledImage],
    monkeypatch: pytest.MonkeyPatch,
    fill: bytes,
    erase: int,
) -> None:
    disk = tmp_path / "disk"
    if fill == b"old":  # without leave it has its content afterwards
        empty(disk, b"o")
        with pytest.raises(NodeError, match="does not let it be erased"):
            installed(disk, published, 0)
        assert disk.read_bytes() == b"o" * DISK_SIZE
        return
    number = 0
    while True:
        number += 1
        empty(disk, fill)
        with monkeypatch.context() as patch:
            count = cut_after(patch, number)
            try:
                installed(disk, published, erase)
                done = True
            except PowerCutError:
                done = False
        if done:
            assert count[0] == number - 1
            break
        # The header of the table is the last but one write; firmware does not ask for the protective MBR after it.
        assert (
            boots(disk) is False
            or same(disk, published)
            or disk.read_bytes()[512:520] == b"EFI PART"
        )
        if not boots(disk):
            installed(disk, published, erase)
            assert same(disk, published), number
    assert number > 10


def test_a_download_that_is_not_the_signed_one_leaves_a_disk_that_does_not_boot(
    tmp_path: Path, published: tuple[Path, InstalledImage]
) -> None:
    disk = empty(tmp_path / "disk")
    with pytest.raises(NodeError, match="is not what was signed: refused"):
        installed(disk, published, image=published[1]._replace(sha256="0" * 64))
    assert not boots(disk)
    installed(disk, published)
    assert same(disk, published)


def test_a_disk_that_returns_other_bytes_does_not_boot(
    tmp_path: Path, published: tuple[Path, InstalledImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = empty(tmp_path / "disk")
    real = write.Installation.fill

    def fill(self: write.Installation, data: bytes, offset: int) -> None:
        real(self, data, offset + (offset == 2 * MIB))

    with monkeypatch.context() as patch:
        patch.setattr(write.Installation, "fill", fill)
        with pytest.raises(NodeError, match="does not hold what was written to it at byte 2097152"):
            installed(disk, published)
    assert not boots(disk)


class Answer(io.BytesIO):
    """An answer that announces more than it has."""

    def __init__(self, length: str, data: bytes) -> None:
        super().__init__(data)
        self.headers = {"Content-Length": length}


def test_a_connection_that_breaks_is_continued(
    published: tuple[Path, InstalledImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (published[0] / "disk.raw.zst").read_bytes()
    asked = []

    class Broken:
        """A server that ends after a third of the file."""

        source = "http://server"

        def opened(self, name: str, offset: int = 0) -> Any:
            asked.append(offset)

            length = str(len(data) - offset)
            return Answer(length, data[offset : offset + len(data) // 3 + 1])

    monkeypatch.setattr(threading.Event, "wait", lambda self, seconds: True)
    source: Any = Broken()
    lines: list[str] = []
    assert b"".join(write.downloaded(source, "disk.raw.zst", lines.append)) == data
    assert len(asked) == 3
    assert "Continuing at byte" in lines[0]
