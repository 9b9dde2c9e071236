"""Compilers of a devel image: each says its version and compiles a few lines, which needs its headers, its assembler and its linker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import Dict, List, NamedTuple

from .libraries import numbers
from .report import Failed, Json, passed


class Program(NamedTuple):
    """How a compiler is asked for its version, the name and text of a source, and how that becomes a file (whose name follows)."""

    version: List[str]
    pattern: str
    source: str
    text: str
    build: List[str]


_C = '#include <stdio.h>\nint main(void) { return puts("goldnode") < 0; }\n'
_CUDA = "#include <cuda_runtime.h>\n__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nint main() { return 0; }\n"
_HIP = "#include <hip/hip_runtime.h>\n__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nint main() { return 0; }\n"
PROGRAMS: Dict[str, Program] = {
    "gcc": Program(["-dumpfullversion"], r"([\d.]+)", "a.c", _C, ["-o"]),
    "nvcc": Program(["--version"], r"V([\d.]+)", "a.cu", _CUDA, ["-c", "-o"]),
    "hipcc": Program(["--version"], r"HIP version: (\d+\.\d+)", "a.hip", _HIP, ["--offload-arch=gfx90a", "-c", "-o"]),
}  # fmt: skip
PLACES = ("/usr/local/cuda/bin", "/opt/rocm/bin")


def compiles(program: str, version: str) -> Json:
    """Compare the version as far as both go, and compile."""
    known = PROGRAMS[program]
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    path = shutil.which(program, path=search)
    if path is None:
        raise Failed(f"{program} is not there", expected="present", got="absent")
    said = _run([path, *known.version])
    match = re.search(known.pattern, said)
    told = match[1] if match else ""
    count = min(len(numbers(version)), len(numbers(told)))
    if not told or numbers(told)[:count] != numbers(version)[:count]:
        raise Failed(f"{program} is another version than the image states", expected=version, got=told or said.strip()[:120])
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, known.source), os.path.join(folder, "made")
        with open(source, "w", encoding="utf-8") as opened:
            opened.write(known.text)
        _run([path, *known.build, made, source], folder)
        if not os.path.getsize(made):
            raise Failed(f"{program} makes an empty file")
    return passed({"version": version}, {"version": told, "compiles": known.source})


def _run(command: List[str], folder: str = "/") -> str:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        last = (said.strip().splitlines() or ["it said nothing"])[-1][:200]
        raise Failed(f"{os.path.basename(command[0])} fails: {last}", expected=0, got=done.returncode)
    return said
