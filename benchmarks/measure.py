"""What nodes have used so far, by the kernel's own counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from goldnode.testing.lab.nodes import LabNode


def received(node: LabNode) -> int:
    """Bytes that a node has received over its network since it started, ssh included."""
    rows = [line.split() for line in node.read("/proc/net/dev").splitlines() if ":" in line]
    return sum(int(row[1]) for row in rows if row[0] != "lo:")


def busy(nodes: Sequence[LabNode]) -> float:
    """Seconds of CPU that the nodes' control groups have used so far, from the kernel's own count (either version of control groups)."""
    total = 0.0
    for node in nodes:
        node.container.reload()
        lines = (
            Path(f"/proc/{node.container.attrs['State']['Pid']}/cgroup")
            .read_text(encoding="ascii")
            .splitlines()
        )
        total += next(
            seconds for line in lines if (seconds := _used(*line.split(":", 2)[1:])) is not None
        )
    return total


def _used(controllers: str, group: str) -> float | None:
    """Seconds by one line of /proc/PID/cgroup; None where it is not the one that counts CPU. PID 1 of a node is in a group below the node's."""
    group = group.removesuffix("/init.scope")
    if "cpuacct" in controllers.split(","):
        return (
            int(
                Path(f"/sys/fs/cgroup/{controllers}{group}/cpuacct.usage").read_text(
                    encoding="ascii"
                )
            )
            / 1e9
        )
    if controllers:
        return None
    found = re.match(
        r"usage_usec (\d+)", Path(f"/sys/fs/cgroup{group}/cpu.stat").read_text(encoding="ascii")
    )
    return int(found[1]) / 1e6 if found else None
