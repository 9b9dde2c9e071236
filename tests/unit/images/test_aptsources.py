"""Sources of apt in images for Dockerfiles: the archives of the lock, at the addresses of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.core import site as sites
from goldnode.core.errors import SiteError
from goldnode.core.site import Site, load_site
from goldnode.images.aptsources import apt_sources
from goldnode.images.imagelock import find_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.recipe import SOURCES, recipe


def site_of(tmp_path: Path, text: str) -> Site:
    (tmp_path / "goldnode-site.yml").write_text(text)
    return load_site(tmp_path / "goldnode-site.yml")


BOTH = """\
archives:
  debian: {url: https://mirror.example/debian, snapshot: "https://mirror.example/snapshot/{date}T000000Z/debian"}
  debian-security: {url: https://mirror.example/security}
"""


def test_sources_have_the_archives_of_the_lock_at_the_addresses_of_the_site(tmp_path: Path) -> None:
    row = load_matrix().row("cpu-1-dev-debian12")
    lock = find_lock(row).model_copy(update={"resolved": "2026-11-22"})
    text = apt_sources(row.system, lock, site=site_of(tmp_path, BOTH))
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        for block in text.split("\n\n")
    ]
    debian, security = blocks[1:]
    assert debian == {
        "Types": "deb",
        "URIs": "https://mirror.example/snapshot/20261122T000000Z/debian",
        "Check-Valid-Until": "no",
        "Suites": "bookworm",
        "Components": "main contrib non-free non-free-firmware",
        "Signed-By": "/usr/share/keyrings/debian-archive-keyring.gpg",
    }
    assert (security["URIs"], security["Suites"]) == (
        "https://mirror.example/security",
        "bookworm-security",
    )
    assert "Check-Valid-Until" not in security


def test_site_without_an_address_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "_machine_archives", dict)
    row = load_matrix().row("cpu-1-dev-debian12")
    with pytest.raises(SiteError, match='no address is known for archive "debian"'):
        apt_sources(row.system, find_lock(row), site=site_of(tmp_path, "facts: null\n"))


def test_only_images_for_dockerfiles_have_sources_and_an_open_pip() -> None:
    matrix = load_matrix()
    base = matrix.row("cpu-1-base-debian12")
    found = recipe(base, find_lock(base), None, {}, sources="never")
    assert SOURCES not in found.files
    assert "PIP_BREAK_SYSTEM_PACKAGES" not in found.environment
    below = None
    for row in matrix.chain("cpu-1-dev-debian12"):
        below = recipe(row, find_lock(row), below, {}, sources="Types: deb\n")
    assert below is not None
    assert below.files[SOURCES] == {"text": "Types: deb\n", "mode": 0o644}
    assert below.environment["PIP_BREAK_SYSTEM_PACKAGES"] == "1"
