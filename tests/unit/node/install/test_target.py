"""Which disk is written to, by rule and by what is on it."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.install import target
from goldnode.node.install.target import MIB, SECTOR, DiskContent, TargetDisk

SIZE = 40 * MIB
NAMES = {
    "serial": ("S5XX0001",),
    "model": ("ACME SSD 960",),
    "wwn": ("0x5000c500a1b2c3d4",),
    "path": ("pci-0000:01:00.0-nvme-1",),
}
FIRST = TargetDisk("nvme0n1", 400 * target.GIB, 512, NAMES)
SECOND = TargetDisk("sda", 900 * target.GIB, 512, {"serial": ("Z1", "ATA_Z1"), "model": ("OTHER",)})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, SIZE)
    handle = os.open(path, os.O_RDWR)
    yield handle
    os.close(handle)


def record(handle: int, **about: Any) -> None:
    os.pwrite(handle, target.MAGIC + json.dumps(about).encode().ljust(400, b"\0"), target.RECORD)


def content(handle: int) -> str:
    return target.content(handle, SIZE).kind


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"serial": "S5XX0001"}, None),
        ({"serial": "S5XX*", "min_gib": 300}, None),
        ({"model": "ACME SSD ???", "max_gib": 500}, None),
        ({"path": "pci-0000:01:*"}, None),
        ({"wwn": "0x5000c500a1b2c3d4"}, None),
        ({"serial": "s5xx0001"}, "another serial"),
        ({"serial": "S5XX0001", "max_gib": 300}, "larger than 300 GiB"),
        ({"min_gib": 401}, "smaller than 401 GiB"),
    ],
)
def test_rule_of_a_disk_matches_all_that_it_gives(rule: Mapping[str, Any], why: str | None) -> None:
    assert target.differs(FIRST, rule) == why


def test_one_disk_must_match_the_rule() -> None:
    assert target.choose([FIRST, SECOND], {"serial": "ATA_Z1"}) is SECOND
    with pytest.raises(
        NodeError, match=r"2 disks match the rule `min_gib: 1`(.|\n)*nvme0n1(.|\n)*sda"
    ):
        target.choose([FIRST, SECOND], {"min_gib": 1})
    with pytest.raises(NodeError, match=r"no disk matches(.|\n)*another serial"):
        target.choose([FIRST, SECOND], {"serial": "absent"})
    with pytest.raises(NodeError, match="it is part of md0"):
        target.choose([FIRST._replace(obstacle="it is part of md0")], {"serial": "S5XX0001"})


def test_disks_of_a_machine_are_those_of_sysfs_and_udev(tmp_path: Path) -> None:
    def put(name: str, text: str = "") -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    for name in ("vda", "vda/vda1", "dm-0", "loop0", "sr0", "vdb"):
        put(f"sys/class/block/{name}/size", "2097152\n")
        put(f"sys/class/block/{name}/device/x")
    put("sys/class/block/vda/queue/logical_block_size", "512\n")
    put("sys/class/block/vda/dev", "254:0\n")
    put("sys/class/block/vda/serial", "SYSFS\n")
    put("sys/class/block/vda/vda1/partition", "1\n")
    put("sys/class/block/vda/vda1/holders/dm-0/x")
    put("sys/class/block/vdb/ro", "1\n")
    put("run/udev/data/b254:0", "E:ID_SERIAL_SHORT=UDEV\nE:ID_PATH=pci-0000:00:03.0\n")
    first, second = target.disks(Host(str(tmp_path), live=True))
    assert (first.name, first.size, first.sector) == ("vda", target.GIB, 512)
    assert first.names["serial"] == ("UDEV", "SYSFS")
    assert first.names["path"] == ("pci-0000:00:03.0",)
    assert (first.obstacle, second.obstacle) == ("it is part of dm-0", "it is read-only")


@pytest.mark.parametrize("at", [0, SECTOR, 64 * 1024, 15 * MIB, SIZE - SECTOR, SIZE - 10 * MIB])
def test_a_disk_with_a_byte_near_an_end_is_not_empty(disk: int, at: int) -> None:
    assert content(disk) == target.EMPTY
    os.pwrite(disk, b"x", at)
    assert content(disk) == target.DATA


def test_a_disk_with_partitions_is_not_empty(disk: int) -> None:
    assert target.content(disk, SIZE, 2).text == "2 partitions"


def test_an_interrupted_installation_is_known_by_its_record(disk: int) -> None:
    record(disk, state=target.WRITING, erase=0)
    assert content(disk) == target.BEGUN
    entries = b"entry".ljust(32 * SECTOR, b"\0")
    record(disk, state=target.INSTALLED, erase=0, entries=zlib.crc32(entries))
    assert content(disk) == target.BEGUN
    os.pwrite(disk, entries, 2 * SECTOR)
    assert content(disk) == target.BEGUN
    os.pwrite(disk, b"EFI PART", SECTOR)
    assert content(disk) == target.INSTALLED


@pytest.mark.parametrize("state", [target.WRITING, target.INSTALLED])
@pytest.mark.parametrize("at", [0, SECTOR, 8 * SECTOR, 64 * 1024])
def test_a_disk_that_another_system_uses_since_has_data(disk: int, state: str, at: int) -> None:
    """LVM has its label in sector 1, and a RAID in sector 8: the record behind them may survive."""
    record(disk, state=state, erase=3, entries=1)
    os.pwrite(disk, b"LABELONE", at)
    found = target.content(disk, SIZE)
    assert found.kind == target.DATA
    assert target.refusal(found, 3)
    assert target.refusal(found, 4) is None


@pytest.mark.parametrize(
    ("kind", "record", "erase", "refused"),
    [
        (target.EMPTY, {}, 0, None),
        (target.DATA, {}, 0, "does not let it be erased"),
        (target.DATA, {}, 1, None),
        (target.BEGUN, {"state": target.WRITING, "erase": 0}, 0, None),
        (target.BEGUN, {"state": target.WRITING, "erase": 2}, 0, None),
        # The data that was to be erased may still be there.
        (target.BEGUN, {"state": target.ERASING, "erase": 2}, 2, None),
        (target.BEGUN, {"state": target.ERASING, "erase": 2}, 0, "does not let it be erased"),
        (target.INSTALLED, {"state": target.INSTALLED, "erase": 0}, 0, "was carried out"),
        (target.INSTALLED, {"state": target.INSTALLED, "erase": 2}, 2, "was carried out"),
        (target.INSTALLED, {"state": target.INSTALLED, "erase": 2}, 1, "was carried out"),
        (target.INSTALLED, {"state": target.INSTALLED, "erase": 2}, 3, None),
        (target.INSTALLED, {"state": target.INSTALLED, "erase": "2"}, 0, "was carried out"),
    ],
)
def test_a_disk_is_erased_once_by_each_number(
    kind: str, record: Mapping[str, Any], erase: int, refused: str | None
) -> None:
    why = target.refusal(DiskContent(kind, record, "something"), erase)
    assert (why is None) == (refused is None), why
    assert refused is None or refused in str(why)
