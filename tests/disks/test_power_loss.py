"""Power that goes at any moment of any write on the ESP: every disk that it can leave passes fsck.vfat and boots one of the two slots.

The disks come from the log of a real run (powercut.py). To see that a fault would be seen, one step writes an entry as goldnode once did.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.disks import powercut, slotdisk
from tests.disks.powercut import MIB
from tests.disks.test_disk_slots import tree

pytestmark = [pytest.mark.disks, pytest.mark.xdist_group("power")]

__all__ = ["tree"]

NAMES = ("a", "b", "new a", "new b", "newer b")
# MiB of the ESP (below 260 a cluster is a sector, and directories are small), how many of the calls the kernel follows with writes of its own,
# and whether slot b holds an image.
RUNS = {
    "as-it-comes": (264, 0.0, True),
    "mixed": (264, 0.5, True),
    "eager": (264, 1.0, False),
    "small-esp": (96, 0.0, False),
    "small-esp-eager": (96, 1.0, True),
}


@contextmanager
def memory(scratch: Path) -> Iterator[Path]:
    """Make a directory for copies, in memory where there is some: there are thousands."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="goldnode-power-", dir=shared if shared.is_dir() else scratch
    ) as place:
        yield Path(place)


def cut_everywhere(tree: Path, scratch: Path, run: str) -> None:
    size, eager, other = RUNS[run]
    versions = {name: powercut.fake(name) for name in NAMES if other or name != "b"}
    found = powercut.record(tree, scratch, size=size * MIB, eager=eager, versions=versions)
    copies: Counter[str] = Counter()
    bad: dict[str, list[tuple[str, str, int]]] = {}
    with memory(scratch) as place:
        for copy in powercut.judge(found, versions, place):
            copies[copy.step] += 1
            if copy.bad:
                bad.setdefault(copy.step, []).append((copy.raw, copy.repaired, copy.status))
    assert set(copies) == set(powercut.MAY)
    print(f"{sum(copies.values())} copies: {dict(copies)}")
    assert bad.pop("control", []), (
        "nothing is seen of what a rename over an entry can lose: the test sees nothing"
    )
    assert not bad, {step: (len(rows), copies[step], rows[:3]) for step, rows in bad.items()}
    assert sum(copies.values()) > 1000


def test_every_disk_that_a_power_cut_leaves_boots(tree: Path, tmp_path: Path) -> None:
    cut_everywhere(tree, tmp_path, "mixed")


@pytest.mark.long
@pytest.mark.parametrize("run", [name for name in RUNS if name != "mixed"])
def test_every_disk_that_a_power_cut_leaves_boots_however_the_kernel_writes(
    tree: Path, tmp_path: Path, run: str
) -> None:
    cut_everywhere(tree, tmp_path, run)


def test_a_volume_is_read_as_mtools_reads_it(tmp_path: Path) -> None:
    versions = {name: powercut.fake(name) for name in NAMES}
    disk = powercut.blank(tmp_path / "disk.raw", 96 * MIB, {}, versions)
    powercut.sparse(disk, tmp_path / "esp.img", powercut.START, 96 * MIB)
    volume = powercut.Volume(tmp_path / "esp.img")
    for folder in ("", "loader/entries", "goldnode/a"):
        listed = subprocess.run(
            ["mdir", "-b", "-i", tmp_path / "esp.img", f"::/{folder}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert {
            line.rstrip("/").rpartition("/")[2].lower() for line in listed.stdout.split()
        } == set(volume.list(folder))
        for name, (directory, _, _) in volume.list(folder).items():
            if not directory:
                read = subprocess.run(
                    ["mtype", "-i", tmp_path / "esp.img", f"::/{folder}/{name}"],
                    capture_output=True,
                    check=True,
                )
                assert read.stdout == volume.read(f"{folder}/{name}")
    assert powercut.boots(volume, bytes(len(powercut.ROOT)), powercut.known(versions)) == "a"
    volume.close()


@pytest.mark.long
def test_the_hardest_disks_boot_under_real_firmware(tree: Path, tmp_path: Path) -> None:
    """Of each step the disk with most to repair, not repaired: OVMF's FAT, systemd-boot and Linux start what was expected of it."""
    versions = powercut.real(tree, NAMES)
    efi = {
        "EFI/BOOT/BOOTX64.EFI": powercut.from_tree(
            tree, "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
        )
    }
    found = powercut.record(tree, tmp_path, size=264 * MIB, eager=0.5, versions=versions, extra=efi)
    hardest: dict[str, powercut.Copy] = {}
    with memory(tmp_path) as place:
        for copy in powercut.judge(found, versions, place, share=0.1):
            assert copy.step == "control" or not copy.bad, (copy.step, copy.raw, copy.repaired)
            if copy.step not in hardest or copy.reported.count("\n") > hardest[
                copy.step
            ].reported.count("\n"):
                hardest[copy.step] = copy
    (tmp_path / "none").write_bytes(bytes(MIB))
    for step in ("sync", "write", "good", "again", "back"):
        copy = hardest[step]
        disk = powercut.rebuilt(found, copy, tmp_path / "cut.raw")
        with slotdisk.guest(disk, tmp_path / "none", tmp_path, "-no-reboot", name=step) as machine:
            machine.wait(f"POWER BOOTED {copy.raw}: ", limit=600)
