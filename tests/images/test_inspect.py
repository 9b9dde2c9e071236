"""Inspection of real wheels and Debian packages: what has to be refused is, and what is clean is not.

pip and apt fetch them, as they are set up on this machine. torch's own wheel is 900 MB, so that of it the metadata is real and one small
library stands for the rest; the NVIDIA wheels of the set are real where they are small. The whole set was scanned by hand, see
docs/how-to/image-inspection.md.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.unit.inspect.things import elf, image, installed, os_release, wheel, wheel_files

from goldnode.gpuprogram.smoke import pack
from goldnode.images.locked_packages import locked_in
from goldnode.inspect import examine, policy, report, targets
from goldnode.inspect.policy import Inspection
from goldnode.oci.layout import Layout

pytestmark = pytest.mark.images

RULES = policy.load()
TODAY = dt.date(2026, 11, 22)
PLATFORM = (
    "--only-binary=:all:",
    "--no-deps",
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
)
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
BASE = {**os_release(), "usr/bin/python3": elf(needed=["libc.so.6"])}


def pip(*arguments: str) -> None:
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    argv = [
        sys.executable,
        "-m",
        "pip",
        *arguments[:1],
        "-q",
        "--disable-pip-version-check",
        *PLATFORM,
        *platforms,
        *arguments[1:],
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of several projects, each alone."""
    folder = tmp_path_factory.mktemp("wheels")
    pip(
        "download",
        "-d",
        str(folder),
        "xgboost==3.2.0",
        "ctranslate2==4.8.5",
        "bitsandbytes==0.50.2",
        "onnxruntime==1.31.1",
    )
    pip("download", "-d", str(folder), "xgboost-cpu==3.2.0", "nvidia-cuda-runtime-cu12==12.9.79")
    return folder


def one(folder: Path, name: str, backend: str) -> Inspection:
    (path,) = folder.glob(f"{name}-[0-9]*.whl")
    (target,) = targets.find(str(path), None)
    return policy.inspect(target.view, RULES, backend, today=TODAY)


def unpacked(folder: Path, name: str) -> dict[str, bytes]:
    (path,) = folder.glob(f"{name}-[0-9]*.whl")
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()
        }


def test_a_cpu_image_with_the_wheel_of_xgboost(fetched: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    image(
        layout, "cpu:1-base-debian12", [BASE, installed(unpacked(fetched, "xgboost"))], packed=False
    )
    (target,) = targets.find("cpu:1-base-debian12", layout)
    found, truth = examine(target, RULES, own=pack.own(), locked=locked_in(None))
    row = next(row for row in found.findings if row.severity == "refuse")
    assert not found.passed
    assert truth is not None
    assert truth.passed, "its tag is true; it is what is in it that is foreign"
    assert (row.rule, row.package, row.remedy) == (
        "foreign-cuda",
        "xgboost 3.2.0",
        'use the wheel "xgboost-cpu", the same library without CUDA',
    )
    assert row.signals == ("requirement", "fatbin", "dlopen")


def test_runtime_of_another_release_than_its_tag_is_refused(fetched: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    image(
        layout,
        "cuda:12.4.1-base-debian12",
        [BASE, installed(unpacked(fetched, "nvidia_cuda_runtime_cu12"))],
    )
    image(
        layout,
        "cuda:12.9.1-base-debian12",
        [BASE, installed(unpacked(fetched, "nvidia_cuda_runtime_cu12"))],
    )
    (wrong,), (right,) = (
        targets.find(f"cuda:{version}-base-debian12", layout) for version in ("12.4.1", "12.9.1")
    )
    found, truth = examine(wrong, RULES, own=pack.own(), locked=locked_in(None))
    assert found.passed
    assert truth is not None
    assert not truth.passed
    said = "\n".join(report.text(found, truth))
    assert (
        "the claim runtime does not hold: expected 12.4, got 12.9 (the number that cudaRuntimeGetVersion returns"
        in said
    )
    assert "REFUSED" in said
    _, truth = examine(right, RULES, own=pack.own(), locked=locked_in(None))
    assert truth is not None
    assert truth.passed


@pytest.mark.parametrize(
    ("name", "backend", "signals", "refused"),
    [
        ("ctranslate2", "cpu", {"fatbin", "dlopen"}, {"foreign-cuda"}),
        (
            "bitsandbytes",
            "cpu",
            {"needed", "fatbin"},
            {"foreign-cuda", "foreign-rocm", "foreign-oneapi"},
        ),
        ("bitsandbytes", "cuda", {"needed", "fatbin"}, {"foreign-rocm", "foreign-oneapi"}),
        ("xgboost", "rocm", {"requirement", "fatbin", "dlopen"}, {"foreign-cuda"}),
    ],
)
def test_wheels_that_hold_what_is_foreign(
    fetched: Path, name: str, backend: str, signals: set[str], refused: set[str]
) -> None:
    found = one(fetched, name, backend)
    assert {row.rule for row in found.findings if row.severity == "refuse"} == refused
    assert {signal for row in found.findings for signal in row.signals} >= signals
    assert all(row.remedy for row in found.findings)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("onnxruntime", "cpu"),
        ("onnxruntime", "rocm"),
        ("xgboost_cpu", "cpu"),
        ("ctranslate2", "cuda"),
    ],
)
def test_wheels_that_are_clean(fetched: Path, name: str, backend: str) -> None:
    found = one(fetched, name, backend)
    assert {row.severity for row in found.findings} <= {"note"}, (
        "Python code that loads a library if it is there"
    )
    assert found.passed


