"""An image on a disk: written, read back, given the seed of its node, and bootable with the last write.

The order of writes, each flushed before the next, so that a cut anywhere leaves a disk that does not boot, and that
the next run of the same order writes again (:mod:`.target`):

1. The record: what is written, for which node, under which number. On a disk with data it precedes the first loss.
2. Zeros over both ends of the disk: the tables of an earlier system.
3. The image without its first MiB. Each block is read back from the device and compared.
4. The seed, in the ESP, through a partition that only the kernel knows.
5. The record says `installed`; then the entries of the partition table, its header, and the protective MBR.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import subprocess
import threading
import zlib

from ..follow.repository import ChannelAwayError, blocks
from ..ground.errors import NodeError
from ..ground.typed import NamedTuple
from .target import (
    BEGUN,
    DATA,
    ERASING,
    INSTALLED,
    MAGIC,
    MIB,
    RECORD,
    SECTOR,
    TABLE,
    WRITING,
    ZEROS,
    is_zero,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Generator, Iterator, List, Mapping, Optional, Tuple

    from ..follow.repository import ChannelSource
    from ..ground.host import Host
    from .orders import Order
    from .published import InstalledImage
    from .target import DiskContent

FLUSH_BUFFERS, ZERO_OUT = 0x1261, 0x127F  # linux/fs.h
MOUNT = "/run/goldnode/install-esp"
TRIES = 20  # times that a download is continued without progress


class Installation(NamedTuple):
    """An image, the order that it is written for, and the disk: its path, open file and size in bytes."""

    image: InstalledImage
    order: Order
    path: str
    handle: int
    size: int

    def record(self, state: str, **more: Any) -> None:
        """Write and flush the record."""
        about = {
            "state": state,
            "node": self.order.node,
            "image": self.image.name,
            "erase": self.order.erase,
            **more,
        }
        sector = MAGIC + json.dumps(about, separators=(",", ":"), sort_keys=True).encode()
        if len(sector) > SECTOR:
            raise NodeError(
                f"the record of {self.order.node} has {len(sector)} bytes, and room for {SECTOR}."
            )
        self.put(sector.ljust(SECTOR, b"\0"), RECORD)

    def put(self, data: bytes, offset: int) -> None:
        """Write at an offset and flush."""
        self.fill(data, offset)
        os.fsync(self.handle)

    def fill(self, data: bytes, offset: int) -> None:
        """Write at an offset."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self.handle, view, offset)
            view, offset = view[done:], offset + done


def install(
    host: Host,
    plan: Installation,
    found: DiskContent,
    source: ChannelSource,
    say: Callable[[str], None],
) -> None:
    """Write an image to a disk and make it bootable. Raises NodeError; the disk does not boot then."""
    try:
        _install(host, plan, found, source, say)
    except OSError as problem:
        raise NodeError(
            f"{plan.path} cannot be written: {problem.strerror or problem}. See `dmesg`."
        ) from None


def _install(
    host: Host,
    plan: Installation,
    found: DiskContent,
    source: ChannelSource,
    say: Callable[[str], None],
) -> None:
    erases = found.kind in (DATA, INSTALLED) or (
        found.kind == BEGUN and found.record.get("state") == ERASING
    )
    plan.record(ERASING if erases else WRITING)
    for start, end in ((0, RECORD), (RECORD + SECTOR, MIB), (plan.size - MIB, plan.size)):
        plan.put(bytes(end - start), start)
    plan.record(WRITING)
    with contextlib.closing(unpacked(source, plan.image, say)) as parts:
        head, written, size = _copied(plan, parts, say)
    if size != plan.image.size:
        raise NodeError(
            f"{plan.image.name} has {size} bytes, and {plan.image.size} were signed. The disk does not boot; run it again."
        )
    os.fsync(plan.handle)
    with contextlib.suppress(OSError):  # a file of a test
        fcntl.ioctl(plan.handle, FLUSH_BUFFERS, 0)
    say("reading it back")
    _compare(plan, written)
    if plan.order.seed:
        _seed(host, plan)
    if not is_zero(head[RECORD : RECORD + SECTOR]) or not is_zero(head[TABLE:]):
        raise NodeError(
            f"{plan.image.name} has data before its first partition, where the record is. The disk does not boot."
        )
    plan.record(INSTALLED, entries=zlib.crc32(head[2 * SECTOR : TABLE]))
    for start, end in ((2 * SECTOR, TABLE), (SECTOR, 2 * SECTOR), (0, SECTOR)):
        plan.put(head[start:end], start)
    with contextlib.suppress(OSError):
        fcntl.ioctl(plan.handle, FLUSH_BUFFERS, 0)
    if os.pread(plan.handle, TABLE, 0) != head[:TABLE]:
        raise NodeError(
            f"{plan.path} does not hold its partition table as it was written. See `dmesg`: the disk may be failing."
        )


