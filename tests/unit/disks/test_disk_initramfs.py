"""The initramfs script of disk images in a tree of its own: which disk it takes the root from, and what it leaves for the system."""

from __future__ import annotations

import os
import struct
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from goldnode.disks.rootfs import INITRAMFS

SCRIPT = INITRAMFS / "scripts/local-top/goldnode-disk"
IMAGE = "5a0c1e5e-0000-5000-8000-00000000000"  # version 5: as built
OWN = "5a0c1e5e-0000-4000-8000-00000000000"
LOADER = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass
class Initramfs:
    """A machine in its initramfs: the script runs with its paths below `root`; programs that act leave a line in `acts`."""

    root: Path
    identified: int = 0  # exit status of `slot identity`
    acts: list[str] = field(default_factory=list)
    output: str = ""

    def disk(
        self, name: str, table: str, esp: str, *, label: str = "root-a", member: bool = False
    ) -> None:
        """Add a disk: GUID of the table and of the ESP."""
        major = 8 + len(list((self.root / "sys/class/block").iterdir()))
        data = self.root / "run/udev/data"
        facts = f"E:ID_PART_TABLE_UUID={table}\n"
        self._block(name, f"{major}:0", facts + "E:ID_FS_TYPE=linux_raid_member\n" * member, "")
        for minor, (guid, text) in enumerate(((esp, "esp"), (f"{esp[:-1]}f", label)), 1):
            rows = f"{facts}E:ID_PART_ENTRY_UUID={guid}\nE:ID_PART_ENTRY_NAME={text}\nE:ID_FS_UUID={text}-of-{table[:8]}\n"
            self._block(f"{name}{minor}", f"{major}:{minor}", rows, name)
        assert data.is_dir()

    def _block(self, name: str, number: str, rows: str, disk: str) -> None:
        own = self.root / "sys/devices" / disk / name
        own.mkdir(parents=True)
        (own / "dev").write_text(f"{number}\n")
        if disk:
            (own / "partition").write_text("1\n")
        (self.root / f"sys/class/block/{name}").symlink_to(own)
        (self.root / f"run/udev/data/b{number}").write_text(rows)

    def variable(self, name: str, value: bytes) -> None:
        folder = self.root / "sys/firmware/efi/efivars"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"BootOrder-{GLOBAL}").touch()
        (folder / name).write_bytes(b"\7\0\0\0" + value)

    def loader(self, guid: str) -> None:
        self.variable(LOADER, f"{guid.upper()}\0".encode("utf-16-le"))

    def run(self, root: str = "PARTLABEL=root-a", words: str = "ro") -> Mapping[str, str]:
        """Run the script. Return its record with `root`, what it has chosen as the root."""
        text = SCRIPT.read_text()
        for path in ("/sys/", "/run/", "/proc/", "/conf/"):
            text = text.replace(path, f"{self.root}{path}")
        (self.root / "script").write_text(text)
        (self.root / "proc/cmdline").write_text(f"root={root} {words}\n")
        parameters = self.root / "conf/param.conf"
        parameters.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "ROOT": root,
            "IDENTIFIED": str(self.identified),
        }
        done = subprocess.run(
            ["sh", self.root / "script"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        self.output = done.stdout
        acts = self.root / "acts"
        self.acts = acts.read_text().splitlines() if acts.exists() else []
        state = self.root / "run/goldnode/disk"
        record = (
            dict(line.split("=", 1) for line in state.read_text().splitlines())
            if state.exists()
            else {}
        )
        chosen = parameters.read_text().strip().removeprefix("ROOT=") if parameters.exists() else ""
        return {**record, "root": chosen}

    @property
    def unfinished(self) -> bool:
        return (self.root / "run/goldnode/identify").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Initramfs:
    for folder in ("sys/class/block", "run/udev/data", "proc", "conf", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    for name, act in (
        ("udevadm", ""), ("modprobe", ""), ("sync", ""), ("sleep", ""), ("mount", ""), ("umount", ""),
        ("chroot", "shift; echo \"$*\" >>$ACTS; exit $IDENTIFIED"), ("reboot", "echo reboot >>$ACTS"),
    ):  # fmt: skip
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\nACTS={tmp_path}/acts\n{act}\n")
        program.chmod(0o755)
    return Initramfs(tmp_path)


def test_root_is_that_of_the_disk_that_the_loader_reports(machine: Initramfs) -> None:
    machine.disk("sda", OWN + "1", OWN + "a")
    machine.disk("sdb", OWN + "2", OWN + "b")
    machine.loader(OWN + "b")
    found = machine.run(words=f"ro goldnode.disk={OWN}b")
    assert found == {
        "root": "/dev/sdb2",
        "disk": "sdb",
        "number": found["number"],
        "guid": OWN + "b",
        "by": "loader",
    }
    rules = (machine.root / "run/udev/rules.d/61-goldnode-disk.rules").read_text().splitlines()
    assert (
        f'SUBSYSTEM=="block", ENV{{ID_PART_ENTRY_DISK}}=="{found["number"]}", ENV{{ID_PART_ENTRY_NAME}}=="esp", SYMLINK+="goldnode/esp"'
        in rules
    )
    assert (machine.acts, machine.unfinished) == ([], False)
    assert "goldnode: root is /dev/sdb2 of disk sdb, by loader" in machine.output


def test_root_that_systemd_sysupdate_has_written_is_that_of_the_booted_disk(
    machine: Initramfs,
) -> None:
    label = "cpu_only_20261130.0004"
    machine.disk("sda", OWN + "1", OWN + "a", label=label)
    machine.disk("sdb", OWN + "2", OWN + "b", label=label)
    machine.loader(OWN + "b")
    found = machine.run(root=f"PARTLABEL={label}")
    assert (found["root"], found["disk"], found["by"]) == ("/dev/sdb2", "sdb", "loader")


def test_loader_outweighs_the_word_of_a_copied_entry(machine: Initramfs) -> None:
    machine.disk("sda", OWN + "1", OWN + "a")
    machine.disk("sdb", OWN + "2", OWN + "b")
    machine.loader(OWN + "b")
    assert machine.run(words=f"goldnode.disk={OWN}a")["disk"] == "sdb"
    assert machine.unfinished, "the entry has to get its own"


def test_disk_as_built_gets_its_identity_before_the_root_is_mounted(machine: Initramfs) -> None:
    machine.disk("sda", IMAGE + "1", IMAGE + "a")
    machine.loader(IMAGE + "a")
    assert machine.run()["root"] == "/dev/sda2"
    assert machine.acts == [
        "/usr/bin/python3 -I -S /usr/lib/goldnode/goldnode-node slot identity /dev/sda"
    ]
    assert machine.unfinished


@pytest.mark.parametrize("version", [IMAGE, OWN])
def test_equal_disks_get_identities_and_the_machine_starts_again(
    machine: Initramfs, version: str
) -> None:
    for name in ("sda", "sdb", "sdc"):
        machine.disk(name, version + "1", version + "a")
    machine.loader(version + "a")
    machine.run()
    assert machine.acts[0].endswith("slot identity /dev/sda /dev/sdb /dev/sdc")
    assert machine.acts[1] == "reboot"


def test_equal_disks_that_keep_their_guids_boot_by_chance_and_that_is_recorded(
    machine: Initramfs,
) -> None:
    for name in ("sda", "sdb"):
        machine.disk(name, OWN + "1", OWN + "a")
    machine.loader(OWN + "a")
    machine.identified = 3
    found = machine.run()
    assert (found["by"], found["root"], found["disk"]) == ("chance", "/dev/sda2", "sda")
    assert "reboot" not in machine.acts


def test_members_of_a_raid_are_no_second_disk(machine: Initramfs) -> None:
    machine.disk("sda", OWN + "1", OWN + "a", member=True)
    machine.disk("sdb", OWN + "1", OWN + "a")
    machine.loader(OWN + "a")
    assert machine.run()["disk"] == "sdb"
    assert machine.acts == []


def load_option(guid: str) -> bytes:
    node = (
        struct.pack("<BBHIQQ", 4, 1, 42, 1, 2048, 80000)
        + uuid.UUID(guid).bytes_le
        + b"\2\2\x7f\xff\4\0"
    )
    return struct.pack("<IH", 1, len(node)) + "UEFI disk\0".encode("utf-16-le") + node


def test_firmware_reports_the_disk_where_the_loader_does_not(machine: Initramfs) -> None:
    """GRUB, whose root is named by its file system."""
    machine.disk("sda", OWN + "1", OWN + "a", label="root")
    machine.disk("sdb", OWN + "2", OWN + "b", label="root")
    machine.variable(f"BootCurrent-{GLOBAL}", struct.pack("<H", 0x1A))
    machine.variable(f"Boot001A-{GLOBAL}", load_option(OWN + "b"))
    found = machine.run(root=f"UUID=root-of-{OWN[:8]}")
    assert (found["by"], found["root"]) == ("firmware", "/dev/sdb2")
    assert not machine.unfinished, "GRUB's entry has no word"


@pytest.mark.parametrize(
    ("disks", "words", "by", "disk"),
    [
        ("a", "", "label", "sda"),
        ("ab", "", "chance", "sda"),
        ("ab", f"goldnode.disk={OWN.upper()}B", "command line", "sdb"),
    ],
)
def test_without_efi_variables_word_or_label_decide(
    machine: Initramfs, disks: str, words: str, by: str, disk: str
) -> None:
    for name in disks:
        machine.disk(f"sd{name}", OWN + name, OWN + name)
    found = machine.run(words=words)
    assert (found["by"], found["disk"]) == (by, disk)


def test_disk_as_built_gets_its_identity_without_efi_variables_too(machine: Initramfs) -> None:
    machine.disk("sda", IMAGE + "1", IMAGE + "a")
    assert machine.run()["by"] == "label"
    assert machine.acts[0].endswith("slot identity /dev/sda")
    assert machine.unfinished


def test_another_root_and_an_absent_disk_leave_the_boot_to_others(machine: Initramfs) -> None:
    machine.disk("sda", OWN + "1", OWN + "a")
    assert machine.run(root="/dev/nfs") == {"root": ""}
    machine.loader(OWN + "9")
    assert machine.run() == {"root": ""}
    assert "no disk has partition" in machine.output
    assert machine.acts == []


@pytest.mark.parametrize(
    ("status", "word", "shown"),
    [
        (0, "", ""),
        (1, "", "panic goldnode: the root has no /sbin/init"),
        (1, "/lib/other", "panic goldnode: the root has no /lib/other"),
        (127, "", ""),
    ],
)
def test_root_without_its_init_restarts(tmp_path: Path, status: int, word: str, shown: str) -> None:
    """initramfs-tools 0.142 starts /bin/sh of such a root. chroot and the functions of initramfs-tools are stand-ins here."""
    (tmp_path / "functions").write_text('panic() { echo "panic $*"; }\n')
    asked = tmp_path / "asked"
    (tmp_path / "chroot").write_text(f'#!/bin/sh\necho "$1 $2 $5" >{asked}\nexit {status}\n')
    (tmp_path / "chroot").chmod(0o755)
    script = (INITRAMFS / "scripts/init-bottom/goldnode-init").read_text()
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("/scripts/functions", f"{tmp_path}/functions")],
        env={"PATH": str(tmp_path), "init": word},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (shown, "")
    assert asked.read_text() == f"/root /bin/sh {word or '/sbin/init'}\n"


def test_init_is_looked_up_in_its_root(tmp_path: Path) -> None:
    """The words of the script in a shell of this machine, which is the root here."""
    script = (INITRAMFS / "scripts/init-bottom/goldnode-init").read_text()
    (line,) = [text for text in script.splitlines() if text.startswith("chroot ")]
    words = line.replace('chroot "${rootmnt:-/root}" ', "")
    (tmp_path / "program").symlink_to("/bin/sh")
    for name, status in (("program", 0), ("none", 1)):
        text = f"init={tmp_path}/{name}\n{words}"
        assert subprocess.run(["/bin/sh", "-c", text], check=False).returncode == status
