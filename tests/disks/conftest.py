"""The disk of a class without a GPU, built once from what the archive has today, for every test that wants a real one.

With GOLDNODE_DISK_RUN=FOLDER locks, packages, bases and builds stay there, and a run that was interrupted goes on with them.
"""

from __future__ import annotations

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

from goldnode.classdoc.load import load_catalog
from goldnode.core.site import load_site
from goldnode.disks.definition import builtin_definition, load_definition
from goldnode.disks.locking import DiskLock, fetch, load_disk_lock, target
from goldnode.disks.model import BuiltDisk, builds, find

CLASS, STACK = "cpu_only", "debian12_cpu"
ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """Locks, definition and store of this run, for the disk of one class."""

    home: Path
    class_: str = CLASS
    stack: str = STACK
    esp_mib: int = 192

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def lock(self) -> Path:
        return self.home / "disk-locks" / f"{self.class_}.lock.yml"

    @property
    def environment(self) -> dict[str, str]:
        named = {
            "GOLDNODE_LOCKS": self.home / "locks",
            "GOLDNODE_DISK_LOCKS": self.home / "disk-locks",
            "GOLDNODE_DISK_DEFINITION": self.home / "disks.yml",
            "GOLDNODE_DISKS": self.store,
            "PYTHONPATH": ROOT / "src",
        }
        stored = {
            key: value
            for key, value in os.environ.items()
            if key not in ("GOLDNODE_SITE", "GOLDNODE_CATALOG")
        }
        return {**stored, **{key: str(value) for key, value in named.items()}}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "goldnode.cli", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def set_up(self) -> None:
        """Write the definition, with a small ESP, and lock stack and disk for today's archive."""
        text = builtin_definition().read_text()
        assert "esp_mib: 512" in text
        (self.home / "disks.yml").write_text(
            text.replace("esp_mib: 512", f"esp_mib: {self.esp_mib}")
        )
        for arguments in (
            ("lock", self.stack, "--out", str(self.home / "locks")),
            ("disks", "lock", self.class_),
        ):
            done = self.run(*arguments)
            assert done.returncode == 0, done.stderr


def left_in(store: Path) -> tuple[list[str], list[str]]:
    """Mounts below the store that any process sees, and processes that have anything of it open as root, working directory or in their command."""
    mounts, processes = set(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mounts |= {
                line for line in (place / "mounts").read_text().splitlines() if str(store) in line
            }
            reported = [str((place / name).readlink()) for name in ("root", "cwd")]
            reported.append(
                (place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            )
        except OSError:
            continue
        if int(place.name) != os.getpid() and any(str(store) in text for text in reported):
            processes.append(reported[2])
    return sorted(mounts), processes


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Stack and disk locked for today's archive."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mmdebstrap", "mke2fs", "mcopy", "sfdisk"))):
        pytest.fail("needs root, mmdebstrap, e2fsprogs, mtools and fdisk")
    stays = os.environ.get("GOLDNODE_DISK_RUN")
    found = Site(Path(stays) if stays else tmp_path_factory.mktemp("disks"))
    found.home.mkdir(exist_ok=True)
    found.set_up()
    yield found
    if not stays:
        shutil.rmtree(found.store, ignore_errors=True)


@pytest.fixture(scope="session")
def lock(site: Site) -> DiskLock:
    return load_disk_lock(site.lock)


@pytest.fixture(scope="session")
def fetched(site: Site, lock: DiskLock) -> Path:
    """The pool, with every package of the lock."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in site.environment.items():
            patch.setenv(key, value)
        item = target(CLASS, load_definition(), load_catalog(), load_site())
        pool = site.store / "pool"
        fetch(item, lock, pool)
    return pool


@pytest.fixture(scope="session")
def built(site: Site, fetched: Path) -> BuiltDisk:
    """The disk; its first build was killed while site.yml was at work in a root with mounts."""
    if not builds(site.store):  # none of an earlier run
        kill_a_build(site)
    done = site.run("disks", "build", CLASS, "--image-format", "raw", "--offline")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (site.store / "cache/work").iterdir() if path.is_dir()] == [], (
        "a killed build's files are taken away"
    )
    return find(done.stdout.split()[0], site.store)


def kill_a_build(site: Site) -> None:
    """Start a build, and kill it while site.yml is at work in a root with mounts."""
    with (site.home / "killed.log").open("wb") as log:
        first = subprocess.Popen(
            site.command("disks", "build", CLASS, "--image-format", "raw"),
            cwd=ROOT,
            env=site.environment,
            stdout=log,
            stderr=log,
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
