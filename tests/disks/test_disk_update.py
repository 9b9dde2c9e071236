"""`goldnode disks update` on a machine that runs (emulated), over ssh: a new image, the way back, and images that are broken as they were built.

The images are those of `goldnode disks build`, and differ in the kernel's command line: what a wrong one does is what a bad kernel or a bad unit does.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks.conftest import CLASS, Site

from goldnode.disks.model import BuiltDisk, find
from goldnode.disks.qemu import SSH_OPTIONS, VirtualMachine, VmOptions, make_key, overlay

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

MIB = 1024 * 1024
WHY = "a test of the update itself"
SECONDS = (
    "5400"  # of the wall clock, for all tries of an image in an emulated machine on a busy one
)

PATIENCE = 2700.0  # seconds of the guest's time, for one boot or command


def variant(site: Site, word: str) -> BuiltDisk:
    """The disk of the class with one more word on its command line; packages and root filesystem are those that are there.

    Its root is as small as it can be, for an emulated machine takes minutes to write one; in the slot it grows.
    """
    definition = site.home / f"disks-{re.sub('[^a-z]', '-', word)}.yml"
    text = (site.home / "disks.yml").read_text()
    for shipped, wanted in (
        ("command_line: [", f'command_line: ["{word}", '),
        ("root_mib: 3072", "root_mib: 1152"),
    ):
        assert text.count(shipped) == 1
        text = text.replace(shipped, wanted)
    definition.write_text(text)
    done = site.run(
        "disks",
        "build",
        CLASS,
        "--image-format",
        "raw",
        "--offline",
        GOLDNODE_DISK_DEFINITION=str(definition),
    )
    assert done.returncode == 0, done.stderr
    return find(done.stdout.split()[0], site.store)


@pytest.fixture
def machine(built: BuiltDisk, tmp_path: Path) -> Iterator[VirtualMachine]:
    """The first image, running, on a disk with room for a second slot."""
    key = make_key(tmp_path)
    root = next(part for part in built.partitions if part.name == "root-a")
    disk = overlay(
        built.path("raw"), tmp_path / "disk.qcow2", size=built.raw.size + root.size + 512 * MIB
    )
    credentials = {"ssh.authorized_keys.root": key.with_suffix(".pub").read_text()}
    with VirtualMachine(
        disk,
        tmp_path / "machine",
        VmOptions(snapshot=False, form="qcow2", key=key, credentials=credentials),
    ) as made:
        made.wait_ssh(PATIENCE)
        asked = made.ssh(["systemctl", "is-system-running", "--wait"], limit=PATIENCE)
        assert asked.out.strip() == "running", asked
        yield made


def test_an_update_over_ssh_its_way_back_and_images_that_fall_back(
    site: Site, built: BuiltDisk, machine: VirtualMachine, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts.yml"
    reached = {
        "ansible_host": "127.0.0.1",
        "ansible_port": machine.port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(machine.key),
        "ansible_ssh_common_args": " ".join(SSH_OPTIONS),
    }
    hosts.write_text(json.dumps({CLASS: {"hosts": {"gpu07": reached}}}))

    def update(*words: str) -> subprocess.CompletedProcess[str]:
        unsigned = ("--unsigned", WHY) if "--image" in words else ()  # this site has no keys
        given = ("-i", str(hosts), "gpu07", "--timeout", SECONDS, *unsigned)
        return site.run("disks", "update", *given, *words)

    def reported(command: str) -> str:
        found = machine.ssh([command], limit=PATIENCE)
        assert found.rc == 0, found
        return found.out

    def state() -> tuple[str, str, dict[str, str]]:
        """The slot that runs, the one that boots next, and what each one holds."""
        found = json.loads(reported("/usr/lib/goldnode/goldnode-node slot status --format json"))
        return (
            found["running"],
            found["next"],
            {slot: row["image"] for slot, row in found["slots"].items()},
        )

    who = reported("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub")
    good = variant(site, "goldnode-test=successor")
    # Nobody has booted it: refused, with what to do, and nothing is written.
    refused = update("--image", str(good.directory))
    assert refused.returncode == 2
    assert f"image {good.name} is not verified: it was never booted" in refused.stderr
    assert "goldnode disks verify" in refused.stderr
    assert state() == ("a", "a", {"a": built.name, "b": None})

    done = update("--image", str(good.directory), "--unverified", WHY, "--reboot")
    assert done.returncode == 0, (done.stdout, done.stderr, machine.tail())
    assert f"gpu07: slot b: {good.name}, good (runs, boots next)" in done.stdout
    assert state() == ("b", "b", {"a": built.name, "b": good.name})
    assert "goldnode-test=successor" in reported("cat /proc/cmdline")
    assert reported("findmnt -no PARTLABEL /").strip() == "root-b"
    assert reported("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub") == who, (
        "the node is still who it was"
    )
    assert reported("systemctl is-system-running --wait").strip() == "running"

    back = update("--back", "--reboot")
    assert back.returncode == 0, (back.stdout, back.stderr, machine.tail())
    assert state() == ("a", "a", {"a": built.name, "b": good.name})

    for word, reason in (
        # No initramfs is started, and the kernel finds no root.
        ("rdinit=/nothing", "it left no reason"),
        ("systemd.mask=docker.service", "docker"),
    ):
        bad = variant(site, word)
        fell = update(
            "--image", str(bad.directory), "--unverified", WHY, "--tries", "1", "--reboot"
        )
        assert fell.returncode == 2, (word, fell.stdout, fell.stderr, machine.tail())
        assert re.search(
            rf"gpu07 fell back: image {bad.name} in slot b failed its try: .*{reason}", fell.stderr
        ), (word, fell.stderr)
        assert state() == ("a", "a", {"a": built.name, "b": bad.name})
        assert reported("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub") == who
