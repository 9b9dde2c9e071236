"""Rollouts on a real slurmctld: readings, controllers that die at every call, persons' drains, and a busy node.

The change of a node is simulated: its state is a file. Everything that Slurm does is real.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests import slurm
from tests.slurm import SlurmCluster
from tests.unit.fleet.rollout import documents

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.control.drains import RolloutDrains
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.drain import protocol
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.drain.protocol import Drainer
from goldnode.fleet.drain.record import DrainRecords, local_file
from goldnode.fleet.drain.slurm import SlurmDrainer, expand
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Answer, NodeObservation, Prior, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.rollout.plan import BUSY_LONG
from goldnode.fleet.shared import identity
from goldnode.fleet.store import controllers, nodes, rollouts
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.node.ground.drained import FILE, mark

pytestmark = pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")
FORK = multiprocessing.get_context("fork")
PRIOR = Prior(True, documents.OLD, "0")


@pytest.fixture(scope="module")
def started() -> Iterator[SlurmCluster]:
    with slurm.cluster(8) as found:
        yield found


@pytest.fixture
def cluster(started: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    monkeypatch.setenv("SLURM_CONF", started.conf)
    started.reset()
    return started


def settings_of(cluster: SlurmCluster) -> dict[str, DrainSettings]:
    """Inventory names differ from those of Slurm."""
    return {f"host-{name}": DrainSettings("slurm", name) for name in cluster.nodes}


# Readings


@pytest.mark.long
def test_readings_of_a_real_cluster(cluster: SlurmCluster) -> None:
    cluster.job("n1", 86400, "24:00:00")
    cluster.update("n2", "State=DRAIN", "Reason=bad fan; ask ann [x@y]")
    for name, where, flags in (("fix", "n[4-5]", "Flags=MAINT"), ("course", "n6", "Flags=")):
        words = ("scontrol", "create", "reservation", f"ReservationName={name}", f"Nodes={where}")
        cluster.call(*words, "StartTime=now", "Duration=120", flags, "Users=root")
    cluster.wait(lambda: "MAINTENANCE" in cluster.rows()["n4"][0])
    cluster.call("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=firmware", "n1")
    wanted = {**settings_of(cluster), "gone": DrainSettings("slurm", "n99")}
    before = time.time()
    found = {item.node: item for item in SiteSchedulers(wanted).read(wanted)}
    assert set(found) == set(settings_of(cluster))
    assert before <= found["host-n1"].at <= time.time()
    assert abs(found["host-n1"].free_at - before - 86400) < 60
    assert (found["host-n1"].in_service, found["host-n1"].reason) == (False, "firmware")
    assert (found["host-n2"].in_service, found["host-n2"].reason) == (
        False,
        "bad fan; ask ann [x@y]",
    )
    assert found["host-n4"].reason == found["host-n5"].reason == "maintenance reservation fix"
    assert not found["host-n4"].in_service
    assert found["host-n6"].in_service
    assert found["host-n7"].free_at == 0.0
    own = {item.node: item for item in SiteSchedulers(wanted, "fix").read(wanted)}
    assert own["host-n4"].in_service
    cluster.call("scontrol", "cancel_reboot", "n1")


@pytest.mark.long
@pytest.mark.parametrize("hosts", ["n[1-3],m[001-003,7]x[1-2],k", "a-[9-11]", "x"])
def test_host_lists_are_those_of_slurm(cluster: SlurmCluster, hosts: str) -> None:
    assert list(expand(hosts)) == cluster.call("scontrol", "show", "hostnames", hosts).split()


@pytest.mark.long
def test_slurmctld_that_does_not_answer(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cluster.directory / "away.conf"
    text = Path(cluster.conf).read_text()
    line = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    other.write_text(text.replace(line, "SlurmctldPort=1") + "MessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(other))
    with pytest.raises(
        GoldnodeError, match=r"scontrol --all show (failed: .*Unable to contact|.*no answer)"
    ):
        SiteSchedulers(settings_of(cluster)).read(["host-n1"])


# SIGKILL at every call of a drain and a return


@dataclass
class Killer:
    """Counts the calls of a process to Slurm and to the node, and kills the process after one of them."""

    kill: int | None = None
    done: int = 0

    def after(self) -> None:
        self.done += 1
        if self.done == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class CountedSettings(DrainSettings):
    """Slurm, with every call counted."""

    killer: Killer = field(default_factory=Killer)

    def drainer(self) -> Drainer:
        def run(argv: Sequence[str]) -> str:
            found = protocol.run(argv)
            self.killer.after()
            return found

        return SlurmDrainer(run=run)


def shell(root: Path, killer: Killer) -> Callable[[str], str]:
    def run(script: str) -> str:
        done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
        killer.after()
        return done.stdout

    return run


def drains_of(place: Path, controller: str, killer: Killer, rollout: str = "r1") -> RolloutDrains:
    """Return the drains of one controller: its own directory, the node's file is shared."""

    def records(name: str) -> DrainRecords:
        root = place / "nodes" / name
        return DrainRecords(
            shell(root, killer), local_file(str(place / controller), "slurm", name), str(root)
        )

    names = {
        f"n{number}": CountedSettings("slurm", f"n{number}", killer=killer)
        for number in range(1, 9)
    }
    return RolloutDrains(rollout, names, records)


