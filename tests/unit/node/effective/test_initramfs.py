"""Reading initramfs images: made here for every compression and defect. The comparison with lsinitramfs is in tests/e2e."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import subprocess
from pathlib import Path

import pytest
from tests.unit.node.state.test_cases import document

from goldnode.node.effective import initramfs
from goldnode.node.ground.host import Host
from goldnode.node.state import observe
from goldnode.node.state.domains.driver import initramfs_faults, module_files

# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = ("lz4", "lzop", "zstd")

CONF = b"blacklist nouveau\n"


def member(
    name: str,
    data: bytes = b"",
    mode: int = 0o100644,
    inode: int = 0,
    links: int = 1,
    magic: bytes = b"070701",
) -> bytes:
    raw = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = magic + b"".join(b"%08X" % field for field in fields) + raw
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def archive(*members: bytes) -> bytes:
    whole = b"".join(members) + member("TRAILER!!!")
    return whole + b"\0" * (-len(whole) % 512)


EARLY = archive(
    member("kernel", mode=stat.S_IFDIR | 0o755),
    member("kernel/x86/microcode/AuthenticAMD.bin", b"\x01" * 5001),
)
MAIN = archive(
    member(".", mode=stat.S_IFDIR | 0o755),
    member("lib", b"usr/lib", mode=stat.S_IFLNK | 0o777),
    member("./etc/modprobe.d/goldnode-blacklist.conf", CONF),
    member("/init", b"#!/bin/sh\n"),
    member("usr/lib/modules/6.1/nouveau.ko", b"\x7fELF" * 9999),
)
MAIN_NAMES = [
    ".",
    "lib",
    "etc/modprobe.d/goldnode-blacklist.conf",
    "init",
    "usr/lib/modules/6.1/nouveau.ko",
]
EARLY_NAMES = ["kernel", "kernel/x86/microcode/AuthenticAMD.bin"]


def tool(*command: str) -> bytes:
    return subprocess.run(command, input=MAIN, capture_output=True, check=True).stdout


PACKED = {
    "none": lambda: MAIN,
    "gzip": lambda: gzip.compress(MAIN),
    "xz": lambda: lzma.compress(MAIN, check=lzma.CHECK_CRC32),
    "lzma": lambda: lzma.compress(MAIN, format=lzma.FORMAT_ALONE),
    "bzip2": lambda: bz2.compress(MAIN),
    "zstd": lambda: tool("zstd", "-q", "-c"),
    "lz4, as the kernel wants it": lambda: tool("lz4", "-l", "-q", "-c"),
    "lz4": lambda: tool("lz4", "-q", "-c"),
    "lzo": lambda: tool("lzop", "-c"),
}


def write(tmp_path: Path, content: bytes) -> str:
    image = tmp_path / "initrd.img"
    image.write_bytes(content)
    return str(image)


def wanted(name: str) -> bool:
    return name.startswith("etc/modprobe.d/")


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize(
    ("early", "names"),
    [(b"", []), (EARLY, EARLY_NAMES), (EARLY * 2 + b"\0" * 1536, EARLY_NAMES * 2)],
    ids=["alone", "behind microcode", "behind two archives and padding"],
)
def test_initramfs_lists_all_names_and_returns_wanted_files(
    tmp_path: Path, packing: str, early: bytes, names: list[str]
) -> None:
    listing = initramfs.contents(write(tmp_path, early + PACKED[packing]()), wanted)
    assert listing.names == names + MAIN_NAMES
    assert listing.files == {"etc/modprobe.d/goldnode-blacklist.conf": CONF}


def test_keeps_nothing_unless_asked(tmp_path: Path) -> None:
    assert initramfs.contents(write(tmp_path, MAIN)).files == {}


def test_a_link_is_not_a_file(tmp_path: Path) -> None:
    assert list(initramfs.contents(write(tmp_path, MAIN), lambda name: True).files) == [
        "etc/modprobe.d/goldnode-blacklist.conf",
        "init",
        "usr/lib/modules/6.1/nouveau.ko",
    ]


def test_files_linked_to_each_other_have_one_content(tmp_path: Path) -> None:
    image = archive(
        member("a", inode=7, links=2),
        member("x", b"other", inode=8),
        member("b", b"data", inode=7, links=2),
    )
    assert initramfs.contents(write(tmp_path, image), lambda name: name in "ab").files == {
        "a": b"data",
        "b": b"data",
    }


def test_checksummed_headers_and_a_second_archive_in_the_stream(tmp_path: Path) -> None:
    stream = archive(member("a", magic=b"070702")) + archive(member("b"))
    assert initramfs.contents(write(tmp_path, gzip.compress(stream))).names == ["a", "b"]


def cut(packing: str) -> bytes:
    whole = PACKED[packing]()
    return whole[: len(whole) // 2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: b"", "holds nothing"),
        (lambda: b"\0" * 4096, "holds nothing"),
        (lambda: b"hello, this is no image", "neither a cpio archive nor a known compression"),
        (lambda: EARLY + b"\x12\x34\x56\x78", "bytes 12 34 56 78 at"),
        (lambda: EARLY[:3000], "ends in the middle of an archive"),
        (lambda: MAIN[:60], "ends in the middle of an archive"),
        (lambda: cut("gzip"), "gzip data is broken or truncated"),
        (lambda: cut("xz"), "xz data is broken or truncated|ends in the middle"),
        (lambda: cut("bzip2"), "bzip2 data is broken or truncated"),
        (lambda: cut("zstd"), "zstd cannot unpack it"),
        (lambda: cut("lz4"), "lz4 cannot unpack it"),
        (lambda: cut("lzo"), "lzop cannot unpack it"),
        (lambda: tool("zstd", "-q", "-c") + b"junk", "zstd cannot unpack it"),
        (lambda: gzip.compress(MAIN[:700]), "ends in the middle of an archive"),
        (lambda: gzip.compress(MAIN + b"junk behind the last archive" * 9), "no cpio header"),
        (lambda: archive(member("a"), b"\x01" * 200), "no cpio header at byte"),
        (lambda: archive(member("n" * 5000)), "a name of 5001 bytes"),
    ],
)
def test_defective_initramfs_is_an_error_with_its_path(
    tmp_path: Path, content: object, words: str
) -> None:
    assert callable(content)
    path = write(tmp_path, content())
    with pytest.raises(initramfs.InitramfsError, match=words) as caught:
        initramfs.contents(path, wanted)
    assert str(caught.value).startswith(path + ": ")


def test_a_wanted_file_must_be_small(tmp_path: Path) -> None:
    image = archive(member("etc/modprobe.d/big.conf", b"#" * (initramfs.WANTED_LIMIT + 1)))
    with pytest.raises(initramfs.InitramfsError, match=r"big\.conf has 1048577 bytes"):
        initramfs.contents(write(tmp_path, image), wanted)
    assert initramfs.contents(write(tmp_path, image)).names == ["etc/modprobe.d/big.conf"]


@pytest.mark.parametrize(
    ("packing", "program"), [("zstd", "zstd"), ("lz4", "lz4"), ("lzo", "lzop")]
)
def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, program: str
) -> None:
    path = write(tmp_path, PACKED[packing]())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        initramfs.InitramfsError,
        match=f"compressed with {program}, which is not installed. Install the package",
    ):
        initramfs.contents(path)


def test_missing_initramfs_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        initramfs.contents(str(tmp_path / "none"))


def children() -> set[str]:
    """Children of this process, ended ones that nobody has waited for among them. Other tests of the process may have left some."""
    return {
        pid
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text(encoding="ascii").split()
    }


def test_leaves_no_child_behind(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(initramfs.InitramfsError):
        initramfs.contents(write(tmp_path, tool("zstd", "-q", "-c")[:-9]), wanted)
    assert children() <= before


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("usr/lib/modules/6.1/kernel/drivers/gpu/drm/nouveau/nouveau.ko", True),
        ("usr/lib/modules/6.1/kernel/nouveau.ko.xz", True),
        ("lib/modules/6.1/nouveau.ko.zst", True),
        ("nouveau.ko.gz", True),
        ("usr/lib/modules/6.1/nova-core.ko", True),
        ("usr/lib/modules/6.1/nova_core.ko.xz", True),
        ("usr/lib/modules/6.1/nova_drm.ko", True),
        ("usr/lib/modules/6.1/nouveau.ko.sig", False),
        ("usr/lib/modules/6.1/xnouveau.ko", False),
        ("usr/lib/modules/6.1/nouveau", False),
        ("usr/lib/modules/6.1/nouveau.ko/file", False),
        ("usr/lib/firmware/nouveau", False),
    ],
)
def test_modules_are_found_in_paths_of_modules_only(path: str, found: bool) -> None:
    assert initramfs.modules_named([path], ["nouveau", "nova_core", "nova-drm"]) == (
        [path] if found else []
    )


def test_broken_deflate_is_reported(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(MAIN))
    packed[10] |= 0b110  # a block of the type that does not exist
    with pytest.raises(initramfs.InitramfsError, match="the gzip data is broken"):
        initramfs.contents(write(tmp_path, bytes(packed)))


@pytest.mark.parametrize(
    "name",
    ["6.1.0-1-amd64.bak", "6.1.0-1-amd64.new", "6.1.0-1-amd64.dpkg-bak", "of-a-purged-kernel"],
)
def test_an_image_without_modules_is_never_the_next_boot(tmp_path: Path, name: str) -> None:
    """To rebuild a copy that somebody keeps would make it one without modules."""
    host = Host(str(tmp_path))
    (tmp_path / "lib/modules/6.1.0-1-amd64").mkdir(parents=True)
    for release in ("6.1.0-1-amd64", name):
        host.write(f"/boot/initrd.img-{release}", MAIN)
    assert set(observe.initramfs_contents(host, document())) == {"6.1.0-1-amd64"}


E, MODULES = "etc/modprobe.d/", "usr/lib/modules/6.1.0-1-amd64/kernel/drivers/"
VFIO, DRIVER = MODULES + "vfio/pci/vfio-pci.ko.zst", MODULES + "nvidia-current.ko"
TAKES = b"options vfio-pci ids=10de:20b0\n"
# What an initramfs holds, and the line of it that contradicts the class (None: none does).
INSIDE: dict[str, tuple[dict[str, bytes], str | None]] = {
    "vfio-pci and a line that was removed from the root": ({VFIO: b"", E + "vfio.conf": TAKES}, f"/{E}vfio.conf:1"),
    "the line alone: vfio-pci is not loaded there": ({E + "vfio.conf": TAKES}, None),
    "vfio-pci for another card": ({VFIO: b"", E + "vfio.conf": b"options vfio-pci ids=10de:1f08\n"}, None),
    "a line that a file of its name hides": ({VFIO: b"", E + "vfio.conf": b"", "usr/lib/modprobe.d/vfio.conf": TAKES}, None),
    "an alias of the device": ({VFIO: b"", "lib/modprobe.d/a.conf": b"alias pci:v000010DEd000020B0sv*sd*bc*sc*i* vfio-pci\n"}, "/lib/modprobe.d/a.conf:1"),
    "the driver with another option": ({DRIVER: b"", E + "nvidia.conf": b"options nvidia NVreg_A=0\n"}, f"/{E}nvidia.conf:1"),
    "the driver with an option that the class does not declare": ({DRIVER: b"", E + "nvidia.conf": b"options nvidia NVreg_B=0\n"}, None),
    "options without the driver": ({E + "nvidia.conf": b"options nvidia NVreg_A=0\n"}, None),
    "a blacklist: udev loads the driver from the root": ({DRIVER: b"", E + "b.conf": b"blacklist nvidia\ninstall nvidia-current /bin/false\n"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_lines_inside_count_for_the_drivers_inside(tmp_path: Path, name: str) -> None:
    files, where = INSIDE[name]
    wanted = document()
    wanted["driver"]["options"] = {"NVreg_A": 1}
    own = {file.path: file.content.encode() for file in module_files(wanted, "gpu_driver")}
    members = {**{path[1:]: data for path, data in own.items()}, **files}
    host = Host(str(tmp_path))
    (tmp_path / "lib/modules/6.1.0-1-amd64").mkdir(parents=True)
    image = archive(*(member(path, data) for path, data in members.items()))
    host.write("/boot/initrd.img-6.1.0-1-amd64", image)
    found = observe.initramfs_contents(host, wanted)["6.1.0-1-amd64"]
    faults = initramfs_faults(wanted, found)
    assert [text.split()[2] for text in faults] == ([where] if where else [])
