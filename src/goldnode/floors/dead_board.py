"""The floor of the smoke test: a share of the data sheet's peak. Only a dead board is below it."""

from __future__ import annotations

from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.gpuprogram.smoke import pack


def dead_board_floors(platform: str) -> dict[str, float]:
    """Return the floors of the smoke test for a platform such as `NVIDIA H200 x 1`, by precision, in TFLOPS.

    Empty for a model without a peak in `facts/performance.yml`.
    """
    try:
        sku = facts.gpu(platform.rpartition(" x ")[0] or platform).sku
    except FactsError:
        return {}
    return next((dict(row["floor_tflops"]) for row in pack.floors() if row["model"] == sku), {})
