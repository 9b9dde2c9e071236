"""Tests of resolving the Ubuntu stack against the stand-in archive, with the real apt and no node."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.simulators.apt_archive import publish

from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import LockError
from goldnode.core.site import Site, load_site
from goldnode.lock.archives import ArchivePlaces
from goldnode.lock.model import Lock
from goldnode.lock.resolve import open_archives

# Base system of a node, with a version that satisfies every relation.
BASE = (
    "adduser",
    "dkms",
    "init-system-helpers",
    "initramfs-tools",
    "kmod",
    "libc6",
    "libseccomp2",
    "linux-base",
    "python3",
)


def resolved(tmp_path: Path, *withdraw: str, stack: str = "ubuntu2404_r580") -> Lock:
    archive = publish(tmp_path / "archive", withdraw=withdraw)
    site = load_site(
        archive.write_site(tmp_path / "site.yml", f"file://{archive.directory}", release="noble")
    )
    status = tmp_path / "status"
    status.write_text(
        "".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: 99\nArchitecture: amd64\n"
            "Maintainer: nobody\nDescription: test\n\n"
            for name in BASE
        )
    )
    catalog = load_catalog()
    with open_archives(
        catalog.stack(stack), catalog, site, status=status, cache=tmp_path / "cache"
    ) as archives:
        return archives.resolve(dt.date(2026, 11, 21)).lock


def test_the_newest_kernel_whose_four_packages_are_there(tmp_path: Path) -> None:
    lock = resolved(tmp_path)
    assert (lock.kernel_release, lock.driver_version) == ("6.8.0-902-generic", "580.178.04")
    rows = {package.name: package for package in lock.packages}
    kernel = [name for name, row in rows.items() if row.part == "kernel"]
    assert kernel == [
        f"linux-{name}"
        for name in (
            "headers-6.8.0-902",
            *(
                f"{kind}-6.8.0-902-generic"
                for kind in ("headers", "image", "modules", "modules-extra")
            ),
        )
    ]
    assert {rows[name].archive for name in kernel} == {"ubuntu-updates"}, (
        "of three archives with one address, the first whose suite has it"
    )
    assert rows["docker.io"].archive == "ubuntu"
    older = resolved(tmp_path, "linux-modules-extra-6.8.0-902-*")
    assert older.kernel_release == "6.8.0-901-generic", (
        "a kernel without all of its modules is none"
    )


def test_hwe_kernel_has_all_of_its_modules_in_one_package(tmp_path: Path) -> None:
    lock = resolved(tmp_path, stack="ubuntu2404_hwe_r580")
    assert (lock.kernel_release, lock.driver_version) == ("7.0.0-901-generic", "580.178.04")
    assert [package.name for package in lock.packages if package.part == "kernel"] == [
        f"linux-{name}"
        for name in (
            "headers-7.0.0-901",
            *(f"{kind}-7.0.0-901-generic" for kind in ("headers", "image", "modules")),
        )
    ]


def test_a_kernel_without_its_modules_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        LockError, match="has an image but no headers and modules of the same version"
    ):
        resolved(tmp_path, "linux-modules-extra-*")


def test_ubuntus_archives_have_public_addresses_by_architecture() -> None:
    catalog = load_catalog()
    system = catalog.stacks["ubuntu2404_r580"].item.os
    for architecture, host in (("amd64", "archive"), ("arm64", "ports")):
        places = ArchivePlaces(
            catalog, Site(), system.model_copy(update={"architecture": architecture})
        )
        assert urlsplit(places.address("ubuntu")).hostname == f"{host}.ubuntu.com"
