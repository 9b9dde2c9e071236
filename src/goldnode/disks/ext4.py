"""Writer and reader of the root file system: reproducible ext4, made by mke2fs inside the disk's file.

Nothing is mounted.

Sources of differences between equal trees, and the countermeasures:

- Order of names: mke2fs sorts in the C locale.
- Features and sizes from this machine's /etc/mke2fs.conf: all are given on the command line.
- UUID and hash seed: given.
- Times of the file system: a fixed date.
- Times of files, and fields of directories that mke2fs does not set: set by debugfs, inode by inode.
- Extended attributes that belong to this machine: removed.
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

from goldnode.core.errors import DiskError, ImageError
from goldnode.disks.tools import Progress, run
from goldnode.inspect.disk import Ext

# The geometry is stated to mke2fs, so that the capacity of a file system can be computed before it
# is made. Sizes are in bytes.
BLOCK = 4096
INODE = 256
BYTES_PER_INODE = 16384
JOURNAL = 64 << 20

# Listed explicitly. GRUB 2.06 and kernels of 2022 cannot read orphan_file, and GRUB 2.06 not metadata_csum_seed.
_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,"
    "extra_isize,metadata_csum"
)
# With it the checksums do not depend on the UUID, so that a node can change the UUID of a mounted root (Linux 6.0).
_OWN_UUID = ",metadata_csum_seed"
# Attributes that belong to a file on any machine. Others (SELinux labels, IMA, overlayfs) belong to the build
# machine.
_COPIED = ("security.capability", "system.posix_acl_access", "system.posix_acl_default", "user.")
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
    """Space that a tree needs: file system blocks in bytes, and the number of inodes."""

    bytes: int
    inodes: int


def usage(root: Path) -> Usage:
    """Measure the space a tree will need on ext4. Raises DiskError for unreadable files."""
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
                    # Count hard links once.
                    if row.st_nlink > 1:
                        if (row.st_dev, row.st_ino) in seen:
                            continue
                        seen.add((row.st_dev, row.st_ino))
                    inodes += 1
                    # A link target of less than 60 bytes fits in the inode.
                    if stat.S_ISREG(row.st_mode) or (
                        stat.S_ISLNK(row.st_mode) and row.st_size >= 60
                    ):
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
    """Return the capacity of a file system of `size` bytes, without the 1 % that mke2fs reserves for root."""
    inodes = size // BYTES_PER_INODE
    return Usage(size - size // 100 - JOURNAL - inodes * INODE - (4 << 20), inodes)


@dataclass(frozen=True)
class FilesystemIdentity:
    """Label, UUID, hash seed and time (seconds since the epoch) of a file system to make.

    `replaceable`: whether a node may replace the UUID while the file system is mounted. GRUB 2.06 cannot read such a
    file system.
    """

    label: str
    identity: uuid.UUID
    seed: uuid.UUID
    epoch: int
    replaceable: bool = False


def make(
    disk: Path, start: int, size: int, root: Path, given: FilesystemIdentity, *, progress: Progress
) -> None:
    """Make a file system with the content of `root` at byte `start` of `disk`, `size` bytes long.

    The target range must be all zeros. Files keep an mtime up to `epoch`, so that compiled files still match
    their sources. A later mtime and all other times become `epoch`, to the second. Raises DiskError on
    failure.
    """
    epoch = given.epoch
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
        *(
            "-O",
            _FEATURES + (_OWN_UUID if given.replaceable else ""),
            "-o",
            "Linux",
            "-e",
            "continue",
            "-L",
            given.label,
            "-U",
            str(given.identity),
        ),
        # No lazy initialisation: the kernel then has nothing left to write at the first boot.
        *(
            "-E",
            f"offset={start},hash_seed={given.seed},root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0",
        ),
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
    # debugfs continues after a failed command and exits with 0.
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
    """Yield debugfs commands. They refer to inodes by number, so that no name needs quoting."""
    for number, item in system.used():
        place = f"<{number}>"
        for name in ("atime", "ctime", "crtime"):
            yield f"sif {place} {name} @{epoch}"
        if item.mtime > epoch * 10**9:
            yield f"sif {place} mtime @{epoch}"
        for name in ("atime", "ctime", "mtime", "crtime"):
            yield f"sif {place} {name}_extra 0"
        for name in sorted(item.xattrs):
            if not name.startswith(_COPIED):
                yield f"ea_rm {place} {name}"


@dataclass(frozen=True)
class Inode:
    """One file, directory or other inode.

    Times are in nanoseconds; `flags` are the file attributes of chattr.
    """

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
    place: bytes  # i_block: where the content is; for a short symbolic link, the target itself

    @property
    def kind(self) -> str:
        """Return the type as one letter, as in the first column of `ls -l`: - d l c b p s."""
        return stat.filemode(self.mode)[0]


class Reader(Ext):
    """Reader of an ext4 file system with the full content of its inodes."""

    def read(self, number: int) -> Inode:
        """Read one inode. Raises OSError if it does not exist or is damaged."""
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
        # 0xEA020000: magic number of extended attributes within the inode.
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
        """Yield every inode of the tree and the hidden ones (resize inode, journal), in numerical order."""
        # Root directory, resize inode, journal.
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
        """Yield path and inode of everything in the tree, by name. Raises OSError on failure.

        Paths have no leading slash; the root's is empty.
        """
        todo = [("", 2)]
        while todo:
            path, number = todo.pop()
            item = self.read(number)
            yield path, item
            if item.kind == "d":
                names = sorted(self.directory(number), reverse=True)
                todo += [(f"{path}/{name}" if path else name, child) for name, child in names]

    def superblock(self) -> bytes:
        """Return the 1024 bytes of the superblock."""
        return self.at(1024, 1024)


def _attributes(entries: bytes, values: bytes) -> dict[str, bytes]:
    attributes = {}
    at = 0
    while at + 16 <= len(entries) and entries[at : at + 4] != b"\0\0\0\0":
        length, index, offset, _, size, _ = struct.unpack_from("<BBHIII", entries, at)
        name = _PREFIXES.get(index, f"{index}.") + entries[at + 16 : at + 16 + length].decode(
            "utf-8", "replace"
        )
        attributes[name] = values[offset : offset + size]
        at += 16 + (length + 3 & ~3)
    return attributes


def _time(seconds: int, extra: int) -> int:
    """Return a time in nanoseconds.

    Per the kernel's ext4 documentation, the two low bits of the extra field extend the seconds beyond 32
    bits; its other bits are nanoseconds.
    """
    signed = seconds - (1 << 32) if seconds & 1 << 31 else seconds
    return (signed + ((extra & 3) << 32)) * 10**9 + (extra >> 2)


@contextmanager
def reading(disk: Path, start: int, size: int) -> Iterator[Reader]:
    """Open the file system at byte `start` of `disk`. Raises DiskError if it is not ext4."""
    with disk.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as data:
        if data[start + 1080 : start + 1082] != b"\x53\xef":
            raise DiskError(
                f"{disk} has no ext4 at byte {start}", remedy="name a disk that goldnode built"
            )
        try:
            yield Reader(data, start, min(size, len(data) - start), str(disk))
        except (OSError, struct.error, ImageError) as problem:
            raise DiskError(
                f"the file system at byte {start} of {disk} is damaged: {problem}",
                remedy="build the disk again",
            ) from problem
