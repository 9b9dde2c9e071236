"""Locks against the archives and indexes that this machine really uses; small images only."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from goldnode.images.imagelock import load_lock
from goldnode.images.locking import check_images, lock_images
from goldnode.images.matrix import load_matrix
from goldnode.images.resolve import fetch_all, pool_path

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
    base, runtime = (load_lock(locks / f"cpu-1-{flavour}-debian13.lock.yml") for flavour in ("base", "runtime"))
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
    assert all("kept as it is" in line for line in lock_images(SMALL, out=locks))


def test_a_wheel_of_the_lock_is_fetched_and_is_what_it_says(locks: Path, tmp_path: Path) -> None:
    row = load_matrix().row("cuda-12.9.1-base-debian12")
    lock = load_lock(locks / f"{row.name}.lock.yml")
    assert fetch_all([(row, lock)], tmp_path / "pool") == lock.size
    path = pool_path(tmp_path / "pool", lock.wheels[0])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == lock.wheels[0].sha256
    with zipfile.ZipFile(path) as archive:
        assert any(name.endswith("/lib/libcudart.so.12") for name in archive.namelist())
    assert fetch_all([(row, lock)], tmp_path / "pool") == 0
