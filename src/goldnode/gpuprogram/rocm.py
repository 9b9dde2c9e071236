"""AMD: HIP, its run-time compiler and rocBLAS through ctypes, and their results without a device."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, Tuple

from . import image, kernels, libraries, native
from .device import GpuDevice, GpuDriver
from .results import Failed, Json, passed

NO_DEVICE = 100  # hipErrorNoDevice (hip_runtime_api.h)
# hsa_status_t (hsa.h): result of hsa_init if /dev/kfd cannot be opened. Seen with Debian 12's
# 5.2.3.
HSA_OUT_OF_RESOURCES = 0x1008
HIPRTC = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5")

# -- without a device


def hsa(devices: bool) -> Json:
    """Check hsa_init: 0 with a device, HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008) without /dev/kfd."""
    library = native.need(libraries.sonames("hsa"), "the HSA runtime")
    wanted = 0 if devices else HSA_OUT_OF_RESOURCES
    status = native.integer(library, "hsa_init")
    if status != wanted:
        raise Failed("hsa_init", expected=hex(wanted), got=hex(status & 0xFFFFFFFF))
    return passed({"hsa_init": hex(wanted)}, {"hsa_init": hex(status)})


def runtime_code(version: str, devices: bool) -> Json:
    """Check hipGetDeviceCount: 0 with a device, 100 (hipErrorNoDevice) without one."""
    library = native.need(libraries.sonames("hip", version), "the HIP runtime")
    wanted = 0 if devices else NO_DEVICE
    count = ctypes.c_int(-1)
    status = native.integer(library, "hipGetDeviceCount", ctypes.byref(count))
    if status != wanted:
        raise Failed("hipGetDeviceCount", expected=wanted, got=status)
    if devices and count.value < 1:
        raise Failed("hipGetDeviceCount finds no device", expected="1 or more", got=count.value)
    return passed({"hipGetDeviceCount": wanted}, {"hipGetDeviceCount": status})


def rocminfo(devices: bool, root: str = "/") -> Json:
    """Check rocminfo: it exits with 0 with a device, and with 1 without one.

    In the latter case it also reports that the kernel module is missing, or names /dev/kfd if the
    host has the module.
    """
    program = shutil.which("rocminfo") or shutil.which("rocminfo", path="/opt/rocm/bin")
    if program is None:
        return {"state": "not_run", "why": "rocminfo is not here", "required": False}
    done = subprocess.run(
        [program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    # rocminfo colours its messages even without a terminal.
    output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode("utf-8", "replace"))
    loaded = os.path.isdir(image.under(root, "/sys/module/amdgpu"))
    code, sentence = 0, "HSA Agents"
    if not devices:
        code, sentence = 1, "/dev/kfd" if loaded else "ROCk module is NOT loaded"
    if done.returncode != code or sentence not in output:
        raise Failed(
            "rocminfo",
            expected={"exit": code, "says": sentence},
            got={"exit": done.returncode, "says": output.strip()[:200]},
        )
    return passed({"exit": code, "says": sentence}, {"exit": done.returncode, "says": sentence})


def device_group(root: str = "/") -> Json:
    """Check that this user may use /dev/kfd.

    The numeric group of the file differs from host to host, so no image can provide it.
    """
    path = image.under(root, "/dev/kfd")
    group = os.stat(path).st_gid
    if not os.access(path, os.R_OK | os.W_OK):
        raise Failed(
            f"/dev/kfd is of group {group}: start the container with --group-add {group}",
            expected=group,
            got=sorted(os.getgroups()),
        )
    return passed("read and write", "read and write")


# -- with one


class Hip(GpuDriver):
    """HIP's runtime API."""

    kind = "rocm"

    def __init__(self, version: str = "") -> None:
        self.library = native.need(libraries.sonames("hip", version), "the HIP runtime")
        self.current = -1
        self.functions: Dict[Tuple[int, str], ctypes.c_void_p] = {}
        self.handles: Dict[int, ctypes.c_void_p] = {}
        self.rocblas = native.first(libraries.sonames("rocblas"))
        self.blas = ("fp16", "fp32") if self.rocblas is not None else ()

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of HIP. Raises Failed with HIP's name of the error."""
        status = native.integer(self.library, function, *arguments)
        if status:
            told = native.symbol(self.library, "hipGetErrorName")
            told.restype = ctypes.c_char_p
            raise Failed(
                f"{function}: {(told(status) or b'unknown error').decode('ascii', 'replace')}",
                expected=0,
                got=status,
            )

    def gpus(self) -> List[GpuDevice]:
        count = ctypes.c_int()
        self.call("hipGetDeviceCount", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> GpuDevice:
        name, address, size = (
            ctypes.create_string_buffer(256),
            ctypes.create_string_buffer(32),
            ctypes.c_size_t(),
        )
        self.call("hipDeviceGetName", name, 256, index)
        self.call("hipDeviceTotalMem", ctypes.byref(size), index)
        self.call("hipDeviceGetPCIBusId", address, 32, index)
        return GpuDevice(
            index,
            name=name.value.decode("utf-8", "replace"),
            memory=size.value,
            address=address.value.decode().lower(),
            capability=(),
            units=0,
        )

    def versions(self) -> Json:
        value = ctypes.c_int()
        self.call("hipRuntimeGetVersion", ctypes.byref(value))
        return {
            "hip": ".".join(
                str(part) for part in libraries.split(value.value, (10000000, 100000, 1))
            )
        }

    def use(self, index: int) -> None:
        self.call("hipSetDevice", index)
        self.current = index

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        address = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        return int(address.value or 0)

    def release(self, memory: Any) -> None:
        self.library.hipFree(ctypes.c_void_p(memory))

    def put(self, memory: Any, data: bytes) -> None:
        self.call(
            "hipMemcpy", ctypes.c_void_p(memory), data, ctypes.c_size_t(len(data)), 1
        )  # hipMemcpyHostToDevice

    def get(self, memory: Any, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call(
            "hipMemcpy", buffer, ctypes.c_void_p(memory), ctypes.c_size_t(size), 2
        )  # hipMemcpyDeviceToHost
        return buffer.raw

    def sync(self) -> None:
        self.call("hipDeviceSynchronize")

    def launch(self, kernel: str, *arguments: Tuple[str, Any]) -> None:
        if (self.current, kernel) not in self.functions:
            module, code = ctypes.c_void_p(), self._compile()
            self.call("hipModuleLoadData", ctypes.byref(module), code)
            for name in kernels.NAMES:
                entry = ctypes.c_void_p()
                self.call("hipModuleGetFunction", ctypes.byref(entry), module, name.encode())
                self.functions[self.current, name] = entry
        values = [
            (ctypes.c_uint32 if kind == "u32" else ctypes.c_uint64)(value)
            for kind, value in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.call(
            "hipModuleLaunchKernel",
            self.functions[self.current, kernel],
            2048,
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

    def _compile(self) -> bytes:
        """Compile the kernels for the current device.

        Up to ROCm 5 the runtime itself contains the compiler's functions.
        """
        compiler = self.library
        if not hasattr(compiler, "hiprtcCreateProgram"):
            compiler = native.need(HIPRTC, "HIP's run-time compiler")
        program = ctypes.c_void_p()

        def call(function: str, *arguments: Any) -> None:
            status = native.integer(compiler, function, *arguments)
            if status:
                raise Failed(f"{function} fails", expected=0, got=status)

        call(
            "hiprtcCreateProgram",
            ctypes.byref(program),
            (kernels.HIP + kernels.BODY).encode(),
            b"goldnode.hip",
            0,
            None,
            None,
        )
        call("hiprtcCompileProgram", program, 0, None)
        size = ctypes.c_size_t()
        call("hiprtcGetCodeSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        call("hiprtcGetCode", program, code)
        return code.raw

    def kernels(self) -> str:
        return "compiled by hiprtc"

    def gemm(self, kind: str, n: int, left: Any, right: Any, out: Any) -> None:
        if self.current not in self.handles:
            handle = ctypes.c_void_p()
            self._rocblas("rocblas_create_handle", ctypes.byref(handle))
            self.handles[self.current] = handle
        # rocblas_datatype: f16_r 150, f32_r 151; rocblas_operation_none 111; standard algorithm 0
        element = {"fp16": 150, "fp32": 151}[kind]
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        a, b, c = (ctypes.c_void_p(memory) for memory in (left, right, out))
        self._rocblas(
            "rocblas_gemm_ex", self.handles[self.current], 111, 111, n, n, n,
            ctypes.byref(one), a, element, n, b, element, n,
            ctypes.byref(zero), c, 151, n, c, 151, n, 151, 0, 0, 0,
        )  # fmt: skip

    def _rocblas(self, function: str, *arguments: Any) -> None:
        assert self.rocblas is not None  # noqa: S101 - `precisions` names none without it
        status = native.integer(self.rocblas, function, *arguments)
        if status:
            raise Failed(f"{function} fails", expected=0, got=status)


def open_driver(version: str = "") -> Hip:
    """Open the driver. `version` is that of HIP, if the image states one."""
    return Hip(version)
