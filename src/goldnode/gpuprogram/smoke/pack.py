"""goldnode-smoke as a single file: a zip archive that Python runs.

It contains the package `goldnode.gpuprogram` and the performance floors from the facts. The archive
is stored, not compressed: its bytes are part of every image, and a new version of a compressor must not
change a digest.
"""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

BASE = Path(__file__).parents[1]
# No -S here: frameworks are in the interpreter's site directories. Tests of libraries add -S themselves.
START = b"#!/usr/bin/env -S python3 -I\n"
MAIN = b"from goldnode.gpuprogram.smoke.program import main\n\nmain()\n"
PACKAGES = ("goldnode",)
NAME = "goldnode-smoke"


def floors() -> list[dict[str, Any]]:
    """Return the floor of each GPU model for which the facts state a dense peak.

    A row is {model, pci_ids, floor_tflops: {precision: 10 ** 12 operations per second}}.
    """
    from goldnode.facts import host as facts

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
    found = {
        f"goldnode/gpuprogram/{path.relative_to(BASE)}": path.read_bytes()
        for path in BASE.rglob("*.py")
        if path != Path(__file__)
    }
    found.update({f"{package}/__init__.py": b"" for package in PACKAGES})
    found["goldnode/gpuprogram/smoke/floors.json"] = json.dumps(
        floors(), sort_keys=True, separators=(",", ":")
    ).encode()
    return dict(sorted({**found, "__main__.py": MAIN}.items()))


@cache
def program() -> bytes:
    """Return the packed program.

    Dates and modes in the archive are fixed, so the same sources and facts give the same bytes.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sources().items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return START + out.getvalue()
