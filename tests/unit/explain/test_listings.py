"""Lists of partitions and mounts beside lsblk. The samples of fdisk, sfdisk and findmnt are those of util-linux 2.38, under other names."""

from __future__ import annotations

import time

import pytest

from goldnode.explain import blocks, listings
from goldnode.explain.answer import explain
from goldnode.explain.blocks import BlockDevices

FDISK = """Disk /dev/nvme0n1: 2 GiB, 2147483648 bytes, 4194304 sectors
Disk model: EXAMPLE
Units: sectors of 1 * 512 = 512 bytes
Sector size (logical/physical): 512 bytes / 512 bytes
I/O size (minimum/optimal): 512 bytes / 512 bytes
Disklabel type: gpt
Disk identifier: 00CEC7FC-0000-4000-8000-07C29A6BF209

Device           Start     End Sectors  Size Type
/dev/nvme0n1p1    2048 1050623 1048576  512M EFI System
/dev/nvme0n1p2 1050624 4192255 3141632  1.5G Linux filesystem
"""
OF_MBR = """Device     Boot  Start     End Sectors  Size Id Type
/dev/sda1         2048  206847  204800  100M ef EFI (FAT-12/16/32)
/dev/sda2  *    206848 2097151 1890304  923M 83 Linux
"""
SFDISK = """label: gpt
label-id: 00CEC7FC-0000-4000-8000-07C29A6BF209
device: /dev/sda
unit: sectors
first-lba: 2048
sector-size: 512

/dev/sda1 : start=        2048, size=     1048576, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=11111111-0000-4000-8000-00000000A001, name="EFI"
/dev/sda2 : start=     1050624, size=     3141632, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, uuid=22222222-0000-4000-8000-00000000A002
"""
FINDMNT = """TARGET            SOURCE                    FSTYPE OPTIONS
/                 /dev/nvme0n1p2            ext4   rw,relatime
├─/var/lib/docker /dev/nvme0n1p2[/docker]   ext4   rw,relatime
└─/boot/efi       /dev/nvme0n1p1            vfat   rw,relatime,fmask=0077
"""
LINKS = """# ls -l /dev/disk/by-uuid
total 0
lrwxrwxrwx 1 root root 10 Dec  1 09:00 0A1B-2C3D -> ../../sda1
lrwxrwxrwx 1 root root 10 Dec  1 09:00 3f0c6a52-0000-4000-8000-00000000a002 -> ../../sda2
/dev/disk/by-partlabel:
total 0
lrwxrwxrwx 1 root root 10 Dec  1 09:00 EFI\\x20System\\x20Partition -> ../../sda1
"""
MISSED = "Couldn't find EFI system partition. It is recommended to mount it to /boot or /efi.\n"
NO_ESP = FDISK.replace("EFI System", "Linux filesystem")


def read(text: str) -> BlockDevices:
    lines = text.splitlines()
    disks = blocks.read(lines)
    listings.add(lines, disks)
    return disks


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (FDISK, "`fdisk -l`"),
        (OF_MBR, "`fdisk -l`"),
        (SFDISK, "`sfdisk -d`"),
        (LINKS, "`ls -l /dev/disk`"),
    ],
)
def test_list_has_its_partitions_and_no_line_left(text: str, form: str) -> None:
    disks = read(text)
    assert disks.forms == [form]
    assert len(disks.devices) == 2
    left = [row for row in text.splitlines() if row.strip() and not row.startswith("#")]
    assert len(disks.used) == len(left)


@pytest.mark.parametrize("text", [FDISK, OF_MBR, SFDISK])
def test_first_partition_is_the_esp_by_its_type(text: str) -> None:
    assert [row.typed_esp for row in read(text).devices.values()] == [True, False]


def test_links_have_the_names_of_file_systems_and_partitions() -> None:
    first = read(LINKS).devices["sda1"]
    assert (first.column("uuid"), first.column("partlabel")) == (
        "0A1B-2C3D",
        "EFI System Partition",
    )
    assert first.disks == {"sda"}


def test_mounts_of_findmnt_are_those_of_the_devices_of_fdisk() -> None:
    devices = read(FDISK + FINDMNT).devices
    assert {name: row.mounts for name, row in devices.items()} == {
        "nvme0n1p1": ["/boot/efi"],
        "nvme0n1p2": ["/"],
    }


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (MISSED + NO_ESP, "No listed partition has the type of an EFI system partition"),
        (MISSED + FDISK + FINDMNT.rsplit("└", 1)[0], "is nvme0n1p1, and is not mounted"),
        (MISSED + FDISK + FINDMNT, "The EFI system partition is not found"),
        (MISSED + SFDISK.replace("C12A7328", "0FC63DAF"), "The EFI system partition is not found"),
    ],
)
def test_missing_esp_is_named_where_the_lists_show_it(text: str, title: str) -> None:
    answer = next(row for row in explain(text).answers if row.id == "esp-not-found")
    assert title in answer.title


def test_list_without_an_esp_is_no_fault_of_a_machine_of_which_nothing_shows_uefi() -> None:
    assert not explain(NO_ESP).answers


@pytest.mark.parametrize("filtered", [False, True])
def test_root_that_no_link_has_is_named_unless_links_are_left_out(filtered: bool) -> None:
    text = LINKS.replace("by-uuid", "by-uuid | grep sda", 1) if filtered else LINKS
    text = f"{SFDISK}{text}UUID=3f0c6a52-0000-4000-8000-00000000a00f / ext4 defaults 0 1\n"
    assert [row.id for row in explain(text).answers] == (
        [] if filtered else ["device-not-there-at-boot"]
    )


@pytest.mark.parametrize(
    "part", ["/dev/sda1 ", "TARGET SOURCE FSTYPE ", "lrwxrwxrwx ", "-> ", "type=x,", "/ "]
)
def test_long_line_takes_no_time(part: str) -> None:
    begun = time.process_time()
    read(part * (200_000 // len(part)))
    assert time.process_time() - begun < 1
