"""Canary results of simulated nodes, for the requirement `floors` of a simulated rollout.

Speeds differ by 2 % between nodes and by 1 % between runs. All nodes drift together by up to 3 % (a
warmer room). A node with the fault `slow` has lost SLOW. Nothing here is measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from goldnode.core.errors import GoldnodeError
from goldnode.documents.canary import CanaryConditions, CanaryDocument, CanaryJob, CanaryMetric
from goldnode.documents.rollout import RolloutFloors
from goldnode.fleet.rollout import floors_requirement
from goldnode.fleet.rollout.model import Answer
from goldnode.fleet.rollout.state import RolloutState

SLOW = 0.10  # loss of a slow node
CHANGED, CONTROL, RUNS = 16, 8, 5  # nodes that a site measures, and runs of each
_RUNS_WITH_TAIL = 500  # of a metric with a quantile
_SPREAD, _RUNS_SPREAD, _DRIFT = 0.02, 0.01, 0.03


class SimulatedCanaries:
    """Results of some changed nodes and of some others, each measured before and after."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"floors-{seed}")  # noqa: S311 - a simulation, repeatable by its seed
        self.speeds: dict[str, float] = {}
        self.results: list[CanaryDocument] = []
        self.measured: set[str] = set()
        self.others: set[str] = set()  # of these, those that were measured without a change
        self.drift = 1 + self.random.uniform(-_DRIFT, _DRIFT)

    def judge(
        self, requirement: RolloutFloors, state: RolloutState, broken: Mapping[str, str], now: float
    ) -> tuple[Answer, str]:
        """Measure the nodes that have changed, and return the answer of the requirement."""
        moved = floors_requirement.moves(state)
        begin = moved.begin or 0.0
        new = [name for name in sorted(moved.changed) if name not in self.measured]
        for name in new[: max(0, CHANGED - len(self.measured - self.others))]:
            prior = moved.changed[name].prior
            before = (prior.boot_id if prior else None) or f"{name}/before"
            loss = SLOW if broken.get(name) == "slow" else 0.0
            self._measure(requirement, name, (begin - 3600, before, 1.0))
            self._measure(requirement, name, (now, f"{name}/after", (1 - loss) * self.drift))
        others = [name for name in sorted(moved.nodes) if name not in moved.granted]
        for name in others[: max(0, CONTROL - len(self.others))]:
            self.others.add(name)
            self._measure(requirement, name, (begin - 3600, f"{name}/before", 1.0))
            self._measure(requirement, name, (now, f"{name}/before", self.drift))
        try:
            return floors_requirement.judge(requirement, self.results, moved)
        except GoldnodeError as problem:
            return Answer.UNKNOWN, str(problem)

    def _measure(
        self, requirement: RolloutFloors, node: str, run: tuple[float, str, float]
    ) -> None:
        """Add a result: `run` is its time, the boot of the node, and the factor of its speed."""
        at, boot_id, factor = run
        self.measured.add(node)
        metrics = []
        for name in requirement.metrics:
            # As a requirement names its metrics: NAME, NAME/cold or NAME:p99.
            name, _, quantile = name.partition(":")
            name, _, phase = name.partition("/")
            speed = self.speeds.setdefault(f"{node} {name}", self.random.gauss(1.0, _SPREAD))
            count = _RUNS_WITH_TAIL if quantile else RUNS
            samples = [
                100 * speed * factor * self.random.gauss(1.0, _RUNS_SPREAD) for _ in range(count)
            ]
            metrics.append(_metric(name, phase == "cold", samples))
        self.results.append(_document(node, at, boot_id, metrics))


def _metric(name: str, cold: bool, samples: Sequence[float]) -> CanaryMetric:
    return CanaryMetric(
        name=name,
        unit="simulated",
        better="higher",
        device=None,
        phase="cold" if cold else "warm",
        samples=list(samples),
        conditions=CanaryConditions(sm_mhz=None, temperature_c=None, power_w=None, throttled=[]),
    )


def _document(node: str, at: float, boot_id: str, metrics: list[CanaryMetric]) -> CanaryDocument:
    job = CanaryJob(
        name="simulated", state="passed", why="", seconds=1.0, verified=False, metrics=metrics
    )
    return CanaryDocument(
        schema="goldnode.canary/1",
        simulated=True,
        node=node,
        **{"class": "simulated"},
        class_digest=None,
        platform="simulated",
        runner=f"sha256:{'0' * 64}",
        image=None,
        started=datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        boot_id=boot_id,
        how="local",
        jobs=[job],
    )
