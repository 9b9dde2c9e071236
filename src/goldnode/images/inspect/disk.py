"""Raw disks: partitions, and the ext2, ext3 and ext4 file systems in them, read without mounting and without root."""

from __future__ import annotations

from pathlib import Path

from goldnode.errors import ImageError
from goldnode.images.inspect.scan import Limits, Scan


def scan_disk(path: Path, limits: Limits | None = None) -> list[tuple[str, Scan]]:
    """Scan."""
    raise ImageError(f"{path} is nothing that can be inspected", remedy="name a wheel, root, tar or OCI layout")
