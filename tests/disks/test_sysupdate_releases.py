"""systemd-sysupdate of Debian's releases takes what `goldnode disks sysupdate` publishes: docs/how-to/disk-sysupdate.md has the results.

Each release is a filesystem of its own, made by mmdebstrap, with its systemd-sysupdate, systemd-pull and gpg. Nothing boots."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.debian_archive import debian_archive
from tests.disks.sysupdatelab import (
    FIRST,
    MIB,
    ROOT_TYPE,
    SECOND,
    SysupdateLab,
    SysupdateRelease,
    laboratory,
)

from goldnode.disks.sysupdate import KEYRING
from goldnode.lock.signing import ArchiveSigner, create, open_signer

pytestmark = [
    pytest.mark.disks,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

TOOLS = ("gnupg", "udev", "systemd", "systemd-container")
_BACKPORTED = (
    "systemd",
    "udev",
    "systemd-container",
    "libsystemd-shared",
    "libsystemd0",
    "libudev1",
)
RELEASES = (
    # Debian 12 itself has no systemd-sysupdate.
    SysupdateRelease("bookworm", 254, ("gnupg", *(f"{one}/bookworm-backports" for one in _BACKPORTED))),
    SysupdateRelease("trixie", 257, TOOLS),
    # These are suggested or recommended there, not required.
    SysupdateRelease("sid", 262, (*TOOLS, "libcurl4t64", "libfdisk1", "zlib1g")),
)  # fmt: skip
NO_PARTITION = "No available partition of a suitable size found."
REFUSES = "is already acquired and partially installed. Vacuum it to try installing again."


@pytest.fixture(
    scope="module", params=RELEASES, ids=lambda release: f"{release.suite}-{release.systemd}"
)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SysupdateRelease, Path]:
    """A release, unpacked. `GOLDNODE_SYSUPDATE_ROOTS` names a directory that has it from an earlier run."""
    release, archive = request.param, debian_archive()
    earlier = os.environ.get("GOLDNODE_SYSUPDATE_ROOTS")
    root = Path(earlier or tmp_path_factory.mktemp("roots")) / release.suite
    if not root.exists():
        suites = [
            release.suite,
            *([f"{release.suite}-backports"] if release.systemd == 254 else []),
        ]
        lines = [f"deb {archive} {suite} main" for suite in suites]
        options = ['Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"']
        words = [f"--aptopt={option}" for option in options]
        words += ["--variant=minbase", f"--include={','.join(release.packages)}"]
        subprocess.run(["mmdebstrap", "--quiet", *words, release.suite, root, *lines], check=True)
    return release, root


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("keys")
    return create(place / "own", "own")[1], create(place / "other", "other")[1]


@pytest.fixture
def other(keys: tuple[Path, Path]) -> Iterator[ArchiveSigner]:
    with open_signer(str(keys[1]), Path()) as signer:
        yield signer


@pytest.fixture
def lab(
    node: tuple[SysupdateRelease, Path], keys: tuple[Path, Path], tmp_path: Path
) -> Iterator[SysupdateLab]:
    """A node without a version, to which version 1 is offered."""
    with open_signer(str(keys[0]), Path()) as signer, laboratory(*node, tmp_path, signer) as opened:
        opened.offer("1")
        opened.define()
        yield opened


def boot_files(*versions: str) -> set[str]:
    return {
        f"EFI/goldnode/cpu_{one}.{end}" for one in versions for end in ("vmlinuz", "initrd.img")
    }


def runs_two(lab: SysupdateLab) -> None:
    """Versions 1 and 2 are installed; 2 runs, and is good."""
    lab.update()
    lab.offer("2")
    lab.update()
    (lab.entries / "cpu_2+3-0.conf").rename(lab.entries / "cpu_2.conf")
    lab.define(running="2")
    lab.offer("3")


def test_number_of_systemd_is_that_of_the_table(lab: SysupdateLab) -> None:
    assert lab.run("--version").text.startswith(f"systemd {lab.release.systemd} (")


def test_new_versions_take_the_other_partition_and_what_runs_is_protected(
    lab: SysupdateLab,
) -> None:
    assert lab.run("check-new").text.rstrip().endswith("\n1")
    lab.update()
    assert lab.labels() == ["_empty", "cpu_1"], "the smallest that fits"
    assert lab.content(SECOND, 12) == lab.roots["1"], "zeros are written too"
    assert lab.types() == [ROOT_TYPE, ROOT_TYPE]
    assert lab.files() == {*boot_files("1"), "loader/entries/cpu_1+3-0.conf"}
    done = lab.run("check-new")
    assert (done.code, lab.run("update").code) == (1, 0)
    # systemd-bless-boot finds it good, and its root writes the version at its first boot.
    (lab.entries / "cpu_1+3-0.conf").rename(lab.entries / "cpu_1.conf")
    lab.define(running="1")
    lab.offer("2")
    lab.update()
    assert lab.labels() == ["cpu_2", "cpu_1"]
    assert lab.run("pending").code == 0
    # 2 fails its three boots, 1 runs again: the next version replaces 2, although 1 is older.
    (lab.entries / "cpu_2+3-0.conf").rename(lab.entries / "cpu_2+0-3.conf")
    lab.offer("3")
    assert "protected" in lab.run("list").text
    lab.update()
    assert lab.labels() == ["cpu_3", "cpu_1"]
    assert lab.content(FIRST, 12) == lab.roots["3"]
    assert lab.content(SECOND, 12) == lab.roots["1"]
    entries = {"loader/entries/cpu_1.conf", "loader/entries/cpu_3+3-0.conf"}
    assert lab.files() == boot_files("1", "3") | entries


def test_without_a_version_in_os_release_the_running_root_is_overwritten(lab: SysupdateLab) -> None:
    """ProtectVersion=%A is then ignored with a warning. The first boot of a version writes it."""
    lab.update()
    lab.offer("2")
    lab.update()
    lab.offer("3")
    lab.update()  # 1 may run
    assert lab.labels() == ["cpu_2", "cpu_3"]


def test_older_versions_are_not_taken_unless_they_are_named(lab: SysupdateLab) -> None:
    runs_two(lab)
    lab.update()
    lab.define(running="3")
    lab.withdraw("3")
    before = lab.state()
    assert lab.run("check-new").code == 1
    lab.update()
    assert lab.state() == before
    assert "older than newest installed version, proceeding anyway" in lab.update("1").text
    assert sorted(lab.labels()) == ["cpu_1", "cpu_3"]


def test_versions_below_the_minimum_are_not_offered_and_what_is_installed_stays(
    lab: SysupdateLab,
) -> None:
    runs_two(lab)
    lab.withdraw("3")
    lab.define(minimum="3", running="2")
    before = lab.state()
    assert "obsolete" in lab.run("list").text
    assert lab.run("check-new").code == 1
    lab.update()
    assert lab.run("vacuum").code == 0
    assert lab.state() == before
    lab.offer("3")
    lab.update()
    assert sorted(lab.labels()) == ["cpu_2", "cpu_3"]


def test_partition_is_chosen_by_the_size_in_the_name(lab: SysupdateLab) -> None:
    lab.withdraw("1")
    lab.offer("2", 16)
    lab.update()
    assert lab.labels() == ["cpu_2", "_empty"]
    lab.offer("3", 17)
    done = lab.run("update")
    assert (done.code, NO_PARTITION in done.text) == (1, True)
    assert lab.labels() == ["cpu_2", "_empty"]


def test_without_a_size_in_the_name_the_smallest_partition_is_taken_though_the_root_does_not_fit(
    lab: SysupdateLab,
) -> None:
    """The reason for the size in the name."""
    lab.withdraw("1")
    lab.offer("2", 16)
    (lab.web / f"cpu_2_{16 * MIB}.root.gz").rename(lab.web / "cpu_2.root.gz")
    lab.sign()
    for path in (lab.root / "etc/sysupdate.d").iterdir():
        path.write_text(path.read_text().replace("@v_@s.root.gz", "@v.root.gz"))
    done = lab.run("update")
    assert done.code == 1
    assert "File overly large, refusing." in done.text


def test_root_in_zstd_is_written_as_it_is_before_262(lab: SysupdateLab) -> None:
    """The reason for gzip: neither message nor status tells."""
    packed = lab.web / f"cpu_1_{12 * MIB}.root.gz"
    zstd = ["zstd", "-q", "-c", "-"]
    data = subprocess.run(zstd, input=lab.roots["1"], capture_output=True, check=True).stdout
    packed.with_suffix(".zst").write_bytes(data)
    packed.unlink()
    lab.sign()
    for path in (lab.root / "etc/sysupdate.d").iterdir():
        path.write_text(path.read_text().replace(".root.gz", ".root.zst"))
    lab.update()
    found = lab.content(SECOND, 12)
    if lab.release.systemd < 260:
        assert found.startswith(data)
    else:
        assert found == lab.roots["1"]


@pytest.mark.parametrize(
    "fault", ["other key", "no signature", "earlier signature", "no keyring", "no gpg"]
)
def test_wrong_signature_changes_nothing(
    lab: SysupdateLab, other: ArchiveSigner, fault: str
) -> None:
    runs_two(lab)
    before, moved = lab.state(), {}
    if fault == "other key":
        lab.sign(other)
    elif fault == "no signature":
        (lab.web / "SHA256SUMS.gpg").unlink()
    elif fault == "earlier signature":
        earlier = (lab.web / "SHA256SUMS.gpg").read_bytes()
        lab.offer("4")
        (lab.web / "SHA256SUMS.gpg").write_bytes(earlier)
    else:
        name = lab.root / ("etc/" + KEYRING if fault == "no keyring" else "usr/bin/gpg")
        moved = {name: name.with_name("away")}
        name.rename(moved[name])
    try:
        checked, updated = lab.run("check-new"), lab.run("update")
    finally:
        for name, away in moved.items():
            away.rename(name)
    assert (checked.code, updated.code) == (1, 1), (
        "1 is also the status of check-new without a new version"
    )
    assert lab.state() == before


def vacuum(lab: SysupdateLab) -> None:
    """Do what goldnode's drop-in does before each update."""
    drop_in = lab.root / "etc/systemd/system/systemd-sysupdate-update.service.d/goldnode.conf"
    assert drop_in.exists() == (lab.release.systemd >= 260)
    if drop_in.exists():
        command = drop_in.read_text().partition("ExecStartPre=-")[2].split()
        assert lab.run(*command[1:]).code == 0


