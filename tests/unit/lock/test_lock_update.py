"""A lock moves only where it has to, where it is told to, and says what moved and why."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.cli import main
from goldnode.core.errors import LockError
from goldnode.lock.diff import compare_locks
from goldnode.lock.model import Lock, dump_lock, load_lock, write_lock
from goldnode.lock.update import LockCheck, LockRequest, LockUpdate, UpdateMode, check, update

FIRST, SECOND = dt.date(2026, 11, 21), dt.date(2026, 11, 22)


def run(place: Place, **options: Any) -> LockUpdate:
    return update(*place.load(), LockRequest(**{"today": SECOND} | options))


def looked(place: Place, **options: Any) -> LockCheck:
    return check(*place.load(), LockRequest(**{"today": SECOND} | options))


def by_name(lock: Lock) -> dict[str, str]:
    return {package.name: package.version for package in lock.packages}


def moves(made: LockUpdate) -> dict[str, tuple[str, str, str]]:
    """Moved packages: from, to, why."""
    return {
        change.name: (change.was.version, change.now.version, change.reason)
        for change in made.diff.changes
        if change.was is not None and change.now is not None
    }


@pytest.fixture
def first(place: Place, near: Archive) -> LockUpdate:
    """The lock of the first day, beside its stack."""
    return run(place, today=FIRST)


def second_day(near: Archive) -> None:
    """A newer kernel ABI, driver and compiler; everything of the first day is still there."""
    shapes.kernel(near, "6.1.0-56-amd64", "6.1.192-2")
    shapes.driver(near, "535.309.01", revision="-0+deb12u1")
    near.add("gcc", "4:12.2.0-4", depends="libc6, linux-libc-dev", source="gcc-defaults (1.204)")
    near.publish()


def test_first_lock_is_written_and_needs_a_reboot(place: Place, first: LockUpdate) -> None:
    assert (first.action, first.old, first.lock.resolved) == ("written", None, "2026-11-21")
    assert load_lock(first.file) == first.lock
    assert first.diff.reboot == "kernel 6.1.0-50-amd64 has to be booted"


def test_a_good_lock_is_not_touched_whatever_is_newer(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    before = first.file.stat().st_mtime_ns, first.file.read_bytes()
    made = run(place)
    assert (made.action, made.lock, bool(made.diff)) == ("kept", first.lock, False)
    assert (first.file.stat().st_mtime_ns, first.file.read_bytes()) == before


def test_upgrade_moves_everything_and_reports_the_reasons(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    made = run(place, mode=UpdateMode.UPGRADE)
    assert made.action == "written"
    assert dump_lock(made.lock) == dump_lock(resolve(*place.load(), today=SECOND)), (
        "an upgrade is a resolution from nothing"
    )
    found = moves(made)
    assert found["linux-image-6.1.0-56-amd64"] == ("6.1.176-1", "6.1.192-2", "newer kernel (near)")
    assert found["linux-headers-6.1.0-56-common"] == (
        "6.1.176-1",
        "6.1.192-2",
        "newer kernel (near)",
    )
    assert found["nvidia-alternative"] == (
        "535.261.03-1",
        "535.309.01-0+deb12u1",
        "driver 535.261.03 -> 535.309.01 (near)",
    )
    assert found["gcc"] == ("4:12.2.0-3", "4:12.2.0-4", "newer version (near)")
    assert made.diff.reboot == "kernel 6.1.0-56-amd64 has to be booted"
    text = made.diff.text()
    assert text.splitlines()[:3] == [
        "kernel: 6.1.0-50-amd64 -> 6.1.0-56-amd64",
        "driver: 535.261.03 -> 535.309.01",
        "kernel:",
    ]
    assert re.search(
        r"linux-image-6.1.0-50-amd64 -> linux-image-6.1.0-56-amd64 +6.1.176-1 -> 6.1.192-2 +newer kernel",
        text,
    )
    assert [
        line for line in text.splitlines() if line.endswith(":") or ", free on nodes" in line
    ] == [
        "kernel:",
        "driver:",
        "base, free on nodes:",
    ]
    assert re.search(
        r"^\d+ moved; \d.* to fetch, the closure (grows|shrinks) by", text, re.MULTILINE
    )


def test_upgrade_with_nothing_newer_leaves_the_file(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    assert run(place, mode=UpdateMode.UPGRADE).action == "kept"


def test_only_what_vanished_moves_and_what_was_built_with_it(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    near.remove("gcc", "4:12.2.0-3")
    near.publish()
    made = run(place)
    assert moves(made) == {
        "gcc": ("4:12.2.0-3", "4:12.2.0-4", "the locked version left the archives (near)")
    }
    assert made.diff.reboot is None
    assert "no reboot follows" in made.diff.text()


def test_packages_of_one_source_move_together(place: Place, near: Archive) -> None:
    def binutils(version: str) -> None:
        near.add("binutils", version, depends=f"libbinutils (= {version})", source="binutils")
        near.add("libbinutils", version, source="binutils")

    near.add("tool", "1-1", depends="binutils")
    binutils("2.40-1")
    near.publish()
    place.stack(packages=["tool"])
    run(place, today=FIRST)
    second_day(near)
    binutils("2.40-2")
    near.remove("libbinutils", "2.40-1")
    near.publish()
    made = run(place)
    assert (set(moves(made)), made.notes) == ({"binutils", "libbinutils"}, ())


def test_a_driver_that_vanished_moves_whole_and_the_kernel_stays(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    near.remove("libcuda1", "535.261.03-1")
    near.publish()
    made = run(place)
    assert made.lock.kernel_release == "6.1.0-50-amd64"
    assert made.lock.driver_version == "535.309.01"
    assert set(moves(made)) == {
        "libcuda1",
        "firmware-nvidia-gsp",
        "nvidia-alternative",
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
    }
    assert made.diff.reboot == "the GPU driver is replaced"


def test_a_newer_revision_of_the_pinned_driver_waits(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    shapes.driver(near, "535.261.03", revision="-2")
    near.add("extra", "1-1")
    near.publish()
    place.stack(packages=["extra"])
    made = run(place)
    assert by_name(made.lock)["libcuda1"] == "535.261.03-1"
    assert [(change.kind, change.name, change.reason) for change in made.diff.changes] == [
        ("new", "extra", "the stack asks for it")
    ]


def test_another_intent_changes_only_what_it_is_about(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    shapes.toolkit(near, "1.19.1-1")
    near.publish()
    place.stack(driver_version="535.309.01")
    made = run(place)
    assert made.lock.kernel_release == "6.1.0-50-amd64"
    assert made.lock.driver_version == "535.309.01"
    assert by_name(made.lock)["gcc"] == "4:12.2.0-3"
    place.stack()
    again = run(place)
    assert again.lock.driver_version == "535.309.01", (
        "the intent asks for no version now, so the locked one stays"
    )
    place.stack(driver=None)
    gone = run(place).diff
    assert {change.kind for change in gone.changes} == {"removed"}
    assert {change.reason for change in gone.changes} == {
        "the stack asks for it no more",
        "nothing needs it any more",
    }
    assert gone.size < 0


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        pytest.param("gcc", {"gcc"}, id="base"),
        pytest.param(
            "libcuda1",
            {
                "libcuda1",
                "firmware-nvidia-gsp",
                "nvidia-alternative",
                "nvidia-kernel-dkms",
                "nvidia-kernel-support",
            },
            id="driver",
        ),
        pytest.param(
            "linux-image-6.1.0-50-amd64",
            {
                "linux-image-6.1.0-56-amd64",
                "linux-headers-6.1.0-56-amd64",
                "linux-headers-6.1.0-56-common",
                "linux-kbuild-6.1",
            },
            id="kernel",
        ),
    ],
)
def test_upgrade_of_one_package(
    place: Place, near: Archive, first: LockUpdate, name: str, moved: set[str]
) -> None:
    second_day(near)
    assert set(moves(run(place, packages=[name]))) == moved


def test_upgrade_of_a_package_that_is_not_locked(place: Place, first: LockUpdate) -> None:
    with pytest.raises(LockError, match=r'package "libcuda" is not in the lock. Use "libcuda1"'):
        run(place, packages=["libcuda"])


def test_base_packages_that_cannot_stay_are_reported(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    near.add("libc6", "2.36-10", source="glibc")
    near.add("extra", "1-1", depends="libc6 (>= 2.36-10)")
    near.publish()
    place.stack(packages=["extra"])
    made = run(place)
    assert by_name(made.lock)["libc6"] == "2.36-10"
    assert made.notes == ("packages of the base system had to move along",)
    assert by_name(made.lock)["libcuda1"] == "535.261.03-1"


def test_a_lock_edited_by_hand_keeps_its_versions_and_gets_the_archives_hashes(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    text = first.file.read_text(encoding="utf-8")
    good = next(item for item in first.lock.packages if item.name == "libcuda1").sha256
    first.file.write_text(text.replace(good, "b" * 64), encoding="utf-8")
    reported = looked(place)
    assert [(one.kind, one.wrong) for one in reported.problems[:2]] == [
        ("edited", True),
        ("changed", True),
    ]
    assert (
        "libcuda1 535.261.03-1 has other bytes than were locked, or the lock was edited by hand"
        in reported.problems[1].message
    )
    made = run(place)
    assert made.action == "written"
    assert [(change.name, change.kind, change.reason) for change in made.diff.changes] == [
        ("libcuda1", "rebuilt", "the lock was edited by hand")
    ]
    assert made.lock.packages == first.lock.packages
    assert load_lock(made.file) == made.lock


def test_a_broken_lock_is_replaced_only_by_an_upgrade(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    first.file.write_text(first.file.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    broken = first.file.read_bytes()
    with pytest.raises(LockError, match=r"small\.lock\.yml:\d+: this is not valid YAML.*--upgrade"):
        run(place)
    assert first.file.read_bytes() == broken
    made = run(place, mode=UpdateMode.UPGRADE)
    assert made.notes[0].startswith("the lock that was there could not be read")
    assert load_lock(made.file) == made.lock
    first.file.write_text(
        first.file.read_text(encoding="utf-8").replace("lock: 1", "lock: 2"), encoding="utf-8"
    )
    with pytest.raises(LockError, match="schema 2"):
        run(place, mode=UpdateMode.UPGRADE)


def test_a_dry_run_writes_nothing(place: Place, near: Archive, first: LockUpdate) -> None:
    second_day(near)
    before = first.file.read_bytes()
    made = run(place, mode=UpdateMode.UPGRADE, write=False)
    assert (made.action, made.lock.kernel_release) == ("would-write", "6.1.0-56-amd64")
    assert first.file.read_bytes() == before


def test_a_resolution_that_fails_leaves_the_lock(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    before = first.file.read_bytes()
    near.remove("kmod", "30-1")
    near.publish()
    with pytest.raises(LockError, match="apt finds no way"):
        run(place)
    assert first.file.read_bytes() == before
    assert {path.name for path in first.file.parent.iterdir()} == {"small.yml", "small.lock.yml"}


def test_the_lock_in_force_is_stored_wherever_it_lies(
    place: Place, near: Archive, first: LockUpdate, tmp_path: Path
) -> None:
    second_day(near)
    entry, catalog, site = place.load()
    site = site.model_copy(update={"locks": "of-site"})
    assert update(entry, catalog, site, LockRequest(today=SECOND)).file == first.file
    moved = update(entry, catalog, site, LockRequest(today=SECOND, mode=UpdateMode.UPGRADE))
    assert moved.file == tmp_path / "of-site/small.lock.yml"
    assert load_lock(first.file) == first.lock
    # A directory that was named has its own lock or none.
    assert (
        update(
            entry, catalog, site, LockRequest(today=SECOND, out=tmp_path / "out")
        ).lock.kernel_release
        == "6.1.0-56-amd64"
    )


# Two days


def row(lock: Lock) -> dict[str, str]:
    """The lines of the lock's file, by package; the kernel that is the reason for one is left out."""
    return {
        found[1]: re.sub(r"needed by linux-[^\"]+", "needed by the kernel", line)
        for line in dump_lock(lock).splitlines()
        if (found := re.match(r"  - \{name: ([^,]+),", line))
    }


