"""From a root to a disk: what is where, equal bytes from unlike trees, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks.disk_trees import CAPABILITY, EPOCH, RELEASE, any_uid, spec, tree

from goldnode.core.errors import DiskError
from goldnode.disks import ext4, gpt, tools
from goldnode.disks.architecture import architecture_of
from goldnode.disks.assemble import MIB, Sizes, assemble, measure
from goldnode.disks.fat import Fat32
from goldnode.disks.model import Layout

pytestmark = pytest.mark.usefixtures("any_uid")
__all__ = ["any_uid"]

AMD64 = architecture_of("amd64")


def quiet(text: str) -> None:
    """Nobody listens."""


def test_layout_ab_has_its_partitions_files_and_dates(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    made = assemble(root, spec(), tmp_path / "out/disk.raw", quiet)
    assert made.raw == tmp_path / "out/disk.raw"
    assert made.size == made.raw.stat().st_size == 202 * MIB
    table = gpt.read(made.raw)
    assert [(p.number, p.name, p.type, p.start, p.size) for p in table.partitions] == [
        (1, "esp", gpt.ESP, MIB, 40 * MIB),
        (2, "root-a", AMD64.root_type, 41 * MIB, 160 * MIB),
    ]
    assert [(p.name, p.uuid) for p in table.partitions] == [
        (p.name, p.uuid) for p in made.partitions
    ]
    fat = Fat32(made.raw.read_bytes()[MIB : 41 * MIB], "the ESP")
    found = {entry.path: fat.content(entry) for entry in fat.entries() if not entry.directory}
    assert sorted(found) == [
        "EFI/BOOT/BOOTX64.EFI",
        "goldnode/a/initrd.img",
        "goldnode/a/slot.json",
        "goldnode/a/vmlinuz",
        "loader/entries/goldnode-0123456789ab-a.conf",
        "loader/loader.conf",
    ]
    assert found["EFI/BOOT/BOOTX64.EFI"] == b"MZ systemd-boot"
    assert found["goldnode/a/vmlinuz"] == (root / f"boot/vmlinuz-{RELEASE}").read_bytes()
    entry = found["loader/entries/goldnode-0123456789ab-a.conf"].decode()
    assert dict(line.split(maxsplit=1) for line in entry.splitlines()) == {
        "title": "goldnode cpu_only-0123456789ab",
        "sort-key": "goldnode",
        "version": "3~0123456789ab",
        "linux": "/goldnode/a/vmlinuz",
        "initrd": "/goldnode/a/initrd.img",
        "options": "root=PARTLABEL=root-a ro console=ttyS0 panic=5",
    }
    assert json.loads(found["goldnode/a/slot.json"]) == {
        "name": "cpu_only-0123456789ab",
        "class": "cpu_only",
        "build_id": "0123456789ab",
        "sequence": 3,
        "kernel": RELEASE,
    }
    # A cluster of this ESP holds 16 names: its directories have room for those that a node writes, and need not grow.
    rooms = {
        entry.path: len(fat.content(entry)) // 32
        for entry in fat.entries()
        if entry.directory and entry.path
    }
    assert min(rooms.values()) >= 48, rooms
    # Every date of the ESP is the image's: 2025-10-09 08:53:20 UTC.
    assert {(e.written, e.created) for e in fat.entries() if e.path and not e.directory} <= {
        (w, c) for w in (DATE,) for c in (0, DATE)
    }
    blkid = subprocess.run(
        ["blkid", "-p", "-O", str(41 * MIB), "-o", "export", made.raw],
        capture_output=True,
        text=True,
        env={"PATH": tools.path()},
    )
    assert f"UUID={made.partitions[1].filesystem_uuid}" in blkid.stdout
    assert "LABEL=root-a" in blkid.stdout


DATE = (2025 - 1980) << 25 | 10 << 21 | 9 << 16 | 8 << 11 | 53 << 5 | 10


def test_layout_single_has_esp_root_and_grub_configuration(tmp_path: Path) -> None:
    made = assemble(tree(tmp_path / "root"), spec("single"), tmp_path / "disk.raw", quiet)
    assert [p.name for p in made.partitions] == ["esp", "root"]
    fat = Fat32(made.raw.read_bytes()[MIB : 41 * MIB], "the ESP")
    found = {entry.path: fat.content(entry) for entry in fat.entries() if not entry.directory}
    assert sorted(found) == ["EFI/BOOT/BOOTX64.EFI", "EFI/debian/grub.cfg", "goldnode/slot.json"]
    config = found["EFI/debian/grub.cfg"].decode()
    identity = made.partitions[1].filesystem_uuid
    assert f"search --no-floppy --fs-uuid --set=root {identity}\n" in config
    assert f"linux /boot/vmlinuz-{RELEASE} root=UUID={identity} ro console=ttyS0\n" in config


@pytest.mark.parametrize(("layout", "loader"), [("ab", b"MZ systemd-boot"), ("single", b"MZ grub")])
def test_disk_for_arm64_has_the_loader_and_the_partition_type_of_its_firmware(
    tmp_path: Path, layout: Layout, loader: bytes
) -> None:
    made = assemble(
        tree(tmp_path / "root"), spec(layout, architecture="arm64"), tmp_path / "disk.raw", quiet
    )
    assert gpt.read(made.raw).partitions[1].type == "b921b045-1df0-41c3-af44-4c6f280d3fae"
    fat = Fat32(made.raw.read_bytes()[MIB : 41 * MIB], "the ESP")
    found = {entry.path: fat.content(entry) for entry in fat.entries() if not entry.directory}
    assert found["EFI/BOOT/BOOTAA64.EFI"] == loader
    assert "EFI/BOOT/BOOTX64.EFI" not in found


def test_an_architecture_without_disk_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"no disk images for riscv64.*amd64, arm64"):
        assemble(
            tree(tmp_path / "root"), spec(architecture="riscv64"), tmp_path / "disk.raw", quiet
        )


def test_the_files_of_the_root_are_those_of_the_tree(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    made = assemble(root, spec(), tmp_path / "disk.raw", quiet)
    with ext4.reading(made.raw, 41 * MIB, 160 * MIB) as system:
        found = dict(system.tree())
        assert set(found) - {"", "lost+found"} == {
            str(path.relative_to(root)) for path in root.rglob("*")
        }
        for name, item in found.items():
            if name == "lost+found":
                continue
            row = os.lstat(root / name)
            assert (item.mode, item.size if item.kind == "-" else 0) == (
                row.st_mode,
                row.st_size if item.kind == "-" else 0,
            ), name
            if item.kind == "-":
                assert (
                    b"".join(system.content(item.size, item.flags, item.place))
                    == (root / name).read_bytes()
                )
            assert {item.atime, item.ctime, item.crtime} == {EPOCH * 10**9}, name
            assert item.mtime == min(int(row.st_mtime), EPOCH) * 10**9, name
        assert found["usr/bin/hard"].number == found["usr/bin/systemd-repart"].number
        assert found["etc/shadow"].mtime == (EPOCH - 1000) * 10**9
    tools.run("e2fsck", "-f", "-n", f"{made.raw}?offset={41 * MIB}")


def test_unlike_trees_of_equal_content_make_equal_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assemble(tree(tmp_path / "root"), spec(), tmp_path / "disk.raw", quiet)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    config = tmp_path / "mke2fs.conf"
    config.write_text(
        "[defaults]\n\tbase_features = sparse_super\n\tblocksize = 1024\n\tinode_ratio = 4096\n\thash_alg = tea\n\tdefault_mntopts = journal_data\n"
    )
    monkeypatch.setenv("MKE2FS_CONFIG", str(config))
    other = tree(tmp_path / "elsewhere/deep/root", order=-1)
    for number, path in enumerate(sorted(other.rglob("*"))):
        if path.name != "shadow" and not path.is_symlink():
            os.utime(path, (EPOCH + number, EPOCH + 7 * number), follow_symlinks=False)
    # A hole, and zeros that are written: one file in two ways.
    with (other / "usr/share/sparse").open("r+b") as file:
        file.truncate(0)
        file.seek(9000)
        file.write(b"end")
    again = assemble(other, spec(), tmp_path / "elsewhere/again.raw", quiet)
    assert again.sha256 == made.sha256
    assert again.allocated == made.allocated


@pytest.mark.parametrize(
    "change",
    [{"seed": uuid.UUID(int=7)}, {"epoch": EPOCH + 60}, {"command_line": "quiet"}, {"sequence": 4}],
)
def test_another_spec_is_another_disk(tmp_path: Path, change: dict[str, Any]) -> None:
    root = tree(tmp_path / "root")
    assert (
        assemble(root, spec(), tmp_path / "a", quiet).sha256
        != assemble(root, spec(**change), tmp_path / "b", quiet).sha256
    )


def test_capabilities_go_along_and_labels_of_this_machine_do_not(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    try:
        os.setxattr(root / "usr/sbin/sshd", "security.capability", CAPABILITY)
        os.setxattr(root / "etc/shadow", "security.selinux", b"system_u:object_r:shadow_t:s0\0")
    except OSError:
        pytest.skip("this user or file system sets no attributes of namespace security")
    made = assemble(root, spec(), tmp_path / "disk.raw", quiet)
    with ext4.reading(made.raw, 41 * MIB, 160 * MIB) as system:
        found = {name: item.xattrs for name, item in system.tree() if item.xattrs}
    assert found == {"usr/sbin/sshd": {"security.capability": CAPABILITY}}


def without(name: str) -> Callable[[Path], None]:
    """Take a file out of a root."""
    return lambda root: (root / name).unlink()


def huge(root: Path) -> None:
    """More than the partition holds."""
    for number in range(3):
        (root / f"usr/share/huge{number}").write_bytes(os.urandom(30 * MIB))


def many(root: Path) -> None:
    """More files than the partition has inodes."""
    for number in range(10_000):
        (root / "usr/share/many" / f"x{number}").symlink_to("x")


def fat_kernel(root: Path) -> None:
    """A kernel that fits the ESP twice, and not a third time."""
    (root / f"boot/vmlinuz-{RELEASE}").write_bytes(bytes(14 * MIB))


def leads_out(root: Path) -> None:
    """A kernel that is this machine's."""
    (root / f"boot/vmlinuz-{RELEASE}").unlink()
    (root / f"boot/vmlinuz-{RELEASE}").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            without(f"boot/vmlinuz-{RELEASE}"),
            r"no kernel 6\.1\.0-0-amd64 .*it has none\. Add the stack's kernel",
        ),
        (
            lambda root: (root / f"boot/vmlinuz-{RELEASE}").rename(
                root / "boot/vmlinuz-6.1.0-1-amd64"
            ),
            r'it has 6\.1\.0-1-amd64\. Lock the disk again, or use "6',
        ),
        (without(f"boot/initrd.img-{RELEASE}"), r"no initramfs for kernel.*Add initramfs-tools"),
        (
            without(AMD64.systemd_boot),
            r"no boot loader .*Add systemd-boot-efi to the packages",
        ),
        (lambda root: (root / "efi").rmdir(), r"no directory /efi"),
        (
            huge,
            r"which is \d+ MiB more than a partition of 160 MiB holds\. Raise `root_mib` of the definition to at least \d+\.",
        ),
        (many, r"in \d+ files, which is \d+ MiB more .*`root_mib`"),
        (
            fat_kernel,
            r"three times that \(.*\) does not fit an ESP of 40 MiB\. Raise `esp_mib` of the definition to at least \d+\.",
        ),
        (leads_out, r"is a link, expected a file"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="the root's own directory has to be root's")
