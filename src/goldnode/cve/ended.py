"""Hours from publication to proof of the vulnerabilities that a site has proved, by severity."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from goldnode.classdoc import mitigations
from goldnode.core.site import Site
from goldnode.cve.lane import read_proof
from goldnode.cve.record import PROOF
from goldnode.evidence.vulnerabilities import LEVELS, level


@dataclass(frozen=True)
class EndedHours:
    """Proved vulnerabilities of one severity: how many, and the mean and the worst hours."""

    severity: str
    count: int
    mean: float
    worst: float


def ended(site: Site) -> list[EndedHours]:
    """Return the hours of each severity, the most severe first. A proof without a publication counts nowhere."""
    hours: dict[str, list[float]] = {}
    for path in sorted(mitigations.directory(site).glob(f"*/{PROOF}")):
        proof = read_proof(path)
        if proof is not None and proof.proved and proof.hours is not None:
            hours.setdefault(level(proof.severity) or proof.severity, []).append(proof.hours)
    order = sorted(hours, key=lambda name: LEVELS.index(name) if name in LEVELS else -1)
    return [
        EndedHours(name, len(hours[name]), round(statistics.mean(hours[name]), 1), max(hours[name]))
        for name in reversed(order)
    ]
