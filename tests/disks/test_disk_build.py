"""A real disk of the CPU class: locked for what the archive has today, killed, built, built twice; no lock, no space, damaged files.

The locks of the project are not used: they must not break on the day Debian moves.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goldnode.catalog.load import load_catalog
from goldnode.disks.definition import builtin_definition, load_definition
from goldnode.disks.locking import DiskLock, fetch, load_disk_lock, target
from goldnode.disks.model import BuiltDisk, builds
from goldnode.site import load_site

pytestmark = pytest.mark.disks

CLASS, STACK = "cpu_only", "debian12_cpu"
ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """Locks, definition and store of this run."""

    home: Path

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def lock(self) -> Path:
        return self.home / "disk-locks" / f"{CLASS}.lock.yml"

    @property
    def environment(self) -> dict[str, str]:
        named = {
            "GOLDNODE_LOCKS": self.home / "locks",
            "GOLDNODE_DISK_LOCKS": self.home / "disk-locks",
            "GOLDNODE_DISK_DEFINITION": self.home / "disks.yml",
            "GOLDNODE_DISKS": self.store,
            "PYTHONPATH": ROOT / "src",
        }
        kept = {key: value for key, value in os.environ.items() if key not in ("GOLDNODE_SITE", "GOLDNODE_CATALOG")}
        return {**kept, **{key: str(value) for key, value in named.items()}}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "goldnode.cli", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=ROOT, env={**self.environment, **environment}, capture_output=True, text=True, check=False
        )


def left_in(store: Path) -> tuple[list[str], list[str]]:
    """Mounts below the store that any process sees, and processes that have anything of it open as root, working directory or in their command."""
    mounts, processes = set(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mounts |= {line for line in (place / "mounts").read_text().splitlines() if str(store) in line}
            told = [str((place / name).readlink()) for name in ("root", "cwd")]
            told.append((place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "))
        except OSError:
            continue
        if int(place.name) != os.getpid() and any(str(store) in text for text in told):
            processes.append(told[2])
    return sorted(mounts), processes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Stack and disk locked for today's archive."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mmdebstrap", "mke2fs", "mcopy", "sfdisk"))):
        pytest.fail("needs root, mmdebstrap, e2fsprogs, mtools and fdisk")
    found = Site(tmp_path_factory.mktemp("disks"))
    text = builtin_definition().read_text()
    assert "esp_mib: 512" in text
    (found.home / "disks.yml").write_text(text.replace("esp_mib: 512", "esp_mib: 128").replace("root_mib: 3072", "root_mib: 1536"))
    for arguments in (("lock", STACK, "--out", str(found.home / "locks")), ("disks", "lock", CLASS)):
        done = found.run(*arguments)
        assert done.returncode == 0, done.stderr
    yield found
    shutil.rmtree(found.store, ignore_errors=True)


@pytest.fixture(scope="module")
def lock(site: Site) -> DiskLock:
    return load_disk_lock(site.lock)


@pytest.fixture(scope="module")
def fetched(site: Site, lock: DiskLock) -> Path:
    """The pool, with every package of the lock."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in site.environment.items():
            patch.setenv(key, value)
        item = target(CLASS, load_definition(), load_catalog(), load_site())
        pool = site.store / "pool"
        fetch(item, lock, pool)
    return pool


@pytest.fixture(scope="module")
def built(site: Site, fetched: Path) -> BuiltDisk:
    """The disk; its first build was killed while site.yml was at work in a root with mounts."""
    with (site.home / "killed.log").open("wb") as log:
        first = subprocess.Popen(
            site.command("disks", "build", CLASS, "--format", "raw"), cwd=ROOT, env=site.environment, stdout=log, stderr=log
        )
    limit = time.monotonic() + 900
    while not any("/root/run/goldnode-archive" in mount for mount in left_in(site.store)[0]):
        assert first.poll() is None, (site.home / "killed.log").read_text()
        assert time.monotonic() < limit
        time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    limit = time.monotonic() + 30
    while (left := left_in(site.store)) != ([], []) and time.monotonic() < limit:
        time.sleep(0.5)
    assert left == ([], []), "a killed build leaves mounts or processes"
    assert builds(site.store) == []
    done = site.run("disks", "build", CLASS, "--format", "raw", "--offline")
    assert done.returncode == 0, done.stderr
    (disk,) = builds(site.store)
    assert [path.name for path in (site.store / "cache/work").iterdir() if path.is_dir()] == [], "a killed build's files are taken away"
    return disk


def test_the_manifest_says_what_is_in_it(built: BuiltDisk, lock: DiskLock) -> None:
    assert [(row.name, row.version, row.sha256) for row in built.packages] == [(deb.name, deb.version, deb.sha256) for deb in lock.debs]
    assert {row.outcome for row in built.hygiene} == {"passed"}
    assert (built.loader, built.layout, built.driver, built.simulated) == ("systemd-boot", "ab", None, False)
    assert built.epoch == lock.epoch
    assert [row.id for row in built.pending], "an image cannot hold everything"
    raw = built.path("raw")
    with raw.open("rb") as handle:
        assert hashlib.file_digest(handle, "sha256").hexdigest() == built.raw.sha256
    assert raw.stat().st_size == built.raw.size
    assert raw.stat().st_blocks * 512 < built.raw.size, "the file is sparse"
    assert (built.directory / "SHA256SUMS").read_text() == f"{built.raw.sha256}  {raw.name}\n"


def test_what_is_there_is_not_built_again(site: Site, built: BuiltDisk) -> None:
    before = built.path("raw").stat()
    done = site.run("disks", "build", CLASS, "--offline", "--format", "raw", "--output", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["made"], told["build_id"], told["raw"]["sha256"]) == (False, built.build_id, built.raw.sha256)
    assert built.path("raw").stat() == before


def test_built_twice_it_is_the_same(site: Site, built: BuiltDisk) -> None:
    done = site.run("disks", "build", CLASS, "--offline", "--format", "raw", "--twice")
    assert done.returncode == 0, done.stderr
    assert "built twice: every byte is the same" in done.stderr


def test_a_damaged_package_stops_it_before_anything_is_made(site: Site, fetched: Path, lock: DiskLock, tmp_path: Path) -> None:
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


def test_a_full_disk_is_told_before_anything_is_made(site: Site, fetched: Path, tmp_path: Path) -> None:
    other = tmp_path / "store"
    other.mkdir()
    # A namespace of its own: the small file system goes with the command.
    script = (
        f"mount -t tmpfs -o size=400m tmpfs {other} && ln -s {fetched} {other}/pool && "
        f"{sys.executable} -m goldnode.cli disks build {CLASS} --offline --store {other}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=ROOT, env=site.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "a build takes up to" in done.stderr
    assert "make room there" in done.stderr.casefold()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["l4"], 'stack "debian12_r580" has no lock', id="no-lock-of-the-stack"),
        pytest.param(["cpu_onyl"], 'Use "cpu_only"', id="no-such-class"),
        pytest.param([CLASS, "--format", "qcow"], 'Use "qcow2"', id="no-such-format"),
    ],
)
def test_what_cannot_be_built_is_refused_at_once(site: Site, arguments: list[str], says: str) -> None:
    done = site.run("disks", "build", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_class_without_a_disk_lock_is_refused(site: Site, tmp_path: Path) -> None:
    done = site.run("disks", "build", CLASS, GOLDNODE_DISK_LOCKS=str(tmp_path))
    assert done.returncode == 2
    assert f'the disk image of class "{CLASS}" has no lock' in done.stderr
    assert f"Run `goldnode disks lock {CLASS}`" in done.stderr
