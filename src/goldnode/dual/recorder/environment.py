"""The environment of a recording: machine, interpreter, framework, device, driver. It judges and parses nothing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from typing import Any, Dict, Optional

Json = Dict[str, Any]
# Variables that change what a framework computes, or where. No other variable is recorded.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "MIOPEN_FIND_MODE",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "ROCR_VISIBLE_DEVICES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "XLA_FLAGS",
)
_CLASS = "/etc/goldnode/class.json"
_LONGEST = 4000  # characters of a text from outside


def machine() -> Json:
    """Return the facts of this machine and interpreter."""
    return {
        "architecture": platform.machine(),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "os": _os(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": platform.python_version(),
        "boot_id": _line("/proc/sys/kernel/random/boot_id"),
        "drivers": {
            name: text
            # Files of the kernel modules: no driver is called, which could hang.
            for name, path in (
                ("nvidia", "/proc/driver/nvidia/version"),
                ("amdgpu", "/sys/module/amdgpu/version"),
            )
            if (text := _line(path)) is not None
        },
        "variables": {
            name: os.environ[name][:_LONGEST] for name in VARIABLES if name in os.environ
        },
        "node": _node(),
    }


def _line(path: str) -> Optional[str]:
    """Return the first line of a file; None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()[:_LONGEST] or None
    except OSError:
        return None


def _cpu() -> Optional[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def _os() -> Optional[str]:
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            rows = dict(line.rstrip("\n").partition("=")[::2] for line in file if "=" in line)
    except OSError:
        return None
    return rows.get("PRETTY_NAME", "").strip('"') or None


def _node() -> Optional[Json]:
    """Return class, digest and lock of the node's class document; None in a container, which does not see it."""
    try:
        with open(_CLASS, "rb") as file:
            data = file.read()
        document = json.loads(data)
        return {
            "class": str(document["class"]),
            "digest": document.get("digest"),
            "lock": (document.get("lock") or {}).get("digest"),
            "simulated": bool(document.get("simulated")),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def program_digest() -> str:
    """Return the digest of this program: of its archive, or of its modules in a checkout."""
    archive = sys.argv[0]
    if os.path.isfile(archive) and not archive.endswith(".py"):
        with open(archive, "rb") as file:
            return "sha256:" + hashlib.sha256(file.read()).hexdigest()
    own = os.path.dirname(os.path.abspath(__file__))
    whole = hashlib.sha256()
    for name in sorted(os.listdir(own)):
        if name.endswith(".py"):
            with open(os.path.join(own, name), "rb") as file:
                whole.update(name.encode() + b"\0" + file.read())
    return "sha256:" + whole.hexdigest()


def torch_framework(torch: Any) -> Json:
    """Return version and settings of PyTorch."""
    backends = torch.backends
    cudnn = backends.cudnn.version() if backends.cudnn.is_available() else None
    return {
        "name": "torch",
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": None if cudnn is None else str(cudnn),
        "build": torch.__config__.show()[:_LONGEST],
    }


def torch_device(torch: Any, name: str) -> Json:
    """Return the facts of the device of a recording."""
    kind = torch.device(name).type
    if kind != "cuda":  # PyTorch for ROCm calls its devices cuda too
        return {
            "kind": kind,
            "name": _cpu() if kind == "cpu" else None,
            "capability": None,
            "memory": None,
        }
    properties = torch.cuda.get_device_properties(torch.device(name))
    return {
        "kind": "rocm" if getattr(torch.version, "hip", None) else "cuda",
        "name": properties.name,
        "capability": getattr(properties, "gcnArchName", None)
        or f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
    }
