"""Installed GPU libraries of a node with their versions, from file names and CUDA's version files. Loads
none.
"""

from __future__ import annotations

import json
import os
import re

from ..ground.json_lines import as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from ..ground.host import Host

# Libraries that programs link with: NVIDIA's driver and CUDA, AMD's ROCm, Intel's Level Zero.
KNOWN = (
    "libcuda",
        "libnvidia-ml"
    ,
        "libcudart"
    , "libcublas", "libcublasLt", "libcufft", "libcusolver", "libcusparse", "libcurand", "libnvrtc",
    "libnvJitLink",
        "libcudnn"
    ,
        "libnccl"
    , "libnvinfer", "libamdhip64", "librocblas", "libhipblas", "librccl", "libMIOpen", "librocm_smi64",
    "libamd_smi", "libhsa-runtime64", "libze_loader", "libze_intel_gpu",
)  # fmt: skip
NAME = re.compile(r"^(lib[A-Za-z0-9_-]+)\.so\.([0-9][0-9A-Za-z.]*)$")
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
TOOLKITS = (
    ("/usr/local", "cuda*", ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")),
    ("/opt", "rocm*", ("lib",)),
)
# Limit of the rows in an answer.
MOST = 200


def installed(host: Host) -> List[Dict[str, Any]]:
    """Return [{name, version, path}], sorted by name and path, one row per file; links are left out.

    `cuda` and `rocm` are complete toolkits. The version of a library is the one in its file name,
    however short: `12` for a file `.so.12`.
    """
    folders = list(FOLDERS)
    rows: List[Dict[str, Any]] = []
    for top, pattern, below in TOOLKITS:
        for place in host.glob(top, pattern):
            if host.is_link(place) or not host.is_dir(place):
                continue
            folders += [f"{place}/{name}" for name in below]
            version = _toolkit(host, place)
            if version:
                rows.append({"name": pattern.rstrip("*"), "version": version, "path": place})
    for folder in folders:
        try:
            names = os.listdir(host.located(folder))
        except OSError:
            continue
        for name in names:
            match = NAME.match(name)
            if match and match.group(1) in KNOWN and not host.is_link(f"{folder}/{name}"):
                rows.append(
                    {"name": match.group(1), "version": match.group(2), "path": f"{folder}/{name}"}
                )
    return sorted(rows, key=lambda row: (row["name"], row["path"]))[:MOST]


def _toolkit(host: Host, place: str) -> Any:
    """Return the version of a CUDA or ROCm toolkit from its own files."""
    try:
        versions = json.loads(host.text(f"{place}/version.json") or "null")
        return as_text(versions["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        line = (host.text(f"{place}/.info/version") or "").strip()
    except OSError:
        return None
    return line if re.match(r"^[0-9][0-9A-Za-z.+-]{0,40}$", line) else None
