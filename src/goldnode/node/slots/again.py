"""Boot options of the firmware that start the loader again when it gives up.

systemd-boot of Debian 12 (252) and 13 (257) ends when a kernel cannot be loaded, and the firmware goes on with its next
boot option: another disk, the network, or nothing. The entry has lost one try then, but nothing starts the next. Further
options for the same loader do: each uses a try, until the other slot or the recovery starts. systemd-boot of Debian 14
(262) restarts the machine for an entry with tries, and needs none. UEFI 2.10: 3.1.3 (load options), 10.3.5.1 (hard drive), 10.3.5.4 (file path).
"""

from __future__ import annotations

import re
import struct
import uuid

from ..effective import loader
from ..ground.boot import VARIABLES
from ..ground.host import Host
from ..state import bootdisk, slots
from .identity import GLOBAL, Variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

# With the option that booted: all tries of both slots, and then the recovery.
COUNT = 2 * slots.TRIES
RESTARTS = 262  # version of systemd-boot that restarts the machine; 258 to 261 were not tried
TITLE = "goldnode: try {}"


def load_option(title: str, partition: bytes, path: str) -> bytes:
    """Return a load option for a file on a partition. Pure.

    :param partition: the hard drive node of its device path.
    :param path: of the file, with backslashes.
    """
    name = f"{path}\0".encode("utf-16-le")
    nodes = partition + struct.pack("<BBH", 4, 4, 4 + len(name)) + name + b"\x7f\xff\x04\0"
    return struct.pack("<IH", 1, len(nodes)) + f"{title}\0".encode("utf-16-le") + nodes


def hard_drive(host: Host, guid: str) -> Optional[bytes]:
    """Return the hard drive node of a GPT partition; None if sysfs does not show it."""
    part = next((row for row in bootdisk.partitions(host) if row.uuid == guid), None)
    if part is None:
        return None
    base = f"/sys/class/block/{part.name}"
    texts = [host.text(f"{base}/{key}") for key in ("partition", "start", "size")]
    size = host.text(f"{base}/../queue/logical_block_size") or "512"
    if not all((text or "").strip().isdigit() for text in texts):
        return None
    number, start, count = (int(text or 0) for text in texts)
    share = (
        int(size) // 512
    )  # sysfs counts in sectors of 512 bytes, the firmware in those of the disk
    return struct.pack(
        "<BBHIQQ16sBB",
        4,
        1,
        42,
        number,
        start // share,
        count // share,
        uuid.UUID(guid).bytes_le,
        2,
        2,
    )


def loader_partition(host: Host) -> Optional[str]:
    """Return the GUID of the partition that the loader started from; None if it is not known.

    The first boot gives the disk its own GUIDs: the loader has reported that of before, and the initramfs the disk.
    """
    reported = (loader.variable(host, "LoaderDevicePartUUID") or "").lower()
    known, bound = bootdisk.partitions(host), bootdisk.binding(host)
    if not reported or any(part.uuid == reported for part in known):
        return reported or None
    if (bound.get("by"), bound.get("guid")) != ("loader", reported):
        return None
    rows = [part.uuid for part in known if part.disk == bound.get("disk") and part.label == "esp"]
    return rows[0] if len(rows) == 1 else None


def wanted(host: Host, guid: Optional[str]) -> List[bytes]:
    """Return the load options that this machine should have; empty if its loader restarts by itself or is unknown.

    :param guid: of the loader's partition.
    """
    version = re.search(r"systemd-boot (\d+)", loader.variable(host, "LoaderInfo") or "")
    path = loader.variable(host, "LoaderImageIdentifier")
    if not version or int(version[1]) >= RESTARTS or not guid or not path:
        return []
    node = hard_drive(host, guid)
    if node is None:
        return []
    return [load_option(TITLE.format(number), node, path) for number in range(2, COUNT + 2)]


def write(host: Host, variables: Optional[Variables] = None) -> Optional[str]:
    """Put the options that are missing after the one that booted. Return a message, or None if all are there.

    An option that an interrupted run left outside the order is used again.
    """
    guid = loader_partition(host)
    options = wanted(host, guid)
    if not options:
        return None
    known = variables or Variables(host.located(VARIABLES))
    order = known.order()
    present = [known.read(known.name(number)) for number in order]
    missing = [option for option in options if option not in present]
    if not missing:
        return None
    titles = {option[6:].partition(b"\0\0\0")[0] for option in options}
    # Those with our titles that are not as wanted name a loader that is no longer there.
    order = [
        number
        for number, value in zip(order, present)
        if value in options or value[6:].partition(b"\0\0\0")[0] not in titles
    ]
    current = known.read(f"{known.folder}/BootCurrent-{GLOBAL}")[:2]
    booted = struct.unpack("<H", current)[0] if len(current) == 2 else None
    # The first boot has replaced an option that had the GUID of the image.
    same = (row for row in order if bootdisk.hard_drive(known.read(known.name(row))) == guid)
    before = booted if booted in order else next(same, None)
    at = order.index(before) + 1 if before is not None else len(order)
    for option in missing:
        values = ((one, known.read(known.name(one))) for one in range(0x10000))
        number, there = next(
            row for row in values if not row[1] or (row[1] == option and row[0] not in order)
        )
        if not there:
            known.put(known.name(number), option)
        order.insert(at, number)
        at += 1
    known.put_order(order)
    return f"the firmware starts the loader up to {COUNT + 1} times in turn"
