"""A node class as the suite needs it: number of GPUs, digest of the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldnode.canary.suite import CanaryClass


def of_document(document: Mapping[str, Any]) -> CanaryClass:
    """Return the parts of a class document that the suite compares or repeats in its results."""
    gpu = document.get("gpu") or {}
    return CanaryClass(
        str(document["class"]),
        document.get("digest"),
        int(gpu.get("count") or 0),
        bool(document.get("simulated")),
    )
