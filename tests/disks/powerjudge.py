"""Judgement of a disk that a power cut can leave (powerrun.py): its repair, the entry that boots, and goldnode's report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.disks.powercut import BrokenError, Volume, chosen
from tests.disks.powerrun import PARTITIONS, LoggedWrite, Point, Replay, epochs, segments, survivors

from goldnode.node.ground.host import PROGRAM, Host
from goldnode.node.slots import identity, recovery
from goldnode.node.state import slots

# Systems that may start during a step, and after it: slot, and number of the kernel (0: the image's, 1: the other).
MAY: Mapping[str, Sequence[str]] = {
    "identity": ("a0",),
    "write": ("a0", "b0"),
    "trial": ("a0", "b0"),
    "initramfs": ("b0",),
    "kernel": ("b0", "b1"),
    "back": ("b1", "a0"),
    "return": ("b1", "a0"),
}
AFTER = {step: rows[-1:] for step, rows in MAY.items()}
BACKUP = "32768"  # block of the first backup superblock, with blocks of 4096 bytes
# Files of a kernel without which a root that is started by it lacks modules.
PROOFS = ("modules.dep", "modules.dep.bin", "modules.alias.bin", "kernel/fs/fat/vfat.ko")


def steps_of(epoch_steps: Sequence[str]) -> set[str]:
    """Return what may be started while the steps of an epoch are at work."""
    allowed: set[str] = set()
    for step in epoch_steps:
        name = step.removeprefix("after ")
        allowed |= set(AFTER[name] if step != name else MAY[name])
    return allowed


@dataclass
class Judged:
    """A disk that a power cut can leave, and what came of it. `bad` is empty if nothing is wrong."""

    epoch: int
    seed: int | None
    step: str
    raw: str = ""  # what the loader starts: entry and release, or why nothing
    repaired: str = ""  # the same after fsck.vfat
    esp: int = -1  # exit status of fsck.vfat -a
    output: str = ""  # its output
    roots: dict[str, int] = field(default_factory=dict)  # exit status of e2fsck -p
    table: str = ""
    torn: bool = False  # a root's superblock is torn, and the backup superblock repairs it
    bad: list[str] = field(default_factory=list)


def release_of(kernel: bytes) -> str:
    """Return the release of a kernel, as its header has it."""
    at = struct.unpack_from("<H", kernel, 0x20E)[0] + 0x200
    return kernel[at : at + 128].split(b"\0")[0].decode("latin-1").split(" ")[0]


def from_root(image: Path, release: str) -> dict[str, str]:
    """Digests of some of a kernel's modules in a root file system, and of goldnode's program; empty for what is not there."""
    names = (*(f"/usr/lib/modules/{release}/{proof}" for proof in PROOFS), PROGRAM)
    place = image.with_name("dumped")
    subprocess.run(["rm", "-rf", place], check=True)
    place.mkdir()
    commands = "".join(f"dump {name} {place / str(at)}\n" for at, name in enumerate(names))
    subprocess.run(
        ["debugfs", "-f", "-", str(image)],
        input=commands.encode(),
        capture_output=True,
        check=False,
    )
    rows = {}
    for at, name in enumerate(names):
        data = (place / str(at)).read_bytes() if (place / str(at)).exists() else b""
        rows[name] = hashlib.sha256(data).hexdigest() if data else ""
    return rows


def repaired(program: Sequence[str], image: Path) -> tuple[int, str]:
    """Exit status and output of a repair."""
    done = subprocess.run(
        [*program, str(image)], capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Volume]:
    volume = Volume(path)
    try:
        yield volume
    finally:
        volume.close()


def survey(volume: Volume, slot: str, place: Path) -> Mapping[str, Any]:
    """Return goldnode's report of an ESP, in a boot of a slot; kernels are cut to their headers."""

    def fill(folder: str) -> None:
        for name, (directory, _, _) in volume.list(folder).items():
            path = f"{folder}/{name}".lstrip("/")
            if directory:
                fill(path)
            elif not name.startswith("initrd"):
                (place / "efi" / folder).mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(BrokenError):
                    (place / "efi" / path).write_bytes(volume.read(path)[:65536])

    for folder in ("loader", "goldnode"):
        fill(folder)
    with mock.patch.object(slots, "running", return_value=slot):
        found = slots.survey(Host(str(place), live=False))
    assert found is not None
    return {**found, "history": slots.history(Host(str(place), live=False), found["place"])}


