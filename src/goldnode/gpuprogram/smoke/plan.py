"""The list of tests for a backend, from the image's description and device files.

No library is called for it.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

from goldnode.gpuprogram import cuda, image, libraries
from goldnode.gpuprogram import opencl as intel
from goldnode.gpuprogram.report import Json

from . import frameworks, programs

# Test -> its module.
GPU_TESTS = {
    "discovery": "device",
    "gemm": "device",
    "inference": "device",
    "collective": "nccl",
    "memory": "device",
}


class Test(NamedTuple):
    """A test: its tier and name, its function with arguments, and its time limit in seconds.

    `site`: it needs Python's installed packages.
    """

    tier: str
    name: str
    module: str
    function: str
    arguments: Json
    limit: float = 60.0
    site: bool = False


class Here(NamedTuple):
    """Input of the plan.

    `bare`: the caller states that this machine has no driver, so any libcuda belongs to the image. `floors`:
    rows of the facts {model, pci_ids, floor_tflops}. `size`, `seconds`, `share`, `most` and `expected` are
    options of the command line.
    """

    backend: str
    parts: Json
    devices: List[str]
    root: str = "/"
    bare: bool = False
    floors: Any = ()
    size: int = 0
    seconds: float = 1.0
    share: float = 0.0
    most: int = 0
    expected: int = 0


def plan(here: Here) -> List[Test]:
    """Return all tests of the backend, without the GPU tier if there is no device."""
    tests = [
        Test("cpu", f"load {part}", "libraries", "check", {"part": part, "version": version})
        for part, version in _libraries(here)
    ]
    tests += [
        Test(
            "cpu",
            name=f"compile with {part}",
            module="smoke.programs",
            function="compiles",
            arguments={"program": part, "version": said},
            limit=120.0,
        )
        for part, said in sorted(here.parts.items())
        if part in programs.PROGRAMS
    ]
    tests += {"cuda": _cuda, "rocm": _rocm, "oneapi": _oneapi, "cpu": _cpu}[here.backend](here)
    tests += _frameworks(here)
    if here.devices and here.backend != "cpu":
        tests += _gpu(here)
    return tests


def version(here: Here, name: str) -> str:
    """Return the version of a component that the image states; empty if it states none."""
    return next(
        (str(said) for part, said in here.parts.items() if libraries.component(part) == name), ""
    )


def _libraries(here: Here) -> List[Any]:
    return [(part, said) for part, said in sorted(here.parts.items()) if libraries.component(part)]


def _cuda(here: Here) -> List[Test]:
    present = bool(here.devices)
    tests = [
        Test(
            "cpu",
            name="driver",
            module="cuda",
            function="driver_library",
            arguments={"devices": present, "foreign": here.bare},
            limit=120.0,
        )
    ]
    tests.append(
        Test(
            "cpu",
            name="device count",
            module="cuda",
            function="runtime_code",
            arguments={"version": version(here, "cudart"), "devices": present},
            limit=120.0,
        )
    )
    tests.append(
        Test("cpu", "run-time compiler", "cuda", "compiler", {"version": version(here, "nvrtc")})
    )
    return tests


def _rocm(here: Here) -> List[Test]:
    present = bool(here.devices)
    tests = [
        Test(
            "cpu",
            name="hsa",
            module="rocm",
            function="hsa",
            arguments={"devices": present},
            limit=120.0,
        ),
        Test(
            "cpu",
            name="device count",
            module="rocm",
            function="runtime_code",
            arguments={"version": version(here, "hip"), "devices": present},
            limit=120.0,
        ),
        Test(
            "cpu",
            name="rocminfo",
            module="rocm",
            function="rocminfo",
            arguments={"devices": present, "root": here.root},
            limit=120.0,
        ),
    ]
    if present:
        tests.append(Test("cpu", "device group", "rocm", "device_group", {"root": here.root}))
    return tests


def _oneapi(here: Here) -> List[Test]:
    present, processor = bool(here.devices), intel.processor_runtime(here.root)
    return [
        Test(
            "cpu",
            name="level zero",
            module="opencl",
            function="level_zero",
            arguments={"devices": present},
            limit=120.0,
        ),
        Test(
            "cpu",
            name="opencl platforms",
            module="opencl",
            function="platforms",
            arguments={"devices": present, "processor": processor},
            limit=120.0,
        ),
        Test(
            "cpu",
            name="opencl on the processor",
            module="opencl",
            function="on_processor",
            arguments={"root": here.root},
            limit=180.0,
        ),
    ]


def _cpu(here: Here) -> List[Test]:
    return [
        Test("cpu", "gemm", "cpu", "gemm", {"size": here.size, "seconds": here.seconds}),
        Test("cpu", "inference", "cpu", "inference", {}),
        Test("cpu", "collective", "cpu", "collective", {}),
        Test(
            "cpu",
            name="memory",
            module="cpu",
            function="memory",
            arguments={"share": here.share},
            limit=600.0,
        ),
    ]


def _frameworks(here: Here) -> List[Test]:
    built = version(here, "cudart") if here.backend == "cuda" else ""
    tests = []
    for part, said in sorted(here.parts.items()):
        module = frameworks.framework(part)
        if module:
            arguments = {"module": module, "version": said, "device": False, "cuda": built}
            if not here.devices:
                tests.append(
                    Test(
                        "cpu",
                        name=module,
                        module="smoke.frameworks",
                        function="check",
                        arguments=arguments,
                        limit=300.0,
                        site=True,
                    )
                )
            else:
                tests.append(
                    Test(
                        "gpu",
                        name=module,
                        module="smoke.frameworks",
                        function="check",
                        arguments={**arguments, "device": True},
                        limit=600.0,
                        site=True,
                    )
                )
    return tests


def _gpu(here: Here) -> List[Test]:
    kind = {"cuda": "cuda", "rocm": "rocm", "oneapi": "opencl"}[here.backend]
    component = {"cuda": "cublas", "rocm": "hip"}.get(here.backend)
    common = {"kind": kind, "version": version(here, component) if component else ""}
    # With CUDA_VISIBLE_DEVICES the library reports fewer devices than there are device files.
    files = (
        0
        if here.backend != "cuda" or cuda.chosen()
        else sum(path.rpartition("nvidia")[2].isdigit() for path in here.devices)
    )
    # The time limits are generous: without persistence mode the first call initialises every GPU, which can
    # take most of a minute.
    more: Dict[str, Tuple[Json, float]] = {
        "discovery": ({"expected": here.expected, "files": files}, 120.0),
        "gemm": (
            {
                "floors": list(here.floors),
                "size": here.size,
                "seconds": here.seconds,
                "root": here.root,
            },
            300.0,
        ),
        "inference": ({}, 180.0),
        "collective": ({"count": 1 << 16} if here.most else {}, 300.0),
        "memory": ({"share": here.share or 0.9, "most": here.most}, 600.0),
    }
    tests = [
        Test(
            "gpu",
            name=name,
            module=GPU_TESTS[name],
            function=name,
            arguments={**common, **more[name][0]},
            limit=more[name][1],
        )
        for name in GPU_TESTS
    ]
    if here.backend == "cuda":
        tests.insert(
            3,
            Test(
                "gpu",
                name="run-time compiled",
                module="cuda",
                function="compiled_inference",
                arguments={"version": version(here, "nvrtc")},
                limit=180.0,
            ),
        )
    return tests


def backend_of(described: Json, root: str) -> str:
    """Return the backend: the image's, otherwise that of the devices here, otherwise cpu."""
    said = described.get("backend")
    if said in image.BACKENDS:
        return str(said)
    return next(
        (name for name in image.BACKENDS if name != "cpu" and image.devices(name, root)), "cpu"
    )


def reason(backend: str, devices: List[str]) -> str:
    """Return the reason why the GPU tier has no tests."""
    if backend == "cpu":
        return "the backend cpu has no GPU tier: its tests compute in the cpu tier"
    if devices:
        return ""
    names = {"cuda": "/dev/nvidia*", "rocm": "/dev/kfd", "oneapi": "/dev/dri/renderD* of Intel"}
    return f"no device here ({names[backend]})"