def test_a_root_that_is_no_disk_is_refused_before_anything_is_made(
    tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    root = tree(tmp_path / "root")
    spoil(root)
    with pytest.raises(DiskError) as caught:
        assemble(root, spec(), tmp_path / "out/disk.raw", quiet)
    assert re.search(text, str(caught.value)), str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layout": "abc"}, 'there is no layout "abc". Use "ab"'),
        ({"loader": "grub"}, "layout ab boots with systemd-boot, not with grub"),
        ({"sizes": Sizes(40 * MIB, 64 * MIB)}, "correct `root_mib`"),
        ({"sizes": Sizes(40 * MIB + 1, 160 * MIB)}, "correct `esp_mib`"),
        ({"command_line": "a\nb"}, "not one line of ASCII"),
        (
            {"layout": "single", "loader": "grub", "command_line": "memmap=64M$0x1000"},
            "command line has $, which GRUB's configuration",
        ),
        ({"name": "../x"}, "expected letters"),
    ],
)
def test_a_spec_that_is_no_disk_is_refused(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(DiskError) as caught:
        assemble(tmp_path, spec(**change), tmp_path / "disk.raw", quiet)
    assert text.lower() in str(caught.value).lower()


def test_a_root_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    root = tree(tmp_path / "root")
    os.chown(root, 1234, 0)
    with pytest.raises(DiskError, match="belongs to user 1234"):
        assemble(root, spec(), tmp_path / "disk.raw", quiet)


def test_a_missing_tool_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "path", lambda: str(tmp_path))
    with pytest.raises(
        DiskError, match=r"no sfdisk, mkfs\.vfat, .*Install dosfstools e2fsprogs fdisk mtools"
    ):
        assemble(tree(tmp_path / "root"), spec(), tmp_path / "disk.raw", quiet)


