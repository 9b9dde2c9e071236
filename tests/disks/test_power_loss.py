"""Power that goes at any moment of any write on the ESP: every disk that it can leave passes fsck.vfat and boots one of the two slots.

The disks come from the log of a real run (powercut.py). To see that a fault would be seen, one step writes an entry as goldnode once did.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.disks import powercut, slotdisk
from tests.disks.powercut import MIB
from tests.disks.test_disk_slots import tree
from tests.e2e.qemu.disk import OVMF_VARS, GuestError

from goldnode.disks import esp

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
    """Disks of each step with most to repair, not repaired: OVMF's FAT, systemd-boot and Linux start what was expected of them.

    With GOLDNODE_POWER_RUN=FOLDER the log and every result stay there, and a run that was interrupted goes on.
    """
    folder = Path(os.environ.get("GOLDNODE_POWER_RUN") or tmp_path)
    versions = powercut.real(tree, NAMES)
    if not (folder / "recorded").exists():
        loader = powercut.from_tree(tree, "usr/lib/systemd/boot/efi/systemd-bootx64.efi")
        efi = {"EFI/BOOT/BOOTX64.EFI": loader}
        size = 264 * MIB
        powercut.record(tree, folder, size=size, eager=0.5, versions=versions, extra=efi)
        (folder / "recorded").touch()
    found = powercut.recorded(folder, 264 * MIB)
    with memory(tmp_path) as place:
        chosen = hardest(powercut.judge(found, versions, place, share=0.1))
    (tmp_path / "none").write_bytes(bytes(MIB))
    record = folder / "booted.jsonl"
    done = {row["disk"] for row in lines(record)}
    for name, copy in chosen.items():
        if name in done:
            continue
        disk, begun = powercut.rebuilt(found, copy, tmp_path / "cut.raw"), time.monotonic()
        started = first_line(disk, tmp_path, name)
        # The step `control` changes the words of an entry alone.
        wanted = "newer b" if copy.raw == "control" else copy.raw
        right = started.startswith(f"{wanted}: ") and (copy.raw == "control") == (
            " control " in started
        )
        row = {"disk": name, "wanted": copy.raw, "started": started, "right": right}
        row.update(fsck=copy.status, seconds=round(time.monotonic() - begun))
        with record.open("a") as out:
            print(json.dumps(row), file=out)
    rows = lines(record)
    bad = [row for row in rows if not row["right"]]
    assert not bad, (len(bad), bad[:3])
    assert len(rows) >= 40


# MiB of the ESP, and whether its directories have room, as those of every image; without it, names may be lost.
ESPS = {"large": (264, True), "small": (96, True), "small-without-room": (96, False)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ESPS)
def test_a_cut_while_the_firmware_counts_leaves_an_image_that_boots(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """systemd-boot renames an entry before it starts it, and the firmware's FAT writes that: parts of it, in any order."""
    size, room = ESPS[kind]
    if not room:
        monkeypatch.setattr(esp, "SMALL", 0)  # then no room is made, and clusters are as small
    names = ("a", "new a", "new b", "newer b")
    versions = powercut.real(tree, names)
    loader = powercut.from_tree(tree, "usr/lib/systemd/boot/efi/systemd-bootx64.efi")
    new = powercut.entry("b", 3, "ccc", versions["new b"])
    extra = {name.replace("-b.conf", "-b+3.conf"): content for name, content in new.items()}
    # A name of another program, so that the directory has little room left.
    extra |= {"EFI/BOOT/BOOTX64.EFI": loader, "loader/entries/notes-of-this-site.txt": b"none"}
    disk = powercut.blank(tmp_path / "disk.raw", size * MIB, extra, versions)
    may, result = powercut.known(versions), Counter[str]()
    for _ in range(3):
        epochs = counted(disk, tmp_path)
        powercut.sparse(disk, tmp_path / "esp.img", powercut.START, size * MIB)
        result += Counter(outcomes(tmp_path / "esp.img", epochs, may))
        with disk.open("r+b") as out:
            for sector, data in (row for epoch in epochs for row in epoch):
                os.pwrite(out.fileno(), data, sector * powercut.SECTOR)
    print(f"{kind}: {dict(result)}")
    lost = {name: number for name, number in result.items() if name not in ("a", "new b")}
    assert bool(lost) != room, result
    assert result["new b"] > 3


