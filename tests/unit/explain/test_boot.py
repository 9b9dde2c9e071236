"""Outputs about firmware, boot loader and disks. The samples of efibootmgr are those of the programs of Debian 12, 13 and 14 on the same variables."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.explain import blocks, firmware
from goldnode.explain.answer import explain
from goldnode.explain.boot import boot

HEAD = """BootNext: 0003
BootCurrent: 0000
Timeout: 5 seconds
BootOrder: 0001,0000,0002,0003,0009
"""
SHORT = """Boot0000* debian
Boot0001* UEFI: PXE IPv4 Mellanox Network Adapter
Boot0002  old disk
Boot0003* UEFI OS
Boot0004* Linux Boot Manager
"""
DISK = "HD(1,GPT,7f1c2a3b-0000-4000-8000-0000000000a1,0x800,0x100000)/"
GONE = "HD(1,GPT,deadbeef-0000-4000-8000-0000000000a1,0x800,0x100000)/"
# libefivar 37 (Debian 12), with the optional data as letters
LONG_17 = rf"""Boot0000* debian	{DISK}File(\EFI\debian\shimx64.efi)
Boot0001* UEFI: PXE IPv4 Mellanox Network Adapter	PciRoot(0x0)/Pci(0x1,0x0)/MAC(020000000001,1)/IPv4(0.0.0.00.0.0.0,0,0)..BO
Boot0002  old disk	{GONE}File(\EFI\debian\grubx64.efi)
Boot0003* UEFI OS	{DISK}File(\EFI\BOOT\BOOTX64.EFI)..BO
Boot0004* Linux Boot Manager	File(\EFI\systemd\systemd-bootx64.efi)
"""
# efibootmgr 18 with libefivar 38 (Debian 13): digits right behind the path, and the nodes in a line of their own with -v
LONG_18 = rf"""Boot0000* debian	{DISK}File(\EFI\debian\shimx64.efi)
      dp: 04 01 2a 00 01 00 00 00 00 08 00 00 00 00 00 00 / 04 04 34 00 5c 00 45 00 / 7f ff 04 00
Boot0001* UEFI: PXE IPv4 Mellanox Network Adapter	PciRoot(0x0)/Pci(0x1,0x0)/MAC(020000000001,1)/IPv4(0.0.0.00.0.0.0,0,0)0000424f
      dp: 02 01 0c 00 d0 41 03 0a 00 00 00 00 / 01 01 06 00 00 01 / 7f ff 04 00
    data: 00 00 42 4f
Boot0002  old disk	{GONE}File(\EFI\debian\grubx64.efi)
      dp: 04 01 2a 00 01 00 00 00 00 08 00 00 00 00 00 00 / 04 04 34 00 5c 00 45 00 / 7f ff 04 00
Boot0003* UEFI OS	{DISK}File(\EFI\BOOT\BOOTX64.EFI)0000424f
      dp: 04 01 2a 00 01 00 00 00 00 08 00 00 00 00 00 00 / 04 04 30 00 5c 00 45 00 / 7f ff 04 00
    data: 00 00 42 4f
Boot0004* Linux Boot Manager	File(\EFI\systemd\systemd-bootx64.efi)
      dp: 04 04 46 00 5c 00 45 00 46 00 49 00 5c 00 / 7f ff 04 00
"""
# libefivar 39 (Debian 14) has no File(…)
LONG_39 = LONG_17.replace("File(", "").replace(".efi)", ".efi").replace(".EFI)..BO", ".EFI0000424f")
LSBLK = """NAME         SIZE TYPE FSTYPE PARTTYPENAME     UUID                                 PARTUUID                             MOUNTPOINTS
nvme0n1      1.8T disk
├─nvme0n1p1  512M part vfat   EFI System       1A2B-3C4D                            7f1c2a3b-0000-4000-8000-0000000000a1 /boot/efi
└─nvme0n1p2  1.8T part ext4   Linux filesystem 7f1c2a3b-0000-4000-8000-0000000000c1 7f1c2a3b-0000-4000-8000-0000000000a2 /var/lib/docker
                                                                                                                         /
