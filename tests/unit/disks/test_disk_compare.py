"""The comparer names each kind of difference: seen on disks that differ in that one thing."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.disks.disk_trees import EPOCH, spec, tree

from goldnode.commands.disks.compare import compare as command
from goldnode.core.errors import DiskError
from goldnode.disks import assemble as assembling
from goldnode.disks import ext4, tools
from goldnode.disks.assemble import MIB, Spec, assemble
from goldnode.disks.compare import differences
from goldnode.disks.fat import Fat32

ESP, ROOT = MIB, 41 * MIB


def build(place: Path, made: Spec) -> Path:
    """One disk of the small root."""
    return assemble(tree(place / "root"), made, place / "disk.raw", lambda text: None).raw


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk that others are held against."""
    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid():
            patch.setattr(assembling, "_check_root", lambda root: None)
        return build(tmp_path_factory.mktemp("disk"), spec())


def renew(disk: Path, copy: Path) -> None:
    """Make `copy` as `disk` is. Its holes stay holes: a tenth of the work of writing them."""
    subprocess.run(["cp", "--sparse=always", str(disk), str(copy)], check=True)


@pytest.fixture
def copy(disk: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    renew(disk, tmp_path / "copy.raw")
    return tmp_path / "copy.raw"


def debugfs(disk: Path, *lines: str) -> None:
    """Change the root file system; the superblock's date stays the image's."""
    tools.run(
        "debugfs",
        "-w",
        "-f",
        "/dev/stdin",
        f"{disk}?offset={ROOT}",
        stdin="".join(line + "\n" for line in lines),
        epoch=EPOCH,
    )


def rows(one: Path, two: Path) -> set[tuple[str, str, str]]:
    """Partition, path and what of each difference."""
    return {(row.partition, row.path, row.what) for row in differences(one, two)}


def test_equal_disks_have_no_difference(disk: Path, copy: Path) -> None:
    assert differences(disk, copy) == []


SHADOW = "/etc/shadow"
CHANGES: list[tuple[list[str], set[tuple[str, str, str]]]] = [
    ([f"sif {SHADOW} mode 0100666"], {("root-a", SHADOW, "mode")}),
    ([f"sif {SHADOW} uid 33"], {("root-a", SHADOW, "owner")}),
    ([f"sif {SHADOW} gid 42"], {("root-a", SHADOW, "owner")}),
    ([f"sif {SHADOW} mtime @{EPOCH - 5}"], {("root-a", SHADOW, "times")}),
    ([f"sif {SHADOW} atime @{EPOCH + 5}"], {("root-a", SHADOW, "times")}),
    ([f"sif {SHADOW} crtime_extra 4"], {("root-a", SHADOW, "times")}),
    ([f"ea_set {SHADOW} user.mark made"], {("root-a", SHADOW, "xattrs")}),
    ([f"sif {SHADOW} links_count 2"], {("root-a", SHADOW, "links")}),
    ([f"sif {SHADOW} generation 9"], {("root-a", SHADOW, "flags")}),
    (["rm /etc/shadow"], {("root-a", SHADOW, "only in one")}),
    (
        ["rm /usr/bin/link", "symlink /usr/bin/link elsewhere"],
        {("root-a", "/usr/bin/link", "target")},
    ),
    (["ssv volume_name other"], {("root-a", "", "superblock")}),
    (["ssv mnt_count 3"], {("root-a", "", "superblock")}),
]


@pytest.mark.parametrize(("lines", "expected"), CHANGES, ids=[lines[0] for lines, _ in CHANGES])
def test_a_change_of_the_root_is_named(
    disk: Path, copy: Path, lines: list[str], expected: set[tuple[str, str, str]]
) -> None:
    debugfs(copy, *lines)
    assert rows(disk, copy) == expected


def block_of(disk: Path, name: str) -> tuple[int, int]:
    """Offset on the disk of the first block of a file, and the file's size."""
    with ext4.reading(disk, ROOT, 160 * MIB) as system:
        item = dict(system.tree())[name]
        return ROOT + next(system.runs(item.flags, item.place))[1] * system.block, item.size


def put(disk: Path, offset: int, data: bytes) -> None:
    """Write bytes as they are."""
    with disk.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_content_is_named_with_the_first_byte(disk: Path, copy: Path) -> None:
    offset, _ = block_of(disk, "boot/vmlinuz-6.1.0-0-amd64")
    put(copy, offset + 10, b"?")
    (row,) = differences(disk, copy)
    assert (row.partition, row.path, row.what) == (
        "root-a",
        "/boot/vmlinuz-6.1.0-0-amd64",
        "content",
    )
    assert "differs from byte 10" in row.first


def test_bytes_behind_the_end_of_a_file_are_slack(disk: Path, copy: Path) -> None:
    offset, size = block_of(disk, "usr/share/many/007")
    put(copy, offset + size + 1, b"left over")
    assert rows(disk, copy) == {("root-a", "/usr/share/many/007", "slack")}


def test_bytes_of_a_free_block_are_slack(disk: Path, copy: Path) -> None:
    put(copy, ROOT + 159 * MIB, b"left over")
    (row,) = differences(disk, copy)
    assert (row.partition, row.path, row.what, row.first) == (
        "root-a",
        "",
        "slack",
        "a block that no file has",
    )


def test_bytes_of_the_journal_are_named(disk: Path, copy: Path) -> None:
    with ext4.reading(disk, ROOT, 160 * MIB) as system:
        item = system.read(8)
        block = next(system.runs(item.flags, item.place))[1]
    put(copy, ROOT + (block + 5) * 4096, b"left over")
    assert [(row.what, row.first) for row in differences(disk, copy)] == [("slack", "the journal")]


def test_a_field_of_the_superblock_that_has_no_name_is_the_superblocks(
    disk: Path, copy: Path
) -> None:
    put(copy, ROOT + 1024 + 0x3F0, b"\1")
    assert rows(disk, copy) == {("root-a", "", "superblock")}


@pytest.mark.parametrize(
    ("offset", "where"),
    [
        (100, "the protective MBR"),
        (512 + 60, "the GPT header"),
        (40 * 512, "a gap between partitions"),
        (-512 + 60, "the second GPT header"),
    ],
)
def test_bytes_outside_of_the_partitions_are_named(
    disk: Path, copy: Path, offset: int, where: str
) -> None:
    # The reserved parts of the headers, which no reader of tables looks at. sfdisk corrects nothing when it reads.
    put(copy, offset if offset >= 0 else copy.stat().st_size + offset, b"!")
    found = differences(disk, copy)
    assert found
    assert {row.partition for row in found} == {"disk"}
    assert any(where in row.first for row in found), found


def test_the_table_is_named(disk: Path, copy: Path) -> None:
    subprocess.run(
        ["sfdisk", "-q", "--part-uuid", copy, "2", str(uuid.UUID(int=5))],
        check=True,
        env={"PATH": tools.path()},
    )
    subprocess.run(
        ["sfdisk", "-q", "--part-label", copy, "2", "root-x"],
        check=True,
        env={"PATH": tools.path()},
    )
    found = differences(disk, copy)
    assert {(row.partition, row.what, row.first.split()[0]) for row in found} == {
        ("root-a", "table", "uuid"),
        ("root-a", "table", "name"),
    }


def test_a_partition_that_only_one_has_is_named(disk: Path, copy: Path) -> None:
    subprocess.run(["sfdisk", "-q", "--delete", copy, "2"], check=True, env={"PATH": tools.path()})
    assert ("root-a", "", "only in one") in rows(disk, copy)


def test_another_size_and_guid_of_the_disk_are_named(disk: Path, copy: Path) -> None:
    subprocess.run(
        ["sfdisk", "-q", "--disk-id", copy, str(uuid.UUID(int=6))],
        check=True,
        env={"PATH": tools.path()},
    )
    os.truncate(copy, copy.stat().st_size + MIB)
    found = [row for row in differences(disk, copy) if row.partition == "disk"]
    assert [row.first.split()[0] for row in found] == [str(disk.stat().st_size), "GUID"]


def mtools(*words: str | Path) -> None:
    """One mtools command with the image's date."""
    tools.run(*words, epoch=EPOCH)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda place: mtools("mattrib", "+h", "-i", place, "::/loader/loader.conf"),
            ("esp", "/loader/loader.conf", "mode"),
        ),
        (
            lambda place: mtools("mdel", "-i", place, "::/loader/loader.conf"),
            ("esp", "/loader/loader.conf", "only in one"),
        ),
        (
            lambda place: mtools("mmd", "-i", place, "::/goldnode/b"),
            ("esp", "/goldnode/b", "only in one"),
        ),
        (
            lambda place: mtools("mlabel", "-i", place, "-N", "12345678", "::"),
            ("esp", "", "superblock"),
        ),
    ],
)
def test_a_change_of_the_esp_is_named(
    disk: Path, copy: Path, change: Callable[[str], None], expected: tuple[str, str, str]
) -> None:
    change(f"{copy}@@{ESP}")
    assert expected in rows(disk, copy)


