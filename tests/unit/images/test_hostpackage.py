"""The package that stands for the host's driver: what is asked of it, its bytes, what dpkg and apt make of it, and what a lock says of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError
from goldnode.images import hostpackage
from goldnode.lock.locked_files import LockedDeb

CUDA, ML = "libcuda.so.1", "libnvidia-ml.so.1"
DEV = {
    "Package": "nvidia-cuda-dev",
    "Depends": f"libc6, libcuda1 (>= 520) | {CUDA} (>= 520) | libcuda-11.8-1",
}
INJ = {"Package": "libcuinj64-12.4", "Pre-Depends": f"libcuda1 (>= 550) | {CUDA} (>= 535.54.03)"}


@pytest.mark.parametrize(
    ("stanzas", "found"),
    [
        ([DEV], {CUDA: "520"}),
        ([DEV, INJ], {CUDA: "535.54.03"}),
        ([INJ, DEV], {CUDA: "535.54.03"}),
        ([{"Package": "x", "Depends": f"{CUDA}:any , {ML}"}], {CUDA: None, ML: None}),
        ([{"Package": "x", "Depends": CUDA}, DEV], {CUDA: "520"}),
        ([{"Package": "x", "Depends": f"{CUDA}-dev (>= 3)"}], {}),
        ([{"Package": "x", "Breaks": f"{CUDA} (<< 520)"}], {}),
    ],
)
def test_provisions_have_the_highest_version_that_packages_require(
    stanzas: list[dict[str, str]], found: dict[str, str | None]
) -> None:
    assert hostpackage.provisions([CUDA, ML], stanzas) == found


@pytest.mark.parametrize("clause", [f"{CUDA} (= 535.1)", f"{CUDA} (<< 600)", f"{CUDA} (>= 1:5-2)"])
def test_unsatisfiable_driver_clause_is_refused(clause: str) -> None:
    with pytest.raises(ImageError, match=r"from_host|version of a driver"):
        hostpackage.provisions(
            [CUDA],
            [{"Package": "x", "Depends": clause}, {"Package": "y", "Depends": f"{CUDA} (>= 2)"}],
        )


def test_package_bytes_depend_only_on_what_it_provides() -> None:
    one = hostpackage.locked({ML: "520", CUDA: "520"})
    assert one == hostpackage.locked({CUDA: "520", ML: "520"})
    assert (one.version, one.file, one.made) == (
        "1+520",
        "goldnode-driver-from-host_1+520_all.deb",
        True,
    )
    # The file's bytes are part of locks: another hash here means that RECIPE has to be raised, and locks made anew.
    assert one.sha256 == "e23a3654e9851aae899c148a43db5950de396b6915d131e6207e84de1b6a9282"
    assert hostpackage.locked(hostpackage.stated(one.provides)) == one
    assert hostpackage.locked({CUDA: "550"}).sha256 != one.sha256
    assert hostpackage.locked({CUDA: None}).provides == (CUDA,)


def test_lock_has_provides_only_for_made_packages() -> None:
    made = hostpackage.locked({CUDA: "520"})
    assert made.model_dump()["provides"] == [f"{CUDA} (= 520)"]
    plain = LockedDeb(
        name="a",
        version="1",
        architecture="all",
        sha256="a" * 64,
        size=1,
        path="pool/a_1_all.deb",
        archive="debian",
        why="",
    )
    assert (
        "provides" not in plain.model_dump()
    )  # so that the digests of other locks are what they were
    assert not plain.made


def test_package_that_differs_from_the_lock_is_not_written(tmp_path: Path) -> None:
    made = hostpackage.locked({CUDA: "520"})
    path = tmp_path / "pool" / made.sha256 / made.file
    hostpackage.write(made, path)
    assert len(path.read_bytes()) == made.size
    with pytest.raises(ImageError, match="this goldnode makes another goldnode-driver-from-host"):
        hostpackage.write(made.model_copy(update={"provides": (CUDA,)}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(
    shutil.which("dpkg-deb") is None or shutil.which("dpkg") is None, reason="needs dpkg"
)
def test_dpkg_installs_and_verifies_the_package(tmp_path: Path) -> None:
    made = hostpackage.locked({CUDA: "520", ML: None})
    path = tmp_path / made.file
    hostpackage.write(made, path)
    said = subprocess.run(
        ["dpkg-deb", "--field", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Provides: {CUDA} (= 520), {ML}\n" in said
    files = subprocess.run(
        ["dpkg-deb", "--contents", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[-1] for line in files.splitlines() if line.startswith("-")) == [
        "./usr/share/doc/goldnode-driver-from-host/README",
        "./usr/share/doc/goldnode-driver-from-host/copyright",
    ]
    (tmp_path / "admin/info").mkdir(parents=True)
    (tmp_path / "admin/updates").mkdir()
    for name in ("status", "available"):
        (tmp_path / "admin" / name).touch()
    (tmp_path / "root").mkdir()
    common = [
        "dpkg",
        "--force-not-root",
        "--admindir",
        str(tmp_path / "admin"),
        "--instdir",
        str(tmp_path / "root"),
    ]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DPKG_MAINTSCRIPT_DEBUG": ""}
    done = subprocess.run(
        [*common, "--log", str(tmp_path / "log"), "--install", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (
        subprocess.run([*common, "--verify"], capture_output=True, text=True, check=True).stdout
        == ""
    )
    assert (
        "stands for those of the host"
        in (tmp_path / "root/usr/share/doc/goldnode-driver-from-host/README").read_text()
    )
