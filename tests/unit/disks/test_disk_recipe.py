"""What a build is named after, what the store keeps, and what is refused before anything is made."""

from __future__ import annotations

import ast
import errno
import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks.disk_samples import prove

from goldnode.classdoc.load import load_catalog
from goldnode.core.data import tree_path
from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file, sha256_of
from goldnode.core.site import Site
from goldnode.disks import build as building
from goldnode.disks import evidence, locking, places, requirements
from goldnode.disks.assemble import Assembled
from goldnode.disks.build import DiskRecipe, refuse_unclean
from goldnode.disks.contents import digest_of
from goldnode.disks.definition import load_definition
from goldnode.disks.formats import described
from goldnode.disks.locking import DiskLock
from goldnode.disks.model import MANIFEST, SUMS, BuiltDisk, DiskFile, Hygiene
from goldnode.disks.store import DiskStore

TOOLS = {"mmdebstrap": "1.3.5", "apt": "2.6.1", "dpkg": "1.21.22", "e2fsprogs": "1.47.0"}


@pytest.fixture(scope="module")
def recipe() -> DiskRecipe:
    site = Site.model_validate(
        {
            "archives": {
                name: {"url": "http://archive.example/debian"}
                for name in ("debian", "debian-security")
            }
        }
    )
    item = locking.target("demo_disk_r535", load_definition(), load_catalog(), site)
    lock = locking.load_disk_lock(load_definition().locks / "demo_disk_r535.lock.yml")
    return DiskRecipe(item, lock, item.document(lock.modules), TOOLS)


def shaped(recipe: DiskRecipe, **change: Any) -> DiskRecipe:
    disk = recipe.item.disk
    return replace(
        recipe,
        item=replace(recipe.item, disk=replace(disk, shape=disk.shape.model_copy(update=change))),
    )


def relocked(lock: DiskLock) -> DiskLock:
    return lock.model_copy(update={"resolved": "2020-01-01"})


@pytest.mark.parametrize(
    ("change", "root_too"),
    [
        pytest.param(lambda r: replace(r, lock=relocked(r.lock)), True, id="lock"),
        pytest.param(
            lambda r: replace(r, document={**r.document, "gate": "block"}),
            True,
            id="class-document",
        ),
        pytest.param(
            lambda r: replace(r, tools={**TOOLS, "mmdebstrap": "1.4"}), True, id="mmdebstrap"
        ),
        pytest.param(
            lambda r: replace(r, tools={**TOOLS, "e2fsprogs": "1.47.1"}), False, id="mke2fs"
        ),
        pytest.param(lambda r: shaped(r, root_mib=8192), False, id="size"),
        pytest.param(lambda r: shaped(r, command_line=("quiet",)), False, id="command-line"),
    ],
)
def test_a_build_is_named_after_all_that_decides_it(
    recipe: DiskRecipe, change: Any, root_too: bool
) -> None:
    other = change(recipe)
    assert other.build_id != recipe.build_id
    assert (other.root_key != recipe.root_key) is root_too, (
        "a root filesystem is made again only where it would be another"
    )
    assert replace(recipe).build_id == recipe.build_id


def test_a_part_of_goldnode_that_shapes_a_disk_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "tree_path", tmp_path.joinpath)
    (tmp_path / "files").mkdir()
    one = tmp_path / "files/unit.service"
    one.write_text("[Unit]\n")
    first = building.parts_digest(["files", "absent"])
    one.chmod(0o755)
    second = building.parts_digest(["files", "absent"])
    one.write_text("[Service]\n")
    assert len({first, second, building.parts_digest(["files", "absent"])}) == 3


def test_the_parts_that_are_named_exist() -> None:
    assert [
        name
        for name in (*building.ROOT_PARTS, *building.DISK_PARTS)
        if not tree_path(name).exists()
    ] == []


# Of goldnode.disks, what the parts import and that shapes no byte of a disk by itself: its values are in the name in another way, or in none.
UNSHAPING = {"definition", "hygiene", "locking", "model", "store"}


def test_every_part_that_a_part_is_made_with_counts() -> None:
    named = (*building.ROOT_PARTS, *building.DISK_PARTS)
    imported: set[str] = set()
    for name in named:
        for node in (
            ast.walk(ast.parse(tree_path(name).read_text()))
            if name.startswith("src/goldnode/disks/")
            else ()
        ):
            if isinstance(node, ast.ImportFrom) and node.module == "goldnode.disks":
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "goldnode.disks."
            ):
                imported.add(str(node.module).rpartition(".")[2])
    lazily = {
        "channels",
        "compare",
        "contents",
        "gc",
        "places",
    }  # of build.py, about a build that is there
    assert {
        part
        for part in imported - UNSHAPING - lazily
        if f"src/goldnode/disks/{part}.py" not in named
    } == set()


