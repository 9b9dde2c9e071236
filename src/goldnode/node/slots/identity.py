"""`goldnode-node slot identity`: a disk gets GUIDs of its own, so that no two disks of one image are equal.

The initramfs runs it at the first boot, before the root is mounted. `goldnode-identity.service` runs it again, with
the system up, to complete what a power cut left. Every step can be repeated from any point:

1. The backup partition table gets the new GUIDs. It is the record of what they will be; the primary table is valid
   and decides, so that nothing changes yet.
2. The volume ID of the ESP is derived from its new GUID.
3. For each boot entry of the firmware that names the old GUID of the ESP, one with the new GUID is put before it.
4. The entries of the primary table are copied to a place aside, and its header points there. Then the new entries
   are written where the old ones were, and the header takes the new GUIDs and points to them. A header is one
   sector. Linux does not read the backup table of a disk whose primary one is damaged (unless `gpt` is on its
   command line), so the primary table may be damaged at no moment.
5. The firmware's entries with the old GUID are removed, and then the copy that is aside: it is the record of them.
6. With the system up: the UUID of the root's file system is derived from the GUID of its partition.

GPT: UEFI 2.10, 5.3. FAT32: Microsoft's specification of 2000. Load options: UEFI 2.10, 3.1.3.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import uuid
import zlib

from ..ground.boot import LAYOUT, VARIABLES
from ..ground.errors import NodeError
from ..ground.typed import NamedTuple
from ..state import bootdisk, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence, Tuple

    from ..ground.host import Host

ESP = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"  # namespace of the firmware's own variables
SIGNATURE = b"EFI PART"
HOME = 2  # sector of the entries in every table that sfdisk and systemd-repart write
ATTRIBUTES = struct.pack("<I", 7)  # non-volatile, boot services, runtime: those of a boot entry
SHIPPED = 5  # version of the GUID of a disk as built; a random one has version 4
# ioctl numbers of linux/ext4.h and linux/fs.h
_SET_UUID, _GET_UUID, _FLUSH_BUFFERS = 0x4008662C, 0x8008662C, 0x1261

if TYPE_CHECKING:
    Write = Callable[[int, bytes, int], int]


class Table(NamedTuple):
    """One copy of a partition table: size of a sector, header and entries as they are on the disk.

    `own` is the sector of the header, `other` that of the other copy, `at` the first sector of the entries.
    """

    sector: int
    header: bytes
    entries: bytes
    own: int
    other: int
    at: int
    first_usable: int

    @property
    def disk(self) -> uuid.UUID:
        """Return the GUID of the disk."""
        return uuid.UUID(bytes_le=self.header[56:72])

    def partitions(self) -> List[Tuple[int, uuid.UUID, uuid.UUID, int]]:
        """Return (index of the entry, type, GUID, first byte) of each partition."""
        size = struct.unpack_from("<I", self.header, 84)[0]
        rows = []
        for index in range(len(self.entries) // size):
            entry = self.entries[index * size : (index + 1) * size]
            if any(entry[:16]):
                start = struct.unpack_from("<Q", entry, 32)[0] * self.sector
                kind, guid = (uuid.UUID(bytes_le=entry[at : at + 16]) for at in (0, 16))
                rows.append((index, kind, guid, start))
        return rows

    def renamed(self, disk: uuid.UUID) -> Table:
        """Return the table with the GUIDs that follow from a disk's GUID. Types, places and names stay."""
        size = struct.unpack_from("<I", self.header, 84)[0]
        entries = bytearray(self.entries)
        for index, _, _, _ in self.partitions():
            entries[index * size + 16 : index * size + 32] = uuid.uuid5(
                disk, f"partition {index + 1}"
            ).bytes_le
        header = bytearray(self.header)
        header[56:72] = disk.bytes_le
        return self._replace(header=bytes(header), entries=bytes(entries))

    def sealed(self, own: int, other: int, at: int) -> Table:
        """Return the table for other sectors, with valid checksums."""
        header = bytearray(self.header)
        struct.pack_into("<QQ", header, 24, own, other)
        struct.pack_into("<Q", header, 72, at)
        struct.pack_into("<I", header, 88, zlib.crc32(self.entries))
        struct.pack_into("<I", header, 16, 0)
        length = struct.unpack_from("<I", header, 12)[0]
        struct.pack_into("<I", header, 16, zlib.crc32(bytes(header[:length])))
        return self._replace(header=bytes(header), own=own, other=other, at=at)

    def same_guids(self, other: Table) -> bool:
        """Return whether disk and partitions have the GUIDs of another copy."""
        mine, its = ([row[1:3] for row in table.partitions()] for table in (self, other))
        return self.disk == other.disk and mine == its


