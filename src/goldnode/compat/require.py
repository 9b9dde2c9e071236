"""NVIDIA_DISABLE_REQUIRE: an image that sets it starts on any driver, whatever its NVIDIA_REQUIRE_* say."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "NVIDIA_DISABLE_REQUIRE"


def disabled(environment: Mapping[str, str]) -> bool:
    """Return whether the container toolkit ignores the conditions of an image with this environment."""
    return environment.get(VARIABLE, "").lower() in ("true", "1", "t")
