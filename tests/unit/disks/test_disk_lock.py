"""The lock of a disk: what it must say, when it is stale, and that an edit by hand is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import DiskError, ModulesError, SiteError
from goldnode.core.site import Site
from goldnode.disks import locking
from goldnode.disks.definition import load_definition
from goldnode.disks.locking import (
    DiskLock,
    DiskTarget,
    find_disk_lock,
    load_disk_lock,
    lock_directories,
    write_disk_lock,
)
from goldnode.lock.builder import ModuleBuild
from goldnode.lock.locked_files import LockedDeb
from goldnode.lock.model import lock_name
from goldnode.node.state.family import builds_modules

CLASS = "cpu_only"


@pytest.fixture(scope="module")
def target() -> DiskTarget:
    return locking.target(CLASS, load_definition(), load_catalog(), Site())


def lock_of(target: DiskTarget, **change: object) -> DiskLock:
    deb = LockedDeb(
        name="sudo",
        version="1.9-1",
        architecture="amd64",
        sha256="0" * 64,
        size=3,
        path="pool/main/s/sudo/sudo_1.9-1_amd64.deb",
        archive="debian",
        why="requested",
    )
    lock = DiskLock(
        lock=1,
        disk=target.name,
        intent=target.intent,
        resolved="2026-11-22",
        stack=target.stack.name,
        stack_lock=target.stack_lock.digest,
        modules=None,
        archives=[],
        debs=[deb],
    )
    return lock.model_copy(update=change)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOLDNODE_DISK_LOCKS", str(tmp_path))
    return tmp_path


def test_written_disk_lock_is_loaded_unchanged(target: DiskTarget, place: Path) -> None:
    lock = lock_of(target)
    path = write_disk_lock(lock, place)
    assert path.name == lock_name(CLASS)
    assert find_disk_lock(target) == lock
    assert (lock.epoch, lock.size) == (1795305600, 3)
    assert "http" not in path.read_text()


def test_missing_disk_lock_is_an_error_with_the_command(
    target: DiskTarget, place: Path, tmp_path: Path
) -> None:
    definition = load_definition()
    definition.source.file = tmp_path / "disks.yml"
    with pytest.raises(
        DiskError,
        match=f'the disk image of class "{CLASS}" has no lock. Run `goldnode disks lock {CLASS}`',
    ):
        find_disk_lock(replace(target, definition=definition))


def test_a_directory_of_locks_that_is_not_there(
    target: DiskTarget, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_DISK_LOCKS", f"{place}:{place}/gone")
    with pytest.raises(
        SiteError,
        match=f"^GOLDNODE_DISK_LOCKS names {place}/gone, which is not a directory. Make it, or correct",
    ):
        find_disk_lock(target)
    assert lock_directories(target.definition, to_write=True)[:2] == [place, place / "gone"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"intent": "sha256:" + "1" * 64},
            "stale: the definition asks for others since 2026-11-22",
            id="definition",
        ),
        pytest.param(
            {"intent": "sha256:" + "1" * 64, "stack_lock": "sha256:" + "2" * 64},
            "stale: stack debian12_cpu has another lock",
            id="stack",
        ),
        pytest.param(
            {"disk": "other"},
            'the lock of the disk of "other", not of "cpu_only"',
            id="another-class",
        ),
    ],
)
def test_a_lock_of_something_else_is_refused(
    target: DiskTarget, place: Path, change: dict[str, object], message: str
) -> None:
    write_disk_lock(lock_of(target, **change), place).rename(place / lock_name(CLASS))
    with pytest.raises(DiskError, match=message):
        find_disk_lock(target)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("1.9-1", "1.9-2", "edited after goldnode wrote it", id="edited"),
        pytest.param(
            "lock: 1", "lock: 2", "schema 2, and this goldnode reads schema 1", id="newer"
        ),
        pytest.param("stack: ", "stak: ", 'unknown key "stak". Use "stack"', id="misspelt"),
        pytest.param(
            "size: 3", "size: three", 'is "three", expected a whole number', id="wrong-type"
        ),
    ],
)
def test_a_damaged_lock_names_its_line(
    target: DiskTarget, place: Path, old: str, new: str, message: str
) -> None:
    path = write_disk_lock(lock_of(target), place)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DiskError, match=message) as caught:
        load_disk_lock(path)
    assert caught.value.line is not None


def test_the_intent_follows_the_stack_and_the_definition(target: DiskTarget) -> None:
    more = replace(target, disk=replace(target.disk, packages=(*target.disk.packages, "htop")))
    assert more.intent != target.intent
    other = replace(
        target, stack_lock=target.stack_lock.model_copy(update={"resolved": "2020-01-01"})
    )
    assert other.intent != target.intent


def test_a_disk_goes_without_what_only_builds_modules(target: DiskTarget) -> None:
    names = {row.name for row in target.stack_set(None)}
    assert {"docker.io", "containerd", "runc"} < names
    assert not {
        name
        for name in names
        if name.startswith(("linux-headers", "linux-kbuild", "linux-compiler"))
    }
    document = target.document(None)
    assert [row["name"] for row in document["packages"]] == sorted(names)
    # No module of this class is built on nodes, so a live node has the same packages.
    assert live_digest(target) == document["digest"]


def test_a_disk_has_no_headers_of_an_earlier_lock(target: DiskTarget) -> None:
    image = next(row for row in target.stack_lock.packages if row.name.startswith("linux-image-"))
    headers = image.model_copy(update={"name": image.name.replace("image", "headers")})
    rows = [*target.stack_lock.packages, headers]
    earlier = replace(target, stack_lock=target.stack_lock.model_copy(update={"packages": rows}))
    document = earlier.document(None)
    assert headers.name not in {row["name"] for row in document["packages"]}
    # Its digest is its own: a live node gets them.
    assert live_digest(earlier) != document["digest"]


def live_digest(target: DiskTarget) -> str:
    from goldnode.classdoc.compile import class_document

    locks = {target.stack.name: target.stack_lock}
    return str(class_document(CLASS, target.catalog, target.site, locks)["digest"])


def test_missing_or_damaged_package_in_the_pool_is_an_error(
    target: DiskTarget, tmp_path: Path
) -> None:
    (deb,) = lock_of(target).debs
    with pytest.raises(DiskError, match=r"sudo_1\.9-1_amd64\.deb is not in the pool"):
        locking.checked(tmp_path, [deb])
    path = tmp_path / deb.sha256 / deb.file
    path.parent.mkdir()
    path.write_bytes(b"abc")
    with pytest.raises(DiskError, match="its hash is another"):
        locking.checked(tmp_path, [deb])


def test_the_locks_of_goldnode_name_every_package_of_the_stack() -> None:
    definition, catalog = load_definition(), load_catalog()
    for path in sorted(definition.locks.glob("*.lock.yml")):
        lock = load_disk_lock(path)
        item = locking.target(lock.disk, definition, catalog, Site())
        assert find_disk_lock(item) == lock
        have = {deb.name: (deb.version, deb.sha256) for deb in lock.debs}
        for row in item.stack_set(lock.modules):
            assert have[row.name] == (row.version, row.sha256), f"{path.name}: {row.name}"
        assert item.builds == (lock.modules is not None)
        built = [
            deb.name
            for deb in lock.debs
            if builds_modules(deb.name) or deb.name in ("gcc", "make", "dkms", "binutils")
        ]
        assert built == [], f"{path.name} holds what builds modules"


def test_a_driver_that_does_not_build_leaves_no_lock(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    catalog = load_catalog()
    item = locking.target("demo_disk_r535", load_definition(), catalog, Site())
    line = "nv-pci.c:237: error: too few arguments to function 'pci_resize_resource'"
    failed = ModuleBuild(
        "0" * 64,
        stack=item.stack.name,
        kernel="6.1.0-56-amd64",
        driver="535.309.01",
        flavour="proprietary",
        ok=False,
        seconds=1.0,
        line=line,
        log=None,
        modules=(),
        compression="",
        place="",
        builder=(),
        built="",
    )
    monkeypatch.setattr(
        "goldnode.lock.modulebuild._built", lambda *_: (None, {}, failed, tmp_path / "results")
    )
    with pytest.raises(
        ModulesError,
        match=r"driver 535\.309\.01 \(proprietary\) does not build for kernel 6\.1\.0-56-amd64: nv-pci\.c:237",
    ):
        locking.relock(item, tmp_path / "pool", upgrade=True, out=place)
    assert list(place.glob("*.lock.yml")) == []
    assert list((tmp_path / "pool").iterdir()) == []


def test_a_site_whose_nodes_build_from_a_mirror_gets_the_needs_of_a_disk() -> None:
    site = Site.model_validate(
        {"mirror": {"directory": "/srv/mirror", "url": "http://mirror.example"}}
    )
    with pytest.raises(
        DiskError, match=r"a disk image holds no compiler\. Write modules: prebuilt"
    ):
        locking.target("demo_disk_r535", load_definition(), load_catalog(), site)
