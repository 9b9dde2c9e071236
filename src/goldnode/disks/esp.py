"""The EFI system partition: a FAT32 file system made by mkfs.vfat and filled by mtools, inside the disk's file, without a mount."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from goldnode.disks.tools import run
from goldnode.errors import DiskError

# A file of the partition: its bytes, or the file that has them.
Content = bytes | Path

# FAT32 by definition of Microsoft's own tools and of every firmware: below this the count of clusters means FAT16.
LEAST = 34 << 20
_SMALL = 260 << 20  # up to here Microsoft's own tools use clusters of one sector
_RESERVED = 3  # names of 200 letters for which every directory of a small ESP has room
_FIRST_DATE = 315_532_800  # 1980-01-01: FAT knows none before


def volume_id(seed: uuid.UUID) -> str:
    """The volume's number that follows from a UUID, as mkfs.vfat takes it: eight hex digits."""
    return seed.hex[:8]


def filesystem_uuid(volume: str) -> str:
    """A volume's number as blkid and /dev/disk/by-uuid write it."""
    return f"{volume[:4]}-{volume[4:]}".upper()


def content_size(files: Mapping[str, Content]) -> int:
    """Bytes that the files take."""
    return sum(len(item) if isinstance(item, bytes) else item.stat().st_size for item in files.values())


def make(
    disk: Path, start: int, size: int, files: Mapping[str, Content], *, label: str, volume: str, epoch: int
) -> None:
    """Make the file system at byte `start` of `disk`, `size` bytes long, and put `files` (paths without a leading slash) into it.

    What is there has to be zeros. Every date in it is `epoch`. Raises DiskError.
    """
    if epoch < _FIRST_DATE:
        raise DiskError(
            f"the date of the image is {epoch}, before 1980, and FAT has no earlier one",
            remedy="lock the disk again",
        )
    # mkfs.vfat takes the cluster size of the whole disk's file, with which a small ESP has too few clusters for FAT32, and mtools reads it as FAT16.
    clusters = ("-s", "1") if size < _SMALL else ()
    run(
        "mkfs.vfat",
        *clusters,
        *("-F", "32", "-S", "512", "-R", "32", "-f", "2", "-g", "255/63"),
        *("-i", volume, "-n", label, "--invariant", f"--offset={start // 512}", disk, str(size // 1024)),
        epoch=epoch,
    )
    place = f"{disk}@@{start}"
    folders = sorted(
        {str(parent) for name in files for parent in PurePosixPath(name).parents if str(parent) != "."}
    )
    # One after another and by name: a directory of FAT keeps the order in which its files came.
    for folder in folders:
        run("mmd", "-i", place, f"::/{folder}", epoch=epoch)
    with tempfile.TemporaryDirectory(prefix="goldnode-esp-") as scratch:
        # A directory that grows on a node may lose its end in a power cut. Where a cluster holds 16 names, room is made here.
        if clusters:
            long = [Path(scratch) / f"{'room' * 50}{number}" for number in range(_RESERVED)]
            for path in long:
                path.touch()
                os.utime(path, (epoch, epoch))
            for folder in folders:
                run("mcopy", "-m", "-i", place, *long, f"::/{folder}/", epoch=epoch)
                run("mdel", "-i", place, *(f"::/{folder}/{path.name}" for path in long), epoch=epoch)
        for number, name in enumerate(sorted(files)):
            content = files[name]
            copy = Path(scratch) / str(number)
            copy.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            os.utime(copy, (epoch, epoch))
            run("mcopy", "-m", "-i", place, copy, f"::/{name}", epoch=epoch)
            copy.unlink()
