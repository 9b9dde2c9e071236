"""The kernel that the boot loader starts next: GRUB's or systemd-boot's choice, in one form, and its files."""

from __future__ import annotations

import os

from ..ground.boot import PLACES

# Linux x86 boot protocol (Documentation/arch/x86/boot.rst): the number of sectors of the set-up, and the size of
# the rest in units of 16 bytes.
SECTORS, PARAGRAPHS = 0x1F1, 0x1F4
REBUILD = "Rebuild it with update-initramfs -u"  # ends each text about an initramfs that is damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from ..ground.host import Host


def boot_choice(host: Host, release: str) -> Dict[str, Optional[str]]:
    """Return which kernel the boot loader starts next, and why.

    `entry` is the value that GRUB_DEFAULT, or the default of systemd-boot, must have to boot `release`.
    """
    text = host.text("/boot/grub/grub.cfg")
    if any(host.is_dir(f"{place}/loader/entries") for place in PLACES):
        from . import loader  # start-up time: a node has one of the two loaders

        place = loader.partition(host)
        # Both loaders may be installed. The one that started this boot has set LoaderInfo.
        if place is not None and (
            text is None or (loader.variable(host, "LoaderInfo") or "").startswith("systemd-boot")
        ):
            return _systemd_boot(host, place, release)
    if text is None:
        return {
            "loader": None,
            "release": None,
            "reason": None,
            "entry": None,
            "cmdline": None,
            "via": None,
        }
    from . import grub  # start-up time, as above

    choice = grub.next_boot(
        text, host.data("/boot/grub/grubenv") or b"", host.text("/boot/grub/custom.cfg")
    )
    try:
        wanted = grub.entry_for(text, release)
    except grub.GrubError:  # next_boot has reported the error
        wanted = None
    return {
        "loader": "grub",
        "release": choice.release,
        "reason": choice.reason,
        "entry": wanted.selector if wanted else None,
        "cmdline": " ".join(choice.entry.words) if choice.entry else None,
        "via": choice.via,
    }


def _systemd_boot(host: Host, place: str, release: str) -> Dict[str, Optional[str]]:
    """Return :func:`boot_choice` for systemd-boot with its entries on the ESP at `place`.

    `entry` is the id of an entry that boots `release`.
    """
    from . import loader

    chosen = loader.next_boot(host, place)
    entries = loader.entries(host, place)
    releases = {
        entry.file: loader.release(host, place, entry) for entry in entries if entry.bootable
    }
    own = [
        entry
        for entry in loader.ordered(entries)
        if release and releases.get(entry.file) == release
    ]
    after = releases.get(chosen.entry.file) if chosen.entry else None
    reason = chosen.reason
    if chosen.entry and not after:
        reason += ", whose kernel does not state its release"
    return {
        "loader": "systemd-boot",
        "release": after,
        "reason": reason,
        "entry": own[0].id if own else None,
        "cmdline": loader.cmdline(host, place, chosen.entry) if chosen.entry else None,
        "via": chosen.via,
    }


def kernel_fault(host: Host, release: str) -> Optional[str]:
    """Return why a kernel that is installed could not start, or None: its image or modules.dep is missing or cut.

    None also without any trace of the kernel in /boot: a node that boots from the network has none.
    """
    name = f"/boot/vmlinuz-{release}"
    head = host.data(name, 1 << 12)
    if head is None:
        traces = [f"/boot/{kind}-{release}" for kind in ("initrd.img", "config", "System.map")]
        if any(host.exists(trace) for trace in traces):
            return f"{name} is missing"
        return None
    size = os.stat(host.real(name)).st_size
    if not size:
        return f"{name} is empty"
    whole = _image_size(head)
    if size < whole:
        return f"{name} has {size} bytes of {whole}"
    listed = f"/lib/modules/{release}/modules.dep"
    # A kernel without any module has an empty list, and is none of a distribution.
    if host.data(listed, 1):
        return None
    return f"{listed} is missing or empty"


def _image_size(head: bytes) -> int:
    """Return the bytes that the file of a kernel image has, by its header; 0 for an unknown format."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], "little")

    if head[0x202:0x206] == b"HdrS":
        return 512 * ((head[SECTORS] or 4) + 1) + 16 * number(PARAGRAPHS, 4)
    # An arm64 image, compressed (EFI zboot) or not, is a PE file for UEFI. Its own header has the size in memory,
    # which is larger. A row of the section table has size and place in the file (PE format, section table).
    pe = number(0x3C, 4)
    if head[:2] != b"MZ" or head[pe : pe + 4] != b"PE\0\0":
        return 0
    table = pe + 24 + number(pe + 20, 2)
    rows = range(table, table + 40 * number(pe + 6, 2), 40)
    return max((number(row + 16, 4) + number(row + 20, 4) for row in rows), default=0)
