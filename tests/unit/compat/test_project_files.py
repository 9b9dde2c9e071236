"""Lock files, pyproject.toml, environment.yml and Dockerfiles: read as the tool that owns them reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import Workload
from goldnode.compat.project_files import base_image
from goldnode.core.errors import WorkloadError

UV = """\
version = 1
requires-python = ">=3.11"

[manifest]
overrides = [{ name = "nvidia-cudnn-cu12", specifier = ">=9.15" }]

[[package]]
name = "job"
version = "0.1.0"
source = { editable = "." }
dependencies = [
    { name = "torch", version = "2.8.0", source = { registry = "https://pypi.example/simple" }, marker = "extra != 'extra-3-job-cu128'" },
    { name = "torch", version = "2.8.0+cu128", source = { registry = "https://whl.example/cu128" }, marker = "extra == 'extra-3-job-cu128'" },
]

[package.optional-dependencies]
cu128 = [{ name = "flash-attn" }]

[package.dev-dependencies]
dev = [{ name = "vllm" }]
docs = [{ name = "xformers" }]

[[package]]
name = "torch"
version = "2.8.0"
source = { registry = "https://pypi.example/simple" }
dependencies = [{ name = "nvidia-cudnn-cu12", marker = "sys_platform == 'linux'" }, { name = "colorama", marker = "sys_platform == 'win32'" }]

[[package]]
name = "torch"
version = "2.8.0+cu128"
source = { registry = "https://whl.example/cu128" }
dependencies = [{ name = "nvidia-cudnn-cu12" }]

[[package]]
name = "nvidia-cudnn-cu12"
version = "9.20.0.48"
source = { registry = "https://pypi.example/simple" }

[[package]]
name = "flash-attn"
version = "2.8.3"
source = { git = "https://git.example/flash-attention?rev=v2.8.3#0251105a" }

[[package]]
name = "vllm"
version = "0.10.2"
source = { registry = "https://pypi.example/simple" }

[[package]]
name = "xformers"
version = "0.0.32"
source = { registry = "https://pypi.example/simple" }