def test_a_rocm_image_with_the_cuda_build_of_torch_finds_all_of_its_set(tmp_path: Path) -> None:
    pip(
        "install",
        "--dry-run",
        "--ignore-installed",
        "--target",
        str(tmp_path / "t"),
        "--report",
        str(tmp_path / "report.json"),
        "torch==2.9.1",
    )
    (row,) = json.loads((tmp_path / "report.json").read_bytes())["install"]
    requires = row["metadata"]["requires_dist"]
    of_nvidia = {line.partition("==")[0] for line in requires if line.startswith("nvidia-")}
    assert len(of_nvidia) == 15
    folder = tmp_path / "set"
    folder.mkdir()
    small = {
        "nvidia-cuda-runtime-cu12",
        "nvidia-nvtx-cu12",
        "nvidia-cufile-cu12",
        "nvidia-cuda-cupti-cu12",
        "nvidia-nvjitlink-cu12",
    }
    pip(
        "download",
        "-d",
        str(folder),
        *(line.partition(";")[0] for line in requires if line.partition("==")[0] in small),
    )
    wheel(
        folder,
        "torch",
        "2.9.1",
        {
            "torch/lib/libtorch_cuda.so": elf(
                needed=["libcudart.so.12"], sections={".nv_fatbin": b"x"}
            )
        },
        requires,
    )
    (target,) = targets.find(str(folder), None)
    found = policy.inspect(target.view, RULES, "rocm", today=TODAY)
    refused = {
        row.package.partition(" ")[0]: row for row in found.findings if row.severity == "refuse"
    }
    assert set(refused) == {"torch", *small}
    asked = {what for signal, _, what in refused["torch"].evidence if signal == "requirement"}
    assert len(of_nvidia - small) == 10
    assert asked <= of_nvidia - small
    assert found.signals["requirement"] == 10, "what is not there is still asked for"
    for name in small:
        assert refused[name].required_by[-1] == "torch 2.9.1"
        assert (
            refused[name].remedy
            == "use torch's build for ROCm (version +rocmX.Y) from the site's index"
        )
    cuda = policy.inspect(target.view, RULES, "cuda", today=TODAY)
    assert cuda.passed


def test_two_majors_of_cudnn(tmp_path: Path) -> None:
    # The wheels are 700 MB each: their shape is kept, their content is not.
    layout = Layout(tmp_path)
    eight = wheel_files(
        "nvidia-cudnn-cu11",
        "8.9.7.29",
        {"nvidia/cudnn/lib/libcudnn.so.8": elf(soname="libcudnn.so.8")},
    )
    nine = wheel_files(
        "nvidia-cudnn-cu12",
        "9.10.2.21",
        {"nvidia/cudnn/lib/libcudnn.so.9": elf(soname="libcudnn.so.9")},
    )
    image(
        layout,
        "cuda:12.4.1-runtime-debian12",
        [BASE, installed(eight), installed(nine, root="opt/app/site-packages")],
    )
    (target,) = targets.find("cuda:12.4.1-runtime-debian12", layout)
    found, _ = examine(target, RULES, own=pack.own(), locked=locked_in(None))
    assert [row.rule for row in found.findings if row.severity == "refuse"] == ["two-majors"]


CLEAN = {
    # With what loads libraries of every backend where they are there: FFmpeg, hwloc, UCX, Open MPI; and what draws on AMD's and Intel's GPUs.
    "cpu": "bash coreutils libc6 libavutil57|libavutil59 libavcodec59|libavcodec61 libhwloc15 libucx0 libgl1-mesa-dri libdrm-amdgpu1 libdrm-intel1 libigdgmm12",
    "rocm": "rocminfo libamdhip64-5 libhsa-runtime64-1 librocm-smi64-1",
    "oneapi": "libze1 ocl-icd-libopencl1",
}


@pytest.mark.parametrize("backend", list(CLEAN))
def test_debian_packages_are_clean(tmp_path: Path, backend: str) -> None:
    names = [
        next(name for name in row.split("|") if name == row or _known(name))
        for row in CLEAN[backend].split()
    ]
    done = subprocess.run(
        ["apt-get", "download", "-qq", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    root = tmp_path / "root"
    for deb in tmp_path.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    (target,) = targets.find(str(root), None)
    found = policy.inspect(target.view, RULES, backend, today=TODAY)
    assert found.elf_files > 2
    # The packages are unpacked without those that they depend on.
    assert [
        row for row in found.findings if row.severity != "note" and row.rule != "missing-library"
    ] == []
    assert found.passed


def _known(name: str) -> bool:
    done = subprocess.run(
        ["apt-cache", "policy", name],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return "Candidate: " in done.stdout and "Candidate: (none)" not in done.stdout
