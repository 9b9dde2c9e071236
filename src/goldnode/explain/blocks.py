"""Readers of lists of block devices: `lsblk` with any columns, `-P` or `-J`, `blkid`, and `df`.

They judge nothing. Several lists in one text are joined by the names of the devices, as people paste `lsblk` for
the mounts and `blkid` for the UUIDs. Formats: util-linux 2.38 to 2.42, coreutils 9.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Names that the kernel gives: a disk, and behind it the number of a partition.
_KERNEL_NAME = re.compile(
    r"^(?P<disk>nvme\d+n\d+|mmcblk\d+|nbd\d+|loop\d+|md\d+|sr\d+|zram\d+|dm-\d+|ram\d+|pmem\d+|rbd\d+|(?:sd|vd|xvd|hd)[a-z]{1,3})(?:(?:(?<=\d)p|(?<=[a-z]))(?P<part>\d+))?$"
)
_TREE = re.compile(r"^[\s│├└─|`+\\-]*")
_HEADER = re.compile(r"(?:^|(?<=\s))(?:NAME|KNAME|PATH)(?:\s+[A-Z][A-Z:%-]*)+\s*$")
_TELLING = {"FSTYPE", "SIZE", "TYPE", "MOUNTPOINT", "MOUNTPOINTS", "UUID", "PARTUUID", "LABEL"}
_KINDS = ("disk", "part", "lvm", "crypt", "rom", "loop", "mpath", "dm", "md")
_BARE = re.compile(
    r"^[\s│├└─|`-]*(?P<name>\w[\w.+-]{0,80}?)\s+\d+:\d+\s+[01]\s+(?P<size>[\d.,]+[BKMGTP]?)\s+[01]\s+(?P<type>disk|part|lvm|crypt"
    r"|rom|loop|mpath|raid\d+)(?:\s+(?P<mount>[/\[]\S.*))?$"
)
_BARE_F = re.compile(
    r"^\s*[│├└─|`][│├└─|`\s-]*(?P<name>\w+)\s+(?P<fstype>vfat|ext[234]|xfs|btrfs|swap|linux_raid_member|LVM2_member|crypto_LUKS)"
    r"\s+(?:(?:FAT\d\d|\d\.\d|LVM2 \d+)\s+)?(?:(?P<label>\S+)\s+)?(?P<uuid>[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}|[0-9a-f]{8}-[0-9a-f-]{27})\b"
    r"(?:.*?(?P<use>\d+)%)?(?:.*?\s(?P<mount>/\S*))?\s*$"
)
_PAIR = re.compile(r'([A-Z][A-Z0-9_:%-]*)="([^"]*)"')
_BLKID = re.compile(r"^\s*/dev/(?P<name>\S+): (?=.*[A-Z_]+=\")")
_DF = re.compile(
    r"^\s*(?P<source>/dev/\S+)\s+(?:(?P<type>[a-z]\w+)\s+)?(?P<size>\d\S*)\s+(?P<used>\d\S*)\s+(?P<free>\d\S*)\s+(?P<use>\d+)%\s+(?P<mount>/\S*)$"
)
_DF_HEAD = re.compile(r"^\s*Filesystem\s.*\b(Use%|Capacity)\s+Mounted on\s*$")
# A command that prints a part of the devices, where a text has the line of its prompt.
_PART_OF_IT = re.compile(r"\b(?:lsblk|blkid)\b.*(?:\||/dev/|\s-t\b|-L\b|-U\b)")
_RAID = re.compile(r"^(?:raid\d+|linear|multipath|md)$")


@dataclass
class BlockDevice:
    """One device: the `disks` below it, where it is mounted, and its columns by their names in small letters."""

    name: str
    line: int  # from 0
    kind: str = ""  # as TYPE of lsblk; empty if unknown
    disks: frozenset[str] = frozenset()
    mounts: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)

    def column(self, name: str) -> str:
        """Return a column; empty if the lists do not have it. GUIDs are in small letters."""
        value = self.columns.get(name, "")
        return value.lower() if name in ("partuuid", "parttype", "ptuuid") else value

    @property
    def raid(self) -> bool:
        """Return whether it is an array of Linux's software RAID."""
        return bool(_RAID.match(self.kind)) or bool(re.match(r"md\d+(p\d+)?$", self.name))

    @property
    def typed_esp(self) -> bool:
        """Return whether the partition table has it as an EFI system partition."""
        named = self.column("parttypename") in ("EFI System", "EFI (FAT-12/16/32)")
        return named or self.column("parttype").startswith("c12a7328")

    @property
    def esp(self) -> bool:
        """Return whether it is an EFI system partition, by its type, its place, or its names on FAT."""
        if self.typed_esp or "/boot/efi" in self.mounts:
            return True
        names = f"{self.column('label')} {self.column('partlabel')}"
        fat = self.column("fstype") in ("vfat", "fat32", "msdos")
        by_name = bool(re.search(r"efi|\besp\b", names, re.IGNORECASE))
        return fat and (by_name or "/efi" in self.mounts or "/boot" in self.mounts)

    @property
    def maybe_esp(self) -> bool:
        """Return whether it may be an EFI partition: a FAT partition that is mounted nowhere else, of unknown type."""
        fat = self.column("fstype") in ("vfat", "fat32", "msdos")
        typed = self.column("parttype") or self.column("parttypename")
        return self.esp or (fat and not typed and not self.mounts and self.kind in ("", "part"))


