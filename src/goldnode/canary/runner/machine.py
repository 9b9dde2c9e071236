"""Facts about the machine from /proc and /sys."""

from __future__ import annotations

import glob
import os
import re
import socket
from typing import Dict, List, Optional, Set, Tuple

from goldnode.gpuprogram.image import read, under

from .records import Fact


def boot_id(root: str = "/") -> str:
    """Return the kernel's id of this boot; `unknown` if it cannot be read."""
    return read(under(root, "/proc/sys/kernel/random/boot_id")) or "unknown"


def node_name() -> str:
    """Return the host name."""
    return socket.gethostname()


def processor(root: str = "/") -> str:
    """Return the model of the CPUs; Arm's have no name there, but the numbers of implementer and part."""
    text = read(under(root, "/proc/cpuinfo")) or ""
    for keys in (("model name",), ("CPU implementer", "CPU part")):
        lines = [re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in keys]
        words = [" ".join(match[1].split()) for match in lines if match]
        if len(words) == len(keys):
            return " ".join(words)
    return os.uname().machine


def cpu_list(text: str) -> Set[int]:
    """Return the CPUs of a list as the kernel writes it: 0-3,8."""
    cpus: Set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def numa_nodes(root: str = "/") -> List[Tuple[int, Set[int]]]:
    """Return the NUMA nodes that have CPUs, each with its CPUs."""
    nodes = []
    for path in glob.glob(under(root, "/sys/devices/system/node/node[0-9]*/cpulist")):
        number = os.path.basename(os.path.dirname(path))[4:]
        cpus = cpu_list(read(path) or "")
        if number.isdigit() and cpus:
            nodes.append((int(number), cpus))
    return sorted(nodes)


def numa_of(address: str, root: str = "/") -> Optional[int]:
    """Return the NUMA node of a PCI function; None if the kernel knows none."""
    text = read(under(root, f"/sys/bus/pci/devices/{address}/numa_node")) or ""
    # The kernel writes -1 where it knows none.
    return int(text) if address and text.isdigit() else None


def quota(root: str = "/") -> Optional[float]:
    """Return the CPUs that this control group may use; None without a limit (cgroup v2, then v1)."""
    text = read(under(root, "/sys/fs/cgroup/cpu.max")) or ""
    parts = text.split()
    if len(parts) != 2:
        parts = [
            read(under(root, f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us")) or ""
            for name in ("quota", "period")
        ]
    if all(part.isdigit() and int(part) for part in parts):
        return int(parts[0]) / int(parts[1])
    return None


def file_system(path: str, root: str = "/") -> str:
    """Return the type of the file system that holds a path, by the longest mount point."""
    best, kind = "", "unknown"
    real = os.path.realpath(path)
    for line in (read(under(root, "/proc/self/mounts")) or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # proc(5): blanks in mount points are octal escapes.
        place = fields[1].replace("\\040", " ").rstrip("/") or "/"
        if (real + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind


def facts(root: str = "/") -> Dict[str, Fact]:
    """Return model and number of the CPUs, the quota, the kernel and the NUMA nodes."""
    return {
        "processor": processor(root),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_quota": quota(root),
        "kernel": os.uname().release,
        "numa_nodes": len(numa_nodes(root)) or None,
    }
