"""Indexes of the state that change with each action equal those computed from its rows."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
from tests.unit.fleet.rollout.documents import settings

from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import Action, Direction, Prior, Step, StepPhase, with_values
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.rollout.state import RolloutState


def check(state: RolloutState, _action: Action, _now: float) -> None:
    """Compare the queue, the nodes that cannot go, and the first deadline with those of the rows."""
    soonest = min((step.deadline for step in state.active.values()), default=None)
    assert state.soonest_deadline() == soonest
    again = copy.copy(state)
    again._index_queue()
    assert again.queue == state.queue
    assert set(again.strays) == set(state.strays)


@pytest.mark.parametrize(
    "faults",
    [
        (),
        ("image=30%", "absent"),
        ("image=10%", "hardware=500", "lying=10%"),
        ("killed", "partition"),
    ],
)
def test_indexes_follow_every_action(tmp_path: Path, faults: tuple[str, ...]) -> None:
    found = settings(tmp_path)
    run = Simulation(found, made_up(150, found.origin), parse(faults), 2, check).run()
    assert run.touched_at_stop is not None or run.hours > 0


def test_with_values_is_replace() -> None:
    step = Step(
        "n1",
        wave=1,
        direction=Direction.FORWARD,
        phase=StepPhase.GRANTED,
        epoch=2,
        attempt=1,
        granted_at=3.0,
        changed_at=4.0,
        deadline=5.0,
        prior=Prior(True, "old", "b1"),
    )
    changes = {"phase": StepPhase.DONE, "cause": "x", "late": True}
    assert with_values(step, **changes) == dataclasses.replace(step, **changes)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        with_values(step, unknown=1)
