"""The root file system: ext4, made from a directory by mke2fs inside the disk's file, without a mount, so that equal trees are equal bytes.

Where a difference would come from, and what is done about it: the order of names (mke2fs sorts, in the C locale), features and sizes from
this machine's /etc/mke2fs.conf (not read: all are named here), UUID and hash seed (given), times of the file system (a fixed date), times
of the files (set one by one by debugfs), extended attributes that belong to this machine (removed), and bits of directories that mke2fs leaves alone.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.disks.tools import Progress, run
from goldnode.errors import DiskError, ImageError
from goldnode.images.inspect.disk import Ext

BLOCK = 4096
INODE = 256
BYTES_PER_INODE = 16384
JOURNAL = 64 << 20

# Named one by one: no orphan_file and no metadata_csum_seed, which GRUB 2.06 and kernels of 2022 do not read.
_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,"
    "extra_isize,metadata_csum"
)
# Attributes that are part of a file wherever it is. What else a machine puts there (labels of SELinux, IMA, overlayfs) is its own.
_KEPT = ("security.capability", "system.posix_acl_access", "system.posix_acl_default", "user.")
_PREFIXES = {
    0: "",
    1: "user.",
    2: "system.posix_acl_access",
    3: "system.posix_acl_default",
    4: "trusted.",
    6: "security.",
    7: "system.",
}


@dataclass(frozen=True)
class Usage:
    """What a tree needs: `bytes` of file system blocks and inodes of everything in it, and how many `inodes`."""

    bytes: int
    inodes: int


def usage(root: Path) -> Usage:
    """Measure a tree as ext4 will hold it. Raises DiskError for what cannot be read."""
    blocks, inodes = 0, 16
    seen: set[tuple[int, int]] = set()
    todo = [root]
    try:
        while todo:
            folder = todo.pop()
            names = 0
            with os.scandir(folder) as entries:
                for entry in entries:
                    names += 12 + len(os.fsencode(entry.name))
                    row = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(row.st_mode):
                        todo.append(Path(entry.path))
                        continue
                    if row.st_nlink > 1:
                        if (row.st_dev, row.st_ino) in seen:
                            continue
                        seen.add((row.st_dev, row.st_ino))
                    inodes += 1
                    if stat.S_ISREG(row.st_mode) or (stat.S_ISLNK(row.st_mode) and row.st_size >= 60):
                        blocks += -(-row.st_size // BLOCK)
            inodes += 1
            blocks += 1 + names // BLOCK
    except OSError as problem:
        raise DiskError(
            f"{problem.filename} cannot be read: {problem.strerror}",
            remedy="run as root: files of a root belong to it",
        ) from problem
    return Usage(blocks * BLOCK, inodes)


def capacity(size: int) -> Usage:
    """What a file system of `size` bytes can hold, a hundredth left out as mke2fs reserves it for root."""
    inodes = size // BYTES_PER_INODE
    return Usage(size - size // 100 - JOURNAL - inodes * INODE - (4 << 20), inodes)


def make(
    disk: Path,
    start: int,
    size: int,
    root: Path,
    *,
    label: str,
    identity: uuid.UUID,
    seed: uuid.UUID,
    epoch: int,
    progress: Progress,
) -> None:
    """Make the file system at byte `start` of `disk`, `size` bytes long, with the content of `root`. Raises DiskError.

    What is there has to be zeros. Files keep their mtime where that is not after `epoch`, and have `epoch` else, so that what was
    compiled from them still fits; every other time is `epoch`, to the second.
    """
    progress(f"making the root file system, {size >> 20} MiB")
    run(
        "mke2fs",
        *(
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            str(BLOCK),
            "-I",
            str(INODE),
            "-i",
            str(BYTES_PER_INODE),
            "-m",
            "1",
            "-J",
            f"size={JOURNAL >> 20}",
        ),
        *("-O", _FEATURES, "-o", "Linux", "-e", "continue", "-L", label, "-U", str(identity)),
        # The inode tables and the journal are written whole: nothing is left for the kernel to do at the first boot.
        *("-E", f"offset={start},hash_seed={seed},root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0"),
        *("-d", root, disk, f"{size // 1024}k"),
        epoch=epoch,
    )
    progress("setting the dates in it")
    with tempfile.TemporaryDirectory(prefix="goldnode-ext4-") as scratch:
        script = Path(scratch) / "dates"
        with script.open("w", encoding="ascii") as out, reading(disk, start, size) as system:
            for line in _normalised(system, epoch):
                out.write(line + "\n")
        text = run("debugfs", "-w", "-f", script, _place(disk, start), epoch=epoch)
    # debugfs goes on after a line that it could not do, and exits with 0.
    wrong = [
        line
        for line in text.splitlines()
        if line and not line.startswith(("debugfs:", "debugfs 1", "Allocated"))
    ]
    if wrong:
        raise DiskError(f"debugfs could not set the dates of the root file system: {wrong[0]}")
    run("e2fsck", "-f", "-n", _place(disk, start), epoch=epoch)


def _place(disk: Path, start: int) -> str:
    return f"{disk}?offset={start}"


def _normalised(system: Reader, epoch: int) -> Iterator[str]:
    """Lines for debugfs. Inodes are named by number, so that no name has to be quoted."""
    for number, item in system.used():
        place = f"<{number}>"
        for name in ("atime", "ctime", "crtime"):
            yield f"sif {place} {name} @{epoch}"
        if item.mtime > epoch * 10**9:
            yield f"sif {place} mtime @{epoch}"
        for name in ("atime", "ctime", "mtime", "crtime"):
            yield f"sif {place} {name}_extra 0"
        for name in sorted(item.xattrs):
            if not name.startswith(_KEPT):
                yield f"ea_rm {place} {name}"


@dataclass(frozen=True)
class Inode:
    """One file, directory or other thing. Times in nanoseconds; `flags` as chattr knows them."""

    number: int
    mode: int
    uid: int
    gid: int
    size: int
    links: int
    flags: int
    atime: int
    ctime: int
    mtime: int
    crtime: int
    generation: int
    xattrs: dict[str, bytes]
    place: bytes  # what says where the content is; of a short symbolic link the target itself

    @property
    def kind(self) -> str:
        """One letter, as `ls -l` has it first: - d l c b p s."""
        return stat.filemode(self.mode)[0]


class Reader(Ext):
    """An ext4 file system with all that its inodes say."""

    def read(self, number: int) -> Inode:
        """One inode. Raises OSError for one that there is not or that is damaged."""
        data = self.table_entry(number)
        mode, uid, low, atime, ctime, mtime, _, gid, links, _, flags = struct.unpack_from(
            "<HHIIIIIHHII", data
        )
        generation, acl, high = struct.unpack_from("<III", data, 100)
        acl_high, uid_high, gid_high = struct.unpack_from("<HHH", data, 118)
        extra = struct.unpack_from("<H", data, 128)[0] if len(data) > 128 else 0
        crtime, times = 0, [0, 0, 0, 0]
        if extra >= 24 and len(data) >= 128 + extra:
            ctime_x, mtime_x, atime_x, crtime, crtime_x = struct.unpack_from("<IIIII", data, 132)
            times = [atime_x, ctime_x, mtime_x, crtime_x]
        xattrs: dict[str, bytes] = {}
        at = 128 + extra
        if at + 4 <= len(data) and struct.unpack_from("<I", data, at)[0] == 0xEA020000:
            xattrs |= _attributes(data[at + 4 :], data[at + 4 :])
        block = acl | acl_high << 32
        if block:
            whole = self.at(block * self.block, self.block)
            xattrs |= _attributes(whole[32:], whole)
        return Inode(
            number=number,
            mode=mode,
            uid=uid | uid_high << 16,
            gid=gid | gid_high << 16,
            size=low | high << 32,
            links=links,
            flags=flags,
            atime=_time(atime, times[0]),
            ctime=_time(ctime, times[1]),
            mtime=_time(mtime, times[2]),
            crtime=_time(crtime, times[3]),
            generation=generation,
            xattrs=xattrs,
            place=data[40:100],
        )

    def used(self) -> Iterator[tuple[int, Inode]]:
        """Every inode in use that is part of the tree, and the journal and the other hidden ones, in the order of their numbers."""
        numbers = {2, 7, 8}
        todo = [2]
        while todo:
            for name, child in self.directory(todo.pop()):
                if child in numbers:
                    continue
                numbers.add(child)
                if self.inode(child)[0] >> 12 == 4:
                    todo.append(child)
                del name
        for number in sorted(numbers):
            yield number, self.read(number)

    def tree(self) -> Iterator[tuple[str, Inode]]:
        """Path (without a leading slash; the root is empty) and inode of all that is in it, by name. Raises OSError."""
        todo = [("", 2)]
        while todo:
            path, number = todo.pop()
            item = self.read(number)
            yield path, item
            if item.kind == "d":
                names = sorted(self.directory(number), reverse=True)
                todo += [(f"{path}/{name}" if path else name, child) for name, child in names]

    def superblock(self) -> bytes:
        """Its 1024 bytes."""
        return self.at(1024, 1024)


def _attributes(entries: bytes, values: bytes) -> dict[str, bytes]:
    found = {}
    at = 0
    while at + 16 <= len(entries) and entries[at : at + 4] != b"\0\0\0\0":
        length, index, offset, _, size, _ = struct.unpack_from("<BBHIII", entries, at)
        name = _PREFIXES.get(index, f"{index}.") + entries[at + 16 : at + 16 + length].decode(
            "utf-8", "replace"
        )
        found[name] = values[offset : offset + size]
        at += 16 + (length + 3 & ~3)
    return found


def _time(seconds: int, extra: int) -> int:
    """Nanoseconds. The kernel's ext4 documentation: the two low bits of the extra field go on where 32 bits end, the others are nanoseconds."""
    signed = seconds - (1 << 32) if seconds & 1 << 31 else seconds
    return (signed + ((extra & 3) << 32)) * 10**9 + (extra >> 2)


@contextmanager
def reading(disk: Path, start: int, size: int) -> Iterator[Reader]:
    """Open the file system at byte `start` of `disk`. Raises DiskError for what is none."""
    with disk.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as data:
        if data[start + 1080 : start + 1082] != b"\x53\xef":
            raise DiskError(f"{disk} has no ext4 at byte {start}", remedy="name a disk of goldnode's")
        try:
            yield Reader(data, start, min(size, len(data) - start), str(disk))
        except (OSError, struct.error, ImageError) as problem:
            raise DiskError(
                f"the file system at byte {start} of {disk} is damaged: {problem}",
                remedy="build the disk again",
            ) from problem
