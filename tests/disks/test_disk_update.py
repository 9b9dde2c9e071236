"""`goldnode disks update` on a machine that runs (emulated), over ssh: a new image, the way back, and images that are broken as they were built.

The images are those of `goldnode disks build`, and differ in the kernel's command line: what a wrong one does is what a bad kernel or a bad unit does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks.conftest import Site
from tests.disks.updating import WHY, UpdatedNode, running, variant

from goldnode.disks.model import BuiltDisk
from goldnode.disks.qemu import VirtualMachine

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]


@pytest.fixture
def machine(built: BuiltDisk, tmp_path: Path) -> Iterator[VirtualMachine]:
    """The first image, running, on a disk with room for a second slot."""
    with running(built, tmp_path) as made:
        yield made


def test_an_update_over_ssh_its_way_back_and_images_that_fall_back(
    site: Site, built: BuiltDisk, machine: VirtualMachine, tmp_path: Path
) -> None:
    node = UpdatedNode(site, machine, tmp_path)
    update, reported, state = node.update, node.reported, node.state
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
