"""Report on the calling process, from data that the kernel and Python already have."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

SCHEMA = "goldnode.process/1"
# Prefixes of the library names to report, of everything a process maps: CUDA and its libraries, ROCm, Level
# Zero, fabrics.
LIBRARIES = {
    "cuda": (
        "libcuda",
        "libcudart",
        "libcublas",
        "libcufft",
        "libcurand",
        "libcusolver",
        "libcusparse",
        "libnvrtc",
        "libnvJitLink",
        "libnvidia-ml",
    ),
    "cudnn": ("libcudnn",),
    "nccl": ("libnccl",),
    "tensorrt": ("libnvinfer",),
    "rocm": (
        "libamdhip64",
        "libhsa-runtime64",
        "librocblas",
        "libhipblas",
        "libMIOpen",
        "librccl",
        "librocm_smi64",
        "libamd_smi",
    ),
    "level_zero": ("libze_loader", "libze_intel_gpu", "libsycl"),
    "fabric": ("libibverbs", "libfabric", "libmlx5", "libucp", "libnccl-net"),
}
# Wheels add eight digits of a hash to the names of the libraries that they bundle:
# libcudart-d0da41ae.so.11.0.
NAME = re.compile(r"^(lib[A-Za-z0-9_-]+?)(?:-[0-9a-f]{8})?\.so(?:\.([0-9][0-9A-Za-z.]*))?$")
FRAMEWORKS = (
    "torch",
    "tensorflow",
    "jax",
    "jaxlib",
    "cupy",
    "numba",
    "triton",
    "vllm",
    "onnxruntime",
    "transformers",
    "deepspeed",
    "tensorrt",
)
VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_DEVICE_ORDER",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "LD_LIBRARY_PATH",
)
DEVICES = re.compile(r"^(nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-modeset|kfd)$")
MOST = 64 << 20  # upper limit for one read, in bytes


def report(root: str = "/") -> dict[str, Any]:
    """Return the state of this process as JSON-serialisable data (schema goldnode.process/1).

    * `libraries`: [{family, name, version, path, deleted}], each file once. The version comes from the file
      name, or null. `deleted` means that the file has been replaced since it was loaded.
    * `frameworks`: name -> {version, build}, of modules that are already imported.
    * `devices`: the GPUs visible by environment and by /dev.
    * `node`: {available, status, exit_code, class, time, age_seconds, simulated}, the verdict of the node if
      its files are readable.
    * `mixed`: names of libraries that are loaded in several versions.

    Never raises for anything unreadable: the report contains the reason instead.

    :param root: directory that contains /proc, /dev and /run.
    """
    libraries, error = loaded(root)
    versions: dict[str, set[str]] = {}
    for row in libraries:
        versions.setdefault(row["name"], set()).add(row["version"] or row["path"])
    return {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "libraries": libraries,
        "libraries_error": error,
        "mixed": sorted(name for name, seen in versions.items() if len(seen) > 1),
        "frameworks": frameworks(),
        "devices": devices(root),
        "driver": driver(root),
        "node": node(root),
    }


def loaded(root: str = "/") -> tuple[list[dict[str, Any]], str | None]:
    """Return the GPU libraries in /proc/self/maps, and the error if that file is unreadable."""
    try:
        with open(  # noqa: PTH123 - /proc, read once
            f"{root.rstrip('/')}/proc/self/maps", encoding="utf-8", errors="replace"
        ) as opened:
            paths = dict.fromkeys(_path(line) for line in opened)
    except OSError as problem:
        return [], f"/proc/self/maps: {problem.strerror}"
    libraries = [row for row in (library(path) for path in paths if path) if row is not None]
    return sorted(libraries, key=lambda row: (row["family"], row["name"], row["path"])), None


def _path(line: str) -> str:
    """Return the path in a line of maps: the sixth field, which may contain spaces (proc_pid_maps(5))."""
    fields = line.rstrip("\n").split(maxsplit=5)
    return fields[5] if len(fields) == 6 and fields[5].startswith("/") else ""


def library(path: str) -> dict[str, Any] | None:
    """Return the identity of a mapped file by its name; None if it is not a GPU library."""
    deleted = path.endswith(" (deleted)")
    path = path.removesuffix(" (deleted)")
    match = NAME.match(path.rpartition("/")[2])
    if match is None:
        return None
    name, version = match[1], match[2]
    for family, known in LIBRARIES.items():
        if any(
            name == start or name.startswith((f"{start}_", f"{start}-", f"{start}Lt"))
            for start in known
        ):
            return {
                "family": family,
                "name": name,
                "version": version,
                "path": _shown(path),
                "deleted": deleted,
            }
    return None


def frameworks() -> dict[str, dict[str, str | None]]:
    """Return version and build target of the frameworks that are already imported. Imports nothing."""
    versions: dict[str, dict[str, str | None]] = {}
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None:
            # vars() does not trigger a module's lazy loading (PEP 562); getattr() would.
            version = vars(module).get("__version__")
            versions[name] = {
                "version": _shown(version) if version is not None else None,
                "build": _build(name),
            }
    return versions


def _build(name: str) -> str | None:
    """Return the CUDA or ROCm version that a framework was built for, if one of its imported modules records
    it.
    """
    if name == "torch":
        values = vars(sys.modules["torch.version"]) if "torch.version" in sys.modules else {}
        for kind, label in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
            if isinstance(values.get(kind), str):
                return f"{label} {_shown(values[kind])}"
    if name == "tensorflow":
        for place in (
            "tensorflow.python.platform.build_info",
            "tensorflow.python.platform._build_info",
        ):
            info = vars(sys.modules[place]).get("build_info") if place in sys.modules else None
            if isinstance(info, dict) and isinstance(info.get("cuda_version"), str):
                return f"cuda {_shown(info['cuda_version'])}"
    return None


def devices(root: str = "/") -> dict[str, Any]:
    """Return the environment variables and device files that decide which GPUs this process sees."""
    base = root.rstrip("/")
    return {
        "environment": {name: _shown(os.environ[name]) for name in VISIBLE if name in os.environ},
        "nodes": [
            *(f"/dev/{name}" for name in _names(f"{base}/dev") if DEVICES.match(name)),
            *(
                f"/dev/dri/{name}"
                for name in _names(f"{base}/dev/dri")
                if name.startswith("renderD")
            ),
        ],
    }


def driver(root: str = "/") -> str | None:
    """Return the version of the loaded NVIDIA kernel module, or None. Works in containers too."""
    match = re.search(
        r"^NVRM version:.*?\s([0-9]+\.[0-9.]+)\s",
        _text(f"{root.rstrip('/')}/proc/driver/nvidia/version"),
        re.MULTILINE,
    )
    return match[1] if match else None


def node(root: str = "/") -> dict[str, Any]:
    """Return the verdict of the node from the files of its last check.

    In a container this needs mounts of /run/goldnode and /etc/goldnode.
    """
    # Imported here, so that the rest of the report works without it. Needs only the standard library.
    from goldnode.node.verdict import (
        current,
    )

    try:
        verdict, fault = current.load(root)
    except (OSError, ValueError, RecursionError) as problem:
        verdict, fault = None, f"the verdict cannot be read: {type(problem).__name__}"
    if fault is not None:
        return {
            "available": False,
            "reason": _shown(fault),
            "status": "could_not_check",
            "exit_code": current.UNKNOWN,
        }
    age, words = None, _text(f"{root.rstrip('/')}/proc/uptime").split()
    if words:
        age = round(max(0.0, float(words[0]) - float(verdict["uptime"])), 1)
    return {
        "available": True,
        "reason": None,
        "status": _shown(verdict.get("status")),
        "exit_code": verdict["exit_code"],
        "class": None if verdict.get("class") is None else _shown(verdict["class"]),
        "class_digest": _shown(verdict.get("class_digest")),
        "time": _shown(verdict.get("time")),
        "age_seconds": age,
        "simulated": bool(verdict.get("simulated")),
    }


def text(state: dict[str, Any]) -> str:
    """Return a report as JSON text."""
    return json.dumps(state, indent=1) + "\n"


def _shown(value: object) -> str:
    """Return a value as one line without control characters. File names and environments are untrusted."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))[:1000]


def _names(folder: str) -> Iterable[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return ()


def _text(name: str) -> str:
    try:
        with open(name, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123 - /proc
            return opened.read(MOST)
    except OSError:
        return ""
