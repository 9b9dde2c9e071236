"""Which disks count as empty, with the real blkid, wipefs and mkfs on files: everything else is never formatted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.state.domains import scratch
from goldnode.node.state.handlers.scratch import HANDLERS
from goldnode.node.state.model import Action

MIB = 1 << 20
OWN = scratch.label("/scratch")
WANT = {"device": "/dev/x", "filesystem": "ext4", "options": ["noatime"], "full_percent": 90}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, 32 * MIB)
    return path


def run(*words: object) -> None:
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    subprocess.run([str(word) for word in words], env=environment, check=True, capture_output=True)


def put(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"data of somebody")


def state(path: Path) -> tuple[str, str]:
    answer = scratch.inspect(Host("/"), str(path), OWN)
    return answer[0], answer[1]


def action(path: Path) -> Action:
    data = {**WANT, "mount": "/scratch", "device": str(path)}
    return Action("storage", "scratch.format", "/scratch", "", data=data)


def applier(remembered: list[str]) -> Any:
    return SimpleNamespace(host=Host("/"), remember=lambda key, names: remembered.extend(names))


def wiped(path: Path) -> None:
    run("mkfs.ext4", "-q", "-L", "DATA", path)
    run("wipefs", "-a", path)


FOREIGN: dict[str, Any] = {
    "another file system": lambda path: run("mkfs.ext4", "-q", "-L", "DATA", path),
    "a file system without a label": lambda path: run("mkfs.ext4", "-q", path),
    "swap": lambda path: run("mkswap", path),
    "data at the beginning without a signature": lambda path: put(path, 4096),
    "data at the end without a signature": lambda path: put(path, 32 * MIB - 4096),
    "signatures wiped, data still there": wiped,
    "no medium": lambda path: os.truncate(path, 0),
    "not there": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_disk_with_anything_on_it_is_never_formatted(name: str, disk: Path) -> None:
    FOREIGN[name](disk)
    before = disk.read_bytes() if disk.exists() else None
    found, why = state(disk)
    assert found == scratch.UNFIT
    assert str(disk) in why
    remembered: list[str] = []
    with pytest.raises(NodeError, match="is not formatted"):
        HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert (disk.read_bytes() if disk.exists() else None) == before
    assert remembered == []


def test_an_empty_disk_is_formatted_once_and_recorded_before(disk: Path) -> None:
    assert state(disk) == (scratch.EMPTY, "")
    remembered: list[str] = []
    HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert remembered == [f"{disk} {OWN}"]
    assert state(disk)[0] == scratch.LABELLED
    made = disk.read_bytes()
    HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert disk.read_bytes() == made, "a disk with the label is not formatted again"


def test_mkfs_itself_would_overwrite_another_file_system(disk: Path) -> None:
    """e2fsprogs 1.47: without a terminal, mkfs.ext4 asks nothing and needs no -F. The state above is the only guard."""
    run("mkfs.ext4", "-q", "-L", "DATA", disk)
    done = subprocess.run(
        ["/usr/sbin/mkfs.ext4", "-q", "-L", "other", str(disk)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    label = subprocess.check_output(
        ["/usr/sbin/blkid", "-p", "-s", "LABEL", "-o", "value", str(disk)]
    )
    assert label.strip() == b"other"


def test_a_pattern_names_disks_and_no_partitions(tmp_path: Path) -> None:
    for name in ("nvme0n1", "nvme0n1p1", "nvme1n1"):
        (tmp_path / "sys/class/block" / name).mkdir(parents=True)
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "sys/class/block/nvme0n1p1/partition").write_text("1\n")
    host = Host(str(tmp_path))
    assert scratch.matches(host, "/dev/nvme0*") == ["/dev/nvme0n1"]
    assert scratch.matches(host, "/dev/nvme*") == ["/dev/nvme0n1", "/dev/nvme1n1"]
    assert scratch.matches(host, "/dev/nvme0n1p1") == ["/dev/nvme0n1p1"], (
        "a path names what it names"
    )
    assert scratch.matches(host, "/dev/sdz") == []


def test_label_fits_into_xfs() -> None:
    assert len(scratch.label("/a/very/long/path/to/scratch")) <= 12
    assert scratch.label("/a") != scratch.label("/b")


def test_mounts_are_read_with_the_options_of_file_system_and_mount() -> None:
    line = "36 35 7:3 / /scratch rw,noatime shared:1 - ext4 /dev/loop3 rw,errors=remount-ro"
    row = scratch.mounted([line])["/scratch"]
    assert row == {
        "source": "/dev/loop3",
        "type": "ext4",
        "options": ["rw", "noatime", "rw", "errors=remount-ro"],
    }


def test_a_disk_that_cannot_be_read_is_judged_by_udev_and_never_formatted(tmp_path: Path) -> None:
    for name, text in {
        "dev/nvme1n1": "",
        "sys/class/block/nvme1n1/dev": "259:1\n",
        "run/udev/data/b259:1": f"S:disk/by-id/x\nE:ID_FS_LABEL={OWN}\nE:ID_FS_TYPE=ext4\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dev/nvme1n1").chmod(0)
    host = Host(str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # root can read any file
        assert scratch.inspect(host, "/dev/nvme1n1", OWN) == (scratch.LABELLED, "", "ext4")
        assert scratch.inspect(host, "/dev/nvme1n1", "gn-00000000")[0] == scratch.UNKNOWN
