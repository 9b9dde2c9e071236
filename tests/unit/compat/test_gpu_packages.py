"""No package that uses a GPU passes in silence: its CUDA family is judged, or it is listed as not judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from tests.gpu_wheels import tags
from tests.unit.compat.test_rules_workload import node

from goldnode.compat import gpu_packages, workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding
from goldnode.facts import wheels
from goldnode.facts.host import load

# Packages of the index that use a GPU: RAPIDS, NVIDIA's libraries, extensions of PyTorch, engines, and others.
_NAMES = """
cudf-cu12 cudf-cu13 cuml-cu12 cugraph-cu13 rmm-cu12 cuvs-cu12 pylibraft-cu12 dask-cudf-cu12 cuxfilter-cu13 cucim-cu12 libcudf-cu12
pynvjitlink-cu12 nvidia-dali-cuda120 nvidia-dali-cuda130 nvidia-nccl-cu13 nvidia-cudnn-cu12 nvidia-cublas nvidia-cuda-runtime
nvidia-nvshmem-cu13 nvidia-nvimgcodec-cu12 nvidia-modelopt nvmath-python cuquantum-python-cu12 cuda-python numba-cuda cupy-cuda12x cupy-cuda13x
torchao torch-scatter torch-sparse torchvision torchaudio triton dgl kaolin pytorch3d gsplat spconv-cu120 mamba-ssm causal-conv1d
xformers flash-attn bitsandbytes deepspeed transformer-engine autoawq auto-gptq exllamav2 ctranslate2 llama-cpp-python sglang vllm
flashinfer-python onnxruntime-gpu tensorrt tensorrt-cu12 faiss-gpu-cu12 paddlepaddle-gpu mxnet-cu112 jax-cuda13-plugin warp-lang pycuda
xgboost lightgbm
"""
PACKAGES = _NAMES.split()


def findings(
    folder: Path, *lines: str, gpu: str = "A100-SXM4-40GB", driver: str = "535.183.06"
) -> list[CompatFinding]:
    file = folder / "requirements.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    workload = workloads.requirements(file, python="3.12")
    return [
        item for item in check(node(gpu, driver), [workload]) if item.subject == workload.subject
    ]


# The wheel that was read has no code for GPUs.
_NO_CODE = ("dgl", "autoawq", "lightgbm")


@pytest.mark.parametrize("name", PACKAGES)
def test_no_package_passes_in_silence(name: str, tmp_path: Path) -> None:
    assert bool(findings(tmp_path, f"{name}==1.0")) is (name not in _NO_CODE)


def test_packages_that_are_not_judged_are_listed_once(tmp_path: Path) -> None:
    (finding,) = findings(
        tmp_path, "torch-scatter==2.1.2", "kaolin==0.18.0", "nvidia-modelopt==0.1"
    )
    assert (finding.rule, finding.severity) == ("gpu-package", "unknown")
    assert "torch-scatter (line 1), kaolin (line 2), nvidia-modelopt (line 3)" in finding.message


@pytest.mark.parametrize(
    ("pin", "gpu", "severity", "words"),
    [
        ("onnxruntime-gpu==1.31.1", "B200", "block", "built for compute capabilities 7.5"),
        ("onnxruntime-gpu==1.31.1", "H100-SXM5-80GB", None, ""),
        ("faiss-gpu-cu12==1.14.1.post1", "H100-SXM5-80GB", "block", "7.0, 8.0, and not for"),
        ("faiss-gpu-cu12==1.14.1.post1", "T4", None, ""),
        ("torchao==0.18.0", "A100-SXM4-40GB", "warn", "kernels of their own fail"),
        ("cudf-cu12==25.8.0", "P100-PCIE-16GB", "block", "needs compute capability 7.0"),
        ("cudf-cu12==25.8.0", "V100-SXM2-32GB", None, ""),
        ("cudf-cu12==23.12.0", "P100-PCIE-16GB", "unknown", "not judged"),
        ("flash-attn==2.8.3", "T4", "block", "needs compute capability 8.0"),
        ("bitsandbytes==0.48.2", "P100-PCIE-16GB", None, ""),
        ("flashinfer-python==0.6.13", "V100-SXM2-32GB", "block", "7.5"),
    ],
)
def test_wheel_is_judged_by_its_code_or_its_documents(
    pin: str, gpu: str, severity: str | None, words: str, tmp_path: Path
) -> None:
    found = [
        item
        for item in findings(tmp_path, pin, gpu=gpu, driver="610.43.02")
        if item.rule == "gpu-package"
    ]
    assert [item.severity for item in found] == ([severity] if severity else [])
    assert all(words in item.message for item in found)


def test_facts_have_300_packages_with_the_hash_of_a_wheel() -> None:
    rows = load("gpu_wheels.yml")["packages"]
    assert len({row["name"] for row in rows if row.get("sha256")}) >= 300
    assert [row["name"] for row in rows if row.get("sha256") and not row.get("wheels")] == []


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("torchao==0.10.0", "torchao 0.10.0 was built for compute capabilities 8.0, 8.6"),
        ("torchao==0.18.0", "torchao 0.18.0 has no machine code for"),
        ("torchao==0.18.1", "not judged"),
    ],
)
def test_code_is_that_of_the_pinned_version(pin: str, words: str, tmp_path: Path) -> None:
    found = findings(tmp_path, pin, gpu="GeForce-RTX-5090", driver="610.43.02")
    assert words in next(item.message for item in found if item.rule == "gpu-package")


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("triton-xpu", True),
        ("onemkl-sycl-blas", True),
        ("dpctl", True),
        ("cupy-rocm-7-0", True),
        ("intel-openmp", False),
        ("nvidia-ml-py", False),
    ],
)
def test_name_states_a_gpu_of_any_vendor(name: str, stated: bool) -> None:
    assert gpu_packages.states_gpu(name) is stated


def test_pin_with_a_recorded_wheel_is_not_unknown(tmp_path: Path) -> None:
    """That a wheel exists for the machine is known of one version, of another it is not."""
    for version, count in (("3.8.0", 0), ("2.0.0", 1)):
        found = findings(tmp_path, f"nvidia-nvshmem-cu13=={version}", driver="610.43.02")
        assert len([item for item in found if item.rule == "wheel-requires"]) == count


def test_cuda_13_in_a_name_needs_its_driver(tmp_path: Path) -> None:
    found = findings(
        tmp_path, "cudf-cu13==25.12.0", "nvidia-nccl-cu13==2.28.3", "nvidia-dali-cuda130==1.50.0"
    )
    (finding,) = [item for item in found if item.rule == "cuda-driver"]
    assert finding.severity == "block"
    assert (
        "cudf-cu13, nvidia-nccl-cu13, nvidia-dali-cuda130 needs driver 580.65.06 or later"
        in finding.message
    )


def test_family_of_torch_is_reported_once(tmp_path: Path) -> None:
    found = findings(tmp_path, "torch==2.11.0", "torchvision==0.26.0", "cudf-cu13==25.12.0")
    assert [item.message.split(" needs")[0] for item in found if item.rule == "cuda-driver"] == [
        "CUDA 13.0 of torch 2.11.0 (cu130)"
    ]


@pytest.mark.parametrize(
    ("name", "version", "family"),
    [
        ("nvidia-nccl-cu13", "2.28.3", "13"),
        ("nvidia-dali-cuda130", None, "13"),
        ("cupy-cuda13x", None, "13"),
        ("spconv-cu121", None, "12"),
        ("torchvision", "0.21.0+cu124", "12"),
        ("flash-attn", "2.7.4+cu12torch2.5", "12"),
        ("torch-scatter", "2.1.2+pt26cu118", "11"),
        ("nvidia-cuda-runtime", "13.0.96", "13"),
        ("torch", "2.6.0+rocm6.2", None),
        ("numpy", "2.0", None),
        ("accuracy", "1.0+local", None),
    ],
)
def test_cuda_family_follows_from_name_and_version(
    name: str, version: str | None, family: str | None
) -> None:
    assert gpu_packages.family(name, version) == family


@pytest.mark.parametrize(
    "name", ["numpy", "pynvml", "requests", "torchmetrics", "ray", "accelerate"]
)
def test_package_without_code_for_a_gpu_is_left_out(name: str, tmp_path: Path) -> None:
    assert not gpu_packages.uses_gpu(name)
    assert findings(tmp_path, f"{name}==1.0") == []


@pytest.mark.parametrize(
    ("pin", "gpu", "judgement"),
    [  # TensorRT: SM 7.0 and higher in the matrix of 10.1, Volta removed in 10.5, Turing and later in 11.2 and 11.4
        ("tensorrt-cu12==10.1.0", "P100-PCIE-16GB", "blocked"),
        ("tensorrt-cu12==10.1.0", "V100-PCIE-32GB", "fits"),
        ("tensorrt==10.4.0", "V100-PCIE-32GB", "fits"),
        ("tensorrt-cu12==10.5.0", "V100-PCIE-32GB", "blocked"),
        ("tensorrt-cu12-libs==10.9.0.34", "V100-PCIE-32GB", "blocked"),
        ("tensorrt-cu12==10.5.0", "T4", "fits"),
        ("tensorrt-cu12==11.2.1", "V100-PCIE-32GB", "blocked"),
        ("tensorrt-cu12==11.4.0.106", "A100-SXM4-40GB", "fits"),
        ("tensorrt-cu12==10.0.1", "P100-PCIE-16GB", "unknown"),  # no matrix of it was read
        ("tensorrt-cu12==12.0.0", "A100-SXM4-40GB", "unknown"),
    ],
)
def test_tensorrt_is_judged_by_its_matrix(
    pin: str, gpu: str, judgement: str, tmp_path: Path
) -> None:
    own = [item for item in findings(tmp_path, pin, gpu=gpu) if item.rule == "gpu-package"]
    names = {"block": "blocked", "unknown": "unknown"}
    assert ([names[item.severity] for item in own] or ["fits"]) == [judgement]


# Names of wheels on the index, one for each form of tag. py39-none is that of xformers, py312-none that of torchrec.
_FORMS = (
    "a-1-cp39-cp39-manylinux_2_28_x86_64.whl",
    "a-1-cp39-abi3-manylinux_2_28_x86_64.whl",
    "a-1-py3-none-manylinux_2_28_x86_64.whl",
    "a-1-py39-none-manylinux_2_28_x86_64.whl",
    "a-1-py312-none-any.whl",
    "a-1-py2.py3-none-any.whl",
)


@pytest.mark.parametrize("file", _FORMS)
def test_tag_of_a_wheel_is_for_the_pythons_that_pip_takes_it_for(file: str) -> None:
    wheel = wheels.GpuWheel("a", "1", (), None, (), (), source="wheel", wheels=tags([file]))
    for minor in range(8, 16):
        interpreter, platforms = (3, minor), ["manylinux_2_28_x86_64"]
        taken = {
            *cpython_tags(interpreter, [f"cp3{minor}"], platforms),
            *compatible_tags(interpreter, f"cp3{minor}", platforms),
        }
        answer = wheel.is_known_for("x86_64", f"3.{minor}")
        assert answer is bool(taken & parse_wheel_filename(file)[3]), f"3.{minor}"
