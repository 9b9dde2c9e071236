"""Reader of wheels: what a wheel requires, which libraries of CUDA or ROCm it names, and its code for GPUs."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from goldnode.inspect.devicecode import capabilities
from goldnode.inspect.packages import wheel_headers

_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
# Names of libraries in the string table of an ELF file: those that it needs, and those that it opens itself.
_NEEDS = re.compile(
    rb"\0(lib(?:cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|cudnn|nccl|nvrtc|nvJitLink|cuda|amdhip64"
    rb"|rocblas|ze_loader|torch_cuda|torch_hip)\.so(?:\.\d+)?)(?=\0)"
)


@dataclass(frozen=True)
class WheelCode:
    """Content of a wheel. `code` and `ptx` are compute capabilities ("9.0"), `needs` sonames.

    `code` is None for a wheel with sources for GPUs, which are compiled on the node at the first use.
    """

    requires: tuple[str, ...]  # canonical names, extras included
    code: tuple[str, ...] | None
    ptx: tuple[str, ...]
    needs: tuple[str, ...]


def read_wheel(archive: zipfile.ZipFile) -> WheelCode:
    """Read a wheel. Raises BadZipFile for one that is damaged."""
    code, ptx, needs = set[str](), set[str](), set[str]()
    requires: tuple[str, ...] = ()
    sources = any(item.filename.endswith((".cu", ".cuh", ".hip")) for item in archive.infolist())
    for item in archive.infolist():
        if _LIBRARY.search(item.filename):
            content = archive.read(item)
            own, later = capabilities(content)
            code |= own
            ptx |= later
            needs |= {name.decode() for name in _NEEDS.findall(content)}
        elif re.fullmatch(r"[^/]+\.dist-info/METADATA", item.filename):
            requires = _requires(archive.read(item).decode("utf-8", "replace"))
    compiled_later = sources and not code | ptx
    return WheelCode(
        requires, None if compiled_later else _ordered(code), _ordered(ptx), tuple(sorted(needs))
    )


def _requires(text: str) -> tuple[str, ...]:
    names = set()
    for line in wheel_headers(text).get("requires-dist", ()):
        try:
            names.add(canonicalize_name(Requirement(line).name))
        except InvalidRequirement:
            continue  # old metadata; pip skips it too
    return tuple(sorted(names))


def _ordered(numbers: set[str]) -> tuple[str, ...]:
    return tuple(sorted(numbers, key=lambda item: [int(part) for part in item.split(".")]))