def read(handle: int, sector: int, own: int) -> Optional[Table]:
    """Return the copy of the table whose header is at a sector; None if it is not valid."""
    header = os.pread(handle, sector, own * sector)
    if header[:8] != SIGNATURE or len(header) < sector:
        return None
    length = struct.unpack_from("<I", header, 12)[0]
    if not 92 <= length <= sector:
        return None
    bare = header[:16] + bytes(4) + header[20:length]
    here, other, first_usable = struct.unpack_from("<QQQ", header, 24)
    at, number, size = struct.unpack_from("<QII", header, 72)
    if zlib.crc32(bare) != struct.unpack_from("<I", header, 16)[0] or here != own:
        return None
    if not (128 <= size <= 4096 and 1 <= number <= 1024):
        return None
    entries = os.pread(handle, number * size, at * sector)
    if zlib.crc32(entries) != struct.unpack_from("<I", header, 88)[0]:
        return None
    return Table(sector, header, entries, own=own, other=other, at=at, first_usable=first_usable)


def primary(handle: int) -> Optional[Table]:
    """Return the primary table of a disk with sectors of 512 or 4096 bytes; None if it is not valid."""
    return read(handle, 512, 1) or read(handle, 4096, 1)


class IdentityDisk:
    """A disk that gets its identity. Every write goes through `write` and is flushed before the next."""

    def __init__(self, path: str, handle: int, write: Write) -> None:
        self.path, self.handle, self._write = path, handle, write

    def put(self, data: bytes, offset: int) -> None:
        """Write and flush. A write that changes nothing is left out."""
        if os.pread(self.handle, len(data), offset) == data:
            return
        done = self._write(self.handle, data, offset)
        if done != len(data):
            raise OSError(f"{done} of {len(data)} bytes were written at {offset}")
        os.fsync(self.handle)

    def store(self, table: Table) -> None:
        """Write the entries of a table, then its header."""
        self.put(table.entries, table.at * table.sector)
        self.put(table.header, table.own * table.sector)

    def table(self) -> Table:
        """Return the primary table. Raises NodeError if it is damaged: firmware restores it from the backup."""
        valid = primary(self.handle)
        if valid is None:
            raise NodeError(f"{self.path} has no valid primary partition table (GPT)")
        return valid


