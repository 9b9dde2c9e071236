"""Raw disks, made by mke2fs and sfdisk where they are read, and damaged."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tests.unit.inspect.things import elf, os_release

from goldnode.core.errors import ImageError
from goldnode.inspect import targets
from goldnode.inspect.scan import View


def root(folder: Path) -> Path:
    files = {
        **os_release(),
        "usr/lib/libnccl.so.2": elf(soname="libnccl.so.2") + b"x" * 700_000,
        "usr/lib/sparse.so": elf(),
        **{f"usr/share/many/file-with-a-long-name-{number:04}": b"x" for number in range(600)},
    }
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    with (folder / "usr/lib/sparse.so").open("r+b") as file:
        file.truncate(3_000_000)
    (folder / "usr/lib/libnccl.so").symlink_to("libnccl.so.2")
    (folder / "usr/lib/far").symlink_to("/" + "x" * 100)
    return folder


def make(folder: Path, kind: str, *options: str) -> Path:
    disk = folder / "disk.raw"
    subprocess.run(["truncate", "-s", "16M", str(disk)], check=True)
    argv = ["mke2fs", "-q", "-F", "-t", kind, *options, "-d", str(root(folder / "root")), str(disk)]
    subprocess.run(
        argv, check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    )
    return disk


def view(path: Path) -> View:
    (target,) = targets.find(str(path), None)
    return target.view


def checked(found: View, folder: Path) -> None:
    there = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert set(found.paths) - {"lost+found"} == there
    assert found.elf["usr/lib/libnccl.so.2"].soname == "libnccl.so.2"
    assert found.elf["usr/lib/sparse.so"].fault == ""
    assert found.paths["usr/lib/libnccl.so"].link == "libnccl.so.2"
    assert found.paths["usr/lib/far"].link == "/" + "x" * 100
    assert found.texts["etc/os-release"] == (folder / "etc/os-release").read_text(encoding="utf-8")
    assert found.left_out == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ext4", ()),
        ("ext4", ("-b", "1024", "-O", "^64bit")),
        ("ext3", ()),
        ("ext2", ("-b", "1024", "-I", "128")),
    ],
)
def test_file_system_of_each_kind_is_read_completely(
    tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    disk = make(tmp_path, kind, *options)
    checked(view(disk), tmp_path / "root")


# Of the first sector of the last one tarfile says that it is a tar: its signed sum is the checksum that an empty field stands for.
@pytest.mark.parametrize("label", ["gpt", "dos", "dos\nlabel-id: 0x000000f7"])
def test_root_partition_of_a_disk_is_found_and_read(tmp_path: Path, label: str) -> None:
    part = make(tmp_path, "ext4")
    disk = tmp_path / "whole.raw"
    subprocess.run(["truncate", "-s", "24M", str(disk)], check=True)
    kinds = ("U", "L") if label == "gpt" else ("ef", "83")
    script = f"label: {label}\nstart=2048,size=4096,type={kinds[0]}\nstart=8192,size=32768,type={kinds[1]}\n"
    subprocess.run(
        ["/usr/sbin/sfdisk", "-q", str(disk)],
        input=script,
        text=True,
        check=True,
        capture_output=True,
    )
    with disk.open("r+b") as out:
        out.seek(8192 * 512)
        out.write(part.read_bytes())
    (target,) = targets.find(str(disk), None)
    assert target.view.name == f"{disk}, partition 2"
    checked(target.view, tmp_path / "root")


def test_a_partition_of_another_kind_has_not_been_looked_at(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    subprocess.run(["truncate", "-s", "8M", str(disk)], check=True)
    subprocess.run(
        ["/usr/sbin/sfdisk", "-q", str(disk)],
        input="label: gpt\ntype=L\n",
        text=True,
        check=True,
        capture_output=True,
    )
    assert "only those are read" in next(iter(view(disk).left_out.values()))


def test_a_file_system_with_features_that_are_not_read(tmp_path: Path) -> None:
    disk = make(tmp_path, "ext4", "-O", "inline_data")
    with pytest.raises(ImageError, match=r"features of ext4 that are not read \(0x8000\)"):
        view(disk)
    (tmp_path / "b").mkdir()
    dirty = make(tmp_path / "b", "ext4")
    data = bytearray(dirty.read_bytes())
    data[1024 + 96] |= 4
    dirty.write_bytes(data)
    with pytest.raises(ImageError, match="not unmounted cleanly"):
        view(dirty)


def test_no_damage_makes_it_fail_or_run_on(tmp_path: Path) -> None:
    whole = make(tmp_path, "ext4", "-b", "1024").read_bytes()
    chance = random.Random(6)  # noqa: S311 - the same every time
    used = [at for at in range(1024, len(whole), 64) if any(whole[at : at + 64])][:30_000]
    disk = tmp_path / "broken.raw"
    for _ in range(25):
        data = bytearray(whole)
        for at in chance.sample(used, 400):
            data[at + chance.randrange(64)] = chance.randrange(256)
        disk.write_bytes(data)
        try:
            view(disk)
        except ImageError:
            continue