"""
SECOND = (
    LSBLK.split("\n", 1)[1]
    .replace("nvme0n1", "nvme1n1")
    .replace("7f1c2a3b", "8f1c2a3b")
    .replace("1A2B", "9A2B")
)
SECOND = SECOND.replace(" /var/lib/docker\n" + " " * 121 + "/\n", "\n").replace(" /boot/efi", "")


def ids(*parts: str) -> list[str]:
    return [row.id for row in explain("\n".join(parts)).answers]


def titles(*parts: str) -> str:
    return "\n".join(row.title for row in explain("\n".join(parts)).answers)


def notes(*parts: str) -> str:
    return "; ".join(text for _, text in explain("\n".join(parts)).forms)


@pytest.mark.parametrize("text", [LONG_17, LONG_18, LONG_39], ids=["17", "18", "18-efivar-39"])
def test_entries_are_the_same_in_each_release(text: str) -> None:
    found = firmware.read((HEAD + text).replace("\t", "    ").splitlines())
    assert found.order == ["0001", "0000", "0002", "0003", "0009"]
    assert (found.current, found.next) == ("0000", "0003")
    assert [row.name for row in found.entries.values()] == [
        line[10:] for line in SHORT.splitlines()
    ]
    rows = list(found.entries.values())
    assert [row.file.lower() for row in rows] == [
        r"\efi\debian\shimx64.efi",
        "",
        r"\efi\debian\grubx64.efi",
        r"\efi\boot\bootx64.efi",
        r"\efi\systemd\systemd-bootx64.efi",
    ]
    assert [row.network for row in rows] == [False, True, False, False, False]
    assert [row.guid[:8] for row in rows] == ["7f1c2a3b", "", "deadbeef", "7f1c2a3b", ""]
    assert [row.active for row in rows] == [True, True, False, True, True]
    assert not explain(HEAD + text).unread


def test_entries_without_paths_lead_to_no_verdict_about_disks() -> None:
    assert "could not judge which disk an entry starts from" in notes(HEAD, SHORT, LSBLK)
    assert "0009, of which the text has no entry" in notes(HEAD, SHORT)
    assert ids(HEAD, SHORT) == ["boot-order-changes"]


def test_machine_without_a_fault_has_none() -> None:
    text = HEAD.replace("0001,0000,0002,0003,0009", "0000,0003") + LONG_17
    assert ids(text, LSBLK) == []
    assert ids(text, LSBLK + SECOND) == []
    assert "started by 0000 debian (on nvme0n1p1)" in notes(text, LSBLK)


def test_network_before_the_disk_is_no_fault() -> None:
    answer = explain(HEAD + LONG_17 + LSBLK).answers[0]
    assert answer.title.startswith("The network (0001")
    assert answer.effect == "none"
    assert "(on nvme0n1p1)" in answer.title
    started = HEAD.replace("BootCurrent: 0000", "BootCurrent: 0001") + LONG_17
    assert titles(started, LSBLK).startswith("The machine started from the network (0001")
    behind = started.replace("0001,0000,0002", "0000,0001,0002")
    assert explain(behind).answers[0].effect is None
    assert "although the order begins with" in titles(behind)


def test_entry_of_a_partition_that_is_gone() -> None:
    order = HEAD.replace("0001,0000,0002,0003,0009", "0002,0000")
    text = order + LONG_18.replace("Boot0002 ", "Boot0002*")
    assert ids(text, LSBLK) == ["boot-entry-leads-nowhere"]
    assert "no listed disk has the partition of the first (deadbeef" in titles(text, LSBLK)
    later = text.replace("0002,0000", "0000,0002")
    assert "0002 old disk points to the partition deadbeef" in titles(later, LSBLK)
    # An inactive entry is not tried, and a list of one partition does not show that another is gone.
    assert ids(order.replace("0002,0000", "0000,0002"), LONG_18, LSBLK) == []
    one = '$ blkid | grep nvme0n1p1\n/dev/nvme0n1p1: UUID="1A2B-3C4D" TYPE="vfat" PARTUUID="7f1c2a3b-0000-4000-8000-0000000000a1"\n'
    assert ids(later, one) == []
    assert "could not judge whether all entries lead to a disk" in notes(later, one)
    assert ids(later) == []
    assert "could not judge whether the disks of the entries are there" in notes(later)


def test_first_entry_that_was_passed_over() -> None:
    text = HEAD.replace("0001,0000,0002,0003,0009", "0003,0000") + LONG_17
    assert ids(text, LSBLK) == ["boot-entry-passed-over"]
    assert "Secure Boot" not in titles(text, LSBLK)
    assert r"the first starts \EFI\BOOT\BOOTX64.EFI without shim" in titles(
        text, LSBLK, "SecureBoot enabled"
    )
    assert "Secure Boot" not in titles(text, LSBLK, "SecureBoot disabled")
    without = text.replace("0003,0000", "0004,0000")
    assert titles(without).startswith(
        "0004 Linux Boot Manager names no disk, only a file; it is first"
    )


def test_disk_that_starts_by_the_fallback_path_only() -> None:
    text = (
        HEAD.replace("BootCurrent: 0000", "BootCurrent: 0003").replace(
            "0001,0000,0002,0003,0009", "0003"
        )
        + LONG_17
    )
    answer = explain(text).answers[0]
    assert (answer.id, answer.effect) == ("firmware-finds-no-system", "none")
    assert "fallback path only" in answer.title


def test_esp_or_root_on_another_disk_than_the_firmware_started() -> None:
    text = HEAD.replace("0001,0000,0002,0003,0009", "0000") + LONG_17
    other = SECOND.replace("000000a1", "000000a1 /boot/efi")
    first = LSBLK.replace(" /boot/efi", "")
    assert (
        titles(text, first + other)
        == "/ is on disk nvme0n1, and the ESP at /boot/efi on disk nvme1n1"
    )
    moved = (
        LSBLK.replace(" /var/lib/docker", "")
        .replace(" " * 121 + "/\n", "")
        .replace(" /boot/efi", "")
    )
    both = moved + other.replace("000000a2", "000000a2 /")
    assert (
        "the firmware booted from nvme0n1p1, and the ESP at /boot/efi is another partition, on disk nvme1n1"
        in titles(text, both)
    )
    assert ids(text, both) == ["boot-from-two-disks"]


def test_disks_that_are_copies() -> None:
    copy = SECOND.replace("9A2B", "1A2B").replace("8f1c2a3b", "7f1c2a3b")
    assert "nvme0n1p1 and nvme1n1p1 have the same partition GUID" in titles(LSBLK + copy)
    assert ids(LSBLK + copy) == ["disks-are-copies"]
    assert ids(LSBLK + SECOND) == []
    member = LSBLK.replace("vfat  ", "btrfs ") + copy.replace("vfat  ", "btrfs ").replace(
        "7f1c2a3b", "8f1c2a3b"
    )
    assert ids(member) == []  # a file system on several disks has one UUID
    paths = LSBLK + copy + "mpatha       1.8T mpath\n"
    assert "disks-are-copies" not in ids(paths)


MIRROR = """sda       8:0    0 931.5G  0 disk
├─sda1    8:1    0   953M  0 part
│ └─md0   9:0    0 952.9M  0 raid1 /boot/efi
sdb       8:16   0 931.5G  0 disk
└─sdb1    8:17   0   953M  0 part
  └─md0   9:0    0 952.9M  0 raid1 /boot/efi
