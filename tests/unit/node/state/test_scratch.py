"""Which disks count as empty, with the real blkid, wipefs and mkfs on files: everything else is never formatted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.node.state.test_cases import PROGRAM, converged, document

from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.state.domains import program, scratch
from goldnode.node.state.engine import difference
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, UNREAD
from goldnode.node.state.handlers.scratch import HANDLERS
from goldnode.node.state.model import Action, Observed
from goldnode.node.state.removal import removal

MIB = 1 << 20
OWN = scratch.label("/scratch")
WANT = {"device": "/dev/x", "filesystem": "ext4", "options": ["noatime"], "full_percent": 90}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, 32 * MIB)
    return path


def run(*words: object) -> None:
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    subprocess.run([str(word) for word in words], env=environment, check=True, capture_output=True)


def put(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"data of somebody")


def state(path: Path) -> tuple[str, str]:
    answer = scratch.inspect(Host("/"), str(path), OWN)
    return answer[0], answer[1]


def action(path: Path) -> Action:
    data = {**WANT, "mount": "/scratch", "device": str(path)}
    return Action("storage", "scratch.format", "/scratch", "", data=data)


def applier(remembered: list[str]) -> Any:
    return SimpleNamespace(host=Host("/"), remember=lambda key, names: remembered.extend(names))


def wiped(path: Path) -> None:
    run("mkfs.ext4", "-q", "-L", "DATA", path)
    run("wipefs", "-a", path)


FOREIGN: dict[str, Any] = {
    "another file system": lambda path: run("mkfs.ext4", "-q", "-L", "DATA", path),
    "a file system without a label": lambda path: run("mkfs.ext4", "-q", path),
    "swap": lambda path: run("mkswap", path),
    "data at the beginning without a signature": lambda path: put(path, 4096),
    "data at the end without a signature": lambda path: put(path, 32 * MIB - 4096),
    "signatures wiped, data still there": wiped,
    "no medium": lambda path: os.truncate(path, 0),
    "not there": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_disk_with_anything_on_it_is_never_formatted(name: str, disk: Path) -> None:
    FOREIGN[name](disk)
    before = disk.read_bytes() if disk.exists() else None
    found, why = state(disk)
    assert found == scratch.UNFIT
    assert str(disk) in why
    remembered: list[str] = []
    with pytest.raises(NodeError, match="is not formatted"):
        HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert (disk.read_bytes() if disk.exists() else None) == before
    assert remembered == []


def test_an_empty_disk_is_formatted_once_and_recorded_before(disk: Path) -> None:
    assert state(disk) == (scratch.EMPTY, "")
    remembered: list[str] = []
    HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert remembered == [f"{disk} {OWN}"]
    assert state(disk)[0] == scratch.LABELLED
    made = disk.read_bytes()
    HANDLERS["scratch.format"](applier(remembered), action(disk))
    assert disk.read_bytes() == made, "a disk with the label is not formatted again"


def test_mkfs_itself_would_overwrite_another_file_system(disk: Path) -> None:
    """e2fsprogs 1.47: without a terminal, mkfs.ext4 asks nothing and needs no -F. The state above is the only guard."""
    run("mkfs.ext4", "-q", "-L", "DATA", disk)
    done = subprocess.run(
        ["/usr/sbin/mkfs.ext4", "-q", "-L", "other", str(disk)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    label = subprocess.check_output(
        ["/usr/sbin/blkid", "-p", "-s", "LABEL", "-o", "value", str(disk)]
    )
    assert label.strip() == b"other"


def test_a_pattern_names_disks_and_no_partitions(tmp_path: Path) -> None:
    for name in ("nvme0n1", "nvme0n1p1", "nvme1n1"):
        (tmp_path / "sys/class/block" / name).mkdir(parents=True)
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "sys/class/block/nvme0n1p1/partition").write_text("1\n")
    host = Host(str(tmp_path))
    assert scratch.matches(host, "/dev/nvme0*") == ["/dev/nvme0n1"]
    assert scratch.matches(host, "/dev/nvme*") == ["/dev/nvme0n1", "/dev/nvme1n1"]
    assert scratch.matches(host, "/dev/nvme0n1p1") == ["/dev/nvme0n1p1"], (
        "a path names what it names"
    )
    assert scratch.matches(host, "/dev/sdz") == []


def test_label_fits_into_xfs() -> None:
    assert len(scratch.label("/a/very/long/path/to/scratch")) <= 12
    assert scratch.label("/a") != scratch.label("/b")


def test_mounts_are_read_with_the_options_of_file_system_and_mount() -> None:
    line = "36 35 7:3 / /scratch rw,noatime shared:1 - ext4 /dev/loop3 rw,errors=remount-ro"
    row = scratch.mounted([line])["/scratch"]
    assert row == {
        "source": "/dev/loop3",
        "number": "7:3",
        "type": "ext4",
        "options": ["rw", "noatime", "rw", "errors=remount-ro"],
    }


def test_a_disk_that_cannot_be_read_is_judged_by_udev_and_never_formatted(tmp_path: Path) -> None:
    for name, text in {
        "dev/nvme1n1": "",
        "sys/class/block/nvme1n1/dev": "259:1\n",
        "run/udev/data/b259:1": f"S:disk/by-id/x\nE:ID_FS_LABEL={OWN}\nE:ID_FS_TYPE=ext4\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dev/nvme1n1").chmod(0)
    host = Host(str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # root can read any file
        assert scratch.inspect(host, "/dev/nvme1n1", OWN) == (scratch.LABELLED, "", "ext4")
        assert scratch.inspect(host, "/dev/nvme1n1", "gn-00000000")[0] == scratch.UNKNOWN


# -- several disks, a boot, and disks that are missing, replaced or doubled. The readings are those of the machine of
# tests/disks/test_scratch_machine.py.

CACHE = {**WANT, "device": "/dev/disk/by-id/virtio-gn-cache-1"}
CLASS = cast("ClassDocument", {"scratch": {"/cache": CACHE, "/scratch": WANT}})
MOUNT = {"source": "/dev/vdb", "number": "254:16", "type": "ext4", "options": ["rw", "noatime"]}


def row(**changes: Any) -> dict[str, Any]:
    """Return the observation of a mount point that is as it should be, with changes."""
    disk = {"devices": ["/dev/vdb"], "device": "/dev/vdb", "number": "254:16"}
    good = {"state": scratch.LABELLED, "why": "", "type": "ext4", "mounted": MOUNT}
    usage = {"occupied": False, "used_percent": 1, "inodes_percent": 1}
    return {**disk, **good, **usage, **changes}


UNMOUNTED = row(mounted=None, used_percent=None, inodes_percent=None)
NEW = {**UNMOUNTED, "state": scratch.EMPTY, "type": None}
LOST = {
    **UNMOUNTED,
    "devices": [],
    "device": None,
    "number": None,
    "state": scratch.UNFIT,
    "why": "exactly one disk must match, and there are 0: none",
}


def seen(unit: str = "active", **rows: dict[str, Any]) -> Observed:
    loaded = {scratch.SERVICE: {"ActiveState": unit, "LoadState": "loaded"}}
    return Observed(
        scratch={f"/{name}": value for name, value in rows.items()},
        units={"loaded": loaded},
        links={scratch.LINK: scratch.UNIT},
    )


def kinds(node: Observed) -> list[str]:
    return [f"{one.kind} {one.target}" for one in scratch.plan(CLASS, node)[0]]


def unit_text(document: ClassDocument = CLASS) -> str:
    return next(
        str(file.content)
        for file in scratch.wanted(document, Observed())
        if file.path == scratch.UNIT
    )


def test_unit_is_started_once_all_disks_are_mounted() -> None:
    """It fails until then. It was started with the first of three, and the run ended there."""
    assert kinds(seen("failed", cache=NEW, scratch=NEW)) == [
        "scratch.format /cache",
        "scratch.mount /cache",
        "scratch.format /scratch",
        "scratch.mount /scratch",
        f"units.start {scratch.SERVICE}",
    ]
    assert kinds(seen("failed", cache=row(), scratch=row())) == [f"units.start {scratch.SERVICE}"]
    assert kinds(seen("failed", cache=LOST, scratch=UNMOUNTED)) == ["scratch.mount /scratch"]
    assert kinds(seen(cache=row(), scratch=row())) == []
    used = seen("failed", cache=row(), scratch=row()).with_fields(
        holders=[{"pid": 1, "command": "x"}]
    )
    assert kinds(used) == [], "the reload of systemd that it may need waits for the users of GPUs"
    without_systemd = seen(cache=row(), scratch=row()).with_fields(units={"loaded": None})
    assert kinds(without_systemd) == []


def test_missing_disk_keeps_no_other_from_being_mounted_at_boot() -> None:
    starts = [line for line in unit_text().splitlines() if line.startswith("ExecStart=")]
    assert [line.partition("mountpoint -q ")[2].split()[0] for line in starts[1:3]] == [
        "/cache",
        "/scratch",
    ]
    # After a failure of one without `-`, systemd starts no other.
    assert all(line.startswith("ExecStart=-") for line in starts[:-1])
    assert starts[-1].startswith("ExecStart=/bin/sh"), "the unit fails if one is not mounted"


def test_boot_check_waits_for_the_mounts_that_it_judges() -> None:
    after = next(line for line in program.UNIT_TEXT.splitlines() if line.startswith("After="))
    assert scratch.SERVICE in after.split()
    assert "TimeoutStartSec=" in unit_text(), "and not for ever"


def at_boot(disk: Path, place: Path) -> str:
    """Return what the unit's commands for a mount point would mount, with the real blkid."""
    want = {**WANT, "device": f"{disk.parent}/d*"}
    script = scratch.mount_script(str(place), want)
    assert "'" not in script, "it stands between these in the unit"
    script = script.replace(scratch.label(str(place)), OWN).replace("/usr/bin/mount", "echo")
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_disk_is_mounted_at_boot_by_path_and_label_alone(disk: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o777)
    assert at_boot(disk, place) == "", "empty"
    assert place.stat().st_mode & 0o777 == 0o755, "no user fills the root file system"
    run("mkfs.ext4", "-q", "-L", "DATA", disk)
    assert at_boot(disk, place) == "", "a file system of others"
    run("mkfs.ext4", "-q", "-F", "-L", OWN, disk)
    assert at_boot(disk, place) == f"-t ext4 -o X-mount.mkdir,noatime {disk} {place}\n"
    assert place.stat().st_mode & 0o7777 == 0o1777