DRIVERLESS = {"driver": None}
AMD = {
    "driver_vendor": "amd",
    "driver_branch": None,
    "driver_flavour": None,
    "driver_dkms": None,
    "driver_lockstep": [],
    "driver_packages": ["firmware-amd-graphics"],
    "driver_family": ["firmware-amd-*"],
    "packages": ["rocminfo"],
}


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        pytest.param({}, {"gcc", "libcuda1", "nvidia-alternative", "kernel"}, id="nvidia"),
        pytest.param(
            {"packages": ["datacenter-gpu-manager"]},
            {"gcc", "libcuda1", "nvidia-alternative", "kernel", "dcgm"},
            id="dcgm",
        ),
        pytest.param(AMD, {"gcc", "rocminfo", "kernel"}, id="rocm"),
        pytest.param(DRIVERLESS, {"gcc", "kernel"}, id="cpu"),
    ],
)
def test_locks_of_two_days_differ_only_in_what_moved(
    place: Place, near: Archive, stack: dict[str, Any], expected: set[str]
) -> None:
    near.add("firmware-amd-graphics", "20230210-5", source="firmware-nonfree")
    near.add("rocminfo", "5.2.3-2", depends="libhsa-runtime64-1")
    near.add("libhsa-runtime64-1", "5.2.3-3")
    near.add("datacenter-gpu-manager", "1:3.3.9", depends="libc6")
    near.publish()
    place.stack(**stack)
    one = resolve(*place.load(), today=FIRST)
    second_day(near)
    for name, old, new in (
        ("rocminfo", "5.2.3-2", "5.2.3-4"),
        ("datacenter-gpu-manager", "1:3.3.9", "1:4.6.0-1"),
    ):
        near.remove(name, old)
        near.add(name, new, depends="libhsa-runtime64-1" if name == "rocminfo" else "libc6")
    near.publish()
    two = resolve(*place.load(), today=SECOND)
    before, after = row(one), row(two)
    differ = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    driver = {
        "firmware-nvidia-gsp",
        "libcuda1",
        "nvidia-alternative",
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
    }
    wanted = (
        {"gcc"}
        | ({"linux-kbuild-6.1"} if "kernel" in expected else set())
        | (driver if "libcuda1" in expected else set())
    )
    wanted |= {"rocminfo"} & expected | (
        {"datacenter-gpu-manager"} if "dcgm" in expected else set()
    )
    builds = place.load()[0].item.builds_modules
    assert differ == (wanted if builds else wanted - {"gcc", "linux-kbuild-6.1"})
    headers = {"linux-headers-6.1.0-N-amd64", "linux-headers-6.1.0-N-common"} if builds else set()
    assert {re.sub("-5[06]-", "-N-", name) for name in before.keys() ^ after.keys()} == {
        "linux-image-6.1.0-N-amd64",
        *headers,
    }
    header = [
        line.split(":")[0]
        for line in dump_lock(one).splitlines()
        if line not in dump_lock(two) and not line.startswith("  - ")
    ]
    assert set(header) - {"driver_version"} == {"digest", "resolved", "kernel_release"}
    reported = {change.name for change in compare_locks(one, two).changes}
    assert reported == differ | set(after.keys() - before.keys())
    if "dcgm" in expected:
        dcgm = next(item for item in two.packages if item.name == "datacenter-gpu-manager")
        assert (dcgm.set, dcgm.part, dcgm.version) == ("stack", "runtime", "1:4.6.0-1")


