"""Locks against the archives and indexes that this machine really uses; small images only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError
from goldnode.images.imagelock import find_lock, load_lock
from goldnode.images.locking import check_images, lock_images
from goldnode.images.matrix import builtin_matrix, load_matrix
from goldnode.images.resolve import fetch_all
from goldnode.lock.locked_files import pool_path

pytestmark = pytest.mark.images

SMALL = ["cuda-12.9.1-base-debian12", "cpu-1-onnxruntime1.31-debian13", "cpu-1-runtime-debian13"]


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Locks resolved anew, of nothing kept."""
    place = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDNODE_IMAGE_LOCKS", str(place))
        told = list(lock_images(SMALL, upgrade=True, out=place))
    assert len(told) == 5
    return place


def test_a_child_adds_only_what_its_parent_lacks(locks: Path) -> None:
    base, runtime = (
        load_lock(locks / f"cpu-1-{flavour}-debian13.lock.yml") for flavour in ("base", "runtime")
    )
    assert runtime.parent is not None
    assert runtime.parent.lock == base.digest
    assert "libopenblas0-pthread" in {deb.name for deb in runtime.debs}
    assert not {deb.name for deb in runtime.debs} & {deb.name for deb in base.debs}
    assert {deb.why for deb in base.debs} >= {"essential", "requested"}


def test_wheels_are_those_of_the_images_python(locks: Path) -> None:
    lock = load_lock(locks / "cpu-1-onnxruntime1.31-debian13.lock.yml")
    files = {wheel.name: wheel.file for wheel in lock.wheels}
    assert "-cp313-" in files["onnxruntime"]
    assert "-cp313-" in files["numpy"]


def test_locks_made_now_are_good_and_are_kept(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDNODE_IMAGE_LOCKS", str(locks))
    assert {name: problems for name, problems in check_images(SMALL) if problems} == {}
    assert not any(done.changed for done in lock_images(SMALL, out=locks))


def test_wheel_of_the_lock_is_fetched_with_its_hash(locks: Path, tmp_path: Path) -> None:
    row = load_matrix().row("cuda-12.9.1-base-debian12")
    lock = load_lock(locks / f"{row.name}.lock.yml")
    assert fetch_all([(row, lock)], tmp_path / "pool") == lock.size
    path = pool_path(tmp_path / "pool", lock.wheels[0])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == lock.wheels[0].sha256
    with zipfile.ZipFile(path) as archive:
        assert any(name.endswith("/lib/libcudart.so.12") for name in archive.namelist())
    assert fetch_all([(row, lock)], tmp_path / "pool") == 0


TOOLKIT = "cuda-11.8.0-devel-debian12"


def test_debians_toolkit_is_locked_without_a_driver(tmp_path: Path) -> None:
    told = list(lock_images([TOOLKIT], upgrade=True, out=tmp_path))
    assert len(told) == 4
    lock = load_lock(tmp_path / f"{TOOLKIT}.lock.yml")
    names = {deb.name for deb in lock.debs}
    assert {"nvidia-cuda-dev", "nvidia-cuda-toolkit"} <= names
    assert not names & {
        "libcuda1",
        "libnvidia-ml1",
        "libnvidia-ptxjitcompiler1",
        "nvidia-alternative",
    }
    (made,) = [deb for deb in lock.debs if deb.made]
    assert made.provides == ("libcuda.so.1 (= 520)", "libnvidia-ml.so.1 (= 520)")
    assert check_image_of(tmp_path) == []


def check_image_of(place: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDNODE_IMAGE_LOCKS", str(place))
        return dict(check_images([TOOLKIT]))[TOOLKIT]


def test_lock_fails_when_no_package_needs_a_from_host_library(tmp_path: Path) -> None:
    own = builtin_matrix()
    text = own.read_text(encoding="utf-8")
    (tmp_path / "matrix.yml").write_text(
        text.replace("from_host: [libcuda.so.1,", "from_host: [libnvcuvid.so.1, libcuda.so.1,", 1),
        encoding="utf-8",
    )
    (tmp_path / "locks").symlink_to(own.parent / "locks")
    with pytest.raises(
        ImageError, match=r'nothing in image "cuda-11.8.0-devel-debian12" asks for libnvcuvid.so.1'
    ) as caught:
        list(lock_images([TOOLKIT], matrix_file=tmp_path / "matrix.yml", out=tmp_path / "out"))
    assert caught.value.line is not None
    assert not (tmp_path / "out" / f"{TOOLKIT}.lock.yml").exists()


def test_dpkg_is_content_with_the_hosts_driver(tmp_path: Path) -> None:
    """Packages of Debian's that ask for a driver are installed by dpkg itself, with all it checks; without the stand-in it refuses them."""
    if shutil.which("dpkg") is None or os.geteuid() != 0:
        pytest.skip("needs dpkg and root")
    row = load_matrix().row(TOOLKIT)
    lock = find_lock(row)
    asking = ("libnvidia-ml-dev", "libcuinj64-11.8")
    few = lock.model_copy(
        update={"debs": [deb for deb in lock.debs if deb.name in asking or deb.made]}
    )
    fetch_all([(row, few)], tmp_path / "pool")
    files = {deb.name: str(pool_path(tmp_path / "pool", deb)) for deb in few.debs}
    assert len(files) == 3
    (tmp_path / "admin/info").mkdir(parents=True)
    (tmp_path / "admin/updates").mkdir()
    (tmp_path / "admin/available").touch()
    (tmp_path / "root").mkdir()
    # What else they need is there already, as far as dpkg knows.
    others = {
        name
        for deb in asking
        for name in needed_by(files[deb])
        if not name.startswith(("libcuda", "libnvidia"))
    }
    versions = dict.fromkeys(others, "999") | {
        deb.name: deb.version for deb in lock.debs if deb.name in others
    }
    fields = "Status: install ok installed\nArchitecture: amd64\nMulti-Arch: same\nMaintainer: x\nDescription: x"
    stanzas = [
        f"Package: {name}\n{fields}\nVersion: {version}\n" for name, version in versions.items()
    ]
    (tmp_path / "admin/status").write_text("\n".join(stanzas))
    command = [
        "dpkg",
        "--force-script-chrootless",
        "--admindir",
        str(tmp_path / "admin"),
        "--instdir",
        str(tmp_path / "root"),
    ]
    command += ["--log", str(tmp_path / "log"), "--install"]
    refused = subprocess.run(
        [*command, *(files[name] for name in asking)], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "dependency problems" in refused.stderr
    done = subprocess.run([*command, *files.values()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    status = (tmp_path / "admin/status").read_text()
    assert status.count("Status: install ok installed") == len(others) + 3
    assert not list((tmp_path / "root").rglob("libcuda.so.1*"))


def needed_by(deb: str) -> list[str]:
    said = subprocess.run(
        ["dpkg-deb", "--field", deb, "Depends", "Pre-Depends"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    clauses = [
        clause for line in said.splitlines() for clause in line.partition(": ")[2].split(",")
    ]
    return [
        clause.split("|")[0].split()[0].partition(":")[0] for clause in clauses if clause.strip()
    ]
