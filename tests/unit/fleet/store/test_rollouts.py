"""Rollouts in the store: every action that `plan` takes in a simulated rollout passes the guards, and loads again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import ALICE, NOW

from goldnode.fleet.rollout import faults, model
from goldnode.fleet.rollout.model import Action, Direction, Grant, Prior, Promote, Start
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.rollout.state import RolloutState
from goldnode.fleet.store import controllers, grants, nodes, orders, rollouts
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.controllers import Controller, Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.orders import Scope

LIMITS = FleetLimits("4", "8", "10")


class MirroredRollout:
    """A simulated rollout that writes each action to a real store."""

    def __init__(
        self, store: StoreDatabase, directory: Path, chosen: faults.SimulatedFaults, seed: int
    ) -> None:
        self.store = store
        settings = documents.settings(directory)
        fleet = made_up(24, settings.origin)
        self.simulation = Simulation(settings, fleet, chosen, seed, self.watch)
        self.settings = self.simulation.settings
        self.name = self.settings.name
        stored = [
            StoredNode(one.name, settings.class_, one.rack, one.leaf, one.cohort) for one in fleet
        ]
        given = Submission(
            self.name,
            node_class=settings.class_,
            target=settings.target,
            document=documents.TEXT,
            limits=LIMITS,
            author="alice",
        )
        store.run(lambda c: nodes.put(c, stored, {}, "test", 0.0))
        store.run(lambda c: controllers.submit(c, given, 0.0))
        self.controller = self.take_over(0.0)

    def take_over(self, now: float) -> Controller:
        epoch = self.store.run(lambda c: controllers.take_over(c, self.name, "simulated", now))
        assert epoch is not None
        return Controller(self.name, epoch, "simulated")

    def watch(self, state: RolloutState, action: Action, now: float) -> None:
        while self.controller.epoch < state.record.epoch:  # the simulated controller was killed
            self.controller = self.take_over(now)
        self.store.run(lambda c: rollouts.write(c, self.controller, [action], now))

    def loaded(self) -> RolloutState:
        with self.store.read() as connection:
            check_counters(connection)
            return rollouts.load(connection, self.settings).state


@pytest.mark.parametrize(
    ("fault", "end"), [("none", "completed"), ("module", "rolled-back"), ("killed", "completed")]
)
def test_simulated_rollout_passes_the_guards_and_loads_again(
    tmp_path: Path, migrated: Path, fault: str, end: str
) -> None:
    store = StoreDatabase(str(_copy(migrated, tmp_path)))
    given = () if fault == "none" else (f"{fault}=100%" if fault == "module" else f"{fault}=6",)
    mirrored = MirroredRollout(store, tmp_path, faults.parse(given), seed=3)
    run = mirrored.simulation.run()
    assert run.end == end
    wanted, found = mirrored.simulation.state.to_json(), mirrored.loaded().to_json()
    for part in ("waves", "steps", "holds", "freezes", "denied"):
        assert ordered(found[part]) == ordered(wanted[part]), part
    record = (
        mirrored.simulation.state.record
    )  # the simulation has no submission, and epochs of its own
    assert replace(mirrored.loaded().record, epoch=record.epoch, submitted_at=0.0) == record
    store.close()


def _copy(migrated: Path, directory: Path) -> Path:
    path = directory / "fleet.db"
    path.write_bytes(migrated.read_bytes())
    return path


def ordered(part: object) -> object:
    """Return rows in a fixed order."""
    return sorted(part, key=str) if isinstance(part, list) else part


@pytest.fixture
def mirrored(store: StoreDatabase, tmp_path: Path) -> MirroredRollout:
    found = MirroredRollout(store, tmp_path, faults.parse(()), seed=1)
    store.run(
        lambda c: rollouts.write(
            c, found.controller, [Start(tuple(found.simulation.state.nodes)[:4])], NOW
        )
    )
    return found


def wish(name: str) -> Grant:
    return Grant(name, Direction.FORWARD, 1, NOW + 60, Prior(True, documents.OLD, None))


def test_writer_that_missed_a_change_plans_again(
    store: StoreDatabase, mirrored: MirroredRollout
) -> None:
    with store.read() as connection:
        seen = rollouts.load(connection, mirrored.settings).seen
    store.run(lambda c: orders.freeze(c, Scope(), ALICE))
    with pytest.raises(rollouts.StoreChangedError):
        store.run(lambda c: rollouts.write(c, mirrored.controller, [Promote(1, ())], NOW, seen))
    with store.read() as connection:
        loaded = rollouts.load(connection, mirrored.settings)
    assert [one.scope for one in loaded.state.freezes.values()] == [model.FreezeScope.ALL]
    store.run(lambda c: rollouts.write(c, mirrored.controller, [Promote(1, ())], NOW, loaded.seen))


def test_refused_grant_of_a_group_leaves_none_of_it(
    store: StoreDatabase, mirrored: MirroredRollout
) -> None:
    names = list(mirrored.simulation.state.nodes)[:5]  # one more than the limit
    with pytest.raises(GrantRefusedError):
        store.run(
            lambda c: rollouts.write(c, mirrored.controller, [wish(name) for name in names], NOW)
        )
    assert mirrored.loaded().ledger.out == 0
    store.run(
        lambda c: rollouts.write(c, mirrored.controller, [wish(name) for name in names[:4]], NOW)
    )
    assert mirrored.loaded().ledger.planned == 4


def test_overdue_found_by_the_service_and_release_are_in_the_state(
    store: StoreDatabase, mirrored: MirroredRollout
) -> None:
    name = next(iter(mirrored.simulation.state.nodes))
    store.run(lambda c: rollouts.write(c, mirrored.controller, [wish(name)], NOW))
    store.run(lambda c: grants.overdue(c, NOW + 61))
    assert mirrored.loaded().steps[name].phase is model.StepPhase.OVERDUE
    store.run(lambda c: grants.release(c, name, ALICE))
    state = mirrored.loaded()
    assert (state.steps[name].phase, state.ledger.out) == (model.StepPhase.DEFERRED, 0)