def whole(place: Path, controller: str, node: str, kill: int | None) -> None:
    found = drains_of(place, controller, Killer(kill))
    while found.drain(node, PRIOR) is None:
        time.sleep(0.2)
    found.resume(node, PRIOR)


def process(work: Callable[..., None], *arguments: object) -> int:
    """Run in a process of its own; return its exit status, negative for a signal."""
    child = FORK.Process(target=work, args=arguments)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


PRIORS: dict[str, tuple[str, ...]] = {
    "in service": (),
    "drained by a person": ("State=DRAIN", "Reason=bad fan; do not touch, ann"),
    "drained by the gate": ("State=DRAIN", "Reason=goldnode: gpu.count: 7 (want 8)"),
    "down": ("State=DOWN", "Reason=power supply, ann"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PRIORS)
def test_real_slurm_shows_the_prior_state_wherever_controllers_are_killed(
    cluster: SlurmCluster, tmp_path: Path, name: str
) -> None:
    if PRIORS[name]:
        cluster.update("n1", *PRIORS[name])
    before = cluster.rows()["n1"]
    kill, killed = 0, -signal.SIGKILL
    while killed == -signal.SIGKILL:
        kill += 1
        place = tmp_path / str(kill)
        killed = process(whole, place, "a", "n1", kill)
        process(whole, place, "b", "n1", kill % 4 + 1)  # dies early, on another machine
        assert process(whole, place, "c", "n1", None) == 0
        assert cluster.settled("n1") == before, kill
        assert not list((place / "nodes").rglob("drain.json")), kill
    assert killed == 0
    assert kill > 5, "it was killed at every call, and not at all in the last round"


@pytest.mark.long
@pytest.mark.parametrize("when", ["before the second controller", "while it is drained"])
@pytest.mark.parametrize("words", [("State=DRAIN", "Reason=bad fan, ann"), ("State=RESUME",)])
def test_real_slurm_has_the_last_word_of_a_person(
    cluster: SlurmCluster, tmp_path: Path, when: str, words: tuple[str, ...]
) -> None:
    for kill in range(3, 9):
        cluster.reset()
        place = tmp_path / str(kill)
        process(whole, place, "a", "n2", kill)
        if when == "while it is drained":
            drains_of(place, "b", Killer()).drain("n2", PRIOR)
        if words != ("State=RESUME",) or "DRAIN" in cluster.rows()["n2"][0]:
            cluster.update("n2", *words)
        wanted = cluster.settled("n2")
        if when == "while it is drained":
            drains_of(place, "c", Killer()).resume("n2", PRIOR)
        else:
            assert process(whole, place, "c", "n2", None) == 0
        assert cluster.settled("n2") == wanted, kill


@pytest.mark.long
def test_real_slurm_drain_of_another_rollout_stays(cluster: SlurmCluster, tmp_path: Path) -> None:
    drains_of(tmp_path, "a", Killer()).drain("n3", PRIOR)
    taken = cluster.rows()["n3"]
    other = drains_of(tmp_path, "a", Killer(), "r2")
    with pytest.raises(GoldnodeError, match="was drained by a rollout"):
        other.drain("n3", PRIOR)
    assert not other.resume("n3", PRIOR).in_service
    assert cluster.rows()["n3"] == taken
    assert drains_of(tmp_path, "b", Killer()).resume("n3", PRIOR).in_service


# A whole rollout with a busy node, persons, and a controller that dies


@dataclass
class FileNodes:
    """Simulated nodes: state and boot of each in a file, which outlives any controller."""

    place: Path

    def file(self, name: str) -> Path:
        return self.place / "nodes" / name / "state.json"

    def state(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.file(name).read_text())
        except OSError:
            return {"digest": documents.OLD, "boot": 0}
        return found

    def change(self, name: str, digest: str) -> None:
        file = self.file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".new").write_text(
            json.dumps({"digest": digest, "boot": self.state(name)["boot"] + 1})
        )
        file.with_suffix(".new").replace(file)

    def read(self, names: Iterable[str]) -> list[NodeObservation]:
        now = time.time()
        rows = [(name, self.state(name)) for name in names]
        return [
            NodeObservation(name, now, f"{name}/{row['boot']}", row["digest"], Answer.PASSES)
            for name, row in rows
        ]