"""


def test_efi_partition_on_a_mirror() -> None:
    assert titles(MIRROR) == (
        "The EFI partition at /boot/efi is md0, a software RAID of sda and sdb, which the firmware does not know"
    )
    assert ids(MIRROR.replace(" raid1 /boot/efi", " raid1 /srv")) == []


def test_partitions_that_may_be_of_the_firmware() -> None:
    rows = "NAME   TYPE FSTYPE MOUNTPOINT\nsda    disk\n└─sda1 part vfat   {}\nsdb    disk\n└─sdb1 part vfat   /boot/efi\n"
    assert "2 EFI partitions, by their types or as they are FAT: sda1, sdb1" in notes(
        rows.format("")
    )
    assert "EFI partitions" not in notes(rows.format("/media/stick"))


def test_labels_of_an_image_on_two_disks() -> None:
    rows = "NAME SIZE TYPE PARTLABEL\nsda 1T disk\n├─sda1 1G part {0}\n└─sda2 9G part {1}\nsdb 1T disk\n├─sdb1 1G part {0}\n└─sdb2 9G part {1}\n"
    table = [line.split() for line in rows.format("esp", "root-a").splitlines()]
    aligned = "\n".join(f"{row[0]:8}{row[1]:>5} {row[2]:5}{' '.join(row[3:])}" for row in table)
    assert "sda1 and sdb1 are all named esp" in titles(aligned)
    assert titles(aligned.replace("root-a", "system")) == ""


def test_names_that_no_device_has() -> None:
    alert = "ALERT!  PARTUUID=11111111-0000-4000-8000-0000000000a2 does not exist.  Dropping to a shell!"
    assert "which no listed device has (nvme0n1p1 7f1c2a3b" in titles(alert, LSBLK)
    assert titles(alert) == "The kernel did not find the disk of the system at boot"
    here = alert.replace("11111111", "7f1c2a3b")
    assert "which no listed device has" not in titles(here, LSBLK)
    fstab = "UUID=0000-1111 /boot/efi vfat umask=0077 0 1"
    assert "fstab names UUID=0000-1111 for /boot/efi" in titles(fstab, LSBLK)
    assert titles(fstab.replace("0000-1111", "1A2B-3C4D"), LSBLK) == ""
    assert "BOOT_IMAGE" not in titles(
        "BOOT_IMAGE=/vmlinuz root=UUID=7f1c2a3b-0000-4000-8000-0000000000c1 ro", LSBLK
    )
    assert ids("BOOT_IMAGE=/vmlinuz root=UUID=0f1c2a3b-0000-4000-8000-0000000000c1 ro", LSBLK) == [
        "root-not-found-at-boot"
    ]


BLKID = """/dev/zram0: TYPE="swap"
/dev/nvme0n1p1: UUID="1A2B-3C4D" BLOCK_SIZE="512" TYPE="vfat" PARTUUID="7f1c2a3b-0000-4000-8000-0000000000a1"
/dev/nvme1n1p1: UUID="9A2B-3C4D" BLOCK_SIZE="512" TYPE="vfat" PARTUUID="8f1c2a3b-0000-4000-8000-0000000000a1"
"""


def test_mounts_of_fstab_count_where_no_list_has_any() -> None:
    text = HEAD.replace("0001,0000,0002,0003,0009", "0000") + LONG_17
    fstab = "UUID=1A2B-3C4D /boot/efi vfat errors=remount-ro 0 1"
    assert ids(text, BLKID, fstab) == []
    other = fstab.replace("1A2B", "9A2B")
    reason = "the firmware booted from nvme0n1p1, and the ESP at /boot/efi is another partition"
    assert reason in titles(text, BLKID, other)
    assert ids(text, LSBLK + SECOND, other) == []  # the mounts of lsblk are those of now


def test_rows_of_devices_without_a_medium_end_no_list() -> None:
    head = "NAME  FSTYPE FSVER LABEL UUID FSAVAIL FSUSE% MOUNTPOINTS"
    text = f"{head}\nzram0\nsr0\nvda                             72.1G   100% /\n"
    assert ids(text) == ["disk-full"]


DF = (
    "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme0n1p1  511M  {0}M     0  {1}% {2}\n"
)


@pytest.mark.parametrize(
    ("use", "mount", "wanted"),
    [
        (96, "/boot/efi", ["initramfs-not-written"]),
        (94, "/boot/efi", []),
        (99, "/", []),
        (100, "/", ["disk-full"]),
        (100, "/snap/core/1", ["disk-full"]),
    ],
)
def test_full_file_systems(use: int, mount: str, wanted: list[str]) -> None:
    assert ids(DF.format(use, use, mount)) == wanted
    assert ids(DF.format(use, use, mount).replace("nvme0n1p1", "loop1")) == []


# bootctl 262 (Debian 14); that of 252 and 257 has the same fields, 252 with File and ESP for the loader's partition.
BOOTCTL = """System:
      Firmware: UEFI 2.70 (EDK II 1.00)
   Secure Boot: enabled (user)