def test_rules_of_cleaning_make_no_directory_and_no_mode() -> None:
    """systemd-tmpfiles runs at boot before the mounts: users could write to the root file system in their place."""
    assert [file.path for file in scratch.wanted(CLASS, Observed())] == [scratch.UNIT]
    cleaned = cast("ClassDocument", {"scratch": {"/scratch": {**WANT, "keep_days": 7}}})
    content = scratch.wanted(cleaned, Observed())[1].content
    assert str(content).splitlines()[1:] == ["e /scratch - - - 7d", "x /scratch/lost+found"]


@pytest.mark.parametrize(
    ("changes", "outcome", "got"),
    [
        ({}, MATCH, "ext4 of goldnode, mounted with noatime"),
        ({"mounted": {**MOUNT, "number": "254:32", "source": "/dev/vdc"}}, MISMATCH, "mounted from /dev/vdc, not from /dev/vdb"),
        ({"number": ""}, MATCH, "ext4 of goldnode, mounted with noatime"),
        (LOST, MISMATCH, f"not mounted: {LOST['why']}"),
        ({**LOST, "mounted": MOUNT}, MISMATCH, LOST["why"]),
        (NEW, MISMATCH, "not mounted: /dev/vdb is empty"),
        (UNMOUNTED, MISMATCH, "not mounted"),
    ],
)  # fmt: skip
def test_mount_is_judged_with_its_reason(changes: dict[str, Any], outcome: str, got: str) -> None:
    found = scratch.findings(CLASS, seen(cache=row(), scratch=row(**changes)))
    mount = next(item for item in found if (item.id, item.subject) == ("scratch.mount", "/scratch"))
    assert (mount.outcome, mount.got) == (outcome, got)