@dataclass
class DrainWorker:
    """Drains through Slurm. The change itself takes three ticks, and is simulated."""

    nodes: FileNodes
    drains: RolloutDrains
    found: list[Observation] = field(default_factory=list)
    ticks: dict[str, int] = field(default_factory=dict)

    def work(self, tasks: Collection[NodeTask]) -> None:
        for task in tasks:
            if task.phase is StepPhase.GRANTED:
                if (seen := self.drains.drain(task.node, task.prior)) is not None:
                    self.found.append(seen)
            elif task.phase is StepPhase.RETURNING:
                self.found.append(self.drains.resume(task.node, task.prior))
            else:
                self._apply(task)

    def _apply(self, task: NodeTask) -> None:
        self.ticks[task.node] = self.ticks.get(task.node, 0) + 1
        applied = self.nodes.file(task.node).with_name("applied")
        if not applied.exists():
            applied.parent.mkdir(parents=True, exist_ok=True)
            applied.write_text(str(time.time()))
        if self.ticks[task.node] >= 3:
            if self.nodes.state(task.node)["digest"] != documents.NEW:
                self.nodes.change(task.node, documents.NEW)
            self.found += self.nodes.read([task.node])

    def results(self) -> list[Observation]:
        found, self.found = self.found, []
        return found

    def close(self) -> None:
        self.found = []


def control(place: Path, settings: RolloutSettings, name: str, until: str = "") -> None:
    """Run a controller with the default times, until the rollout has ended and the file `until` is there."""
    store = StoreDatabase(str(place / "fleet.db"))
    file_nodes, drains = FileNodes(place), drains_of(place, name, Killer(), settings.name)
    parts = ControllerParts(
        DrainWorker(file_nodes, drains), SiteSchedulers(drains.nodes), file_nodes
    )
    own = ControllerSettings(f"{name}/{identity.run_id(os.getpid())}")
    controller = RolloutController(store, settings, parts, own)
    while not (controller.tick().ended and (place / until).exists()):
        time.sleep(own.tick)
    controller.close()


def submitted(place: Path, migrated: Path, names: Sequence[str]) -> RolloutSettings:
    """Return the settings of a rollout that is in the store."""
    (place / "fleet.db").write_bytes(migrated.read_bytes())
    changes = (
        ("nodes: 6, soak: 4h", "nodes: 2, soak: 1s"),
        ("soak: 4h", "soak: 1s"),
        ("planned: 4", "planned: 2"),
        ("timeout: 1h", "timeout: 1h\ndrain: {wait: 4h}"),
    )
    found = documents.settings(place, *changes)
    given = Submission(
        found.name,
        node_class=found.class_,
        target=found.target,
        document=(place / "rollout.yml").read_text(),
        limits=FleetLimits("2", "8", "10"),
        author="ann@c",
    )
    store = StoreDatabase(str(place / "fleet.db"))
    stored = [
        StoredNode(name, found.class_, f"r{number % 4}", f"l{number % 2}")
        for number, name in enumerate(names)
    ]
    now = time.time()
    store.run(lambda c: nodes.put(c, stored, {}, "test", now))
    store.run(lambda c: controllers.submit(c, given, now))
    store.close()
    return found


