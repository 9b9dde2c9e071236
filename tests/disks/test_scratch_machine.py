"""Scratch space of a class on the disks of a machine with udev, systemd and boots of its own (emulated).

`tests/e2e/test_scratch.py` has site.yml and a loop device in a container, which has none of these. The machine boots the image of a
class, gets the document of a class with scratch space on two virtio disks and an NVMe disk, and its disks then do what those
of real machines do: one is not empty, one appears late, names change, one is lost and comes back, one is missing, one is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.disks.conftest import CLASS, ROOT, Site

from goldnode.disks.model import BuiltDisk
from goldnode.disks.qemu import Drive, VirtualMachine, VmOptions, make_key, overlay
from goldnode.node.ground.verdict_files import CLASS as CLASS_FILE
from goldnode.node.ground.verdict_files import VERDICT
from goldnode.node.state.domains import scratch
from goldnode.node.state.domains.program import class_file, document_digest

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

MIB = 1024 * 1024
NODE = "/usr/lib/goldnode/goldnode-node"
PARTS = ("node_class", "storage", "sanity")
MATCH = ("match", "ext4 of goldnode, mounted with noatime")
FIRST = """scratch:
  /scratch: {device: /dev/disk/by-id/virtio-gn-scratch*, keep_days: 7, full_percent: 80}
  /cache: {device: /dev/disk/by-id/virtio-gn-cache-1}
  /staging: {device: /dev/disk/by-path/pci-*-nvme-1}
"""
# Without the disk that is gone, and with the new one by its serial number.
SECOND = """scratch:
  /scratch: {device: /dev/disk/by-id/virtio-gn-scratch-2}
  /staging: {device: /dev/disk/by-path/pci-*-nvme-1}
