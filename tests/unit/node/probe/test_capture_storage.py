"""What a capture says of disks, mounts, RAID and the speed of paths, from small directories that play a node."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, reader_process, storage
from goldnode.node.probe.values import is_fault

PCI = "/sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0"


def page(**values: int) -> bytes:
    """A SMART log page, filled by the offsets of the NVMe base specification."""
    data = bytearray(512)
    data[0] = values.get("warning", 0)
    struct.pack_into("<H", data, 1, values.get("kelvin", 310))
    data[3], data[4], data[5] = values.get("spare", 100), 10, values.get("used", 2)
    data[128:144] = values.get("hours", 1234).to_bytes(16, "little")
    data[160:176] = values.get("media", 0).to_bytes(16, "little")
    return bytes(data)


def tree(root: Path, smart: bytes | None = None) -> Path:
    """A node with an NVMe disk, and its log page in place of the device."""
    here = f"{PCI}/nvme/nvme0/nvme0n1"
    files: dict[str, str | bytes] = {
        f"{here}/size": "1000\n",
        f"{here}/ro": "0\n",
        f"{here}/queue/rotational": "0\n",
    }
    files |= {
        f"{here}/queue/scheduler": "[none] mq-deadline\n",
        f"{PCI}/nvme/nvme0/model": "Disk 7 \n",
    }
    files |= {f"{PCI}/nvme/nvme0/firmware_rev": "GDC7\n", f"{PCI}/nvme/nvme0/state": "live\n"}
    make(
        root,
        files,
        {
            "/sys/block/nvme0n1": f"../..{here}",
            f"{here}/device": "..",
            f"{PCI}/nvme/nvme0/device": "../..",
        },
    )
    for name in ("loop0", "dm-0", "md0", "zram0", "nvme0c1n1"):
        make(root, {f"/sys/block/{name}/size": "8\n"})
    make(root, {"/sys/block/sr0/size": "0\n", "/sys/block/sda/size": "0\n"})
    return make(root, {"/dev/nvme0": smart}) if smart is not None else root


def test_an_nvme_disk_with_its_health(tmp_path: Path) -> None:
    got = storage.read(context(tree(tmp_path, page(warning=4, used=97, media=1 << 70, spare=9))))[
        "storage"
    ]["devices"]
    assert list(got) == ["nvme0n1"]
    assert got["nvme0n1"] == {
        "model": "Disk 7",
        "firmware": "GDC7",
        "size_bytes": 512000,
        "rotational": False,
        "scheduler": "none",
        "address": "0000:c1:00.0",
        "state": "live",
        "ro": False,
        "smart": {
            "critical_warning": 4,
            "temperature_c": 37,
            "available_spare": 9,
            "spare_threshold": 10,
            "percentage_used": 97,
            "media_errors": 1 << 70,
            "power_on_hours": 1234,
        },
    }


def test_a_disk_and_its_controller_may_have_different_numbers(tmp_path: Path) -> None:
    here = f"{PCI}/nvme/nvme7/nvme2n1"
    make(
        tmp_path,
        {f"{here}/size": "8\n", "/dev/nvme7": page(used=1), "/dev/nvme2": page(used=2)},
        {"/sys/block/nvme2n1": f"../..{here}"},
    )
    place = "/sys/devices/virtual/nvme-subsystem/nvme-subsys5"
    links = {"/sys/block/nvme5n1": f"../..{place}/nvme5n1", f"{place}/nvme5n1/device": ".."}
    make(
        tmp_path,
        {
            f"{place}/nvme5n1/size": "8\n",
            f"{place}/nvme9/model": "x",
            "/dev/nvme9": page(used=9),
            "/dev/nvme5": page(used=5),
        },
        links,
    )
    got = storage.read(context(tmp_path))["storage"]["devices"]
    assert {name: row["smart"]["percentage_used"] for name, row in got.items()} == {
        "nvme2n1": 1,
        "nvme5n1": 9,
    }


def test_health_that_cannot_be_read_is_no_health(tmp_path: Path) -> None:
    got = storage.read(context(tree(tmp_path)))["storage"]["devices"]["nvme0n1"]["smart"]
    assert got["fault"] == "not_exposed"
    make(tmp_path, {"/dev/nvme0": b"torn"})
    got = storage.read(context(tmp_path))["storage"]["devices"]["nvme0n1"]["smart"]
    assert got["fault"] == "unread"


def test_the_command_is_get_log_page_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def ioctl(handle: int, number: int, command: bytearray, change: bool) -> int:
        assert number == 0xC0484E41
        asked.append(bytes(command))
        return 0

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    assert len(storage._log_page(0)) == 512
    opcode, flags, _, namespace, _, _, _, address, _, size, word10, *rest = struct.unpack(
        "<BBHIIIQQIIIIIIIIII", asked[0]
    )
    assert (len(asked[0]), opcode, flags, namespace, size, word10) == (
        72,
        2,
        0,
        0xFFFFFFFF,
        512,
        127 << 16 | 2,
    )
    assert address
    assert rest == [0] * 7, "a time limit of its own would have the kernel reset a slow controller"


MOUNTS = r"""/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
/dev/sda1 /var/lib/kubelet/pods/a ext4 rw 0 0
/dev/sdb1 /data\040two xfs ro,noatime 0 0
server:/export /mnt/nfs nfs4 rw,hard 0 0
tmpfs /run tmpfs rw 0 0
tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0
overlay /var/lib/docker/merged overlay rw 0 0
tmpfs /scratch tmpfs rw 0 0
torn
"""


def test_mounts_that_hold_data(tmp_path: Path) -> None:
    make(tmp_path, {"/proc/self/mounts": MOUNTS, "/data two/x": "", "/scratch/x": ""})
    document: dict[str, Any] = {
        "health": {"baseline": {"storage": {"paths": {"/scratch/set": {}}}}}
    }
    got = storage.read(context(tmp_path, document, passive=True))["storage"]
    assert list(got["mounts"]) == ["/", "/data two", "/dev/shm", "/mnt/nfs", "/scratch"]
    assert got["mounts"]["/dev/shm"] == {
        "device": "tmpfs",
        "type": "tmpfs",
        "options": "rw,nosuid,nodev",
        "readonly": False,
    }
    assert got["mounts"]["/data two"]["readonly"] is True
    assert got["mounts"]["/"]["size_mib"] > 0
    assert got["mounts"]["/mnt/nfs"]["free_mib"]["fault"] == "unread", (
        "a mount that cannot be asked is not an empty one"
    )
    assert "paths" not in got, "a passive look puts no load on the node"


def test_a_dead_server_leaves_the_other_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {"/proc/self/mounts": MOUNTS})
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        if "nfs" in str(path):
            time.sleep(60)
        return real(tmp_path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(reader_process.Asked.__init__, "__defaults__", (3.0, 0.2))
    got = storage.read(context(tmp_path))["storage"]["mounts"]
    assert got["/"]["size_mib"] > 0
    assert got["/data two"]["size_mib"] > 0
    assert "no answer" in got["/mnt/nfs"]["size_mib"]["text"]


MDSTAT = """Personalities : [raid1] [raid0]
md1 : active raid1 sdb1[1](F) sda1[0]
      976630464 blocks super 1.2 [2/1] [U_]
      bitmap: 1/8 pages [4KB], 65536KB chunk

