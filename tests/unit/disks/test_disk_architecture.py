"""Disks of another architecture than this machine's or than amd64: tools that are missing, and commands that refuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.disks.disk_samples import make_build

from goldnode.core.errors import DiskError
from goldnode.disks import installer, rootfs, secureboot, sysupdate
from goldnode.disks.installer import InstallerKeys
from goldnode.disks.model import BuiltDisk
from goldnode.oci import emulation, engines


def test_build_without_the_emulator_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulation, "runnable", lambda _: False)
    monkeypatch.setattr(engines, "tools", lambda _: {})
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(
        DiskError,
        match=r"cannot run programs of arm64: qemu-aarch64-static is not on it\. .*apt-get install qemu-user-static",
    ):
        rootfs.tools("arm64")


def test_emulator_determines_a_root_only_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(emulation, "runnable", lambda _: True)
    programs = ("mmdebstrap", "apt", "dpkg", "emulator-arm64")
    monkeypatch.setattr(engines, "tools", lambda _: dict.fromkeys(programs, "1"))
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert "emulator-arm64" in rootfs.tools("arm64")
    assert "emulator-arm64" not in rootfs.tools("amd64")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            lambda disk, out: installer.write(disk, out, {}, InstallerKeys(b"", b"", b"")),
            "the installer of a network is for amd64 only",
        ),
        (lambda disk, _: secureboot.boot_files(disk), "signing for Secure Boot is for amd64 only"),
        (
            lambda disk, out: sysupdate.derive(disk, "cpu_1", "1", out),
            "files of systemd-sysupdate are for amd64 only",
        ),
    ],
)
def test_command_for_amd64_refuses_a_disk_for_arm64(
    tmp_path: Path, command: Callable[[BuiltDisk, Path], object], reason: str
) -> None:
    disk = make_build(tmp_path, "a", driver=None)
    disk = replace(disk, os=replace(disk.os, architecture="arm64"))
    with pytest.raises(DiskError, match=f"image {disk.name} is for arm64, and {reason}"):
        command(disk, tmp_path)
