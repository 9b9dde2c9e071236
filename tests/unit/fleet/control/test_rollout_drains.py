"""Drains of a rollout: its controllers change, and each is killed at any step; persons and other rollouts keep theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.drain import test_drain as fakes
from tests.unit.fleet.drain.test_drain import Killed, Steps, World

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.drains import DrainWorker, RolloutDrains
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.drain.protocol import Drainer
from goldnode.fleet.drain.record import DrainRecords
from goldnode.fleet.rollout.model import Direction, Prior, SchedulerObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import LEASE, mark

PRIORS = {**fakes.PRIOR, **fakes.SLURM_ONLY}


@dataclass(frozen=True)
class FakeSettings(DrainSettings):
    """Settings whose scheduler is a fake."""

    fake: Any = field(default=None, compare=False)

    def drainer(self) -> Drainer:
        return self.fake.scheduler()  # type: ignore[no-any-return]


@dataclass
class Rollout:
    """A rollout of one node, with any number of controllers: each has a directory of its own."""

    world: World
    name: str = "r1"
    prior: Prior = field(default_factory=lambda: Prior(True, None, None))
    records: bool = True
    between: Callable[[Any], Any] | None = None  # what another does while the node is drained
    seen: list[SchedulerObservation] = field(default_factory=list)

    def drains(self, controller: str) -> RolloutDrains:
        local = drain_record.local_file(str(self.world.root / controller), self.world.name, "n1")
        records = DrainRecords(self.world.shell, local, str(self.world.root))
        settings = FakeSettings(self.world.name, "n1", fake=self.world.fake)
        return RolloutDrains(
            self.name,
            {"n1": settings},
            lambda node: records if self.records else None,
            lambda: fakes.NOW,
        )

    def run(self, controller: str, kill: int | None = None) -> None:
        """Drain and return the node, as a worker does; killed after a call."""
        self.world.fake.steps = Steps(kill)
        drains = self.drains(controller)
        try:
            while (found := drains.drain("n1", self.prior)) is None:
                pass
            self.seen.append(found)
            if self.between is not None:
                self.world.fake.steps = Steps()
                self.between(self.world.fake)
                self.world.fake.steps = Steps(kill)
            self.seen.append(drains.resume("n1", self.prior))
        except Killed:
            pass


def most_calls(place: Path, kind: str, name: str) -> int:
    """Return the number of calls of one whole run."""
    world = fakes.fakes(place / "count", kind, quick=True)
    PRIORS[name](world.fake)
    Rollout(world).run("a")
    return world.fake.steps.done


@pytest.mark.parametrize(("kind", "name"), fakes.rows())
def test_controller_killed_at_any_step_is_followed_by_one_on_another_machine(
    tmp_path: Path, kind: str, name: str
) -> None:
    most = most_calls(tmp_path, kind, name)
    assert most >= 6
    for kill in range(most + 1):
        for second in (None, 1, 2, 3, 4) if kind in fakes.FAKES else (None, 3):
            world = fakes.fakes(tmp_path / f"{kill}-{second}", kind, quick=True)
            PRIORS[name](world.fake)
            before = world.fake.seen()
            rollout = Rollout(world)
            rollout.run("a", kill)
            if second is not None:
                rollout.run("b", second)
            rollout.run("c")
            case = (kind, name, kill, second)
            if kind == "silent" and world.fake.seen() != before:
                # The command was cut off before its answer was recorded, and the record of its end is on a machine
                # that is lost. The node stays out, and is named; it is never returned on a guess.
                assert before is None, case
                assert not rollout.seen[-1].in_service, case
                assert "resume n1` returns it" in rollout.seen[-1].reason, case
                continue
            assert world.fake.seen() == before, case
            assert not world.file.exists(), case
            serves = before == fakes.fakes(tmp_path / f"new-{kill}-{second}", kind).fake.seen()
            assert rollout.seen[-1].in_service is (serves or name == "in service with a note"), case


@pytest.mark.parametrize(("kind", "what"), fakes.LAST_WORDS)
def test_last_word_is_the_persons_in_a_rollout_too(tmp_path: Path, kind: str, what: str) -> None:
    """A person acts while no controller works, and while the node is drained."""
    most = most_calls(tmp_path, kind, "in service")
    for kill in range(most + 1):
        world = fakes.fakes(tmp_path / f"{kill}", kind, quick=True)
        rollout = Rollout(world)
        rollout.run("a", kill)
        fakes.MEANWHILE[what](world.fake)
        wanted = world.fake.seen()
        rollout.run("b")
        assert world.fake.seen() == wanted, (kind, what, kill)
    for kill in range(most + 1):
        world = fakes.fakes(tmp_path / f"during-{kill}", kind, quick=True)
        found: list[Any] = []

        def act(fake: Any, found: list[Any] = found) -> None:
            fakes.MEANWHILE[what](fake)
            found.append(fake.seen())

        if kind != "speaks":  # a command shows no drain of a person over its own
            rollout = Rollout(world, between=act)
            rollout.run("a", kill)
            if found:
                rollout.between = None
                drains = rollout.drains("b")
                world.fake.steps = Steps()
                drains.resume("n1", rollout.prior)
                assert world.fake.seen() == found[0], (kind, what, kill)


@pytest.mark.parametrize("kind", ["slurm", "kubectl"])
def test_disk_that_is_replaced_has_no_record_and_needs_none(tmp_path: Path, kind: str) -> None:
    for kill in range(12):
        world = fakes.fakes(tmp_path / str(kill), kind, quick=True)
        prior = Prior(True, None, None)
        if kind == "slurm":
            fakes.SLURM_ONLY["in service with a note"](world.fake)
            prior = replace(prior, reason="fan replaced, watch it")
        before = world.fake.seen()
        rollout = Rollout(world, prior=prior, records=False)
        rollout.run("a", kill)
        rollout.run("b")
        assert world.fake.seen() == before, kill


@pytest.mark.parametrize("kind", ["slurm", "kubectl", "speaks"])
@pytest.mark.parametrize("age", [0, LEASE + 86400])
def test_drain_of_another_rollout_is_never_taken_over(
    tmp_path: Path, kind: str, age: float
) -> None:
    world = fakes.fakes(tmp_path, kind)
    first = Rollout(world)
    first.drains("a").drain("n1", first.prior)
    taken, text = world.fake.seen(), world.file.read_text()
    other = replace(Rollout(world, "r2").drains("b"), clock=lambda: fakes.NOW + age)
    with pytest.raises(GoldnodeError, match="was drained by a rollout"):
        other.drain("n1", first.prior)
    assert not other.resume("n1", first.prior).in_service
    # Nor by a run of site.yml, unless a person orders it.
    later = fakes.caller(fakes.NEXT)
    later = replace(later, clock=lambda: fakes.NOW + age)
    with pytest.raises(GoldnodeError, match="Let the rollout return it"):
        world.fake.scheduler().drain("n1", "x", later, world.records)
    assert (world.fake.seen(), world.file.read_text()) == (taken, text)
    ordered = replace(later, take_over=True)
    assert world.fake.scheduler().resume("n1", ordered, world.records).changed
    assert not world.file.exists()


def test_rollout_leaves_the_drain_of_a_run_that_works(tmp_path: Path) -> None:
    alive = identity.actor()
    world = fakes.fakes(tmp_path, "slurm")
    world.fake.scheduler().drain("n1", "x", fakes.caller(alive.run), world.records)
    taken = world.fake.seen()
    with pytest.raises(GoldnodeError, match="may still work on it"):
        Rollout(world).drains("a").drain("n1", Prior(True, None, None))
    assert world.fake.seen() == taken


def test_slurm_drain_does_not_wait_and_is_repeated_until_the_jobs_have_ended(
    tmp_path: Path,
) -> None:
    world = fakes.fakes(tmp_path, "slurm")
    assert isinstance(world.fake, fakes.FakeSlurm)
    world.fake.jobs = 12
    rollout = Rollout(world)
    drains = rollout.drains("a")
    assert drains.drain("n1", rollout.prior) is None
    reason = world.fake.reason
    count = 1
    while (found := drains.drain("n1", rollout.prior)) is None:
        count += 1
    assert count > 1
    assert (found.in_service, found.reason) == (False, reason), "one drain, with one reason"
    parts = mark(reason)
    assert parts is not None
    assert (parts.run, parts.text) == (identity.rollout_run("r1"), "rollout r1")
    assert sum("State=DRAIN" in call for call in world.fake.asked) == 1


def test_kubernetes_job_is_waited_for_and_the_rest_is_evicted(tmp_path: Path) -> None:
    world = fakes.fakes(tmp_path, "kubectl")
    assert isinstance(world.fake, fakes.FakeKubectl)
    world.fake.pods = ["Job", "ReplicaSet", "DaemonSet"]
    rollout = Rollout(world)
    drains = rollout.drains("a")
    assert drains.drain("n1", rollout.prior) is None
    assert not any(" drain " in call for call in world.fake.asked), "the job is not evicted"
    assert world.fake.unschedulable
    world.fake.pods.remove("Job")
    found = drains.drain("n1", rollout.prior)
    assert found is not None
    assert not found.in_service
    assert world.fake.pods == ["DaemonSet"]
    assert drains.resume("n1", rollout.prior).in_service


def test_worker_of_nodes_that_follow_drains_and_returns_them(tmp_path: Path) -> None:
    world = fakes.fakes(tmp_path, "slurm")
    assert isinstance(world.fake, fakes.FakeSlurm)
    world.fake.jobs = 5
    slurm = world.fake
    worker = DrainWorker(replace(Rollout(world).drains("a"), clock=time.time), pause=0.0)

    def until(phase: StepPhase) -> list[Observation]:
        task = NodeTask("n1", phase, Direction.FORWARD, 1, Prior(True, None, None))
        for _ in range(500):
            worker.work([task])
            if found := worker.results():
                return found
            time.sleep(0.01)
        raise AssertionError(slurm.asked)

    (drained,) = until(StepPhase.GRANTED)
    assert isinstance(drained, SchedulerObservation)
    assert not drained.in_service
    worker.work([NodeTask("n1", StepPhase.APPLYING, Direction.FORWARD, 1, Prior(True, None, None))])
    assert worker.results() == []
    (returned,) = until(StepPhase.RETURNING)
    assert isinstance(returned, SchedulerObservation)
    assert returned.in_service
    asked = len(world.fake.asked)
    worker.work(
        [NodeTask("n1", StepPhase.RETURNING, Direction.FORWARD, 1, Prior(True, None, None))]
    )
    assert len(world.fake.asked) == asked, "a task that is done is not repeated"
    worker.close()


def test_worker_repeats_a_drain_that_failed(tmp_path: Path) -> None:
    world = fakes.fakes(tmp_path, "slurm")
    assert isinstance(world.fake, fakes.FakeSlurm)
    Rollout(world, "other").drains("a").drain("n1", Prior(True, None, None))
    worker = DrainWorker(replace(Rollout(world).drains("a"), clock=time.time), pause=0.0)
    task = NodeTask("n1", StepPhase.GRANTED, Direction.FORWARD, 1, Prior(True, None, None))
    asked = len(world.fake.asked)
    for _ in range(200):
        worker.work([task])
        assert worker.results() == []
        if len(world.fake.asked) >= asked + 2:
            break
        time.sleep(0.01)
    assert len(world.fake.asked) >= asked + 2
    worker.close()


def test_person_who_was_faster_is_seen(tmp_path: Path) -> None:
    world = fakes.fakes(tmp_path, "slurm")
    world.fake.drain_by("bad fan, ann")
    rollout = Rollout(world)
    rollout.run("a")
    assert [(item.in_service, item.reason) for item in rollout.seen] == [
        (False, "bad fan, ann")
    ] * 2