class Judge:
    """Judge the points of a run, in their order."""

    def __init__(self, place: Path, scratch: Path) -> None:
        self.epochs, self.scratch = epochs(place / "writes.log"), scratch
        self.memory: dict[str, tuple[object, Any]] = {}
        self._reference(place)
        self.replay = Replay(place, self.epochs, scratch)

    def _reference(self, place: Path) -> None:
        """Read the disk as built, and at the end: what is whole."""
        replay = Replay(place, self.epochs, self.scratch)
        with opened(self.scratch / "esp") as volume:
            rows = {name: volume.read(f"goldnode/a/{name}") for name in ("vmlinuz", "initrd.img")}
        self.shipped = {name: hashlib.sha256(data).hexdigest() for name, data in rows.items()}
        self.releases = [release_of(rows["vmlinuz"])]
        self.whole = {self.releases[0]: from_root(self.scratch / "root-a", self.releases[0])}
        replay.forward(len(self.epochs))
        with opened(self.scratch / "esp") as volume:
            (self.scratch / "end").mkdir(exist_ok=True)
            self.history = survey(volume, "a", self.scratch / "end")["history"]
            names = [name for name in volume.list("goldnode/b") if name.startswith("vmlinuz")]
            self.releases += [release_of(volume.read(f"goldnode/b/{name}")) for name in names]
            assert volume.names(f"loader/entries/{recovery.ENTRY}"), "the run wrote no recovery"
        assert len(self.releases) == 2, self.releases
        self.whole[self.releases[1]] = from_root(self.scratch / "root-b", self.releases[1])
        assert all(all(rows.values()) for rows in self.whole.values()), self.whole

    def _once(
        self, name: str, writes: Sequence[LoggedWrite], work: Callable[[Path], Any], of: str = ""
    ) -> Any:
        """Return what came of a segment; it is not judged twice in one state. `of`: what the work depends on besides."""
        own = tuple(write for write in writes if name in self.replay.touched([write]))
        key = (self.replay.version[name], own, of)
        before = self.memory.get(name)
        if before is not None and before[0] == key:
            return before[1]
        copy = self.replay.copy(name, own, self.scratch / f"{name}.cut")
        result = work(copy)
        copy.unlink()
        self.memory[name] = (key, result)
        return result

    def started(self, volume: Volume) -> tuple[str, str, Mapping[str, str]]:
        """The entry that is started, with what it is: slot, release, fields. BrokenError where something is not whole."""
        file, fields = chosen(volume)
        release = ""
        for key in ("linux", "initrd"):
            path = fields.get(key, "-")
            try:
                data = volume.read(path)
            except BrokenError as problem:
                raise BrokenError(f"{file}: {problem}") from None
            name, sha256 = path.rpartition("/")[2], hashlib.sha256(data).hexdigest()
            short = name.rpartition("-")[2].partition(".")[0]
            if sha256 != self.shipped.get(name) and not sha256.startswith(short):
                raise BrokenError(f"{file}: {path} is not whole")
            if key == "linux":
                release = release_of(data)
        slot = file.partition("+")[0].removesuffix(".conf")[-1]
        if not re.match(rf"root=PARTLABEL=root-{slot} .*panic=5", fields.get("options", "")):
            raise BrokenError(f"{file}: its options are {fields.get('options')}")
        return f"{file} {release}", f"{slot}{self.releases.index(release)}", fields

    def _esp(self, copy: Path) -> dict[str, Any]:
        """Start of the ESP as firmware meets it, repair, and start after that; each with goldnode's report."""
        result: dict[str, Any] = {}
        for name in ("raw", "repaired"):
            if name == "repaired":
                result["status"], result["output"] = repaired(["fsck.vfat", "-a"], copy)
                result["clean"], result["left"] = repaired(["fsck.vfat", "-n"], copy)
            with opened(copy) as volume:
                try:
                    text, what, _ = self.started(volume)
                except BrokenError as problem:
                    text, what = f"! {problem}", ""
                wrong = self._reported(volume, text) if what else []
            result[name] = (text, what, wrong)
        return result

    def _reported(self, volume: Volume, text: str) -> list[str]:
        """Return what goldnode reports that is not so, in a boot of the entry that is started."""
        file = text.partition(" ")[0]
        slot = file.partition("+")[0].removesuffix(".conf")[-1]
        place = self.scratch / "report"
        subprocess.run(["rm", "-rf", place], check=True)
        place.mkdir()
        state, wrong = survey(volume, slot, place), []
        if state["next"] != slot:
            wrong.append(f"slot {slot} is started, and {state['next']} reported as next")
        for name, row in state["slots"].items():
            if row["state"] != slots.EMPTY and f"-{row['build_id']}-" not in str(row["entry"]):
                wrong.append(f"slot {name} is reported to hold {row['image']}: {row['entry']}")
        rows = [(row["event"], row["slot"], row["image"]) for row in state["history"]]
        end = [(row["event"], row["slot"], row["image"]) for row in self.history]
        if rows != end[: len(rows)]:
            wrong.append(f"the history is {rows}")
        events = {(row["event"], row["image"]) for row in state["history"]}
        entry = state["slots"][slot]
        if slot == "b" and ("written", entry["image"]) not in events:
            wrong.append("an image is started, and no history has it as written")
        if slot == "b" and entry["state"] == slots.GOOD and ("good", entry["image"]) not in events:
            wrong.append("an image is good, and no history has why")
        if (
            slot == "a"
            and entry["state"] == slots.TRYING
            and ("back", entry["image"]) not in events
        ):
            wrong.append("the way back is tried, and no history has it")
        return wrong

    def _root(self, release: str, copy: Path) -> dict[str, Any]:
        status, output = repaired(["e2fsck", "-p"], copy)
        torn = status == 8 and "Superblock checksum does not match" in output
        if torn:
            # The superblock has two sectors of 512 bytes, and each mount writes it: a disk that tears a write of 4096
            # bytes between them leaves what neither e2fsck -p nor Linux reads. That is so of every ext4.
            status, output = repaired(["e2fsck", "-p", "-b", BACKUP], copy)
        have = from_root(copy, release)
        lost = [name for name, sha256 in self.whole[release].items() if have[name] != sha256]
        return {"status": status, "output": output, "lost": lost, "torn": torn}

    def _table(self, copy: Path) -> str:
        """Return the primary table's partitions, as Linux reads them; empty if it is not valid."""
        handle = os.open(copy, os.O_RDONLY)
        try:
            table = identity.primary(handle)
        finally:
            os.close(handle)
        if table is None:
            return ""
        return " ".join(f"{index}:{start // 512}" for index, _, _, start in table.partitions())

    def judged(self, point: Point) -> Judged:
        """Judge one point."""
        epoch = self.epochs[point.epoch]
        self.replay.forward(point.epoch)
        writes = survivors(epoch, point.seed)
        result = Judged(point.epoch, point.seed, epoch.step)
        result.table = self._once("head", writes, self._table)
        places = [segments()[name][0] for name in PARTITIONS]
        if result.table != " ".join(f"{index}:{start}" for index, start in enumerate(places)):
            result.bad.append(f"partition table: {result.table or 'damaged'}")
        esp = self._once("esp", writes, self._esp)
        result.esp, result.output = esp["status"], esp["output"][-400:]
        if esp["status"] not in (0, 1) or esp["clean"] != 0:
            result.bad.append(f"fsck.vfat: {esp['status']}, then {esp['clean']}: {esp['left']}")
        may = steps_of(epoch.steps[:1] if point.seed is None else epoch.steps)
        for name in ("raw", "repaired"):
            text, what, wrong = esp[name]
            setattr(result, name, text)
            result.bad += [f"{name}: {line}" for line in wrong]
            if what not in may:
                result.bad.append(f"{name}: {text} is started, and may not be")
                continue
            slot, release = what[0], self.releases[int(what[1])]
            root = self._once(f"root-{slot}", writes, partial(self._root, release), release)
            result.roots[slot] = root["status"]
            result.torn = result.torn or root["torn"]
            if root["status"] not in (0, 1):
                result.bad.append(f"e2fsck of slot {slot}: {root['status']}: {root['output']}")
            if root["lost"]:
                result.bad.append(f"slot {slot} is started with {release} and lacks {root['lost']}")
        return result


def line(result: Judged) -> str:
    return json.dumps(vars(result), sort_keys=True)
