"""The forms of a disk: equal bytes twice, the content unharmed, nothing half written."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.unit.disks.disk_trees import CAPABILITY, EPOCH, RELEASE, tree

from goldnode.core.errors import DiskError
from goldnode.disks import formats, tools
from goldnode.disks.model import FORMATS, DiskFile


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A disk with content, holes, and content that does not compress."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as file:
        file.write(b"begin" * 100_000)
        file.seek(5 << 20)
        file.write(os.urandom(300_000))
        file.truncate(16 << 20)
    return path


def write(raw: Path, root: Path, kind: str, out: Path) -> DiskFile:
    """With the date and kernel of the small root."""
    return formats.write(raw, root, kind, out, epoch=EPOCH, release=RELEASE)


@pytest.mark.parametrize("kind", ["qcow2", "raw.zst"])
def test_a_format_of_the_disk_is_the_same_twice_and_holds_it(
    tmp_path: Path, raw: Path, kind: str
) -> None:
    one = write(raw, tmp_path, kind, tmp_path / f"one{FORMATS[kind]}")
    copy = tmp_path / "copy.raw"
    subprocess.run(["cp", "--sparse=never", raw, copy], check=True)
    os.utime(copy, (1, 1))
    two = write(copy, tmp_path, kind, tmp_path / f"two{FORMATS[kind]}")
    assert (one.sha256, one.size) == (two.sha256, two.size)
    assert one.size == (tmp_path / one.file).stat().st_size < 1_000_000
    back = tmp_path / "back.raw"
    if kind == "qcow2":
        subprocess.run(["qemu-img", "convert", "-O", "raw", tmp_path / one.file, back], check=True)
    else:
        formats.unpack(tmp_path / one.file, back)
        assert back.stat().st_blocks * 512 < 2 << 20  # holes are holes again
    assert back.read_bytes() == raw.read_bytes()


def test_zstd_does_not_depend_on_the_number_of_processors(tmp_path: Path, raw: Path) -> None:
    one = write(raw, tmp_path, "raw.zst", tmp_path / "one.raw.zst")
    for threads in (1, 3):
        out = tmp_path / f"{threads}.zst"
        subprocess.run(
            ["zstd", "-q", f"-T{threads}", f"-{formats.LEVEL}", "--check", raw, "-o", out],
            check=True,
        )
        assert formats.described(out, "raw.zst").sha256 == one.sha256


def test_the_tar_is_the_tree_sorted_and_dated(tmp_path: Path, raw: Path) -> None:
    root = tree(tmp_path / "root")
    other = tree(tmp_path / "other", order=-1)
    capable = True
    for place in (root, other):
        try:
            os.setxattr(place / "usr/sbin/sshd", "security.capability", CAPABILITY)
        except OSError:
            capable = False
    one, two = (
        write(raw, place, "tar", tmp_path / f"{place.name}.root.tar.zst") for place in (root, other)
    )
    assert one.sha256 == two.sha256
    bare = tmp_path / "plain.tar"
    subprocess.run(["zstd", "-q", "-d", tmp_path / one.file, "-o", bare], check=True)
    with tarfile.open(bare) as tar:
        members = {member.name: member for member in tar}
    names = list(members)
    assert names[0] == "."
    many = [name for name in names if "/many/" in name]
    assert many == sorted(many)
    assert [name for name in names if name.count("/") == 1] == sorted(
        name for name in names if name.count("/") == 1
    )
    assert {name.removeprefix("./") for name in names[1:]} == {
        str(path.relative_to(root)) for path in root.rglob("*")
    }
    for member in members.values():
        assert (member.uname, member.gname, member.mtime) == (
            "",
            "",
            EPOCH if member.name != "./etc/shadow" else EPOCH - 1000,
        )
        assert not {"atime", "ctime"} & set(member.pax_headers)
    assert members["./usr/bin/systemd-repart"].islnk() != members["./usr/bin/hard"].islnk()
    if capable:
        assert "SCHILY.xattr.security.capability" in members["./usr/sbin/sshd"].pax_headers


def test_kernel_and_initramfs_are_those_of_the_root(tmp_path: Path, raw: Path) -> None:
    root = tree(tmp_path / "root")
    for kind, name in (("vmlinuz", "vmlinuz"), ("initrd", "initrd.img")):
        made = write(raw, root, kind, tmp_path / f"x{FORMATS[kind]}")
        assert (tmp_path / made.file).read_bytes() == (root / f"boot/{name}-{RELEASE}").read_bytes()
        assert (tmp_path / made.file).stat().st_mode & 0o777 == 0o644


def test_an_unknown_format_has_its_nearest_name(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(DiskError, match=r'no format "qcow".*Use "qcow2"'):
        write(raw, tmp_path, "qcow", tmp_path / "x")


@pytest.mark.parametrize(
    ("kind", "tool"), [("qcow2", "qemu-img"), ("raw.zst", "zstd"), ("tar", "zstd"), ("tar", "tar")]
)
def test_a_tool_that_fails_leaves_nothing(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, kind: str, tool: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / tool).write_text(
        "#!/bin/sh\necho 'write error: No space left on device' >&2\nexit 1\n"
    )
    (programs / tool).chmod(0o755)
    found = tools.path()
    monkeypatch.setattr(tools, "path", lambda: f"{programs}:{found}")
    root = tree(tmp_path / "root")
    with pytest.raises(DiskError, match=r"no space left.*Make room"):
        write(raw, root, kind, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk.raw", "programs", "root"]


def test_versions_of_what_shapes_the_bytes() -> None:
    assert set(tools.versions()) >= {
        "dosfstools",
        "e2fsprogs",
        "fdisk",
        "mtools",
        "qemu-utils",
        "tar",
        "zstd",
    }
