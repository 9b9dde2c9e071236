"""A disk for arm64, built by emulation from what the archive has today: verified, updated over ssh, and taken back, in an emulated machine.

With GOLDNODE_DISK_RUN=FOLDER locks, packages, bases and builds stay there, and a run that was interrupted goes on with them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import pytest
from tests.disks.conftest import Site
from tests.disks.updating import WHY, UpdatedNode, running, variant

from goldnode.disks.model import find

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

CLASS, STACK = "cpu_only_arm64", "debian13_arm64_cpu"
ESP = 256  # MiB: a kernel for arm64 is not compressed, and there is room for three
PROGRAMS = ("qemu-aarch64-static", "qemu-system-aarch64", "mmdebstrap", "mke2fs", "mcopy", "sfdisk")


def test_disk_for_arm64_is_built_verified_updated_and_taken_back(tmp_path: Path) -> None:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, f"needs {missing}: apt-get install qemu-user-static qemu-system-arm"
    stays = os.environ.get("GOLDNODE_DISK_RUN")
    site = Site(Path(stays) if stays else tmp_path / "site", CLASS, STACK, ESP)
    site.home.mkdir(exist_ok=True)
    site.set_up()
    done = site.run("disks", "build", CLASS, "--image-format", "raw")
    assert done.returncode == 0, done.stderr
    built = find(done.stdout.split()[0], site.store)
    assert built.os.architecture == "arm64"
    assert {row.architecture for row in built.packages} == {"arm64", "all"}

    done = site.run("disks", "verify", str(built.directory))
    assert done.returncode == 0, (done.stdout, done.stderr)
    verified = json.loads((built.directory / "verified.json").read_text())
    assert verified["outcome"] == "passed"
    if platform.machine() == "x86_64":
        assert verified["accelerator_reason"] == "this machine is not arm64"

    good = variant(site, "goldnode-test=successor")
    with running(built, tmp_path) as machine:
        node = UpdatedNode(site, machine, tmp_path)
        assert node.reported("uname -m").strip() == "aarch64"
        assert node.state() == ("a", "a", {"a": built.name, "b": None})
        who = node.reported("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub")
        moved = node.update("--image", str(good.directory), "--unverified", WHY, "--reboot")
        assert moved.returncode == 0, (moved.stdout, moved.stderr, machine.tail())
        assert node.state() == ("b", "b", {"a": built.name, "b": good.name})
        assert "goldnode-test=successor" in node.reported("cat /proc/cmdline")
        assert node.reported("findmnt -no PARTLABEL /").strip() == "root-b"
        assert node.reported("cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub") == who
        checked = node.reported(
            "/usr/lib/goldnode/goldnode-node check --format json | grep -c schema"
        )
        assert checked.strip() != "0"

        back = node.update("--back", "--reboot")
        assert back.returncode == 0, (back.stdout, back.stderr, machine.tail())
        assert node.state() == ("a", "a", {"a": built.name, "b": good.name})
