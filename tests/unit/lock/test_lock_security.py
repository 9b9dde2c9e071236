"""Kernel updates from the security archives: kernel and module move as a pair, or the report says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place

from goldnode.cli import main
from goldnode.core.errors import LockError
from goldnode.lock.builds import known_build
from goldnode.lock.model import load_lock
from goldnode.lock.update import LockRequest, LockUpdate, UpdateMode, check, update

# The facts say of no 545 driver whether it builds on 6.1, so that each test says what is known.
BRANCH, DRIVER = "545", "545.10.01"
STACK: dict[str, Any] = {
    "archives": ["near", "guard"],
    "driver_branch": BRANCH,
    "end_of_life": {"date": "2024-01-01", "source": "facts"},
}


@pytest.fixture
def guard(tmp_path: Path, key: SigningKey) -> Archive:
    """The security archive, empty."""
    made = Archive(tmp_path / "guard", key, suite="bookworm-security")
    made.publish()
    return made


@pytest.fixture
def site(place: Place, near: Archive, guard: Archive) -> Place:
    """A stack on both archives with a driver of that branch, and its lock of kernel 6.1.0-50."""
    place.site(near=f"file://{place.root}/near", guard=f"file://{place.root}/guard")
    with (place.root / "site.yml").open("a") as handle:
        handle.write("mirror: {directory: mirror}\n")
    near.stanzas = [
        item for item in near.stanzas if item.get("Source") != "nvidia-graphics-drivers"
    ]
    shapes.driver(near, DRIVER)
    near.publish()
    place.stack(**STACK)
    update(*place.load())
    return place


def built(
    place: Place, kernel: str, ok: bool, line: str | None = None, driver: str = DRIVER
) -> None:
    """A result of `goldnode modules`."""
    directory = place.root / "mirror/modules/results"
    directory.mkdir(parents=True, exist_ok=True)
    row = {"kernel": kernel, "driver": driver, "flavour": "proprietary", "ok": ok, "line": line}
    number = len(list(directory.iterdir()))
    row["built"] = f"2026-11-21T00:00:{number:02}Z"
    (directory / f"{'f' if number == 0 else 'a'}{number}.json").write_text(json.dumps(row))


def cve(guard: Archive, number: int, version: str) -> str:
    """Publish a kernel in the security archive; return its release."""
    release = f"6.1.0-{number}-amd64"
    shapes.kernel(guard, release, version)
    guard.publish()
    return release


def security_update(place: Place, **options: Any) -> LockUpdate:
    made = update(*place.load(), LockRequest(mode=UpdateMode.SECURITY, **options))
    assert made.security is not None
    return made


def moved(made: LockUpdate) -> set[str]:
    return {change.name for change in made.diff.changes}


KERNEL = {
    "linux-image-6.1.0-56-amd64",
    "linux-headers-6.1.0-56-amd64",
    "linux-headers-6.1.0-56-common",
    "linux-kbuild-6.1",
}


def test_kernel_and_module_move_and_all_else_stays(
    site: Place, near: Archive, guard: Archive
) -> None:
    cve(guard, 56, "6.1.192-2")
    near.add("gcc", "4:12.2.0-9", depends="libc6, linux-libc-dev")
    shapes.driver(near, "545.20.02")
    near.publish()
    built(site, "6.1.0-56-amd64", True)
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state, made.lock.kernel_release) == (
        "written",
        "moved",
        "6.1.0-56-amd64",
    )
    assert made.lock.driver_version == DRIVER, "a newer driver waits: this one builds"
    assert moved(made) == KERNEL
    assert {change.reason for change in made.diff.changes} == {"newer kernel (guard)"}
    assert load_lock(made.file) == made.lock


def test_a_newer_kernel_of_the_ordinary_archive_is_no_security_update(
    site: Place, near: Archive, guard: Archive
) -> None:
    shapes.kernel(near, "6.1.0-99-amd64", "6.1.300-1")
    near.publish()
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state) == ("kept", "current")


def test_the_newest_does_not_build_so_the_newest_that_does(site: Place, guard: Archive) -> None:
    cve(guard, 56, "6.1.192-2")
    cve(guard, 57, "6.1.195-1")
    built(
        site,
        "6.1.0-57-amd64",
        False,
        "nv-linux.h:21:10: fatal error: asm/set_memory.h: No such file or directory",
    )
    built(site, "6.1.0-56-amd64", True)
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state, made.lock.kernel_release) == (
        "written",
        "held-back",
        "6.1.0-56-amd64",
    )
    text = "\n".join(made.security.lines())
    assert f"not taken: kernel 6.1.0-57-amd64: driver {DRIVER} does not build" in text
    assert "the compiler says: nv-linux.h:21:10: fatal error" in text
    assert (
        "held back at kernel 6.1.0-56-amd64: the newest of the security archives is 6.1.0-57-amd64"
        in text
    )
    again = security_update(site)
    assert again.security is not None
    assert (again.action, again.security.state) == ("kept", "held-back")


def test_nothing_builds_so_it_stays(site: Place, guard: Archive) -> None:
    cve(guard, 57, "6.1.195-1")
    built(site, "6.1.0-57-amd64", False, "error: implicit declaration")
    before = (site.root / "catalog/stacks/small.lock.yml").read_bytes()
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state, made.lock.kernel_release) == (
        "kept",
        "held-back",
        "6.1.0-50-amd64",
    )
    assert (site.root / "catalog/stacks/small.lock.yml").read_bytes() == before


def test_the_driver_moves_where_only_a_newer_one_builds(
    site: Place, near: Archive, guard: Archive
) -> None:
    cve(guard, 56, "6.1.192-2")
    shapes.driver(near, "545.20.02")
    near.publish()
    built(site, "6.1.0-56-amd64", False, "error: x")
    built(site, "6.1.0-56-amd64", True, driver="545.20.02")
    made = security_update(site)
    assert made.security is not None
    assert (made.security.state, made.lock.kernel_release, made.lock.driver_version) == (
        "moved",
        "6.1.0-56-amd64",
        "545.20.02",
    )
    assert moved(made) == KERNEL | {
        "firmware-nvidia-gsp",
        "libcuda1",
        "nvidia-alternative",
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
    }


def test_unknown_build_outcome_holds_the_update_back_unless_allowed(
    site: Place, guard: Archive
) -> None:
    cve(guard, 56, "6.1.192-2")
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state) == ("kept", "held-back")
    assert [pair.build.outcome for pair in made.security.passed] == ["unknown"]
    reported = security_update(site, allow_unknown=True)
    assert reported.security is not None
    assert (reported.security.state, reported.lock.kernel_release) == ("moved", "6.1.0-56-amd64")
    assert any(
        note.startswith("not verified: no source says whether") for note in reported.security.notes
    )


def test_other_modules_that_were_not_tried_count_as_unknown(
    site: Place, near: Archive, guard: Archive
) -> None:
    near.add("gdrdrv-dkms", "2.4-1", depends="dkms")
    near.publish()
    site.stack(**STACK, modules=[{"name": "gdrdrv", "package": "gdrdrv-dkms", "dkms": "gdrdrv"}])
    update(*site.load())
    cve(guard, 56, "6.1.192-2")
    built(site, "6.1.0-56-amd64", True)
    made = security_update(site)
    assert made.security is not None
    assert made.security.state == "held-back"
    assert "whether gdrdrv builds there was not tried" in made.security.passed[0].build.reason


def test_a_pair_that_cannot_be_installed_is_passed_over(
    site: Place, near: Archive, guard: Archive
) -> None:
    cve(guard, 56, "6.1.192-2")
    guard.add(
        "linux-image-6.1.0-57-amd64",
        "6.1.195-1",
        source="linux-signed-amd64",
        depends="kmod (>= 99)",
    )
    shapes.kernel(guard, "6.1.0-57-amd64", "6.1.195-1", image=False)
    guard.publish()
    built(site, "6.1.0-56-amd64", True)
    built(site, "6.1.0-57-amd64", True)
    made = security_update(site)
    assert made.security is not None
    assert (made.security.state, made.lock.kernel_release) == ("held-back", "6.1.0-56-amd64")
    assert "kernel 6.1.0-57-amd64: driver 545.10.01 cannot be taken: apt finds no way" in "\n".join(
        made.security.lines()
    )


@pytest.mark.parametrize(
    "changes", [{"driver": None}, {"driver_vendor": "amd"}], ids=["cpu", "rocm"]
)
def test_a_stack_without_a_module_of_its_own_just_moves(
    site: Place, near: Archive, guard: Archive, changes: dict[str, Any]
) -> None:
    if changes.get("driver_vendor"):
        near.add("firmware-amd-graphics", "2025-1")
        near.publish()
        changes = changes | {
            "driver_branch": None,
            "driver_flavour": None,
            "driver_dkms": None,
            "driver_lockstep": [],
            "driver_packages": ["firmware-amd-graphics"],
            "driver_family": ["firmware-amd-*"],
        }
    site.stack(**STACK | changes)
    update(*site.load())
    cve(guard, 56, "6.1.192-2")
    made = security_update(site)
    assert made.security is not None
    assert (made.security.state, made.lock.kernel_release) == ("moved", "6.1.0-56-amd64")


def test_other_security_updates_are_named_and_wait(site: Place, guard: Archive) -> None:
    shapes.driver(guard, "545.10.02")
    guard.add("libc6", "2.36-10", source="glibc")
    guard.publish()
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state, made.security.free) == ("kept", "current", 1)
    assert {one.package.name for one in made.security.pending} == {
        "firmware-nvidia-gsp",
        "libcuda1",
        "nvidia-alternative",
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
    }
    text = "\n".join(made.security.lines())
    assert (
        "pending: libcuda1 545.10.01-1 -> 545.10.02-1 (guard), held on nodes; `--upgrade-package libcuda1`"
        in text
    )
    assert "note: driver branch 545 has no version that fixes its newest bulletin" in text
    reported = check(*site.load())
    assert not reported.wrong
    assert {one.package for one in reported.problems if one.kind == "security"} == {
        one.package.name for one in made.security.pending
    }


def test_security_update_fails_on_edited_stale_or_missing_lock(site: Place, guard: Archive) -> None:
    path = site.root / "catalog/stacks/small.lock.yml"
    good = path.read_text()
    path.write_text(good.replace("545.10.01-1", "545.10.09-1", 1))
    with pytest.raises(LockError, match="edited after goldnode wrote it"):
        security_update(site)
    path.write_text(good)
    site.stack(**STACK, packages=["kmod"])
    with pytest.raises(LockError, match="stale"):
        security_update(site)
    path.unlink()
    with pytest.raises(LockError, match="has no lock to update"):
        security_update(site)


def test_an_exact_kernel_cannot_move_and_what_is_newer_is_reported(
    site: Place, guard: Archive
) -> None:
    site.stack(**STACK, kernel={"release": "6.1.0-50-amd64"})
    update(*site.load())
    made = security_update(site)
    assert made.security is not None
    assert made.security.state == "current"
    cve(guard, 56, "6.1.192-2")
    cve(guard, 57, "6.1.195-1")
    built(site, "6.1.0-57-amd64", False, "error: too few arguments")
    built(site, "6.1.0-56-amd64", True)
    made = security_update(site)
    assert made.security is not None
    assert (made.action, made.security.state, made.lock.kernel_release) == (
        "kept",
        "held-back",
        "6.1.0-50-amd64",
    )
    assert [
        (pair.kernel, pair.build.outcome, pair.build.line) for pair in made.security.passed
    ] == [
        ("6.1.0-57-amd64", "fails", "error: too few arguments"),
        ("6.1.0-56-amd64", "ok", None),
    ]
    assert "the stack names kernel 6.1.0-50-amd64 itself" in made.security.passed[1].build.reason
    reported = check(*site.load())
    assert [(one.kind, one.wrong) for one in reported.problems if one.kind == "kernel"] == [
        ("kernel", False)
    ]
    assert any(
        "small.yml:" in note and "write `series` and `flavour`" in note
        for note in made.security.notes
    )
    built(site, "6.1.0-56-amd64", False, "error: too many arguments")
    made = security_update(site)
    assert made.security is not None
    assert any(
        "small.yml:" in note and "no newer kernel is one that the driver builds on" in note
        for note in made.security.notes
    )
    assert not any("name a newer" in note for note in made.security.notes)


def test_the_command_and_its_exit_states(
    site: Place, guard: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_CATALOG", str(site.root / "catalog"))
    monkeypatch.setenv("GOLDNODE_SITE", str(site.root / "site.yml"))

    def goldnode(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["lock", "small", *arguments])
        return done.exit_code, done.stdout

    assert goldnode("--security")[0] == 0
    assert goldnode("--security", "--check")[0] == 0
    cve(guard, 56, "6.1.192-2")
    built(site, "6.1.0-56-amd64", False, "error: no member named 'x'")
    code, text = goldnode("--security")
    assert (code, "error: no member named 'x'" in text) == (1, True), text
    assert goldnode("--security", "--check")[0] == 1
    built(site, "6.1.0-56-amd64", True)
    assert goldnode("--security", "--check")[0] == 1, "a move waits"
    code, text = goldnode("--security", "--format", "json")
    assert (code, json.loads(text)["security"]["state"]) == (0, "moved")
    assert goldnode("--security", "--check")[0] == 0


# What is known of a build


def test_a_result_decides_before_the_facts(tmp_path: Path) -> None:
    """Facts: module_builds.yml."""
    asked = ("6.12.117+deb13-amd64", "6.12.117-1", "550.163.01", "open")
    reported = known_build(*asked)  # type: ignore[arg-type]
    assert (reported.outcome, "pci_resize_resource" in str(reported.line)) == ("fails", True)
    row = {"kernel": asked[0], "driver": asked[2], "flavour": "open", "ok": True, "built": ""}
    (tmp_path / "one.json").write_text(json.dumps(row))
    assert known_build(*asked, results=tmp_path).outcome == "fails", "nothing was built"  # type: ignore[arg-type]
    row["built"] = "2026-11-21T00:00:00Z"
    (tmp_path / "one.json").write_text(json.dumps(row))
    assert known_build(*asked, results=tmp_path).outcome == "ok"  # type: ignore[arg-type]
    other = known_build(*asked[:3], "proprietary", results=tmp_path)
    assert other.source != known_build(*asked, results=tmp_path).source  # type: ignore[arg-type]


def test_results_of_a_site_without_a_mirror_are_in_the_cache(
    site: Place, guard: Archive, tmp_path: Path
) -> None:
    cve(guard, 56, "6.1.192-2")
    built(site, "6.1.0-56-amd64", True)
    text = (site.root / "site.yml").read_text()
    (site.root / "site.yml").write_text(text.replace("mirror: {directory: mirror}\n", ""))
    assert security_update(site).action == "kept"
    (tmp_path / "cache/modules").mkdir(parents=True)
    (site.root / "mirror/modules/results").rename(tmp_path / "cache/modules/results")
    assert security_update(site).lock.kernel_release == "6.1.0-56-amd64"


def test_debian_12s_release_names_hide_the_stable_update() -> None:
    assert known_build("6.1.0-56-amd64", "6.1.192-2", "535.309.01", "proprietary").outcome == "ok"
    # pfn_valid(): the stable update 6.1.76 broke it, which 6.1.0-N does not show.
    assert known_build("6.1.0-18-amd64", "6.1.76-1", "525.147.05", "proprietary").outcome == "fails"


def test_a_result_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"kernel": "6.1')
    with pytest.raises(
        LockError, match=r"one\.json: this result of a build cannot be read.*modules matrix"
    ):
        known_build("k", "6.1.0", "535.1", "open", results=tmp_path)
