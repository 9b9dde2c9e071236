"""Tests of the stand-in archive without a node: signatures, indexes, and the states in which it can be
published.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.simulators.apt_archive import BROKEN, KEY, NEWER, SECURITY_UPDATES, content, publish
from tests.simulators.apt_archive.debs import STAND_IN

DEBS = list(content.debs())


def packages(directory: Path, index: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the paragraphs of an index by (name, version)."""
    found = {}
    for paragraph in (directory / index).read_text().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if fields:
            found[fields["Package"], fields["Version"]] = fields
    return found


def signed(directory: Path, tmp_path: Path) -> bool:
    """Return whether gpgv accepts every InRelease with the published key."""
    keyring = tmp_path / "keyring.gpg"
    subprocess.run(
        [
            "gpg",
            "--batch",
            "--yes",
            "--quiet",
            "--output",
            str(keyring),
            "--dearmor",
            str(directory / KEY),
        ],
        check=True,
    )
    files = sorted(directory.glob("**/InRelease"))
    assert len(files) == sum(len(suites) for suites in content.SUITES.values())
    results = {
        subprocess.run(
            ["gpgv", "--keyring", str(keyring), str(path)], capture_output=True, check=False
        ).returncode
        for path in files
    }
    assert len(results) == 1
    return results == {0}


def test_every_package_is_marked_as_a_stand_in() -> None:
    for deb in DEBS:
        assert "+standin" in deb.version, deb.name
        assert f"Description: {STAND_IN} " in deb.control(), deb.name


def test_no_package_is_there_twice() -> None:
    places = [(deb.name, deb.version, deb.suite, deb.repository) for deb in DEBS]
    assert len(places) == len(set(places))


def test_indexes_are_signed_and_true(tmp_path: Path) -> None:
    root = publish(tmp_path / "archive").directory
    assert signed(root, tmp_path)
    release = (root / "debian/dists/bookworm/Release").read_text()
    for digest, size, name in re.findall(r"^ ([0-9a-f]{64}) (\d+) (\S+)$", release, re.MULTILINE):
        data = (root / "debian/dists/bookworm" / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, int(size))
    index = "debian/dists/bookworm/non-free/binary-amd64/Packages"
    assert gzip.decompress((root / f"{index}.gz").read_bytes()) == (root / index).read_bytes()
    rows = packages(root, index)
    assert ("nvidia-kernel-dkms", "535.261.03-1+standin1") in rows
    for fields in rows.values():
        data = (root / "debian" / fields["Filename"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (
            fields["SHA256"],
            int(fields["Size"]),
        )


def test_flat_repositories_name_their_files(tmp_path: Path) -> None:
    root = publish(tmp_path / "archive").directory / content.NVIDIA["bookworm"]
    rows = packages(root, "Packages")
    assert ("nvidia-fabricmanager", "580.178.04-1+standin1") in rows
    assert all((root / fields["Filename"]).is_file() for fields in rows.values())


def test_a_wrong_key_is_not_the_one_published(tmp_path: Path) -> None:
    archive = publish(tmp_path / "archive", key="wrong")
    assert not signed(archive.directory, tmp_path)
    assert publish(tmp_path / "archive").fingerprint == archive.fingerprint
    assert signed(archive.directory, tmp_path)


def test_a_withdrawn_version_is_gone_from_index_and_pool(tmp_path: Path) -> None:
    archive = publish(tmp_path / "archive", withdraw=["*_535.309.01-0*"])
    index = "debian-security/dists/bookworm-security/non-free/binary-amd64/Packages"
    assert packages(archive.directory, index) == {}
    assert not list(archive.directory.glob("**/*535.309.01-0*"))
    assert list(archive.directory.glob("**/nvidia-kernel-dkms_535.261.03-1*"))


@pytest.mark.parametrize(
    ("groups", "newest"),
    [
        (frozenset[str](), "6.1.0-901-amd64"),
        ({SECURITY_UPDATES}, "6.1.0-902-amd64"),
        ({SECURITY_UPDATES, NEWER}, "6.1.0-903-amd64"),
        ({SECURITY_UPDATES, NEWER, BROKEN}, "6.1.0-904-amd64"),
    ],
)
def test_groups_decide_the_newest_kernel(tmp_path: Path, groups: set[str], newest: str) -> None:
    root = publish(tmp_path / "archive", groups=groups).directory
    images = sorted(
        path.name.split("_")[0]
        for path in root.glob("debian*/pool/bookworm*/main/linux-image-6.1.*.deb")
    )
    assert images[-1] == f"linux-image-{newest}"


def test_publishing_again_is_newer_in_whole_seconds(tmp_path: Path) -> None:
    """apt sends If-Modified-Since, so two states published within one second must have different dates."""
    root = tmp_path / "archive"
    stamps = []
    for groups in ({SECURITY_UPDATES}, {SECURITY_UPDATES, NEWER}, {SECURITY_UPDATES}):
        inode = root.stat().st_ino if root.exists() else None
        publish(root, groups=groups)
        assert inode in (None, root.stat().st_ino), "a container has the directory mounted"
        stamps.append(int((root / "debian/dists/bookworm/InRelease").stat().st_mtime))
    assert stamps[0] < stamps[1] < stamps[2]


def test_site_file_names_archives_and_locks(tmp_path: Path) -> None:
    archive = publish(tmp_path / "archive")
    site = archive.write_site(
        tmp_path / "site.yml", "http://10.0.0.9/", release="trixie", locks="locks"
    )
    reported = yaml.safe_load(site.read_text())
    assert reported["locks"] == "locks"
    assert reported["archives"]["debian"]["url"] == "http://10.0.0.9/debian"
    assert (
        reported["archives"]["nvidia-cuda"]["url"] == "http://10.0.0.9/nvidia-cuda/debian13/x86_64"
    )
    assert reported["archives"]["debian-security"]["fingerprints"] == [archive.fingerprint]


@pytest.mark.parametrize(("groups", "key"), [({"newest"}, "good"), (set[str](), "bad")])
def test_unknown_states_are_refused(tmp_path: Path, groups: set[str], key: str) -> None:
    with pytest.raises(ValueError, match=r"no such part or key: (newest|bad)"):
        publish(tmp_path / "archive", groups=groups, key=key)
