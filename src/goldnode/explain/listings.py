"""Readers of other lists of partitions and mounts: `fdisk -l`, `sfdisk -d`, `findmnt`, and `ls -l /dev/disk/by-*`.

They complete the devices that :mod:`.blocks` has read, and judge nothing. Formats: util-linux 2.38 to 2.42, coreutils 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from goldnode.explain.blocks import BlockDevice, BlockDevices, disk_of, join

# -- fdisk
_FDISK_DISK = re.compile(r"^\s*Disk /dev/(?P<name>[\w./-]{1,80}): \S+ [KMGTP]?i?B")
_FDISK_ABOUT = re.compile(
    r"^\s*(?:Disk model: |Units: |Sector size \(|I/O size \(|Disklabel type: |Disk identifier: )"
)
_FDISK_HEAD = re.compile(r"^\s*Device\s+(?:Boot\s+)?Start\s+End\s+Sectors\s+Size\s+(?:Id\s+)?Type$")
_FDISK_ROW = re.compile(
    r"^\s*/dev/(?P<name>[\w./-]{1,80})\s+(?:\*\s+)?\d+\s+\d+\s+\d+\s+[\d.]+[BKMGTP]?\s+(?P<type>\S.*)$"
)
# A table of MBR has the number of a type before its name.
_NUMBER = re.compile(r"^(?P<number>[0-9a-f]{1,2})\s+(?P<name>\S.*)$")
# -- sfdisk
_SFDISK_ABOUT = re.compile(
    r"^\s*(?:label: (?:gpt|dos)|label-id: |device: /dev/|unit: sectors|first-lba: |last-lba: |sector-size: |grain: |table-length: )"
)
_SFDISK_ROW = re.compile(r"^\s*/dev/(?P<name>[\w./-]{1,80}) : (?=start=)")
_SFDISK_VALUE = re.compile(r'\b(type|uuid|name)=\s*(?:"([^"]*)"|([\w-]+))')
# -- findmnt
_MOUNTS_HEAD = re.compile(r"^\s*TARGET\s+SOURCE\s+FSTYPE\b")
_MOUNTS_ROW = re.compile(
    r"^[\s│├└─|`-]*(?P<mount>/\S*)\s+(?P<source>\S+)\s+(?P<fstype>[a-z][\w.-]*)(?:\s+\S+)?$"
)
# -- links of udev
_LINKS_HEAD = re.compile(r"/dev/disk/by-(?P<by>[a-z]+)/?(?::|$|\s)")
_LINK = re.compile(
    r"^\s*l[rwx-]{9}\.? .*? (?:/dev/disk/by-(?P<by>[a-z]+)/)?(?P<value>[^\s/]+) -> (?:\.\./\.\./|/dev/)(?P<name>[\w-]+)$"
)
_TOTAL = re.compile(r"^\s*total \d+$")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_BY = {"uuid", "partuuid", "label", "partlabel"}

# A form, its lines and devices, and the columns that it shows of all devices.
PartitionList = tuple[str, set[int], list[BlockDevice], set[str]]


def add(lines: Sequence[str], disks: BlockDevices) -> None:
    """Add what these lists have to the devices that were read."""
    lists = [*_fdisk(lines), *_sfdisk(lines), *_mounts(lines), *_links(lines)]
    others = bool(disks.forms)
    for form, used, devices, whole in lists:
        if used & disks.used:
            continue
        disks.used.update(used)
        if form not in disks.forms:
            disks.forms.append(form)
        for device in devices:
            join(disks, device)
        disks.whole.update(whole)
        if form == "`sfdisk -d`" and not others:
            # It prints one disk, and a GUID may be that of a partition of another one.
            disks.part = disks.part or "sfdisk -d"


def _device(name: str, line: int, **columns: str) -> BlockDevice:
    """Return a partition, or a whole disk, under the name that the kernel gave it."""
    short = name.rsplit("/", 1)[-1]
    disk = disk_of(short)
    device = BlockDevice(short, line, "part" if disk and disk != short else "")
    device.disks = frozenset([disk] if disk else [])
    device.columns = {key: value for key, value in columns.items() if value}
    return device


def _fdisk(lines: Sequence[str]) -> Iterator[PartitionList]:
    """Read `fdisk -l`. Sizes are left out, as it rounds them otherwise than lsblk."""
    used, devices = set(), []
    for number, line in enumerate(lines):
        row = _FDISK_ROW.match(line)
        if row:
            typed = _NUMBER.match(row["type"])
            name = typed["name"] if typed else row["type"].strip()
            devices.append(_device(row["name"], number, parttypename=name))
        elif not (_FDISK_DISK.match(line) or _FDISK_ABOUT.match(line) or _FDISK_HEAD.match(line)):
            continue
        used.add(number)
    if any(_FDISK_HEAD.match(lines[number]) for number in used):
        yield "`fdisk -l`", used, devices, set()


def _sfdisk(lines: Sequence[str]) -> Iterator[PartitionList]:
    """Read `sfdisk -d`, which has the type, GUID and name of each partition."""
    used, devices = set(), []
    for number, line in enumerate(lines):
        row = _SFDISK_ROW.match(line)
        if row:
            values = {key: quoted or bare for key, quoted, bare in _SFDISK_VALUE.findall(line)}
            kind = values.get("type", "").lower()
            # A type of MBR is a number, and ef is that of an EFI system partition.
            named = "EFI (FAT-12/16/32)" if kind == "ef" else ""
            devices.append(
                _device(
                    row["name"],
                    number,
                    parttype=kind,
                    parttypename=named,
                    partuuid=values.get("uuid", ""),
                    partlabel=values.get("name", ""),
                )
            )
        elif not _SFDISK_ABOUT.match(line):
            continue
        used.add(number)
    if devices:
        yield "`sfdisk -d`", used, devices, set()


def _mounts(lines: Sequence[str]) -> Iterator[PartitionList]:
    """Read `findmnt`: the rows below its header that name a device."""
    for head, line in enumerate(lines):
        if not _MOUNTS_HEAD.match(line):
            continue
        used, devices = {head}, []
        for number in range(head + 1, len(lines)):
            row = _MOUNTS_ROW.match(lines[number])
            if row is None:
                break
            used.add(number)
            # A source with a directory behind it is a part of a file system that is mounted elsewhere.
            if row["source"].startswith("/dev/") and "[" not in row["source"]:
                device = _device(row["source"].removeprefix("/dev/"), number, fstype=row["fstype"])
                device.mounts = [row["mount"]]
                devices.append(device)
        yield "`findmnt`", used, devices, set()


def _links(lines: Sequence[str]) -> Iterator[PartitionList]:
    """Read `ls -l` of the directories with the links of udev."""
    used, devices, by = set(), [], ""
    whole: set[str] = set()
    for number, line in enumerate(lines):
        link = _LINK.match(line)
        head = None if link else _LINKS_HEAD.search(line)
        if head and ("ls " in line or line.strip().endswith(":")):
            by = head["by"]
            # A filter behind the command leaves some links out.
            whole.update([by] if by in _BY and "|" not in line else [])
            used.update([number] if line.strip().endswith(":") else [])
        elif by and _TOTAL.match(line):
            used.add(number)
        elif link:
            used.add(number)
            column = link["by"] or by
            value = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), link["value"])
            columns = {column: value} if column in _BY else {}
            devices.append(_device(link["name"], number, **columns))
    if devices:
        yield "`ls -l /dev/disk`", used, devices, whole
