"""Versions of nodes before their rungs, from the stored evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.fleet.control.ticket_gather import read_object
from goldnode.fleet.rollout.learning import NodeVersions


def versions_of(place: Path) -> dict[str, NodeVersions]:
    """Return the digest of each evidence below a directory -> the versions that its capture has."""
    rows = {}
    for file in sorted(place.glob("*/*/evidence.json")):
        capture = read_object(file.with_name("capture.json"))
        if capture is not None:
            rows[hashlib.sha256(file.read_bytes()).hexdigest()] = versions(capture)
    return rows


def versions(capture: Mapping[str, Any]) -> NodeVersions:
    """Return GPU model, VBIOS and driver of a capture; several values of a node are joined."""
    gpus = capture.get("gpus")
    rows = [row for row in gpus if isinstance(row, dict)] if isinstance(gpus, list) else []
    driver = capture.get("driver")
    loaded = driver.get("loaded") if isinstance(driver, dict) else None
    return NodeVersions(
        _joined(rows, "name"), _joined(rows, "vbios"), loaded if isinstance(loaded, str) else ""
    )


def _joined(rows: list[dict[str, Any]], name: str) -> str:
    return " + ".join(sorted({row[name] for row in rows if isinstance(row.get(name), str)}))
