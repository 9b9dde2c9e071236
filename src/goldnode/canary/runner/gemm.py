"""GEMM on CUDA devices: cuBLAS, and cuBLASLt for FP8. Every element of a product is compared, before and after the samples."""

from __future__ import annotations

import ctypes
import random
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from goldnode.gpuprogram import libraries, linear, native
from goldnode.gpuprogram.device import GpuDevice, fitting

from .gpu import Devices
from .records import NOT_RUN, Fact, JobEnded, JobResult, Metric, failed, metric, not_run, passed


class Precision(NamedTuple):
    """Numbers of library_types.h and cublas_api.h for one precision.

    `element` is the cudaDataType of the factors, `size` its bytes, `compute` the
    cublasComputeType_t, `result` the type of the product. `capability` is the least compute
    capability whose units have it. `mask` and `base` turn random bits into numbers between 0.5 and
    2.
    """

    element: int
    size: int
    compute: int
    result: str
    capability: Tuple[int, int]
    mask: int
    base: int


# CUDA_R_32F 0, _64F 1, _16F 2, _16BF 14, _8F_E4M3 28; CUBLAS_COMPUTE_32F 68, _64F 70,
# _32F_FAST_TF32 77.
PRECISIONS = {
    "fp16": Precision(
        2, size=2, compute=68, result="fp32", capability=(5, 3), mask=0x87FF, base=0x3800
    ),
    "bf16": Precision(
        14, size=2, compute=68, result="fp32", capability=(8, 0), mask=0x80FF, base=0x3F00
    ),
    "tf32": Precision(
        0, size=4, compute=77, result="fp32", capability=(8, 0), mask=0x80FFFFFF, base=0x3F000000
    ),
    "fp32": Precision(
        0, size=4, compute=68, result="fp32", capability=(0, 0), mask=0x80FFFFFF, base=0x3F000000
    ),
    "fp64": Precision(
        1,
        size=8,
        compute=70,
        result="fp64",
        capability=(0, 0),
        mask=0x801FFFFFFFFFFFFF,
        base=0x3FE0000000000000,
    ),
    "fp8": Precision(
        28, size=1, compute=68, result="fp32", capability=(8, 9), mask=0x8F, base=0x30
    ),
}
NOT_SUPPORTED = 15  # cublasStatus_t
RESULT_TYPES = {"fp32": 0, "fp64": 1}
# Upper byte of an FP16 integer between -3 and 3 -> the same number in FP8 (E4M3).
_E4M3 = {0x00: 0x00, 0x3C: 0x38, 0x40: 0x40, 0x42: 0x44}
_TO_E4M3 = bytes(_E4M3.get(byte & 0x7F, 0x7F) | (byte & 0x80) for byte in range(256))
Gemm = Callable[[int, int, int], None]


def gemm(
    precisions: Sequence[str] = ("fp16", "bf16", "tf32", "fp32", "fp8"),
    size: int = 8192,
    samples: int = 20,
    seconds: float = 0.05,
) -> JobResult:
    """Multiply square matrices on each device in each precision. Rates are in 10 ** 12 operations per second.

    The samples multiply random numbers: constant ones need less power, so that the clocks would be
    too high.
    """
    unknown = sorted(set(precisions) - set(PRECISIONS))
    if unknown:
        raise ValueError(f"no precision {unknown[0]}: use {', '.join(PRECISIONS)}")
    devices = Devices()
    metrics: List[Metric] = []
    facts: Dict[str, Fact] = {}
    for gpu in devices.each():
        for name in precisions:
            if gpu.capability < PRECISIONS[name].capability:
                facts[f"gpu{gpu.number}_{name}"] = "its units do not have this precision"
                continue
            work = _library(devices, name)
            if work is None:
                facts[f"gpu{gpu.number}_{name}"] = "the library is not here"
                continue
            facts["size"] = n = fitting(devices.cuda.free(), size)
            try:
                metrics += _measure(
                    devices, gpu=gpu, name=name, work=work(n), n=n, samples=samples, seconds=seconds
                )
            except JobEnded as ended:
                if ended.result["state"] != NOT_RUN:
                    ended.result["metrics"] = metrics  # what the other precisions showed
                    raise
                facts[f"gpu{gpu.number}_{name}"] = str(ended)
    if not metrics:
        raise not_run("cuBLAS is not here, or no precision fits: " + str(facts))
    return passed(metrics, {**facts, **devices.watch.facts()})