[[package]]
name = "colorama"
version = "0.4.6"
source = { registry = "https://pypi.example/simple" }
"""


def read(folder: Path, name: str, text: str, *, extras: str = "", **more: Any) -> Workload:
    (folder / name).write_text(text, encoding="utf-8")
    return workloads.requirements(folder / f"{name}{extras}", **more)


def test_uv_lock_is_read_with_the_default_groups_of_uv(tmp_path: Path) -> None:
    found = read(tmp_path, "uv.lock", UV)
    assert found.pins == {"torch": "2.8.0", "nvidia-cudnn-cu12": "9.20.0.48", "vllm": "0.10.2"}
    assert (found.python, found.resolved, found.overridden) == (
        "3.11",
        "uv",
        ("nvidia-cudnn-cu12",),
    )
    assert found.requirers["nvidia-cudnn-cu12"] == ("torch",)
    assert found.read == "3 packages of uv.lock for Python 3.11 on x86_64, with dev"
    assert found.left_out == "extras and groups of uv.lock that are not named: cu128, docs"
    assert found.pin_places["torch"].line == UV.splitlines().index('name = "torch"') + 1


def test_extras_of_a_uv_lock_that_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.uv]\ndefault-groups = []\n", encoding="utf-8")
    (tmp_path / ".python-version").write_text("3.12\n", encoding="utf-8")
    found = read(tmp_path, "uv.lock", UV, extras="[cu128]")
    assert found.pins == {"torch": "2.8.0+cu128", "nvidia-cudnn-cu12": "9.20.0.48"}
    assert found.python == "3.12"
    (report,) = found.reports
    assert "flash-attn is not pinned: it is built from git+https://git.example" in report.message


def test_extra_of_the_name_of_a_default_group_is_not_read(tmp_path: Path) -> None:
    """uv installs the group "dev" by itself, and not an extra of that name (newton-physics/newton)."""
    text = UV.replace("cu128 = [{ name", 'dev = [{ name = "xformers" }]\ncu128 = [{ name')
    assert "xformers" not in read(tmp_path, "uv.lock", text).pins
    assert "xformers" in read(tmp_path, "uv.lock", text, extras="[dev]").pins


def test_override_of_a_lock_is_a_warning_and_no_block(tmp_path: Path) -> None:
    found = [
        item for item in check(None, [read(tmp_path, "uv.lock", UV)]) if item.severity != "unknown"
    ]
    assert [(item.rule, item.severity) for item in found] == [("wheel-requires", "warn")]
    assert "its project overrides" in found[0].message


PYLOCK = """\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.12"
[[packages]]
name = "torch"
version = "2.8.0"
marker = "sys_platform == 'linux'"
wheels = [{ url = "https://files.example/torch-2.8.0-cp312-cp312-manylinux_2_28_x86_64.whl", hashes = { sha256 = "aa" } }]
[[packages]]
name = "jax"
version = "0.7.0"
marker = "sys_platform == 'darwin'"
wheels = [{ url = "https://files.example/jax-0.7.0-py3-none-any.whl", hashes = { sha256 = "aa" } }]
[[packages]]
name = "deepspeed"
vcs = { type = "git", url = "https://git.example/deepspeed", commit-id = "0251105a" }
"""

POETRY = """\
[[package]]
name = "torch"
version = "2.5.1"
optional = false
groups = ["main"]
[package.dependencies]
nvidia-cublas-cu12 = {version = "12.4.5.8", markers = "platform_system == 'Linux'"}
[[package]]
name = "vllm"
version = "0.6.5"
optional = false
groups = ["serve"]
[metadata]
lock-version = "2.1"
python-versions = ">=3.10,<3.13"
"""

PYPROJECT = """\
[project]
name = "job"
dependencies = ["torch==2.8.0", "numpy"]
[project.optional-dependencies]
serve = ["vllm==0.10.2"]
[dependency-groups]
dev = ["jax==0.7.0", {include-group = "more"}]
more = ["xformers==0.0.32"]
[[tool.uv.index]]
name = "whl-cu126"
url = "https://whl.example/whl/cu126"
explicit = true
[tool.uv.sources]
torch = [{index = "whl-cu126", marker = "sys_platform == 'linux'"}]
"""

CONDA = """\
name: job
channels: [pytorch, nvidia]
dependencies:
- python=3.10
- pytorch::pytorch=2.3.1
- pytorch-cuda=12.1
- numpy
- pip:
  - vllm==0.5.1
  - --extra-index-url https://whl.example/cu121
"""

PIXI = """\
version: 6
environments:
  default:
    packages:
      linux-64:
      - conda: https://conda.example/conda-forge/noarch/cuda-version-12.4-h3060b56_3.conda
      - conda: https://conda.example/conda-forge/linux-64/python-3.10.19-h3c07f61_2_cpython.conda
      - pypi: https://files.example/torch-2.6.0%2Bcu124-cp310-cp310-linux_x86_64.whl
      - pypi: https://files.example/warp_lang-1.9.0-py3-none-manylinux2014_x86_64.whl
      - pypi: git+https://git.example/gsplat?rev=v1.0.0#4d8ae4e2
      - pypi: ./
  forge:
    packages:
      linux-64:
      - conda: https://conda.example/conda-forge/linux-64/pytorch-2.10.0-cuda129_mkl_py312_h9ac99b3_303.conda
      - conda: .
packages:
- pypi: https://files.example/torch-2.6.0%2Bcu124-cp310-cp310-linux_x86_64.whl
  name: torch
  version: 2.6.0+cu124
  requires_dist:
  - nvidia-nccl-cu12==2.21.5 ; sys_platform == 'linux'
- pypi: https://files.example/warp_lang-1.9.0-py3-none-manylinux2014_x86_64.whl
  name: warp-lang
  version: 1.9.0
- pypi: git+https://git.example/gsplat?rev=v1.0.0#4d8ae4e2
  name: gsplat
  version: 1.0.0
