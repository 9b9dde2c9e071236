"""The disk that the firmware booted, and whether root and EFI system partition are on it.

All disks of one image have the same labels, and until their first boot the same GUIDs. The
initramfs of a disk image therefore takes the root from the disk whose ESP the firmware booted, and
leaves a record of it (`BINDING`) and links to that disk's partitions (`LINKS`). Without the record,
`root=PARTLABEL=root-a` of the kernel and the label of the ESP may name partitions of different disks.

The boot loader and the firmware report the booted partition by its GUID alone: LoaderDevicePartUUID
(Boot Loader Interface), or the hard drive node in the device path of BootCurrent (UEFI 2.10, 3.1.3
and 10.3.5.1). Where several partitions have that GUID, no variable distinguishes them, so that is
the finding. The partitions are those of udev's database: a link in /dev/disk names only one of
several.
"""

from __future__ import annotations

import os
import struct

from ..effective import loader
from ..ground.boot import LAYOUT, PLACES, VARIABLES
from ..ground.errors import NodeError
from ..ground.host import is_container, mount_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, NamedTuple, Optional

    from ..ground.host import Host, Json

    class Partition(NamedTuple):
        """A partition: its name, its disk, its number (`8:1`), its GUID and its label."""

        name: str
        disk: str
        number: str
        uuid: str
        label: str
else:
    from collections import namedtuple

    Partition = namedtuple("Partition", ("name", "disk", "number", "uuid", "label"))

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"  # namespace of the firmware's own variables
LABELS = ("esp", "root-a", "root-b", "root")  # of the partitions of a disk image
# Record of the initramfs: disk=NAME, number=MAJOR:MINOR, guid=GUID of the booted partition, by=its source.
BINDING = "/run/goldnode/disk"
LINKS = "/dev/goldnode"  # a link for each partition of the booted disk, by its label
# Word of the kernel's command line: GUID of the ESP whose entry has it, for kernels without EFI variables.
WORD = "goldnode.disk="
# Sources of the booted partition that hold at the next boot too.
_BOUND = ("loader", "command line", "firmware")
_HARD_DRIVE, _GPT = (4, 1), 2  # type and subtype of a device path node; a signature that is a GUID
REMEDY = (
    "Take out the disk that is not to boot, erase its partition table if nothing on it is needed "
    "(`wipefs --all --force DISK`), or add goldnode.disk=GUID (PARTUUID of the ESP) to the kernel's command "
    "line, and reboot."
)


def binding(host: Host) -> Dict[str, str]:
    """Return the record of the initramfs; empty if this boot has none."""
    rows = (line.partition("=") for line in (host.text(BINDING) or "").splitlines())
    return {name: value for name, _, value in rows}


def device(host: Host, label: str) -> Optional[str]:
    """Return the path of a partition of the booted disk by its label; None if it is absent.

    A boot without a record of the initramfs has udev's link for the label, which names one of several disks.
    """
    paths = (f"{LINKS}/{label}", f"/dev/disk/by-partlabel/{label}")
    return next((path for path in paths if host.exists(path)), None)


def with_word(host: Host, options: str, where: str) -> str:
    """Return a command line with the GUID of the mounted ESP; unchanged if udev does not know it."""
    number = mounted(host).get(where)
    guid = next((part.uuid for part in partitions(host) if part.number == number), "")
    if not guid:
        return options
    rest = [word for word in options.split() if not word.startswith(WORD)]
    return " ".join([*rest, f"{WORD}{guid}"])


def disk(host: Host, link: str) -> Optional[str]:
    """Return the disk of a partition by its link in sysfs; None if the link is not that of a partition."""
    here = os.path.realpath(host.located(link))
    return os.path.basename(os.path.dirname(here)) if os.path.exists(f"{here}/partition") else None


