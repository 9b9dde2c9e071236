"""Identity and uptime of this boot, and where boots leave records. Parses texts of proc(5), without
imports, to keep a quick answer quick.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


VARIABLES = "/sys/firmware/efi/efivars"
# Namespace of a boot loader's EFI variables (Boot Loader Interface).
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# In the root of every disk image; contains `ab` if the image was made for a disk with two slots.
LAYOUT = "/usr/lib/goldnode/disk/layout"
# Mount points of the ESP, in the order in which systemd searches them.
PLACES = ("/efi", "/boot/efi", "/boot")
# One line for the login message, while a newer image in a slot has failed.
NOTICE = "/run/goldnode/slot"
# In the command line of a good image that has retries: the counter of its boot entry is no trial.
ARMED = "goldnode.good"
# Why a slot with a unified kernel image is left as it is, and the remedy.
SIGNED_IMAGE = (
    "boots a signed kernel image, in which kernel, initramfs and command line cannot be changed on the node.",
    "Build an image with the change, sign it with `goldnode disks sign`, and write it with `goldnode disks update`.",
)
# Exists once a boot with slots has come up: nothing gives it up any more.
UP = "/run/goldnode/up"


def identity(boot_id: str, stat: str) -> Optional[str]:
    """Return a text that differs after each boot; None if one of the two sources is not readable.

    A container has its host's boot_id even after a restart. The start time of PID 1 (field 22 of stat)
    changes there.

    :param boot_id: content of /proc/sys/kernel/random/boot_id.
    :param stat: content of /proc/1/stat.
    """
    fields = stat.rpartition(")")[2].split()
    return f"{boot_id.strip()}/{fields[19]}" if boot_id.strip() and len(fields) > 19 else None


def uptime(text: str) -> Optional[float]:
    """Return the seconds since the kernel started, from /proc/uptime. Unlike the clock it never
    jumps, so the age of a verdict is measured with it.
    """
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def seconds(stamp: Any) -> Optional[int]:
    """Return a time of verdicts and captures (2026-11-22T10:00:00Z) as seconds since 1970; None for
    any other text.
    """
    # Parsed by hand: calendar and strptime import more than the rest of a check does.
    text = str(stamp)
    if len(text) != 20 or text[4] + text[7] + text[10] + text[13] + text[16] + text[19] != "--T::Z":
        return None
    parts = [text[at:end] for at, end in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))]
    if not all(part.isascii() and part.isdigit() for part in parts):
        return None
    year, month, day, hour, minute, second = (int(part) for part in parts)
    # Count years from March, so that the leap day is the last day. Day 719468 of that count is
    # 1970-01-01.
    year -= month < 3
    days = (
        365 * year
        + year // 4
        - year // 100
        + year // 400
        + (153 * ((month + 9) % 12) + 2) // 5
        + day
        - 1
        - 719468
    )
    return ((days * 24 + hour) * 60 + minute) * 60 + second
