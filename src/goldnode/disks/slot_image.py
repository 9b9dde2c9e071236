"""A built disk as `goldnode-node slot write` gets it: the fields of root, kernel and boot entry that are signed and sent."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.core.errors import DiskError
from goldnode.disks import tools
from goldnode.disks.model import BuiltDisk, Partition
from goldnode.node.effective import loader

BLOCK = 1 << 20
SIGNATURE = ".signature.json"  # suffix of the builder's envelope


def has_slots(disk: BuiltDisk) -> bool:
    """Return whether nodes that booted a disk have slots."""
    return disk.layout == "ab" and disk.loader == "systemd-boot"


def partition(disk: BuiltDisk, name: str) -> Partition:
    """Return a partition of a disk. Raises DiskError."""
    wanted = next((row for row in disk.partitions if row.name == name), None)
    if wanted is None:
        raise DiskError(
            f"image {disk.name} has no partition {name}",
            file=disk.directory,
            remedy="run `goldnode disks build` again",
        )
    return wanted


def about(disk: BuiltDisk) -> dict[str, Any]:
    """Return the fields of the first line of the stream that the builder signs. Raises DiskError."""
    raw, root = disk.path("raw"), partition(disk, "root-a")
    options = command_line(raw, partition(disk, "esp").start, disk.build_id)
    size, sha256 = digest(raw, root.start, root.size)
    return {
        "name": disk.name,
        "class": disk.class_,
        "build_id": disk.build_id,
        "kernel": disk.kernel,
        "options": options,
        "root": {"size": size, "sha256": sha256},
    }


def signature(disk: BuiltDisk) -> dict[str, Any] | None:
    """Return the builder's envelope, which the node verifies; None without one that can be read."""
    try:
        envelope = json.loads((disk.directory / f"{disk.name}{SIGNATURE}").read_bytes())
    except (OSError, ValueError):
        return None
    return envelope if isinstance(envelope, dict) else None


def digest(path: Path, start: int = 0, size: int | None = None) -> tuple[int, str]:
    """Return size and SHA-256 (hex) of a file or a part of it.

    Sizes are in bytes. Raises DiskError if the file is too short.
    """
    size = path.stat().st_size - start if size is None else size
    sha256 = hashlib.sha256()
    with path.open("rb") as opened:
        opened.seek(start)
        left = size
        while left and (data := opened.read(min(BLOCK, left))):
            sha256.update(data)
            left -= len(data)
    if left:
        raise DiskError(
            f"the file ends {left} bytes too early",
            file=path,
            remedy="run `goldnode disks build` again",
        )
    return size, sha256.hexdigest()


def entry(raw: Path, esp: int, build_id: str) -> Mapping[str, str]:
    """Return the fields of an image's loader entry. `esp` is the place of the ESP, in bytes. Raises DiskError."""
    tools.require("mcopy")
    name = f"goldnode-{build_id}-a.conf"
    done = subprocess.run(
        ["mcopy", "-n", "-i", f"{raw}@@{esp}", f"::/loader/entries/{name}", "-"],
        capture_output=True,
        check=False,
        env=tools.environment(0),
    )
    fields = loader.fields(done.stdout.decode("utf-8", "replace"))
    if done.returncode or not fields.get("options"):
        reason = done.stderr.decode("utf-8", "replace").strip() or "it has no command line"
        raise DiskError(
            f"the entry {name} cannot be read: {reason}",
            file=raw,
            remedy="run `goldnode disks build` again",
        )
    return fields


def command_line(raw: Path, esp: int, build_id: str) -> str:
    """Return the kernel's command line from an image's loader entry. Raises DiskError if it is missing."""
    return entry(raw, esp, build_id)["options"]
