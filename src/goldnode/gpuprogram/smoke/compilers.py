"""Compilers of a devel image: check the version of each, and build a few lines with it.

The build needs the compiler's headers, assembler and linker. The outputs of gcc and nvcc are run.
The CUDA program needs no driver: without one its runtime returns an error code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import Dict, List, NamedTuple

from goldnode.gpuprogram.libraries import numbers
from goldnode.gpuprogram.results import Failed, Json, passed


class Compiler(NamedTuple):
    """How to test a compiler.

    `version` and `pattern` read its version. `source` and `text` are name and content of a source
    file; `build` are the arguments that make the file `made` from it. `prints` is the pattern of
    its output, empty if it is not a program. `stub` is a library for linking only, and `linked` are
    the arguments for a program that needs it.
    """

    version: List[str]
    pattern: str
    source: str
    text: str
    build: List[str]
    prints: str = ""
    stub: str = ""
    linked: List[str] = []  # noqa: RUF012 - never changed


_C = '#include <stdio.h>\nint main(void) { return puts("goldnode") < 0; }\n'
# Device code and a call to the runtime. With DRIVER, also a call to the driver: that program is
# linked with the stub, and not run, because it starts only on a host with a driver.
_CUDA = """#include <stdio.h>
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
int main() {
    int count = 0, code = (int)cudaGetDeviceCount(&count);
#ifdef DRIVER
    code = (int)cuInit(0);
#endif
    if (count > 9999) twice<<<1, 1>>>(0);
    return printf("code %d\\n", code) < 0;
}
"""
_HIP = (
    "#include <hip/hip_runtime.h>\n"
    "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n"
    "int main() { return 0; }\n"
)
COMPILERS: Dict[str, Compiler] = {
    "gcc": Compiler(["-dumpfullversion"], pattern=r"([\d.]+)", source="a.c", text=_C, build=["a.c", "-o", "made"], prints=r"goldnode"),
    "nvcc": Compiler(
        ["--version"], pattern=r"V([\d.]+)", source="a.cu", text=_CUDA, build=["a.cu", "-o", "made"], prints=r"code \d+",
        stub="libcuda.so", linked=["-DDRIVER", "a.cu", "-o", "driver", "-lcuda"],
    ),
    "hipcc": Compiler(
        ["--version"], r"HIP version: (\d+\.\d+)", "a.hip", _HIP,
        ["--offload-arch=gfx90a", "-c", "a.hip", "-o", "made"],
    ),
}  # fmt: skip
PLACES = ("/usr/local/cuda/bin", "/opt/rocm/bin")


def compiles(program: str, version: str) -> Json:
    """Compare the version as far as both are specified, compile, link, and run the result."""
    known = COMPILERS[program]
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    path = shutil.which(program, path=search)
    if path is None:
        raise Failed(f"{program} is not there", expected="present", got="absent")
    output = _run([path, *known.version])
    match = re.search(known.pattern, output)
    reported = match[1] if match else ""
    count = min(len(numbers(version)), len(numbers(reported)))
    if not reported or numbers(reported)[:count] != numbers(version)[:count]:
        raise Failed(
            f"{program} is another version than the image states",
            expected=version,
            got=reported or output.strip()[:120],
        )
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "made")
        with open(os.path.join(folder, known.source), "w", encoding="utf-8") as opened:
            opened.write(known.text)
        _run([path, *known.build], folder)
        if not os.path.getsize(made):
            raise Failed(f"{program} makes an empty file")
        got = {"version": reported, "compiles": known.source}
        if known.prints:
            got["runs"] = _prints(program, made, known.prints)
        if known.stub:
            there = any(
                os.path.exists(os.path.join(place, known.stub))
                for place in os.environ.get("LIBRARY_PATH", "").split(":")
                if place
            )
            if there:
                _run([path, *known.linked], folder)
            got["stub"] = (
                f"links with {known.stub}" if there else f"no {known.stub} in LIBRARY_PATH"
            )
    return passed({"version": version}, got)


def _prints(program: str, made: str, pattern: str) -> str:
    try:
        printed = _run([made]).strip()
    except PermissionError:
        return "not run: no program may be run in the temporary directory here"
    if not re.fullmatch(pattern, printed):
        raise Failed(
            f"the program that {program} makes prints something else",
            expected=pattern,
            got=printed[:120],
        )
    return printed


def _run(command: List[str], folder: str = "/") -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        last = (output.strip().splitlines() or ["it printed nothing"])[-1][:200]
        raise Failed(
            f"{os.path.basename(command[0])} fails: {last}", expected=0, got=done.returncode
        )
    return output
