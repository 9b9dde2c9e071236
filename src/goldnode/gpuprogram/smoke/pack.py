"""goldnode-smoke as a single file: a zip archive that Python runs.

It contains the package `goldnode.gpuprogram` and the performance floors from the facts. Its bytes
are part of every image.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from goldnode.facts import host as facts
from goldnode.gpuprogram import pack
from goldnode.gpuprogram.smoke.start import FLOORS

NAME = "goldnode-smoke"


def floors() -> list[dict[str, Any]]:
    """Return the floor of each GPU model for which the facts state a dense peak.

    A row is {model, pci_ids, floor_tflops: {precision: 10 ** 12 operations per second}}.
    """
    rows = []
    for row in facts.load("performance.yml")["dense_peaks"]:
        share = row.get("floor_share", facts.load("performance.yml")["floor_share"]["value"])
        floor = {name: round(peak * share, 1) for name, peak in sorted(row["tflops"].items())}
        rows += [
            {"model": sku, "pci_ids": list(facts.gpu(sku).pci_ids), "floor_tflops": floor}
            for sku in row["skus"]
        ]
    return rows


def sources() -> dict[str, bytes]:
    """Return archive name -> content of every file, sorted by name."""
    files = {
        **pack.modules("goldnode/gpuprogram"),
        **pack.modules("goldnode/gpuprogram/smoke"),
        FLOORS: json.dumps(floors(), sort_keys=True, separators=(",", ":")).encode(),
    }
    return pack.contents(files, "goldnode.gpuprogram.smoke.start.packed")


@cache
def program() -> bytes:
    """Return the packed program. The same sources and facts give the same bytes."""
    return pack.packed(sources())


@cache
def digest() -> str:
    """Return the SHA-256 of the packed program, by which an image's copy is recognised."""
    return hashlib.sha256(program()).hexdigest()


def own() -> dict[str, str]:
    """Return the name of the program by its SHA-256, for an inspection."""
    return {digest(): NAME}
