"""Recorded durations of test files, and the estimates based on them.

Two files have the same format: a local one, which every run of `scripts/test` updates, and a committed one,
which `scripts/test --record` writes. The local one takes precedence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / ".goldnode/test-durations.json"
COMMITTED = ROOT / "tests/durations.json"
# Tests that take at least this many seconds are recorded individually, so that they can be ordered and shown
# individually.
SLOW = 5.0
# Assumed seconds of a test without a record. A new file starts early, so that no run waits for it at the end.
# Tests with an xdist group are expensive; otherwise they would not need one.
UNRECORDED = {
    "long": 300.0,
    "real": 120.0,
    "qemu": 120.0,
    "disks": 90.0,
    "xdist_group": 60.0,
    "images": 30.0,
    "lab": 30.0,
}


class FileRecord(TypedDict):
    """Duration of one test file, including set-up and tear-down."""

    tests: int
    seconds: float
    slow: dict[str, float]


class StageRecord(TypedDict):
    """Wall-clock time of one stage."""

    seconds: float
    tests: int
    files: int


@dataclass
class Timings:
    """The record. `commit`, `date` and `cores` are those of the last run that wrote it."""

    commit: str = ""
    date: str = ""
    cores: int = 0
    stages: dict[str, StageRecord] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    source: Path | None = None

    def seconds(self, nodeid: str, marks: Collection[str] = ()) -> float:
        """Return the expected seconds of one test."""
        file, _, test = split(nodeid)
        record = self.files.get(file)
        if record is None:
            return max((UNRECORDED[mark] for mark in marks if mark in UNRECORDED), default=0.1)
        if test in record["slow"]:
            return record["slow"][test]
        # Divide the remaining time of the file evenly among its tests without an individual record.
        return max(0.0, record["seconds"] - sum(record["slow"].values())) / max(
            1, record["tests"] - len(record["slow"])
        )

    def update(self, seconds: Mapping[str, float]) -> None:
        """Replace the records of the files in `seconds` (test → seconds). All tests of these files must have
        run.
        """
        by_file: dict[str, dict[str, float]] = {}
        for nodeid, took in seconds.items():
            file, _, test = split(nodeid)
            by_file.setdefault(file, {})[test] = took
        for file, tests in by_file.items():
            slow = {test: round(took, 1) for test, took in sorted(tests.items()) if took >= SLOW}
            self.files[file] = {
                "tests": len(tests),
                "seconds": round(sum(tests.values()), 1),
                "slow": slow,
            }


def split(nodeid: str) -> tuple[str, str, str]:
    """Split a test id into its file, the group appended by pytest-xdist (empty without one), and its name."""
    file, _, test = nodeid.partition("::")
    name, at, group = test.rpartition("@")
    # Like pytest-xdist: an @ within a parameter is not a group.
    return (file, group, name) if at and "]" not in group else (file, "", test)


def load(path: Path | None = None) -> Timings:
    """Return the record at `path`; by default the local one, otherwise the committed one, otherwise an empty
    one.
    """
    for place in (path,) if path else (LOCAL, COMMITTED):
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
            return Timings(
                found["commit"],
                date=found["date"],
                cores=found["cores"],
                stages=found["stages"],
                files=found["files"],
                source=place,
            )
        except (OSError, ValueError, KeyError, TypeError):
            # A missing or damaged record affects only the order of tests.
            continue
    return Timings()


def text(timings: Timings) -> str:
    """Return the record as JSON with one line per stage and file, for readable diffs."""
    head = {"commit": timings.commit, "date": timings.date, "cores": timings.cores}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    for key, rows in (("stages", timings.stages), ("files", timings.files)):
        inner = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
        lines += [
            f" {json.dumps(key)}: {{",
            ",\n".join(inner),
            " }" + ("," if key == "stages" else ""),
        ]
    return "\n".join(["{", *(line for line in lines if line), "}", ""])


def save(timings: Timings, path: Path) -> None:
    """Write the record atomically: an interrupted run leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text(timings), encoding="utf-8")
    new.replace(path)


def spell(seconds: float) -> str:
    """Format a duration for people: 8 s, 3 min 20 s."""
    whole = round(seconds)
    return (
        f"{whole} s" if whole < 120 else re.sub(r" 0 s$", "", f"{whole // 60} min {whole % 60} s")
    )
