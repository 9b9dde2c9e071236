"""A real run of a disk with two slots, logged write by write, and the disks that a power cut in it can leave.

Debian boots from an emulated disk under real firmware: the first boot's identity, an update, systemd-boot's counting, the blessing, a new initramfs, a
new kernel, and the way back. QEMU's `blklogwrites` logs every write and flush of firmware, initramfs and system. powercut.py is the small
brother: an initramfs that only writes the ESP, cut in all orders.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.disks import powercut, slotdisk
from tests.disks.powercut import EPOCH, MARKS, SECTOR
from tests.disks.test_disk_identity import shape
from tests.disks.test_disk_slots import apply, document
from tests.e2e.qemu.disk import OVMF_VARS, debian, run

from goldnode.core import program_file as nodefile
from goldnode.disks import esp
from goldnode.fleet.nodes import disk_update as update
from goldnode.node.state.domains.program import document_digest

MIB = 1 << 20
# The update grows into the second slot; there is room for two kernels, and the ESP has some for the recovery.
SIZES = (160 * MIB, 640 * MIB, 672 * MIB)
GUEST = Path(__file__).parent / "guest_power_run.sh"
SUITE = "bookworm"


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Have the program wait longer for units: emulated on a busy machine, the limit of 90 s would end every trial."""
    real, name = nodefile.sources, "goldnode/node/slots/trial.py"

    def sources(**options: bool) -> dict[str, bytes]:
        rows = real(**options)
        assert b"SETTLE = 90.0" in rows[name]
        return {**rows, name: rows[name].replace(b"SETTLE = 90.0", b"SETTLE = 1500.0")}

    nodefile.build.cache_clear()
    with mock.patch.object(nodefile, "sources", sources):
        yield
    nodefile.build.cache_clear()


def build(place: Path) -> None:
    """Make disk.raw (as built, slot a) and payload.img (the update, a second kernel) in a directory."""
    with patient():
        _build(place)


def _build(place: Path) -> None:
    root = slotdisk.unpack(slotdisk.tree(debian(SUITE, place), more=slotdisk.MORE), place / "root")
    wanted = document(root)
    apply(root, {**wanted, "digest": document_digest(wanted)})
    shape(root)
    # slotdisk masks the unit that makes them, and without a key ssh.service fails and ends every trial.
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / "etc/ssh/ssh_host_ed25519_key")
    release = slotdisk.release(root)
    about = {
        "name": "boot_test-aaa",
        "class": "boot_test",
        "build_id": "aaa",
        "sequence": 1,
        "kernel": release,
    }
    image = slotdisk.root_image(root, place / "root.img", SIZES[1], features="metadata_csum_seed")
    slotdisk.disk(root, image, about, place / "disk.raw", place, f"label-id: {SHIPPED}\n", SIZES)
    remake_esp(place / "disk.raw")
    sent = {
        **{key: about[key] for key in ("class", "kernel")},
        "name": "boot_test-bbb",
        "build_id": "bbb",
        "options": f"root=PARTLABEL=root-a {slotdisk.OPTIONS}",
        "root": slotdisk.sent(image),
    }
    with (place / "image").open("wb") as out:
        update.send(image, 0, update.first_line(sent, 3, "a test"), out.write)
    image.unlink()
    other, package = second_kernel(place, release)
    files: dict[str, bytes | str | Path] = {
        "run": GUEST.read_text(),
        "mode": "record\n",
        "release": other,
        "update.pyz": nodefile.build(writer=True),
        "kernel.deb": package,
        "image": place / "image",
    }
    slotdisk.payload(files, place / "payload.img", place)
    files = {"run": GUEST.read_text(), "mode": "observe\n"}
    slotdisk.payload(files, place / "observe.img", place, "8M")
    shutil.rmtree(root)
    (place / "image").unlink()


def remake_esp(disk: Path, size: int = SIZES[0]) -> None:
    """Have the ESP be as that of every image: with room in its directories, so that they do not grow."""
    copy = disk.with_suffix(".esp")
    powercut.sparse(disk, copy, MIB, size)
    volume, files = powercut.Volume(copy), {}
    folders = [""]
    for folder in folders:
        for name, (directory, _, _) in volume.list(folder).items():
            path = f"{folder}/{name}".lstrip("/")
            if directory:
                folders.append(path)
            else:
                files[path] = volume.read(path)
    volume.close()
    copy.unlink()
    run("fallocate", "--punch-hole", "--offset", str(MIB), "--length", str(size), disk)
    esp.make(disk, MIB, size, files, label="ESP", volume=SHIPPED.replace("-", "")[:8], epoch=EPOCH)


# A GUID of version 5, as every disk has that was built and has not booted.
SHIPPED = "5e1f7a3c-0b52-5d6e-9c41-6b1d5f0e8a27"