def _copied(
    plan: Installation, parts: Iterator[bytes], say: Callable[[str], None]
) -> Tuple[bytes, Dict[int, Optional[int]], int]:
    """Write blocks of one MiB, except for the first. Return the first, the CRC of each other one (None: zeros), and the size."""
    head, written, at, reported = b"", {}, 0, 0  # type: Tuple[bytes, Dict[int, Optional[int]], int, int]
    zeros: Optional[int] = None
    for block in parts:
        if at == 0:
            head = block
        elif at + len(block) > plan.size:
            raise NodeError(f"{plan.image.name} is larger than {plan.path}.")
        elif is_zero(block):
            written[at] = None
            zeros = at if zeros is None else zeros
        else:
            if zeros is not None:
                _zero(plan, zeros, at)
                zeros = None
            written[at] = zlib.crc32(block)
            plan.fill(block, at)
        at += len(block)
        if at * 10 // plan.image.size > reported:
            reported = at * 10 // plan.image.size
            say(f"{at >> 20} of {plan.image.size >> 20} MiB")
    if zeros is not None:
        _zero(plan, zeros, at)
    return head, written, at


def _zero(plan: Installation, start: int, end: int) -> None:
    """Fill a range with zeros: by the device where it can do that (BLKZEROOUT)."""
    try:
        fcntl.ioctl(plan.handle, ZERO_OUT, struct.pack("<QQ", start, end - start))
    except OSError:  # a file of a test
        for at in range(start, end, MIB):
            plan.fill(ZEROS[: min(MIB, end - at)], at)


def _compare(plan: Installation, written: Mapping[int, Optional[int]]) -> None:
    for at, crc in written.items():
        block = os.pread(plan.handle, min(MIB, plan.image.size - at), at)
        if not (is_zero(block) if crc is None else zlib.crc32(block) == crc):
            raise NodeError(
                f"{plan.path} does not hold what was written to it at byte {at}. See `dmesg`: the disk may be failing."
            )


def unpacked(
    source: ChannelSource, image: InstalledImage, say: Callable[[str], None]
) -> Generator[bytes, None, None]:
    """Yield the disk of an image in blocks of one MiB. Raises NodeError at its end if the file is not the signed one."""
    try:
        process = subprocess.Popen(
            ["zstd", "-q", "-d", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    except OSError as problem:
        raise NodeError(f"zstd cannot be run: {problem.strerror}.") from None
    problems: List[Exception] = []
    seen = hashlib.sha256()

    def feed() -> None:
        try:
            with process.stdin as pipe:  # type: ignore[union-attr]
                for part in downloaded(source, image.path, say):
                    seen.update(part)
                    pipe.write(part)
        except BrokenPipeError:  # zstd has ended; its status says so
            pass
        except Exception as problem:  # of the other thread, raised below
            problems.append(problem)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        while block := process.stdout.read(MIB):  # type: ignore[union-attr]
            yield block
    finally:
        process.stdout.close()  # type: ignore[union-attr]
        process.wait()
        thread.join()
    if problems:
        raise problems[0]
    if seen.hexdigest() != image.sha256 or process.returncode:
        raise NodeError(
            f"{source.source}/{image.path} is not what was signed: refused. The disk does not boot. Publish the disk again."
        )


def downloaded(source: ChannelSource, path: str, say: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a file of a channel. A connection that breaks is continued where it ended. Raises NodeError."""
    have, left = 0, TRIES
    while True:
        try:
            opened = source.opened(path, have)
            if opened is None:
                raise NodeError(f"{source.source} has no {path}. Publish the disk again.")
            # A server that closes early ends the stream without an error.
            length = opened.headers.get("Content-Length") if hasattr(opened, "headers") else None
            want = have + int(length) if length and length.isdigit() else None
            with opened:
                for part in blocks(opened, path):
                    have, left = have + len(part), TRIES
                    yield part
            if want is None or have >= want:
                return
            raise ChannelAwayError(f"{source.source}/{path} ended after {have} of {want} bytes.")
        except ChannelAwayError as problem:
            left -= 1
            if not left:
                raise
            say(f"{problem} Continuing at byte {have}.")
            threading.Event().wait(3)


def _seed(host: Host, plan: Installation) -> None:
    """Write the files of the seed to the ESP. The disk has no partition table yet: addpart tells the kernel of this one."""
    start, size = plan.image.esp
    number = "1"
    partition = f"{plan.path}p1" if plan.path[-1].isdigit() else f"{plan.path}1"
    done = host.run("addpart", plan.path, number, str(start // SECTOR), str(size // SECTOR))
    if done.rc == 0:
        host.run("udevadm", "settle", "--timeout=30")
        os.makedirs(MOUNT, exist_ok=True)
        done = host.run("mount", "-t", "vfat", partition, MOUNT)
        if done.rc == 0:
            try:
                for name, text in plan.order.seed.items():
                    host.write(f"{MOUNT}/goldnode/seed/{name}", text.encode())
            finally:
                done = host.run("umount", MOUNT)
    host.run("delpart", plan.path, number)
    os.fsync(plan.handle)
    if done.rc != 0:
        raise NodeError(
            f"the seed cannot be written to the ESP: {done.tail(2)}. The disk does not boot; run it again."
        )
