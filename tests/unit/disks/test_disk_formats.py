"""The forms of a disk: equal bytes twice, the content unharmed, nothing half written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import tarfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks.disk_trees import CAPABILITY, EPOCH, RELEASE, tree

from goldnode.core.errors import DiskError
from goldnode.disks import formats, tools, vhd
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


def gpt(place: Path) -> Path:
    """A disk of 33 MiB with a partition table, content and holes."""
    path = place / "disk.raw"
    with path.open("wb") as file:
        file.truncate(33 << 20)
    tools.run(
        "sfdisk", "-q", path, stdin="label: gpt\nstart=1MiB, size=8MiB\nstart=9MiB, size=23MiB\n"
    )
    with path.open("r+b") as file:
        file.seek((12 << 20) + 300)
        file.write(os.urandom(200_000))
    return path


def twice(kind: str, place: Path, raw: Path, root: Path) -> Path:
    """Write a format into two directories, the second time from a copy without holes. Return the first file."""
    made = []
    for number in (1, 2):
        folder = place / f"twice{number}"
        folder.mkdir()
        source = folder / "disk.raw"
        sparse = "always" if number == 1 else "never"
        subprocess.run(["cp", f"--sparse={sparse}", raw, source], check=True)
        made.append(write(source, root, kind, folder / f"cpu_only-0123456789ab{FORMATS[kind]}"))
        assert sorted(path.name for path in folder.iterdir()) == sorted(["disk.raw", made[-1].file])
    assert made[0] == made[1]
    return place / "twice1" / made[0].file


def virtual_size(path: Path, driver: str) -> int:
    """The size in bytes that a machine with this disk sees."""
    done = subprocess.run(
        ["qemu-img", "info", "-f", driver, "--output", "json", path],
        check=True,
        capture_output=True,
    )
    return int(json.loads(done.stdout)["virtual-size"])


@pytest.mark.parametrize(("kind", "driver"), [("vhd", "vpc"), ("vmdk", "vmdk")])
def test_the_forms_of_clouds_are_the_same_twice_and_hold_the_disk(
    tmp_path: Path, kind: str, driver: str
) -> None:
    raw = gpt(tmp_path)
    path = twice(kind, tmp_path, raw, tmp_path)
    command = ["qemu-img", "compare", "-f", "raw", "-F", driver, str(raw), str(path)]
    subprocess.run(command, check=True, capture_output=True)
    assert virtual_size(path, driver) == 33 << 20
    with path.open("r+b") as file:
        file.seek((path.stat().st_size - 512) // 2 // 512 * 512 if kind == "vmdk" else 12 << 20)
        file.write(b"another content" * 4000)
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0


def test_a_vhd_has_a_footer_that_is_right(tmp_path: Path) -> None:
    path = twice("vhd", tmp_path, gpt(tmp_path), tmp_path)
    data = path.read_bytes()
    assert len(data) == (33 << 20) + 512
    footer = data[-512:]
    (checksum,) = struct.unpack(">I", footer[64:68])
    assert checksum == ~(sum(footer) - sum(footer[64:68])) & 0xFFFFFFFF
    assert struct.unpack(">QQ", footer[40:56]) == (33 << 20, 33 << 20)


# By hand from the specification. qemu-img 7.2 rounds up and has one cylinder more.
@pytest.mark.parametrize(
    ("mib", "geometry"),
    [(33, (993, 4, 17)), (64, (963, 8, 17)), (1024, (2080, 16, 63)), (6144, (12483, 16, 63))],
)
def test_the_geometry_of_a_vhd(mib: int, geometry: tuple[int, int, int]) -> None:
    footer = vhd.footer(mib << 20, identifier=uuid.UUID(int=1), epoch=EPOCH)
    assert struct.unpack(">HBB", footer[56:60]) == geometry


def test_a_vmdk_is_written_as_the_specification_has_it(tmp_path: Path) -> None:
    raw = gpt(tmp_path)
    data = twice("vmdk", tmp_path, raw, tmp_path).read_bytes()
    header = struct.unpack("<4sIIQQQQIQQQB4sH", data[:79])
    assert header[9] == 0xFFFFFFFFFFFFFFFF, "the directory is at the end"
    assert data[-512:] == bytes(512), "the marker of the end"
    footer = struct.unpack("<4sIIQQQQIQQQB4sH", data[-1024:-945])
    assert footer[:9] == header[:9]
    assert struct.unpack("<QII", data[-1536:-1520]) == (1, 0, 3), "the footer's marker"
    assert b"cpu_only" not in data[512 : 21 * 512], "it does not depend on its name"
    (table,) = struct.unpack("<I", data[footer[9] * 512 : footer[9] * 512 + 4])
    entries = struct.unpack("<512I", data[table * 512 : table * 512 + 2048])
    grains = {}
    for number, sector in enumerate(entries):
        if sector:
            place, size = struct.unpack("<QI", data[sector * 512 : sector * 512 + 12])
            assert place == number * 128
            grains[number] = zlib.decompress(data[sector * 512 + 12 : sector * 512 + 12 + size])
    content = raw.read_bytes()
    assert len(content) == 33 << 20
    for number in range(512):
        assert grains.get(number, bytes(65536)) == content[number << 16 : (number + 1) << 16]


def test_the_tar_of_compute_engine_holds_whole_gib_and_its_holes(tmp_path: Path) -> None:
    raw = gpt(tmp_path)
    path = twice("gce", tmp_path, raw, tmp_path)
    assert path.stat().st_size < 1_000_000
    listed = subprocess.run(
        ["tar", "-tvf", path, "--numeric-owner"], check=True, capture_output=True, text=True
    )
    (line,) = listed.stdout.splitlines()
    assert line.split()[1:3] == ["0/0", str(1 << 30)]
    assert line.endswith(" disk.raw")
    subprocess.run(["tar", "-xf", path, "-C", tmp_path / "twice2"], check=True)
    back = tmp_path / "twice2/disk.raw"
    assert back.stat().st_blocks * 512 < 10 << 20
    with back.open("rb") as file:
        assert file.read(33 << 20) == raw.read_bytes()


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools is not installed")
def test_a_squashfs_holds_the_root(tmp_path: Path, raw: Path) -> None:
    root = tree(tmp_path / "root")
    path = twice("squashfs", tmp_path, raw, root)
    other = tree(tmp_path / "other", order=-1)
    made = write(raw, other, "squashfs", tmp_path / "other.squashfs")
    assert made.sha256 == formats.described(path, "squashfs").sha256
    listed = subprocess.run(
        ["unsquashfs", "-lln", "-UTC", path], check=True, capture_output=True, text=True
    ).stdout
    shadow = next(line for line in listed.splitlines() if line.endswith("/etc/shadow"))
    assert shadow.split()[:2] == ["-rw-r-----", "0/0"]
    assert len(listed.splitlines()) >= sum(1 for _ in root.rglob("*"))


def members(archive: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Manifest, configuration and layer of an OCI archive, each compared with its digest."""
    with tarfile.open(archive) as tar:
        files = {item.name: tar.extractfile(item) for item in tar if item.isfile()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (row,) = json.loads(content["index.json"])["manifests"]
    assert row["annotations"] == {"org.opencontainers.image.ref.name": "cpu_only-0123456789ab"}

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = content[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert hashlib.sha256(data).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        assert len(data) == descriptor["size"]
        return data

    manifest = json.loads(blob(row))
    (layer,) = manifest["layers"]
    assert len(content) == 5, "layout, index, manifest, configuration, layer"
    return manifest, json.loads(blob(manifest["config"])), blob(layer)


def test_an_oci_image_holds_the_root(tmp_path: Path, raw: Path) -> None:
    root = tree(tmp_path / "root")
    manifest, config, layer = members(twice("oci", tmp_path, raw, root))
    assert manifest["layers"][0]["mediaType"].endswith(".tar+gzip")
    unpacked = gzip.decompress(layer)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    assert config["config"]["Labels"]["io.goldnode.kernel"] == RELEASE
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        names = {item.name: item for item in tar}
    assert set(names) == {str(path.relative_to(root)) for path in root.rglob("*")}
    assert (names["etc/shadow"].gid, names["etc/shadow"].mode) == (0, 0o640)


def test_a_containerdisk_holds_the_qcow2(tmp_path: Path) -> None:
    raw = gpt(tmp_path)
    manifest, config, layer = members(twice("containerdisk", tmp_path, raw, tmp_path))
    assert manifest["layers"][0]["mediaType"].endswith(".tar")
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        folder, disk = tar.getmembers()
        assert {(item.uid, item.gid) for item in (folder, disk)} == {(107, 107)}
        assert disk.name == "disk/cpu_only-0123456789ab.qcow2"
        tar.extract(disk, tmp_path, filter="data")
    command = ["qemu-img", "compare", str(raw), str(tmp_path / disk.name)]
    subprocess.run(command, check=True, capture_output=True)
    assert virtual_size(tmp_path / disk.name, "qcow2") == 33 << 20


def test_an_unknown_format_has_its_nearest_name(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(DiskError, match=r'no format "qcow".*Use "qcow2"'):
        write(raw, tmp_path, "qcow", tmp_path / "x")


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("qcow2", "qemu-img"),
        ("raw.zst", "zstd"),
        ("tar", "zstd"),
        ("tar", "tar"),
        ("vhd", "cp"),
        ("gce", "cp"),
        ("gce", "gzip"),
        ("squashfs", "mksquashfs"),
        ("oci", "tar"),
        ("containerdisk", "qemu-img"),
    ],
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
