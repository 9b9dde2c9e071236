"""A controller on a real store with simulated nodes: a world that outlives any number of killed controllers."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control.controller import (
    ControllerParts,
    ControllerReport,
    ControllerSettings,
    RolloutController,
)
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import (
    Answer,
    Direction,
    NodeObservation,
    SchedulerObservation,
    StepPhase,
)
from goldnode.fleet.rollout.parts import NodeTask, Observation, RequirementReader
from goldnode.fleet.store import controllers, log, nodes, observations, rollout_trace, rollouts
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.node.ground import drained

START = 1_800_000_000.0
TICK = 120.0
LIMITS = FleetLimits("4", "8", "10")


class Killed(BaseException):
    """The controller is killed here."""


@dataclass
class SimulatedNode:
    """A node, as the world has it."""

    digest: str
    boots: int = 1
    in_service: bool = True
    reason: str = ""

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"


@dataclass
class World:
    """Simulated nodes, the clock, and faults by node: `module`, `image`, `silent`."""

    names: Sequence[str]
    run: str
    faults: dict[str, str] = field(default_factory=dict)
    target: str = documents.NEW
    now: float = START
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    served: dict[str, list[str]] = field(default_factory=dict)  # digests with which a node served

    def __post_init__(self) -> None:
        self.nodes = {name: SimulatedNode(documents.OLD) for name in self.names}

    def seen(self, name: str) -> SchedulerObservation:
        node = self.nodes[name]
        return SchedulerObservation(name, self.now, node.in_service, 0.0, node.reason)

    def reported(self, name: str, verdict: Answer, **more: Any) -> NodeObservation:
        node = self.nodes[name]
        return NodeObservation(name, self.now, node.boot_id, node.digest, verdict, **more)


class SimulatedWorker:
    """Does each task at once, and reports it at the next tick. A repeated task changes nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: list[Observation] = []

    def work(self, tasks: Collection[NodeTask]) -> None:
        self.world.now += TICK / 2
        for task in tasks:
            node = self.world.nodes[task.node]
            if task.phase is StepPhase.GRANTED:
                if node.in_service:
                    node.in_service = False
                    node.reason = drained.reason(
                        self.world.run, "c", "2026-11-02T08:00:00Z", "rollout"
                    )
                self.found.append(self.world.seen(task.node))
            elif task.phase is StepPhase.APPLYING:
                self._apply(task, node)
            elif task.phase is StepPhase.RETURNING:
                held = drained.mark(node.reason)
                if task.prior.in_service and held is not None and held.run == self.world.run:
                    node.in_service, node.reason = True, ""
                    self.world.served.setdefault(task.node, []).append(node.digest)
                self.found.append(self.world.seen(task.node))

    def _apply(self, task: NodeTask, node: SimulatedNode) -> None:
        assert not node.in_service, f"{task.node} is changed while it serves"
        wanted = (
            self.world.target if task.direction is Direction.FORWARD else str(task.prior.digest)
        )
        fault = self.world.faults.get(task.node) if task.direction is Direction.FORWARD else None
        if fault == "module":
            why = "module nvidia does not build"
            self.found.append(self.world.reported(task.node, Answer.UNKNOWN, not_applied=why))
            return
        if fault == "silent":
            return
        if node.digest != wanted or node.boot_id == task.prior.boot_id:
            node.digest, node.boots = wanted, node.boots + 1
        bad = fault == "image"
        more = {"software": ("driver.version",)} if bad else {}
        self.found.append(
            self.world.reported(task.node, Answer.FAILS if bad else Answer.PASSES, **more)
        )

    def results(self) -> list[Observation]:
        found, self.found = self.found, []
        return found

    def close(self) -> None:
        self.found = []


