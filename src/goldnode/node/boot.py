"""Which boot this is, and how long it has lasted: from texts of proc(5), with nothing imported, so that a quick answer stays quick."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def identity(boot_id: str, stat: str) -> Optional[str]:
    """A text that is new after each boot, from /proc/sys/kernel/random/boot_id and /proc/1/stat; None when either is not readable.

    A container keeps its host's boot_id over a restart, so the start time of PID 1 (field 22 of stat) is what changes there.
    """
    fields = stat.rpartition(")")[2].split()
    return f"{boot_id.strip()}/{fields[19]}" if boot_id.strip() and len(fields) > 19 else None


def uptime(text: str) -> Optional[float]:
    """Seconds since the kernel started, from /proc/uptime. Unlike the clock it never jumps: the age of a verdict is measured with it."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None
