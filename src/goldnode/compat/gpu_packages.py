"""Names and versions of Python packages: whether a package uses a GPU, and its CUDA family."""

from __future__ import annotations

import re
from functools import cache

# The family at the end of a name: nvidia-nccl-cu13, cupy-cuda13x, nvidia-dali-cuda130,
# jax-cuda12-plugin.
_IN_NAME = re.compile(r"-cu(?:da)?(1\d)(?:\d|x)?(?=$|-)|-cuda-?(1\d)(?:\d|x)?(?=$|-)")
# The family in a local version: 2.6.0+cu126, 2.7.4+cu12torch2.5, 2.1.2+pt26cu124.
_IN_LOCAL = re.compile(r"\+.*?cu(1\d)\d?(?!\d)")
# NVIDIA's packages that are named after no family; their version is that of CUDA.
_BY_VERSION = re.compile(
    r"cuda-(?:toolkit|bindings|python|core)|nvidia-cuda-[a-z-]+|nvidia-nvjitlink|nvidia-nvtx"
)

# Packages that use a GPU, by their beginning or whole name. Nothing else in a requirements file
# points to a GPU.
_USES_GPU = re.compile(
    r"nvidia-[a-z0-9-]+|cuda-[a-z-]+|cupy(?:-[a-z0-9]+)?|numba-cuda|nvmath-python|cutlass|nvidia-cutlass(?:-dsl)?"
    r"|(?:py)?lib(?:cudf|cuml|cugraph|rmm|raft|cuvs|cuspatial|wholegraph|ucx|kvikio)[a-z0-9-]*|(?:cudf|cuml|cugraph|rmm|raft-dask|pylibraft)"
    r"|cuvs|cuxfilter|cucim|dask-cudf|dask-cuda|nx-cugraph|kvikio|ucxx|ucx-py|rapids-[a-z-]+|rapidsmpf"
    r"|torch-(?:scatter|sparse|cluster|spline-conv|tensorrt|geometric)|torchao|torchcodec|torchrec|fbgemm-gpu[a-z0-9-]*|torchvision|torchaudio"
    r"|pyg-lib|dgl|dgl-cu\d+|triton|xformers|flash-attn(?:-\d)?|flash-linear-attention|flashinfer-[a-z-]+|sageattention|bitsandbytes"
    r"|deepspeed|apex|transformer-engine[a-z0-9-]*|causal-conv1d|mamba-ssm|natten|pytorch3d|kaolin|nerfacc|gsplat|spconv-[a-z0-9]+"
    r"|autoawq[a-z-]*|auto-gptq|gptqmodel|exllamav[23]|llmcompressor|ctranslate2|faster-whisper|llama-cpp-python|vllm-flash-attn|vllm-[a-z-]+"
    r"|sglang|sgl-kernel|lmdeploy|tensorrt[a-z0-9_-]*|onnxruntime-(?:gpu|genai-cuda|training)|onnx-tensorrt|polygraphy|pycuda|pyopencl"
    r"|warp-lang|taichi|xgboost|lightgbm|catboost|thundersvm|faiss-gpu[a-z0-9-]*|mxnet-cu\d+|paddlepaddle-gpu|tensorflow-(?:gpu|rocm)"
    r"|jax-rocm\d*-(?:plugin|pjrt)|jax-cuda\d*-(?:plugin|pjrt)|megatron-core|nemo-toolkit|cuequivariance[a-z-]*|openmm-cuda[a-z0-9-]*"
    r"|cu(?:quantum|tensornet|statevec|densitymat|pynumeric)[a-z0-9-]*|legate[a-z-]*|pynvml|nvidia-ml-py|gpustat"
)
# They read a GPU's state through the driver's library and carry no code for GPUs.
_READS_ONLY = ("pynvml", "nvidia-ml-py", "gpustat")


# Of these, metadata is recorded, and each wheel has code for GPUs of its own.
OWN_CODE = re.compile(
    r"cupy-cuda\d+x?|flash-attn|xformers|bitsandbytes|deepspeed|onnxruntime-gpu|tensorrt(-cu\d+)?|apex|transformer-engine(-cu\d+)?"
    r"|faiss-gpu(-cu\d+)?|sglang|flashinfer-python"
)


@cache
def uses_gpu(name: str) -> bool:
    """Return whether package `name` (canonical) uses a GPU, as far as its name is known or states it."""
    if name in _READS_ONLY:
        return False
    return (
        _USES_GPU.fullmatch(name) is not None
        or _IN_NAME.search(name) is not None
        or "rocm" in name.split("-")
    )


def family(name: str, version: str | None) -> str | None:
    """Return the CUDA family ("13") that a package is built for, by its name or version; None if neither states it."""
    named = _IN_NAME.search(name)
    if named is not None:
        return named[1] or named[2]
    if version is None:
        return None
    local = _IN_LOCAL.search(version)
    if local is not None:
        return local[1]
    if _BY_VERSION.fullmatch(name):
        major = version.split(".")[0]
        return major if major.isdigit() and int(major) >= 11 else None
    return None