"""
# The NVMe disk of the second boot leaves the bus before file systems are mounted, and comes back later.
BUS = "0000:00:04.0"
LATE = f"""
cat >/etc/systemd/system/late-disk.service <<'END'
[Unit]
DefaultDependencies=no
Before=local-fs.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo 1 >/sys/bus/pci/devices/{BUS}/remove'
[Install]
WantedBy=local-fs.target
END
cat >/etc/systemd/system/late-disk-back.service <<'END'
[Service]
ExecStart=/bin/sh -c 'sleep 15; echo 1 >/sys/bus/pci/rescan'
[Install]
WantedBy=multi-user.target
END
systemctl enable --quiet late-disk.service late-disk-back.service
"""


def virtio(path: Path, serial: str) -> Drive:
    return Drive(path, readonly=False, serial=serial)


def nvme(path: Path, serial: str) -> Drive:
    return Drive(path, readonly=False, serial=serial, device="nvme")


@dataclass
class Guest:
    """The running machine, and what a person would call on it."""

    machine: VirtualMachine

    def shell(self, script: str, rc: int | None = 0) -> str:
        done = self.machine.ssh(["sh"], stdin=f"set -e\n{script}\n".encode(), limit=900)
        assert rc is None or done.rc == rc, (script, done)
        return done.out + done.err

    def apply(self, name: str) -> str:
        """Apply the document of a class as site.yml does, part by part, and return what was done."""
        command = f"{NODE} apply --class /root/{name}.json --part"
        return "".join(self.shell(f"{command} {part}") for part in PARTS)

    def plan(self, name: str) -> str:
        return self.shell(f"{NODE} plan --class /root/{name}.json")

    def judged(self, kind: str = "scratch.mount") -> dict[str, tuple[str, str]]:
        """Return outcome and reading of a finding by mount point, of a check that runs now."""
        # || true: the exit status is the verdict of the whole node. What is read of the document is asserted.
        return rows(json.loads(self.shell(f"{NODE} check --format json 2>/dev/null || true")), kind)

    def boot_verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads(self.shell(f"cat {VERDICT}"))
        assert verdict["passive"] is False, verdict
        return verdict

    def sources(self) -> dict[str, str]:
        """Return the serial number of the disk that is mounted at each mount point of /scratch, /cache and /staging."""
        text = self.shell(
            "for place in /scratch /cache /staging; do mountpoint -q $place || continue; "
            "disk=$(basename $(findmnt -no SOURCE $place)); "
            "echo $place $(cat /sys/block/$disk/serial /sys/block/$disk/device/serial 2>/dev/null); done"
        )
        return {line.split()[0]: line.split()[-1] for line in text.splitlines()}

    def moment(self, unit: str, name: str) -> int:
        """Return a timestamp of a unit, in microseconds since the boot."""
        return int(self.shell(f"systemctl show -p {name}TimestampMonotonic --value {unit}"))


def rows(verdict: Mapping[str, Any], kind: str) -> dict[str, tuple[str, str]]:
    return {
        row["subject"]: (row["outcome"], row["got"])
        for row in verdict["findings"]
        if row["id"] == kind
    }


@dataclass
class Chassis:
    """The machine between its boots: the disk with the system, and any other disks."""

    place: Path
    system: Path
    key: Path

    def disk(self, name: str) -> Path:
        path = self.place / f"{name}.raw"
        path.touch()
        os.truncate(path, 256 * MIB)
        return path

    @contextmanager
    def boot(self, *drives: Drive) -> Iterator[Guest]:
        credentials = {"ssh.authorized_keys.root": self.key.with_suffix(".pub").read_text()}
        options = VmOptions(
            snapshot=False,
            form="qcow2",
            key=self.key,
            credentials=credentials,
            drives=drives,
            counted=False,
            processors=1,
        )
        with VirtualMachine(self.system, self.place / "machine", options) as machine:
            machine.wait_ssh(900)
            machine.ssh(["systemctl", "is-system-running", "--wait"], limit=900)
            yield Guest(machine)
            machine.stop(300)


@pytest.fixture
def chassis(built: BuiltDisk, tmp_path: Path) -> Chassis:
    system = overlay(built.path("raw"), tmp_path / "system.qcow2", size=built.raw.size)
    return Chassis(tmp_path, system, make_key(tmp_path))


def documents(site: Site, guest: Guest, place: Path) -> None:
    """Write the class documents to the machine: that of the image, and those of the same class with scratch space."""
    shipped = json.loads(guest.shell(f"cat {CLASS_FILE}"))
    guest.shell(f"cp {CLASS_FILE} /root/plain.json")
    text = (ROOT / f"catalog/classes/{CLASS}.yml").read_text()
    (place / "classes").mkdir()
    for name, section in {"first": FIRST, "second": SECOND}.items():
        content = text.replace(f"class: {CLASS}\n", f"class: scratch_{name}\n") + section
        (place / f"classes/scratch_{name}.yml").write_text(content)
        exported = site.run("class", "export", f"scratch_{name}", GOLDNODE_CATALOG=str(place))
        assert exported.returncode == 0, exported.stderr
        document = {**shipped, "scratch": json.loads(exported.stdout)["scratch"]}
        document["digest"] = document_digest(document)
        wanted = class_file(document).content
        done = guest.machine.ssh([f"cat >/root/{name}.json"], stdin=wanted.encode(), limit=300)
        assert done.rc == 0, done


def empty_is_made(guest: Guest) -> None:
    """The disk with a partition table stops the run; without it, one run makes and mounts all three."""
    refused = guest.shell(f"{NODE} apply --class /root/first.json --part storage", 3)
    assert "/dev/nvme0n1 has gpt" in refused
    guest.shell(
        "for disk in vdb vdc; do blkid -p /dev/$disk && exit 1; done; wipefs -aq /dev/nvme0n1"
    )
    assert "data without a signature" in guest.plan("first")
    # QEMU's disk takes a discard and still has its data: the page has the other way.
    guest.shell("blkdiscard /dev/nvme0n1")
    assert "data without a signature" in guest.plan("first")
    guest.shell("dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=256 2>/dev/null")
    done = guest.apply("first")
    assert done.count("scratch.format") >= 3
    assert "nothing to do" in guest.plan("first")
    assert guest.judged() == dict.fromkeys(("/scratch", "/cache", "/staging"), MATCH)
    assert guest.shell("systemctl is-active goldnode-scratch.service") == "active\n"
    for name in ("scratch", "cache", "staging"):
        guest.shell(f"runuser -u nobody -- sh -c 'echo {name} >/{name}/mine'")


def filled_is_judged(guest: Guest) -> None:
    guest.shell("fallocate -l 200M /scratch/full")
    assert guest.judged("scratch.space")["/scratch"][0] == "mismatch"
    guest.shell("rm /scratch/full")
    assert guest.judged("scratch.space")["/scratch"][0] == "match"


def lost_and_found(guest: Guest) -> None:
    """A disk that leaves the bus while it is mounted, and comes back: the mount is still of the lost one."""
    guest.shell(
        "bus=$(basename $(readlink -f /sys/block/vdc/device/..)); echo 1 >/sys/bus/pci/devices/$bus/remove; "
        "udevadm settle"
    )
    assert guest.judged()["/cache"] == (
        "mismatch",
        "exactly one disk must match, and there are 0: none",
    )
    guest.shell("echo 1 >/sys/bus/pci/rescan; udevadm settle")
    assert guest.judged()["/cache"] == ("mismatch", "mounted from /dev/vdc, not from /dev/vdd")
    refused = guest.shell(f"{NODE} apply --class /root/first.json --part storage", 3)
    assert "/dev/vdc is mounted there, and the disk of the class is /dev/vdd" in refused
    guest.shell("umount -l /cache")
    guest.apply("first")
    assert guest.judged()["/cache"] == MATCH
    assert guest.shell("cat /cache/mine") == "cache\n"


def late_and_renamed(guest: Guest) -> None:
    """The names of the virtio disks have changed, and the NVMe disk appeared late: all is as before, and the boot check knows it."""
    assert guest.shell("cat /sys/block/vdb/serial").strip("\n\0") == "gn-cache-1"
    assert guest.shell("systemctl is-system-running") == "running\n"
    assert guest.sources() == {
        "/scratch": "gn-scratch-1",
        "/cache": "gn-cache-1",
        "/staging": "gn-staging-1",
    }
    assert guest.shell("cat /scratch/mine /cache/mine /staging/mine").split() == [
        "scratch",
        "cache",
        "staging",
    ]
    verdict = guest.boot_verdict()
    assert rows(verdict, "scratch.mount") == dict.fromkeys(
        ("/scratch", "/cache", "/staging"), MATCH
    )
    assert verdict["counts"]["mismatch"] == verdict["counts"]["could_not_read"] == 0
    assert guest.moment(scratch.SERVICE, "ActiveEnter") < guest.moment(
        "goldnode-sanity.service", "ExecMainStart"
    )
    assert "nothing to do" in guest.plan("first")
    guest.shell("systemctl disable --quiet late-disk.service late-disk-back.service")


def missing_and_replaced(guest: Guest) -> None:
    """One disk is missing and one is replaced by an empty one: the third is mounted, and no user fills the root file system."""
    assert guest.sources() == {"/staging": "gn-staging-1"}
    verdict = guest.boot_verdict()
    disk = Path(guest.shell("readlink /dev/disk/by-id/virtio-gn-scratch-2").strip()).name
    assert verdict["status"] == "drain"
    assert rows(verdict, "scratch.mount") == {
        "/scratch": ("mismatch", f"not mounted: /dev/{disk} is empty"),
        "/cache": (
            "mismatch",
            "not mounted: exactly one disk must match, and there are 0: none",
        ),
        "/staging": MATCH,
    }
    assert guest.shell("systemctl --failed --no-legend --plain").split()[0] == scratch.SERVICE
    for name in ("scratch", "cache"):
        guest.shell(f"runuser -u nobody -- touch /{name}/full", 1)
    refused = guest.shell(f"{NODE} apply --class /root/first.json --part storage", 3)
    assert "Scratch space /cache: exactly one disk must match" in refused
    guest.shell(f"blkid -p /dev/{disk}", 2)
    guest.apply("second")
    assert guest.judged() == dict.fromkeys(("/scratch", "/staging"), MATCH)
    assert guest.sources() == {"/scratch": "gn-scratch-2", "/staging": "gn-staging-1"}
    assert guest.shell("systemctl is-active goldnode-scratch.service") == "active\n"
    guest.shell("echo new >/scratch/new")


def twin_is_left_alone(guest: Guest) -> None:
    """Two disks have the label of /scratch. The one that the class names is mounted, and not the first one."""
    assert (
        guest.shell("lsblk -no LABEL /dev/vdb /dev/vdc").split() == [scratch.label("/scratch")] * 2
    )
    assert guest.sources() == {"/scratch": "gn-scratch-2", "/staging": "gn-staging-1"}
    assert guest.shell("ls /scratch").split() == ["lost+found", "new"]
    assert rows(guest.boot_verdict(), "scratch.mount") == dict.fromkeys(
        ("/scratch", "/staging"), MATCH
    )


def given_up_and_removed(guest: Guest) -> None:
    """A mount in use stays and is named; then the class gives up the disks, gets them again, and goldnode is removed."""
    guest.shell("sh -c 'cd /staging; exec sleep 7777' >/dev/null 2>&1 & echo $! >/run/user-of-it")
    busy = guest.shell(f"{NODE} apply --class /root/plain.json --part node_class", 3)
    assert "/staging stays mounted" in busy
    guest.shell("kill $(cat /run/user-of-it)")
    guest.apply("plain")
    assert guest.sources() == {}
    assert "nothing to do" in guest.plan("plain")
    guest.apply("second")
    assert guest.shell("cat /scratch/new /staging/mine").split() == ["new", "staging"]
    guest.shell(f"{NODE} apply --absent")
    assert guest.sources() == {}
    assert not guest.shell("find /etc/systemd/system /etc/tmpfiles.d -name 'goldnode-scratch*'")
    mount = "mount /dev/disk/by-id/virtio-gn-scratch-2 /mnt; cat /mnt/new; umount /mnt"
    assert guest.shell(mount) == "new\n"


def test_scratch_disks_of_a_machine_come_late_change_names_are_lost_and_replaced(
    site: Site, chassis: Chassis, tmp_path: Path
) -> None:
    one = virtio(chassis.disk("scratch"), "gn-scratch-1")
    cache = virtio(chassis.disk("cache"), "gn-cache-1")
    staging = nvme(chassis.disk("staging"), "gn-staging-1")
    two = virtio(chassis.disk("new"), "gn-scratch-2")
    subprocess.run(
        ["sfdisk", "-q", str(staging.path)],
        input="label: gpt\nsize=16MiB\n",
        text=True,
        check=True,
    )
    with chassis.boot(one, cache, staging) as guest:
        documents(site, guest, tmp_path)
        empty_is_made(guest)
        filled_is_judged(guest)
        lost_and_found(guest)
        guest.shell(LATE)
    with chassis.boot(cache, staging, one) as guest:
        late_and_renamed(guest)
    with chassis.boot(two, staging) as guest:
        missing_and_replaced(guest)
    with chassis.boot(one, two, staging) as guest:
        twin_is_left_alone(guest)
        given_up_and_removed(guest)
