"""A disk with GRUB and one root: the engine knows what boots next from the first boot on, and update-grub changes nothing about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.disks.conftest import CLASS, Site

from goldnode.disks.model import find
from goldnode.disks.qemu import VirtualMachine, VmOptions, make_key, overlay

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

NODE = "/usr/lib/goldnode/goldnode-node"
WORDS = {"console=tty0", "console=ttyS0,115200n8"}


def test_next_boot_is_known_before_and_after_update_grub(site: Site, tmp_path: Path) -> None:
    definition, locks = tmp_path / "disks.yml", tmp_path / "locks"
    text = (site.home / "disks.yml").read_text()
    for shipped, wanted in (
        ("loader: systemd-boot", "loader: grub"),
        ("layout: ab", "layout: single"),
    ):
        assert text.count(shipped) == 1
        text = text.replace(shipped, wanted)
    definition.write_text(text)
    locks.mkdir()
    chosen = {"GOLDNODE_DISK_DEFINITION": str(definition), "GOLDNODE_DISK_LOCKS": str(locks)}
    for arguments in (("disks", "lock", CLASS), ("disks", "build", CLASS, "--image-format", "raw")):
        done = site.run(*arguments, **chosen)
        assert done.returncode == 0, done.stderr
    disk = find(done.stdout.split()[0], site.store)

    key = make_key(tmp_path)
    credentials = {"ssh.authorized_keys.root": key.with_suffix(".pub").read_text()}
    place = overlay(disk.path("raw"), tmp_path / "disk.qcow2", size=disk.raw.size)
    with VirtualMachine(
        place,
        tmp_path / "machine",
        VmOptions(snapshot=False, form="qcow2", key=key, credentials=credentials),
    ) as machine:

        def reported(*command: str) -> str:
            found = machine.ssh(list(command), limit=900)
            assert found.rc == 0, (command, found)
            return found.out

        def comes_up(other_than: str | None = None) -> str:
            boot = machine.wait_ssh(900, other_than=other_than)
            assert reported("systemctl", "is-system-running", "--wait").strip() == "running"
            return boot

        def known() -> None:
            """The engine sees what boots next, judges it right, and has nothing to change."""
            verdict = json.loads(machine.ssh([NODE, "check", "--format", "json"], limit=900).out)
            (found,) = [finding for finding in verdict["findings"] if finding["id"] == "boot.next"]
            assert found["outcome"] == "match", found
            assert json.loads(reported(NODE, "plan", "--format", "json"))["actions"] == []

        first = comes_up()
        known()
        assert "Written by goldnode when the disk was built" in reported(
            "cat", "/boot/grub/grub.cfg"
        )

        # What the package of a new kernel runs.
        release = reported("uname", "-r").strip()
        reported("/etc/kernel/postinst.d/zz-update-grub", release, f"/boot/vmlinuz-{release}")
        assert "Written by goldnode" not in reported("cat", "/boot/grub/grub.cfg")
        known()
        machine.ssh(["systemctl", "reboot"])
        comes_up(other_than=first)
        known()
        assert set(reported("cat", "/proc/cmdline").split()) >= WORDS
