"""Conditions of an image's environment on driver and GPU, as NVIDIA's container toolkit reads them.

Every variable NVIDIA_REQUIRE_* has a condition, except those for Jetson, and all of them must hold. An image with CUDA_VERSION
and without NVIDIA_REQUIRE_CUDA is a legacy image, which needs a driver of that CUDA minor. NVIDIA_DISABLE_REQUIRE turns all of
them off (nvidia-container-toolkit d34b3046, internal/config/image, IsLegacy, GetRequirements and HasDisableRequire).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLE = "NVIDIA_DISABLE_REQUIRE"
UNREADABLE = "CUDA_VERSION="  # begins the condition of a legacy image whose version cannot be read
_PREFIX, _JETSON = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"
# The words for true of strconv.ParseBool in Go. "yes" and "tRuE" are none, and count as false.
_TRUE = ("1", "t", "T", "TRUE", "true", "True")


def disabled(environment: Mapping[str, str]) -> bool:
    """Return whether the container toolkit ignores the conditions of an image with this environment."""
    return environment.get(VARIABLE, "") in _TRUE


def conditions(environment: Mapping[str, str]) -> str | None:
    """Return the conditions of an environment, one a line, all of which must hold; None without one."""
    if disabled(environment):
        return None
    stated = [
        value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIX) and not name.startswith(_JETSON) and value.strip()
    ]
    legacy = environment.get("CUDA_VERSION")
    if legacy and not environment.get(f"{_PREFIX}CUDA"):
        stated.append(_legacy(legacy))
    return "\n".join(stated) or None


def _legacy(version: str) -> str:
    """Return the condition of a legacy image. The toolkit does not start one whose version it cannot read."""
    parts = re.fullmatch(r"v?(\d+)(?:\.(\d+))?(?:\.\d+)?(?:[-+].*)?", version)
    if parts is None:
        return f"{UNREADABLE}{version}"
    return f"cuda>={parts[1]}.{parts[2] or 0}"