def esp(disk: Path) -> tuple[Fat32, dict[str, int]]:
    """The ESP, and the offset on the disk of the first cluster of each file."""
    fat = Fat32(disk.read_bytes()[ESP:ROOT], "the ESP")
    return fat, {
        entry.path: ESP + fat.offset(entry.clusters[0]) for entry in fat.entries() if entry.clusters
    }


def test_content_slack_and_dates_of_the_esp_are_distinguished(
    disk: Path, copy: Path, tmp_path: Path
) -> None:
    fat, places = esp(disk)
    at = places["loader/loader.conf"]
    put(copy, at + 3, b"?")
    assert rows(disk, copy) == {("esp", "/loader/loader.conf", "content")}
    renew(disk, copy)
    put(copy, at + 300, b"left over")
    assert rows(disk, copy) == {("esp", "/loader/loader.conf", "slack")}
    renew(disk, copy)
    put(copy, ROOT - fat.cluster, b"left over")
    assert [(row.what, row.first) for row in differences(disk, copy)] == [
        ("slack", "a cluster that no file has")
    ]
    renew(disk, copy)
    raw = disk.read_bytes()
    entry = (
        raw.index(b"LOADER  CON", ESP, ROOT)
        if b"LOADER  CON" in raw[ESP:ROOT]
        else raw.index(b"LOADER~1CON", ESP, ROOT)
    )
    put(copy, entry + 22, struct.pack("<H", 1 << 11))
    assert rows(disk, copy) == {("esp", "/loader/loader.conf", "times")}
    renew(disk, copy)
    put(copy, ESP + fat.tables[1] + fat.table_size - 4, b"\1")
    assert [(row.what, row.first) for row in differences(disk, copy)] == [
        ("slack", "the file allocation table")
    ]


