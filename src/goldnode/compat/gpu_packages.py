"""Names and versions of Python packages: whether a package uses a GPU, and its CUDA family."""

from __future__ import annotations

import re
from functools import cache

from goldnode.facts import wheels

# The family at the end of a name: nvidia-nccl-cu13, cupy-cuda13x, nvidia-dali-cuda130,
# jax-cuda12-plugin.
_IN_NAME = re.compile(r"-cu(?:da)?(1\d)(?:\d|x)?(?=$|-)|-cuda-?(1\d)(?:\d|x)?(?=$|-)")
# The family in a local version: 2.6.0+cu126, 2.7.4+cu12torch2.5, 2.1.2+pt26cu124.
_IN_LOCAL = re.compile(r"\+.*?cu(1\d)\d?(?!\d)")
# NVIDIA's packages that are named after no family; their version is that of CUDA.
_BY_VERSION = re.compile(
    r"cuda-(?:toolkit|bindings|python|core)|nvidia-cuda-[a-z-]+|nvidia-nvjitlink|nvidia-nvtx"
)

# Words of names of packages for GPUs of AMD and Intel, and packages of Intel's runtime.
_VENDOR_WORDS = frozenset(("rocm", "xpu", "sycl"))
_INTEL = ("dpcpp-cpp-rt", "dpctl", "dpnp", "intel-cmplr-lib-ur", "intel-opencl-rt", "intel-pti")

# They read a GPU's state through the driver's library and carry no code for GPUs.
_READS_ONLY = ("pynvml", "nvidia-ml-py", "gpustat", "nvidia-sphinx-theme")


@cache
def states_gpu(name: str) -> bool:
    """Return whether the name of a package (canonical) states that it uses a GPU: a CUDA family, NVIDIA's, ROCm, SYCL."""
    if name in _READS_ONLY:
        return False
    return (
        name.startswith(("nvidia-", "cuda-", "cupy-"))
        or _IN_NAME.search(name) is not None
        or not _VENDOR_WORDS.isdisjoint(name.split("-"))
        or name in _INTEL
    )


@cache
def uses_gpu(name: str) -> bool:
    """Return whether a package uses a GPU: its name states it, or one of its wheels or lock files was read.

    A recorded wheel without code for GPUs and without libraries of CUDA or ROCm uses none by itself.
    """
    if name in _READS_ONLY:
        return False
    return states_gpu(name) or name in wheels.packages() or wheels.uses_gpu(name)


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