Current Boot Loader:
        Product: systemd-boot 262-1
      Partition: /dev/disk/by-partuuid/7f1c2a3b-0000-4000-8000-0000000000a1
         Loader: └─/EFI/systemd/systemd-bootx64.efi

Available Boot Loaders on ESP:
          ESP: /boot/efi (/dev/disk/by-partuuid/7f1c2a3b-0000-4000-8000-0000000000a1)
         File: ├─/EFI/systemd/systemd-bootx64.efi (systemd-boot 262-1)
               └─/EFI/BOOT/BOOTX64.EFI (systemd-boot 262-1)

Boot Loaders Listed in EFI Variables:
        Title: Linux Boot Manager
           ID: 0x0001
       Status: active, boot-order
    Partition: /dev/disk/by-partuuid/7f1c2a3b-0000-4000-8000-0000000000a1
         File: └─/EFI/systemd/systemd-bootx64.efi

Boot Loader Entry Locations:
          ESP: /boot/efi ($BOOT)
       config: /boot/efi//loader/loader.conf
        token: debian

Default Boot Loader Entry:
         type: Boot Loader Specification Type #1 (.conf)
        title: Debian a
           id: goldnode-a.conf
       source: /boot/efi//loader/entries/goldnode-a+2-1.conf (on the EFI System Partition)
        tries: 2 left; 1 done
      version: 2
        linux: /boot/efi//debian/vmlinuz
       initrd: /boot/efi//debian/initrd
      options: root=PARTUUID=7f1c2a3b-0000-4000-8000-0000000000a2 ro
