"""Changelogs of packages: files that dpkg-deb builds, and dpkg-parsechangelog as the other reader."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from goldnode.core.errors import LockError
from goldnode.evidence.changelogs import (
    SourceChange,
    notes_of,
    read_entries,
    source_changes,
)
from goldnode.lock.diff import LockDiff, PackageChange
from goldnode.lock.model import LockedPackage

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg is not installed")

TEXT = """\
driver (2.0-3) bookworm-security; urgency=high

  * A buffer of the driver has a bound (CVE-2026-12345, CVE-2026-12346).
    It continues here.
    - a point below it (CVE-2026-12345)

 -- A Person <person@example.org>  Thu, 26 Nov 2026 18:12:56 +0100

driver (2.0-1~deb12u1) bookworm bookworm-updates; urgency=MEDIUM, binary-only=yes

  [ Another Person ]
  * New upstream release.

 -- A Person <person@example.org>  Mon, 16 Nov 2026 11:17:40 +0100

driver (1.9-1) unstable; urgency=low

  * Initial release.

 -- A Person <person@example.org>  Sat, 01 Aug 2026 00:00:00 +0000
"""
SIGNED = TEXT.replace("driver (2.0-3)", "driver-signed-amd64 (2.0+3)")
TRIMMED = (
    f"{TEXT.split('driver (2.0-1')[0]}# Older entries have been removed from this changelog.\n"
)
REBUILD = """\
driver (2.0-3+b1) sid; urgency=low, binary-only=yes

  * Binary-only non-maintainer upload for amd64; no source changes.

 -- A Builder <builder@example.org>  Fri, 27 Nov 2026 10:00:00 +0000
