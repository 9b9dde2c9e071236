"""The disk that an image is written to: chosen by a declared rule, and judged by what is on it.

A disk is `empty` (no byte at either end, and no partition), `begun` or `installed` (by this program, as its record has it),
or has `data`. The record is in one sector before the first partition, which no partition table uses.
"""

from __future__ import annotations

import fnmatch
import json
import os
import zlib

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Host

MIB, GIB = 1 << 20, 1 << 30
SECTOR = 512
ZEROS = bytes(MIB)
# The images begin their partitions at 1 MiB. The GUIDs of a first boot need the sectors up to 66 (slots/identity.py).
RECORD = MIB - 4096
MAGIC = b"goldnode install "
EDGE = 16 * MIB  # bytes at both ends that are zero on an empty disk
TABLE = 34 * SECTOR  # bytes of protective MBR, header and entries
EMPTY, BEGUN, INSTALLED, DATA = "empty", "begun", "installed", "data"
# States of a record, with INSTALLED.
ERASING, WRITING = "erasing", "writing"
# Names of devices that are no disks, or parts of others.
_OTHERS = ("loop*", "ram*", "zram*", "sr*", "fd*", "dm-*", "md*", "nbd*")
_PROPERTIES = {
    "serial": ("ID_SERIAL_SHORT", "ID_SERIAL"),
    "wwn": ("ID_WWN_WITH_EXTENSION", "ID_WWN"),
    "path": ("ID_PATH",),
    "model": ("ID_MODEL",),
}
_FILES = {
    "serial": ("serial", "device/serial"),
    "wwn": ("wwid", "device/wwid"),
    "path": (),
    "model": ("device/model",),
}


class TargetDisk(NamedTuple):
    """A disk of this machine. `size` is in bytes, `sector` is that of its addresses; `obstacle` is why it cannot be a target."""

    name: str
    size: int
    sector: int
    names: Mapping[str, Tuple[str, ...]]  # serial, wwn, path, model: what is known
    obstacle: Optional[str] = None

    def line(self) -> str:
        """Return the disk as a line for a person."""
        known = [f"{key} {values[0]}" for key, values in self.names.items() if values]
        return ", ".join([f"/dev/{self.name}: {self.size / GIB:.1f} GiB", *known])


class DiskContent(NamedTuple):
    """Content of a disk, and the record of an installation."""

    kind: str
    record: Mapping[str, Any]
    text: str


def disks(host: Host) -> List[TargetDisk]:
    """Return the disks of this machine, by their names."""
    present = []
    for path in host.glob("/sys/class/block", "*"):
        name = path.rpartition("/")[2]
        if host.exists(f"{path}/partition") or any(fnmatch.fnmatch(name, row) for row in _OTHERS):
            continue
        size = int(host.text(f"{path}/size") or 0) * 512
        if size == 0 or not host.exists(f"{path}/device"):
            continue
        present.append(
            TargetDisk(
                name,
                size,
                _number(host, f"{path}/queue/logical_block_size"),
                _names(host, path),
                _obstacle(host, path),
            )
        )
    return present


def _number(host: Host, path: str) -> int:
    text = (host.text(path) or "").strip()
    return int(text) if text.isdigit() else 0


def _names(host: Host, path: str) -> Dict[str, Tuple[str, ...]]:
    """Return what udev and sysfs call a disk. Both may know a serial number in a form of its own."""
    udev: Dict[str, str] = {}
    for line in (
        host.text(f"/run/udev/data/b{(host.text(f'{path}/dev') or '').strip()}") or ""
    ).splitlines():
        if line.startswith("E:"):
            key, _, value = line[2:].partition("=")
            udev[key] = value.strip()
    names = {}
    for key, keys in _PROPERTIES.items():
        values = [udev.get(one, "") for one in keys]
        values += [(host.text(f"{path}/{file}") or "").strip() for file in _FILES[key]]
        names[key] = tuple(dict.fromkeys(value for value in values if value))
    return names


def _obstacle(host: Host, path: str) -> Optional[str]:
    if (host.text(f"{path}/ro") or "").strip() == "1":
        return "it is read-only"
    if (host.text(f"{path}/removable") or "").strip() == "1":
        return "it is removable"
    names = [path, *(one for one in host.glob(path, "*") if host.exists(f"{one}/partition"))]
    holders = [
        one.rpartition("/")[2] for name in names for one in host.glob(f"{name}/holders", "*")
    ]
    if holders:
        return f"it is part of {', '.join(holders)}"
    return None


