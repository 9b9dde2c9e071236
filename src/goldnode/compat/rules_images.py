"""Rules about what the notes of an image say of GPUs, beyond the versions inside it."""

from __future__ import annotations

from collections.abc import Iterator

from goldnode.compat.model import CompatFinding, CompatHost, CompatRule, Workload, about
from goldnode.facts.host import numbers, origins


def image_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the GPUs against the least compute capability that the image's notes support."""
    if host is None or workload is None or workload.minimum_capability is None:
        return
    least = workload.minimum_capability
    for gpu in host.gpus:
        own = gpu.compute_capability
        if own is not None and numbers(own) < numbers(least):
            yield about(workload).block(
                "image-gpu",
                f"its notes support compute capability {least} and later, and {gpu.sku} has {own}",
                origins("frameworks.yml", workload.capability_source or "ngc_triton"),
                remedy="use an older release of the image whose notes support the GPU, or other GPUs",
            )


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "image-gpu",
        "The GPU is one that the image's notes support",
        "Notes of a release of an image state the least compute capability that it supports. That can be more than its CUDA "
        "needs: CUDA 12.9 still has code for Volta, and Triton 25.04 refuses a V100 as not supported "
        "(triton-inference-server/server issue 8279). An image without such a note is not judged by this rule. "
        "Facts: frameworks.yml (image_contents, compute_capability).",
        image_gpu,
        {"frameworks.yml": ("ngc_triton", "nim_llm", "nim_vlm")},
    ),
)
