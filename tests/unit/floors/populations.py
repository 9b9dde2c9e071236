"""Made-up populations of canary results: nodes of one class whose speeds and runs have a known spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from goldnode.documents.canary import CanaryDocument
from goldnode.floors.bounds import Values

RUNNER = f"sha256:{'1' * 64}"
DIGEST = f"sha256:{'a' * 64}"
PLATFORM = "NVIDIA H200 x 1"
CONDITIONS: dict[str, Any] = {
    "sm_mhz": [1200.0, 1980.0],
    "temperature_c": [45.0, 62.0],
    "power_w": [110.0, 690.0],
    "throttled": [],
}


@dataclass(frozen=True)
class Population:
    """A metric of a class: spread between nodes, spread of runs, and the margin that its owner declares."""

    spread: float
    runs_spread: float
    margin: float
    loss: float  # of a bad node
    median: float = 600.0
    disturbed: float = 0.0  # share of the runs that take twice as long

    def speeds(self, random: np.random.Generator, nodes: int) -> Values:
        return np.asarray(self.median * (1 + self.spread * random.normal(size=nodes)))

    def runs(self, random: np.random.Generator, speeds: Values, count: int) -> Values:
        found = speeds[..., None] * (
            1 + self.runs_spread * random.normal(size=(*speeds.shape, count))
        )
        return np.asarray(np.where(random.random(found.shape) < self.disturbed, found / 2, found))


# The populations of the study of the fleet. Its table gives the spread between nodes, the loss, and the misses of a
# bound below the floor; the spread of runs is ours, chosen so that the misses come out as there.
TIGHT = Population(spread=0.005, runs_spread=0.002, margin=0.03, loss=0.05)
GEMM = Population(spread=0.02, runs_spread=0.01, margin=0.05, loss=0.10)
WIDE = Population(spread=0.04, runs_spread=0.0165, margin=0.05, loss=0.15)
DISTURBED = Population(spread=0.02, runs_spread=0.01, margin=0.05, loss=0.10, disturbed=1 / 30)


@dataclass(frozen=True)
class Circumstances:
    """Everything about a made-up result but its samples."""

    started: str = "2026-11-20T08:00:00Z"
    digest: str | None = DIGEST
    runner: str = RUNNER
    image: str | None = None
    simulated: bool = True
    platform: str = PLATFORM
    conditions: Mapping[str, Any] = field(default_factory=dict)
    metric: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)


USUAL = Circumstances()


def document(
    node: str, samples: Mapping[str, Sequence[float]], given: Circumstances = USUAL
) -> CanaryDocument:
    """Return a result with the samples of each metric."""
    metrics = [
        {
            "name": name,
            "unit": "TFLOPS",
            "better": "higher",
            "device": "0000:0a:00.0",
            "phase": "warm",
            "samples": [float(f"{value:.6g}") for value in values],
            "conditions": {**CONDITIONS, **given.conditions},
            **given.metric,
        }
        for name, values in samples.items()
    ]
    content = {
        "schema": "goldnode.canary/1",
        "simulated": given.simulated,
        "node": node,
        "class": "h200",
        "class_digest": given.digest,
        "platform": given.platform,
        "runner": given.runner,
        "image": given.image,
        "started": given.started,
        "boot_id": f"{node}/1",
        "how": "local",
        "jobs": [
            {
                "name": "gemm",
                "state": "passed",
                "why": "",
                "seconds": 3.0,
                "verified": True,
                "metrics": metrics,
            }
            | dict(given.job)
        ],
    }
    return CanaryDocument.model_validate_json(json.dumps(content))


def names(count: int) -> list[str]:
    """Return names of nodes."""
    return [f"gpu{number:03d}" for number in range(count)]


def documents(
    population: Population,
    random: np.random.Generator,
    nodes: int,
    runs: int = 20,
    given: Circumstances = USUAL,
) -> list[CanaryDocument]:
    """Return one result of each node."""
    found = population.runs(random, population.speeds(random, nodes), runs)
    return [
        document(name, {"gemm_fp16": list(row)}, given)
        for name, row in zip(names(nodes), found, strict=True)
    ]


def write(directory: Path, found: Sequence[CanaryDocument]) -> Path:
    """Write results as files, as the canary suite does."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(found):
        path = directory / f"{one.node}-{number}.json"
        path.write_text(one.model_dump_json(by_alias=True), encoding="utf-8")
    return directory
