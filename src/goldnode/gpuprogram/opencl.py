"""Intel: Level Zero, and OpenCL, which has a C interface to compute with.

OpenCL covers GPUs, and processors if an image includes such a runtime.
"""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Any, Dict, List, Tuple

from . import device, image, kernels, libraries, native
from .device import GpuDevice, GpuDriver
from .results import Failed, Json, NotRun, passed

# ze_result_t (ze_api.h): ZE_RESULT_ERROR_UNINITIALIZED, the loader finds no driver with a device
UNINITIALIZED = 0x78000001
NO_PLATFORM = -1001  # CL_PLATFORM_NOT_FOUND_KHR (cl_ext.h)
DEVICE_NOT_FOUND = -1
CPU, GPU = 2, 4  # CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU
INTEL = 0x8086
# Parts of library names in ICD files of runtimes for processors.
PROCESSOR_ICDS = ("intelocl", "pocl")


def level_zero(devices: bool) -> Json:
    """Check zeInit: 0 with a device, 0x78000001 without one."""
    library = native.need(libraries.sonames("level_zero"), "the Level Zero loader")
    wanted = 0 if devices else UNINITIALIZED
    status = native.integer(library, "zeInit", 0) & 0xFFFFFFFF
    if status != wanted:
        raise Failed("zeInit", expected=hex(wanted), got=hex(status))
    if not devices:
        return passed({"zeInit": hex(wanted)}, {"zeInit": hex(status)})
    drivers = ctypes.c_uint32()
    first = ctypes.c_void_p()
    count = ctypes.c_uint32()
    # As in OpenCL, a call without a buffer returns the count only.
    native.integer(library, "zeDriverGet", ctypes.byref(drivers), None)
    one = ctypes.c_uint32(1)
    if not drivers.value or native.integer(
        library, "zeDriverGet", ctypes.byref(one), ctypes.byref(first)
    ):
        raise Failed("zeDriverGet finds no driver", expected="1 or more", got=drivers.value)
    native.integer(library, "zeDeviceGet", first, ctypes.byref(count), None)
    if not count.value:
        raise Failed("zeDeviceGet finds no device", expected="1 or more", got=0)
    return passed(
        {"zeInit": "0x0", "devices": "1 or more"}, {"zeInit": "0x0", "devices": count.value}
    )


def processor_runtime(root: str = "/") -> bool:
    """Return whether an OpenCL runtime for processors is registered."""
    named = [
        image.read(path) or "" for path in glob.glob(image.under(root, "/etc/OpenCL/vendors/*.icd"))
    ]
    named.append(os.environ.get("OCL_ICD_FILENAMES", ""))
    return any(word in text for text in named for word in PROCESSOR_ICDS)


def platforms(devices: bool, processor: bool) -> Json:
    """Check clGetPlatformIDs: -1001 without anything to compute on, otherwise at least one platform."""
    library = native.need(libraries.sonames("opencl"), "the OpenCL loader")
    count = ctypes.c_uint32()
    status = native.integer(library, "clGetPlatformIDs", 0, None, ctypes.byref(count))
    if devices or processor:
        if status or not count.value:
            raise Failed(
                "clGetPlatformIDs finds no platform",
                expected={"clGetPlatformIDs": 0},
                got={"clGetPlatformIDs": status},
            )
        return passed(
            {"clGetPlatformIDs": 0, "platforms": "1 or more"},
            {"clGetPlatformIDs": 0, "platforms": count.value},
        )
    if status != NO_PLATFORM:
        raise Failed("clGetPlatformIDs", expected=NO_PLATFORM, got=status)
    return passed({"clGetPlatformIDs": NO_PLATFORM}, {"clGetPlatformIDs": status})


