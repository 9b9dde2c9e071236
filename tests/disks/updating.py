"""A machine that runs a built disk, `goldnode disks update` for it over ssh, and further images of its class."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.disks.conftest import Site

from goldnode.disks.model import BuiltDisk, find
from goldnode.disks.qemu import SSH_OPTIONS, VirtualMachine, VmOptions, make_key, overlay

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
    assert text.count("root_mib: 3072") == 1
    text = text.replace("root_mib: 3072", "root_mib: 1152")
    definition.write_text(text.replace("command_line: [", f'command_line: ["{word}", '))
    done = site.run(
        "disks",
        "build",
        site.class_,
        "--image-format",
        "raw",
        "--offline",
        GOLDNODE_DISK_DEFINITION=str(definition),
    )
    assert done.returncode == 0, done.stderr
    return find(done.stdout.split()[0], site.store)


@contextmanager
def running(built: BuiltDisk, place: Path) -> Iterator[VirtualMachine]:
    """Boot an image on a disk with room for a second slot, until its units have ended."""
    key = make_key(place)
    root = next(part for part in built.partitions if part.name == "root-a")
    disk = overlay(
        built.path("raw"), place / "disk.qcow2", size=built.raw.size + root.size + 512 * MIB
    )
    options = VmOptions(
        snapshot=False,
        form="qcow2",
        key=key,
        credentials={"ssh.authorized_keys.root": key.with_suffix(".pub").read_text()},
        architecture=built.os.architecture,
    )
    with VirtualMachine(disk, place / "machine", options) as made:
        made.wait_ssh(PATIENCE)
        asked = made.ssh(["systemctl", "is-system-running", "--wait"], limit=PATIENCE)
        assert asked.out.strip() == "running", asked
        yield made


@dataclass(frozen=True)
class UpdatedNode:
    """The node gpu07 of a site, which `machine` is, and an inventory with it."""

    site: Site
    machine: VirtualMachine
    place: Path

    @property
    def hosts(self) -> Path:
        hosts = self.place / "hosts.yml"
        reached = {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.machine.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.machine.key),
            "ansible_ssh_common_args": " ".join(SSH_OPTIONS),
        }
        hosts.write_text(json.dumps({self.site.class_: {"hosts": {"gpu07": reached}}}))
        return hosts

    def update(self, *words: str) -> subprocess.CompletedProcess[str]:
        unsigned = ("--unsigned", WHY) if "--image" in words else ()  # this site has no keys
        given = ("-i", str(self.hosts), "gpu07", "--timeout", SECONDS, *unsigned)
        return self.site.run("disks", "update", *given, *words)

    def reported(self, command: str) -> str:
        found = self.machine.ssh([command], limit=PATIENCE)
        assert found.rc == 0, found
        return found.out

    def state(self) -> tuple[str, str, dict[str, str]]:
        """Return the slot that runs, the one that boots next, and what each one holds."""
        found = json.loads(
            self.reported("/usr/lib/goldnode/goldnode-node slot status --format json")
        )
        return (
            found["running"],
            found["next"],
            {slot: row["image"] for slot, row in found["slots"].items()},
        )
