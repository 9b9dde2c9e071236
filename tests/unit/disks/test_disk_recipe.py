"""What a build is named after, what the store keeps, and what is refused before anything is made."""

from __future__ import annotations

import errno
import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goldnode.catalog.load import load_catalog
from goldnode.disks import build as building
from goldnode.disks import locking
from goldnode.disks.build import Recipe, refuse_unclean
from goldnode.disks.definition import load_definition
from goldnode.disks.locking import DiskLock
from goldnode.disks.model import Hygiene
from goldnode.disks.offline import TREE
from goldnode.disks.store import Store
from goldnode.errors import DiskError
from goldnode.site import Site

TOOLS = {"mmdebstrap": "1.3.5", "apt": "2.6.1", "dpkg": "1.21.22", "e2fsprogs": "1.47.0"}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    site = Site.model_validate({"archives": {name: {"url": "http://archive.example/debian"} for name in ("debian", "debian-security")}})
    item = locking.target("demo_disk_r535", load_definition(), load_catalog(), site)
    lock = locking.load_disk_lock(load_definition().locks / "demo_disk_r535.lock.yml")
    return Recipe(item, lock, item.document(lock.modules), TOOLS)


def shaped(recipe: Recipe, **change: Any) -> Recipe:
    disk = recipe.item.disk
    return replace(recipe, item=replace(recipe.item, disk=replace(disk, shape=disk.shape.model_copy(update=change))))


def relocked(lock: DiskLock) -> DiskLock:
    return lock.model_copy(update={"resolved": "2020-01-01"})


@pytest.mark.parametrize(
    ("change", "root_too"),
    [
        pytest.param(lambda r: replace(r, lock=relocked(r.lock)), True, id="lock"),
        pytest.param(lambda r: replace(r, document={**r.document, "gate": "block"}), True, id="class-document"),
        pytest.param(lambda r: replace(r, tools={**TOOLS, "mmdebstrap": "1.4"}), True, id="mmdebstrap"),
        pytest.param(lambda r: replace(r, tools={**TOOLS, "e2fsprogs": "1.47.1"}), False, id="mke2fs"),
        pytest.param(lambda r: shaped(r, root_mib=8192), False, id="size"),
        pytest.param(lambda r: shaped(r, command_line=("quiet",)), False, id="command-line"),
    ],
)
def test_a_build_is_named_after_all_that_decides_it(recipe: Recipe, change: Any, root_too: bool) -> None:
    other = change(recipe)
    assert other.build_id != recipe.build_id
    assert (other.root_key != recipe.root_key) is root_too, "a root filesystem is made again only where it would be another"
    assert replace(recipe).build_id == recipe.build_id


def test_a_part_of_goldnode_that_shapes_a_disk_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "TREE", tmp_path)
    (tmp_path / "files").mkdir()
    one = tmp_path / "files/unit.service"
    one.write_text("[Unit]\n")
    first = building.parts_digest(["files", "absent"])
    one.chmod(0o755)
    second = building.parts_digest(["files", "absent"])
    one.write_text("[Service]\n")
    assert len({first, second, building.parts_digest(["files", "absent"])}) == 3


def test_the_parts_that_are_named_exist() -> None:
    assert [name for name in (*building._ROOT_PARTS, *building._DISK_PARTS) if not (TREE / name).exists()] == []


def test_the_policy_of_the_class_is_on_the_command_line(recipe: Recipe) -> None:
    words = recipe.command_line.split()
    assert words[:2] == ["console=tty0", "console=ttyS0,115200n8"]
    assert "iommu=pt" in words
    assert recipe.spec.name == f"demo_disk_r535-{recipe.build_id}"
    assert recipe.spec.epoch == recipe.lock.epoch


def test_a_failed_check_fails_the_build() -> None:
    passed, waived = Hygiene("sshd", "passed", ""), Hygiene("setuid", "waived", "/usr/bin/x: …")
    refuse_unclean([passed, waived])
    with pytest.raises(DiskError, match=r"1 checks of the root filesystem fail: logs: /var/log/dpkg\.log: a log"):
        refuse_unclean([passed, waived, Hygiene("logs", "failed", "/var/log/dpkg.log: a log")])


def test_too_little_space_is_told_with_numbers(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "free", lambda self: 1_000_000_000)
    with pytest.raises(DiskError, match=r"a build takes up to 2\.9 GB, and 1\.0 GB are free"):
        building._room(Store(tmp_path), recipe.lock)


def test_what_a_killed_build_left_goes_and_what_runs_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = store.cache / "work"
    for name in ("killed", "running"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_text("x")
    with (place / "running.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with store.work("mine") as mine:
            assert mine.is_dir()
            assert not (place / "killed").exists()
            assert (place / "running/file").exists()
        assert not mine.exists()


def test_a_failed_build_leaves_nothing_and_its_directory_is_fresh_the_next_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = store.cache / "work" / "one"

    def fails() -> None:
        with store.work("one") as work:
            assert work == place
            (work / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not place.exists()
    place.mkdir()
    (place / "left").write_text("of a killed run")
    with store.work("one") as again:
        assert list(again.iterdir()) == []


def test_a_disk_that_fills_up_in_the_middle_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="the disk is full; nothing is left of this build"), building._full_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), building._full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
