"""To which precision numbers of captures are stored, by `facts/precision.yml`: a step for each reading that no rule reads."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from goldnode.facts.host import Origin, load, origins

FILE = "precision.yml"
EXACT, STATED = "exact", "stated"  # modes of an ingest


@dataclass(frozen=True)
class KeyPrecision:
    """The step of the keys that a pattern matches, a power of two: a stored value differs by half of it at most."""

    pattern: str
    step: float
    unit: str
    why: str
    sources: tuple[Origin, ...]


@cache
def precisions() -> tuple[KeyPrecision, ...]:
    """Return the rows of the file; the first pattern that matches decides."""
    return tuple(
        KeyPrecision(
            row["key"], float(row["step"]), row["unit"], row["why"], origins(FILE, row["source"])
        )
        for row in load(FILE)["precisions"]
    )


@cache
def step(key: str) -> float | None:
    """Return the step of a key of numbers; None for one that is stored as it is."""
    return next((row.step for row in precisions() if fnmatchcase(key, row.pattern)), None)
