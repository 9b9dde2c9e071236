"""The identity of a disk: real tables of sfdisk and a real FAT32, the step killed at each write, and repeated."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goldnode.disks import gpt
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.slots import identity

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("sfdisk", "mkfs.vfat", "fsck.vfat", "blkid"))),
    reason="needs fdisk, dosfstools and util-linux",
)

MIB = 1 << 20
IMAGE = uuid.uuid5(uuid.NAMESPACE_URL, "an image")
NEW, OTHER = uuid.UUID(int=1, version=4), uuid.UUID(int=2, version=4)
ESP = uuid.uuid5(IMAGE, "esp")
ORDER = f"BootOrder-{identity.GLOBAL}"


class PowerCutError(Exception):
    """The machine lost power."""


def run(*command: str | Path, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done)
    return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk as built, written to a larger one: the backup table is in the middle of it."""
    path = tmp_path_factory.mktemp("image") / "disk.raw"
    path.touch()
    os.truncate(path, 48 * MIB)
    rows = f"start=2048, size=80000, type=uefi, uuid={ESP}, name=esp\nstart=83968, size=8192, type=linux, name=root-a\n"
    run("sfdisk", "-q", path, stdin=f"label: gpt\nlabel-id: {IMAGE}\n{rows}")
    run("mkfs.vfat", "-F", "32", "-s", "1", "--offset=2048", path, "40000")
    os.truncate(path, 60 * MIB)
    return path


@pytest.fixture
def disk(image: Path, tmp_path: Path) -> Path:
    return copy(image, tmp_path / "disk.raw")


def copy(image: Path, to: Path) -> Path:
    run("cp", "--sparse=always", image, to)
    return to


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    """Three boot entries: a network card, the ESP of the image, and a shell."""
    folder = tmp_path / "efivars"
    folder.mkdir()
    for number, path in ((0, b"net"), (3, hard_drive(ESP)), (7, b"shell")):
        option = struct.pack("<IH", 1, len(path)) + "a name\0".encode("utf-16-le") + path
        variable(folder, number).write_bytes(identity.ATTRIBUTES + option)
    (folder / ORDER).write_bytes(identity.ATTRIBUTES + struct.pack("<3H", 0, 3, 7))
    return folder


def hard_drive(guid: uuid.UUID) -> bytes:
    return struct.pack("<BBHIQQ", 4, 1, 42, 1, 2048, 80000) + guid.bytes_le + b"\2\2\x7f\xff\4\0"


def variable(folder: Path, number: int) -> Path:
    return folder / f"Boot{number:04X}-{identity.GLOBAL}"


def entries(folder: Path) -> list[bytes]:
    """The boot entries in order: what follows their names."""
    order = (folder / ORDER).read_bytes()[4:]
    numbers = struct.unpack(f"<{len(order) // 2}H", order)
    return [variable(folder, number).read_bytes()[4 + 6 + 14 :] for number in numbers]


def guids(path: Path) -> tuple[str, ...]:
    """GUIDs of a disk and its partitions, as sfdisk reads them."""
    table = gpt.read(path)
    return (table.disk, *(part.uuid for part in table.partitions))


def volume(path: Path) -> str:
    return run("blkid", "-p", "-O", str(MIB), "-s", "UUID", "-o", "value", path).strip()


def own(guid: uuid.UUID) -> tuple[str, ...]:
    return (str(guid), *(str(uuid.uuid5(guid, f"partition {number}")) for number in (1, 2)))


CLEAN: set[bytes] = set()


def clean(path: Path) -> None:
    """fsck.vfat has nothing to say. Only boot sectors differ between two calls, so the same ones are not checked twice."""
    with path.open("rb") as opened:
        opened.seek(MIB)
        sectors = opened.read(32 * 512)
        if sectors not in CLEAN:
            fat = path.with_suffix(".fat")
            fat.write_bytes(sectors + opened.read(80000 * 512 - len(sectors)))
            run("fsck.vfat", "-n", fat)
            CLEAN.add(sectors)


def whole(path: Path, folder: Path, *, complete: bool = False) -> None:
    """Whatever has happened: the primary table alone is valid (all that Linux reads), nothing has moved, the firmware has
    an entry for the ESP as it is now, and the file system is clean.
    """
    shown = gpt.read(path)
    assert [(part.name, part.start, part.size) for part in shown.partitions] == [
        ("esp", MIB, 80000 * 512),
        ("root-a", 41 * MIB, 8192 * 512),
    ]
    assert guids(path) == own(NEW) or guids(path)[:2] == (str(IMAGE), str(ESP))
    with path.open("rb") as opened:
        assert identity.primary(opened.fileno()) is not None
    assert hard_drive(uuid.UUID(guids(path)[1])) in entries(folder)
    clean(path)
    if complete:
        assert guids(path) == own(NEW)
        assert volume(path) == f"{own(NEW)[1][:4]}-{own(NEW)[1][4:8]}".upper()
        assert entries(folder) == [b"net", hard_drive(uuid.UUID(own(NEW)[1])), b"shell"]
        assert len(list(folder.iterdir())) == 4
        warned = subprocess.run(["sfdisk", "--verify", path], capture_output=True, text=True)
        assert warned.returncode == 0, warned


