"""What is known before any library is called: the image's own description, and which devices there are, from files alone."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any, List, Optional

from .report import Json

PLACE = "/usr/lib/goldnode/image.json"
BACKENDS = ("cuda", "rocm", "oneapi", "cpu")


def under(root: str, path: str) -> str:
    """`path` below another root than /."""
    return path if root in ("", "/") else root.rstrip("/") + path


def read(path: str) -> Any:
    """A file's text without its newline; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        return None


def described(root: str = "/") -> Json:
    """/usr/lib/goldnode/image.json; empty where there is none. Raises ValueError for one that is no JSON object."""
    text = read(under(root, PLACE))
    if text is None:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def parts(image: Json) -> Json:
    """Part -> version, of an image's description. A part may be a version or an object with `version`."""
    found = {}
    stated = image.get("parts")
    for name, value in (stated if isinstance(stated, dict) else {}).items():
        version = value.get("version") if isinstance(value, dict) else value
        found[str(name)] = str(version) if version is not None else ""
    return found


def devices(backend: str, root: str = "/") -> List[str]:
    """Device files of the backend's GPUs, without calling a driver. For NVIDIA and AMD the control device alone counts as one too."""
    if backend == "cuda":
        names = [path for path in glob.glob(under(root, "/dev/nvidia*")) if re.search(r"/nvidia\d+$", path)]
        return sorted(names) or [
            path for path in (under(root, "/dev/nvidiactl"), under(root, "/dev/dxg")) if os.path.exists(path)
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
    """PCI vendor of a DRM device file, from sysfs."""
    found = read(under(root, f"/sys/class/drm/{os.path.basename(path)}/device/vendor"))
    return None if found is None else str(found)


def pci_id(address: str, root: str = "/") -> Optional[str]:
    """`10de:2335` of a PCI address, from sysfs; None where a container does not show it."""
    folder = under(root, f"/sys/bus/pci/devices/{address}")
    found = [read(f"{folder}/{name}") for name in ("vendor", "device")]
    if None in found:
        return None
    return ":".join(str(item)[2:] for item in found)


def memory(root: str = "/") -> int:
    """Bytes that this process may still take: what the kernel calls available, or what the control group leaves, whichever is less."""
    text = read(under(root, "/proc/meminfo")) or ""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    found = int(match[1]) * 1024 if match else 0
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, now = read(under(root, most)), read(under(root, used))
        if limit and now and limit.isdigit() and now.isdigit():
            found = min(found, max(0, int(limit) - int(now)))
    return found