def test_too_little_space_is_reported_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 3 * MIB})())
    with pytest.raises(DiskError, match=r"takes about \d+ MiB of .*, where 3 MiB are free"):
        assemble(tree(tmp_path / "root"), spec(), tmp_path / "disk.raw", quiet)
    assert not list(tmp_path.glob("*disk.raw*"))


@pytest.mark.parametrize("step", ["sfdisk", "mkfs.vfat", "mcopy", "mke2fs", "debugfs"])
def test_a_step_that_fails_leaves_nothing_and_the_older_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    out = tmp_path / "disk.raw"
    out.write_bytes(b"older")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / step).write_text("#!/bin/sh\necho 'no luck' >&2\nexit 3\n")
    (programs / step).chmod(0o755)
    found = tools.path()
    monkeypatch.setattr(tools, "path", lambda: f"{programs}:{found}")
    with pytest.raises(DiskError, match=f"{re.escape(step)} failed with exit status 3: no luck"):
        assemble(tree(tmp_path / "root"), spec(), out, quiet)
    assert out.read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk.raw", "programs", "root"]


def test_a_line_that_debugfs_cannot_do_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ext4, "_normalised", lambda system, epoch: iter(["sif <999999999> atime @1"])
    )
    with pytest.raises(DiskError, match="debugfs could not set the dates"):
        assemble(tree(tmp_path / "root"), spec(), tmp_path / "disk.raw", quiet)


def test_assemble_replaces_the_half_file_of_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / ".disk.raw.new").write_bytes(b"half" * MIB)
    assemble(tree(tmp_path / "root"), spec(), tmp_path / "disk.raw", quiet)
    assert not (tmp_path / ".disk.raw.new").exists()


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, b"a")],
        [(5 * MIB + 3, b"b" * 5000)],
        [(0, b"x" * 4096), (3 * MIB - 1, b"yz"), (9 * MIB, b"")],
        [(8191, b"cd")],
    ],
)
def test_measure_reads_holes_as_zeros(tmp_path: Path, pieces: list[tuple[int, bytes]]) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for at, data in pieces:
            file.seek(at)
            file.write(data)
        file.truncate(max(at + len(data) for at, data in pieces) + 10_000)
    whole = path.read_bytes()
    expected = sum(4096 for at in range(0, len(whole), 4096) if any(whole[at : at + 4096]))
    known = subprocess.run(
        ["sha256sum", path], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert measure(path) == (known, expected)