class Power:
    """A disk and a firmware whose power is cut at the n-th write; a write of several sectors may be done in part."""

    def __init__(self, cut: int | None, part: float = 0.0) -> None:
        self.left, self.part, self.done = cut, part, 0

    def _next(self) -> bool:
        self.done += 1
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        if self._next():
            return os.pwrite(handle, data, offset)
        os.pwrite(handle, data[: int(len(data) * self.part) // 512 * 512], offset)
        raise PowerCutError

    def variable(self, path: str, data: bytes) -> None:
        if not self._next():
            raise PowerCutError
        Path(path).write_bytes(data)


def give(
    paths: list[Path], folder: Path, power: Power, fresh: Callable[[], uuid.UUID] = lambda: NEW
) -> dict[str, str]:
    return identity.give(
        [str(path) for path in paths],
        identity.Variables(str(folder), power.variable),
        fresh=fresh,
        write=power.pwrite,
    )


def test_a_shipped_disk_gets_guids_of_its_own_once(disk: Path, firmware: Path) -> None:
    power = Power(None)
    assert guids(disk)[:2] == (str(IMAGE), str(ESP))
    assert give([disk], firmware, power) == {str(disk): str(NEW)}
    whole(disk, firmware, complete=True)
    assert power.done > 10
    with disk.open("rb") as opened:
        opened.seek(34 * 512)
        assert not any(opened.read(32 * 512)), "nothing is left aside"
    before, again = disk.read_bytes(), Power(None)
    give([disk], firmware, again, fresh=lambda: OTHER)
    assert (disk.read_bytes(), again.done) == (before, 0), "a second run writes nothing"


def cuts() -> Iterator[tuple[int, float]]:
    yield from ((cut, part) for cut in range(14) for part in (0.0, 0.5))


@pytest.mark.parametrize(("cut", "part"), list(cuts()))
def test_a_power_cut_at_any_write_leaves_a_bootable_disk_and_the_same_end(
    disk: Path, firmware: Path, cut: int, part: float
) -> None:
    power = Power(cut, part)
    try:
        give([disk], firmware, power)
    except PowerCutError:
        whole(disk, firmware)
    give([disk], firmware, Power(None))
    whole(disk, firmware, complete=True)


def test_the_cuts_cover_every_write(disk: Path, firmware: Path) -> None:
    power = Power(None)
    give([disk], firmware, power)
    assert max(cut for cut, _ in cuts()) >= power.done - 1, "add the new writes to `cuts`"


def test_a_second_cut_keeps_the_guids_that_the_first_run_has_chosen(
    disk: Path, firmware: Path
) -> None:
    for cut in (4, 2, 1):
        with pytest.raises(PowerCutError):
            give([disk], firmware, Power(cut), fresh=lambda: NEW)
        whole(disk, firmware)
    give([disk], firmware, Power(None), fresh=lambda: OTHER)
    whole(disk, firmware, complete=True)


def test_disks_with_equal_guids_each_get_others(
    image: Path, firmware: Path, tmp_path: Path
) -> None:
    disks = [copy(image, tmp_path / f"disk{number}.raw") for number in range(4)]
    give(disks, firmware, Power(None), fresh=uuid.uuid4)
    assert len({guid for path in disks for guid in guids(path)}) == 12
    assert len({volume(path) for path in disks}) == 4
    # Copies of a disk that has an identity are told apart too.
    copy(disks[0], disks[1])
    before = guids(disks[0])
    give(disks[:2], firmware, Power(None), fresh=uuid.uuid4)
    assert len({*guids(disks[0]), *guids(disks[1]), *before}) == 9
    esps = [hard_drive(uuid.UUID(guids(path)[1])) for path in disks]
    assert all(esp in entries(firmware) for esp in esps), "the firmware can boot each"
    assert hard_drive(ESP) not in entries(firmware)


def test_two_paths_of_one_disk_are_refused_before_anything_is_written(
    disk: Path, firmware: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for name in ("sda", "sdb"):
        (root / f"sys/class/block/{name}/device").mkdir(parents=True)
        (root / f"sys/class/block/{name}/device/wwid").write_text("naa.5000c500a1b2c3d4\n")
        (tmp_path / name).symlink_to(disk)
    before = disk.read_bytes()
    for name in ("sda", "sdb"):
        (tmp_path / name).unlink()
        os.link(disk, tmp_path / name)
    with pytest.raises(NodeError, match=r"are paths of one disk: sda is naa\.5000c500a1b2c3d4"):
        identity.named(Host(str(root)), [str(tmp_path / "sda"), str(tmp_path / "sdb")])
    assert disk.read_bytes() == before


def test_a_disk_without_a_world_wide_name_is_found_by_what_was_written(
    disk: Path, firmware: Path, tmp_path: Path
) -> None:
    os.link(disk, tmp_path / "again")
    with pytest.raises(NodeError, match="the same GUID after each got its own"):
        give([disk, tmp_path / "again"], firmware, Power(None), fresh=uuid.uuid4)


def test_a_damaged_primary_table_and_one_without_room_are_left_alone(
    disk: Path, firmware: Path, tmp_path: Path
) -> None:
    tight = tmp_path / "tight.raw"
    tight.touch()
    os.truncate(tight, 4 * MIB)
    run(
        "sfdisk",
        "-q",
        tight,
        stdin=f"label: gpt\nlabel-id: {IMAGE}\nfirst-lba: 34\nstart=34, size=99\n",
    )
    with pytest.raises(NodeError, match="has partitions from sector 34 on"):
        give([tight], firmware, Power(None))
    assert guids(tight)[0] == str(IMAGE)
    with disk.open("r+b") as opened:
        opened.seek(520)
        opened.write(b"\xff")
    before = disk.read_bytes()
    with pytest.raises(NodeError, match="no valid primary partition table"):
        give([disk], firmware, Power(None))
    assert disk.read_bytes() == before