@pytest.mark.parametrize(
    ("value", "outcome", "got"),
    [
        (UNMOUNTED, ELSEWHERE, "it is not mounted"),
        (row(used_percent=None), UNREAD, "df does not answer"),
        (row(used_percent=95), MISMATCH, "95 % full"),
    ],
)
def test_space_that_was_not_measured_is_no_full_disk(
    value: dict[str, Any], outcome: str, got: str
) -> None:
    found = scratch.findings(CLASS, seen(cache=row(), scratch=value))
    space = next(item for item in found if (item.id, item.subject) == ("scratch.space", "/scratch"))
    assert (space.outcome, space.got) == (outcome, got)


def test_refusal_names_what_is_mounted_and_the_disk_of_the_class() -> None:
    """A disk that left the bus and came back has another name: the mount is of the lost one, with the same label."""
    stale = row(device="/dev/vdd", devices=["/dev/vdd"], number="254:48")
    (refusal,) = scratch.refusals(CLASS, seen(cache=row(), scratch=stale), [])
    assert "/dev/vdb is mounted there, and the disk of the class is /dev/vdd" in refusal.message
    assert kinds(seen(cache=row(), scratch=stale)) == []
    (refusal,) = scratch.refusals(CLASS, seen(cache=row(), scratch={**LOST, "mounted": MOUNT}), [])
    assert f"/dev/vdb is mounted there, and {LOST['why']}" in refusal.message