def test_root_key_changes_when_the_start_of_a_root_changes(
    recipe: DiskRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipe.root_key
    monkeypatch.setattr(building, "root_start", lambda _: "true")
    assert replace(recipe).root_key != before


def test_the_policy_of_the_class_is_on_the_command_line(recipe: DiskRecipe) -> None:
    words = recipe.command_line.split()
    assert words[:2] == ["console=tty0", "console=ttyS0,115200n8"]
    assert "iommu=pt" in words
    assert recipe.spec.name == f"demo_disk_r535-{recipe.build_id}"
    assert recipe.spec.epoch == recipe.lock.epoch


def test_a_failed_check_fails_the_build() -> None:
    passed, waived = Hygiene("sshd", "passed", ""), Hygiene("setuid", "waived", "/usr/bin/x: …")
    refuse_unclean([passed, waived])
    with pytest.raises(
        DiskError, match=r"1 checks of the root filesystem fail: logs: /var/log/dpkg\.log: a log"
    ):
        refuse_unclean([passed, waived, Hygiene("logs", "failed", "/var/log/dpkg.log: a log")])


# A build that is there, and lacks a format


class Bench:
    """A build whose stages are stand-ins: what is done with what they make is goldnode's own."""

    def __init__(self, recipe: DiskRecipe, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.recipe, self.store, self.raw = recipe, DiskStore(place), b"the disk" * 1000
        patch.setattr(building, "_root", lambda *given: (place, (), True))
        patch.setattr(building, "check_room", lambda *given: None)
        patch.setattr(building, "date", lambda *given: None)
        patch.setattr("goldnode.disks.rootfs.needs_root", lambda: None)
        patch.setattr("goldnode.disks.firstboot.install", lambda *given: None)
        patch.setattr(
            "goldnode.disks.hygiene.check", lambda *given: [Hygiene("sshd", "passed", "")]
        )
        patch.setattr(building, "assemble", self._assemble)
        patch.setattr("goldnode.disks.formats.write", self._write)

    def _assemble(self, root: Path, spec: Any, raw: Path, say: Any) -> Assembled:
        raw.write_bytes(self.raw)
        return Assembled(raw, (), len(self.raw), sha256_of(raw), len(self.raw))

    def _write(self, raw: Path, root: Path, kind: str, out: Path, **given: Any) -> DiskFile:
        out.write_bytes(kind.encode() + raw.read_bytes())
        return described(out, kind)

    def __call__(self, *kinds: str) -> BuiltDisk:
        return building.build(self.recipe, self.store, kinds=kinds)[0]


@pytest.fixture
def bench(recipe: DiskRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(recipe, tmp_path / "store", monkeypatch)


def stored(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of every file."""
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in directory.iterdir()}


def sums(disk: BuiltDisk) -> list[str]:
    return (disk.directory / SUMS).read_text().splitlines()


def test_one_more_format_leaves_the_build_what_it_is(bench: Bench) -> None:
    first = bench("raw")
    prove(first, None)
    before = stored(first.directory)
    more = bench("raw", "qcow2")
    after = stored(more.directory)
    assert [row.format for row in more.files] == ["raw", "qcow2"]
    evidence.check_files(more)
    assert sums(more) == sorted(
        (f"{row.sha256}  {row.file}" for row in more.files), key=lambda line: line.split()[1]
    )
    assert {name for name in before if after[name] != before[name]} == {MANIFEST, SUMS}, (
        "nobody has to boot it again"
    )
    assert requirements.judge_one("booted", more).state == "passed"
    assert stored(bench("qcow2").directory) == after


def test_a_build_that_was_killed_before_its_end_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench("raw")
    prove(first, None)
    before = stored(first.directory)

    def killed(path: Path, data: bytes) -> None:
        if path.name == MANIFEST:
            raise KeyboardInterrupt
        replace_file(path, data)

    monkeypatch.setattr(building, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        bench("qcow2")
    after = stored(first.directory)
    assert {name for name in before if after[name] != before[name]} == {SUMS}
    assert BuiltDisk.load(first.directory) == first
    monkeypatch.setattr(building, "replace_file", replace_file)
    assert [row.format for row in bench("qcow2").files] == ["raw", "qcow2"]


def test_a_format_that_the_manifest_names_changes_no_manifest(bench: Bench) -> None:
    """A build that was pulled without it: what is signed stays signed."""
    first = bench("qcow2", "raw.zst")
    manifest = (first.directory / MANIFEST).read_bytes()
    first.path("qcow2").unlink()
    again = bench("qcow2")
    assert (first.directory / MANIFEST).read_bytes() == manifest
    assert again.path("qcow2").is_file()


def test_another_disk_is_no_further_format(bench: Bench) -> None:
    first = bench("raw")
    before = stored(first.directory)
    bench.raw = b"another disk"
    with pytest.raises(DiskError, match="was built again and is not the same"):
        bench("qcow2")
    assert stored(first.directory) == before


def test_a_build_that_a_channel_leads_to_keeps_its_manifest(bench: Bench) -> None:
    first = bench("qcow2", "raw.zst")
    places.ChannelStore(bench.store.root).name_as(f"{first.class_}:stable", digest_of(first))
    first.path("qcow2").unlink()
    before = stored(first.directory)
    with pytest.raises(
        DiskError,
        match=r"is followed \(a channel that this store saw\), and would be another build with tar",
    ):
        bench("tar")
    assert stored(first.directory) == before
    assert bench("qcow2").path("qcow2").is_file(), "which its manifest names"


def test_too_little_space_is_reported_with_numbers(
    recipe: DiskRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskStore, "free", lambda self: 1_000_000_000)
    with pytest.raises(DiskError, match=r"a build takes up to 2\.9 GB, and 1\.0 GB are free"):
        building.check_room(DiskStore(tmp_path), recipe.lock)


def test_killed_build_directory_is_removed_and_a_running_one_stays(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
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


def test_a_failed_build_leaves_nothing_and_its_directory_is_fresh_the_next_time(
    tmp_path: Path,
) -> None:
    store = DiskStore(tmp_path)
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


def test_a_disk_that_fills_up_in_the_middle_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match="the disk is full; nothing is left of this build"),
        building._full_disk(tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), building._full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