md2 : active raid10 nvme3n1[3] nvme2n1[2] nvme1n1[1] nvme0n1[0]
      7501212672 blocks super 1.2 512K chunks 2 near-copies [4/4] [UUUU]

md0 : active raid0 nvme5n1[1] nvme4n1[0]
      7501212672 blocks super 1.2 512k chunks

md3 : active raid5 sdd[3] sdc[1] sdb[0]
      1953260544 blocks level 5, 64k chunk, algorithm 2 [3/2] [UU_]
      [==>..................]  recovery = 12.6% (123/976) finish=127.5min speed=1000K/sec

md4 : inactive sde[0](S)
      976630464 blocks super 1.2

unused devices: <none>
"""


def test_mdstat_gives_level_state_and_failed_devices(tmp_path: Path) -> None:
    got = storage.raid(context(make(tmp_path, {"/proc/mdstat": MDSTAT})).files)
    assert got == {
        "md1": {
            "level": "raid1",
            "state": "degraded",
            "devices": 2,
            "active": 1,
            "failed": ["sdb1"],
            "missing": [1],
        },
        "md2": {"level": "raid10", "state": "active", "devices": 4, "active": 4},
        "md0": {"level": "raid0", "state": "active", "devices": 2, "active": 2},
        "md3": {
            "level": "raid5",
            "state": "recovering",
            "devices": 3,
            "active": 2,
            "missing": [2],
        },
        "md4": {"level": None, "state": "inactive", "devices": 1, "active": 0},
    }
    assert storage.raid(context(tmp_path / "none").files) == {}


# -- how fast


def named(path: str) -> dict[str, Any]:
    """A class document that names a path."""
    return {"health": {"baseline": {"storage": {"paths": {path: {"latency_ms": 5}}}}}}


def speeds(root: Path, path: str = "/data", **more: Any) -> Any:
    return storage.read(context(root, named(path), **more))["storage"]["paths"][path]


def test_a_path_is_read_and_nothing_of_it_changes(tmp_path: Path) -> None:
    make(tmp_path, {"/data/deep/big": random.randbytes(6 << 20), "/data/small": b"x" * 9000})  # noqa: S311
    big = tmp_path / "data/deep/big"
    os.utime(big, (1e9, 1e9))
    before = big.stat()
    got = speeds(tmp_path)
    after = big.stat()
    assert (after.st_atime, after.st_mtime, after.st_size) == (
        before.st_atime,
        before.st_mtime,
        before.st_size,
    )
    if is_fault(got["latency_ms"]):  # where the tests' file system cannot be read past the cache
        assert "past the page cache" in got["latency_ms"]["text"]
    else:
        assert got["latency_ms"] > 0
        assert got["read_mb_s"] > 0


def test_missing_path_or_special_file_gives_no_speed(tmp_path: Path) -> None:
    assert speeds(tmp_path)["latency_ms"]["text"] == "no such path"
    (tmp_path / "data").mkdir()
    assert speeds(tmp_path)["read_mb_s"]["text"] == "no file to read there"
    with (tmp_path / "data/holes").open("wb") as opened:
        opened.truncate(1 << 30)
    os.mkfifo(tmp_path / "data/fifo")
    (tmp_path / "data/link").symlink_to("/etc/passwd")
    assert speeds(tmp_path)["read_mb_s"]["text"] == "no file to read there"


def test_a_small_file_measures_latency_alone(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as opened:
        opened.write(b"x" * 8192)
    handle = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        got = storage.measure(handle, 8192)
    finally:
        os.close(handle)
    assert got["latency_ms"] >= 0
    assert got["read_mb_s"]["fault"] == "not_exposed"


def test_no_more_than_64_mib_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def preadv(handle: int, buffers: list[Any], at: int) -> int:
        done.append(len(buffers[0]))
        return done[-1]

    monkeypatch.setattr(os, "preadv", preadv)
    storage.measure(0, 1 << 40)
    assert sum(done) <= storage.BYTES + storage.READS * storage.SMALL


def test_an_image_has_no_disks(tmp_path: Path) -> None:
    assert storage.read(context(tree(tmp_path), live=False))["storage"]["fault"] == "not_exposed"


def test_this_machine_is_read_without_a_crash() -> None:
    got = storage.read(Context(Host("/"), named("/usr/lib")))["storage"]
    json.dumps(got)
    assert got["mounts"]["/"]["size_mib"] > 0
    assert "/usr/lib" in got["paths"]