"""

PIXI_4 = """\
version: 4
environments:
  default:
    packages:
      linux-64:
      - conda: https://conda.example/pytorch/linux-64/pytorch-2.2.2-py3.10_cuda11.8_cudnn8.7.0_0.tar.bz2
      - pypi: https://files.example/nerfacc-0.5.2.tar.gz
packages:
- kind: pypi
  name: nerfacc
  version: 0.5.2
  url: https://files.example/nerfacc-0.5.2.tar.gz
"""

CONDA_LOCK = """\
version: 1
package:
- name: pytorch
  version: 2.0.1
  manager: conda
  platform: linux-64
  url: https://conda.example/pytorch/linux-64/pytorch-2.0.1-py3.10_cuda11.8_cudnn8.7.0_0.tar.bz2
  category: main
- name: torchaudio
  version: 2.0.2
  manager: pip
  platform: linux-64
  url: https://files.example/torchaudio-2.0.2-cp310-cp310-linux_x86_64.whl
  category: main
- name: vllm
  version: 0.6.5
  manager: pip
  platform: linux-64
  url: https://files.example/vllm-0.6.5-cp38-abi3-manylinux1_x86_64.whl
  category: serve
"""

DOCKERFILE = """\
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04 AS base
ENV TORCH=2.8.0
RUN apt-get update && \\
    pip install --no-cache-dir torch==${TORCH} \\
      --index-url https://whl.example/whl/cu126 && \\
    python3 -m pip install "xformers==0.0.32" $MORE
