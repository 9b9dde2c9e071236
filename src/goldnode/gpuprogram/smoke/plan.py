"""The list of tests for a backend, from the image's description and device files.

No library is called for it.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple

from goldnode.gpuprogram import cuda, image, libraries
from goldnode.gpuprogram import opencl as intel
from goldnode.gpuprogram.results import Json

from . import compilers, frameworks, programs


class Test(NamedTuple):
    """A test: its tier and name, its function with arguments, and its time limit in seconds.

    `call` is the function's name below goldnode.gpuprogram. `site`: it needs Python's installed
    packages.
    """

    tier: str
    name: str
    call: str
    arguments: Json
    limit: float = 60.0
    site: bool = False


def _cpu_test(name: str, call: str, limit: float = 60.0, **arguments: Any) -> Test:
    return Test("cpu", name, call, arguments, limit)


def _gpu_test(name: str, call: str, limit: float, **arguments: Any) -> Test:
    return Test("gpu", name, call, arguments, limit)


class Here(NamedTuple):
    """Input of the plan.

    `bare`: the caller states that this machine has no driver, so any libcuda belongs to the image.
    `floors`: rows of the facts {model, pci_ids, floor_tflops}. `team`: tests that the image's team
    declares. `size`, `seconds`, `share`, `most` and `expected` are options of the command line.
    """

    backend: str
    parts: Json
    devices: List[str]
    root: str = "/"
    bare: bool = False
    floors: Any = ()
    team: Any = ()
    size: int = 0
    seconds: float = 1.0
    share: float = 0.0
    most: int = 0
    expected: int = 0


def plan(here: Here) -> List[Test]:
    """Return all tests of the backend, without the GPU tier if there is no device."""
    parts = sorted(here.parts.items())
    tests = [
        _cpu_test(f"load {part}", "libraries.check", part=part, version=version)
        for part, version in parts
        if libraries.component(part)
    ]
    tests += [
        _cpu_test(
            f"compile with {part}", "smoke.compilers.compiles", 120.0, program=part, version=stated
        )
        for part, stated in parts
        if part in compilers.COMPILERS
    ]
    tests += {"cuda": _cuda, "rocm": _rocm, "oneapi": _oneapi, "cpu": _cpu}[here.backend](here)
    tests += _frameworks(here)
    present = bool(here.devices) and here.backend != "cpu"
    if present:
        tests += _gpu(here)
    tests += [
        Test(
            row["tier"],
            programs.PREFIX + row["name"],
            "smoke.programs.ends_well",
            {"words": row["run"], "workdir": row["workdir"]},
            float(row["seconds"]),
        )
        for row in here.team
        if row["tier"] == "cpu" or present
    ]
    return tests


def version(here: Here, name: str) -> str:
    """Return the version of a component that the image states; empty if it states none."""
    stated = (str(text) for part, text in here.parts.items() if libraries.component(part) == name)
    return next(stated, "")


def _cuda(here: Here) -> List[Test]:
    present = bool(here.devices)
    cudart = version(here, "cudart")
    return [
        _cpu_test("driver", "cuda.driver_library", 120.0, devices=present, foreign=here.bare),
        _cpu_test("device count", "cuda.runtime_code", 120.0, version=cudart, devices=present),
        _cpu_test("run-time compiler", "cuda.compiler", version=version(here, "nvrtc")),
    ]


def _rocm(here: Here) -> List[Test]:
    present = bool(here.devices)
    hip = version(here, "hip")
    tests = [
        _cpu_test("hsa", "rocm.hsa", 120.0, devices=present),
        _cpu_test("device count", "rocm.runtime_code", 120.0, version=hip, devices=present),
        _cpu_test("rocminfo", "rocm.rocminfo", 120.0, devices=present, root=here.root),
    ]
    if present:
        tests.append(_cpu_test("device group", "rocm.device_group", root=here.root))
    return tests


def _oneapi(here: Here) -> List[Test]:
    present, processor = bool(here.devices), intel.processor_runtime(here.root)
    return [
        _cpu_test("level zero", "opencl.level_zero", 120.0, devices=present),
        _cpu_test(
            "opencl platforms", "opencl.platforms", 120.0, devices=present, processor=processor
        ),
        _cpu_test("opencl on the processor", "opencl.on_processor", 180.0, root=here.root),
    ]


def _cpu(here: Here) -> List[Test]:
    return [
        _cpu_test("gemm", "cpu.gemm", size=here.size, seconds=here.seconds),
        _cpu_test("inference", "cpu.inference"),
        _cpu_test("collective", "cpu.collective"),
        _cpu_test("memory", "cpu.memory", 600.0, share=here.share),
    ]


def _frameworks(here: Here) -> List[Test]:
    built = version(here, "cudart") if here.backend == "cuda" else ""
    present = bool(here.devices)
    # With a device the framework computes on it: that takes longer, and counts for the GPU tier.
    tier, limit = ("gpu", 600.0) if present else ("cpu", 300.0)
    tests = []
    for part, stated in sorted(here.parts.items()):
        module = frameworks.framework(part)
        if module:
            arguments = {"module": module, "version": stated, "device": present, "cuda": built}
            tests.append(
                Test(tier, module, "smoke.frameworks.check", arguments, limit=limit, site=True)
            )
    return tests


def _gpu(here: Here) -> List[Test]:
    kind = {"cuda": "cuda", "rocm": "rocm", "oneapi": "opencl"}[here.backend]
    component = {"cuda": "cublas", "rocm": "hip"}.get(here.backend)
    common = {"kind": kind, "version": version(here, component) if component else ""}
    files = 0
    # With CUDA_VISIBLE_DEVICES the library reports fewer devices than there are device files.
    if here.backend == "cuda" and not cuda.chosen():
        files = sum(path.rpartition("nvidia")[2].isdigit() for path in here.devices)
    gemm = {
        "floors": list(here.floors),
        "size": here.size,
        "seconds": here.seconds,
        "root": here.root,
    }
    # --memory-mib limits the collective too.
    count = {"count": 1 << 16} if here.most else {}
    share = here.share or 0.9
    # The time limits are generous: without persistence mode the first call initialises every GPU,
    # which can take most of a minute.
    tests = [
        _gpu_test(
            "discovery", "device.discovery", 120.0, **common, expected=here.expected, files=files
        ),
        _gpu_test("gemm", "device.gemm", 300.0, **common, **gemm),
        _gpu_test("inference", "device.inference", 180.0, **common),
        _gpu_test("collective", "nccl.collective", 300.0, **common, **count),
        _gpu_test("memory", "device.memory", 600.0, **common, share=share, most=here.most),
    ]
    if here.backend == "cuda":
        nvrtc = version(here, "nvrtc")
        compiled = _gpu_test("run-time compiled", "cuda.compiled_inference", 180.0, version=nvrtc)
        tests.insert(3, compiled)
    return tests


def backend_of(described: Json, root: str) -> str:
    """Return the backend: the image's, otherwise that of the devices here, otherwise cpu."""
    stated = described.get("backend")
    if stated in image.BACKENDS:
        return str(stated)
    return next((name for name in image.BACKENDS if image.devices(name, root)), "cpu")


def reason(backend: str, devices: List[str]) -> str:
    """Return the reason why the GPU tier has no tests."""
    if backend == "cpu":
        return "the backend cpu has no GPU tier: its tests compute in the cpu tier"
    if devices:
        return ""
    names = {"cuda": "/dev/nvidia*", "rocm": "/dev/kfd", "oneapi": "/dev/dri/renderD* of Intel"}
    return f"no device here ({names[backend]})"