@dataclass
class BlockDevices:
    """All lists of a text together. `part` names the command if one of them shows a part of the devices.

    `whole` has the columns of which another list shows all devices all the same.

    `sizes` has the disks of each list with their sizes: lists of two boots, or of two machines, differ in them.
    `full` are file systems of `df` and `lsblk -f` as (mount, source, share used in %, line).
    """

    devices: dict[str, BlockDevice] = field(default_factory=dict)
    forms: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    part: str = ""
    whole: set[str] = field(default_factory=set)
    sizes: list[dict[str, str]] = field(default_factory=list)
    full: list[tuple[str, str, int, int]] = field(default_factory=list)

    def with_column(self, name: str) -> list[BlockDevice]:
        """Return the devices that have a value in this column."""
        return [device for device in self.devices.values() if device.column(name)]

    def at(self, *mounts: str) -> BlockDevice | None:
        """Return the device that is mounted at the first of these places that has one."""
        for mount in mounts:
            for device in self.devices.values():
                if mount in device.mounts:
                    return device
        return None


def disk_of(name: str) -> str:
    """Return the disk of a device by the name that the kernel gave it; empty if the name does not have it."""
    match = _KERNEL_NAME.match(name)
    return match["disk"] if match and not name.startswith("md") else ""


def read(lines: Sequence[str]) -> BlockDevices:
    """Read all lists of block devices in a text."""
    result = BlockDevices()
    for form, used, devices in _lists(lines):
        result.used.update(used)
        if form not in result.forms:
            result.forms.append(form)
        for device in devices:
            join(result, device)
        sizes = {row.name: row.column("size") for row in devices if row.kind == "disk"}
        # Bytes (`lsblk -b`) cannot be compared with rounded sizes.
        sizes = {name: size for name, size in sizes.items() if size[-1:].isalpha()}
        result.sizes.extend([sizes] if sizes else [])
        start = min(used)
        before = lines[start - 1] if start else ""
        if _PART_OF_IT.search(before):
            result.part = before.strip()
            result.used.add(start - 1)
    _read_df(lines, result)
    for device in result.devices.values():
        use = device.column("fsuse%").rstrip("%")
        if use.isdigit() and device.mounts:
            result.full.append((device.mounts[0], device.name, int(use), device.line))
    return result