def mounted(host: Host) -> Dict[str, str]:
    """Return mount point -> number of the device of `/` and of the places of an ESP.

    The last mount at a path hides the earlier ones. Devices without a number of a disk (autofs) are
    left out.
    """
    mounts: Dict[str, str] = {}
    for line in mount_lines(host):
        words = line.split()
        if len(words) > 4 and words[4] in ("/", *PLACES):
            mounts[words[4]] = words[2]
    return {place: number for place, number in mounts.items() if not number.startswith("0:")}


def partitions(host: Host) -> List[Partition]:
    """Return all partitions that udev knows, without those of disks that are parts of another one.

    The paths of a multipath device and the members of a RAID show the partitions of the whole. A
    loop device is no disk that boots.
    """
    rows = []
    for link in host.glob("/sys/class/block", "*"):
        own = disk(host, link)
        number = (host.text(f"{link}/dev") or "").strip()
        if (
            own is None
            or own.startswith("loop")
            or host.glob(f"/sys/class/block/{own}/holders", "*")
        ):
            continue
        facts = dict(
            line[2:].partition("=")[::2]
            for line in (host.text(f"/run/udev/data/b{number}") or "").splitlines()
            if line.startswith("E:ID_PART_ENTRY_")
        )
        uuid, label = facts.get("ID_PART_ENTRY_UUID", ""), facts.get("ID_PART_ENTRY_NAME", "")
        rows.append(Partition(link.rpartition("/")[2], own, number, uuid.lower(), label))
    return rows


def booted(host: Host) -> Optional[str]:
    """Return the GUID of the partition that the firmware booted; None if neither loader nor firmware has it."""
    reported = loader.variable(host, "LoaderDevicePartUUID")
    if reported:
        return reported.strip().lower()
    current = host.data(f"{VARIABLES}/BootCurrent-{GLOBAL}")
    if current is None or len(current) < 6:
        return None
    option = host.data(f"{VARIABLES}/Boot{int.from_bytes(current[4:6], 'little'):04X}-{GLOBAL}")
    return None if option is None else hard_drive(option[4:])


def hard_drive(option: bytes) -> Optional[str]:
    """Return the GUID of the partition in a load option; None if its device path has none. Pure."""
    end = option.find(b"\0\0", 6)
    while (
        end != -1 and end % 2
    ):  # the description is UTF-16: its end is two zero bytes at an even place
        end = option.find(b"\0\0", end + 1)
    if end == -1:
        return None
    path = option[end + 2 :][: int.from_bytes(option[4:6], "little")]
    while len(path) >= 4:
        size = int.from_bytes(path[2:4], "little")
        if size < 4:
            return None
        if (
            (path[0], path[1]) == _HARD_DRIVE
            and size >= 42
            and len(path) >= 42
            and path[41] == _GPT
        ):
            first, second, third = struct.unpack_from("<IHH", path, 24)
            rest = path[32:40].hex()
            return f"{first:08x}-{second:04x}-{third:04x}-{rest[:4]}-{rest[4:]}"
        path = path[size:]
    return None


def astray(host: Host) -> Optional[str]:
    """Return why root, ESP and the booted partition of a disk image may not belong together; None if they do.

    Machines that were not installed from a disk image are not judged, and neither is what sysfs
    does not show (device-mapper, a container).
    """
    if not host.live or is_container(host) or not host.exists(LAYOUT):
        return None
    numbers = mounted(host)
    place = next((path for path in PLACES if path in numbers), None)
    root = disk(host, f"/sys/dev/block/{numbers.get('/')}")
    esp = disk(host, f"/sys/dev/block/{numbers[place]}") if place else None
    reason = apart(root, esp, place)
    if reason:
        return reason
    own = binding(host).get("disk")
    for what, on in (("/", root), (f"the ESP at {place}", esp)):
        if own and on and on != own:
            return f"the initramfs found the booted ESP on disk {own}, and {what} is on disk {on}"
    known = partitions(host)
    there = Partition(place, esp, numbers[place], "", "") if place and esp else None
    reason = elsewhere(known, booted(host), root=root, place=place, esp=there)
    if reason:
        return reason
    return None if binding(host).get("by") in _BOUND else twice(known)


