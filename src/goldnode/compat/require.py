"""Conditions of an image's environment on driver and GPU, as NVIDIA's container toolkit reads them.

Every variable NVIDIA_REQUIRE_* has a condition, except those for Jetson, and all of them must hold. NVIDIA_DISABLE_REQUIRE turns
all of them off (nvidia-container-toolkit, internal/config/image, GetRequirements).
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "NVIDIA_DISABLE_REQUIRE"
_PREFIX, _JETSON = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"


def disabled(environment: Mapping[str, str]) -> bool:
    """Return whether the container toolkit ignores the conditions of an image with this environment."""
    return environment.get(VARIABLE, "").lower() in ("true", "1", "t")


def conditions(environment: Mapping[str, str]) -> str | None:
    """Return the conditions of an environment, one a line, all of which must hold; None without one."""
    if disabled(environment):
        return None
    stated = [
        value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIX) and not name.startswith(_JETSON) and value.strip()
    ]
    return "\n".join(stated) or None
