"""`goldnode lock --diff FILE --notes`: a committed lock against an older one, with package files that are built here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.cve.samples import tracker
from tests.unit.evidence.test_changelogs import deb

from goldnode.catalog.load import builtin_catalog
from goldnode.cli import main
from goldnode.commands.lock_notes import ArchiveFiles
from goldnode.lock.model import Lock, LockedPackage, dump_lock, load_lock

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg is not installed")

STACK = "debian12_r535"
LOCK = load_lock(builtin_catalog() / "stacks" / f"{STACK}.lock.yml")
VERSIONS = {item.name: item.version for item in LOCK.packages}
# Debian's archive may have the source's own packages in a later revision than the signed kernel.
KERNEL = VERSIONS["linux-kbuild-6.1"]
RUNNING = VERSIONS[f"linux-image-{LOCK.kernel_release}"]
CHANGELOG = f"""\
linux ({KERNEL}) bookworm-security; urgency=high

  * New upstream stable update:
    - PCI/AER: a counter is right (CVE-2026-10001)
    - net/mlx5: a queue has an end (CVE-2026-10002)
    - io_uring: a request has an end
    - ext4: a block is there

 -- A Person <person@example.org>  Mon, 16 Nov 2026 11:17:40 +0100

linux (6.1.176-1) bookworm; urgency=medium

  * older

 -- A Person <person@example.org>  Sat, 01 Aug 2026 00:00:00 +0000
"""


def older(item: LockedPackage) -> LockedPackage:
    """Return a kernel package as it was in the older lock."""
    if item.part != "kernel":
        return item
    name = item.name.replace("6.1.0-56", "6.1.0-50")
    return item.model_copy(update={"name": name, "version": "6.1.176-1", "sha256": "0" * 64})


def old_lock(place: Path) -> Path:
    rows = sorted((older(item) for item in LOCK.packages), key=lambda item: item.name)
    lock = LOCK.model_copy(update={"packages": rows, "kernel_release": "6.1.0-50-amd64"})
    path = place / "old.lock.yml"
    path.write_text(dump_lock(lock), encoding="utf-8")
    return path


@pytest.fixture
def notes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give each package the file with the changelog above. Return the names that were asked for."""
    asked: list[str] = []
    built = deb(tmp_path / "built", {"linux/changelog.Debian.gz": CHANGELOG})

    def file(_: ArchiveFiles, lock: Lock, package: LockedPackage) -> Path:
        asked.append(f"{package.name} {package.version} of {lock.kernel_release}")
        return built

    monkeypatch.setattr(ArchiveFiles, "file", file)
    return asked


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["lock", STACK, *map(str, words)])


def test_notes_join_changelog_classes_and_vulnerabilities(
    tmp_path: Path, notes_files: list[str]
) -> None:
    affected = {
        "CVE-2026-10001": {"bookworm": {"status": "resolved", "fixed_version": RUNNING, "urgency": "high"}},
        "CVE-2026-10003": {"bookworm": {"status": "open", "urgency": "low"}},
    }  # fmt: skip
    feed = tmp_path / "tracker.json"
    feed.write_text(tracker({"linux": affected}), encoding="utf-8")
    done = run("--diff", old_lock(tmp_path), "--notes", "--feed", f"debian={feed}")
    assert done.exit_code == 0, done.output
    # The smallest package of the source, not the image of 70 MB.
    assert notes_files == [f"linux-compiler-gcc-12-x86 {KERNEL} of {LOCK.kernel_release}"]
    text = done.stdout
    assert f"linux 6.1.176-1 -> {KERNEL}: 1 version (urgency high 1); names 2 CVEs" in text
    assert "and 2 more; of these PCI 1, RDMA and its NICs 1" in text
    assert "gone: warn os-kernel: kernel 6.1.176 lacks the fixes" in text
    assert "fixed: 1 (high 1): CVE-2026-10001" in text
    assert "CVE-2026-10003" in text
    assert "named by changelogs and by none of these: CVE-2026-10002" in text


def test_notes_of_a_way_back_are_read_from_the_lock_that_is_left(
    tmp_path: Path, notes_files: list[str]
) -> None:
    old = old_lock(tmp_path)
    (tmp_path / "site").mkdir()
    shutil.copy(old, tmp_path / f"site/{STACK}.lock.yml")
    done = run(
        "--diff", builtin_catalog() / f"stacks/{STACK}.lock.yml", "--notes",
        "--out", tmp_path / "site", "--format", "json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)["notes"]
    (linux,) = notes["changelogs"]
    assert (linux["back"], [entry["version"] for entry in linux["entries"]]) == (True, [KERNEL])
    assert notes_files == [f"linux-compiler-gcc-12-x86 {KERNEL} of {LOCK.kernel_release}"]
    (judged,) = [item for item in notes["classes"] if item["name"] == "demo_disk_r535"]
    assert "new" in {change["change"] for change in judged["changes"]}


def test_package_that_cannot_be_fetched_is_a_fault_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArchiveFiles, "file", lambda *_: "the archive has no such file")
    done = run("--diff", old_lock(tmp_path), "--notes")
    assert done.exit_code == 0, done.output
    assert "could not be read: linux-compiler" in done.stdout
    assert "classes:" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--notes"], "--notes belongs to --diff"), (["--feed", "debian=x"], "--feed belongs to --notes")],
)  # fmt: skip
def test_notes_need_two_locks(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.output