def choose(found: Sequence[TargetDisk], rule: Mapping[str, Any]) -> TargetDisk:
    """Return the one disk that a rule names. Pure. Raises NodeError, with every disk, for none or several."""
    rows = [(disk, differs(disk, rule)) for disk in found]
    fit = [disk for disk, why in rows if why is None]
    text = ", ".join(f"{key}: {value}" for key, value in rule.items())
    table = "\n".join(f"  {disk.line()}: {why or 'matches'}" for disk, why in rows) or "  no disk"
    if len(fit) != 1:
        number = "no disk matches" if not fit else f"{len(fit)} disks match"
        raise NodeError(f"{number} the rule `{text}`. Correct `disk` of this machine.\n{table}")
    if fit[0].obstacle:
        raise NodeError(
            f"/dev/{fit[0].name} matches the rule `{text}`, but {fit[0].obstacle}.\n{table}"
        )
    return fit[0]


def differs(disk: TargetDisk, rule: Mapping[str, Any]) -> Optional[str]:
    """Return why a disk does not match a rule; None if it does. Pure. A pattern may have `*`, `?` and `[…]`."""
    for key, wanted in rule.items():
        if key == "min_gib":
            if disk.size < wanted * GIB:
                return f"smaller than {wanted} GiB"
        elif key == "max_gib":
            if disk.size > wanted * GIB:
                return f"larger than {wanted} GiB"
        elif not any(fnmatch.fnmatchcase(value, str(wanted)) for value in disk.names.get(key, ())):
            return f"another {key}"
    return None


def content(handle: int, size: int, partitions: int = 0) -> DiskContent:
    """Return what is on a disk. Raises OSError.

    :param size: bytes of the disk.
    :param partitions: number of those that the kernel has found on it.
    """
    head = os.pread(handle, MIB, 0)
    record = recorded(head[RECORD:])
    if record:
        text = f"{record.get('image')} for {record.get('node')} (erase: {record.get('erase')})"
        if record.get("state") == INSTALLED and head[SECTOR : SECTOR + 8] == b"EFI PART":
            return DiskContent(INSTALLED, record, f"an installation of {text}")
        if _is_unfinished(head, record):
            return DiskContent(BEGUN, record, f"an unfinished installation of {text}")
    if partitions:
        return DiskContent(DATA, record, f"{partitions} partitions")
    for at in range(0, min(EDGE, size), MIB):
        for offset in (at, size - at - MIB):
            if not is_zero(os.pread(handle, MIB, max(offset, 0))):
                edge = "start" if offset == at else "end"
                return DiskContent(DATA, record, f"data within {EDGE // MIB} MiB of its {edge}")
    return DiskContent(EMPTY, {}, "nothing")


def recorded(sector: bytes) -> Mapping[str, Any]:
    """Return the record of an installation in a sector; empty without one."""
    if not sector.startswith(MAGIC):
        return {}
    try:
        return as_dict(json.loads(sector[len(MAGIC) : SECTOR].rstrip(b"\0")))
    except ValueError:
        return {}


def is_zero(block: bytes) -> bool:
    """Return whether a block has only zeros."""
    # A comparison ends at the first other byte; a count reads all of them.
    return block == (ZEROS if len(block) == MIB else bytes(len(block)))


def _is_unfinished(head: bytes, record: Mapping[str, Any]) -> bool:
    """Return whether the first MiB has nothing that an interrupted installation did not leave there.

    The disk may have been used since, for LVM or a RAID, whose labels are in the first sectors.
    """
    if record.get("state") == ERASING:
        return True
    rest = head[:RECORD] + head[RECORD + SECTOR :]
    entries = rest[2 * SECTOR : TABLE]
    ours = is_zero(entries)
    if record.get("state") == INSTALLED:  # the entries of the table come before its header
        ours = ours or zlib.crc32(entries) == record.get("entries")
    return ours and is_zero(rest[: 2 * SECTOR]) and is_zero(rest[TABLE:])


def refusal(found: DiskContent, erase: int) -> Optional[str]:
    """Return why a disk is not written to; None if it is. Pure.

    :param erase: the number of the order. A record has that of the order which was carried out.
    """
    done = found.record.get("erase")
    done = done if type(done) is int else 0
    if found.kind == EMPTY or erase > done:
        return None
    if found.kind == BEGUN and (found.record.get("state") != ERASING or erase == done):
        return None
    if found.kind == INSTALLED:
        return f"the order `erase: {erase}` was carried out on it already"
    return f"it has {found.text}, and `erase: {erase}` of the order does not let it be erased"