def test_mount_inside_another_is_unmounted_first() -> None:
    document = cast("ClassDocument", {"scratch": {"/scratch": WANT, "/scratch/cache": CACHE}})
    stops = [line for line in unit_text(document).splitlines() if line.startswith("ExecStop=")]
    assert ["/scratch/cache" in line for line in stops] == [True, False]
    given_up = {"/scratch": {"mounted": MOUNT}, "/scratch/cache": {"mounted": MOUNT}}
    actions = scratch.given_up(cast("ClassDocument", {}), Observed(scratch=given_up))
    assert [one.target for one in actions] == ["/scratch/cache", "/scratch"]


def test_mount_in_use_stays_known_to_the_next_run() -> None:
    """Its unmount fails before the unit's file is removed, from which the next run learns of it."""
    wanted = document()
    node = converged(wanted)
    node.files[scratch.UNIT] = {"type": "file", "content": unit_text(), "mode": 0o644}
    node.scratch = {"/scratch": {"mounted": MOUNT}}
    steps = [f"{one.kind} {one.target}" for one in difference(wanted, node, PROGRAM)[0]]
    removed = next(step for step in steps if step.endswith(scratch.UNIT))
    assert steps.index("scratch.unmount /scratch") < steps.index(removed)


def test_removal_unmounts_what_a_failed_unit_leaves_mounted() -> None:
    node = Observed(
        files={scratch.UNIT: {"type": "file", "content": unit_text(), "mode": 0o644}},
        traces={"units": [scratch.SERVICE], "scratch": ["/cache", "/scratch"]},
    )
    actions, _, _, _ = removal(None, node, {})
    steps = [f"{one.kind} {one.target}" for one in actions]
    wanted = [
        f"units.stop {scratch.SERVICE}",
        "scratch.unmount /scratch",
        "scratch.unmount /cache",
        f"file.remove {scratch.UNIT}",
    ]
    assert [step for step in steps if step in wanted] == wanted


def test_unmount_of_what_is_not_mounted_does_nothing(tmp_path: Path) -> None:
    gone = Action("sanity", "scratch.unmount", str(tmp_path / "scratch"), "")
    HANDLERS["scratch.unmount"](applier([]), gone)


def test_mount_of_a_disk_without_the_label_is_an_error(disk: Path) -> None:
    """The disk is read again right before: it may have been replaced since the plan."""
    with pytest.raises(NodeError, match="is not mounted: it is empty"):
        HANDLERS["scratch.mount"](applier([]), action(disk))