def _measure(
    devices: Devices, gpu: GpuDevice, name: str, work: Gemm, n: int, *, samples: int, seconds: float
) -> List[Metric]:
    kind = PRECISIONS[name]
    out_size = n * n * (8 if kind.result == "fp64" else 4)
    with devices.memory(n * n * kind.size, n * n * kind.size, out_size) as (left, right, out):

        def once() -> None:
            work(left, right, out)

        cold = _exact(devices, gpu=gpu, name=name, once=once, n=n, places=(left, right, out))
        noise = random_numbers(kind, n * n)
        devices.cuda.put(left, noise)
        devices.cuda.put(right, noise)
        rates = devices.rates(gpu, once, 2 * n**3 / 1e12, samples, seconds)
        conditions = devices.watch.take(gpu.address)
        _exact(devices, gpu=gpu, name=name, once=once, n=n, places=(left, right, out))  # hot
    metrics = [
        metric(f"gemm_{name}", "ms", [cold * 1e3], gpu.address, cold=True),
        metric(f"gemm_{name}", "TFLOP/s", rates, gpu.address),
    ]
    metrics[1]["conditions"] = conditions
    metrics[0]["name"] += "_first"
    return metrics


def _exact(
    devices: Devices,
    gpu: GpuDevice,
    name: str,
    once: Callable[[], None],
    n: int,
    *,
    places: Tuple[int, int, int],
) -> float:
    """Multiply matrices with a known product and compare every element. Return the seconds of the call."""
    kind = PRECISIONS[name]
    left, right, out = places
    for place, data in zip((left, right), factors(name, n)):
        devices.cuda.put(place, data)
    size = n * n * (8 if kind.result == "fp64" else 4)
    # NaN reveals elements that are never written.
    devices.cuda.call(
        "cuMemsetD8_v2", ctypes.c_uint64(out), ctypes.c_ubyte(0xFF), ctypes.c_size_t(size)
    )
    devices.cuda.sync()
    begun = time.perf_counter()
    once()
    devices.cuda.sync()
    took = time.perf_counter() - begun
    bad = linear.wrong(devices.cuda.get(out, size), n, n, n, kind.result)
    if bad:
        i, j, got, wanted = bad[0]
        raise failed(
            f"GPU {gpu.number}: the {name} product is wrong in row {i}, column {j}: {got} instead of {wanted}"
        )
    return took


def factors(name: str, n: int) -> Tuple[bytes, bytes]:
    """Return both factors of the known product in a precision, column-major. For FP8 the first one is transposed, as cuBLASLt needs it."""
    if name in ("fp16", "fp64"):
        return linear.matrix_a(n, n, name), linear.matrix_b(n, n, name)
    if name == "fp8":
        columns = [linear.column([linear.a(i, k) for k in range(7)], n, "fp16") for i in range(7)]
        return (
            b"".join(columns[i % 7] for i in range(n))[1::2].translate(_TO_E4M3),
            linear.matrix_b(n, n, "fp16")[1::2].translate(_TO_E4M3),
        )
    left, right = linear.matrix_a(n, n, "fp32"), linear.matrix_b(n, n, "fp32")
    return (upper(left), upper(right)) if name == "bf16" else (left, right)


