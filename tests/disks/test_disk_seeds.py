"""First boots with each seed that the documentation names: users and names arrive, no unit fails, and no port is open that was not asked for.

One disk with cloud-init, in emulated machines, each on an overlay of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.disks.conftest import CLASS, Site

from goldnode.disks import guest
from goldnode.disks import verify as verification
from goldnode.disks.guest import GuestExpectations
from goldnode.disks.model import BuiltDisk, find
from goldnode.disks.qemu import Drive, VirtualMachine, VmOptions, make_key, overlay

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

NAME = "seeded-7"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB7cPqQbM3SBzVTGU2Ck2bIyM9l0NeGmiyfGDPDbV7rj ops@example"
USER_DATA = (
    f"#cloud-config\nusers:\n- name: ops\n  shell: /bin/bash\n  ssh_authorized_keys: [{KEY}]\n"
)
META_DATA = f"instance-id: i-7\nlocal-hostname: {NAME}\n"
CLEAN = ("boot.multi_user", "system.state", "units.failed", "listeners", "identity.hostname")


@dataclass(frozen=True)
class Seed:
    """One documented seed: a volume, an SMBIOS serial number, or files on the ESP. `owner` has the key afterwards."""

    label: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    serial: str = ""
    esp: Mapping[str, str] = field(default_factory=dict)
    name: str | None = NAME
    owner: str | None = "ops"
    source: str | None = None  # cloud-init's own name of it; None: cloud-init stays off


OPENSTACK = {"uuid": "i-7", "hostname": NAME, "name": NAME}
SEEDS = {
    "none": Seed(name=None, owner=None),
    "esp": Seed(esp={"hostname": NAME + "\n", "authorized_keys": KEY + "\n"}, owner="root"),
    "nocloud": Seed(
        "CIDATA", {"meta-data": META_DATA, "user-data": USER_DATA}, source="DataSourceNoCloud"
    ),
    "config-drive": Seed(
        "CONFIG-2",
        {
            "openstack/latest/meta_data.json": json.dumps(OPENSTACK),
            "openstack/latest/user_data": USER_DATA,
        },
        source="DataSourceConfigDrive",
    ),
    "smbios": Seed(serial=f"ds=nocloud;i=i-7;h={NAME}", owner=None, source="DataSourceNoCloud"),
}


class SeededMachine(VirtualMachine):
    """A machine whose firmware reports a serial number."""

    serial = ""

    def command(self, qmp: int) -> list[str]:
        words = super().command(qmp)
        return [*words, "-smbios", f"type=1,serial={self.serial}"] if self.serial else words


def volume(seed: Seed, path: Path) -> Path:
    """Write the files of a seed to a FAT file system with its label."""
    subprocess.run(
        ["mkfs.vfat", "-C", "-n", seed.label, path, "1024"], check=True, capture_output=True
    )
    copy_files(seed.files, path, "")
    return path


def copy_files(files: Mapping[str, str], image: Path, top: str, at: str = "") -> None:
    """Copy files into a FAT file system of `image`, with their directories below `top`."""
    folders = {str(folder) for name in files for folder in Path(top, name).parents} - {".", "/"}
    for folder in sorted(folders):
        subprocess.run(["mmd", "-D", "s", "-i", f"{image}{at}", f"::/{folder}"], check=False)
    for name, text in files.items():
        subprocess.run(
            ["mcopy", "-i", f"{image}{at}", "-", f"::/{Path(top, name)}"],
            input=text,
            text=True,
            check=True,
        )


@pytest.fixture(scope="module")
def disk(site: Site, tmp_path_factory: pytest.TempPathFactory) -> BuiltDisk:
    """The disk of the class, with cloud-init."""
    place = tmp_path_factory.mktemp("seeds")
    text = (site.home / "disks.yml").read_text()
    assert text.count("cloud_init: false") == 1
    (place / "disks.yml").write_text(text.replace("cloud_init: false", "cloud_init: true"))
    (place / "locks").mkdir()
    chosen = {
        "GOLDNODE_DISK_DEFINITION": str(place / "disks.yml"),
        "GOLDNODE_DISK_LOCKS": str(place / "locks"),
    }
    for arguments in (("disks", "lock", CLASS), ("disks", "build", CLASS, "--image-format", "raw")):
        done = site.run(*arguments, **chosen)
        assert done.returncode == 0, done.stderr
    return find(done.stdout.split()[0], site.store)


def machine_with(seed: Seed, disk: BuiltDisk, place: Path, size: int) -> VirtualMachine:
    """Return a machine on an overlay of the disk, with the seed in its place."""
    key = make_key(place)
    raw = disk.path("raw")
    if seed.esp:
        raw = Path(shutil.copy(raw, place / "seeded.raw"))
        start = next(part.start for part in disk.partitions if part.name == "esp")
        copy_files(seed.esp, raw, "goldnode/seed", f"@@{start}")
    drives = [Drive(volume(seed, place / "seed.img"))] if seed.label else []
    machine = SeededMachine(
        overlay(raw, place / "disk.qcow2", size=size),
        place / "machine",
        VmOptions(
            snapshot=False,
            form="qcow2",
            key=key,
            credentials={"ssh.authorized_keys.root": key.with_suffix(".pub").read_text()},
            drives=drives,
        ),
    )
    machine.serial = seed.serial
    return machine


@pytest.mark.parametrize("kind", SEEDS)
def test_first_boot_with_a_seed_is_clean(kind: str, disk: BuiltDisk, tmp_path: Path) -> None:
    seed, size = SEEDS[kind], disk.raw.size + 4096 * 1024 * 1024
    with machine_with(seed, disk, tmp_path, size) as machine:
        machine.wait_ssh(900)
        wanted = GuestExpectations.of(disk, size)
        done = machine.ssh(
            ["python3", "-I", "-", f"'{json.dumps(wanted.asked())}'"],
            stdin=verification.COLLECTOR.read_bytes(),
            limit=900,
        )
        facts = json.loads(done.out)
        checks = {check.id: check for check in guest.judge(facts, wanted)}
        faults = {name: checks[name].got for name in CLEAN if checks[name].outcome != guest.PASSED}
        assert faults == {}, faults

        def answer(command: str) -> str:
            return machine.ssh([command], limit=900).out.strip()

        name = answer("cat /proc/sys/kernel/hostname")
        assert name == seed.name if seed.name else name.startswith("cpu-only-")
        if seed.owner:
            home = "/root" if seed.owner == "root" else f"/home/{seed.owner}"
            assert KEY in answer(f"cat {home}/.ssh/authorized_keys")
        status = answer("cat /run/cloud-init/status.json") or "{}"
        result = json.loads(answer("cat /run/cloud-init/result.json") or "{}").get("v1", {})
        if seed.source is None:
            assert result == {}, status
        else:
            assert (result["datasource"] or "").startswith(seed.source)
            assert result["errors"] == []