def counted(disk: Path, scratch: Path) -> list[list[tuple[int, bytes]]]:
    """Boot a disk, and return what firmware and loader write on it: the sectors between two flushes, as often as they are written."""
    work, log = scratch / "work.raw", scratch / "count.log"
    powercut.sparse(disk, work)
    log.write_bytes(b"")
    if not (scratch / "vars.fd").exists():
        shutil.copy(OVMF_VARS, scratch / "vars.fd")
    command = [*slotdisk.machine(scratch / "vars.fd"), "-nic", "none", "-no-reboot"]
    command += [*powercut.logged(work, log), "-device", "virtio-blk-pci,drive=logged,bootindex=0"]
    with slotdisk.started(command, scratch / "count.console") as machine:
        machine.wait("POWER BOOTED new b: ", limit=1800)
        machine.wait("GUEST ENDED", limit=300)
    found: list[list[tuple[int, bytes]]] = [[]]
    for event in powercut.events(log):
        if isinstance(event, powercut.Write):
            parts = range(0, len(event.data), powercut.SECTOR)
            found[-1] += [
                (event.sector + at // powercut.SECTOR, event.data[at : at + powercut.SECTOR])
                for at in parts
            ]
        else:
            found.append([])
    return [epoch for epoch in found if epoch]


def outcomes(
    image: Path, epochs: list[list[tuple[int, bytes]]], may: Mapping[Any, str]
) -> Iterator[str]:
    """Return the kernels that an ESP starts after each part of each epoch's sectors, in any order; the image is left as at the end."""
    first = powercut.START // powercut.SECTOR
    for epoch in epochs:
        content = image.read_bytes()
        spots = {(sector - first) * powercut.SECTOR: data for sector, data in epoch}
        changed = [at for at, data in spots.items() if content[at : at + len(data)] != data]
        parts = list(itertools.product((False, True), repeat=min(len(changed), 12)))
        if len(changed) > 6:
            chance = random.Random(1)  # noqa: S311
            parts = [tuple(chance.random() < 0.5 for _ in changed) for _ in range(64)]
        for part in (*parts, (True,) * len(changed)):
            with image.open("r+b") as out:
                for at, there in zip(changed, part, strict=True):
                    out.seek(at)
                    out.write(spots[at] if there else content[at : at + powercut.SECTOR])
            volume = powercut.Volume(image)
            try:
                yield powercut.boots(volume, powercut.ROOT, may)
            except powercut.BrokenError as problem:
                yield str(problem)
            finally:
                volume.close()


def first_line(disk: Path, scratch: Path, name: str) -> str:
    """Return the output of the initramfs in a boot of a disk. On a busy machine the emulated timer may fail: then it boots again."""
    text = ""
    for _ in range(3):
        with slotdisk.guest(disk, scratch / "none", scratch, "-no-reboot", name=name) as machine:
            try:
                at = machine.wait("POWER BOOTED ", limit=1800)
                return machine.lines[at - 1].partition("POWER BOOTED ")[2]
            except GuestError as problem:
                text = str(problem)[-2000:]
        if "IO-APIC + timer doesn't work" not in text:
            break
    return text


def hardest(copies: Iterable[powercut.Copy]) -> dict[str, powercut.Copy]:
    """Of each step the disks with most to repair, and no two that are repaired alike: name -> disk."""
    steps: dict[str, list[powercut.Copy]] = {}
    for copy in copies:
        assert copy.step == "control" or not copy.bad, (copy.step, copy.raw, copy.repaired)
        steps.setdefault(copy.step, []).append(copy)
    found = {}
    for step in sorted(set(steps) - {"control"}):
        rows = sorted(steps[step], key=lambda copy: -copy.reported.count("\n"))
        unlike = {(copy.raw, copy.repaired, copy.reported): copy for copy in reversed(rows)}
        first = [*reversed(unlike.values()), *(row for row in rows if row not in unlike.values())]
        found.update({f"{step}-{number}": copy for number, copy in enumerate(first[:8])})
    return found


def lines(record: Path) -> list[dict[str, Any]]:
    """The results of earlier runs."""
    return [json.loads(text) for text in record.read_text().splitlines()] if record.exists() else []