@dataclass
class ControlledRollout:
    """A rollout in a store, with the world that its controllers work on."""

    where: str
    settings: RolloutSettings
    world: World
    requirements: RequirementReader | None = None

    def store(self) -> StoreDatabase:
        return StoreDatabase(self.where)

    def controller(
        self, store: StoreDatabase, holder: str = "c/1", quiet: float = 0.0
    ) -> RolloutController:
        own = ControllerSettings(holder, quiet=quiet, clock=lambda: self.world.now)
        parts = ControllerParts(SimulatedWorker(self.world), requirements=self.requirements)
        return RolloutController(store, self.settings, parts, own)

    def run(self, ticks: int = 2000, kill_at: int | None = None) -> tuple[ControllerReport, int]:
        """Run to the end, with the controller killed before statement `kill_at`. Return the statements too."""
        statements, report = 0, None
        for life in range(1, 4):
            store = self.store()
            counter = StatementCounter(None if life > 1 or kill_at is None else kill_at)
            counter.watch(store)
            controller = self.controller(store, f"c/{life}")
            try:
                for _ in range(ticks):
                    report = controller.tick()
                    # Real answers arrive before the simulated time goes on.
                    futures.wait(controller._asked.values(), timeout=20)
                    self.world.now += TICK / 2
                    if report.ended:
                        break
            except Killed:
                self.world.now += TICK / 2
                continue
            finally:
                with suppress(Killed):  # it may be killed while it ends, too
                    controller.close()
                statements += counter.count
                store.close()
            break
        assert report is not None
        return report, statements

    def history(self) -> tuple[dict[str, list[tuple[Any, ...]]], dict[str, Any]]:
        """Return the log by node without times and epochs, and the steps at the end."""
        store = self.store()
        with store.read() as connection:
            rows = log.entries(connection, rollout=self.settings.name)
            state = rollouts.load(connection, self.settings).state
        store.close()
        lines: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            if row["action"] in ("TakeOver", "Submit"):
                continue
            content = json.loads(row["content"])
            names = (
                "phase",
                "direction",
                "attempt",
                "cause",
                "blame",
                "wave",
                "nodes",
                "reason",
                "why",
            )
            line = (row["action"], *(str(content.get(name)) for name in names))
            lines.setdefault(content.get("node") or "", []).append(line)
        steps = {
            name: (step.phase, step.direction, step.attempt, step.cause)
            for name, step in state.steps.items()
        }
        return lines, {"steps": steps, "phase": state.record.phase, "out": state.ledger.out}


def violations(found: ControlledRollout, settings: RolloutSettings | None = None) -> list[str]:
    """Return what the rules of the simulator refuse in the trace of a rollout."""
    store = found.store()
    with store.read() as connection:
        refused = rollout_trace.violations(connection, settings or found.settings)
    store.close()
    return refused


class StatementCounter:
    """Counts statements and commits of a store, and kills the controller before one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.count, self.kill_at = 0, kill_at

    def watch(self, store: StoreDatabase) -> None:
        event.listen(store.engine, "before_cursor_execute", self._statement)
        event.listen(store.engine, "commit", self._statement)

    def _statement(self, *given: object) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed


def controlled(
    directory: Path, where: str, count: int = 12, *changes: tuple[str, str], **faults: str
) -> ControlledRollout:
    """Return a rollout of `count` nodes in a migrated store, submitted and with everything observed once."""
    file = documents.written(directory, *changes)
    settings = file.settings
    names = [f"n{number:02}" for number in range(count)]
    given = Submission(
        settings.name,
        node_class=settings.class_,
        target=settings.target,
        document=file.text,
        limits=LIMITS,
        author="alice@c",
    )
    store = StoreDatabase(where)
    stored = [
        StoredNode(name, settings.class_, f"r{place % 4}", f"l{place % 2}")
        for place, name in enumerate(names)
    ]
    store.run(lambda c: nodes.put(c, stored, {}, "test", START))
    store.run(lambda c: controllers.submit(c, given, START))
    with store.read() as connection:
        run = rollouts.load(connection, settings).state.run
    world = World(names, run, dict(faults))
    first = [
        item for name in names for item in (world.seen(name), world.reported(name, Answer.PASSES))
    ]
    store.run(lambda c: observations.record(c, first, "test"))
    store.close()
    return ControlledRollout(where, settings, world)