def apart(root: Optional[str], esp: Optional[str], place: Optional[str]) -> Optional[str]:
    """Return that root and ESP are on two disks; None if they are not, or if one is unknown. Pure."""
    if root and esp and root != esp:
        return f"/ is on disk {root}, and the ESP at {place} on disk {esp}"
    return None


def elsewhere(
    known: List[Partition],
    guid: Optional[str],
    *,
    root: Optional[str],
    place: Optional[str],
    esp: Optional[Partition],
) -> Optional[str]:
    """Return why the partition with the GUID that the firmware booted is not that of the ESP and the root. Pure.

    :param root: disk of `/`; None if unknown.
    :param place: where the ESP is mounted, and `esp` its partition; None if it is not, or unknown.
    """
    same = [part for part in known if guid and part.uuid == guid]
    if len(same) > 1:
        names = " and ".join(part.name for part in same)
        return f"{names} have the GUID of the partition that the firmware booted ({guid}): nothing distinguishes them"
    for part in same:
        if place and esp and part.number != esp.number:
            return f"the firmware booted from {part.name}, and the ESP at {place} is another partition, on disk {esp.disk}"
        if root and part.disk != root:
            return f"the firmware booted from {part.name}, and / is on disk {root}"
    return None


def twice(known: List[Partition]) -> Optional[str]:
    """Return which label of a disk image two disks have; None if each is there once. Pure."""
    for label in LABELS:
        named = [part for part in known if part.label == label]
        if len({part.disk for part in named}) > 1:
            names = " and ".join(part.name for part in named)
            return (
                f"{names} are all named {label}: which of them the next boot uses is left to chance"
            )
    return None


def shared_filesystem(host: Host) -> Optional[str]:
    """Return which partitions of several disks have the file system UUID of a root that GRUB boots; None otherwise.

    The initramfs takes the root from the booted disk, but GRUB has searched menu, kernel and initramfs by that UUID,
    and takes the first disk that has it.
    """
    if (host.text(LAYOUT) or "").strip() != "single":
        return None
    number, known = mounted(host).get("/"), partitions(host)
    uuids = {part.number: filesystem_uuid(host, part.number) for part in known}
    own = uuids.get(str(number))
    names = [part.name for part in known if own and uuids[part.number] == own]
    if len(names) < 2:
        return None
    return (
        f"{' and '.join(names)} have the file system UUID {own}, by which GRUB finds menu, kernel and initramfs: "
        "they may be of another disk than /"
    )


def filesystem_uuid(host: Host, number: str) -> str:
    """Return the UUID of the file system on a partition, by its number, as udev knows it; empty without one."""
    rows = (host.text(f"/run/udev/data/b{number}") or "").splitlines()
    return next((row.partition("=")[2] for row in rows if row.startswith("E:ID_FS_UUID=")), "")


def observed(host: Host) -> Optional[Json]:
    """Return {astray: see :func:`astray` and :func:`shared_filesystem`, unknown: why partitions cannot be compared, or None, disk: name of
    the disk that `/` is on, or None, by: how the initramfs found it, or None} of a disk image.

    None for any other machine, and for a root that came from the network.
    """
    if not host.live or is_container(host) or not host.exists(LAYOUT):
        return None
    numbers = mounted(host)
    if not numbers:
        return None
    named = any(part.uuid for part in partitions(host))
    why = None if named else "udev's database (/run/udev/data) has no partition"
    return {
        "astray": astray(host) or shared_filesystem(host),
        "unknown": why,
        "disk": disk(host, f"/sys/dev/block/{numbers.get('/')}"),
        "by": binding(host).get("by"),
    }


def refuse(host: Host) -> None:
    """Raise NodeError if a change of the ESP might reach a disk that the firmware does not boot."""
    reason = astray(host)
    if reason:
        raise NodeError(f"{reason}. {REMEDY} Nothing was written.")
