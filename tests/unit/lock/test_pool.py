"""Flat archives of fetched files: apt finds them wherever the store is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from goldnode.core.errors import LockError
from goldnode.core.files import sha256_of
from goldnode.lock.pool import source_line, stanza


@pytest.mark.parametrize("scheme", ["copy", "file"])
@pytest.mark.parametrize(
    "name", ["plain", "store 2", "100%", "a%20b", "[x]", "a#b?c=d", "a+b~c:d,e;f", "Größe"]
)
def test_apt_reads_a_flat_archive_in_a_directory_of_any_name(
    name: str, scheme: str, tmp_path: Path
) -> None:
    place = tmp_path / name
    (tmp_path / "demo/DEBIAN").mkdir(parents=True)
    (tmp_path / "demo/DEBIAN/control").write_text(
        "Package: demo\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: x\n"
    )
    place.mkdir()
    deb = place / "demo_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "-Znone", "-b", tmp_path / "demo", deb], check=True, capture_output=True
    )
    (place / "Packages").write_text(stanza(deb, sha256_of(deb), LockError))
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (tmp_path / "apt" / folder).mkdir(parents=True)
    (tmp_path / "apt/status").touch()
    (tmp_path / "apt/sources.list").write_text(f"{source_line(place, scheme)}\n")
    apt = tmp_path / "apt"
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "parts",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    for command in (["update"], ["download", "demo"]):
        done = subprocess.run(
            ["apt-get", "-q", *options, *command],
            cwd=apt,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (apt / "demo_1_all.deb").exists() or scheme == "file"
