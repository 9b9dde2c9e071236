"""When an initramfs need not be made again: what shapes it, case by case, on a node of a few files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.node.effective.test_initramfs import archive, member

from goldnode.node.ground.host import Host, Result
from goldnode.node.state import deferred, shaping
from goldnode.node.state import observe as owing

RELEASE = "6.1.0-902-amd64"
MODULES = f"lib/modules/{RELEASE}"
FAMILY = ["nvidia-*", "libnvidia-*"]
STATUS = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}\n"
FILES = {
    "usr/sbin/mkinitramfs": "",
    "usr/share/initramfs-tools/hook-functions": "",
    "usr/share/initramfs-tools/hooks/udev": "copy",
    "usr/bin/busybox": "1",
    "etc/fstab": "/dev/sda1 / ext4",
    "etc/goldnode/class.json": "{}",
    "etc/nvidia/current/modprobe.conf": "alias a nvidia",  # which is looked at for the link to it alone
    f"{MODULES}/kernel/drivers/nvme.ko.xz": "nvme",
    f"{MODULES}/updates/nvidia.ko": "535.1",
    f"{MODULES}/modules.dep": "kernel/drivers/nvme.ko.xz: kernel/core.ko\nkernel/core.ko:\nupdates/nvidia.ko:\n",
    f"{MODULES}/modules.softdep": "softdep nvidia pre: drm\n",
    "lib/firmware/nvme/a.bin": "1",
    "lib/firmware/nvidia/535.1/gsp.bin": "1",
    "var/lib/dpkg/status": STATUS.format("nvidia-smi", "535.1")
    + "\n"
    + STATUS.format("busybox", "1"),
}
IMAGE = archive(
    member("init", b"x"), member("etc/ld.so.cache", b"own"), member("usr/bin/busybox", b"1"), member(f"{MODULES}/kernel/drivers/nvme.ko", b"nvme"),
    member(f"{MODULES}/modules.dep", b"own"), member("lib/firmware/nvme/a.bin", b"1"),
)  # fmt: skip


class Node(Host):
    """A node with one kernel, whose update-initramfs changes nothing and whose NVMe driver asks for two files of firmware."""

    firmware = 0

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        reported = {"linux-version": f"{RELEASE}\n", "modinfo": "nvme/a.bin\nnvme/b.bin\n"}.get(
            argv[0], ""
        )
        return Result(argv, self.firmware if argv[0] == "modinfo" else 0, reported, "")

    def made(self) -> int:
        return sum("update-initramfs" in argv for argv in self.commands)


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name, text in FILES.items():
        put(tmp_path, name, text)
    (tmp_path / "etc/modprobe.d").mkdir()
    (tmp_path / "etc/modprobe.d/nvidia.conf").symlink_to("/etc/nvidia/current/modprobe.conf")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "boot").mkdir()
    (tmp_path / f"boot/initrd.img-{RELEASE}").write_bytes(IMAGE)
    return Node(str(tmp_path))


def owes(node: Node, arguments: str = "-u") -> list[str]:
    """What is said while that is settled, after a transaction that asked for it."""
    deferred.begin(node)
    node.write(owing.OWED, f"{arguments}\n".encode())
    reported: list[str] = []
    deferred.settle(node, reported.append, FAMILY)
    assert owing.owed(node) == []
    return reported


def changes(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: put(root, name, text)


def updated(root: Path) -> None:
    """All that an update of the driver moves."""
    put(root, f"{MODULES}/updates/nvidia.ko", "535.2")
    put(root, "lib/firmware/nvidia/535.2/gsp.bin", "2")
    put(root, "etc/nvidia/nvidia-535.2", "")
    put(root, "etc/apt/preferences.d/goldnode-stack", "535.2")
    put(root, "etc/goldnode/class.json", "{2}")
    put(root, "usr/bin/nvidia-smi", "535.2") if (root / "usr/bin/nvidia-smi").exists() else None
    put(root, f"{MODULES}/modules.symbols", "nvidia")
    put(root, "var/lib/dpkg/status", FILES["var/lib/dpkg/status"].replace("535.1", "535.2"))


def another(root: Path) -> None:
    (root / f"boot/initrd.img-{RELEASE}").write_bytes(
        archive(member("init", b"y"), member("usr/bin/busybox", b"1"))
    )


# What has happened since it was made, and which part of it that is; None: nothing that shapes it.
CASES: dict[str, tuple[Callable[[Path], None], str | None]] = {
    "nothing": (lambda root: None, None),
    "the driver was updated": (updated, None),
    "the linker's cache": (changes("etc/ld.so.cache", "x"), None),
    "a file unpacked anew as it was": (changes("usr/bin/busybox", "1"), None),
    "a modprobe file": (changes("etc/modprobe.d/x.conf", "options nvme x=1"), "configuration"),
    "what a modprobe file leads to": (changes("etc/nvidia/current/modprobe.conf", "alias b nvidia"), "configuration"),
    "a modprobe file of a package": (changes("usr/lib/modprobe.d/x.conf", "x"), "configuration"),
    "fstab": (changes("etc/fstab", "/dev/sdb1 / ext4"), "configuration"),
    "a hook of a package": (changes("usr/share/initramfs-tools/hooks/new", "copy"), "configuration"),
    "a hook of the administrator": (changes("etc/initramfs-tools/hooks/new", "copy"), "configuration"),
    "a program in it": (changes("usr/bin/busybox", "2"), "contents"),
    "a module in it": (changes(f"{MODULES}/kernel/drivers/nvme.ko.xz", "other"), "contents"),
    "firmware in it": (changes("lib/firmware/nvme/a.bin", "2"), "contents"),
    "firmware it could not have": (changes("lib/firmware/nvme/b.bin", "1"), "firmware"),
    "another module in place of one": (
        changes(f"{MODULES}/modules.dep", FILES[f"{MODULES}/modules.dep"].replace("kernel/drivers/nvme.ko.xz", "updates/nvme.ko")), "modules",
    ),
    "another module of the kernel": (changes(f"{MODULES}/modules.dep", FILES[f"{MODULES}/modules.dep"] + "kernel/new.ko:\n"), "modules"),
    "one that a module in it wants": (changes(f"{MODULES}/modules.softdep", "softdep nvme pre: drm\n"), "modules"),
    "a program it could have": (changes("usr/bin/cryptsetup", "x"), "names"),
    "a rule of udev": (changes("usr/lib/udev/rules.d/60-x.rules", "x"), "names"),
    "a package not of the driver": (changes("var/lib/dpkg/status", FILES["var/lib/dpkg/status"].replace("Version: 1\n", "Version: 2\n")), "packages"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_initramfs_is_rebuilt_only_when_one_of_its_inputs_changed(node: Node, case: str) -> None:
    change, part = CASES[case]
    assert owes(node) == ["update-initramfs -u"], "without a record it is made"
    assert node.made() == 1
    change(Path(node.root))
    reported = owes(node)
    if part is None:
        assert node.made() == 1
        assert reported == [
            f"the initramfs of {RELEASE} stays: all that shapes it is as it was when it was made"
        ]
    else:
        assert node.made() == 2
        assert reported == [f"update-initramfs -u (changed since: {part})"]
        assert owes(node)[0].startswith("the initramfs"), "and what it is made from now is recorded"


DOUBTS: dict[str, Callable[[Node], None]] = {
    "another image": lambda node: another(Path(node.root)),
    "a torn record": lambda node: node.write(shaping.FILE, b"{"),
    "an image that cannot be read": lambda node: put(
        Path(node.root), f"boot/initrd.img-{RELEASE}", "x" * 600
    ),
    "no initramfs-tools": lambda node: node.remove(shaping.MAKER),
    "modinfo fails": lambda node: setattr(node, "firmware", 1),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_in_doubt_it_is_made(node: Node, doubt: str) -> None:
    owes(node)
    DOUBTS[doubt](node)
    assert owes(node) == ["update-initramfs -u"]
    assert node.made() == 2


@pytest.mark.parametrize(
    ("arguments", "stays"),
    [
        ("-u", True),
        ("-u -k all", True),
        (f"-u -k {RELEASE}", True),
        ("-u -k 6.9", False),
        ("-u -v", False),
    ],
)
def test_a_call_that_is_not_understood_is_done(node: Node, arguments: str, stays: bool) -> None:
    owes(node)
    assert owes(node, arguments)[0].startswith(
        "the initramfs" if stays else f"update-initramfs {arguments}"
    )


def test_an_image_that_was_copied_is_the_one_that_was_made(node: Node, tmp_path: Path) -> None:
    """A disk is filled from a tree, and written again to another slot: the same content has other dates and inodes there."""
    owes(node)
    record = (tmp_path / shaping.FILE.lstrip("/")).read_bytes()
    image = tmp_path / f"boot/initrd.img-{RELEASE}"
    image.rename(image.with_suffix(".old"))
    image.write_bytes(IMAGE)
    os.utime(image, (1, 1))
    assert owes(node)[0].startswith("the initramfs")
    (tmp_path / shaping.FILE.lstrip("/")).unlink()
    owes(node)
    assert (tmp_path / shaping.FILE.lstrip("/")).read_bytes() == record, (
        "and a second build has the same record"
    )


def test_initramfs_is_still_owed_when_its_input_changes_meanwhile(node: Node) -> None:
    run = node.run

    def changing(*argv: str, **more: object) -> Result:
        if "update-initramfs" in argv:
            put(Path(node.root), "etc/crypttab", os.urandom(8).hex())
        return run(*argv, **more)  # type: ignore[arg-type]

    node.run = changing  # type: ignore[method-assign]
    owes(node)
    assert owes(node) == ["update-initramfs -u"]


def test_the_record_of_a_kernel_that_has_left_goes(node: Node) -> None:
    owes(node)
    (Path(node.root) / f"boot/initrd.img-{RELEASE}").rename(Path(node.root) / "boot/initrd.img-6.9")
    shaping.keep(node, [], FAMILY, None)
    assert node.text(shaping.FILE) == "{}\n"
