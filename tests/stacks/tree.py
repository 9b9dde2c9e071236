"""What is on a node, file by file: run there by its own python3, prints one JSON object. Standard library only.

{path: "type mode uid:gid content"}; content is the SHA-256 of a file, the target of a link. The inside of each initramfs is listed as
`INITRAMFS:path`, since the archive itself carries times.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

# Not of the disk, or of the moment.
SKIPPED = {"/proc", "/sys", "/dev", "/run", "/tmp", "/var/lib/docker", "/var/lib/containerd"}
# Tables that dpkg writes in the order in which packages happened to be unpacked; their lines are compared sorted.
UNORDERED = {"/var/lib/dpkg/triggers/File"}


def entry(path: str) -> str:
    """One path as text."""
    info = os.lstat(path)
    kind = stat.S_IFMT(info.st_mode)
    content = ""
    if stat.S_ISLNK(kind):
        content = os.readlink(path)  # noqa: PTH115 - runs on nodes, on many thousand paths
    elif stat.S_ISREG(kind):
        data = Path(path).read_bytes()
        content = hashlib.sha256(
            b"".join(sorted(data.splitlines(True))) if path in UNORDERED else data
        ).hexdigest()
    return f"{kind:o} {stat.S_IMODE(info.st_mode):o} {info.st_uid}:{info.st_gid} {content}"


def tree(root: str, label: str) -> dict[str, str]:
    """All below `root`, named below `label`."""
    found = {}
    for place, directories, files in os.walk(root):
        if root == "/":
            directories[:] = [
                name for name in directories if f"{place.rstrip('/')}/{name}" not in SKIPPED
            ]
        for name in [*directories, *files]:
            path = f"{place.rstrip('/')}/{name}"
            found[label + path[len(root.rstrip("/")) :]] = entry(path)
    return found


def main() -> None:
    """Print the tree of this machine."""
    found = tree("/", "")
    for image in sorted(Path("/boot").glob("initrd.img-*")):
        with tempfile.TemporaryDirectory() as inside:
            subprocess.run(
                ["unmkinitramfs", str(image), inside], check=True, stderr=subprocess.DEVNULL
            )
            found.update(tree(inside, f"INITRAMFS:{image.name}"))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
