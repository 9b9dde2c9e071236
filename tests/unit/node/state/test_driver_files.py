"""The driver's files on a node with a real cache of the loader and a database of dpkg: what a check and a plan report."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import converged, document
from tests.unit.oci.test_build_layers import library

from goldnode.node.ground.host import Host
from goldnode.node.state.domains import driver_files
from goldnode.node.state.model import Observed

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin")
LIB = "usr/lib/x86_64-linux-gnu"
ML = f"{LIB}/libnvidia-ml.so.535.2"
CUDA = f"{LIB}/libcuda.so.535.2"
pytestmark = pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node on which package libnvidia-ml1 has installed two libraries."""
    sums = ""
    for name, soname in ((ML, b"libnvidia-ml.so.1"), (CUDA, b"libcuda.so.1")):
        content = library(soname, 4096)
        put(tmp_path, name, content)
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
        sums += f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}  {name}\n"
    put(tmp_path, "var/lib/dpkg/info/libnvidia-ml1:amd64.md5sums", sums.encode())
    put(tmp_path, "etc/ld.so.conf", f"/{LIB}\n/usr/local/cuda/lib64/stubs\n/usr/lib64\n".encode())
    ldconfig(tmp_path)
    return tmp_path


def put(root: Path, name: str, content: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def ldconfig(root: Path) -> None:
    subprocess.run([str(LDCONFIG), "-r", str(root)], check=True, capture_output=True)
    # The libraries were there before the cache, whose time has no more than seconds in some file systems.
    later = (root / ML).stat().st_ctime + 5 if (root / ML).exists() else None
    if later:
        os.utime(root / "etc/ld.so.cache", (later, later))


def seen_of(root: Path, whole: bool) -> tuple[Any, Observed]:
    wanted = document()
    seen = converged(wanted)
    host = Host(str(root), live=False)
    driver_files.observe(host, wanted, seen)
    if whole:
        driver_files.observe_all(host, wanted, seen)
    return wanted, seen


def outcome(root: Path) -> dict[str, str]:
    """Return what a check reports, and what a plan would do, as texts."""
    wanted, seen = seen_of(root, whole=False)
    texts = {row.id: str(row.got) for row in driver_files.findings(wanted, seen)}
    wanted, seen = seen_of(root, whole=True)
    actions = driver_files.plan(wanted, seen)[0]
    refused = driver_files.refusals(wanted, seen, actions)
    lines = [action.line() for action in actions] + [refusal.line() for refusal in refused]
    return {**texts, "plan": "; ".join(lines)}


def test_a_node_as_installed(root: Path) -> None:
    assert outcome(root) == {
        "dpkg.finished": driver_files.FINISHED,
        "driver.files": driver_files.INTACT,
        "plan": "",
    }


def test_changed_bytes_of_a_library(root: Path) -> None:
    with (root / ML).open("ab") as opened:
        opened.write(b"x")
    os.utime(root / ML, (4_000_000_000, 4_000_000_000))
    reported = outcome(root)
    assert f"/{ML} has other content than its package" in reported["driver.files"]
    assert "packages.reinstall libnvidia-ml1" in reported["plan"]


def test_changed_bytes_with_the_old_time_are_seen_by_a_plan(root: Path) -> None:
    with (root / CUDA).open("ab") as opened:
        opened.write(b"x")
    os.utime(root / CUDA, (1_700_000_000, 1_700_000_000))
    os.utime(root / "etc/ld.so.cache", (4_000_000_000, 4_000_000_000))
    reported = outcome(root)
    assert reported["driver.files"] == driver_files.INTACT
    assert f"/{CUDA} has other content" in reported["plan"]


def test_a_library_that_the_cache_still_names(root: Path) -> None:
    (root / ML).unlink()
    reported = outcome(root)
    assert "/etc/ld.so.cache names" in reported["driver.files"]
    assert f"/{ML} is missing" in reported["plan"]


def test_stubs_and_remainders(root: Path) -> None:
    (root / CUDA).unlink()
    put(root, "usr/local/cuda/lib64/stubs/libcuda.so", library(b"libcuda.so.1", 4096))
    ldconfig(root)
    reported = outcome(root)
    assert "/etc/ld.so.conf:2" in reported["driver.files"]


def test_an_interrupted_dpkg(root: Path) -> None:
    put(root, "var/lib/dpkg/updates/0001", b"")
    reported = outcome(root)
    assert "/var/lib/dpkg/updates/0001" in reported["dpkg.finished"]
    assert "apt refuses all work" in reported["plan"]


def test_a_damaged_cache_is_no_healthy_node(root: Path) -> None:
    (root / "etc/ld.so.cache").write_bytes(b"\0" * 100)
    wanted, seen = seen_of(root, whole=True)
    rows = {row.id: row.outcome for row in driver_files.findings(wanted, seen)}
    assert rows["driver.files"] == "could_not_read"
    assert [note.subject for note in driver_files.plan(wanted, seen)[1]] == ["driver.files"]
