"""Scratch space of a class on loop devices of a node: refused, made, filled, judged, given up, taken back and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import Run, Site, inventory, site_yml, succeeded

from goldnode.testing.lab.nodes import LabNode, NodeSpec

pytestmark = pytest.mark.lab

LINK = "/dev/disk/by-id/goldnode-test-1"
IMAGE = "/var/disk.img"


@pytest.fixture
def node(world: World) -> Iterator[LabNode]:
    made = world.lab.up([NodeSpec("scratch", "e2e_scratch", flavour="warm", loops=True)])[0]
    world.status(made).write_text(made.read("/var/lib/dpkg/status"))
    try:
        yield made
    finally:
        # The loop devices of the kernel are those of this machine, and outlive the node.
        made.shell(f"umount -l /scratch; losetup -d $(readlink -f {LINK})", check=False)
        made.destroy()


def attach(node: LabNode) -> str:
    """Give the node an empty disk of 200 MiB, and return its device."""
    # The node has the device files of no loop device, and no udev to make them or the link.
    device = node.shell(
        f"truncate -s 200M {IMAGE}; test -e /dev/loop-control || mknod /dev/loop-control c 10 237; "
        "free=$(losetup -f); number=${free#/dev/loop}; test -e $free || mknod $free b 7 $number; "
        f"losetup $free {IMAGE}; mkdir -p /dev/disk/by-id; ln -sfn $free {LINK}; echo $free"
    ).output.split()[-1]
    assert device.startswith("/dev/loop"), device
    return str(device)


def findings(node: LabNode) -> dict[str, tuple[str, str]]:
    """Return outcome and reading of the findings about scratch space, by id."""
    done = node.run("/usr/lib/goldnode/goldnode-node", "check", "--format", "json", check=False)
    document: dict[str, Any] = json.loads(done.output[done.output.index("{") :])
    return {
        row["id"]: (row["outcome"], row["got"])
        for row in document["findings"]
        if row["id"].startswith("scratch.")
    }


@pytest.mark.long
def test_scratch_is_made_filled_judged_and_removed(
    world: World, node: LabNode, tmp_path: Path
) -> None:
    site: Site = world.site("scratch")
    world.publish()
    world.lock(site, node, "e2e_plain")
    hosts = inventory(tmp_path / "scratch", {"e2e_scratch": [node]})
    without = inventory(tmp_path / "plain", {"e2e_plain": [node]})

    def converge(where: Path = hosts, *words: str) -> Run:
        return succeeded(site_yml(where, *words, site=site))

    device = attach(node)
    # A disk that has a file system already is refused and not changed.
    node.shell(f"mkfs.ext4 -q -L DATA {device}")
    before = node.shell(f"sha256sum {device}").output
    refused = site_yml(hosts, site=site)
    assert refused.rc != 0
    assert f"{device} has ext4 DATA" in refused.output
    assert node.shell(f"sha256sum {device}").output == before
    # Other disks that are refused are in tests/unit/node/state/test_scratch.py.
    node.shell(f"dd if=/dev/zero of={device} bs=1M count=200 status=none; sync")
    # Empty: made, mounted, and the second run changes nothing.
    converge()
    assert node.shell("stat -c %a /scratch; findmnt -no FSTYPE,OPTIONS /scratch").output.split()[
        :2
    ] == ["1777", "ext4"]
    assert json.loads(node.read("/var/lib/goldnode/state.json"))["formatted"]
    assert converge().changed["scratch"] == 0
    assert {name: row[0] for name, row in findings(node).items()} == {
        "scratch.mount": "match",
        "scratch.space": "match",
    }
    # The boot check runs in a sandbox: its own mounts are read-only, and here it has neither the disk nor a database of udev.
    node.shell("systemctl restart goldnode-sanity.service", check=False)
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    (boot,) = (row for row in verdict["findings"] if row["id"] == "scratch.mount")
    assert boot["outcome"] in ("match", "could_not_read"), boot
    assert boot["got"] != "read-only"
    # Filled and judged, with blocks and with inodes.
    node.shell("head -c 170M /dev/zero > /scratch/full")
    assert findings(node)["scratch.space"][0] == "mismatch"
    assert "% full" in findings(node)["scratch.space"][1]
    # With its source: `mount -o remount,relatime /scratch` of util-linux 2.38 leaves noatime as it is.
    node.shell("rm /scratch/full; echo mine > /scratch/mine")
    assert findings(node)["scratch.space"][0] == "match"
    node.shell(f"mount -t ext4 -o remount,relatime {device} /scratch")
    assert findings(node)["scratch.mount"] == ("mismatch", "without noatime")
    converge()
    assert findings(node)["scratch.mount"][0] == "match"
    # Old files go, what is new stays. The age counts changes of the inode too, which no program can date back.
    node.shell("mkdir /scratch/old; touch /scratch/old/file; sleep 3")
    rules = "sed 's/ 7d$/ 2s/' /etc/tmpfiles.d/goldnode-scratch.conf > /tmp/rules.conf"
    node.shell(f"{rules}; echo mine > /scratch/mine; systemd-tmpfiles --clean /tmp/rules.conf")
    assert node.shell("ls /scratch").output.split() == ["lost+found", "mine"]
    # Another class gives it up; the data stays, and comes back without a format.
    converge(without)
    assert node.run("mountpoint", "-q", "/scratch", check=False).rc != 0
    assert node.shell("ls /etc/tmpfiles.d/goldnode-scratch.conf", check=False).rc != 0
    converge()
    assert node.read("/scratch/mine") == "mine\n"
    # Removal of goldnode: unmounted, the files of goldnode gone, the data on the disk.
    converge(hosts, "-e", "goldnode_state=absent")
    assert node.run("mountpoint", "-q", "/scratch", check=False).rc != 0
    assert (
        node.shell("ls /etc/systemd/system/goldnode-* /etc/tmpfiles.d/goldnode-*", check=False).rc
        != 0
    )
    assert node.shell(f"mount {device} /scratch; cat /scratch/mine").output.strip() == "mine"
