"""Identity and uptime of this boot from texts of proc(5), and the locations of boot records.

Imports nothing, so that a cached answer stays fast.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


VARIABLES = "/sys/firmware/efi/efivars"
# Namespace of the variables of a boot loader (Boot Loader Interface).
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# In the root of every disk image; contains `ab` if the image is for a disk with two slots.
LAYOUT = "/usr/lib/goldnode/disk/layout"
# Mount points of the ESP, in systemd's search order.
PLACES = (
    "/efi",
    "/boot/efi",
    "/boot",
)
# written by slots: one line for the login message, while there is something to report
TOLD = "/run/goldnode/slot"


def identity(boot_id: str, stat: str) -> Optional[str]:
    """Return a text that changes with every boot; None if either source is unreadable.

    A restarted container keeps the boot_id of its host, so the text includes the start time of PID 1.

    :param boot_id: content of /proc/sys/kernel/random/boot_id.
    :param stat: content of /proc/1/stat; field 22 is the start time.
    """
    fields = stat.rpartition(")")[2].split()
    return f"{boot_id.strip()}/{fields[19]}" if boot_id.strip() and len(fields) > 19 else None


def uptime(text: str) -> Optional[float]:
    """Return the seconds since the kernel started, from the content of /proc/uptime; None if it is malformed.

    Unlike the clock, the uptime never jumps, so it measures the age of verdicts.
    """
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def seconds(stamp: Any) -> Optional[int]:
    """Return a timestamp of a verdict or capture (2026-11-22T10:00:00Z) as seconds since 1970.

    Return None for any other text.
    """
    # By hand: calendar and strptime import more modules than the rest of a check.
    text = str(stamp)
    if len(text) != 20 or text[4] + text[7] + text[10] + text[13] + text[16] + text[19] != "--T::Z":
        return None
    parts = [text[at:end] for at, end in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))]
    if not all(part.isascii() and part.isdigit() for part in parts):
        return None
    year, month, day, hour, minute, second = (int(part) for part in parts)
    # Count years from March, so that the leap day is the last day. Day 719468 of that count is 1970-01-01.
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