@pytest.mark.parametrize("fault", ["missing", "altered", "killed", "full"])
def test_update_that_fails_is_made_up_for_by_the_next_one(lab: SysupdateLab, fault: str) -> None:
    runs_two(lab)
    fails(lab, fault)
    # The version that does not run has been removed before the download: only the running one is left.
    assert {path.name for path in lab.entries.glob("cpu_*")} == {"cpu_2.conf"}
    if lab.release.systemd < 260:
        assert lab.labels() == ["cpu_2", "_empty"]
        assert lab.run("pending").code != 0
    else:
        assert lab.labels() == ["cpu_2", "cpu_3"]
        assert lab.types()[1] != ROOT_TYPE, "a type of its own marks what is not complete"
        again = lab.run("update")
        assert (again.code, REFUSES in again.text) == (1, True)
        assert lab.run("pending").code == 0, (
            "the timer that reboots would restart the node each night"
        )
    vacuum(lab)
    assert lab.run("pending").code != 0
    lab.update()
    assert lab.labels() == ["cpu_2", "cpu_3"]
    assert lab.types() == [ROOT_TYPE, ROOT_TYPE]
    assert lab.content(SECOND, 12) == lab.roots["3"]
    entries = {"loader/entries/cpu_2.conf", "loader/entries/cpu_3+3-0.conf"}
    assert lab.files() == boot_files("2", "3") | entries


