"""Facts about image and machine from files alone, before any library is called.

They are the image's description of itself, its device files, and the available memory.
"""

from __future__ import annotations

import glob
import json
import os
import re
from typing import List, Optional

from .results import Json

PLACE = "/usr/lib/goldnode/image.json"
BACKENDS = ("cuda", "rocm", "oneapi", "cpu")


def under(root: str, path: str) -> str:
    """Return `path` below another root than /."""
    return path if root in ("", "/") else root.rstrip("/") + path


def read(path: str) -> Optional[str]:
    """Return a file's text, stripped; None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        return None


def described(root: str = "/") -> Json:
    """Return /usr/lib/goldnode/image.json; empty if it does not exist.

    Raises ValueError if it is not a JSON object.
    """
    text = read(under(root, PLACE))
    if text is None:
        return {}
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError("it is no JSON object")
    return description


def parts(image: Json) -> Json:
    """Return part -> version from an image's description.

    A part may be a version, or an object with `version`.
    """
    versions = {}
    # The file may be of an image that goldnode did not build.
    stated = image.get("parts")
    for name, value in (stated if isinstance(stated, dict) else {}).items():
        version = value.get("version") if isinstance(value, dict) else value
        versions[str(name)] = str(version) if version is not None else ""
    return versions


def devices(backend: str, root: str = "/") -> List[str]:
    """Return the device files of the backend's GPUs, without calling a driver.

    For NVIDIA and AMD the control device alone also counts as a device.
    """
    if backend == "cuda":
        names = [
            path
            for path in glob.glob(under(root, "/dev/nvidia*"))
            if re.search(r"/nvidia\d+$", path)
        ]
        # /dev/dxg is the GPU device of WSL 2.
        return sorted(names) or [
            path
            for path in (under(root, "/dev/nvidiactl"), under(root, "/dev/dxg"))
            if os.path.exists(path)
        ]
    if backend == "rocm":
        return [path for path in (under(root, "/dev/kfd"),) if os.path.exists(path)]
    if backend == "oneapi":
        return [
            path
            for path in sorted(glob.glob(under(root, "/dev/dri/renderD*")))
            if vendor(path, root) == "0x8086"
        ]
    return []


def vendor(path: str, root: str = "/") -> Optional[str]:
    """Return the PCI vendor of a DRM device file, from sysfs."""
    return read(under(root, f"/sys/class/drm/{os.path.basename(path)}/device/vendor"))


def pci_id(address: str, root: str = "/") -> Optional[str]:
    """Return the PCI ids of an address (`10de:2335`), from sysfs; None if the container hides them."""
    folder = under(root, f"/sys/bus/pci/devices/{address}")
    ids = [read(f"{folder}/{name}") for name in ("vendor", "device")]
    if None in ids:
        return None
    return ":".join(str(item)[2:] for item in ids)


def memory(root: str = "/") -> int:
    """Return the bytes that this process may still allocate.

    This is the kernel's MemAvailable or the rest of the control group's limit, the lower of the
    two.
    """
    text = read(under(root, "/proc/meminfo")) or ""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    # Control group v2, then v1.
    # A container sees the memory of the whole host in /proc/meminfo.
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        limit, now = read(under(root, most)), read(under(root, used))
        if limit and now and limit.isdigit() and now.isdigit():
            available = min(available, max(0, int(limit) - int(now)))
    return available
