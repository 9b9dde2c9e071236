"""Captures and verdicts of a small fleet, for the tests of the ingest."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.unit.node import captures

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
CLASS = "h100_sxm5_80gb"


def capture(node: str = "n1", time: str = "2026-11-26T10:00:00Z", **more: Any) -> dict[str, Any]:
    """Return the capture of a node at a time, with GPUs of its own."""
    found = captures.healthy()
    found["identity"] |= {"hostname": node, "class": CLASS}
    for index, gpu in enumerate(found["gpus"]):
        gpu |= {"uuid": f"GPU-{node}-{index}", "serial": f"{node}{index}"}
    return {**found, "time": time, "simulated": True, **more}


def verdict(found: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a verdict of a capture, with one finding."""
    finding = {
        "id": "driver.version",
        "outcome": "mismatch",
        "severity": "degraded",
        "domain": "driver",
    }
    text = {"subject": None, "expected": "580.95.05", "got": "570.1", "remedy": None}
    return {
        "schema": "goldnode.verdict/1",
        "time": found["time"],
        "status": "degraded",
        "class": found["identity"]["class"],
        "class_digest": "sha256:" + "0" * 64,
        "lock_digest": "sha256:" + "1" * 64,
        "boot_identity": found["identity"]["boot_identity"],
        "findings": [finding | text],
        **more,
    }


def write(directory: Path, *found: dict[str, Any], verdicts: bool = False) -> Path:
    """Write captures to files of a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for one in found:
        name = f"{one['identity']['hostname']}-{one['time'][:13]}"
        (directory / f"{name}.json").write_text(json.dumps(one), encoding="utf-8")
        if verdicts:
            (directory / f"{name}.verdict.json").write_text(
                json.dumps(verdict(one)), encoding="utf-8"
            )
    return directory
