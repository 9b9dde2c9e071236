"""Writer of the EFI system partition: a FAT32 file system inside the disk's file, made by mkfs.vfat and
filled by mtools.

Nothing is mounted.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from goldnode.core.errors import DiskError
from goldnode.disks.tools import run

# Content of a file: its bytes, or the path of a file to copy.
Content = bytes | Path

# FAT32 as Microsoft's tools and all firmware define it: fewer clusters than this mean FAT16.
LEAST = 34 << 20
SMALL = 260 << 20  # up to this size Microsoft's tools use one-sector clusters
_RESERVED = 3  # number of 200-character names that every directory of a small ESP has room for
_FIRST_DATE = 315_532_800  # 1980-01-01, the earliest date of FAT


def volume_id(seed: uuid.UUID) -> str:
    """Derive the volume ID from a UUID: eight hex digits, as mkfs.vfat takes it."""
    return seed.hex[:8]


def filesystem_uuid(volume: str) -> str:
    """Format a volume ID as blkid and /dev/disk/by-uuid do."""
    return f"{volume[:4]}-{volume[4:]}".upper()


def content_size(files: Mapping[str, Content]) -> int:
    """Return the total size of the files in bytes."""
    return sum(
        len(item) if isinstance(item, bytes) else item.stat().st_size for item in files.values()
    )


def make(
    disk: Path,
    start: int,
    size: int,
    files: Mapping[str, Content],
    *,
    label: str,
    volume: str,
    epoch: int,
) -> None:
    """Make the file system in bytes `start` to `start + size` of `disk` and copy `files` into it.

    Keys of `files` are paths without a leading slash. The target range must be all zeros. Every date is
    `epoch`. Raises DiskError on failure.
    """
    if epoch < _FIRST_DATE:
        raise DiskError(
            f"the date of the image is {epoch}, before 1980, and FAT has no earlier one",
            remedy="lock the disk again",
        )
    # mkfs.vfat derives the cluster size from the whole file, not from the partition. A small ESP would then
    # have too few clusters for FAT32, and mtools would read it as FAT16.
    clusters = ("-s", "1") if size < SMALL else ()
    run(
        "mkfs.vfat",
        *clusters,
        *("-F", "32", "-S", "512", "-R", "32", "-f", "2", "-g", "255/63"),
        *(
            "-i",
            volume,
            "-n",
            label,
            "--invariant",
            f"--offset={start // 512}",
            disk,
            str(size // 1024),
        ),
        epoch=epoch,
    )
    place = f"{disk}@@{start}"
    folders = sorted(
        {
            str(parent)
            for name in files
            for parent in PurePosixPath(name).parents
            if str(parent) != "."
        }
    )
    # One by one, sorted by name: a FAT directory lists files in order of creation.
    for folder in folders:
        run("mmd", "-i", place, f"::/{folder}", epoch=epoch)
    with tempfile.TemporaryDirectory(prefix="goldnode-esp-") as scratch:
        # A directory that has to grow on the node can lose its tail in a power cut. One-sector clusters hold
        # only 16 entries, so grow the directories now: create long names, then delete them.
        if clusters:
            long = [Path(scratch) / f"{'room' * 50}{number}" for number in range(_RESERVED)]
            for path in long:
                path.touch()
                os.utime(path, (epoch, epoch))
            for folder in folders:
                run("mcopy", "-m", "-i", place, *long, f"::/{folder}/", epoch=epoch)
                run(
                    "mdel", "-i", place, *(f"::/{folder}/{path.name}" for path in long), epoch=epoch
                )
        for number, name in enumerate(sorted(files)):
            content = files[name]
            copy = Path(scratch) / str(number)
            copy.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            os.utime(copy, (epoch, epoch))
            run("mcopy", "-m", "-i", place, copy, f"::/{name}", epoch=epoch)
            copy.unlink()