def second_kernel(place: Path, release: str) -> tuple[str, Path]:
    """Download the archive's kernel before the one of the tree: its release and its package."""
    series, number, rest = re.fullmatch(r"(.+-)(\d+)(-cloud-amd64)", release).groups()  # type: ignore[union-attr]
    for earlier in range(int(number) - 1, int(number) - 9, -1):
        name = f"linux-image-{series}{earlier}{rest}"
        done = subprocess.run(
            ["apt-get", "download", name], cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            (package,) = place.glob(f"{name}_*.deb")
            return f"{series}{earlier}{rest}", package
    raise RuntimeError(f"the archive has no kernel before {release}: {done.stderr}")


def record(place: Path, limit: float = 5400) -> None:
    """Run all steps from disk.raw, and leave writes.log beside it."""
    work, log = place / "work.raw", place / "writes.log"
    run("cp", "--sparse=always", place / "disk.raw", work)
    log.write_bytes(b"")

    shutil.copy(OVMF_VARS, place / "record.fd")
    command: list[str | Path] = [
        "nice", "-n", "5", *slotdisk.machine(place / "record.fd"), "-nic", "none",
        *powercut.logged(work, log),
        "-device", "virtio-blk-pci,drive=logged,num-queues=1,discard=off,write-zeroes=off,bootindex=0",
        "-drive", f"file={place / 'payload.img'},if=virtio,format=raw,readonly=on",
    ]  # fmt: skip
    with slotdisk.started(command, place / "record.console") as guest:
        guest.wait("GUEST THROUGH", limit=limit)
        guest.wait("GUEST ENDED", limit=600)
    work.unlink()


# -- the log


@dataclass(frozen=True)
class LoggedWrite:
    """A write of the log: first sector, number of sectors, and where the log has its data."""

    sector: int
    count: int
    at: int


@dataclass(frozen=True)
class Epoch:
    """Writes between two flushes: `writes` are lost, kept or torn if the power goes before the second flush."""

    number: int
    step: str  # the step of its first write
    steps: tuple[str, ...]  # all steps that have begun or ended in it
    writes: tuple[LoggedWrite, ...]


def epochs(log: Path) -> list[Epoch]:
    """Read the log of a run, up to the mark that ends it. The format is that of Linux's dm-log-writes."""
    found: list[Epoch] = []
    step = before = "identity"
    steps, writes = ["identity"], list[LoggedWrite]()
    with log.open("rb") as opened:
        magic, version, count, size = struct.unpack("<QQQI", opened.read(28))
        assert (magic, version, size) == (0x6A736677736872, 1, SECTOR), (hex(magic), version, size)
        at = SECTOR
        for _ in range(count):
            opened.seek(at)
            sector, number, flags, _ = struct.unpack("<QQQQ", opened.read(32))
            assert not flags & 4, "a discard: the device of the run has none"
            at += SECTOR
            if flags & 3:
                assert not flags & 2 or not number, "a write that is flushed by itself"
                if writes or steps != [before]:
                    found.append(Epoch(len(found), before, tuple(steps), tuple(writes)))
                before, steps, writes = step, [step], []
            if sector == MARKS and number == 1:
                word, _, name = opened.read(SECTOR).decode().strip("\0 ").partition(" ")
                step = name if word == "begin" else f"after {name}"
                steps.append(step)
            elif number:
                writes.append(LoggedWrite(sector, number, at))
            at += number * SECTOR
    found.append(Epoch(len(found), before, tuple(steps), tuple(writes)))
    return found


# -- copies


PARTITIONS = ("esp", "root-a", "root-b")


def segments() -> dict[str, tuple[int, int]]:
    """First sector and end of what a disk of :mod:`slotdisk` consists of."""
    found, at = {"head": (0, MIB // SECTOR)}, MIB
    for name, size in zip(PARTITIONS, SIZES, strict=True):
        found[name] = (at // SECTOR, (at + size) // SECTOR)
        at += size
    return {**found, "tail": (at // SECTOR, (at + MIB) // SECTOR)}


@dataclass(frozen=True)
class Point:
    """A moment at which the power goes: all epochs before `epoch`, and of it what the seed chooses (None: nothing)."""

    epoch: int
    seed: int | None


def points(found: Sequence[Epoch], seeded: int) -> list[Point]:
    """Every flush boundary, and seeded points between, spread over all steps; epochs with many writes get more."""
    rows = [Point(epoch.number, None) for epoch in found]
    chance = random.Random(1)  # noqa: S311
    steps = sorted({epoch.step for epoch in found})
    for number in range(seeded):
        step = steps[number % len(steps)]
        of_step = [epoch for epoch in found if epoch.step == step and epoch.writes]
        weights = [weight(epoch) for epoch in of_step]
        (epoch,) = chance.choices(of_step, weights)
        rows.append(Point(epoch.number, number))
    return sorted(rows, key=lambda point: (point.epoch, -1 if point.seed is None else point.seed))


def weight(epoch: Epoch) -> int:
    """Return how often an epoch is cut: by its pages, and more where it writes the ESP, which has no journal."""
    first, end = segments()["esp"]
    pages = sum(-(-write.count // 8) for write in epoch.writes)
    return min(pages, 64) + 64 * any(first <= write.sector < end for write in epoch.writes)


def survivors(epoch: Epoch, seed: int | None) -> list[LoggedWrite]:
    """Return what reached the disk of an epoch's writes: a part of them, in pieces of one sector, of eight, or whole.

    A disk without a battery writes its cache in any order, so that a write may be there without all before it. One that
    was cut in the middle is there in part: a sector of 512 or 4096 bytes is whole or not there.
    """
    if seed is None:
        return []
    chance = random.Random(f"{epoch.number} {seed}")  # noqa: S311
    grain = chance.choice((1, 8))
    order = chance.choice(("in order", "any", "any", "few", "most"))
    pieces = []
    for write in epoch.writes:
        size = grain if write.count <= 512 else 256
        for start in range(0, write.count, size):
            count = min(size, write.count - start)
            pieces.append(LoggedWrite(write.sector + start, count, write.at + start * SECTOR))
    if order == "in order":
        return pieces[: chance.randint(0, len(pieces))]
    share = {
        "any": chance.random(),
        "few": 2 / max(len(pieces), 2),
        "most": 1 - 2 / max(len(pieces), 2),
    }
    return [piece for piece in pieces if chance.random() < share[order]]


class Replay:
    """The disk of a run as its flushes have left it, moved forward from one to the next; one file for each segment."""

    def __init__(self, place: Path, found: Sequence[Epoch], scratch: Path) -> None:
        self.epochs, self.scratch, self.at = found, scratch, 0
        self.log = (place / "writes.log").open("rb")
        self.segments = segments()
        self.version = dict.fromkeys(self.segments, 0)
        for name, (first, end) in self.segments.items():
            powercut.sparse(
                place / "disk.raw", scratch / name, first * SECTOR, (end - first) * SECTOR
            )

    def forward(self, epoch: int) -> None:
        """Have everything before an epoch on the disk."""
        while self.at < epoch:
            self.apply(self.epochs[self.at].writes, lambda name: self.scratch / name)
            for name in self.touched(self.epochs[self.at].writes):
                self.version[name] += 1
                if sum(write.count for write in self.epochs[self.at].writes) > 65536:
                    run(
                        "fallocate", "--dig-holes", self.scratch / name
                    )  # it is copied for each point
            self.at += 1

    def touched(self, writes: Sequence[LoggedWrite]) -> set[str]:
        """Return the segments that writes are in."""
        return {name for write in writes for name in self._names(write)}

    def _names(self, write: LoggedWrite) -> list[str]:
        return [
            name
            for name, (first, end) in self.segments.items()
            if write.sector < end and write.sector + write.count > first
        ]

    def apply(self, writes: Sequence[LoggedWrite], path: Callable[[str], Path]) -> None:
        """Write writes of the log into the files of their segments."""
        with contextlib.ExitStack() as opened:
            files: dict[str, int] = {}
            for write in writes:
                data = os.pread(self.log.fileno(), write.count * SECTOR, write.at)
                for name in self._names(write):
                    if name not in files:
                        file = opened.enter_context(path(name).open("r+b"))
                        files[name] = file.fileno()
                    first, end = self.segments[name]
                    begin, stop = max(write.sector, first), min(write.sector + write.count, end)
                    part = data[(begin - write.sector) * SECTOR : (stop - write.sector) * SECTOR]
                    os.pwrite(files[name], part, (begin - first) * SECTOR)

    def copy(self, name: str, writes: Sequence[LoggedWrite], to: Path) -> Path:
        """Copy a segment, with writes that were not flushed."""
        powercut.sparse(self.scratch / name, to)
        own = [write for write in writes if name in self._names(write)]
        self.apply(own, lambda other: to if other == name else Path(os.devnull))
        return to

    def disk(self, writes: Sequence[LoggedWrite], to: Path) -> Path:
        """Assemble a whole disk, with writes that were not flushed."""
        with to.open("wb") as out:
            out.truncate(self.segments["tail"][1] * SECTOR)
        for name, (first, _) in self.segments.items():
            part = self.copy(name, writes, to.with_suffix(f".{name}"))
            run(
                "dd", f"if={part}", f"of={to}", f"seek={first // 2048}", "bs=1M",
                "conv=notrunc,sparse", "status=none",
            )  # fmt: skip
            part.unlink()
        return to