def planned(disk: IdentityDisk, table: Table, fresh: Callable[[], uuid.UUID], renew: bool) -> Table:
    """Return the backup table with the GUIDs that the disk will have, which is then on the disk.

    :param renew: whether the disk has to get other GUIDs, though its own are not those of its image.
    """
    backup = read(disk.handle, table.sector, table.other)
    begun = (
        backup is not None and backup.disk.version != SHIPPED and not backup.same_guids(table)
    )  # an earlier run has chosen them
    if begun and backup is not None and table.renamed(backup.disk).same_guids(backup):
        return backup
    if table.disk.version != SHIPPED and not renew:
        wanted = table
    else:
        wanted = table.renamed(fresh())
    spread = -(-len(table.entries) // table.sector)
    at = backup.at if backup is not None else table.other - spread
    new = wanted.sealed(own=table.other, other=1, at=at)
    disk.store(new)
    return new


def switch(disk: IdentityDisk, wanted: Table) -> None:
    """Give the primary table the GUIDs of the backup with the write of one sector. The old entries stay aside."""
    table = disk.table()
    second = _second_place(table)
    spread = second - HOME
    if table.first_usable < second + spread:
        raise NodeError(
            f"{disk.path} has partitions from sector {table.first_usable} on, "
            f"and its table needs room up to {second + spread}"
        )
    if table.same_guids(wanted):
        return
    disk.store(table.sealed(1, table.other, second))
    disk.store(table.renamed(wanted.disk).sealed(1, table.other, HOME))


def _second_place(table: Table) -> int:
    return HOME - -len(table.entries) // table.sector


def replaced(disk: IdentityDisk) -> List[uuid.UUID]:
    """Return the GUIDs of ESPs in the entries that an earlier step has left aside; empty if nothing is there.

    The place may hold anything on a disk of unknown content, so that all but the GUIDs must be equal.
    """
    table = disk.table()
    left = table._replace(
        entries=os.pread(disk.handle, len(table.entries), _second_place(table) * table.sector)
    )
    if left.renamed(table.disk).entries != table.renamed(table.disk).entries:
        return []
    guids = [guid for _, kind, guid, _ in left.partitions() if kind == ESP]
    return [guid for guid in guids if guid not in [row[2] for row in table.partitions()]]


def clear(disk: IdentityDisk) -> None:
    """Remove the entries that are aside."""
    table = disk.table()
    disk.put(bytes(len(table.entries)), _second_place(table) * table.sector)


def label_esp(disk: IdentityDisk, table: Table) -> None:
    """Make the first eight digits of its GUID the volume ID of the ESP, in both boot sectors (FAT32 only)."""
    for _, kind, guid, start in table.partitions():
        sector = os.pread(disk.handle, 512, start) if kind == ESP else b""
        if sector[82:90] != b"FAT32   " or sector[66] != 0x29:
            continue
        spare = struct.unpack_from("<H", sector, 50)[0] * struct.unpack_from("<H", sector, 11)[0]
        for at in (spare, 0) if spare else (0,):
            disk.put(guid.bytes[3::-1], start + at + 67)


class Variables:
    """Boot entries of the firmware, as files of efivarfs: four bytes of attributes, then the value."""

    def __init__(self, folder: str, write: Optional[Callable[[str, bytes], None]] = None) -> None:
        self.folder, self._write = folder, write or _write_variable

    def name(self, number: int) -> str:
        """Return the path of a boot entry."""
        return f"{self.folder}/Boot{number:04X}-{GLOBAL}"

    def read(self, path: str) -> bytes:
        """Return the value of a variable; empty if it is absent."""
        try:
            with open(path, "rb") as opened:
                return opened.read()[4:]
        except OSError:
            return b""

    def order(self) -> List[int]:
        """Return the numbers of the boot entries in order."""
        value = self.read(f"{self.folder}/BootOrder-{GLOBAL}")
        return list(struct.unpack(f"<{len(value) // 2}H", value[: len(value) // 2 * 2]))

    def put(self, path: str, value: bytes) -> None:
        """Write a variable; firmware does so as a whole."""
        self._write(path, ATTRIBUTES + value)

    def put_order(self, numbers: Sequence[int]) -> None:
        """Write the order of the boot entries."""
        self.put(f"{self.folder}/BootOrder-{GLOBAL}", struct.pack(f"<{len(numbers)}H", *numbers))

    def add(self, old: uuid.UUID, new: uuid.UUID) -> None:
        """Put an entry with the new GUID of a partition before each that names the old one."""
        for number in self.order():
            value = self.read(self.name(number))
            if old.bytes_le not in value:
                continue
            wanted = value.replace(old.bytes_le, new.bytes_le)
            order = self.order()
            if wanted in [self.read(self.name(one)) for one in order]:
                continue
            # An entry outside the order is of a run that ended here, or not ours.
            values = ((one, self.read(self.name(one))) for one in range(0x10000))
            free, there = next(row for row in values if not row[1] or row[1] == wanted)
            if not there:
                self.put(self.name(free), wanted)
            order.insert(order.index(number), free)
            self.put_order(order)

    def drop(self, old: uuid.UUID) -> None:
        """Remove the entries that name a GUID which no partition has any more."""
        for number in self.order():
            if old.bytes_le in self.read(self.name(number)):
                self.put_order([one for one in self.order() if one != number])
                with contextlib.suppress(OSError):
                    os.unlink(self.name(number))


def _write_variable(path: str, data: bytes) -> None:
    # efivarfs takes a variable in one write.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def give(
    paths: Sequence[str],
    variables: Variables,
    *,
    fresh: Callable[[], uuid.UUID] = uuid.uuid4,
    write: Write = os.pwrite,
) -> Dict[str, str]:
    """Give each disk its own identity, and return path -> GUID of the disk afterwards.

    One path: only if the disk still has the GUIDs of its image, or an earlier run did not complete. Several paths are
    disks with equal GUIDs: each gets other ones. Raises NodeError if they are not distinct afterwards, for instance
    because all paths lead to one disk.
    """
    with contextlib.ExitStack() as opened:
        disks = []
        for path in paths:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, handle)
            disks.append(IdentityDisk(path, handle, write))
        for disk in disks:
            table = disk.table()
            wanted = planned(disk, table, fresh, renew=len(disks) > 1)
            label_esp(disk, wanted)
            pairs = [
                (mine[2], its[2])
                for mine, its in zip(table.partitions(), wanted.partitions())
                if mine[1] == ESP and mine[2] != its[2]
            ]
            for before, after in pairs:
                variables.add(before, after)
            switch(disk, wanted)
        result = {}
        for disk in disks:
            with contextlib.suppress(OSError):  # a file of a test
                fcntl.ioctl(disk.handle, _FLUSH_BUFFERS, 0)
            result[disk.path] = str(disk.table().disk)
        if len(set(result.values())) < len(result):
            raise NodeError(
                f"{' and '.join(result)} have the same GUID after each got its own: are they paths of one disk?"
            )
        for disk in disks:
            old = replaced(disk)
            for guid in old:
                variables.drop(guid)
            if old:
                clear(disk)
    return result


def name_filesystem(mount: str, partition: uuid.UUID) -> Optional[str]:
    """Derive the UUID of a mounted ext4 from the GUID of its partition. Return why that cannot be done, or None.

    The kernel changes all superblocks in one transaction of the journal (Linux 6.0). It refuses a file system whose
    checksums depend on the UUID (no metadata_csum_seed).
    """
    wanted = filesystem_uuid(partition)
    handle = os.open(mount, os.O_RDONLY | os.O_CLOEXEC)
    try:
        now = bytearray(struct.pack("<II16s", 16, 0, b""))
        fcntl.ioctl(handle, _GET_UUID, now)
        if bytes(now[8:]) == wanted.bytes:
            return None
        fcntl.ioctl(handle, _SET_UUID, struct.pack("<II16s", 16, 0, wanted.bytes))
        os.fsync(handle)
    except OSError as problem:
        return f"the file system at {mount} keeps its UUID: {problem.strerror}"
    finally:
        os.close(handle)
    return None


def filesystem_uuid(partition: uuid.UUID) -> uuid.UUID:
    """Return the UUID of the file system in a partition. Pure."""
    return uuid.uuid5(partition, "file system")


def named(host: Host, paths: Sequence[str]) -> str:
    """Give disks an identity, and return what was done. Raises NodeError, before anything is written, for two paths of
    one disk.
    """
    names = [os.path.basename(os.path.realpath(path)) for path in paths]
    worldwide = [world_wide_name(host, name) for name in names]
    for name, value in zip(names, worldwide):
        if value and worldwide.count(value) > 1:
            raise NodeError(f"{' and '.join(paths)} are paths of one disk: {name} is {value}")
    try:
        done = give(paths, Variables(host.located(VARIABLES)))
    except OSError as problem:
        raise NodeError(f"{' '.join(paths)}: {problem.strerror or problem}") from None
    return "; ".join(f"{path} has GUID {guid}" for path, guid in done.items())


def world_wide_name(host: Host, disk: str) -> str:
    """Return what identifies a disk on all its paths; empty if sysfs has nothing."""
    places = ("wwid", "device/wwid", "device/serial", "serial")
    texts = (host.text(f"/sys/class/block/{disk}/{place}") for place in places)
    return next((text.strip() for text in texts if text and text.strip()), "")


def complete(host: Host) -> str:
    """Complete the identity of the disk that runs: table, ESP, file system of the root, loader entry. Return what it is.

    The entry is last: until it has the GUID of its ESP, each boot runs this again. Raises NodeError.
    """
    bootdisk.refuse(host)
    number = bootdisk.mounted(host).get("/")
    own = bootdisk.disk(host, f"/sys/dev/block/{number}")
    root = next((part for part in bootdisk.partitions(host) if part.number == number), None)
    if own is None or root is None or not host.exists(LAYOUT):
        raise NodeError(
            "/ is not on a partition of a disk image, so that there is no identity to complete"
        )
    text = named(host, [f"/dev/{own}"])
    obstacle = name_filesystem(host.located("/"), uuid.UUID(root.uuid)) if root.uuid else None
    rows = [text, obstacle or "its root has a UUID of its own", slots.name_disk(host) or ""]
    return "; ".join(filter(None, rows))
