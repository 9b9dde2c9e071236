"""A real disk of the CPU class: locked for what the archive has today, killed, built, built twice; no lock, no space, damaged files.

The locks of the project are not used: they must not break on the day Debian moves.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.disks.conftest import CLASS, ROOT, Site, left_in

from goldnode.core import program_file
from goldnode.disks import contents, ext4
from goldnode.disks.locking import DiskLock
from goldnode.disks.model import BuiltDisk, builds
from goldnode.node.__main__ import SHIPPED

# One process: the tests share the disk.
pytestmark = [pytest.mark.disks, pytest.mark.xdist_group("disk")]


def test_manifest_names_packages_hygiene_and_the_hash_of_the_disk(
    built: BuiltDisk, lock: DiskLock
) -> None:
    assert [(row.name, row.version, row.sha256) for row in built.packages] == [
        (deb.name, deb.version, deb.sha256) for deb in lock.debs
    ]
    assert {row.outcome for row in built.hygiene} == {"passed"}
    assert (built.loader, built.layout, built.driver, built.simulated) == (
        "systemd-boot",
        "ab",
        None,
        False,
    )
    assert built.epoch == lock.epoch
    assert [row.id for row in built.pending], "an image cannot hold everything"
    raw = built.path("raw")
    with raw.open("rb") as handle:
        assert hashlib.file_digest(handle, "sha256").hexdigest() == built.raw.sha256
    assert raw.stat().st_size == built.raw.size
    assert raw.stat().st_blocks * 512 < built.raw.size, "the file is sparse"
    assert (built.directory / "SHA256SUMS").read_text() == f"{built.raw.sha256}  {raw.name}\n"


def test_image_has_the_byte_code_of_the_program_and_of_what_it_imports(built: BuiltDisk) -> None:
    root = contents.root_of(built)
    with ext4.reading(built.path("raw"), root.start, root.size) as system:
        names = {name.lstrip("/") for name, _ in system.tree()}
    copies = [name for name in names if name.startswith(f"{SHIPPED.lstrip('/')}/")]
    digest = hashlib.sha256(program_file.build()).hexdigest()
    assert [re.sub(r"-[0-9a-f]{8}$", "", Path(copy).name) for copy in copies] == [digest]
    compiled = {Path(name).name.partition(".")[0] for name in names if name.endswith(".pyc")}
    assert compiled >= {"argparse", "subprocess", "zipfile"}
    assert "unittest" not in compiled, "only what the program imports"


def test_second_build_reuses_the_existing_disk(site: Site, built: BuiltDisk) -> None:
    before = built.path("raw").stat()
    done = site.run(
        "disks", "build", CLASS, "--offline", "--image-format", "raw", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    (reported,) = json.loads(done.stdout)["disks"]
    assert (reported["made"], reported["build_id"], reported["raw"]["sha256"]) == (
        False,
        built.build_id,
        built.raw.sha256,
    )
    assert built.path("raw").stat() == before


def test_built_twice_it_is_the_same(site: Site, built: BuiltDisk) -> None:
    done = site.run("disks", "build", CLASS, "--offline", "--image-format", "raw", "--twice")
    assert done.returncode == 0, done.stderr
    assert "built twice: every byte is the same" in done.stderr


def test_a_damaged_package_stops_it_before_anything_is_made(
    site: Site, fetched: Path, lock: DiskLock, tmp_path: Path
) -> None:
    other = tmp_path / "store"
    deb = lock.debs[0]
    for row in lock.debs:
        (other / "pool" / row.sha256).mkdir(parents=True)
        os.link(fetched / row.sha256 / row.file, other / "pool" / row.sha256 / row.file)
    path = other / "pool" / deb.sha256 / deb.file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    done = site.run("disks", "build", CLASS, "--offline", "--store", str(other))
    assert done.returncode == 2
    assert "is not what the lock names" in done.stderr
    assert builds(other) == []
    path.unlink()
    done = site.run("disks", "build", CLASS, "--offline", "--store", str(other))
    assert done.returncode == 2
    assert f"{deb.file} is not in the pool" in done.stderr
    assert left_in(other) == ([], [])


def test_a_full_disk_is_reported_before_anything_is_made(
    site: Site, fetched: Path, tmp_path: Path
) -> None:
    other = tmp_path / "store"
    other.mkdir()
    # A namespace of its own: the small file system goes with the command.
    script = (
        f"mount -t tmpfs -o size=400m tmpfs {other} && ln -s {fetched} {other}/pool && "
        f"{sys.executable} -m goldnode.cli disks build {CLASS} --offline --store {other}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=ROOT,
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "a build takes up to" in done.stderr
    assert "make room there" in done.stderr.casefold()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["l4"], 'stack "debian12_r580" has no lock', id="no-lock-of-the-stack"),
        pytest.param(["cpu_onyl"], 'Use "cpu_only"', id="no-such-class"),
        pytest.param([CLASS, "--image-format", "qcow"], 'Use "qcow2"', id="no-such-format"),
    ],
)
def test_build_exits_2_for_missing_lock_unknown_class_or_format(
    site: Site, arguments: list[str], message: str
) -> None:
    done = site.run("disks", "build", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_class_without_a_disk_lock_is_refused(site: Site, tmp_path: Path) -> None:
    done = site.run("disks", "build", CLASS, GOLDNODE_DISK_LOCKS=str(tmp_path))
    assert done.returncode == 2
    assert f'the disk image of class "{CLASS}" has no lock' in done.stderr
    assert f"Run `goldnode disks lock {CLASS}`" in done.stderr
