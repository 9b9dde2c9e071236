"""Records for tests, written with the recorder's own writer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from goldnode.dual.recorder.values import Value, value
from goldnode.dual.recorder.writer import RecordWriter

ZERO = f"sha256:{'0' * 64}"
LETTERS = {
    "float64": "d",
    "float32": "f",
    "int64": "q",
    "uint16": "H",
    "uint8": "B",
    "bfloat16": "H",
    "float16": "H",
}
Row = tuple[str, str, Value]


def numbers(*items: float, dtype: str = "float64", shape: tuple[int, ...] | None = None) -> Value:
    """Return an array of numbers; of bfloat16 and float16 the numbers are their bits."""
    letter = LETTERS[dtype]
    given: Any = items if letter in "df" else [int(item) for item in items]
    return value(dtype, shape or (len(items),), array(letter, given).tobytes())


def written(
    directory: Path,
    rows: Sequence[Row],
    changes: Mapping[str, Any] | None = None,
    elements: int = 64,
) -> Path:
    """Write a record of some arrays; `changes` replace keys of record.json."""
    writer = RecordWriter(str(directory), 1 << 20, elements)
    for role, name, one in rows:
        writer.add(role, name, one, "Linear" if role == "layer" else None)
    writer.finish(
        {
            "name": directory.name,
            "simulated": False,
            "recorder": ZERO,
            "started": "2026-11-26T08:00:00Z",
            "how": "local",
            "host": None,
            "image": None,
            "state": None,
            "node": None,
            "machine": {
                "architecture": "x86_64",
                "cpu": None,
                "kernel": "6.1.0",
                "os": "Debian GNU/Linux 12",
                "libc": None,
                "python": "3.11.2",
                "boot_id": None,
                "drivers": {},
                "variables": {},
            },
            "source": {"kind": "model", "name": "model.py", "digest": ZERO},
            "seed": 0,
            "settings": {"device": "cpu", "precision": "native", "threads": 1},
            "framework": None,
            "device": None,
            "weights": [],
            "weights_digest": None,
            "repeatable": True,
            "hooks_change_output": False,
            "latency": {"cold": [], "warm": []},
            **(changes or {}),
        }
    )
    return directory
