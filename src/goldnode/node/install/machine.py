"""An installation of this machine: its order, its disk, the image of its class, and what is written. Without an order
nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from ..follow.repository import ChannelSource
from ..follow.trust import Verifier
from ..ground.boot import VARIABLES
from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..slots.identity import Variables, primary
from . import firmware, orders, published, target
from .write import Installation, install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

    from ..ground.host import Host
    from .orders import Order

SETTINGS = "/etc/goldnode/install.json"
ROOT = "/etc/goldnode/install-root.json"
CA = "/etc/goldnode/install-ca.pem"
SEEN = "/run/goldnode/install/metadata"


def run(host: Host, check: bool) -> int:
    """Install this machine, or print what would be written (`check`). Return the exit code. Raises NodeError."""

    def say(text: str) -> None:
        print(f"goldnode: {text}", flush=True)

    begun = time.monotonic()
    settings = as_dict(json.loads(host.text(SETTINGS) or "null"))
    place = str(settings.get("place"))
    source = ChannelSource(place, host.located(CA) if host.exists(CA) else None)
    macs = addresses(host)
    order = _order(host, source, str(settings.get("orders")), macs)
    if order is None:
        rows = "\n".join(f"  {disk.line()}" for disk in target.disks(host)) or "  no disk"
        say(
            f"no order for this machine: its addresses are {', '.join(macs) or 'none'}, its disks:\n{rows}"
        )
        return 1
    say(f"this machine becomes {order.node}, of class {order.node_class} ({order.channel})")
    disk = target.choose(target.disks(host), order.disk)
    path = f"/dev/{disk.name}"
    if disk.sector != target.SECTOR:
        raise NodeError(
            f"{path} has sectors of {disk.sector} bytes, and images are for {target.SECTOR}."
        )
    # With O_EXCL the kernel refuses a disk that is mounted or part of another device. It would also refuse the mount of
    # the ESP, for the seed, while such a handle is open.
    try:
        os.close(os.open(host.located(path), os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
        handle = os.open(host.located(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        raise NodeError(f"{path} cannot be opened for writing: {problem.strerror}.") from None
    try:
        partitions = len(host.glob(f"/sys/class/block/{disk.name}", f"{disk.name}*"))
        on_disk = target.content(handle, disk.size, partitions)
        say(f"disk {disk.line()}; it has {on_disk.text}")
        why = target.refusal(on_disk, order.erase)
        if why is not None:
            say(f"nothing is written: {why}")
            if on_disk.kind == target.INSTALLED:
                return 0 if check else _first(host, handle, say)
            return 1
        first = host.data(ROOT)
        if first is None:
            raise NodeError(
                f"{ROOT} is missing: make the installer again with `goldnode disks netboot`."
            )
        verifier = Verifier(host, source, SEEN, first, time.time())
        image = published.find(host, verifier, order.node_class, order.channel)
        say(f"{image.name} is signed by its builder, and is {order.channel} of the signed channels")
        if image.size + target.MIB > disk.size:
            raise NodeError(
                f"{image.name} needs {image.size >> 20} MiB, and {path} has {disk.size >> 20} MiB."
            )
        say(f"plan: write {image.size >> 20} MiB to {path}, which has {on_disk.text}")
        if check:
            return 0
        install(host, Installation(image, order, path, handle, disk.size), on_disk, source, say)
        say(f"{image.name} is on {path} after {time.monotonic() - begun:.0f} s")
        return _first(host, handle, say)
    finally:
        os.close(handle)


def _order(host: Host, source: ChannelSource, name: str, macs: List[str]) -> Optional[Order]:
    data = source.document(name, orders.LIMIT)
    if data is None:
        raise NodeError(f"{source.source} has no {name}. Run `goldnode disks netboot` there.")
    return orders.of_machine(orders.read(host, data, time.time()), macs)


def addresses(host: Host) -> List[str]:
    """Return the MAC addresses of the network cards."""
    macs = []
    for path in host.glob("/sys/class/net", "*"):
        if host.exists(f"{path}/device"):
            macs.append((host.text(f"{path}/address") or "").strip().lower())
    return [mac for mac in macs if mac]


def _first(host: Host, handle: int, say: Any) -> int:
    """Make the disk the first one that the firmware boots. Where that fails, the firmware's own order decides."""
    table = primary(handle)
    wanted = firmware.option(table) if table is not None else None
    if wanted is None:
        raise NodeError("the disk has no ESP.")
    folder = host.located(VARIABLES)
    try:
        if not os.listdir(folder):
            raise OSError(0, "efivarfs is not mounted")
        number = firmware.put_first(Variables(folder), wanted)
        say(f"Boot{number:04X} of the firmware is this disk, and the first in order")
    except OSError as problem:
        say(
            f"the boot order of the firmware is unchanged ({problem.strerror or problem}): put the disk before the network in its setup"
        )
    with contextlib.suppress(AttributeError):
        os.sync()
    return 0
