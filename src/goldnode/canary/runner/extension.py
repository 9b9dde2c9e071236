"""A custom extension, compiled for the architectures of the class and run: CUDA C with NVRTC and nvcc, C with the system's compiler."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

from goldnode.gpuprogram import libraries, native
from goldnode.gpuprogram.cuda import SOURCE as CUDA_SOURCE

from .gpu import Devices
from .records import Fact, JobResult, Metric, failed, metric, not_run, passed

COUNT = 1 << 20
C_SOURCE = """\
void goldnode_compiled(float *x, int n) { for (int i = 0; i < n; i++) x[i] *= 2.0f; }
"""


def cuda(architectures: Sequence[str] = (), samples: int = 5) -> JobResult:
    """Compile a kernel for each architecture (`90`, `100`) and for the devices, and run it on each device."""
    devices = Devices()
    library = native.need(libraries.sonames("nvrtc"), "NVRTC")
    own = {gpu.number: "".join(str(part) for part in gpu.capability) for gpu in devices.gpus}
    # A class may list architectures that no device here has: these are compiled, and not run.
    wanted = list(dict.fromkeys([*architectures, *own.values()]))
    facts: Dict[str, Fact] = {"architectures": ", ".join(wanted)}
    metrics: List[Metric] = []
    cubins: Dict[str, bytes] = {}
    for architecture in wanted:
        times = []
        for _ in range(samples):
            begun = time.perf_counter()
            cubins[architecture] = compiled(library, architecture)
            times.append((time.perf_counter() - begun) * 1e3)
        metrics.append(metric(f"nvrtc_sm_{architecture}", "ms", times[:1], cold=True))
        metrics.append(metric(f"nvrtc_sm_{architecture}", "ms", times[1:]))
    for gpu in devices.each():
        _run(devices, gpu.number, cubins[own[gpu.number]], "NVRTC")
    facts["nvcc"] = _nvcc(devices, wanted, own)
    return passed(metrics, facts)


def compiled(library: Any, architecture: str) -> bytes:
    """Return the device code of the kernel for one architecture, without the driver's compiler."""
    program = ctypes.c_void_p()
    _nvrtc(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        CUDA_SOURCE.encode(),
        b"goldnode.cu",
        0,
        None,
        None,
    )
    try:
        # sm_ gives device code. compute_ would give PTX, which the driver compiles.
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{architecture}".encode())
        status = native.integer(library, "nvrtcCompileProgram", program, 1, options)
        if status:
            size = ctypes.c_size_t()
            _nvrtc(library, "nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            _nvrtc(library, "nvrtcGetProgramLog", program, log)
            text = " ".join(log.value.decode("utf-8", "replace").split())[:300]
            raise failed(
                f"NVRTC does not compile for sm_{architecture}: {text or f'nvrtcResult {status}'}"
            )
        size = ctypes.c_size_t()
        _nvrtc(library, "nvrtcGetCUBINSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        _nvrtc(library, "nvrtcGetCUBIN", program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc(library: Any, function: str, *arguments: Any) -> None:
    status = native.integer(library, function, *arguments)
    if status:
        raise failed(f"{function} returns nvrtcResult {status}")


def _run(devices: Devices, number: int, code: bytes, by: str) -> None:
    devices.cuda.use(number)
    numbers = (ctypes.c_float * COUNT)(*(float(value % 1024) for value in range(COUNT)))
    with devices.memory(4 * COUNT) as (place,):
        devices.cuda.put(place, bytes(numbers))
        function = devices.function("goldnode_compiled", code)
        devices.launcher(function, COUNT // 256, ctypes.c_uint64(place), ctypes.c_int(COUNT))()
        got = devices.cuda.get(place, 4 * COUNT)
    if got != bytes((ctypes.c_float * COUNT)(*(2.0 * (value % 1024) for value in range(COUNT)))):
        raise failed(f"GPU {number}: the kernel compiled by {by} computes wrong numbers")


def _nvcc(devices: Devices, architectures: Sequence[str], own: Dict[int, str]) -> str:
    """Compile with nvcc, if it is here, and run the result. Return its release, or why it was not used."""
    program = shutil.which("nvcc") or next(
        (path for path in ("/usr/local/cuda/bin/nvcc",) if os.access(path, os.X_OK)), None
    )
    if program is None:
        return "not here"
    with tempfile.TemporaryDirectory(prefix="goldnode-canary-") as folder:
        source = os.path.join(folder, "goldnode.cu")
        with open(source, "w", encoding="ascii") as opened:
            opened.write(CUDA_SOURCE)
        for architecture in architectures:
            target = os.path.join(folder, f"{architecture}.cubin")
            done = subprocess.run(
                [program, "-cubin", f"-arch=sm_{architecture}", "-o", target, source],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
                raise failed(f"nvcc does not compile for sm_{architecture}: {last}")
        for number, architecture in own.items():
            with open(os.path.join(folder, f"{architecture}.cubin"), "rb") as read:
                _run(devices, number, read.read(), "nvcc")
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout
    match = re.search(r"\bV(\d+(?:\.\d+)+)", version)
    return match[1] if match else "its version cannot be read"


def processor(samples: int = 5, compiler: Optional[str] = None) -> JobResult:
    """Compile a C function with the system's compiler, load it, and run it."""
    program = compiler or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if program is None:
        raise not_run("there is no C compiler here (cc, gcc, clang)")
    with tempfile.TemporaryDirectory(prefix="goldnode-canary-") as folder:
        source = os.path.join(folder, "goldnode.c")
        with open(source, "w", encoding="ascii") as opened:
            opened.write(C_SOURCE)
        times = []
        for run in range(samples):
            target = os.path.join(folder, f"goldnode{run}.so")
            begun = time.perf_counter()
            done = subprocess.run(
                [program, "-O2", "-shared", "-fPIC", "-nostdlib", "-o", target, source],
                capture_output=True,
                text=True,
                check=False,
            )
            times.append((time.perf_counter() - begun) * 1e3)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
                raise failed(f"{program} does not compile: {last}")
        numbers = (ctypes.c_float * 1024)(*range(1024))
        ctypes.CDLL(target).goldnode_compiled(numbers, 1024)
    if list(numbers) != [2.0 * value for value in range(1024)]:
        raise failed("the compiled function computes wrong numbers")
    metrics = [
        metric("compile", "ms", times[:1], cold=True),
        metric("compile", "ms", times[1:]),
    ]
    return passed(metrics, {"compiler": program})