def upper(data: bytes) -> bytes:
    """Return FP32 numbers as BF16: their upper halves, exact for small integers."""
    halves = bytearray(len(data) // 2)
    halves[0::2], halves[1::2] = data[2::4], data[3::4]
    return bytes(halves)


def random_numbers(kind: Precision, count: int) -> bytes:
    """Return `count` random numbers between 0.5 and 2 of both signs. They repeat after 4 MiB."""
    part = min(count * kind.size, 4 << 20)
    words = part // kind.size
    bits = random.Random(7).getrandbits(8 * part)  # noqa: S311 - numbers to multiply
    mask = int.from_bytes(kind.mask.to_bytes(kind.size, "little") * words, "little")
    base = int.from_bytes(kind.base.to_bytes(kind.size, "little") * words, "little")
    data = ((bits & mask) | base).to_bytes(part, "little")
    return (data * (count * kind.size // part + 1))[: count * kind.size]


# -- libraries


def _library(devices: Devices, name: str) -> Optional[Callable[[int], Gemm]]:
    """Return a function n -> (left, right, out) -> None that multiplies; None without the library."""
    if name == "fp8":
        library = native.first(libraries.sonames("cublaslt"))
        return None if library is None else lambda n: Fp8(devices, library, n)
    if devices.cuda.cublas is None:
        return None
    library, kind = devices.cuda.cublas, PRECISIONS[name]
    handle = ctypes.c_void_p()
    check(library, "cublasCreate_v2", ctypes.byref(handle))
    real: Any = ctypes.c_double if name == "fp64" else ctypes.c_float
    one, zero, result = real(1.0), real(0.0), RESULT_TYPES[kind.result]

    def multiply(n: int) -> Gemm:
        def run(left: int, right: int, out: int) -> None:
            check(
                library, "cublasGemmEx", handle, 0, 0, n, n, n, ctypes.byref(one), ctypes.c_void_p(left), kind.element, n,
                ctypes.c_void_p(right), kind.element, n, ctypes.byref(zero), ctypes.c_void_p(out), result, n, kind.compute, -1,
            )  # fmt: skip

        return run

    return multiply


def check(library: Any, function: str, *arguments: Any) -> None:
    """Call a function of cuBLAS. Raises *failed* with its status."""
    status = native.integer(library, function, *arguments)
    if status == NOT_SUPPORTED:
        raise not_run(f"{function}: this device or library does not support it")
    if status:
        raise failed(f"{function} returns cublasStatus_t {status}")


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t (cublasLt.h)."""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Fp8:
    """FP8 (E4M3) products with cuBLASLt: the first factor transposed, fast accumulation, FP32 result."""

    # cublasLt.h: attributes of a description, of a preference; CUBLAS_OP_T.
    TRANSPOSE_A, FAST_ACCUMULATION, MOST_WORKSPACE, TRANSPOSED = 3, 25, 1, 1
    WORKSPACE = 32 << 20

    def __init__(self, devices: Devices, library: Any, n: int) -> None:
        self.library = library
        self.handle, self.description = ctypes.c_void_p(), ctypes.c_void_p()
        self.layouts = [ctypes.c_void_p() for _ in range(3)]
        self.workspace = devices.cuda.alloc(self.WORKSPACE)
        self.one, self.zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        kind = PRECISIONS["fp8"]
        check(library, "cublasLtCreate", ctypes.byref(self.handle))
        check(
            library,
            "cublasLtMatmulDescCreate",
            ctypes.byref(self.description),
            kind.compute,
            RESULT_TYPES["fp32"],
        )
        self._set(self.TRANSPOSE_A, ctypes.c_int32(self.TRANSPOSED))
        self._set(self.FAST_ACCUMULATION, ctypes.c_int8(1))
        for layout, element in zip(
            self.layouts, (kind.element, kind.element, RESULT_TYPES["fp32"])
        ):
            size = ctypes.c_uint64(n)
            check(
                library,
                "cublasLtMatrixLayoutCreate",
                ctypes.byref(layout),
                element,
                size,
                size,
                ctypes.c_int64(n),
            )
        self.best = self._heuristic()

    def _set(self, attribute: int, value: Any) -> None:
        check(
            self.library,
            "cublasLtMatmulDescSetAttribute",
            self.description,
            attribute,
            ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
        )

    def _heuristic(self) -> _Heuristic:
        preference, most = ctypes.c_void_p(), ctypes.c_uint64(self.WORKSPACE)
        check(self.library, "cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        check(
            self.library,
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            self.MOST_WORKSPACE,
            ctypes.byref(most),
            ctypes.c_size_t(8),
        )
        heuristic, count = _Heuristic(), ctypes.c_int()
        left, right, out = self.layouts
        check(
            self.library, "cublasLtMatmulAlgoGetHeuristic", self.handle, self.description, left, right, out, out, preference, 1,
            ctypes.byref(heuristic), ctypes.byref(count),
        )  # fmt: skip
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        if not count.value:
            raise not_run("cuBLASLt has no FP8 algorithm for this device")
        return heuristic

    def __call__(self, left: int, right: int, out: int) -> None:
        """Compute out = left^T right."""
        a, b, c = self.layouts
        check(
            self.library, "cublasLtMatmul", self.handle, self.description, ctypes.byref(self.one), ctypes.c_void_p(left), a,
            ctypes.c_void_p(right), b, ctypes.byref(self.zero), ctypes.c_void_p(out), c, ctypes.c_void_p(out), c,
            ctypes.byref(self.best.algo), ctypes.c_void_p(self.workspace), ctypes.c_size_t(self.WORKSPACE), None,
        )  # fmt: skip
