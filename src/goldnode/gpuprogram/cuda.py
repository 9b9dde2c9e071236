"""NVIDIA: driver API (cuda.h), runtime and cuBLAS through ctypes, and their results without a device."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, List, Tuple

from . import libraries, native, ptx
from .device import GpuDevice, GpuDriver, simulated
from .results import Failed, Json, passed

LIBCUDA = native.LIBCUDA
# cudaError_t and CUresult (driver_types.h, cuda.h): the same numbers for these two.
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100

# -- without a device


def driver_library(devices: bool, foreign: bool) -> Json:
    """Check that libcuda is present or absent as expected, and the result of cuInit.

    `foreign`: a libcuda without a device belongs to the image. That is a failure: it would hide the
    host's driver.
    """
    if native.absent(LIBCUDA):
        if devices:
            raise Failed(
                f"{LIBCUDA} is not here although there are device files: the container toolkit did not "
                "bring it",
                "present",
                "absent",
            )
        return passed("absent", "absent", why=f"{LIBCUDA} comes from the host")
    if foreign and not devices:
        raise Failed(
            f"the image has a {LIBCUDA} of its own on the loader's path", "absent", "present"
        )
    status = native.integer(native.load(LIBCUDA), "cuInit", 0)
    wanted = 0 if devices else NO_DEVICE
    if status != wanted:
        raise Failed("cuInit", expected=wanted, got=status)
    return passed({"cuInit": wanted}, {"cuInit": status})


def runtime_code(version: str, devices: bool) -> Json:
    """Check cudaGetDeviceCount: 0 with a device, 35 without a driver, 100 with a driver and no device."""
    library = native.need(libraries.sonames("cudart", version), "the CUDA runtime")
    wanted = 0
    if not devices:
        wanted = INSUFFICIENT_DRIVER if native.absent(LIBCUDA) else NO_DEVICE
    count = ctypes.c_int(-1)
    status = native.integer(library, "cudaGetDeviceCount", ctypes.byref(count))
    if status != wanted:
        raise Failed("cudaGetDeviceCount", expected=wanted, got=status)
    if devices and count.value < 1:
        raise Failed("cudaGetDeviceCount finds no device", expected="1 or more", got=count.value)
    return passed({"cudaGetDeviceCount": wanted}, {"cudaGetDeviceCount": status})


SOURCE = (
    'extern "C" __global__ void goldnode_compiled(float *x, int n) { '
    "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2.0f; }"
)


def compiler(version: str) -> Json:
    """Compile a kernel to PTX with NVRTC. This needs no device, but its built-ins library next to it."""
    library = native.need(libraries.sonames("nvrtc", version), "NVRTC")
    text = compiled(library, SOURCE)
    if b".entry goldnode_compiled" not in text:
        raise Failed(
            "NVRTC's output does not have the kernel",
            expected=".entry goldnode_compiled",
            got=text[:80].decode("ascii", "replace"),
        )
    return passed("PTX with the kernel", "PTX with the kernel")


def compiled(library: ctypes.CDLL, source: str) -> bytes:
    """Return the PTX of a CUDA source, for NVRTC's default target."""
    program = ctypes.c_void_p()
    _nvrtc(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        source.encode(),
        b"goldnode.cu",
        0,
        None,
        None,
    )
    try:
        status = native.integer(library, "nvrtcCompileProgram", program, 0, None)
        if status:
            size = ctypes.c_size_t()
            _nvrtc(library, "nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            _nvrtc(library, "nvrtcGetProgramLog", program, log)
            raise Failed(
                f"NVRTC does not compile: {log.value.decode('utf-8', 'replace').strip()[:300]}",
                expected=0,
                got=status,
            )
        size = ctypes.c_size_t()
        _nvrtc(library, "nvrtcGetPTXSize", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        _nvrtc(library, "nvrtcGetPTX", program, text)
        return text.value
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    status = native.integer(library, function, *arguments)
    if status:
        raise Failed(f"{function} fails", expected=0, got=status)


# -- with one


class Cuda(GpuDriver):
    """The driver API, with the primary context of each device, which cuBLAS and NCCL use too."""

    kind = "cuda"

    def __init__(self, version: str = "") -> None:
        self.library = native.load(LIBCUDA)
        self.call("cuInit", 0)
        self.contexts: Dict[int, ctypes.c_void_p] = {}
        self.functions: Dict[Tuple[int, str], ctypes.c_void_p] = {}
        self.handles: Dict[int, ctypes.c_void_p] = {}
        self.current = -1
        self.units: Dict[int, int] = {}
        self.cublas = native.first(libraries.sonames("cublas", version))
        self.blas = ("fp16", "tf32", "fp32") if self.cublas is not None else ()

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver. Raises Failed with the driver's name of the error."""
        status = native.integer(self.library, function, *arguments)
        if status:
            name = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(name))
            raise Failed(
                f"{function}: {(name.value or b'unknown error').decode('ascii', 'replace')}",
                expected=0,
                got=status,
            )

    def number(self, function: str, *arguments: Any) -> int:
        """Call a function that returns one int through a pointer."""
        value = ctypes.c_int(-1)
        self.call(function, ctypes.byref(value), *arguments)
        return int(value.value)

    def gpus(self) -> List[GpuDevice]:
        return [self._gpu(index) for index in range(self.number("cuDeviceGetCount"))]

    def _gpu(self, index: int) -> GpuDevice:
        device = self.number("cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        size = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        address = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", address, 32, device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75, _MINOR 76, _MULTIPROCESSOR_COUNT 16
        major, minor, units = (
            self.number("cuDeviceGetAttribute", what, device) for what in (75, 76, 16)
        )
        self.units[index] = units
        return GpuDevice(
            index,
            name=name.value.decode("utf-8", "replace"),
            memory=size.value,
            address=address.value.decode().lower(),
            capability=(major, minor),
            units=units,
        )

    def versions(self) -> Json:
        value = self.number("cuDriverGetVersion")
        return {
            "driver_runs_cuda": ".".join(str(part) for part in libraries.split(value, (1000, 10)))
        }

    def use(self, index: int) -> None:
        if index not in self.contexts:
            context = ctypes.c_void_p()
            self.call(
                "cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number("cuDeviceGet", index)
            )
            self.contexts[index] = context
        self.call("cuCtxSetCurrent", self.contexts[index])
        self.current = index

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def release(self, memory: Any) -> None:
        # Ignore the status: an error here would hide the one that ended the test.
        self.library.cuMemFree_v2(ctypes.c_uint64(memory))

    def put(self, memory: Any, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory), data, ctypes.c_size_t(len(data)))

    def get(self, memory: Any, size: int) -> bytes:
        self.sync()
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(memory), ctypes.c_size_t(size))
        return buffer.raw

    def sync(self) -> None:
        self.call("cuCtxSynchronize")

    def function(self, kernel: str) -> ctypes.c_void_p:
        """Return a kernel for the current device. The first request compiles all kernels."""
        if (self.current, kernel) not in self.functions:
            module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), ptx.SOURCE.encode())
            for name in ("goldnode_fill", "goldnode_verify", "goldnode_relu", "goldnode_gemm"):
                entry = ctypes.c_void_p()
                self.call("cuModuleGetFunction", ctypes.byref(entry), module, name.encode())
                self.functions[self.current, name] = entry
        return self.functions[self.current, kernel]

    def launch(self, kernel: str, *arguments: Tuple[str, Any]) -> None:
        values = [
            (ctypes.c_uint32 if kind == "u32" else ctypes.c_uint64)(value)
            for kind, value in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        # Enough blocks of 256 threads to occupy every multiprocessor; the kernels loop over the
        # rest.
        blocks = 16 * max(1, self.units.get(self.current, 64))
        self.call(
            "cuLaunchKernel",
            self.function(kernel),
            blocks,
            1,
            1,
            256,
            1,
            1,
            0,
            None,
            pointers,
            None,
        )

    def kernels(self) -> str:
        return "compiled from PTX by the driver"

    def precisions(self, gpu: GpuDevice) -> Tuple[str, ...]:
        if not self.blas:
            return ()
        # TF32 needs compute capability 8.0; older units compute in FP32.
        return ("fp16", "tf32") if gpu.capability >= (8, 0) else ("fp16", "fp32")

    def gemm(self, kind: str, n: int, left: Any, right: Any, out: Any) -> None:
        if self.current not in self.handles:
            handle = ctypes.c_void_p()
            self._cublas("cublasCreate_v2", ctypes.byref(handle))
            self.handles[self.current] = handle
        # cudaDataType: CUDA_R_32F 0, CUDA_R_16F 2; cublasComputeType_t: CUBLAS_COMPUTE_32F 68,
        # _32F_FAST_TF32 77
        element, compute = {"fp16": (2, 68), "fp32": (0, 68), "tf32": (0, 77)}[kind]
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._cublas(
            "cublasGemmEx", self.handles[self.current], 0, 0, n, n, n, ctypes.byref(one),
            ctypes.c_void_p(left), element, n, ctypes.c_void_p(right), element, n, ctypes.byref(zero),
            ctypes.c_void_p(out), 0, n, compute, -1,
        )  # fmt: skip

    def _cublas(self, function: str, *arguments: Any) -> None:
        assert self.cublas is not None  # noqa: S101 - `precisions` names none without it
        status = native.integer(self.cublas, function, *arguments)
        if status:
            raise Failed(f"{function} fails", expected=0, got=status)


def open_driver(version: str = "") -> Cuda:
    """Open the driver. `version` is that of cuBLAS, if the image states one."""
    return Cuda(version)


def compiled_inference(version: str) -> Json:
    """Run a kernel that NVRTC compiled on each device.

    The code for NVRTC's default target must fit the driver.
    """
    library = native.need(libraries.sonames("nvrtc", version), "NVRTC")
    text = compiled(library, SOURCE)
    driver = Cuda()
    gpus = driver.gpus()
    simulated(gpus)
    for gpu in gpus:
        driver.use(gpu.number)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(module), text)
        driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"goldnode_compiled")
        memory = driver.alloc(4 * 1024)
        data = (ctypes.c_float * 1024)(*range(1024))
        driver.put(memory, bytes(data))
        address, count = ctypes.c_uint64(memory), ctypes.c_int(1024)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(count))
        driver.call("cuLaunchKernel", function, 4, 1, 1, 256, 1, 1, 0, None, pointers, None)
        got = (ctypes.c_float * 1024).from_buffer_copy(driver.get(memory, 4 * 1024))
        driver.release(memory)
        if list(got) != [2.0 * value for value in range(1024)]:
            raise Failed(
                f"GPU {gpu.number}: the compiled kernel computes wrong",
                expected="doubled",
                got=list(got[:4]),
            )
    return passed("doubled", "doubled")


def chosen() -> bool:
    """Return whether the environment selects some of the devices."""
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