def test_another_kind_of_file_system_is_named(disk: Path, copy: Path) -> None:
    put(copy, ROOT + 1080, b"\0\0")
    assert [
        (row.what, row.second) for row in differences(disk, copy) if row.partition == "root-a"
    ] == [("type", "no file system that is read")]


def test_a_packed_disk_is_compared_too(disk: Path, copy: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.raw.zst"
    subprocess.run(["zstd", "-q", "-1", copy, "-o", packed], check=True)
    assert differences(disk, packed) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"short", "smaller than its partition table"),
        (bytes(1 << 20), "no disk with a partition table"),
        (None, "there is no such file"),
    ],
)
def test_differences_refuses_a_file_that_is_no_disk(
    disk: Path, tmp_path: Path, content: bytes | None, text: str
) -> None:
    other = tmp_path / "other.raw"
    if content is not None:
        other.write_bytes(content)
    with pytest.raises(DiskError, match=text):
        differences(disk, other)


def test_a_damaged_root_is_an_error_and_no_crash(disk: Path, copy: Path) -> None:
    put(copy, ROOT + 4096, os.urandom(4096))  # the group descriptors
    with pytest.raises(DiskError, match="is damaged"):
        differences(disk, copy)


def test_two_builds_with_another_file_name_that_file_alone(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        monkeypatch.setattr(assembling, "_check_root", lambda root: None)
    root = tree(tmp_path / "root")
    (root / "usr/share/many/123").write_bytes(b"12x")
    other = assemble(root, spec(), tmp_path / "disk.raw", lambda text: None).raw
    found = differences(disk, other)
    assert [(row.partition, row.path, row.what) for row in found] == [
        ("root-a", "/usr/share/many/123", "content")
    ]


def test_diff_command_exits_1_and_lists_differences(disk: Path, copy: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(command, [str(disk), str(copy)])
    assert (done.exit_code, done.output) == (0, "the disks are equal, bit by bit\n")
    debugfs(copy, f"sif {SHADOW} mode 0100666", f"sif {SHADOW} uid 33")
    done = runner.invoke(command, [str(disk), str(copy), "--lines", "1"])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "root-a:/etc/shadow: mode: 0640 / 0666",
        "… and 1 more (--lines 0 shows all)",
        "2 differences",
    ]
    done = runner.invoke(command, [str(disk), str(copy), "--format", "json"])
    assert [row["what"] for row in json.loads(done.stdout)["differences"]] == ["mode", "owner"]
