"""The recovery entry and the firmware's boot options, on a directory that plays a node."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.slots.test_slots import ENTRIES, OLD, Node, hold, listing, node, reported

from goldnode.node.effective import loader
from goldnode.node.ground import boot
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Result
from goldnode.node.slots import again, recovery
from goldnode.node.slots.identity import GLOBAL, Variables
from goldnode.node.state import bootdisk, slots

__all__ = ["node"]  # the fixture

ADDRESSES: list[dict[str, Any]] = [
    {"ifname": "lo", "address": "00:00:00:00:00:00", "addr_info": [{"family": "inet", "scope": "host", "local": "127.0.0.1"}]},
    {
        "ifname": "eth0",
        "address": "52:54:00:12:34:56",
        "addr_info": [
            {"family": "inet", "scope": "global", "local": "10.0.2.15", "prefixlen": 24, "dynamic": True},
            {"family": "inet6", "scope": "global", "local": "fec0::1", "prefixlen": 64, "dynamic": True},
            {"family": "inet6", "scope": "global", "local": "2001:db8::7", "prefixlen": 64},
            {"family": "inet6", "scope": "link", "local": "fe80::1", "prefixlen": 64},
        ],
    },
    {"ifname": "bond0", "address": "52:54:00:00:00:01", "addr_info": [{"family": "inet", "scope": "global", "local": "10.9.9.9", "prefixlen": 24}]},
]  # fmt: skip
ROUTES = [
    {"dst": "default", "gateway": "10.0.2.2", "dev": "eth0"},
    {"dst": "default", "gateway": "10.9.9.1", "dev": "bond0"},
]


class Recoverable(Node):
    """A node with the programs that a recovery takes along."""

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        out = ""
        if argv[0] == "ldd":
            out = "\tlibc.so.6 => /lib/x86/libc.so.6 (0x0)\n\t/lib64/ld-linux-x86-64.so.2 (0x0)\n"
        elif argv[:3] == ("ip", "-j", "addr"):
            out = json.dumps(ADDRESSES)
        elif argv[:3] == ("ip", "-j", "route"):
            out = json.dumps(ROUTES)
        elif argv[0] == "sshd":
            out = "port 22\nport 2222\nusepam yes\n"
        return Result(argv, 0, out, "")


@pytest.fixture
def machine(node: Node) -> Recoverable:
    root = Path(node.root)
    for name in ("usr/sbin/sshd", "usr/bin/bash", "usr/sbin/e2fsck", "usr/lib/x86/libc.so.6.1"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name in ("lib", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("ip", "insmod"):
        (root / f"sbin/{name}").write_text(name)
    (root / "usr/lib/x86/libc.so.6").symlink_to("libc.so.6.1")
    modules = root / f"lib/modules/{OLD}"
    for name in ("kernel/net.ko", "kernel/virtio-net.ko", "kernel/fat.ko", "kernel/vfat.ko"):
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text(name)
    (modules / "modules.dep").write_text(
        "kernel/net.ko:\nkernel/virtio-net.ko: kernel/net.ko\nkernel/fat.ko:\nkernel/vfat.ko: kernel/fat.ko\n"
    )
    (root / "sys/bus/virtio/drivers/virtio_net").mkdir(parents=True)
    (root / "sys/module/virtio_net").mkdir(parents=True)
    (root / "sys/bus/virtio/drivers/virtio_net/module").symlink_to(root / "sys/module/virtio_net")
    (root / "sys/class/net/eth0/device").mkdir(parents=True)
    (root / "sys/class/net/eth0/device/driver").symlink_to(
        root / "sys/bus/virtio/drivers/virtio_net"
    )
    (root / "sys/class/net/bond0").mkdir(parents=True)
    (root / "etc/ssh").mkdir(parents=True)
    (root / "etc/ssh/ssh_host_ed25519_key").write_text("host key")
    (root / "root/.ssh").mkdir(parents=True)
    (root / "root/.ssh/authorized_keys").write_text("# of the site\nssh-ed25519 AAAA one\n")
    return Recoverable(root)


def unpacked(image: bytes, to: Path) -> Path:
    to.mkdir()
    subprocess.run(["cpio", "-id", "--quiet"], cwd=to, input=image, check=True)
    return to


@pytest.mark.skipif(
    not shutil.which("cpio"), reason="cpio reads what was packed; Debian's package cpio"
)
def test_recovery_holds_what_is_the_nodes_own(machine: Recoverable, tmp_path: Path) -> None:
    about: dict[str, object] = {}
    files = recovery.contents(machine, OLD, about)
    image = recovery.cpio(files)
    assert image == recovery.cpio(dict(reversed(files.items())))
    there = unpacked(image, tmp_path / "there")
    assert (there / "usr/lib/x86/libc.so.6").read_text() == "usr/lib/x86/libc.so.6.1"
    assert not (
        there / "lib"
    ).exists()  # the initramfs before it has a link there, which a directory would replace
    assert not (there / "sbin").exists()
    assert (there / "usr/sbin/sshd").stat().st_mode & 0o777 == 0o755
    assert (there / "goldnode/ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    assert (there / "goldnode/authorized_keys").read_text() == "ssh-ed25519 AAAA one\n"
    assert (there / "goldnode/network").read_text().splitlines() == [
        "link 52:54:00:12:34:56 dhcp",
        "address 52:54:00:12:34:56 10.0.2.15/24",
        "address6 52:54:00:12:34:56 2001:db8::7/64",
        "default 52:54:00:12:34:56 10.0.2.2",
    ]
    assert sorted(path.name for path in (there / "goldnode/modules").iterdir()) == [
        "000-net.ko",
        "001-virtio-net.ko",
        "002-fat.ko",
        "003-vfat.ko",
    ]
    text = (there / "goldnode/sshd_config").read_text()
    assert "Port 22\nPort 2222\nHostKey /goldnode/ssh_host_ed25519_key\n" in text
    assert "PasswordAuthentication no" in text
    assert about == {"addresses": ["eth0 10.0.2.15/24", "eth0 2001:db8::7/64"], "keys": 1}
    for script in ("init", "usr/sbin/goldnode-retry"):
        subprocess.run(["dash", "-n", there / script], check=True)


def test_slot_that_is_tried_again_has_an_entry_at_every_step(tmp_path: Path) -> None:
    """The script of the recovery, on a directory: mounts are not made, and each program shows what is there."""
    entries, programs = tmp_path / "esp/loader/entries", tmp_path / "bin"
    entries.mkdir(parents=True)
    programs.mkdir()
    (entries / "goldnode-aaa-a+0-3.conf").write_text("linux /goldnode/a/vmlinuz\n")
    (entries / "goldnode-bbb-b+0-3.conf").write_text("linux /goldnode/b/vmlinuz\n")
    for name in ("mount", "umount", "sleep", "cp", "mv", "rm", "sync"):
        real = f'/bin/{name} "$@"' if name in ("cp", "mv", "rm") else ":"
        text = f"#!/bin/sh\n{real}\necho {name} $(ls {entries}) >>{tmp_path}/steps\n"
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = recovery.RETRY.replace("/run/esp", f"{tmp_path}/device")
    script = script.replace(" /esp", f" {tmp_path}/esp").replace("/proc/sysrq", f"{tmp_path}/sysrq")
    (tmp_path / "device").write_text("/dev/vda1\n")
    path = f"{programs}:/usr/bin:/bin"
    done = subprocess.run(
        ["dash", "-c", script, "retry", "a"], env={"PATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "sysrq-trigger").read_text() == "b\n"
    names = {entry.name: entry.read_text() for entry in entries.iterdir()}
    assert names == {
        "goldnode-aaa-a+3.conf": "linux /goldnode/a/vmlinuz\n",
        "goldnode-bbb-b+0-3.conf": "linux /goldnode/b/vmlinuz\n",
    }
    steps = [row.split() for row in (tmp_path / "steps").read_text().splitlines()]
    assert all("goldnode-aaa-a+0-3.conf" in row or "goldnode-aaa-a+3.conf" in row for row in steps)
    before = next(row for row in steps if row[0] == "rm")
    flushed = steps[steps.index(before) - 1]
    assert flushed[0] == "sync"
    assert {"goldnode-aaa-a+0-3.conf", "goldnode-aaa-a+3.conf"} <= set(flushed)


def test_without_an_address_the_recovery_asks_for_one(
    machine: Recoverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADDRESSES[1], "addr_info", [])
    about: dict[str, object] = {}
    files = recovery.contents(machine, OLD, about)
    assert files["goldnode/network"][1] == b"link 52:54:00:12:34:56 dhcp\n"
    assert "goldnode/modules/001-virtio-net.ko" in files
    assert "addresses of DHCP" in recovery.summary(about)


def test_recovery_comes_after_slots_with_tries_and_before_the_others(machine: Recoverable) -> None:
    assert recovery.write(machine) == (
        f"recovery: kernel {OLD}, as cpu-aaa; ssh for 1 keys at eth0 10.0.2.15/24, eth0 2001:db8::7/64"
    )
    assert recovery.write(machine) is None
    root = Path(machine.root)
    text = (root / ENTRIES / recovery.ENTRY).read_text()
    assert text.count("initrd /goldnode/recovery/") == 2
    assert "root=" not in text
    hold(root, "b", 2, "goldnode-bbb-b+0-3.conf")
    order = [entry.file for entry in loader.ordered(loader.entries(machine, "/efi"))]
    assert order == ["goldnode-aaa-a.conf", recovery.ENTRY, "goldnode-bbb-b+0-3.conf"]
    (root / ENTRIES / "goldnode-aaa-a.conf").rename(root / ENTRIES / "goldnode-aaa-a+0-3.conf")
    found = reported(machine)
    assert found["next"] is None
    assert recovery.ENTRY in found["why"]


@pytest.mark.parametrize("what", ["keys", "kernel", "entry", "file"])
def test_recovery_is_written_again_where_something_differs(machine: Recoverable, what: str) -> None:
    recovery.write(machine)
    root = Path(machine.root)
    folder = root / "efi/goldnode/recovery"
    before = set(folder.iterdir())
    if what == "keys":
        (root / "etc/goldnode/recovery-keys").write_text("ssh-ed25519 BBBB two\n")
    elif what == "kernel":
        (root / "efi/goldnode/a/vmlinuz").write_bytes(b"another")
    elif what == "entry":
        (root / ENTRIES / recovery.ENTRY).unlink()
    else:
        next(folder.glob("node.img-*")).write_bytes(b"")
    assert recovery.write(machine)
    assert recovery.write(machine) is None
    after = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert after == {"vmlinuz", "initrd.img", "node.img", "slot.json"}
    packed = next(folder.glob("node.img-*")).read_bytes()
    assert gzip.decompress(packed).startswith(b"070701")
    assert (set(folder.iterdir()) == before) == (what == "entry")


def test_nothing_is_packed_in_a_boot_that_changes_nothing(
    machine: Recoverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery.write(machine)
    monkeypatch.setattr(gzip, "compress", lambda *_, **__: pytest.fail("it packs"))
    assert recovery.write(machine) is None


def test_a_small_esp_stays_free_for_updates(
    machine: Recoverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "statvfs", lambda path: type("", (), {"f_bavail": 2048, "f_frsize": 512})()
    )
    with pytest.raises(NodeError, match="no recovery is written: the ESP at /efi has 1 MiB free"):
        recovery.write(machine)
    assert listing(machine) == {"goldnode-aaa-a.conf"}


def test_without_a_key_no_login_is_possible_which_is_reported(machine: Recoverable) -> None:
    (Path(machine.root) / "root/.ssh/authorized_keys").unlink()
    assert "no key may log in: put one into" in str(recovery.write(machine))
    assert "no key may log in" in recovery.shown(machine, "/efi")


def test_without_sshd_there_is_no_recovery(machine: Recoverable) -> None:
    (Path(machine.root) / "usr/sbin/sshd").unlink()
    remedy = "a recovery needs sshd, which this node lacks: install openssh-server, then run `goldnode-node slot recovery`"
    with pytest.raises(NodeError, match=re.escape(remedy)):
        recovery.write(machine)
    assert recovery.shown(machine, "/efi") == f"no recovery: {remedy}"
    assert listing(machine) == {"goldnode-aaa-a.conf"}


GUID = "11111111-2222-4333-8444-555555555555"


def firmware(machine: Node, monkeypatch: pytest.MonkeyPatch, version: str) -> Variables:
    """Firmware that booted option 0003 of 0001 and 0003, with a loader of this version."""
    root = Path(machine.root)
    folder = root / boot.VARIABLES.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("LoaderInfo", f"systemd-boot {version}"),
        ("LoaderDevicePartUUID", GUID.upper()),
        ("LoaderImageIdentifier", "\\EFI\\BOOT\\BOOTX64.EFI"),
    ):
        (folder / f"{name}-{boot.VENDOR}").write_bytes(
            b"\6\0\0\0" + f"{text}\0".encode("utf-16-le")
        )
    (folder / f"BootCurrent-{GLOBAL}").write_bytes(b"\6\0\0\0\3\0")
    found = Variables(str(folder))
    for number in (1, 3):
        found.put(found.name(number), b"\1\0\0\0" + bytes([number]) * 20)
    found.put_order([3, 1])
    partition = bootdisk.Partition("vda1", "vda", "254:1", GUID, "esp")
    monkeypatch.setattr(bootdisk, "partitions", lambda host: [partition])
    own = root / "sys/class/block/vda/vda1"
    own.mkdir(parents=True)
    for key, value in (("partition", "1"), ("start", "2048"), ("size", "196608")):
        (own / key).write_text(f"{value}\n")
    (own.parent / "queue").mkdir()
    (own.parent / "queue/logical_block_size").write_text("4096\n")
    (root / "sys/class/block/vda1").symlink_to("vda/vda1")
    return found


def test_firmware_starts_the_loader_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = firmware(node, monkeypatch, "252.39-1~deb12u2")
    assert again.write(node) == "the firmware starts the loader up to 7 times in turn"
    order = variables.order()
    assert (order[0], order[-1], len(order)) == (3, 1, 2 + again.COUNT)
    option = variables.read(variables.name(order[1]))
    assert bootdisk.hard_drive(option) == GUID
    node_at = option.index(b"\4\1\x2a\0")
    assert struct.unpack_from("<IQQ16s", option, node_at + 4) == (
        1,
        256,
        24576,
        uuid.UUID(GUID).bytes_le,
    )
    assert "\\EFI\\BOOT\\BOOTX64.EFI\0".encode("utf-16-le") in option
    assert again.write(node) is None


SHIPPED = "5e1f7a3c-0b52-5d6e-9c41-6b1d5f0e8a27"


@pytest.mark.parametrize(
    ("binding", "known"),
    [
        (f"disk=vda\nguid={SHIPPED}\nby=loader\n", True),
        (f"disk=vdb\nguid={SHIPPED}\nby=loader\n", False),
        (f"disk=vda\nguid={SHIPPED}\nby=chance\n", False),
        ("", False),
    ],
)
def test_first_boot_has_the_options_of_the_identity_that_it_gave(
    node: Node, monkeypatch: pytest.MonkeyPatch, binding: str, known: bool
) -> None:
    """The loader has reported the GUID that the disk had, and the option that booted was replaced."""
    variables = firmware(node, monkeypatch, "252.39-1~deb12u2")
    reported = b"\6\0\0\0" + f"{SHIPPED}\0".encode("utf-16-le")
    folder = Path(variables.folder)
    (folder / f"LoaderDevicePartUUID-{boot.VENDOR}").write_bytes(reported)
    record = Path(node.root) / bootdisk.BINDING.lstrip("/")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(binding)
    (folder / f"BootOrder-{GLOBAL}").unlink()
    path = again.hard_drive(node, GUID)
    assert path is not None
    variables.put(
        variables.name(8), again.load_option("goldnode", path, "\\EFI\\BOOT\\BOOTX64.EFI")
    )
    variables.put_order([8, 1])
    assert (again.write(node) is not None) is known
    order = variables.order()
    assert (order[0], order[-1], len(order)) == (8, 1, 2 + (again.COUNT if known else 0))


def test_options_of_another_disk_are_replaced_and_a_run_can_be_repeated(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = firmware(node, monkeypatch, "257.13-1~deb13u1")
    again.write(node)
    order = variables.order()
    old = variables.read(variables.name(order[1]))
    variables.put(variables.name(order[1]), old.replace(uuid.UUID(GUID).bytes_le, bytes(16)))
    # A run that ended before the order. efivarfs replaces a variable; a file has to go first.
    (Path(variables.folder) / f"BootOrder-{GLOBAL}").unlink()
    variables.put_order([number for number in order if number != order[2]])
    again.write(node)
    after = variables.order()
    assert len(after) == 2 + again.COUNT
    assert order[1] not in after
    assert order[2] in after
    assert (after[0], after[-1]) == (3, 1)


@pytest.mark.parametrize("version", ["262-1", "263"])
def test_a_loader_that_restarts_needs_no_options(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    variables = firmware(node, monkeypatch, version)
    assert again.write(node) is None
    assert variables.order() == [3, 1]
    assert slots.survey(node) is not None