class OpenCl(GpuDriver):
    """OpenCL devices of one type, with a context and an in-order queue for each one in use."""

    kind = "opencl"

    def __init__(self, wanted: int, vendor: int) -> None:
        self.library = native.need(libraries.sonames("opencl"), "the OpenCL loader")
        self.devices: List[ctypes.c_void_p] = []
        self.names: Dict[str, str] = {}
        self.queues: Dict[
            int, Tuple[ctypes.c_void_p, ctypes.c_void_p, Dict[str, ctypes.c_void_p]]
        ] = {}
        self.current = -1
        for name in (
            "clCreateContext",
            "clCreateCommandQueue",
            "clCreateProgramWithSource",
            "clCreateKernel",
            "clCreateBuffer",
        ):
            # ctypes assumes int, which truncates 64-bit handles.
            native.symbol(self.library, name).restype = ctypes.c_void_p
        count = ctypes.c_uint32()
        status = native.integer(self.library, "clGetPlatformIDs", 0, None, ctypes.byref(count))
        if status == NO_PLATFORM or not count.value:
            return
        platforms = (ctypes.c_void_p * count.value)()
        self.call("clGetPlatformIDs", count, platforms, None)
        for platform in platforms:
            here = ctypes.c_uint32()
            status = native.integer(
                self.library,
                "clGetDeviceIDs",
                ctypes.c_void_p(platform),
                ctypes.c_uint64(wanted),
                0,
                None,
                ctypes.byref(here),
            )
            if status == DEVICE_NOT_FOUND or not here.value:
                continue
            ids = (ctypes.c_void_p * here.value)()
            self.call(
                "clGetDeviceIDs",
                ctypes.c_void_p(platform),
                ctypes.c_uint64(wanted),
                here,
                ids,
                None,
            )
            for one in ids:
                handle = ctypes.c_void_p(one)
                # 0x1001: CL_DEVICE_VENDOR_ID
                if not vendor or self._number(handle, 0x1001, ctypes.c_uint32) == vendor:
                    self.devices.append(handle)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of OpenCL. Raises Failed with its status."""
        status = native.integer(self.library, function, *arguments)
        if status:
            raise Failed(f"{function} fails", expected=0, got=status)

    def made(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that creates an object and returns its status through its last pointer."""
        status = ctypes.c_int32()
        handle = native.symbol(self.library, function)(*arguments, ctypes.byref(status))
        if status.value:
            raise Failed(f"{function} fails", expected=0, got=status.value)
        return ctypes.c_void_p(handle)

    def _number(self, handle: ctypes.c_void_p, what: int, kind: Any) -> int:
        value = kind()
        self.call(
            "clGetDeviceInfo",
            handle,
            what,
            ctypes.c_size_t(ctypes.sizeof(value)),
            ctypes.byref(value),
            None,
        )
        return int(value.value)

    def gpus(self) -> List[GpuDevice]:
        gpus = []
        for index, handle in enumerate(self.devices):
            name = ctypes.create_string_buffer(256)
            # 0x102B: CL_DEVICE_NAME
            self.call("clGetDeviceInfo", handle, 0x102B, ctypes.c_size_t(256), name, None)
            size = self._number(handle, 0x101F, ctypes.c_uint64)  # CL_DEVICE_GLOBAL_MEM_SIZE
            units = self._number(handle, 0x1002, ctypes.c_uint32)  # CL_DEVICE_MAX_COMPUTE_UNITS
            gpus.append(
                GpuDevice(
                    index,
                    name=name.value.decode("utf-8", "replace").strip(),
                    memory=size,
                    address="",
                    capability=(),
                    units=units,
                )
            )
        return gpus

    def versions(self) -> Json:
        version = ctypes.create_string_buffer(256)
        self.call(
            "clGetDeviceInfo", self.devices[0], 0x102D, ctypes.c_size_t(256), version, None
        )  # CL_DRIVER_VERSION
        return {"driver": version.value.decode("utf-8", "replace")}

    def use(self, index: int) -> None:
        if index not in self.queues:
            handles = (ctypes.c_void_p * 1)(self.devices[index])
            context = self.made("clCreateContext", None, 1, handles, None, None)
            queue = self.made(
                "clCreateCommandQueue", context, self.devices[index], ctypes.c_uint64(0)
            )
            self.queues[index] = (context, queue, {})
            # One allocation may not be larger than CL_DEVICE_MAX_MEM_ALLOC_SIZE.
            self.largest = min(
                GpuDriver.largest, self._number(self.devices[index], 0x1010, ctypes.c_uint64)
            )
        self.current = index

    def free(self) -> int:
        """Return half of the device's memory: OpenCL does not report free memory."""
        return self._number(self.devices[self.current], 0x101F, ctypes.c_uint64) // 2

    def alloc(self, size: int) -> Any:
        context = self.queues[self.current][0]
        return self.made(
            "clCreateBuffer", context, ctypes.c_uint64(1), ctypes.c_size_t(size), None
        ).value  # CL_MEM_READ_WRITE

    def release(self, memory: Any) -> None:
        self.library.clReleaseMemObject(ctypes.c_void_p(memory))

    def put(self, memory: Any, data: bytes) -> None:
        queue = self.queues[self.current][1]
        size = ctypes.c_size_t(len(data))
        self.call(
            "clEnqueueWriteBuffer",
            queue,
            ctypes.c_void_p(memory),
            1,
            ctypes.c_size_t(0),
            size,
            data,
            0,
            None,
            None,
        )

    def get(self, memory: Any, size: int) -> bytes:
        queue = self.queues[self.current][1]
        buffer = ctypes.create_string_buffer(size)
        self.call(
            "clEnqueueReadBuffer",
            queue,
            ctypes.c_void_p(memory),
            1,
            ctypes.c_size_t(0),
            ctypes.c_size_t(size),
            buffer,
            0,
            None,
            None,
        )
        return buffer.raw

    def sync(self) -> None:
        self.call("clFinish", self.queues[self.current][1])

    def launch(self, kernel: str, *arguments: Tuple[str, Any]) -> None:
        context, queue, known = self.queues[self.current]
        if kernel not in known:
            source = ctypes.c_char_p((kernels.OPENCL + kernels.BODY).encode())
            program = self.made("clCreateProgramWithSource", context, 1, ctypes.byref(source), None)
            self.call("clBuildProgram", program, 0, None, None, None, None)
            for name in kernels.NAMES:
                known[name] = self.made("clCreateKernel", program, name.encode())
        for place, (kind, value) in enumerate(arguments):
            argument = {"memory": ctypes.c_void_p, "u64": ctypes.c_uint64, "u32": ctypes.c_uint32}[
                kind
            ](value)
            self.call(
                "clSetKernelArg",
                known[kernel],
                place,
                ctypes.c_size_t(ctypes.sizeof(argument)),
                ctypes.byref(argument),
            )
        threads = ctypes.c_size_t(1 << 14)
        self.call(
            "clEnqueueNDRangeKernel",
            queue,
            known[kernel],
            1,
            None,
            ctypes.byref(threads),
            None,
            0,
            None,
            None,
        )

    def kernels(self) -> str:
        return "compiled by the OpenCL runtime"


def open_driver(processor: bool = False, version: str = "") -> OpenCl:
    """Open Intel's GPUs, or processors of any vendor."""
    del version  # that of the loader, which does not affect the choice of devices
    return OpenCl(CPU, 0) if processor else OpenCl(GPU, INTEL)


def on_processor(root: str = "/") -> Json:
    """Compute on an OpenCL runtime for processors: a product, the network, and a few MiB of memory.

    It needs no GPU, so its results are real on every machine.
    """
    if not processor_runtime(root):
        raise NotRun("no OpenCL runtime for processors is registered")
    product = device.gemm("opencl", size=128, seconds=0.1, processor=True)
    network = device.inference("opencl", processor=True)
    device.memory("opencl", most=16 << 20, processor=True)
    return passed(network["expected"], network["got"], product["figures"])