FROM base
RUN --mount=type=cache,target=/root/.cache uv pip install --system -r absent.txt vllm==0.10.2
"""


@pytest.mark.parametrize(
    ("name", "text", "extras", "pins", "left_out"),
    [
        ("pylock.toml", PYLOCK, "", {"torch": "2.8.0"}, None),
        ("pylock.gpu.toml", PYLOCK, "", {"torch": "2.8.0"}, None),
        ("poetry.lock", POETRY, "", {"torch": "2.5.1"}, "serve"),
        ("poetry.lock", POETRY, "[serve]", {"torch": "2.5.1", "vllm": "0.6.5"}, None),
        ("pyproject.toml", PYPROJECT, "", {"torch": "2.8.0+cu126"}, "dev, more, serve"),
        ("pyproject.toml", PYPROJECT, "[serve]", {"torch": "2.8.0+cu126", "vllm": "0.10.2"}, "dev, more"),
        ("pyproject.toml", PYPROJECT, "[dev]", {"torch": "2.8.0+cu126", "jax": "0.7.0", "xformers": "0.0.32"}, "more, serve"),
        ("environment.yml", CONDA, "", {"torch": "2.3.1+cu121", "vllm": "0.5.1"}, "packages of conda"),
        ("pixi.lock", PIXI, "", {"torch": "2.6.0+cu124", "warp-lang": "1.9.0"}, "environments of pixi.lock that are not named: forge"),
        ("pixi.lock", PIXI, "[forge]", {}, "the GPUs that pytorch 2.10.0 was built for are not known"),
        ("pixi.lock", PIXI_4, "", {"torch": "2.2.2+cu118", "nerfacc": "0.5.2"}, "packages of conda other than CUDA"),
        ("conda-lock.yml", CONDA_LOCK, "", {"torch": "2.0.1+cu118", "torchaudio": "2.0.2"}, "categories of conda-lock.yml that are not named: serve"),
        ("gpu.conda-lock.yml", CONDA_LOCK, "[serve]", {"torch": "2.0.1+cu118", "torchaudio": "2.0.2", "vllm": "0.6.5"}, "packages of conda"),
        ("Dockerfile", DOCKERFILE, "", {"torch": "2.8.0+cu126", "xformers": "0.0.32", "vllm": "0.10.2"}, "absent.txt of line 9"),
    ],
)  # fmt: skip
def test_pins_of_a_project_file(
    name: str, text: str, extras: str, pins: dict[str, str], left_out: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path, name, text, extras=extras)
    assert found.pins == pins
    assert name in (found.read or "")
    assert (left_out in (found.left_out or "")) if left_out else found.left_out is None


def test_conda_and_lock_files_name_python_and_cuda(tmp_path: Path) -> None:
    found = read(tmp_path, "environment.yml", CONDA)
    assert (found.python, found.cuda) == ("3.10", "12.1")
    assert read(tmp_path, "poetry.lock", POETRY).python == "3.10"


def test_pixi_lock_names_python_cuda_requirers_and_sources(tmp_path: Path) -> None:
    found = read(tmp_path, "pixi.lock", PIXI)
    assert (found.python, found.cuda, found.resolved) == ("3.10", "12.4", "pixi")
    assert found.requirers["nvidia-nccl-cu12"] == ("torch",)
    (report,) = found.reports
    assert "gsplat is not pinned: it is built from git+https://git.example/gsplat" in report.message
    assert read(tmp_path, "pixi.lock", PIXI, extras="[forge]").cuda == "12.9"


@pytest.mark.parametrize(
    ("text", "pins", "message"),
    [
        ("channels: [pytorch]\ndependencies: [pytorch=2.3.1]\n", {}, "pytorch 2.3.1 names no build"),
        ("channels: [pytorch]\ndependencies: [pytorch=2.3.1, cpuonly]\n", {"torch": "2.3.1+cpu"}, None),
        ("channels: [conda-forge]\ndependencies: [pytorch=2.3.1]\n", {}, None),
        ("channels: [pytorch]\ndependencies: [pytorch>=2]\n", {}, "pytorch of conda is not pinned"),
    ],
)  # fmt: skip
def test_build_of_pytorch_is_never_guessed(
    text: str, pins: dict[str, str], message: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path, "environment.yml", text)
    assert found.pins == pins
    assert [item.message[: len(message or "")] for item in found.reports] == [message or ""][
        : bool(message)
    ]


@pytest.mark.parametrize(
    ("name", "text", "extras", "expected"),
    [
        ("uv.lock", "version = \n", "", r"uv\.lock:1: not TOML"),
        ("uv.lock", "version = 1\n", "", r"uv\.lock: it locks no project"),
        ("uv.lock", UV, "[gpu]", r"has no extra or group gpu\. Name one of cu128, dev, docs"),
        ("pylock.toml", 'lock-version = "1.0"\n', "", r"not a lock file of PEP 751"),
        ("environment.yml", "a: 1\n", "", r"it is no environment of conda"),
        ("pixi.lock", "version: 6\n", "", r"it is no lock file of pixi"),
        ("pixi.lock", PIXI, "[gpu]", r"has no extra or group gpu\. Name one of default, forge"),
        ("pixi.lock", PIXI, "[forge,default]", r"Name one of them"),
        ("pixi.lock", PIXI.replace("linux-64:", "osx-64:"), "", r"environment default is locked for osx-64, and not for linux-64"),
        ("conda-lock.yml", "a: 1\n", "", r"it is no lock file of conda-lock"),
        ("conda-lock.yml", CONDA_LOCK.replace("linux-64", "osx-64"), "", r"it is locked for osx-64"),
        ("environment.yml", "a: [\n", "", r"not YAML"),
        ("pyproject.toml", '[project]\ndependencies = ["torch=2"]\n', "", r'pyproject\.toml:2: "torch=2" is not a requirement'),
    ],
)  # fmt: skip
def test_malformed_project_file_is_an_error(
    name: str, text: str, extras: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=expected):
        read(tmp_path, name, text, extras=extras)


def test_image_of_a_dockerfile_is_the_base_of_its_last_stage(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    image, packages = workloads.of_file(tmp_path / "Dockerfile")
    assert (image.cuda, image.kind, packages.kind) == ("12.8.1", "image", "requirements")
    assert base_image(DOCKERFILE) == ("nvidia/cuda:12.8.1-runtime-ubuntu24.04", 2)
    assert base_image("FROM scratch\n") is None
    assert base_image("FROM $IMAGE\n") is None