"""


@pytest.mark.parametrize("release", [252, 262])
def test_bootctl_of_a_machine_without_a_fault(release: int) -> None:
    text = BOOTCTL
    if release == 252:
        text = text.replace("      Partition:", "          ESP:").replace("Loader: └", "File: └")
        text = text.replace("        tries: 2 left; 1 done\n", "").replace(
            "Entry Locations", "Entries"
        )
    assert not explain(text + LSBLK).unread
    assert ids(text, LSBLK) == []
    assert "Secure Boot enabled" in notes(text)


def test_bootctl_with_another_esp_than_the_loaders() -> None:
    text = BOOTCTL.replace(
        "ESP: /boot/efi (/dev/disk/by-partuuid/7f1c", "ESP: /boot/efi (/dev/disk/by-partuuid/8f1c"
    )
    assert ids(text) == ["boot-from-two-disks"]


def test_systemd_boot_without_an_entry_of_the_firmware() -> None:
    text = BOOTCTL.replace("Product: systemd-boot 262-1", "Product: n/a")
    assert ids(text) == []
    text = text.replace(
        "File: └─/EFI/systemd/systemd-bootx64.efi", "File: └─/EFI/debian/shimx64.efi"
    )
    assert ids(text) == ["loader-has-no-entry"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            BOOTCTL.replace("a+2-1.conf", "a+0-3.conf").replace("2 left; 1 done", "0 left; 3 done"),
            "goldnode-a+0-3.conf has no tries left (3 failed), and is the default",
        ),
        ("ls /boot/efi/loader/entries\ngoldnode-a+0-3.conf\ngoldnode-b+3.conf\n", "goldnode-a+0-3.conf has no tries left (3 failed)"),
        ("ls /boot/efi/EFI/Linux\nimage_7+0-3.efi\n", "image_7+0-3.efi has no tries left (3 failed)"),
        ("ls /boot/efi/loader/entries\ngoldnode-a+1-2.conf\n", ""),
        ("/etc/ld.so.conf.d/gtk+0.conf", ""),
    ],
)  # fmt: skip
def test_tries_of_entries(text: str, wanted: str) -> None:
    assert titles(text) == wanted


def test_default_of_bootctl_asks_for_a_partition_that_is_gone() -> None:
    text = BOOTCTL.replace("root=PARTUUID=7f1c", "root=PARTUUID=6f1c")
    assert "The boot asks for PARTUUID=6f1c2a3b" in titles(text, LSBLK)
    assert titles(text.replace("Default Boot Loader Entry:", "Boot Loader Entries:"), LSBLK) == ""


def test_sizes_that_changed_places() -> None:
    one = "NAME    MAJ:MIN RM SIZE RO TYPE MOUNTPOINT\nnvme0n1 259:0    0  30G  0 disk /\nnvme1n1 259:1    0  50G  0 disk /data\n\n"
    assert ids(one, one) == []
    swapped = one.replace("30G", "xxG").replace("50G", "30G").replace("xxG", "50G")
    assert (
        titles(one, swapped)
        == "Disks have other names in the second list (nvme0n1: 30G, then 50G, nvme1n1: 50G, then 30G)"
    )
    full = DF.format(100, 100, "/")
    assert ids(one, one, full) == ["disk-full"]
    assert ids(one, swapped, full) == ["disk-names-change"]
    grown = one.replace("50G", "80G")
    assert ids(one, grown) == []
    assert "could not judge the rest" in notes(one, grown)


@pytest.mark.parametrize(
    "text",
    [
        "NAME         UUID                                  TYPE      DEVICE\nWired        7f1c2a3b-0000-4000-8000-0000000000a1  ethernet  eth0",
        "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE\nkubernetes ClusterIP 10.0.0.1 <none> 443/TCP 1d",
        "Timeout: 5 seconds",
        "reserving Boot0001* nothing",
        "+--------+\n| Name | SIZE |\n+--------+",
        "root=UUID=7f1c2a3b-0000-4000-8000-0000000000a1",
    ],
)  # fmt: skip
def test_other_tables_and_words_are_left_to_others(text: str) -> None:
    assert boot(text.splitlines()) is None


def test_list_as_json_and_as_pairs_is_that_of_the_table() -> None:
    document = """{
   "blockdevices": [
      {"name": "nvme0n1", "type": "disk", "size": "1.8T", "mountpoints": [null], "children": [
         {"name": "nvme0n1p1", "type": "part", "fstype": "vfat", "uuid": "1A2B-3C4D", "partuuid": "7F1C2A3B-0000-4000-8000-0000000000a1",
          "mountpoints": ["/boot/efi"]}]}
   ]
}"""
    pairs = (
        'NAME="nvme0n1" TYPE="disk" MOUNTPOINTS=""\nNAME="nvme0n1p1" TYPE="part" FSTYPE="vfat" UUID="1A2B-3C4D"'
        ' PARTUUID="7f1c2a3b-0000-4000-8000-0000000000a1" MOUNTPOINTS="/boot/efi"'
    )
    for text in (document, pairs, LSBLK):
        device = blocks.read(text.splitlines()).devices["nvme0n1p1"]
        assert device.column("partuuid") == "7f1c2a3b-0000-4000-8000-0000000000a1"
        assert device.disks == frozenset({"nvme0n1"})
        assert (device.mounts, device.esp) == (["/boot/efi"], True)
    assert blocks.read(['{"blockdevices": [']).devices == {}


def test_second_mount_of_a_device_and_labels_with_blanks() -> None:
    found = blocks.read(LSBLK.splitlines()).devices
    assert found["nvme0n1p2"].mounts == ["/var/lib/docker", "/"]
    assert found["nvme0n1p1"].column("parttypename") == "EFI System"


PIECES = [
    *HEAD.splitlines(),
    *LONG_18.splitlines(),
    *LSBLK.splitlines(),
    *BOOTCTL.splitlines(),
    *DF.splitlines(),
    "",
    "{",
    '"blockdevices": [',
]


@given(
    st.lists(
        st.sampled_from(PIECES).flatmap(
            lambda line: st.integers(0, len(line)).map(lambda cut: line[cut:])
        ),
        max_size=12,
    )
)
def test_any_mixture_of_lines_is_read(lines: list[str]) -> None:
    boot(lines)


@pytest.mark.parametrize(
    "piece", ["-", "aa:", "| ", "a", "NAME ", "│ ", "/dev/", "Boot0000* \\a", '"', "+0", "UUID="]
)
def test_long_line_takes_no_time(piece: str) -> None:
    line = (piece * 20000)[:20000]
    begun = time.process_time()
    boot([line, "BootOrder: 0000", "BootCurrent: 0000", "NAME SIZE TYPE", line])
    assert time.process_time() - begun < 3