def _lists(lines: Sequence[str]) -> Iterator[tuple[str, set[int], list[BlockDevice]]]:
    """Yield each list: its form, its lines and its devices."""
    number = 0
    while number < len(lines):
        line = lines[number]
        head = _HEADER.search(line)
        if head and _TELLING & set(line[head.start() :].split()):
            used, devices = _table(lines, number, head.start())
        elif _BLKID.match(line) or line.lstrip().startswith('NAME="'):
            used, devices = _pairs(lines, number)
        elif '"blockdevices"' in line:
            used, devices = _of_json(lines, number)
        elif _BARE.match(line) or _BARE_F.match(line):
            used, devices = _bare(lines, number)
        else:
            number += 1
            continue
        if devices:
            yield "`blkid`" if _BLKID.match(line) else "`lsblk`", used, devices
        number = max(used, default=number) + 1


def join(result: BlockDevices, device: BlockDevice) -> None:
    """Add a device, or complete the one of an earlier list."""
    known = result.devices.setdefault(device.name, device)
    if known is device:
        return
    for name, value in device.columns.items():
        if value and not known.columns.get(name):
            known.columns[name] = value
    known.kind = known.kind or device.kind
    known.disks = known.disks or device.disks
    known.mounts += [mount for mount in device.mounts if mount not in known.mounts]


class _Tree:
    """Devices of one list in the order of its rows, with the disks below each by its indentation."""

    def __init__(self) -> None:
        self.devices: list[BlockDevice] = []
        self._above: list[tuple[int, BlockDevice]] = []

    def add(self, device: BlockDevice, indent: int) -> None:
        """Add a row. An array is listed below each of its members, and is one device."""
        self._above = [row for row in self._above if row[0] < indent]
        below = self._above[-1][1].disks if self._above else frozenset()
        own = disk_of(device.name) or (device.name if device.kind == "disk" else "")
        device.disks = below or frozenset([own] if own else [])
        twice = next((row for row in self.devices if row.name == device.name), None)
        if twice is not None:
            twice.disks |= device.disks
        else:
            self.devices.append(device)
        self._above.append((indent, twice or device))


def _table(lines: Sequence[str], head: int, start: int) -> tuple[set[int], list[BlockDevice]]:
    """Read a table of lsblk below its header, which may stand behind the prefix of another program."""
    prefix = lines[head][:start] if lines[head][:start].strip() else ""
    header = lines[head][len(prefix) :]
    columns = [(match.group(), match.start(), match.end()) for match in re.finditer(r"\S+", header)]
    used, tree = {head}, _Tree()
    for number in range(head + 1, len(lines)):
        line = lines[number][len(prefix) :]
        indent = _indent(line)
        if not lines[number].startswith(prefix) or not line[indent:]:
            break
        cells = _cells(line, columns)
        mounts = " ".join(cells.get(key, "") for key in ("MOUNTPOINT", "MOUNTPOINTS")).split()
        name = cells.pop(columns[0][0], "").removeprefix("/dev/")
        if not name and mounts and mounts[0][0] in "/[" and tree.devices:
            # A device that is mounted twice has a line for each place.
            tree.devices[-1].mounts += mounts
            used.add(number)
            continue
        kind = cells.get("TYPE", "")
        known = kind in _KINDS or _RAID.match(kind) or _KERNEL_NAME.match(name)
        if not name or not (known or re.match(r"\s*[│├└|`]", line)):
            break
        below = {key.lower(): value for key, value in cells.items()}
        tree.add(BlockDevice(name, number, kind, mounts=mounts, columns=below), indent)
        used.add(number)
    return used, tree.devices


def _indent(line: str) -> int:
    """Return where the name of a device begins, behind the lines that draw a tree."""
    match = _TREE.match(line)
    return match.end() if match else 0


