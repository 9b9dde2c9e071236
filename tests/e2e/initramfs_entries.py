"""All entries of an initramfs image with their content, as JSON: `initramfs_entries.py IMAGE`. It is sent to nodes, so it needs nothing else."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

PROGRAMS = {b"\x28\xb5": "zstd", b"\x1f\x8b": "gzip", b"\xfd\x37": "xz"}


def entries(data: bytes) -> list[list[object]]:
    """Return name, mode, owner, links, device and content of each entry, in order (newc, cpio(5)).

    Times are left out: mkinitramfs writes some files itself.
    """
    rows: list[list[object]] = []
    at = 0
    while at < len(data):
        if data[at] == 0:
            at += 1
            continue
        if data[at : at + 5] != b"07070":
            program = PROGRAMS[data[at : at + 2]]
            done = subprocess.run([program, "-dc"], input=data[at:], stdout=subprocess.PIPE)
            return rows + entries(done.stdout)
        name = ""
        while name != "TRAILER!!!":
            fields = [int(data[at + i : at + i + 8], 16) for i in range(6, 110, 8)]
            _, mode, user, group, links, _, size, _, _, major, minor, length, _ = fields
            name = data[at + 110 : at + 109 + length].decode()
            at = (at + 110 + length + 3) & ~3
            content = hashlib.sha256(data[at : at + size]).hexdigest()
            at = (at + size + 3) & ~3
            rows.append([name, f"{mode:o}", user, group, links, major, minor, size, content])
        rows.pop()
    return rows


if __name__ == "__main__":
    json.dump(entries(Path(sys.argv[1]).read_bytes()), sys.stdout)
