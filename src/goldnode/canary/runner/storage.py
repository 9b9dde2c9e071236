"""Storage: sequential and random reads past the page cache, and metadata operations, in each directory that is named."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import shutil
import tempfile
import time
from typing import Dict, Iterator, List, Sequence, Tuple

from . import machine
from .records import Fact, JobResult, Metric, failed, metric, passed

MIB = 1 << 20
BLOCK = 4096


def storage(
    directories: Sequence[str] = (), mib: int = 256, samples: int = 20, files: int = 500
) -> JobResult:
    """Measure each directory, by default that of temporary files. Needs `mib` of free space; removes what it wrote."""
    metrics: List[Metric] = []
    facts: Dict[str, Fact] = {}
    for number, place in enumerate(directories or (tempfile.gettempdir(),)):
        facts[f"directory{number}"] = place
        facts[f"file_system{number}"] = machine.file_system(place)
        with _folder(place, mib) as folder:
            end = "" if not number else f"_{number}"
            path = os.path.join(folder, "data")
            metrics.append(metric(f"storage_write{end}", "MB/s", _write(path, mib)))
            metrics += _reads(path, mib, samples, end, facts)
            metrics += _metadata(folder, files, end)
    return passed(metrics, facts)


@contextlib.contextmanager
def _folder(place: str, mib: int) -> Iterator[str]:
    # Twice the size: the test must not fill a file system that others use.
    if shutil.disk_usage(place).free < 2 * mib * MIB:
        raise OSError(f"{place} has less than {2 * mib} MiB free")
    folder = tempfile.mkdtemp(prefix="goldnode-canary-", dir=place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: str, mib: int) -> List[float]:
    """Write the file in eight parts, each until it is on the medium. Return the rates."""
    # Random: a medium that compresses must not be faster than with real data.
    data = random.Random(5).getrandbits(8 * MIB).to_bytes(MIB, "little")  # noqa: S311 - content of a file
    rates = []
    with open(path, "wb", buffering=0) as opened:
        for part in range(8):
            begun = time.perf_counter()
            for block in range(mib // 8):
                # Each block begins with its number, so that a read of another block is seen.
                opened.write((part * (mib // 8) + block).to_bytes(8, "little") + data[8:])
            os.fsync(opened.fileno())
            rates.append(mib // 8 * MIB / 1e6 / (time.perf_counter() - begun))
    return rates


def _reads(path: str, mib: int, samples: int, end: str, facts: Dict[str, Fact]) -> List[Metric]:
    number, direct = _open(path)
    facts[f"direct_io{end}"] = direct
    try:
        # O_DIRECT needs a buffer that is aligned to the blocks of the medium; mmap gives whole
        # pages.
        with mmap.mmap(-1, MIB) as area, memoryview(area) as view:
            rates, size = [], mib * MIB
            part = max(1, mib // 8)
            for sample in range(samples):
                _forget(number, direct)
                first = sample % 8 * part
                begun = time.perf_counter()
                for block in range(first, first + part):
                    if os.preadv(number, [view], block * MIB) != MIB:
                        raise failed(f"{path} is shorter than it was written")
                    if int.from_bytes(view[:8], "little") != block:
                        raise failed(f"{path} has other data than were written, in MiB {block}")
                rates.append(part * MIB / 1e6 / (time.perf_counter() - begun))
            times, choice = [], random.Random(3)  # noqa: S311 - positions in a file
            _forget(number, direct)
            # One block each: this is the time of a seek, not the rate.
            for _ in range(50 * samples):
                at = choice.randrange(size // BLOCK) * BLOCK
                begun = time.perf_counter()
                os.preadv(number, [view[:BLOCK]], at)
                times.append((time.perf_counter() - begun) * 1e6)
    finally:
        os.close(number)
    return [
        metric(f"storage_read{end}", "MB/s", rates),
        metric(f"storage_random_read{end}", "us", times),
    ]


def _open(path: str) -> Tuple[int, bool]:
    """Open a file for reading past the page cache; where the file system cannot do that (tmpfs), through it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT), True
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY), False


def _forget(number: int, direct: bool) -> None:
    if not direct:
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def _metadata(folder: str, files: int, end: str) -> List[Metric]:
    """Create, examine, rename and remove files. Return the time of each operation."""
    names = [os.path.join(folder, f"file{number}") for number in range(files)]
    times: Dict[str, List[float]] = {"create": [], "stat": [], "rename": [], "remove": []}

    def create(name: str) -> None:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))

    steps = (
        ("create", create),
        ("stat", os.stat),
        ("rename", lambda name: os.rename(name, name + "b")),
        ("remove", lambda name: os.unlink(name + "b")),
    )
    for step, work in steps:
        for name in names:
            begun = time.perf_counter()
            work(name)
            times[step].append((time.perf_counter() - begun) * 1e6)
    return [metric(f"storage_{step}{end}", "us", samples) for step, samples in times.items()]