def fails(lab: SysupdateLab, fault: str) -> None:
    """Let an update to version 3 fail, and remove the reason."""
    kernel, root = lab.web / "cpu_3.vmlinuz", lab.web / f"cpu_3_{12 * MIB}.root.gz"
    if fault == "killed":
        lab.handler.stalls = root.name
        with lab.start("update") as process:
            time.sleep(5)
            os.killpg(process.pid, signal.SIGKILL)
        lab.handler.stalls = ""
        return
    held = {path: path.read_bytes() for path in (kernel, root)}
    filler = lab.esp / "filler"
    if fault == "missing":
        kernel.unlink()
    elif fault == "altered":  # another version under this name
        root.write_bytes((lab.web / f"cpu_1_{12 * MIB}.root.gz").read_bytes())
    else:
        room = os.statvfs(lab.esp)
        # Of what the removal of version 1 frees, a half is left for the kernel.
        filler.write_bytes(bytes(room.f_bavail * room.f_frsize))
        with filler.open("ab") as file:
            file.truncate(filler.stat().st_size)
        kernel.write_bytes(os.urandom(3 * MIB))
        lab.sign()
    assert lab.run("update").code == 1
    for path, data in held.items():
        path.write_bytes(data)
    filler.unlink(missing_ok=True)
    lab.sign()