def test_the_same_archive_on_two_days_differs_in_the_date(place: Place, near: Archive) -> None:
    one, two = (
        dump_lock(resolve(*place.load(), today=day)).splitlines() for day in (FIRST, SECOND)
    )
    assert [a.split(":")[0] for a, b in zip(one, two, strict=True) if a != b] == [
        "digest",
        "resolved",
    ]


# What a check says


def test_a_check_reports_what_waits_and_passes(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    second_day(near)
    reported = looked(place)
    assert not reported.wrong
    assert [(one.kind, one.package) for one in reported.problems] == [
        ("kernel", "linux-image-6.1.0-56-amd64"),
        *[
            ("newer", name)
            for name in (
                "firmware-nvidia-gsp",
                "libcuda1",
                "nvidia-alternative",
                "nvidia-kernel-dkms",
                "nvidia-kernel-support",
            )
        ],
        ("newer", None),
    ]
    assert (
        reported.problems[0].message == "6.1.0-56-amd64 is there, 6.1.0-50-amd64 is locked (near)"
    )
    assert reported.problems[-1].message == "1 packages of the base system: gcc"
    assert len(looked(place, mode=UpdateMode.UPGRADE).wrong) == 7, (
        "asked whether an upgrade would move anything"
    )


def test_check_of_a_changed_stack_lists_the_changes(
    place: Place, near: Archive, first: LockUpdate
) -> None:
    near.add("extra", "1-1")
    near.publish()
    place.stack(packages=["extra"])
    reported = looked(place)
    assert [one.kind for one in reported.wrong] == ["intent"]
    assert [change.name for change in reported.needed.changes] == ["extra"]


def test_a_check_when_no_lock_could_be_made(place: Place, near: Archive, first: LockUpdate) -> None:
    near.remove("kmod", "30-1")
    near.publish()
    reported = looked(place)
    assert [(one.kind, one.wrong) for one in reported.problems] == [
        ("vanished", True),
        ("unresolved", True),
        ("unresolved", False),
    ]


def test_a_check_writes_nothing(place: Place, near: Archive, first: LockUpdate) -> None:
    second_day(near)
    near.remove("gcc", "4:12.2.0-3")
    near.publish()
    before = {path: path.read_bytes() for path in first.file.parent.iterdir()}
    assert looked(place).wrong
    assert {path: path.read_bytes() for path in first.file.parent.iterdir()} == before


# The command


def goldnode(place: Place, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("GOLDNODE_CATALOG", str(place.root / "catalog"))
    monkeypatch.setenv("GOLDNODE_SITE", str(place.root / "site.yml"))
    return CliRunner().invoke(main, ["lock", "small", *arguments])


def test_lock_command_writes_checks_and_compares_locks(
    place: Place, near: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = goldnode(place, monkeypatch)
    assert (done.exit_code, done.stdout.splitlines()[-1].split(": ")[1]) == (
        0,
        "kernel 6.1.0-50-amd64, driver 535.261.03; 10 packages in the stack set, 16 in all",
    )
    path = place.root / "catalog/stacks/small.lock.yml"
    stored = path.rename(place.root / "before.lock.yml").read_text()
    path.write_text(stored)
    assert "kept as it is" in goldnode(place, monkeypatch).stdout
    done = goldnode(place, monkeypatch, "--check")
    assert (done.exit_code, done.stdout) == (
        0,
        f"{path}: all 16 packages are in the archives, unchanged\n",
    )
    second_day(near)
    near.remove("libcuda1", "535.261.03-1")
    near.publish()
    done = goldnode(place, monkeypatch, "--check")
    assert done.exit_code == 1
    assert (
        "vanished: libcuda1 535.261.03-1 has vanished; the archives have 535.309.01-0+deb12u1"
        in done.stdout
    )
    assert "`goldnode lock small` would change:" in done.stdout
    assert (
        "1 of 16 locked packages. Run `goldnode lock small`, or install from a mirror that kept them."
        in done.stderr
    )
    done = goldnode(place, monkeypatch, "--check", "--format", "json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["good"], found["schema"]) == (1, False, "goldnode.lock-report/1")
    assert [row["name"] for row in found["needed"]["changes"]][:2] == [
        "firmware-nvidia-gsp",
        "libcuda1",
    ]
    done = goldnode(place, monkeypatch, "--upgrade", "--dry-run")
    assert done.exit_code == 0
    assert f"would write {path}: kernel 6.1.0-56-amd64, driver 535.309.01" in done.stdout
    assert path.read_text() == stored
    done = goldnode(place, monkeypatch, "--upgrade", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["action"], found["diff"]["reboot"]) == (
        "written",
        "kernel 6.1.0-56-amd64 has to be booted",
    )
    done = goldnode(place, monkeypatch, "--diff", str(place.root / "before.lock.yml"))
    assert done.exit_code == 0, done.output
    assert "driver: 535.261.03 -> 535.309.01" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "wording"),
    [
        (("--upgrade", "--security"), "--upgrade and --security exclude each other"),
        (("--upgrade", "--upgrade-package", "gcc"), "--upgrade and --upgrade-package exclude"),
        (("--check", "--dry-run"), "--check and --dry-run exclude"),
        (("--allow-unknown",), "belongs to --security"),
        (("--check", "--upgrade-package", "gcc"), "goes with neither"),
        (("--diff", "/etc/hostname", "--upgrade"), "--diff compares files"),
    ],
)
def test_options_that_contradict_each_other(
    place: Place, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], wording: str
) -> None:
    done = goldnode(place, monkeypatch, *arguments)
    assert (done.exit_code, wording in done.stderr) == (2, True), done.stderr


def test_writing_a_lock_twice_is_one_text(
    place: Place, first: LockUpdate, tmp_path: Path, key: SigningKey
) -> None:
    assert write_lock(first.lock, tmp_path / "again").read_bytes() == first.file.read_bytes()
