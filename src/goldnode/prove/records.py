"""Records of runs as test cases: `scripts/prove-gpu import DIR` copies one into tests/cases/recorded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Dict

from goldnode.core.errors import GoldnodeError
from goldnode.prove import SCHEMA

Json = Dict[str, Any]

PLACE = Path(__file__).resolve().parents[3] / "tests/cases/recorded"
NEEDED = ("record.json", "capture.json", "class.json", "verdict.json")
ALSO = (
    "capture-load.json",
    "verdict-load.json",
    "nvidia-smi.xml",
    "latency.json",
    "timing.json",
    "smoke.json",
    "diagnose.json",
)


class RecordError(GoldnodeError):
    """A directory is not a record that tests can use."""


def take(folder: Path, place: Path = PLACE) -> Path:
    """Copy the files that tests use from a run's directory to `place`.

    Return the new case. Raises RecordError.
    """
    record = read(folder)
    boards = record["versions"].get("gpus") or []
    if not boards:
        raise RecordError(f"{folder} saw no GPU", remedy="import a run that did")
    words = [
        *(["simulated"] if record["simulated"] else []),
        boards[0].partition(" (")[0].replace("NVIDIA ", ""),
        f"x{len(boards)}",
        str(record["versions"]["driver"]),
    ]
    target = place / re.sub(r"[^a-z0-9.]+", "_", "_".join(words).lower())
    if target.exists():
        raise RecordError(
            f"{target} is there already", remedy="remove it first if this run is to take its place"
        )
    target.mkdir(parents=True)
    for name in (*NEEDED, *ALSO):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    return target


def read(folder: Path) -> Json:
    """Return the record of a run's directory, validated. Raises RecordError."""
    try:
        record: Json = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        schema = record["schema"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise RecordError(
            f"{folder} is no directory of a run ({problem})",
            remedy="name one that scripts/prove-gpu has written",
        ) from None
    if schema != SCHEMA:
        raise RecordError(
            f"{folder} is of schema {schema!r}, not {SCHEMA}",
            remedy="import it with the goldnode that wrote it",
        )
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise RecordError(
            f"{folder} has no {', '.join(missing)}: the run did not get that far",
            remedy="import a run that did",
        )
    if record["leaking"]:
        raise RecordError(
            f"{folder} could not be redacted whole: {', '.join(record['leaking'])}",
            remedy="report it, and do not publish the directory",
        )
    return record
