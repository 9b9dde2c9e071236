"""Drains of nodes that follow a channel: by the site's own commands, which cannot be asked for a state."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.fleet.drain.test_drain import fakes

from goldnode.fleet.control.drains import DrainWorker, RolloutDrains
from goldnode.fleet.control.follow import FollowWorker, drains_of
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.rollout.model import Direction, Prior, SchedulerObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, Observation


@pytest.mark.parametrize(
    ("by", "drained"), [("slurm", True), ("kubectl", True), ("command", True), ("none", False)]
)
def test_every_way_to_drain_is_used(by: str, drained: bool) -> None:
    asks = drains_of({"n1": DrainSettings(by, "n1")})
    assert asks("n1") is drained
    assert not asks("n2")


def worked(worker: FollowWorker, tasks: Collection[NodeTask]) -> list[Observation]:
    """Work on tasks until something is observed."""
    found: list[Observation] = []
    while not found:
        worker.work(tasks)
        found = worker.results()
        time.sleep(0.01)
    return found


def test_commands_of_the_site_drain_and_return_a_node_that_follows(tmp_path: Path) -> None:
    world = fakes(tmp_path, "speaks")
    words = [(str(world.root / name),) for name in ("drain", "resume")]
    settings = {"n1": DrainSettings("command", "n1", *words)}
    worker = FollowWorker("r1", drains_of(settings), DrainWorker(RolloutDrains("r1", settings)))
    prior = Prior(True, None, None)
    (out,) = worked(worker, [NodeTask("n1", StepPhase.GRANTED, Direction.FORWARD, 1, prior)])
    assert isinstance(out, SchedulerObservation)
    assert not out.in_service
    assert world.fake.seen() == out.reason
    assert "rollout r1" in out.reason
    (back,) = worked(worker, [NodeTask("n1", StepPhase.RETURNING, Direction.FORWARD, 1, prior)])
    assert isinstance(back, SchedulerObservation)
    assert back.in_service
    assert world.fake.seen() is None
    worker.close()
