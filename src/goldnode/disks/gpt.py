"""Partition table (GPT) of a disk file, written and read with sfdisk.

Sectors are 512 bytes; sizes in this module are in bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import DiskError
from goldnode.disks.model import Partition
from goldnode.disks.tools import run

SECTOR = 512
MIB = 1 << 20
START = MIB  # start of the first partition: the usual alignment, and more than the table needs
TAIL = MIB  # space after the last partition for the backup table

# Type of the EFI system partition, from the UEFI specification. Those of roots are in `architecture`.
ESP = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"


@dataclass(frozen=True)
class PartitionTable:
    """A partition table as read: the disk's GUID, its partitions, and flags (`attributes`) by partition
    number.
    """

    disk: str
    partitions: tuple[Partition, ...]
    attributes: tuple[tuple[int, str], ...]


def derive(seed: uuid.UUID, what: str) -> uuid.UUID:
    """Derive the UUID of `what` on the disk of `seed`.

    Version 5 makes it deterministic: equal disks have equal UUIDs, other disks have others.
    """
    return uuid.uuid5(seed, what)


def write(disk: Path, guid: str, partitions: Sequence[Partition], epoch: int) -> None:
    """Write a table of `partitions` to a file that already has its final size.

    Raises DiskError on failure.
    """
    lines = ["label: gpt", f"label-id: {guid}", "unit: sectors", f"first-lba: {START // SECTOR}"]
    lines += [
        f"start={part.start // SECTOR}, size={part.size // SECTOR}, type={part.type}, uuid={part.uuid}, "
        f"name={part.name}"
        for part in partitions
    ]
    run(
        "sfdisk",
        "--quiet",
        "--no-reread",
        "--no-tell-kernel",
        "--wipe=never",
        disk,
        stdin="\n".join(lines) + "\n",
        epoch=epoch,
    )


def read(disk: Path) -> PartitionTable:
    """Read the partition table of a disk. Raises DiskError if there is no GPT.

    The file systems are not read, so the partitions' file system fields are empty.
    """
    try:
        # raw_decode, since warnings follow the JSON: a damaged backup table, or one that is not at the end.
        data = json.JSONDecoder().raw_decode(run("sfdisk", "--json", disk).lstrip())[0][
            "partitiontable"
        ]
    except (DiskError, ValueError, KeyError) as problem:
        raise DiskError(
            f"{disk} is no disk with a partition table that can be read",
            remedy="name a raw disk, or its .raw.zst",
        ) from problem
    if data.get("label") != "gpt":
        raise DiskError(
            f"{disk} has a partition table of kind {data.get('label')}, and only GPT is read",
            remedy="name a disk that goldnode built",
        )
    partitions, flags = [], []
    for row in data.get("partitions", []):
        digits = row["node"].removeprefix(str(disk)).lstrip("p")
        number = int(digits)
        partitions.append(
            Partition(
                number=number,
                name=row.get("name", ""),
                type=row["type"].lower(),
                uuid=row["uuid"].lower(),
                start=row["start"] * SECTOR,
                size=row["size"] * SECTOR,
                filesystem="",
                filesystem_uuid="",
            )
        )
        flags.append((number, row.get("attrs", "")))
    return PartitionTable(data["id"].lower(), tuple(partitions), tuple(flags))