@dataclass
class Watcher:
    """Watches Slurm: when each node was drained and idle, and what persons do meanwhile."""

    cluster: SlurmCluster
    place: Path
    run: str
    idle: dict[str, float] = field(default_factory=dict)
    persons: dict[str, str] = field(default_factory=dict)  # node -> reason

    def look(self) -> None:
        for name, (state, reason) in self.cluster.rows().items():
            held = mark(reason)
            if held is not None and held.run == self.run and state == "IDLE+DRAIN":
                self.idle.setdefault(name, time.time())
        time.sleep(0.3)

    def applied(self) -> dict[str, float]:
        files = (self.place / "nodes").glob("*/applied")
        return {file.parent.name: float(file.read_text()) for file in files}

    def person(self, node: str, reason: str) -> None:
        self.cluster.update(node, "State=DRAIN", f"Reason={reason}")
        self.persons[node] = reason

    def until(
        self, condition: Callable[[], object], child: Any = None, seconds: float = 420
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (self.cluster.rows(), self.applied())
            assert child is None or child.exitcode is None, child.exitcode
            self.look()


@pytest.mark.long
def test_busy_node_delays_no_other_and_drains_of_persons_stay(
    cluster: SlurmCluster, tmp_path: Path, migrated: Path
) -> None:
    settings = submitted(tmp_path, migrated, cluster.nodes)
    watcher = Watcher(cluster, tmp_path, identity.rollout_run(settings.name))
    long_job = cluster.job("n8", 86400, "24:00:00")
    cluster.job("n7", 75, "01:00:00")
    watcher.person("n1", "bad fan; ask ann")  # before its wave
    first = FORK.Process(target=control, args=(tmp_path, settings, "a"))
    first.start()
    # Dies by SIGKILL while it changes a node; a person takes that node over before the next controller begins.
    watcher.until(watcher.applied, first)
    during = next(iter(watcher.applied()))
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    assert (tmp_path / "nodes" / during / FILE.lstrip("/")).exists()
    watcher.person(during, "memory test; ask bob")
    second = FORK.Process(target=control, args=(tmp_path, settings, "b", "enough"))
    began = time.time()
    second.start()
    done = FileNodes(tmp_path)

    def returned(name: str) -> bool:
        return done.state(name)["digest"] == documents.NEW and cluster.rows()[name][0] == "IDLE"

    watcher.until(lambda: any(returned(name) for name in cluster.nodes if name != during), second)
    after = next(name for name in cluster.nodes if name != during and returned(name))
    watcher.person(after, "new cable; ask eve")
    others = [name for name in cluster.nodes if name not in ("n1", "n8")]
    watcher.until(
        lambda: all(done.state(name)["digest"] == documents.NEW for name in others), second
    )
    serving = [name for name in others if name not in watcher.persons]
    watcher.until(lambda: all(cluster.rows()[name] == ("IDLE", "") for name in serving), second)
    took = time.time() - began
    # The node with the 24-hour job was never drained. It is passed over, and named.
    assert cluster.rows()["n8"] == ("ALLOCATED", "")
    store = StoreDatabase(str(tmp_path / "fleet.db"))

    def steps() -> dict[str, tuple[StepPhase, str | None]]:
        with store.read() as connection:
            found = rollouts.load(connection, settings).state.steps
        return {name: (step.phase, step.cause) for name, step in found.items()}

    watcher.until(lambda: steps().get("n8") == (StepPhase.DEFERRED, BUSY_LONG), second)
    assert steps()["n1"] == (StepPhase.DEFERRED, "bad fan; ask ann")
    assert all(steps()[name][0] is StepPhase.DONE for name in others)
    assert {name: cluster.rows()[name] for name in watcher.persons} == {
        name: ("IDLE+DRAIN", reason) for name, reason in watcher.persons.items()
    }
    waited = {
        name: begin - watcher.idle[name]
        for name, begin in watcher.applied().items()
        if name in watcher.idle
    }
    print(
        f"idle before the change, s: { {name: round(one, 1) for name, one in waited.items()} }, {took:.0f} s in all"
    )
    assert len(waited) >= 5
    assert statistics.median(waited.values()) <= 120
    assert max(waited.values()) <= 120
    # When the job ends, the node moves too. Nodes that persons have drained stay with them.
    cluster.call("scancel", long_job)
    watcher.until(lambda: returned("n8"), second)
    (tmp_path / "enough").touch()
    second.join(120)
    assert second.exitcode == 0
    assert not list((tmp_path / "nodes").rglob("drain.json"))
    store.close()
