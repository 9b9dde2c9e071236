"""The caches that have keys: their variables, and the parts that decide whether cached code may be reused.

The own key of each tool covers the program that was compiled. It leaves out parts of the node, which are in ours.
"""

from __future__ import annotations

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple


EXACT, PORTABLE = "exact", "portable"
STRENGTHS = (EXACT, PORTABLE)


class Cache(NamedTuple):
    """One cache.

    `variable` sets its directory, by `source`. `needs` are names of libraries: without an image one of them must be
    known. `libraries` are the names that a portable key covers. `own_source`: the tool's own key does not cover the
    compiled program, so that ours must. `stubs`: it holds modules that link Python and the C library. `processor`: it
    holds code for the processor of the host. `portable` is the document by which it may be shared between nodes of one
    model, None without such a document.
    """

    name: str
    title: str
    variable: Optional[str]
    source: str
    needs: Tuple[str, ...] = ()
    libraries: Tuple[str, ...] = ()
    own_source: bool = False
    stubs: bool = False
    processor: bool = False
    environment: Tuple[str, ...] = ()
    portable: Optional[str] = None


TORCH = ("torch",)
TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm")
XLA = ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
ENGINE = ("tensorrt", "tensorrt-cu12", "tensorrt-cu13", "libnvinfer10", "libnvinfer11")

_ALL = (
    Cache(
        "cuda",
        "CUDA driver's compiler of PTX",
        "CUDA_CACHE_PATH",
        "NVIDIA, CUDA Programming Guide, environment variables, JIT compilation",
        portable="NVIDIA, cuVS, JIT compilation: valid until the driver is upgraded, and can be shared between machines",
    ),
    Cache(
        "triton",
        "Triton kernels",
        "TRITON_CACHE_DIR",
        "triton-lang/triton, python/triton/knobs.py, cache_knobs (commit 00c7dbd)",
        needs=TRITON,
        libraries=(*TRITON, *TORCH, "ptxas"),
        stubs=True,
    ),
    Cache(
        "inductor",
        "torch.compile (Inductor)",
        "TORCHINDUCTOR_CACHE_DIR",
        "PyTorch tutorials, compile time caching configuration",
        needs=TORCH,
        libraries=(*TORCH, *TRITON, "ptxas"),
        stubs=True,
        processor=True,
        portable="PyTorch tutorials, compile time caching: artifacts need the same PyTorch, Triton and GPU",
    ),
    Cache(
        "xla",
        "JAX's persistent compilation cache",
        "JAX_COMPILATION_CACHE_DIR",
        "JAX documentation, persistent compilation cache",
        needs=("jaxlib",),
        libraries=(
            "jax",
            *XLA,
            "nvidia-cudnn-cu12",
            "nvidia-cudnn-cu13",
            "nvidia-cublas-cu12",
            "nvidia-cublas",
        ),
        processor=True,
        environment=("XLA_FLAGS",),
    ),
    Cache(
        "tensorrt",
        "TensorRT plans",
        None,
        "NVIDIA, TensorRT 11.4.1 support matrix, engine portability",
        needs=ENGINE,
        libraries=ENGINE,
        own_source=True,
    ),
)
CACHES: Dict[str, Cache] = {cache.name: cache for cache in _ALL}

# Parts of the device that a portable key leaves out: they change how fast compiled code runs, and which variant
# was found fastest, but not whether it is right.
TUNING = ("clocks", "policy", "power_limit_w")