def test_list_that_is_past_its_date_is_refused_where_systemd_reads_the_date(
    lab: SysupdateLab,
) -> None:
    (lab.web / "BEST-BEFORE-2026-11-01").touch()
    lab.sign()
    done = lab.run("update")
    assert done.code == (1 if lab.release.systemd >= 260 else 0), done.text
    assert ("Best before marker indicates out-of-date" in done.text) == (done.code == 1)


def test_transfer_of_something_else_in_the_same_directory_ends_all_updates(
    lab: SysupdateLab,
) -> None:
    (lab.web / "tool_77.bin").write_text("x")
    lab.sign()
    suffix = "conf" if lab.release.systemd < 257 else "transfer"
    own = lab.root / f"etc/sysupdate.d/90-tool.{suffix}"
    own.write_text(
        f"[Source]\nType=url-file\nPath=http://127.0.0.1:{lab.port}\nMatchPattern=tool_@v.bin\n"
        "[Target]\nType=regular-file\nPath=/opt\nMatchPattern=tool_@v.bin\n"
    )
    assert lab.run("check-new").code == 1
    assert "No update needed." in lab.update().text
    # A component has versions of its own.
    for path in (lab.root / "etc/sysupdate.d").glob("*goldnode*"):
        path.unlink()
    lab.define(component="goldnode")
    lab.update("--component=goldnode")
    assert lab.labels() == ["_empty", "cpu_1"]
    assert lab.run("check-new").text.rstrip().endswith("\n77")


def test_directory_for_kernels_has_to_exist_on_the_esp_for_254(lab: SysupdateLab) -> None:
    (lab.esp / "EFI/goldnode").rmdir()
    done = lab.run("update")
    assert done.code == (1 if lab.release.systemd < 257 else 0), done.text


def test_both_forms_of_transfers_are_not_read_together(lab: SysupdateLab) -> None:
    """257 reads *.conf, with a remark, only while there is no *.transfer."""
    if lab.release.systemd < 257:
        # 254 has no second form that could be read beside it.
        pytest.skip("it reads *.conf alone")
    folder = lab.root / "etc/sysupdate.d"
    for path in folder.glob("*.transfer"):
        path.rename(path.with_suffix(".conf"))
    done = lab.run("check-new")
    assert done.code == 0
    assert "transfer definitions should have the '.transfer' extension" in done.text
    shutil.copy(folder / "50-goldnode-root.conf", folder / "50-goldnode-root.transfer")
    lab.update()
    assert lab.files() == set(), "the root alone was installed"