def _cells(line: str, columns: Sequence[tuple[str, int, int]]) -> dict[str, str]:
    """Return the cells of a row. A word belongs to the column whose header it overlaps most, or to the last that begins before it."""
    indent = _indent(line)
    cells: dict[str, list[str]] = {}
    for match in re.finditer(r"\S+", line[indent:]):
        start, end = match.start() + indent, match.end() + indent
        name = columns[0][0]
        if start >= columns[1][1] or cells:
            shared = [
                (min(end, stop) - max(start, begin), name) for name, begin, stop in columns[1:]
            ]
            most, name = max(shared, key=lambda row: row[0])
            if most <= 0:
                name = ([columns[0][0]] + [row[0] for row in columns if row[1] <= start])[-1]
        cells.setdefault(name, []).append(match.group())
    return {name: " ".join(words) for name, words in cells.items()}


def _bare(lines: Sequence[str], start: int) -> tuple[set[int], list[BlockDevice]]:
    """Read rows of lsblk's own columns, or of `lsblk -f`, that were pasted without their header."""
    used, tree = set(), _Tree()
    for number in range(start, len(lines)):
        match = _BARE.match(lines[number]) or _BARE_F.match(lines[number])
        if match is None:
            break
        cells = match.groupdict(default="")
        device = BlockDevice(cells["name"], number, cells.get("type", ""))
        device.mounts = cells["mount"].split()
        device.columns = {key: cells.get(key, "") for key in ("size", "fstype", "label", "uuid")}
        device.columns["fsuse%"] = cells.get("use", "")
        tree.add(device, match.start("name"))
        used.add(number)
    return used, tree.devices


def _pairs(lines: Sequence[str], start: int) -> tuple[set[int], list[BlockDevice]]:
    """Read lines of KEY="value": those of blkid, and of `lsblk -P`."""
    used, tree = set(), _Tree()
    for number in range(start, len(lines)):
        values = {key.lower(): value for key, value in _PAIR.findall(lines[number])}
        match = _BLKID.match(lines[number])
        name = match["name"] if match else values.pop("name", "")
        if not name or not values:
            break
        values["fstype"] = values.pop("type", "") if match else values.get("fstype", "")
        kind = "" if match else values.pop("type", "")
        mounts = (values.get("mountpoints") or values.get("mountpoint") or "").split()
        tree.add(
            BlockDevice(name.rsplit("/", 1)[-1], number, kind, mounts=mounts, columns=values), 0
        )
        used.add(number)
    return used, tree.devices


def _of_json(lines: Sequence[str], at: int) -> tuple[set[int], list[BlockDevice]]:
    """Read the document of `lsblk -J`."""
    start = at if "{" in lines[at].split('"blockdevices"')[0] else at - 1
    text = "\n".join(lines[max(start, 0) :])
    try:
        document, end = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except ValueError:
        return set(), []
    tree = _Tree()

    def add(row: Mapping[str, object], depth: int) -> None:
        mounts = row.get("mountpoints") or row.get("mountpoint") or []
        places = mounts if isinstance(mounts, list) else [mounts]
        device = BlockDevice(str(row.get("name")), at, str(row.get("type") or ""))
        device.mounts = [place for place in places if isinstance(place, str)]
        device.columns = {key: value for key, value in row.items() if isinstance(value, str)}
        tree.add(device, depth)
        children = row.get("children")
        for child in children if isinstance(children, list) else []:
            if isinstance(child, dict):
                add(child, depth + 1)

    top = document.get("blockdevices")
    for row in top if isinstance(top, list) else []:
        if isinstance(row, dict):
            add(row, 0)
    count = text[: text.index("{") + end].count("\n") + 1
    return set(range(max(start, 0), max(start, 0) + count)), tree.devices


def _read_df(lines: Sequence[str], result: BlockDevices) -> None:
    """Read the rows of df that are about a block device."""
    for number, line in enumerate(lines):
        match = _DF.match(line)
        if match is None:
            if _DF_HEAD.match(line):
                result.used.add(number)
            continue
        result.used.add(number)
        if "`df`" not in result.forms:
            result.forms.append("`df`")
        result.full.append(
            (match["mount"], match["source"].removeprefix("/dev/"), int(match["use"]), number)
        )
