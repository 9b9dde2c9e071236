"""Time limit of a run (`scripts/test --within`), and what a machine too slow for it leaves out of the last stage.

A machine that others share may take three times as long as a quiet one. A run that is killed at its limit reports nothing, not even
the tests that passed. So a run leaves out files in time, names them, and does not count them as passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from tests.suite.timings import Timings

# Seconds of a test file of nodes without a record. Nearly all of them have only `long` tests, which such a run does not include.
UNRECORDED = 10.0


def slowness(took: Mapping[str, float], record: Timings) -> float:
    """Return how many times as long as recorded the files in `took` (file → seconds) took; 1 if they were faster or none is recorded."""
    known = {file: record.files[file]["seconds"] for file in took if file in record.files}
    recorded = sum(known.values())
    return max(1.0, sum(took[file] for file in known) / recorded) if recorded else 1.0


def seconds_of(file: str, record: Timings) -> float:
    """Return the recorded seconds of a test file of nodes."""
    return record.files[file]["seconds"] if file in record.files else UNRECORDED


def at_once(stage: str, files: Collection[str], record: Timings) -> float:
    """Return how many seconds of tests the recorded stage did in a second; 1 without a record."""
    whole = record.stages.get(stage)
    known = sum(record.files[file]["seconds"] for file in files if file in record.files)
    return max(1.0, known / whole["seconds"]) if whole and whole["seconds"] else 1.0


def left_out(
    files: Sequence[str], costs: Mapping[str, float], seconds: float, draw: str
) -> tuple[str, ...]:
    """Return the files without which the others take at most `seconds`; empty if all of them fit.

    `costs` is file → seconds of the whole run that it takes. Cheap files come first more often, since more of them fit. The text `draw`, a commit,
    decides the rest, so that each commit has others left out, and the same commit always the same.
    """
    if sum(costs[file] for file in files) <= seconds:
        return ()
    left: list[str] = []
    used = 0.0
    for file in sorted(files, key=lambda file: costs[file] * _drawn(f"{draw} {file}")):
        if used + costs[file] <= seconds:
            used += costs[file]
        else:
            left.append(file)
    return tuple(sorted(left))


def _drawn(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