"""


def locked(name: str, version: str, size: int = 1, source: str = "driver") -> LockedPackage:
    return LockedPackage(
        name=name,
        version=version,
        architecture="amd64",
        sha256=f"{hash((name, version)) & (2**64 - 1):064x}",
        size=size,
        path=f"pool/main/d/{source}/{name}_{version}_amd64.deb",
        archive="debian",
        set="stack",
        part="driver",
        requested=True,
        why="requested by the stack",
    )


def moved(was: LockedPackage, now: LockedPackage) -> PackageChange:
    return PackageChange("moved", "driver", was, now, "newer version")


def change(was: str, now: str) -> SourceChange:
    one, other = locked("driver", was), locked("driver", now)
    return source_changes(LockDiff((moved(one, other),)))[0]


def deb(place: Path, files: dict[str, str]) -> Path:
    """Build a package with documents, packed where their name ends so."""
    root = place / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: driver\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: x\n"
    )
    for name, text in files.items():
        path = root / "usr/share/doc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", root, place / "a.deb"],
        check=True,
        capture_output=True,
    )
    return place / "a.deb"


CASES = {
    # files, from, to -> versions, trimmed
    "a step": ({"driver/changelog.Debian.gz": TEXT}, "2.0-1~deb12u1", "2.0-3", ["2.0-3"], False),
    "two steps": ({"driver/changelog.Debian.gz": TEXT}, "1.9-1", "2.0-3", ["2.0-3", "2.0-1~deb12u1"], False),
    "back": ({"driver/changelog.Debian.gz": TEXT}, "2.0-3", "1.9-1", ["2.0-3", "2.0-1~deb12u1"], False),
    "native": ({"driver/changelog.gz": TEXT}, "2.0-1~deb12u1", "2.0-3", ["2.0-3"], False),
    "not packed": ({"driver/changelog.Debian": TEXT}, "2.0-1~deb12u1", "2.0-3", ["2.0-3"], False),
    "upstream's beside it": (
        {"driver/changelog.gz": "Version 2.0\n* all is new\n", "driver/changelog.Debian.gz": TEXT},
        "2.0-1~deb12u1", "2.0-3", ["2.0-3"], False,
    ),
    "signed": ({"driver/changelog.gz": SIGNED}, "2.0-1~deb12u1", "2.0-3", ["2.0+3"], False),
    "rebuilt": (
        {"driver/changelog.Debian.gz": TEXT, "driver/changelog.Debian.amd64.gz": REBUILD},
        "2.0-3", "2.0-3+b1", ["2.0-3+b1"], False,
    ),
    "trimmed": ({"driver/changelog.Debian.gz": TRIMMED}, "1.9-1", "2.0-3", ["2.0-3"], True),
    "trimmed below": ({"driver/changelog.Debian.gz": TEXT + TRIMMED[-55:]}, "1.9-1", "2.0-3", ["2.0-3", "2.0-1~deb12u1"], False),
}  # fmt: skip


@needs_dpkg
@pytest.mark.parametrize("case", CASES)
def test_entries_between_two_versions(case: str, tmp_path: Path) -> None:
    files, was, now, versions, trimmed = CASES[case]
    noted = notes_of(change(was, now), deb(tmp_path, files))
    assert noted is not None
    assert [entry.version for entry in noted.entries] == versions
    assert (noted.trimmed, noted.fault) == (trimmed, "")


@needs_dpkg
def test_news_of_the_same_versions_are_read(tmp_path: Path) -> None:
    files = {
        "driver/changelog.Debian.gz": TEXT,
        "driver/NEWS.Debian.gz": TEXT.replace("high", "low"),
    }
    noted = notes_of(change("2.0-1~deb12u1", "2.0-3"), deb(tmp_path, files))
    assert noted is not None
    assert [(entry.version, entry.urgency) for entry in noted.news] == [("2.0-3", "low")]


@needs_dpkg
@pytest.mark.parametrize(
    "files", [{"driver/copyright": "x"}, {"driver/changelog.gz": "Version 2.0\n* all is new\n"}]
)
def test_package_without_a_changelog_gives_none(files: dict[str, str], tmp_path: Path) -> None:
    assert notes_of(change("1.9-1", "2.0-3"), deb(tmp_path, files)) is None


@needs_dpkg
def test_version_that_the_changelog_lacks_is_a_fault(tmp_path: Path) -> None:
    noted = notes_of(change("2.0-3", "2.1-1"), deb(tmp_path, {"driver/changelog.Debian.gz": TEXT}))
    assert noted is not None
    assert noted.fault == "the changelog has no entry after 2.0-3"


@needs_dpkg
def test_file_that_is_no_package_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"\x00" * 200)
    with pytest.raises(LockError, match="cannot be read"):
        notes_of(change("1.9-1", "2.0-3"), tmp_path / "a.deb")


def test_entry_names_each_vulnerability_once() -> None:
    entry = next(read_entries(TEXT))
    assert entry.cves == ["CVE-2026-12345", "CVE-2026-12346"]
    assert entry.date == "Thu, 26 Nov 2026 18:12:56 +0100"
    assert entry.lines[1] == "    It continues here."


@pytest.mark.skipif(shutil.which("dpkg-parsechangelog") is None, reason="dpkg-dev is not installed")
@pytest.mark.parametrize(
    "text",
    [TEXT, SIGNED, TRIMMED, REBUILD + "\n" + TEXT],
    ids=["plain", "signed", "trimmed", "rebuilt"],
)
def test_dpkg_reads_the_same_entries(text: str) -> None:
    """By hand on 2026-11-28: equal for 956 of 958 changelogs of packages of Debian 12, 29,436 entries.

    In the other two (make, time) dpkg ends at a form of the 1990s within the file, and this reader goes on.
    """
    done = subprocess.run(
        ["dpkg-parsechangelog", "--all", "-l", "-", "--format", "rfc822"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    names = ("Source: ", "Version: ", "Urgency: ", "Date: ")
    theirs = [
        tuple(
            next(line.removeprefix(name) for line in part.splitlines() if line.startswith(name))
            for name in names
        )
        for part in done.stdout.strip().split("\n\n")
    ]
    ours = [
        (entry.source, entry.version, entry.urgency, entry.date) for entry in read_entries(text)
    ]
    assert ours == theirs


def test_sources_are_read_from_the_smallest_file_of_the_newest_version() -> None:
    rows = [
        moved(locked("large", "1.9-1", 9), locked("large", "2.0-3", 90)),
        moved(locked("small", "1.8-1", 1), locked("small", "2.0-3", 10)),
        moved(locked("behind", "1.9-1", 1), locked("behind", "2.0-1", 1)),
        moved(locked("other", "1", source="other"), locked("other", "2", source="other")),
        PackageChange("new", "driver", None, locked("new", "2.0-3"), "asked for"),
    ]
    first, second = source_changes(LockDiff(tuple(rows)))
    assert (first.source, first.was, first.now) == ("driver", "1.8-1", "2.0-3")
    assert first.packages == ("large", "small", "behind")
    assert [file.name for file in first.files] == ["small", "large"]
    assert second.source == "other"


def test_signed_kernel_is_read_with_its_source() -> None:
    image = "linux-image-6.1.0-56-amd64"
    rows = [
        moved(locked(image, "6.1.176-1", source="linux-signed-amd64"), locked(image, "6.1.192-2", 70, "linux-signed-amd64")),
        moved(locked("linux-kbuild-6.1", "6.1.176-1", source="linux"), locked("linux-kbuild-6.1", "6.1.192-2", 1, "linux")),
    ]  # fmt: skip
    (only,) = source_changes(LockDiff(tuple(rows)))
    assert (only.source, only.files[0].name) == ("linux", "linux-kbuild-6.1")


def test_way_back_takes_back_the_newest_version_of_a_source() -> None:
    """On 2026-11-28 Debian 12 had the signed kernel of 6.1.192-2 beside kbuild of 6.1.192-3."""
    image = "linux-image-6.1.0-56-amd64"
    rows = [
        moved(locked(image, "6.1.192-2", 70, "linux-signed-amd64"), locked(image, "6.1.176-1", 70, "linux-signed-amd64")),
        moved(locked("linux-kbuild-6.1", "6.1.192-3", 1, "linux"), locked("linux-kbuild-6.1", "6.1.176-1", 1, "linux")),
    ]  # fmt: skip
    (only,) = source_changes(LockDiff(tuple(rows)))
    assert (only.was, only.now, only.back) == ("6.1.192-3", "6.1.176-1", True)
    assert [file.name for file in only.files] == ["linux-kbuild-6.1"]
